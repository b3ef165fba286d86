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
from stratalog.format.batch import Entry, next_entry
from stratalog.format.entry import check_entry_crc, header_of
from stratalog.format.index_rules import IndexBuilder
from stratalog.format.offset_index import RELATIVE_OFFSET_MAX
from stratalog.storage.index_view import OFFSET_INDEX, IndexFormat, IndexView
from stratalog.storage.log_file import LogFile
from stratalog.storage.resync import next_valid_batch
from stratalog.storage.segment_times import SegmentTimes
from stratalog.storage.trace import ScanStep

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.format.entry import EntryHeader
    from stratalog.format.peek import Peek
    from stratalog.storage.index_view import Anchor
    from stratalog.storage.trace import Trace

CHUNK_BYTES: Final = 256 * 1024
END_CANDIDATES: Final = 64


class Seek(NamedTuple):
    """Where a lookup ended."""

    position: int
    """Of the batch that was found; without one, where the walk had to stop."""
    batch: Peek | None


class SegmentEnd(NamedTuple):
    """Where the valid batches of a segment end."""

    position: int
    next_offset: int


class LoadedBatch(NamedTuple):
    """One whole batch in memory, header and CRC checked."""

    position: int
    """In the file."""
    buf: bytes
    entry: Entry
    """Its place in `buf`."""
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

    def load_batch(self, position: int, size_bytes: int | None = None) -> LoadedBatch:
        """The batch at `position`, checked; `size_bytes` if it is known already.

        Raises CorruptBatchError, also when the batch is cut short.
        """
        try:
            return self._load_batch(position, size_bytes)
        except CorruptError as error:
            raise error.located(self.path, buffer_start=position) from None

    def _load_batch(self, position: int, size_bytes: int | None = None) -> LoadedBatch:
        left = self.size_bytes - position
        if size_bytes is None:
            found = self.file.peek(position)
            size_bytes = 0 if found is None else found.size_bytes
        if not 0 < size_bytes <= left:
            raise CorruptBatchError(f"the log ends inside a batch ({left} bytes are left)")
        buf = self.file.read(position, size_bytes)
        entry = next_entry(buf, 0)
        if entry is None:
            raise CorruptBatchError(f"the log ends inside a batch ({len(buf)} bytes are left)")
        header = header_of(buf, entry)
        check_entry_crc(buf, entry, header)
        return LoadedBatch(position, buf, entry, header)

    def batches(self, position: int, end: int) -> Iterator[LoadedBatch]:
        """Each batch in [position, end), header and CRC checked.

        Raises CorruptBatchError at the first that is damaged or cut short. The bytes of several
        batches share one read.
        """
        while position < end:
            chunk = self.file.read(position, min(CHUNK_BYTES, end - position))
            start = position
            for loaded in self._batches_of(chunk, start):
                yield loaded
                position = start + loaded.entry.end
            if position == start:  # the first batch is larger than a chunk
                loaded = self.load_batch(start)
                yield loaded
                position += loaded.entry.size_bytes

    def _batches_of(self, chunk: bytes, position: int) -> Iterator[LoadedBatch]:
        try:
            at = 0
            while (entry := next_entry(chunk, at)) is not None:
                header = header_of(chunk, entry)
                check_entry_crc(chunk, entry, header)
                yield LoadedBatch(position + at, chunk, entry, header)
                at = entry.end
        except CorruptError as error:
            raise error.located(self.path, buffer_start=position) from None

    def release(self) -> None:
        """Let go of the open file and all that was read. The next use starts afresh."""
        for name in ("file", "offset_index", "times", "_rebuilt"):
            self.__dict__.pop(name, None)

    # -- by offset

    @cached_property
    def offset_index(self) -> IndexView:
        """The `.index` file, or its stand-in once the file turned out to be missing or wrong."""
        return self.load_index(OFFSET_INDEX) or self.stand_in(OFFSET_INDEX, "no file")

    def seek(self, target: int, trace: Trace | None = None) -> Seek:
        """The first batch whose last offset is at or above `target`. It may begin below it."""
        found = self._walk_to(target, self.offset_index.lookup(target, trace), trace)
        if found is None:
            self.offset_index = self.stand_in(OFFSET_INDEX, "the file contradicts the log")
            found = self._walk_to(target, self.offset_index.lookup(target, trace), trace)
        return found or Seek(0, None)

    def _walk_to(self, target: int, anchor: Anchor, trace: Trace | None) -> Seek | None:
        """None when the log contradicts the anchor."""
        slot, indexed_offset, start = anchor
        end = start
        passed: list[tuple[int, Peek]] = []
        found: Seek | None = None
        for position, batch in self.walk(start):
            if batch.base_offset > indexed_offset and position == start and slot >= 0:
                return None
            end = position + batch.size_bytes
            if trace is not None:
                passed.append((position, batch))
            if batch.last_offset >= target:
                found = Seek(position, batch)
                break
        if end == start and slot >= 0:
            return None
        if trace is not None:
            trace.add(ScanStep(self.path, start, tuple(passed), end - start))
        return found or Seek(end, None)

    # -- by time

    @cached_property
    def times(self) -> SegmentTimes:
        """Lookups by timestamp."""
        return SegmentTimes(self)

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
            self.seek(last[1])  # replaces the index if the log contradicts it
        slot, back = self.offset_index.entries - 1, 1
        while True:
            start = self.seek(self.offset_index.entry(slot)[1]).position if slot >= 0 else 0
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

    def load_index(self, of: IndexFormat) -> IndexView | None:
        """What the index file says; None when there is none."""
        try:
            return IndexView.load(of, self.sibling(of.extension), self.base_offset)
        except FileNotFoundError:
            return None

    def stand_in(self, of: IndexFormat, reason: str) -> IndexView:
        """The index as the log says it should be, in memory."""
        rebuilt = self._rebuilt
        data = rebuilt.offset_index if of is OFFSET_INDEX else rebuilt.time_index
        origin = f"built from the log: {reason}"
        return IndexView(of, self.sibling(of.extension), self.base_offset, bytes(data), origin)

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
