"""What a cleaning pass keeps of each batch, and why: the readable reference implementation.

Pure and record by record. The compiled cleaner must write the same bytes; messages of the old
formats are cleaned by this code, and explanations take their reasons from here.

Only the newest record of each key is kept. A tombstone is kept until its delete horizon, which the
first pass that reads it writes into its batch (into the base timestamp, where readers do not look).
So is the marker of a transaction without data. A batch without records is dropped, unless it holds
the last sequence number of a live producer or ends where the pass ends.
"""

from __future__ import annotations

import enum
import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import UnsupportedError
from stratalog.format.batch import MAGIC_2, BatchHeader, Codec
from stratalog.format.control import ControlType, read_control_key
from stratalog.format.legacy import encode_legacy, inner_magics
from stratalog.format.log_entry import header_of, records_of
from stratalog.format.producer_snapshot import NO_OFFSET
from stratalog.format.record import BatchFields, encode_batch, encode_empty_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from stratalog.format.batch import Entry
    from stratalog.format.buffers import Buffer
    from stratalog.format.log_entry import EntryHeader
    from stratalog.format.record import Record
    from stratalog.format.txn_index import AbortedTxn
    from stratalog.log.producer_transitions import ProducerState


class RecordReason(enum.StrEnum):
    """Why a record is kept or dropped."""

    NEWEST = "newest record of its key"
    NOT_MAPPED = "no newer record of its key among the dirty ones"
    BEYOND_MAP = "after the part that this pass has mapped"
    TOMBSTONE_PROTECTED = "tombstone that readers may still need"
    MARKER = "transaction marker"
    SUPERSEDED = "superseded by a newer record of its key"
    TOMBSTONE_EXPIRED = "tombstone past its delete horizon"
    NO_KEY = "no key"
    ABORTED = "of an aborted transaction"
    MARKER_EXPIRED = "marker of a transaction without data, past its delete horizon"


class BatchReason(enum.StrEnum):
    """Why a pass keeps, changes or drops a batch."""

    ALL_KEPT = "every record is kept"
    RECORDS_DROPPED = "some records are dropped"
    HORIZON_SET = "it gets a delete horizon"
    MAGIC_MIXED = "its messages have another format than their wrapper"
    LAST_OF_PRODUCER = "it holds the last sequence number of a live producer"
    ENDS_AT_BOUND = "it ends where the pass ends"
    NOTHING_LEFT = "no record is kept"
    ABORTED = "its transaction was aborted"
    MARKER_EXPIRED = "a marker without data, past its delete horizon"


class BatchAction(enum.StrEnum):
    """What a pass does with a batch."""

    COPIED = "copied"
    REBUILT = "rebuilt"
    EMPTIED = "kept as a header without records"
    DROPPED = "dropped"


NOT_MAPPED: Final = -1
"""Instead of an offset: the key is not in the offset map."""


class RecordDecision(NamedTuple):
    """Keep or drop one record, and why."""

    offset: int
    is_kept: bool
    reason: RecordReason
    newer_offset: int = NOT_MAPPED
    """With SUPERSEDED: the offset of the newer record with the same key."""


class FilteredBatch(NamedTuple):
    """What a pass writes of one batch."""

    header: EntryHeader
    action: BatchAction
    reason: BatchReason
    data: bytes
    """What is written; empty when the batch is dropped."""
    kept: tuple[Record, ...]
    decisions: tuple[RecordDecision, ...]
    """One per record; empty if the batch is dropped without looking at its records."""
    max_offset: int
    """For index entries: the offset of the last kept record if rebuilt, else the last offset of the
    batch; -1 if it is dropped."""
    max_timestamp: int
    delete_horizon_ms: int | None
    """As written."""


