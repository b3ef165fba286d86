"""One segment, read-only: two-step lookups by offset and time, whatever its indexes are worth.

The log is the truth, the indexes are hints. A hint that the log contradicts (no batch at the
position, a batch that begins above the indexed offset, a largest timestamp that no batch has) makes
the segment forget that file and build its own entries in memory by walking the batch headers once.
Nothing is ever written.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import CorruptBatchError, CorruptError, SegmentGoneError
from stratalog.format.batch import Entry, next_entry
from stratalog.format.entry import check_entry_crc, header_of
from stratalog.format.names import FileKind, FileState, segment_file_name
from stratalog.format.peek import peek
from stratalog.storage.index_view import OFFSET_INDEX, IndexFormat, IndexView
from stratalog.storage.log_file import WALK_WINDOW_BYTES, FileIdentity, LogFile
from stratalog.storage.rebuild import rebuild_indexes
from stratalog.storage.resync import next_valid_batch
from stratalog.storage.segment_end import find_end
from stratalog.storage.segment_times import SegmentTimes
from stratalog.storage.trace import ScanStep

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.format.batch import BatchHeader
    from stratalog.format.entry import EntryHeader
    from stratalog.format.index_rules import IndexBuilder
    from stratalog.format.peek import Peek
    from stratalog.format.txn_index import AbortedTxn
    from stratalog.storage.index_view import Anchor
    from stratalog.storage.segment_end import SegmentEnd
    from stratalog.storage.trace import Trace

CHUNK_BYTES: Final = 256 * 1024


class Seek(NamedTuple):
    """Where a lookup ended."""

    position: int
    """Of the batch that was found; without one, where the walk had to stop."""
    batch: Peek | None


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

    aborted_not_indexed: tuple[AbortedTxn, ...] | None = None
    """What its transaction index lacks, once it was looked up in the log."""

    def __init__(
        self,
        path: Path,
        base_offset: int,
        size_bytes: int,
        identity: FileIdentity | None = None,
    ) -> None:
        self.path = path
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        """Bytes that this view looks at. A live file grows; a fresh listing sees more."""
        self.identity = identity
        """Of the file that was listed; None: whatever has the name will do."""

    def __repr__(self) -> str:
        return f"SegmentView({self.path.name!r}, {self.size_bytes} bytes)"

    @cached_property
    def file(self) -> LogFile:
        """Open from first use on, so a segment that is deleted meanwhile stays readable.

        A broker may have renamed it already, and given its name to another. Raises
        SegmentGoneError when the file that was listed has none of the names it may go by.
        """
        plain = self.path.name.removesuffix(FileState.SWAP.value)
        for name in (self.path.name, plain, plain + FileState.DELETED.value):
            try:
                file = LogFile(self.path.with_name(name))
            except FileNotFoundError:
                continue
            if self._is_listed(file.identity):
                return file
        raise SegmentGoneError(self.path)

    def _is_listed(self, found: FileIdentity) -> bool:
        """Whether a file is the one that was listed. Only the last segment of a log grows; others
        keep size and time, or are replaced."""
        listed = self.identity
        if listed is None or listed == found:
            return True
        return listed.may_have_grown_to(found) and self._is_last_segment()

    def _is_last_segment(self) -> bool:
        last = segment_file_name(self.base_offset, FileKind.LOG)
        with os.scandir(self.path.parent) as entries:
            names = [entry.name for entry in entries]
        return last in names and not any(
            name > last and name.endswith(FileKind.LOG.value) for name in names
        )

    def check_in_place(self) -> None:
        """Raise SegmentGoneError unless the segment still has its name: its side files with it."""
        try:
            found = FileIdentity.of(self.path.stat())
        except FileNotFoundError:
            raise SegmentGoneError(self.path) from None
        if not self._is_listed(found):
            raise SegmentGoneError(self.path)

    def sibling(self, extension: str) -> Path:
        """The segment's file with this extension; it carries the same `.swap` if there is one."""
        return self.path.with_name(self.path.name.replace(".log", extension, 1))

    def walk(self, position: int = 0) -> Iterator[tuple[int, Peek]]:
        """Position and header of each plausible batch from `position` on, across damage.

        Plausible, not proven: a batch whose length is damaged may be among them, and then those
        that lie in the bytes it claims.
        """
        resume: int | None = position
        while resume is not None:
            start, last = resume, None
            for last in self.file.walk(start, self.size_bytes, offset_min=self.base_offset):
                yield last
            resume = self._resume_after(start, last)

    def walk_headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Like `walk`, with whole headers, magic-2 batches only."""
        return self.file.headers_of(self.walk(position))

    def _resume_after(self, start: int, last: tuple[int, Peek] | None) -> int | None:
        """Where the batches go on behind a run of them from `start` to `last`; None if nowhere."""
        stopped_at, offset_min = start, self.base_offset
        if last is not None:
            last_at, batch = last
            stopped_at = last_at + batch.size_bytes
            if stopped_at < self.size_bytes:
                if self.is_valid(last_at):
                    offset_min = batch.last_offset + 1
                else:
                    stopped_at = last_at  # its length cannot be believed
        if stopped_at >= self.size_bytes:
            return None
        return self.next_valid_batch(stopped_at + 1, offset_min=offset_min)

    def load_batch(self, position: int, size_bytes: int = 0) -> LoadedBatch:
        """The batch at `position`, checked; `size_bytes` if it is known already or can be guessed.

        Raises CorruptBatchError, also when the batch is cut short.
        """
        try:
            return self._load_batch(position, size_bytes)
        except CorruptError as error:
            raise error.located(self.path, buffer_start=position) from None

    def read_batch(self, position: int, size_bytes: int = 0) -> bytes:
        """Bytes from `position` on that hold the batch there, as far as the file does, and maybe
        more; `size_bytes` is a guess that saves a read."""
        left = self.size_bytes - position
        buf = self.file.read(position, min(size_bytes, left)) if size_bytes else b""
        found = peek(buf) if buf else self.file.peek(position)
        if found is None or len(buf) >= found.size_bytes:
            return buf
        return self.file.read(position, min(found.size_bytes, left))

    def _load_batch(self, position: int, size_bytes: int = 0) -> LoadedBatch:
        buf = self.read_batch(position, size_bytes)
        entry = next_entry(buf, 0)
        if entry is None:
            left = self.size_bytes - position
            raise CorruptBatchError(f"the log ends inside a batch ({left} bytes are left)")
        header = header_of(buf, entry)
        check_entry_crc(buf, entry, header)
        return LoadedBatch(position, buf, entry, header)

    def batches(
        self, position: int, end: int, *, due_offset: int | None = None, is_ordered: bool = True
    ) -> Iterator[LoadedBatch]:
        """Each batch in [position, end), header and CRC checked, offsets growing if `is_ordered`.

        Raises CorruptBatchError at the first that is damaged, cut short or out of order (the first
        one must not begin below `due_offset`). The bytes of several batches share one read.
        """
        due_offset = self.base_offset if due_offset is None else due_offset
        while position < end:
            chunk = self.file.read(position, min(CHUNK_BYTES, end - position))
            start = position
            for loaded in self._batches_of(chunk, start):
                due_offset = self._check_order(loaded, due_offset) if is_ordered else 0
                yield loaded
                position = start + loaded.entry.end
            if position == start:  # the first batch is larger than a chunk
                loaded = self.load_batch(start)
                due_offset = self._check_order(loaded, due_offset) if is_ordered else 0
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

    def _check_order(self, batch: LoadedBatch, due_offset: int) -> int:
        """The offset due after `batch`. No CRC covers a base offset; order is all there is."""
        if batch.entry.offset < due_offset:
            raise CorruptBatchError(
                f"offset {batch.entry.offset} where {due_offset} or more is due",
                position=batch.position,
                path=self.path,
                offsets=(batch.entry.offset, batch.header.next_offset - 1),
            )
        return batch.header.next_offset

    def release(self) -> None:
        """Let go of the open file and all that was read. The next use starts afresh, but with the
        same file, whatever has its name by then."""
        file = self.__dict__.get("file")
        if file is not None and self.identity is None:
            self.identity = file.identity
        for name in ("file", "offset_index", "times", "_rebuilt"):
            self.__dict__.pop(name, None)

    # -- by offset

    @cached_property
    def offset_index(self) -> IndexView:
        """The `.index` file, or its stand-in once the file turned out to be missing or wrong."""
        return self.load_index(OFFSET_INDEX) or self.stand_in(OFFSET_INDEX, "no file")

    def seek(self, target: int, trace: Trace | None = None) -> Seek:
        """The first batch whose last offset is at or above `target`. It may begin below it."""
        anchor = self.offset_index.lookup(target, trace)
        found = self._guess(target, anchor) if trace is None else None
        if found is None:
            found = self._walk_to(target, anchor, trace)
        if found is None:
            self.offset_index = self.stand_in(OFFSET_INDEX, "the file contradicts the log")
            found = self._walk_to(target, self.offset_index.lookup(target, trace), trace)
        return found or Seek(0, None)

    def _guess(self, target: int, anchor: Anchor) -> Seek | None:
        """The batch with `target` if it is an indexed one, which among large batches it mostly is.

        A guess needs no trust in the index: a batch that spans the target is the right one.
        """
        position = anchor[2]
        if anchor[1] != target:
            following = self.offset_index.after(anchor)
            if following is None or following[2] - position < WALK_WINDOW_BYTES:
                return None  # walking there reads no more than looking
            position = following[2]
        batch = self.file.peek(position) if 0 <= position < self.size_bytes else None
        if batch is None or not batch.base_offset <= target <= batch.last_offset:
            return None
        if not batch.is_plausible(self.base_offset, self.size_bytes - position):
            return None
        return Seek(position, batch)

    def _walk_to(self, target: int, anchor: Anchor, trace: Trace | None) -> Seek | None:
        """None when the log contradicts the anchor."""
        slot, indexed_offset, start = anchor
        end = start
        passed: list[tuple[int, Peek]] = []
        found: Seek | None = None
        for position, batch in self.file.walk(start, self.size_bytes, offset_min=self.base_offset):
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
        if found is None and end < self.size_bytes:
            return self._seek_across_damage(target, start)
        return found or Seek(end, None)

    def _seek_across_damage(self, target: int, start: int) -> Seek:
        """Go on behind damage as long as the batches there prove that `target` was not in it."""
        end = start
        for position, batch in self.walk(start):
            if position != end and batch.base_offset > target:
                return Seek(min(end, position), None)
            if batch.last_offset >= target:
                return Seek(position, batch)
            end = position + batch.size_bytes
        return Seek(end, None)

    # -- by time

    @cached_property
    def times(self) -> SegmentTimes:
        """Lookups by timestamp."""
        return SegmentTimes(self)

    # -- the end of the log

    @cached_property
    def end(self) -> SegmentEnd:
        """Where the last whole, valid batch ends. Meant for the last segment of a log."""
        return find_end(self)

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
        """What the index file says; None when there is none, or none that may be read."""
        try:
            return IndexView.load(of, self.sibling(of.extension), self.base_offset)
        except (FileNotFoundError, PermissionError):
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
        return rebuild_indexes(self)
