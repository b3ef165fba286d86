"""Lookups by timestamp in one segment.

The time index says: up to this offset no record is newer than this timestamp. That cannot be proven
without reading the log, but much can be refuted: the batch it names must exist and have that very
timestamp, and no batch after the last entry may be newer. An index that fails is replaced by one
built from the log; one that merely ends early, as a live broker's does, is brought up to date.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import CorruptError
from stratalog.format.batch import NO_TIMESTAMP
from stratalog.format.offset_index import RELATIVE_OFFSET_MAX
from stratalog.format.record_search import RecordSearch
from stratalog.format.time_index import TimeEntry
from stratalog.storage.index_view import TIME_INDEX
from stratalog.storage.trace import RecordStep, ScanStep

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.format.peek import Peek
    from stratalog.storage.index_view import Anchor, IndexView
    from stratalog.storage.segment_view import Seek, SegmentView
    from stratalog.storage.trace import Trace

TAIL_WALK_BYTES_MAX: Final = 16 * 1024 * 1024
"""Log after the last entry is walked up to this length, to learn whether that entry has the last
word. If there is more, both indexes are built anew, which is faster by the byte."""

_RECORDS: Final = RecordSearch()


class TimeHit(NamedTuple):
    """The first record of a segment at or after a time."""

    position: int
    """Of its batch."""
    records_passed: int
    """Records of the batch before it."""
    offset: int
    timestamp: int


class LargestTimestamp(NamedTuple):
    """The largest timestamp of a segment, and the last offset of the first batch that has it."""

    timestamp: int
    offset: int


class SegmentTimes:
    """What one segment knows of time."""

    def __init__(self, segment: SegmentView) -> None:
        self._segment = segment

    @property
    def largest(self) -> LargestTimestamp:
        """(-1, base offset) when no batch has a timestamp."""
        last = self.index.last()
        if last is None:
            return LargestTimestamp(NO_TIMESTAMP, self._segment.base_offset)
        return LargestTimestamp(last[1], last[2])

    @property
    def largest_out_of_reach(self) -> LargestTimestamp:
        """Of batches too far above the base offset for an entry to tell; old brokers wrote such."""
        largest = LargestTimestamp(NO_TIMESTAMP, self._segment.base_offset)
        reach = self._segment.base_offset + RELATIVE_OFFSET_MAX
        for _, batch in self._segment.walk(self._segment.seek(reach + 1).position):
            if batch.last_offset > reach and batch.max_timestamp > largest.timestamp:
                largest = LargestTimestamp(batch.max_timestamp, batch.last_offset)
        return largest

    @cached_property
    def index(self) -> IndexView:
        """The `.timeindex` file if the log bears it out, up to date; else its stand-in."""
        loaded = self._segment.load_index(TIME_INDEX)
        last = None if loaded is None else loaded.last()
        if loaded is None or last is None:
            return self._stand_in("no file" if loaded is None else "the file has no entries")
        named = self._named_by(last)
        if named is None:
            return self._stand_in("the file contradicts the log")
        if self._segment.size_bytes - named.position <= TAIL_WALK_BYTES_MAX:
            return self._brought_up_to_date(loaded, last, named.position)
        return self._stand_in("the file ends long before the log")

    def find(self, target: int, start_offset: int, trace: Trace | None = None) -> TimeHit | None:
        """The first record at or above `start_offset` whose timestamp is `target` or later."""
        start, size_guess = self._start_of_scan(target, start_offset, trace)
        if size_guess and trace is None:
            hit = self._first_record(start, size_guess, target, start_offset)
            if hit is not None:
                return hit
        passed: list[tuple[int, Peek]] = []
        for position, batch in self._segment.walk(start):
            if trace is not None:
                passed.append((position, batch))
            if batch.max_timestamp < target or batch.last_offset < start_offset:
                continue
            try:
                hit = self._first_record(position, batch.size_bytes, target, start_offset)
            except CorruptError:
                self._note_scan(trace, start, passed)  # it led to the damage
                raise
            if hit is None:
                continue
            self._note_scan(trace, start, passed)
            if trace is not None:
                trace.add(RecordStep(position, hit.records_passed, hit.offset, hit.timestamp))
            return hit
        return None

    def _note_scan(
        self, trace: Trace | None, start: int, passed: Sequence[tuple[int, Peek]]
    ) -> None:
        if trace is not None:
            position, batch = passed[-1]
            scanned = position + batch.size_bytes - start
            trace.add(ScanStep(self._segment.path, start, tuple(passed), scanned))

    def find_newest(self, start_offset: int) -> TimeHit | None:
        """The first record at or above `start_offset` with the largest timestamp of all those."""
        newest: TimeHit | None = None
        for position, batch in self._segment.walk(self._segment.seek(start_offset).position):
            target = 0 if newest is None else newest.timestamp + 1
            while batch.max_timestamp >= target:
                hit = self._first_record(position, batch.size_bytes, target, start_offset)
                if hit is None:
                    break
                newest, target = hit, hit.timestamp + 1
        return newest

    def _start_of_scan(
        self, target: int, start_offset: int, trace: Trace | None
    ) -> tuple[int, int]:
        """Where to begin, and how large the batch there is if it is like the one before; else 0."""
        anchor = self.index.lookup(target, trace)
        named = self._named_by(anchor, trace) if anchor[0] >= 0 else None
        if named is None and anchor[0] >= 0:
            self.index = self._stand_in("the file contradicts the log")
            anchor = self.index.lookup(target, trace)
            named = self._named_by(anchor, trace) if anchor[0] >= 0 else None
        if named is None or anchor[2] < start_offset:
            return self._segment.seek(max(anchor[2], start_offset), trace).position, 0
        if named.batch is None or anchor[1] >= target:
            return named.position, 0
        size_bytes = named.batch.size_bytes  # nothing up to its end is new enough
        is_last = named.position + size_bytes >= self._segment.size_bytes
        return named.position + size_bytes, 0 if is_last else size_bytes + size_bytes // 8

    def _named_by(self, entry: Anchor, trace: Trace | None = None) -> Seek | None:
        """The batch that a time-index entry names; None if none has that offset and timestamp."""
        _, timestamp, offset = entry
        found = self._segment.seek(offset, trace)
        if found.batch is None or timestamp < 0 or found.batch.max_timestamp != timestamp:
            return None
        return found

    def _first_record(
        self, position: int, size_bytes: int, target: int, start_offset: int
    ) -> TimeHit | None:
        buf = self._segment.read_batch(position, size_bytes)
        try:
            found = _RECORDS.first_at(buf, 0, target, start_offset)
        except CorruptError as error:
            raise error.located(self._segment.path, buffer_start=position) from None
        return None if found is None else TimeHit(position, *found)

    def _stand_in(self, reason: str) -> IndexView:
        return self._segment.stand_in(TIME_INDEX, reason)

    def _brought_up_to_date(self, index: IndexView, last: Anchor, tail_start: int) -> IndexView:
        """A live broker writes entries late; the newer batches get theirs here."""
        largest, base_offset = last[1], self._segment.base_offset
        newer = bytearray()
        for _, batch in self._segment.walk(tail_start):
            is_told = batch.last_offset - base_offset <= RELATIVE_OFFSET_MAX  # else it is damaged
            if is_told and batch.max_timestamp > largest:
                largest = batch.max_timestamp
                newer += TimeEntry(largest, batch.last_offset).pack(base_offset=base_offset)
        return index.extended(bytes(newer)) if newer else index
