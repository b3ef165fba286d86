"""Idempotence and transactions of one log that is being written.

Before a write, `check` decides whether the batch is a duplicate, is rejected, or what it will
change. `update` applies the change once the bytes are in the log. The changes and the checks
themselves are in `producer_transitions`. This module keeps the state that grows with the log: what
readers may see of transactions, expiry, and snapshots as bytes.

No I/O and no clock: bytes and `now_ms` are passed in. Not thread-safe: the appending thread holds
the log's lock.

Invariants:

* `check` changes nothing, so a write that fails leaves the state of the log as it is;
* a transaction blocks the last stable offset until the high watermark is above its marker, so what
  is written between `update` and then (the `.txnindex`) is there before a reader needs it;
* a producer is forgotten by expiry or by a reload, never because retention deleted its records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import CorruptSnapshotError, UnsupportedError
from stratalog.format.producer_snapshot import decode_snapshot, encode_snapshot
from stratalog.log.offset_assignment import AppendOrigin
from stratalog.log.producer_transitions import (
    CachedBatch,
    ProducerCheckRules,
    ProducerState,
    ProducerTable,
    ProducerUpdate,
    check_data,
    check_has_sequence,
    check_marker,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from stratalog.format.batch import BatchHeader
    from stratalog.format.buffers import Buffer
    from stratalog.format.control import EndMarker
    from stratalog.log.producer_transitions import CompletedTxn


@dataclass(frozen=True)
class ProducerStateConfig:
    """Kafka's broker settings that govern producers; the defaults are Kafka's."""

    producer_id_expiration_ms: int = 86_400_000
    """`producer.id.expiration.ms`"""


class CheckedAppend(NamedTuple):
    """What `check` returns: a batch that the log already has, or what the append will change."""

    duplicate: CachedBatch | None = None
    """Return its offsets and timestamp, and write nothing."""
    changes: tuple[ProducerUpdate, ...] = ()


NOTHING_TO_UPDATE: Final = CheckedAppend()


class ProducerStateManager:
    """The producers of a log up to `map_end_offset`."""

    def __init__(self, config: ProducerStateConfig | None = None, *, start_offset: int = 0) -> None:
        self.config = config or ProducerStateConfig()
        self.map_end_offset = start_offset
        """The state covers everything below. Set it after each append, with or without producers:
        it names the next snapshot."""
        self.last_snapshot_offset = 0
        """Last snapshot offset of the newest snapshot that was written or loaded."""
        self._table = ProducerTable()
        self._unreplicated: list[tuple[int, int]] = []  # first offset, offset of the marker
        self._usual_rules = {
            origin: ProducerCheckRules(origin, transaction_version=0) for origin in AppendOrigin
        }

    @property
    def producers(self) -> Mapping[int, ProducerState]:
        """The state of each producer, by producer id. Do not change it."""
        return self._table.states

    @property
    def is_empty(self) -> bool:
        """No producer and no transaction: nothing that a truncation could change."""
        return not self._table.states and not self._unreplicated

    # -- appending

    def check(
        self,
        headers: Sequence[BatchHeader],
        origin: AppendOrigin,
        *,
        markers: Mapping[int, EndMarker] | None = None,
        transaction_version: int = 0,
    ) -> CheckedAppend:
        """What the batches, which have their final offsets, will change. Raises AppendError for
        batches to reject.

        `markers` are those of the control batches (see `producer_transitions.markers_in`); a
        control batch without one does not affect producers. `transaction_version` is 2 or higher if
        the request follows the newer protocol, which gives each transaction its own epoch.
        """
        for header in headers:
            if header.producer_id >= 0:
                rules = self._usual_rules[origin]
                if transaction_version:
                    rules = rules._replace(transaction_version=transaction_version)
                return self._check(headers, markers, rules)
        return NOTHING_TO_UPDATE

    def _check(
        self,
        headers: Sequence[BatchHeader],
        markers: Mapping[int, EndMarker] | None,
        rules: ProducerCheckRules,
    ) -> CheckedAppend:
        changes: list[ProducerUpdate] = []
        latest: dict[int, ProducerState] = {}  # the state after the batches before this one
        for header in headers:
            producer_id = header.producer_id
            if producer_id < 0:
                continue
            before = latest.get(producer_id) or self._table.state_of(producer_id)
            if rules.origin is AppendOrigin.CLIENT:
                check_has_sequence(header)
                duplicate = before.find_duplicate(header)
                if duplicate is not None and producer_id not in latest:
                    return CheckedAppend(duplicate)
            change = _checked_change(before, header, markers, rules)
            if change is not None:
                changes.append(change)
                latest[producer_id] = change.state
        return CheckedAppend(None, tuple(changes))

    def update(self, checked: CheckedAppend) -> tuple[CompletedTxn, ...]:
        """Apply the changes of an append that was written.

        Returns the transactions that its markers ended, in log order. Those that were aborted go
        into the `.txnindex` before the high watermark moves above their markers.
        """
        completed = []
        for change in checked.changes:
            txn = self._table.apply(change)
            if txn is not None:
                completed.append(txn)
                self._unreplicated.append((txn.first_offset, txn.last_offset))
        return tuple(completed)

    def replay(self, header: BatchHeader, marker: EndMarker | None = None) -> CompletedTxn | None:
        """Record a batch that is in the log already. It is never rejected, because a log must open.

        (Kafka stops at a batch that is not transactional inside an open transaction.) A control
        batch without a marker is passed over. Transactions that ended are kept until
        `on_high_watermark_updated`: call it now and then when much is replayed.
        """
        if header.producer_id < 0 or (marker is None and header.is_control):
            return None
        before = self._table.state_of(header.producer_id)
        txn = self._table.apply(ProducerUpdate.of_batch(before, header, marker))
        if txn is not None:
            self._unreplicated.append((txn.first_offset, txn.last_offset))
        return txn

    # -- what readers may see

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Where the oldest transaction begins that is open, or whose marker is not replicated."""
        first = self._table.first_open_offset
        for first_offset, marker_offset in self._unreplicated:
            if marker_offset >= high_watermark and (first is None or first_offset < first):
                first = first_offset
        return first

    def last_stable_offset(self, high_watermark: int, log_start_offset: int = 0) -> int:
        """Up to here (exclusive) every transaction has ended and is replicated."""
        first = self.first_unstable_offset(high_watermark)
        if first is None:
            return high_watermark
        return min(max(first, log_start_offset), high_watermark)

    def on_high_watermark_updated(self, high_watermark: int, log_start_offset: int = 0) -> int:
        """Transactions whose markers are below it no longer hold back the last stable offset, which
        is returned."""
        if self._unreplicated:
            self._unreplicated = [txn for txn in self._unreplicated if txn[1] >= high_watermark]
        elif self._table.first_open_offset is None:
            return high_watermark
        return self.last_stable_offset(high_watermark, log_start_offset)

    def on_log_start_offset_incremented(
        self, log_start_offset: int, latest_snapshot_offset: int | None
    ) -> None:
        """Records below are gone; their producers stay known, as Kafka keeps them.

        `latest_snapshot_offset` is that of the newest snapshot which still exists.
        """
        self.on_high_watermark_updated(log_start_offset)
        self.map_end_offset = max(self.map_end_offset, log_start_offset)
        newest = log_start_offset if latest_snapshot_offset is None else latest_snapshot_offset
        self.last_snapshot_offset = newest

    # -- time

    def remove_expired(self, now_ms: int) -> list[int]:
        """Forget producers that were idle for too long. Kafka checks every ten minutes."""
        return self._table.remove_expired(now_ms, self.config.producer_id_expiration_ms)

    # -- snapshots

    @property
    def needs_snapshot(self) -> bool:
        """False if the newest one already covers everything below `map_end_offset`."""
        return self.map_end_offset > self.last_snapshot_offset

    def snapshot(self) -> bytes:
        """The content of the snapshot at `map_end_offset`. It has only the newest batch of each
        producer."""
        return encode_snapshot(state.to_entry() for state in self._table.states.values())

    def on_snapshot_written(self) -> None:
        """The file at `map_end_offset` is in its place."""
        self.last_snapshot_offset = self.map_end_offset

    def restore(self, data: Buffer, offset: int, now_ms: int) -> None:
        """Load the snapshot at `offset`, without producers that have expired since.

        A file that cannot be read raises and leaves everything as it was.
        """
        expiration_ms = self.config.producer_id_expiration_ms
        states = map(ProducerState.from_entry, decode_snapshot(data))
        table = ProducerTable(s for s in states if not s.is_expired(now_ms, expiration_ms))
        self.truncate_fully_and_start_at(offset)
        self._table = table
        self.last_snapshot_offset = offset

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Forget all producers and snapshots."""
        self._table = ProducerTable()
        self._unreplicated = []
        self.map_end_offset = offset
        self.last_snapshot_offset = 0

    def truncate_and_reload(
        self,
        log_start_offset: int,
        log_end_offset: int,
        snapshots: Iterable[tuple[int, Buffer]],
        now_ms: int,
    ) -> list[int]:
        """Go back to the newest readable snapshot. The caller then replays the batches from
        `map_end_offset` on.

        `snapshots` are offset and content, newest first, none outside the log
        (`snapshot_files.snapshots_out_of_range`); they are read one at a time. Returns the
        offsets of those that could not be read: Kafka deletes them. Does nothing if the log ends
        where the state does.
        """
        unreadable: list[int] = []
        if log_end_offset == self.map_end_offset:
            newest = next((offset for offset, _ in snapshots), None)
            self.on_log_start_offset_incremented(log_start_offset, newest)
            return unreadable
        for offset, data in snapshots:
            try:
                self.restore(data, offset, now_ms)
            except (CorruptSnapshotError, UnsupportedError):
                unreadable.append(offset)
            else:
                return unreadable
        self.truncate_fully_and_start_at(log_start_offset)
        self.last_snapshot_offset = log_start_offset
        return unreadable


def _checked_change(
    before: ProducerState,
    header: BatchHeader,
    markers: Mapping[int, EndMarker] | None,
    rules: ProducerCheckRules,
) -> ProducerUpdate | None:
    """None for a control batch that is not a marker."""
    if not header.is_control:
        check_data(before, header, rules)
        return ProducerUpdate.of_batch(before, header, None)
    if markers is None:
        raise TypeError("control batches are checked with their markers")
    marker = markers.get(header.base_offset)
    if marker is None:
        return None
    check_marker(before, header, marker, rules)
    return ProducerUpdate.of_batch(before, header, marker)
