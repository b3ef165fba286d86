"""A whole round of cleaning with the readable filter and a plain dict: what compiled code must do.

Nothing is written: the result is the bytes that the new segments hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stratalog.format.control import read_control_key
from stratalog.format.log_entry import header_of, records_of
from stratalog.maintenance.cleaning.filtering import (
    CleanedTransactions,
    CleaningRules,
    filter_batch,
)
from stratalog.maintenance.cleaning.plan import group_segments, legacy_delete_horizon_ms

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stratalog.config import LogConfig
    from stratalog.format.batch import Entry
    from stratalog.format.buffers import Buffer
    from stratalog.format.txn_index import AbortedTxn
    from stratalog.log.reader import LogReader
    from stratalog.maintenance.cleaning.filtering import FilteredBatch, LastRecord
    from stratalog.maintenance.cleaning.plan import CleanerSegment, CleaningPlan
    from stratalog.storage.segment_view import LoadedBatch, SegmentView


class KeyMap(NamedTuple):
    """The keys of the dirty part, as far as they fit."""

    offsets: dict[bytes, int]
    latest_offset: int


class CleanedGroup(NamedTuple):
    """One new segment."""

    bases: tuple[int, ...]
    """Of the segments it replaces; the first one is its own."""
    entries: tuple[FilteredBatch, ...]
    aborted: tuple[AbortedTxn, ...]

    @property
    def data(self) -> bytes:
        return b"".join(entry.data for entry in self.entries)


class ReferenceRound(NamedTuple):
    """What a round leaves."""

    key_map: KeyMap
    groups: tuple[CleanedGroup, ...]

    @property
    def end_dirty_offset(self) -> int:
        return self.key_map.latest_offset + 1


def clean(
    log: LogReader,
    plan: CleaningPlan,
    config: LogConfig,
    producers: Mapping[int, LastRecord],
    *,
    keys_max: int = 1 << 62,
) -> ReferenceRound:
    """Clean what `plan` says, with room for `keys_max` keys."""
    views = {view.base_offset: view for view in log.segments}
    key_map = map_keys(log, plan, views, keys_max)
    bound = plan.first_uncleanable_offset
    rules = CleaningRules(
        newest_offset_of=lambda key: key_map.offsets.get(key, -1),
        map_latest_offset=key_map.latest_offset,
        bound=bound,
        now_ms=plan.now_ms,
        delete_retention_ms=config.delete_retention_ms,
        legacy_horizon_ms=legacy_delete_horizon_ms(
            plan.segments, plan.first_dirty_offset, config.delete_retention_ms
        ),
        producers=producers,
    )
    transactions = CleanedTransactions()
    groups = []
    for group in group_segments(plan.segments, key_map.latest_offset + 1, bound, config):
        entries = tuple(
            filtered
            for facts in group
            for filtered in _filtered(log, views[facts.base_offset], facts, rules, transactions)
        )
        bases = tuple(facts.base_offset for facts in group)
        groups.append(CleanedGroup(bases, entries, tuple(transactions.take_kept())))
    return ReferenceRound(key_map, tuple(groups))


def _filtered(
    log: LogReader,
    view: SegmentView,
    facts: CleanerSegment,
    rules: CleaningRules,
    transactions: CleanedTransactions,
) -> Iterator[FilteredBatch]:
    end = view.end.next_offset
    transactions.add_aborted(log.aborted_transactions(facts.base_offset, end))
    for batch in view.batches(0, view.size_bytes):
        yield filter_batch(batch.buf, batch.entry, rules, transactions, facts.mtime_ms)


def map_keys(
    log: LogReader, plan: CleaningPlan, views: Mapping[int, SegmentView], keys_max: int
) -> KeyMap:
    """Stops at the first record that would be put into a full map."""
    first_dirty, bound = plan.first_dirty_offset, plan.first_uncleanable_offset
    transactions = CleanedTransactions()
    transactions.add_aborted(log.aborted_transactions(first_dirty, bound))
    offsets: dict[bytes, int] = {}
    latest = -1
    dirty = plan.dirty_segments
    for slot, facts in enumerate(dirty):
        view = views[facts.base_offset]
        start = view.seek(first_dirty).position
        for batch in view.batches(start, view.size_bytes):
            for key, offset in _keys_of(batch, transactions):
                if offset < first_dirty:
                    continue
                if len(offsets) >= keys_max:
                    return KeyMap(offsets, latest)
                offsets[key] = latest = offset
            latest = max(latest, batch.header.next_offset - 1)
        next_base = dirty[slot + 1].base_offset if slot + 1 < len(dirty) else bound
        latest = max(latest, next_base - 1)
    return KeyMap(offsets, latest)


def _keys_of(batch: LoadedBatch, transactions: CleanedTransactions) -> list[tuple[bytes, int]]:
    return keys_of_entry(batch.buf, batch.entry, transactions)


def keys_of_entry(
    buf: Buffer, entry: Entry, transactions: CleanedTransactions
) -> list[tuple[bytes, int]]:
    """Keys and offsets of the records in one batch that count."""
    header = header_of(buf, entry)
    last_offset = header.next_offset - 1
    records = list(records_of(buf, entry, check_crc=False))
    if header.is_control:
        marker = read_control_key(records[0]).type if records else None
        transactions.on_control(header.producer_id, last_offset, marker)
        return []
    is_aborted = transactions.on_data(
        header.producer_id, last_offset, is_transactional=header.is_transactional
    )
    if is_aborted:
        return []
    return [(record.key, record.offset) for record in records if record.key is not None]