class CleanedTransactions:
    """The transactions that one pass has seen so far: which data is aborted, which markers may go.

    A pass reads batches in log order, so everything about a transaction is known at its marker.
    Data of an aborted transaction is dropped at once. A marker is no longer needed if the pass has
    seen no data of its transaction, not even an emptied batch; then it is dropped after its delete
    horizon. The state spans all segments and groups of a pass.
    """

    def __init__(self) -> None:
        self._coming: list[tuple[int, AbortedTxn]] = []  # a heap, by first offset
        self._aborted: dict[int, AbortedTxn] = {}  # open ones, by producer
        self._with_data: set[int] = set()  # producers of those of which data was seen
        self._committed: set[int] = set()  # producers with other transactional data since a marker
        self._kept: list[AbortedTxn] = []

    def add_aborted(self, txns: Iterable[AbortedTxn]) -> None:
        """Add the aborted transactions of the next segment. Known ones may be repeated."""
        for txn in txns:
            heapq.heappush(self._coming, (txn.first_offset, txn))

    def on_data(self, producer_id: int, last_offset: int, *, is_transactional: bool) -> bool:
        """A data batch was read. Returns whether it is aborted, so that all its records are
        dropped."""
        self._advance_to(last_offset)
        if not is_transactional:
            return False
        if producer_id in self._aborted:
            self._with_data.add(producer_id)
            return True
        self._committed.add(producer_id)
        return False

    def on_control(self, producer_id: int, last_offset: int, marker: ControlType | None) -> bool:
        """A control batch was read; `marker` is None for one that was emptied.

        Returns whether it is no longer needed: no data of its transaction was seen. An abort marker
        that is needed keeps its entry in the transaction index (see `take_kept`).
        """
        self._advance_to(last_offset)
        if marker is None:
            return True
        if marker is ControlType.COMMIT:
            had_data = producer_id in self._committed
            self._committed.discard(producer_id)
            return not had_data
        if marker is not ControlType.ABORT:
            return False
        txn = self._aborted.pop(producer_id, None)
        if txn is None or producer_id not in self._with_data:
            return True
        self._with_data.discard(producer_id)
        self._kept.append(txn)
        return False

    def take_kept(self) -> list[AbortedTxn]:
        """Index entries of the abort markers that were kept since the last call."""
        kept, self._kept = self._kept, []
        return kept

    def _advance_to(self, last_offset: int) -> None:
        while self._coming and self._coming[0][0] <= last_offset:
            _, txn = heapq.heappop(self._coming)
            self._aborted.setdefault(txn.producer_id, txn)


class LastRecord(NamedTuple):
    """What identifies the last batch of a live producer, which must be kept."""

    last_data_offset: int
    """Last offset of that batch; -1 if the producer has written no data in its epoch."""
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class CleaningRules:
    """The rules of one cleaning pass."""

    newest_offset_of: Callable[[bytes], int]
    """The offset map: the offset of the newest mapped record of a key, or -1."""
    map_latest_offset: int
    """Records above it were not mapped and are kept."""
    bound: int
    """First uncleanable offset. A batch that ends there is kept, if only as a header."""
    now_ms: int
    delete_retention_ms: int
    legacy_horizon_ms: int
    producers: Mapping[int, LastRecord]
    """The last batches of live producers, by producer id."""


def last_records(producers: Iterable[ProducerState]) -> dict[int, LastRecord]:
    """For each of these producers, by id, what identifies its last batch."""
    return {
        state.producer_id: LastRecord(
            state.batches[-1].last_offset if state.batches else NO_OFFSET, state.producer_epoch
        )
        for state in producers
    }


