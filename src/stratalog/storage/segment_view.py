"""One segment, read-only: two-step lookups by offset and time, whatever its indexes are worth.

The log is the truth, the indexes are hints. A hint that the log contradicts (no batch at the
position, a batch that begins above the indexed offset, a largest timestamp that no batch has) makes
the segment forget that file and build its own entries in memory by walking the batch headers once.
Nothing is ever written.
"""

from __future__ import annotations

from collections import deque
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import CorruptBatchError, CorruptError
from stratalog.format.batch import NO_TIMESTAMP, Entry, next_entry
from stratalog.format.entry import check_entry_crc, header_of, records_of
from stratalog.format.index_rules import RELATIVE_OFFSET_MAX, IndexBuilder
from stratalog.format.time_index import TimeEntry
from stratalog.storage.index_view import OFFSET_INDEX, TIME_INDEX, IndexFormat, IndexView
from stratalog.storage.log_file import LogFile
from stratalog.storage.resync import next_valid_batch
from stratalog.storage.trace import RecordStep, ScanStep

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.format.entry import EntryHeader
    from stratalog.format.peek import Peek
    from stratalog.format.record import Record
    from stratalog.storage.index_view import Anchor
    from stratalog.storage.trace import Trace

TAIL_WALK_BYTES_MAX: Final = 16 * 1024 * 1024
"""Log after the last time-index entry is walked up to this length, to learn whether that entry has
the last word. Beyond it a sample decides."""
TAIL_SAMPLES: Final = 64
CHUNK_BYTES: Final = 256 * 1024
END_CANDIDATES: Final = 64


class Seek(NamedTuple):
    """Where a lookup ended."""

    position: int
    """Of the batch that was found; without one, where the walk had to stop."""
    batch: Peek | None


class TimeHit(NamedTuple):
    """The first record of a segment at or after a time."""

    position: int
    """Of its batch."""
    offset: int
    timestamp: int


class LargestTimestamp(NamedTuple):
    """The largest timestamp of a segment, and the last offset of the first batch that has it."""

    timestamp: int
    offset: int


class SegmentEnd(NamedTuple):
    """Where the valid batches of a segment end."""

    position: int
    next_offset: int


class LoadedBatch(NamedTuple):
    """One whole batch in memory, header and CRC checked. `entry.position` counts from `buf[0]`."""

    buf: bytes
    entry: Entry
    header: EntryHeader


