"""What an active segment has open: its log and both sparse indexes, and the rules of appending.

The rules are those of `format.index_rules`, spelled out here once more without a call per batch:
this is the path of every record that is ever written.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from stratalog.errors import DiskFullError, OffsetOverflowError
from stratalog.format.batch import NO_TIMESTAMP
from stratalog.format.batch_span import BatchSpan
from stratalog.format.offset_index import POSITION_MAX, RELATIVE_OFFSET_MAX
from stratalog.storage.roll import (
    NO_FIRST_TIMESTAMP,
    Incoming,
    RollLimits,
    RollReason,
    SegmentFacts,
    roll_reason,
)
from stratalog.storage.segment_end import SegmentEnd
from stratalog.storage.segment_times import LargestTimestamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.format.buffers import Buffer
    from stratalog.storage.append_file import AppendFile
    from stratalog.storage.index_file import OffsetIndexFile, TimeIndexFile
    from stratalog.storage.log_file import LogFile


_State: TypeAlias = tuple[int, int, int, int, int]
"""Size in bytes, next offset, largest timestamp, last offset of the first batch that has it, bytes
since the last index entry."""


class SegmentWriter:
    """Appends to a segment. One thread calls it; others may read `published` at any time.

    All that an append changes beside the files is one tuple, replaced at its very end. So whatever
    interrupts it, even Ctrl-C between two instructions, leaves the state of before; what may be in
    the files by then is cut off by the next append.
    """

    def __init__(
        self,
        log: AppendFile,
        offset_index: OffsetIndexFile,
        time_index: TimeIndexFile,
        next_offset: int,
        interval_bytes: int,
    ) -> None:
        self.log = log
        self.offset_index = offset_index
        self.time_index = time_index
        self.base_offset = offset_index.base_offset
        self.interval_bytes = interval_bytes
        self.first_timestamp = NO_FIRST_TIMESTAMP
        self.created_ms = 0
        self.limits = RollLimits(segment_bytes=POSITION_MAX, segment_ms=(1 << 63) - 1)
        self._next_offset_max = self.base_offset + RELATIVE_OFFSET_MAX + 1
        self._state: _State = (
            log.size_bytes,
            next_offset,
            *time_index.last,
            0,
        )
        with suppress(DiskFullError):
            time_index.make_ready(1)  # so that closing the segment needs no more space

    @property
    def published(self) -> SegmentEnd:
        """Batches below it are whole, in the file and indexed."""
        return SegmentEnd(*self._state[:2])

    @property
    def largest_timestamp(self) -> LargestTimestamp:
        """(-1, base offset) when no batch has a timestamp."""
        return LargestTimestamp(*self._state[2:4])

    def roll_reason(
        self, size_bytes: int, last_offset: int, max_timestamp: int, now_ms: int
    ) -> RollReason | None:
        """Why this append has to go to a new segment, see `roll.roll_reason`."""
        offset_index, time_index = self.offset_index, self.time_index
        first_timestamp = self.first_timestamp
        segment_bytes, segment_ms = self.limits
        if (
            self._state[0] + size_bytes <= segment_bytes
            and max_timestamp - first_timestamp <= segment_ms
            and first_timestamp >= 0
            and offset_index.entries < offset_index.entries_max
            and time_index.entries < time_index.entries_max - 1
            and self.base_offset <= last_offset < self._next_offset_max
        ):
            return None
        facts = SegmentFacts(
            base_offset=self.base_offset,
            size_bytes=self._state[0],
            first_timestamp=first_timestamp,
            created_ms=self.created_ms,
            is_offset_index_full=offset_index.is_full,
            is_time_index_full=time_index.is_full,
        )
        return roll_reason(
            facts, Incoming(size_bytes, last_offset, max_timestamp, now_ms), self.limits
        )

    def has_index_room(self, entries: int) -> bool:
        """Whether both indexes can take so many entries before they count as full."""
        offset_index, time_index = self.offset_index, self.time_index
        return (
            offset_index.entries + entries < offset_index.entries_max
            and time_index.entries + entries < time_index.entries_max - 1
        )

    def append(self, data: Buffer, spans: Sequence[BatchSpan]) -> int:
        """Write the batches of `data`, in order and without gaps, with one call to the system.

        Answers the position of the first. Raises OffsetOverflowError or StorageError, and has then
        changed nothing. Index entries come first because they are easily taken back.
        """
        if len(spans) == 1:
            position, size_bytes, base_offset, last_offset, max_timestamp = spans[0]
            if position or size_bytes != len(data):
                self._refuse(data, spans)
            return self.append_batch(data, base_offset, last_offset, max_timestamp)
        start = self._state[0]
        offset_entries, time_entries, after = self._plan(data, spans)
        if self.log.size_bytes != start:
            self._mend()
        try:
            if offset_entries:
                self.offset_index.extend(offset_entries)
                self.time_index.extend(time_entries)
            self.log.write(data)
        except BaseException:
            self._mend()
            raise
        if not start:
            self.first_timestamp = spans[0].max_timestamp
        self._state = after
        return start

    def _plan(
        self, data: Buffer, spans: Sequence[BatchSpan]
    ) -> tuple[list[int], list[int], _State]:
        """Fields of the index entries that the batches call for, and the state after them."""
        end, due_offset, largest, largest_offset, since_entry = self._state
        start, base, interval = end, self.base_offset, self.interval_bytes
        indexed_timestamp = self.time_index.last_timestamp
        offset_entries: list[int] = []
        time_entries: list[int] = []
        for position, size_bytes, base_offset, last_offset, max_timestamp in spans:
            if start + position != end or not due_offset <= base_offset <= last_offset:
                self._refuse(data, spans)
            if max_timestamp > largest:
                largest, largest_offset = max_timestamp, last_offset
            if since_entry > interval:
                offset_entries += (last_offset - base, end)
                if largest > indexed_timestamp:
                    time_entries += (largest, largest_offset - base)
                    indexed_timestamp = largest
                since_entry = 0
            since_entry += size_bytes
            end += size_bytes
            due_offset = last_offset + 1
        if end - start != len(data) or not spans or end > POSITION_MAX:
            self._refuse(data, spans)
        if due_offset > self._next_offset_max:
            self._refuse(data, spans)
        return offset_entries, time_entries, (end, due_offset, largest, largest_offset, since_entry)

    def append_batch(
        self, data: Buffer, base_offset: int, last_offset: int, max_timestamp: int
    ) -> int:
        """`append` for one batch, which is what producers send: the same with less ado."""
        start, due_offset, largest, largest_offset, since_entry = self._state
        log, size_bytes = self.log, len(data)
        end = start + size_bytes
        if (
            end > POSITION_MAX
            or not due_offset <= base_offset <= last_offset < self._next_offset_max
        ):
            self._refuse(data, [BatchSpan(0, size_bytes, base_offset, last_offset, max_timestamp)])
        if log.size_bytes != start:
            self._mend()
        if max_timestamp > largest:
            largest, largest_offset = max_timestamp, last_offset
        try:
            if since_entry > self.interval_bytes:
                self.offset_index.append(last_offset - self.base_offset, start)
                if largest > self.time_index.last_timestamp:
                    self.time_index.append(largest, largest_offset - self.base_offset)
                since_entry = 0
            log.write(data)
        except BaseException:
            self._mend()
            raise
        if not start:
            self.first_timestamp = max_timestamp
        self._state = (end, last_offset + 1, largest, largest_offset, since_entry + size_bytes)
        return start

    def _refuse(self, data: Buffer, spans: Sequence[BatchSpan]) -> NoReturn:
        """The append is none that a log can take. Only overflow is not a mistake of the caller."""
        size_bytes, next_offset = self.published
        last_offset = spans[-1].last_offset if spans else next_offset
        if last_offset >= self._next_offset_max:
            raise OffsetOverflowError(last_offset, base_offset=self.base_offset)
        raise ValueError(
            f"{len(data)} bytes in batches {list(spans[:3])} … do not continue a segment of "
            f"{size_bytes} bytes at offset {next_offset}"
        )

    def _mend(self) -> None:
        """Take back what an append that came to nothing left behind the published end."""
        size_bytes, next_offset = self.published
        self.offset_index.truncate_to(next_offset)
        self.time_index.truncate_to(next_offset)
        if self.log.size_bytes > size_bytes:
            self.log.truncate(size_bytes)

    def truncate(self, offset: int, position: int, reader: LogFile) -> None:
        """Drop what lies at `position` and behind: the batches that reach `offset` or above.

        Index entries go first: a crash in between leaves an index that is short, never one that
        points past the log. Readers, too, are told before the bytes are gone.
        """
        before = self._state
        size_bytes, next_offset, *largest, _ = before
        size_bytes = min(position, size_bytes)
        next_offset = min(next_offset, max(offset, self.base_offset))
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self._state = (size_bytes, next_offset, largest[0], largest[1], 0)
        try:
            self.log.truncate(size_bytes)
        except BaseException:
            self._state = before
            raise
        if not size_bytes:
            self.first_timestamp = NO_FIRST_TIMESTAMP
        if largest[0] > NO_TIMESTAMP:
            self._state = (size_bytes, next_offset, *self._find_largest(reader), 0)

    def _find_largest(self, reader: LogFile) -> LargestTimestamp:
        """The last time entry says it, unless a batch behind it is newer."""
        timestamp, offset = self.time_index.last
        start, end = self.offset_index.lookup(offset).position, self._state[0]
        for _, batch in reader.walk(start, end, offset_min=self.base_offset):
            if batch.max_timestamp > timestamp:
                timestamp, offset = batch.max_timestamp, batch.last_offset
        return LargestTimestamp(timestamp, offset)

    def seal(self) -> None:
        """The segment gets no more batches: last time entry, files cut to what they hold.

        May be called again after it failed.
        """
        if self.log.size_bytes != self._state[0]:
            self._mend()
        self.time_index.close_with(*self.largest_timestamp)
        self.offset_index.trim()
        self.time_index.trim()
        self.log.trim()
        self.log.close()