def filter_batch(
    buf: Buffer,
    entry: Entry,
    rules: CleaningRules,
    transactions: CleanedTransactions,
    source_mtime_ms: int,
) -> FilteredBatch:
    """Decide about the batch at `entry` and write what is kept of it.

    Updates `transactions`: pass every batch once, in order. `source_mtime_ms` is the mtime of the
    batch's segment, which decides about tombstones of the old formats. The caller checks the CRC.
    Raises a CorruptError if records that matter cannot be decoded.
    """
    header = header_of(buf, entry)
    is_obsolete = _is_obsolete(buf, entry, header, transactions)
    drop_reason = _drop_reason(header, rules.now_ms) if is_obsolete else None
    keep_empty_reason = _keep_empty_reason(header, rules)
    if drop_reason is not None and keep_empty_reason is None:
        return _dropped(header, BatchReason[drop_reason.name], ())
    records = tuple(records_of(buf, entry, check_crc=False))
    if drop_reason is not None:
        decisions = tuple(RecordDecision(r.offset, False, drop_reason) for r in records)
    else:
        record_filter = RecordFilter(rules, header, source_mtime_ms)
        decisions = tuple(record_filter.decide(record) for record in records)
    kept = tuple(r for r, decision in zip(records, decisions, strict=True) if decision.is_kept)
    if not kept:
        if keep_empty_reason is None:
            return _dropped(header, BatchReason.NOTHING_LEFT, decisions)
        return _emptied(header, keep_empty_reason, decisions)
    new_horizon = None
    if _needs_horizon(header, kept, is_obsolete_marker=is_obsolete and header.is_control):
        new_horizon = rules.now_ms + rules.delete_retention_ms
    return _kept(buf, entry, header, (kept, decisions), new_horizon)


def rebuild(
    header: EntryHeader, kept: Sequence[Record], delete_horizon_ms: int | None = None
) -> bytes:
    """The batch with only the records `kept` (at least one), at their offsets, in the same
    codec."""
    codec = Codec(header.codec_id)
    if not isinstance(header, BatchHeader):
        return encode_legacy(kept, header.magic, codec=codec)
    fields = BatchFields.kept_of(header)._replace(
        codec=codec,
        timestamp_type=header.timestamp_type,
        delete_horizon_ms=delete_horizon_ms,
        partition_leader_epoch=header.partition_leader_epoch,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
    )
    return encode_batch(kept, fields)


class RecordFilter:
    """Decides about the records of one batch."""

    def __init__(self, rules: CleaningRules, header: EntryHeader, source_mtime_ms: int) -> None:
        self._rules = rules
        self._is_control = header.is_control
        horizon = header.delete_horizon_ms
        if header.magic < MAGIC_2:
            self._retains_tombstones = source_mtime_ms > rules.legacy_horizon_ms
        else:
            self._retains_tombstones = horizon is None or rules.now_ms < horizon

    def decide(self, record: Record) -> RecordDecision:
        offset = record.offset
        if self._is_control:
            return RecordDecision(offset, True, RecordReason.MARKER)
        if offset > self._rules.map_latest_offset:
            return RecordDecision(offset, True, RecordReason.BEYOND_MAP)
        if record.key is None:
            return RecordDecision(offset, False, RecordReason.NO_KEY)
        newest = self._rules.newest_offset_of(record.key)
        if offset < newest:
            return RecordDecision(offset, False, RecordReason.SUPERSEDED, newest)
        if record.value is not None:
            is_mapped = newest != NOT_MAPPED
            reason = RecordReason.NEWEST if is_mapped else RecordReason.NOT_MAPPED
        elif self._retains_tombstones:
            reason = RecordReason.TOMBSTONE_PROTECTED
        else:
            reason = RecordReason.TOMBSTONE_EXPIRED
        return RecordDecision(offset, reason is not RecordReason.TOMBSTONE_EXPIRED, reason)


def _is_obsolete(
    buf: Buffer, entry: Entry, header: EntryHeader, transactions: CleanedTransactions
) -> bool:
    """Whether the batch is aborted, or a marker that is no longer needed."""
    last_offset = header.next_offset - 1
    if not header.is_control:
        return transactions.on_data(
            header.producer_id, last_offset, is_transactional=header.is_transactional
        )
    record = next(records_of(buf, entry, check_crc=False), None)
    marker: ControlType | None = None
    if record is not None:
        marker = read_control_key(record, position=entry.position).type
    return transactions.on_control(header.producer_id, last_offset, marker)