class SegmentView:
    """A `.log` file with its indexes, as they were when the directory was listed."""

    def __init__(self, path: Path, base_offset: int, size_bytes: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        """Bytes that this view looks at. A live file grows; a fresh listing sees more."""

    def __repr__(self) -> str:
        return f"SegmentView({self.path.name!r}, {self.size_bytes} bytes)"

    @cached_property
    def file(self) -> LogFile:
        """Open from first use on, so a segment that is deleted meanwhile stays readable."""
        return LogFile(self.path)

    def sibling(self, extension: str) -> Path:
        """The segment's file with this extension; it carries the same `.swap` if there is one."""
        return self.path.with_name(self.path.name.replace(".log", extension, 1))

    def walk(self, position: int = 0) -> Iterator[tuple[int, Peek]]:
        """Position and header of each batch from `position` on, up to the first implausible one."""
        return self.file.walk(position, self.size_bytes, offset_min=self.base_offset)

    def load_batch(self, position: int) -> LoadedBatch:
        """The batch at `position`, checked. Raises CorruptBatchError, also when it is cut short."""
        try:
            return self._load_batch(position)
        except CorruptError as error:
            raise error.located(self.path, buffer_start=position) from None

    def _load_batch(self, position: int) -> LoadedBatch:
        left = self.size_bytes - position
        found = self.file.peek(position)
        if found is None or not 0 < found.size_bytes <= left:
            raise CorruptBatchError(f"the log ends inside a batch ({left} bytes are left)")
        buf = self.file.read(position, found.size_bytes)
        entry = next_entry(buf, 0)
        if entry is None:
            raise CorruptBatchError(f"the log ends inside a batch ({len(buf)} bytes are left)")
        header = header_of(buf, entry)
        check_entry_crc(buf, entry, header)
        return LoadedBatch(buf, entry, header)

    def batches(self, position: int, end: int) -> Iterator[tuple[int, LoadedBatch]]:
        """Position and content of each batch in [position, end), headers and CRCs checked.

        Raises CorruptBatchError at the first that is damaged or cut short. The bytes of several
        batches share one read.
        """
        while position < end:
            chunk = self.file.read(position, min(CHUNK_BYTES, end - position))
            taken = 0
            for loaded in self._batches_of(chunk, position):
                yield position + taken, loaded
                taken = loaded.entry.end
            if not taken:  # the first batch is larger than a chunk
                loaded = self.load_batch(position)
                yield position, loaded
                taken = loaded.entry.size_bytes
            position += taken

    def _batches_of(self, chunk: bytes, position: int) -> Iterator[LoadedBatch]:
        try:
            at = 0
            while (entry := next_entry(chunk, at)) is not None:
                header = header_of(chunk, entry)
                check_entry_crc(chunk, entry, header)
                yield LoadedBatch(chunk, entry, header)
                at = entry.end
        except CorruptError as error:
            raise error.located(self.path, buffer_start=position) from None

    def release(self) -> None:
        """Let go of the open file and all that was read. The next use starts afresh."""
        for name in ("file", "offset_index", "time_index", "_rebuilt"):
            self.__dict__.pop(name, None)

    # -- by offset

    @cached_property
    def offset_index(self) -> IndexView:
        """The `.index` file, or its stand-in once the file turned out to be missing or wrong."""
        return self._load_index(OFFSET_INDEX) or self._rebuild_offset_index("no file")

    def seek(self, target: int, trace: Trace | None = None) -> Seek:
        """The first batch whose last offset is at or above `target`. It may begin below it."""
        anchor = self.offset_index.lookup(target, trace)
        found = self._walk_to(target, anchor, trace)
        if found is None:
            self.offset_index = self._rebuild_offset_index("the file contradicts the log")
            found = self._walk_to(target, self.offset_index.lookup(target, trace), trace)
        return found or Seek(0, None)

    def _walk_to(self, target: int, anchor: Anchor, trace: Trace | None) -> Seek | None:
        """None when the log contradicts the anchor."""
        is_start = anchor.slot < 0
        start = end = 0 if is_start else anchor.value
        passed: list[tuple[int, Peek]] = []
        found: Seek | None = None
        for position, batch in self.walk(start):
            if position == start and not is_start and batch.base_offset > anchor.key:
                return None
            end = position + batch.size_bytes
            if trace is not None:
                passed.append((position, batch))
            if batch.last_offset >= target:
                found = Seek(position, batch)
                break
        if end == start and not is_start:
            return None
        if trace is not None:
            trace.add(ScanStep(self.path, start, tuple(passed), end - start))
        return found or Seek(end, None)

    # -- by time

    @cached_property
    def time_index(self) -> IndexView:
        """The `.timeindex` file if the log bears it out, brought up to the end of the log; else its
        stand-in."""
        loaded = self._load_index(TIME_INDEX)
        if loaded is None or not loaded.entries:
            return self._rebuild_time_index("no entries in the file" if loaded else "no file")
        last = loaded.last()
        if last is None or not self._is_borne_out(last):
            return self._rebuild_time_index("the file contradicts the log")
        tail_start = self.seek(last.value).position
        if self.size_bytes - tail_start > TAIL_WALK_BYTES_MAX:
            if self._sampled_max_timestamp(last.value) > last.key:
                return self._rebuild_time_index("the file is stale")
            return loaded
        return self._brought_up_to_date(loaded, last, tail_start)

    def _brought_up_to_date(self, index: IndexView, last: Anchor, tail_start: int) -> IndexView:
        """A live broker writes entries late; the newer batches get theirs here."""
        largest = last.key
        newer = bytearray()
        for _, batch in self.walk(tail_start):
            if batch.max_timestamp > largest:
                largest = batch.max_timestamp
                entry = TimeEntry(largest, batch.last_offset)
                newer += entry.pack(base_offset=self.base_offset)
        return index.extended(bytes(newer)) if newer else index

    @property
    def largest_timestamp(self) -> LargestTimestamp:
        """(-1, base offset) when no batch has a timestamp."""
        last = self.time_index.last()
        if last is None:
            return LargestTimestamp(NO_TIMESTAMP, self.base_offset)
        return LargestTimestamp(last.key, last.value)

    def find_time(
        self, target: int, start_offset: int, trace: Trace | None = None
    ) -> TimeHit | None:
        """The first record at or above `start_offset` whose timestamp is `target` or later."""
        anchor = self.time_index.lookup(target, trace)
        if anchor.slot >= 0 and not self._is_borne_out(anchor):
            self.time_index = self._rebuild_time_index("the file contradicts the log")
            anchor = self.time_index.lookup(target, trace)
        start = self.seek(max(anchor.value, start_offset), trace).position
        passed: list[tuple[int, Peek]] = []
        for position, batch in self.walk(start):
            if trace is not None:
                passed.append((position, batch))
            if batch.max_timestamp < target or batch.last_offset < start_offset:
                continue
            record, skipped = self._first_record_at(position, target, start_offset)
            if record is None:
                continue
            if trace is not None:
                end = position + batch.size_bytes
                trace.add(ScanStep(self.path, start, tuple(passed), end - start))
                trace.add(RecordStep(position, skipped, record.offset, record.timestamp))
            return TimeHit(position, record.offset, record.timestamp)
        return None

    def _first_record_at(
        self, position: int, target: int, start_offset: int
    ) -> tuple[Record | None, int]:
        batch = self.load_batch(position)
        for passed, record in enumerate(records_of(batch.buf, batch.entry, check_crc=False)):
            if record.timestamp >= target and record.offset >= start_offset:
                return record, passed
        return None, 0

    def _is_borne_out(self, entry: Anchor) -> bool:
        """Whether the batch that a time-index entry names exists and has that timestamp."""
        found = self.seek(entry.value).batch
        return found is not None and found.max_timestamp == entry.key >= 0

    def _sampled_max_timestamp(self, after_offset: int) -> int:
        """The largest timestamp among some indexed batches above `after_offset`."""
        index = self.offset_index
        first = index.lookup(after_offset).slot + 1
        step = max(1, (index.entries - first) // TAIL_SAMPLES)
        slots = {*range(first, index.entries, step), *range(first, index.entries)[-1:]}
        found = (self.file.peek(index.entry(slot).value) for slot in slots)
        return max((batch.max_timestamp for batch in found if batch), default=NO_TIMESTAMP)

    # -- the end of the log

    @cached_property
    def end(self) -> SegmentEnd:
        """Where the last whole, valid batch ends. Meant for the last segment of a log.

        The index is read before the size, so on a live log it never points past the bytes seen.
        Damage in the middle is passed over: what follows it is part of the log still.
        """
        last = self.offset_index.last()
        self.size_bytes = max(self.size_bytes, self.file.size_bytes)
        if last is not None:
            self.seek(last.key)  # replaces the index if the log contradicts it
        slot, back = self.offset_index.entries - 1, 1
        while True:
            start = self.seek(self.offset_index.entry(slot).key).position if slot >= 0 else 0
            for position, batch in reversed(self._last_batches(start)):
                if self.is_valid(position):
                    return SegmentEnd(position + batch.size_bytes, batch.last_offset + 1)
            if slot < 0:
                return SegmentEnd(0, self.base_offset)
            slot, back = max(-1, slot - back), back * 2

    def _last_batches(self, position: int) -> deque[tuple[int, Peek]]:
        """The last plausible batches from `position` to the end of the file, across damage."""
        recent: deque[tuple[int, Peek]] = deque(maxlen=END_CANDIDATES)
        resume: int | None = position
        while resume is not None:
            stopped_at = resume
            for found_at, batch in self.walk(resume):
                recent.append((found_at, batch))
                stopped_at = found_at + batch.size_bytes
            offset_min = recent[-1][1].last_offset + 1 if recent else self.base_offset
            resume = self.next_valid_batch(stopped_at + 1, offset_min=offset_min)
        return recent

    def is_valid(self, position: int) -> bool:
        """Whether a whole batch with a right CRC starts at `position`."""
        try:
            self._load_batch(position)
        except CorruptError:
            return False
        return True

    def next_valid_batch(self, position: int, *, offset_min: int) -> int | None:
        """Position of the first batch from `position` on that is whole and has a right CRC."""
        return next_valid_batch(self.file, position, self.size_bytes, offset_min=offset_min)

    # -- indexes that are not there

    def _load_index(self, of: IndexFormat) -> IndexView | None:
        try:
            return IndexView.load(of, self.sibling(of.extension), self.base_offset)
        except FileNotFoundError:
            return None

    def _rebuild_offset_index(self, reason: str) -> IndexView:
        data = bytes(self._rebuilt.offset_index)
        return self._stand_in(OFFSET_INDEX, data, reason)

    def _rebuild_time_index(self, reason: str) -> IndexView:
        return self._stand_in(TIME_INDEX, bytes(self._rebuilt.time_index), reason)

    def _stand_in(self, of: IndexFormat, data: bytes, reason: str) -> IndexView:
        origin = f"built from the log: {reason}"
        return IndexView(of, self.sibling(of.extension), self.base_offset, data, origin)

    @cached_property
    def _rebuilt(self) -> IndexBuilder:
        """Both indexes from one walk over the headers."""
        builder = IndexBuilder(self.base_offset)
        for position, batch in self.walk():
            if batch.last_offset - self.base_offset > RELATIVE_OFFSET_MAX:
                break
            builder.add(position, batch.size_bytes, batch.last_offset, batch.max_timestamp)
        builder.finish()
        return builder