def _drop_reason(header: EntryHeader, now_ms: int) -> RecordReason | None:
    """The reason to drop all records of an obsolete batch; None for a marker before its delete
    horizon."""
    if not header.is_control:
        return RecordReason.ABORTED
    horizon = header.delete_horizon_ms
    return RecordReason.MARKER_EXPIRED if horizon is not None and horizon <= now_ms else None


def _keep_empty_reason(header: EntryHeader, rules: CleaningRules) -> BatchReason | None:
    if header.has_producer:
        last = rules.producers.get(header.producer_id)
        if last is not None and _is_last_of(header, last):
            return BatchReason.LAST_OF_PRODUCER
    if header.next_offset == rules.bound:
        return BatchReason.ENDS_AT_BOUND
    return None


def _is_last_of(header: EntryHeader, last: LastRecord) -> bool:
    """Whether this is the last batch of its producer. If the producer has written no data, its last
    marker counts, because that has the epoch that fences others."""
    if last.last_data_offset >= 0:
        return header.next_offset - 1 == last.last_data_offset
    return header.is_control and header.producer_epoch == last.producer_epoch


def _needs_horizon(
    header: EntryHeader, kept: Sequence[Record], *, is_obsolete_marker: bool
) -> bool:
    if header.magic < MAGIC_2 or header.delete_horizon_ms is not None:
        return False
    return is_obsolete_marker or any(record.value is None for record in kept)


def _kept(
    buf: Buffer,
    entry: Entry,
    header: EntryHeader,
    decided: tuple[tuple[Record, ...], tuple[RecordDecision, ...]],
    new_horizon: int | None,
) -> FilteredBatch:
    kept, decisions = decided
    reason = BatchReason.ALL_KEPT
    if len(kept) < len(decisions):
        reason = BatchReason.RECORDS_DROPPED
    elif new_horizon is not None:
        reason = BatchReason.HORIZON_SET
    elif _has_mixed_magic(buf, entry, header):
        reason = BatchReason.MAGIC_MIXED
    horizon = header.delete_horizon_ms if new_horizon is None else new_horizon
    action = BatchAction.COPIED
    max_offset, max_timestamp = header.next_offset - 1, header.max_timestamp
    data = bytes(memoryview(buf)[entry.position : entry.end])
    if reason is not BatchReason.ALL_KEPT:
        action, data = BatchAction.REBUILT, rebuild(header, kept, horizon)
        max_offset = max(record.offset for record in kept)
        max_timestamp = max(record.timestamp for record in kept)
    return FilteredBatch(
        header, action, reason, data, kept, decisions, max_offset, max_timestamp, horizon
    )


def _has_mixed_magic(buf: Buffer, entry: Entry, header: EntryHeader) -> bool:
    """Old brokers could write sets whose messages have the other magic. Cleaning rewrites them."""
    if isinstance(header, BatchHeader):
        return False
    return bool(inner_magics(buf, entry.position, header) - {header.magic})


def _dropped(
    header: EntryHeader, reason: BatchReason, decisions: tuple[RecordDecision, ...]
) -> FilteredBatch:
    return FilteredBatch(
        header, BatchAction.DROPPED, reason, b"", (), decisions, NOT_MAPPED, -1, None
    )


def _emptied(
    header: EntryHeader, reason: BatchReason, decisions: tuple[RecordDecision, ...]
) -> FilteredBatch:
    if not isinstance(header, BatchHeader):
        raise UnsupportedError(
            f"the message at offset {header.last_offset}, of format {header.magic}, would lose "
            "all its records but must be kept, and its format has no empty batch. Append a record "
            "to the topic, let its segment roll, then clean again"
        )
    data = encode_empty_batch(header)
    last_offset = header.last_offset
    return FilteredBatch(
        header,
        BatchAction.EMPTIED,
        reason,
        data,
        (),
        decisions,
        last_offset,
        header.max_timestamp,
        None,
    )
