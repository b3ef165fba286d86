"""One segment, read-only: lookups by offset and time, and where it ends, whatever its indexes say.

The log is the truth, the indexes are hints. If the log contradicts an index (no batch at the
position, a batch that begins above the indexed offset, a largest timestamp that no batch has), the
segment ignores the file and builds its own entries in memory by walking the batch headers once.
Nothing is ever written.

`SegmentView` reads files, `LiveSegmentView` what a writer has published of the active segment, and
`SegmentReaders` holds what readers have open of a segment that is being written.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import CorruptBatchError, CorruptError, SegmentGoneError
from stratalog.format.batch import NO_TIMESTAMP, Entry, next_entry, peek
from stratalog.format.index_search import RELATIVE_OFFSET_MAX, WARM_BYTES
from stratalog.format.log_entry import RecordSearch, check_entry_crc, header_of
from stratalog.format.names import FileKind, FileState, segment_file_name
from stratalog.format.time_index import TimeEntry
from stratalog.storage.index_view import (
    BUILT_FROM_LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    IndexFormat,
    IndexView,
    rebuild_indexes,
)
from stratalog.storage.log_file import (
    WALK_WINDOW_BYTES,
    FileIdentity,
    LogFile,
    next_valid_batch,
    open_file,
    read_file,
)
from stratalog.storage.remote_path import WHOLE_FILE_BYTES, RemotePath
from stratalog.storage.trace import RecordStep, ScanStep

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from stratalog.format.batch import BatchHeader, Peek
    from stratalog.format.index_entries import IndexBuilder
    from stratalog.format.log_entry import EntryHeader
    from stratalog.format.txn_index import AbortedTxn
    from stratalog.storage.index_file import IndexFile
    from stratalog.storage.index_view import Anchor
    from stratalog.storage.segment import SegmentWriter
    from stratalog.storage.trace import IndexKind, Trace


class SegmentEnd(NamedTuple):
    """Where the valid batches of a segment end."""

    position: int
    next_offset: int


def find_end(view: SegmentView) -> SegmentEnd:
    """The end of the last valid batch. Lets the view see what the file has by now.

    Searches after the last index entry first, then after earlier and earlier ones. The index is
    read before the size, so on a live log it never points past the bytes seen. Corruption in the
    middle is skipped: what follows it is still part of the log.
    """
    last = view.offset_index.last()
    view.size_bytes = max(view.size_bytes, view.file.size_bytes)
    if last is not None:
        view.seek(last[1])  # rebuilds the index if the log contradicts it
    index, stop = view.offset_index, view.size_bytes
    slot, back = index.entries - 1, 1
    while True:
        start = view.seek(index.entry(slot)[1]).position if slot >= 0 else 0
        found = _last_valid_batch(view, start, stop)
        if found is not None:
            return SegmentEnd(found.position + found.entry.size_bytes, found.header.next_offset)
        if slot < 0:
            return SegmentEnd(0, view.base_offset)
        slot, back, stop = max(-1, slot - back), back * 2, min(start, stop)


def _last_valid_batch(view: SegmentView, position: int, stop: int) -> LoadedBatch | None:
    """The last valid batch that begins in [position, stop), whatever is in between.

    A batch with a corrupt base offset still has a valid CRC. It is recognized by the next batch, if
    that continues the one before it.
    """
    before, found = None, None
    for batch in _valid_batches(view, position, stop):
        if found is None or batch.entry.offset >= found.header.next_offset:
            before, found = found, batch
        elif before is None or batch.entry.offset >= before.header.next_offset:
            found = batch
    return found


def _valid_batches(view: SegmentView, position: int, stop: int) -> Iterator[LoadedBatch]:
    """Every batch with a valid CRC that begins in [position, stop), in any order of offsets."""
    resume: int | None = position
    while resume is not None and resume < stop:
        try:
            yield from view.batches(resume, stop, is_ordered=False)
            return
        except CorruptError as error:
            start = error.position + 1
            resume = view.next_valid_batch(start, offset_min=view.base_offset)


TAIL_WALK_BYTES_MAX: Final = 16 * 1024 * 1024
"""Up to this many bytes of log after the last entry are walked to find newer timestamps. If there
is more, both indexes are rebuilt, which is faster per byte."""

_RECORDS: Final = RecordSearch()


class TimeHit(NamedTuple):
    """The first record of a segment at or after a time."""

    position: int
    """Position of its batch."""
    records_passed: int
    """Records of the batch before it."""
    offset: int
    timestamp: int


class LargestTimestamp(NamedTuple):
    """The largest timestamp of a segment, and the last offset of the first batch that has it."""

    timestamp: int
    offset: int


class OffsetTime(NamedTuple):
    """An offset, and the timestamp of its record."""

    offset: int
    timestamp: int


class SegmentTimes:
    """Lookups by timestamp in one segment.

    An entry of the time index means: up to this offset no record is newer than this timestamp.
    Proving that takes reading the log, but two cheap checks find wrong entries: the batch that it
    names must exist and have exactly that timestamp, and no batch after the last entry may be
    newer. An index that fails is replaced by one built from the log. One that only ends early, as a
    live broker's does, is completed.
    """

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
        """The largest timestamp of batches whose offsets are too far above the base offset for an
        index. Old brokers wrote such batches."""
        largest = LargestTimestamp(NO_TIMESTAMP, self._segment.base_offset)
        reach = self._segment.base_offset + RELATIVE_OFFSET_MAX
        for _, batch in self._segment.walk(self._segment.seek(reach + 1).position):
            if batch.last_offset > reach and batch.max_timestamp > largest.timestamp:
                largest = LargestTimestamp(batch.max_timestamp, batch.last_offset)
        return largest

    @property
    def indexed_largest(self) -> LargestTimestamp:
        """The last entry of the `.timeindex` file, not checked; without one, what the log says."""
        last = None if self._loaded is None else self._loaded.last()
        return self.largest if last is None else LargestTimestamp(last[1], last[2])

    @property
    def span(self) -> tuple[OffsetTime, OffsetTime]:
        """The approximate times of the first and the last record: the first and the last entry of
        the `.timeindex` file, not checked against the log. Without entries, the times come from the
        headers of the log."""
        loaded = self._segment.load_span_index()
        if loaded is not None and loaded.entries:
            first, last = loaded.entry(0), loaded.entry(loaded.entries - 1)
            return OffsetTime(first[2], first[1]), OffsetTime(last[2], last[1])
        largest = OffsetTime(self.largest.offset, self.largest.timestamp)
        for _, header in self._segment.walk_headers():
            return OffsetTime(header.base_offset, header.base_timestamp), largest
        return largest, largest

    @cached_property
    def index(self) -> IndexView:
        """The `.timeindex` file, completed, if the log confirms it; else one built from the log."""
        loaded = self._segment.load_index(TIME_INDEX)
        last = None if loaded is None else loaded.last()
        if loaded is None or last is None:
            is_missing = loaded is None
            reason = self._segment.no_index_reason if is_missing else "the file has no entries"
            return self._rebuilt_index(reason)
        named = self._named_by(last)
        if named is None:
            return self._rebuilt_index("the file contradicts the log")
        if self._segment.size_bytes - named.position <= TAIL_WALK_BYTES_MAX:
            return self._completed(loaded, last, named.position)
        return self._rebuilt_index("the file ends long before the log")

    @property
    def _searched(self) -> IndexView:
        """The index for lookups by time. In a store it is not checked first: only the entry that is
        found is checked, and the scan from there finds what the index lacks at its end."""
        checked: IndexView | None = self.__dict__.get("index")
        if checked is not None:
            return checked
        if isinstance(self._segment.path, RemotePath):
            loaded = self._loaded
            if loaded is not None and loaded.entries:
                return loaded
        return self.index

    @cached_property
    def _loaded(self) -> IndexView | None:
        """The `.timeindex` file of a segment in a store, not checked."""
        return self._segment.load_index(TIME_INDEX)

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
                self._note_scan(trace, start, passed)  # the index led to the corrupt batch
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
        """The position to scan from, and a guess of the size of the batch there; 0: no guess."""
        anchor = self._searched.lookup(target, trace)
        named = self._named_by(anchor, trace) if anchor[0] >= 0 else None
        if named is None and anchor[0] >= 0:
            self.index = self._rebuilt_index("the file contradicts the log")
            anchor = self.index.lookup(target, trace)
            named = self._named_by(anchor, trace) if anchor[0] >= 0 else None
        if named is None or anchor[2] < start_offset:
            return self._segment.seek(max(anchor[2], start_offset), trace).position, 0
        if named.batch is None or anchor[1] >= target:
            return named.position, 0
        size_bytes = named.batch.size_bytes  # nothing up to its end is new enough
        is_last = named.position + size_bytes >= self._segment.size_bytes
        return named.position + size_bytes, 0 if is_last else size_bytes + size_bytes // 8

    def _named_by(self, entry: Anchor, trace: Trace | None = None) -> SeekResult | None:
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

    def _rebuilt_index(self, reason: str) -> IndexView:
        return self._segment.rebuilt_index(TIME_INDEX, reason)

    def _completed(self, index: IndexView, last: Anchor, tail_start: int) -> IndexView:
        """A live broker writes entries late; here the newer batches get theirs."""
        largest, base_offset = last[1], self._segment.base_offset
        newer = bytearray()
        for _, batch in self._segment.walk(tail_start):
            is_in_reach = batch.last_offset - base_offset <= RELATIVE_OFFSET_MAX  # else: corrupt
            if is_in_reach and batch.max_timestamp > largest:
                largest = batch.max_timestamp
                newer += TimeEntry(largest, batch.last_offset).pack(base_offset=base_offset)
        return index.extended(bytes(newer)) if newer else index


CHUNK_BYTES: Final = 256 * 1024
LOG_FOR_SPAN_BYTES_MAX: Final = 256 * 1024


class SeekResult(NamedTuple):
    """The result of a lookup by offset."""

    position: int
    """Position of the batch that was found; without one, where the walk had to stop."""
    batch: Peek | None


class LoadedBatch(NamedTuple):
    """One complete batch in memory, header and CRC checked."""

    position: int
    """In the file."""
    buf: bytes
    entry: Entry
    """Its place in `buf`."""
    header: EntryHeader


class SegmentView:
    """A `.log` file with its indexes, as they were when the directory was listed."""

    aborted_not_indexed: tuple[AbortedTxn, ...] | None = None
    """Aborted transactions that its transaction index lacks, once found in the log."""
    known_largest: LargestTimestamp | None = None
    """The largest timestamp, if a writer knows it or it was looked up before."""
    _reads_index_files = False

    def __init__(
        self, path: Path, base_offset: int, size_bytes: int, identity: FileIdentity | None = None
    ) -> None:
        self.path = path
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        """Bytes of the file that this view covers. A live file grows; a new listing shows more."""
        self.identity = identity
        """Identity of the file that was listed; None: any file of that name."""

    def __repr__(self) -> str:
        return f"SegmentView({self.path.name!r}, {self.size_bytes} bytes)"

    @cached_property
    def file(self) -> LogFile:
        """Open from first use on, so a segment that is deleted meanwhile stays readable.

        A broker may have renamed it already, and given its name to another. Raises
        SegmentGoneError if the file that was listed has none of its possible names.
        """
        plain = self.path.name.removesuffix(FileState.SWAP.value)
        for name in (self.path.name, plain, plain + FileState.DELETED.value):
            try:
                file = open_file(self.path.with_name(name), self.identity)
            except FileNotFoundError:
                continue
            if self._is_listed(file.identity):
                return file
        raise SegmentGoneError(self.path)

    def open(self) -> None:
        """Open the file now: until `release` it stays readable, whatever becomes of its name."""
        _ = self.file

    def _is_listed(self, found: FileIdentity) -> bool:
        """Whether a file is the one that was listed. Only the last segment of a log grows; others
        keep size and time, or are replaced."""
        listed = self.identity
        if listed is None or listed == found:
            return True
        return listed.may_have_grown_to(found) and self._is_last_segment()

    def _is_last_segment(self) -> bool:
        last = segment_file_name(self.base_offset, FileKind.LOG)
        names = [path.name for path in self.path.parent.iterdir()]
        return last in names and not any(
            name > last and name.endswith(FileKind.LOG.value) for name in names
        )

    def check_in_place(self) -> None:
        """Raise SegmentGoneError unless the segment, and so its indexes, still have their names."""
        try:
            found = FileIdentity.of(self.path.stat())
        except FileNotFoundError:
            raise SegmentGoneError(self.path) from None
        if not self._is_listed(found):
            raise SegmentGoneError(self.path)

    def check_unchanged(self) -> None:
        """Raise SegmentGoneError if a store has replaced the file while it was read."""
        file = self.__dict__.get("file")
        if file is not None:
            file.check_unchanged()

    def check_one_version(self) -> None:
        """Raise SegmentGoneError if what was read is of two versions of the file. This is enough
        for records that were found; that a record was *not* found needs `check_unchanged`."""
        file = self.__dict__.get("file")
        if file is not None:
            file.check_one_version()

    def read_txn_index(self) -> bytes | None:
        """The content of the transaction index; None if there is no such file. Raises
        SegmentGoneError if the segment no longer has its name."""
        try:
            data = read_file(self.sibling(FileKind.TXN_INDEX))
        except FileNotFoundError:
            data = None
        self.check_in_place()
        return data

    def sibling(self, kind: FileKind) -> Path:
        """The segment's file of this kind; it carries the same `.swap` if there is one."""
        return self.path.with_name(self.path.name.replace(FileKind.LOG.value, kind.value, 1))

    def walk(self, position: int = 0) -> Iterator[tuple[int, Peek]]:
        """Position and header of each plausible batch from `position` on, across corruption.

        Plausible, not proven: a batch whose length is corrupt may be among them, and then those
        that begin within the bytes it claims.
        """
        resume: int | None = position
        while resume is not None:
            start, last = resume, None
            for last in self.file.walk(start, self.size_bytes, offset_min=self.base_offset):
                yield last
            resume = self._resume_after(start, last)

    def walk_headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Like `walk`, with complete headers, magic-2 batches only."""
        return self.file.headers_of(self.walk(position))

    def _resume_after(self, start: int, last: tuple[int, Peek] | None) -> int | None:
        """Where the batches continue after those from `start` to `last`; None if nowhere."""
        stopped_at, offset_min = start, self.base_offset
        if last is not None:
            last_at, batch = last
            stopped_at = last_at + batch.size_bytes
            if stopped_at < self.size_bytes:
                if self.is_valid(last_at):
                    offset_min = batch.last_offset + 1
                else:
                    stopped_at = last_at  # its length is not to be trusted
        if stopped_at >= self.size_bytes:
            return None
        return self.next_valid_batch(stopped_at + 1, offset_min=offset_min)

    def load_batch(self, position: int, size_bytes: int = 0) -> LoadedBatch:
        """The batch at `position`, checked; `size_bytes` if it is known already or can be guessed.

        Raises CorruptBatchError, also when the batch is incomplete.
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
        self,
        position: int,
        end: int,
        *,
        expected_offset: int | None = None,
        is_ordered: bool = True,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> Iterator[LoadedBatch]:
        """Each batch in [position, end), header and CRC checked, offsets growing if `is_ordered`.

        Raises CorruptBatchError at the first that is corrupt, incomplete or out of order (the first
        one must not begin below `expected_offset`). The bytes of several batches share one read, of
        up to `chunk_bytes`.
        """
        expected_offset = self.base_offset if expected_offset is None else expected_offset
        while position < end:
            chunk = self.file.read(position, min(chunk_bytes, end - position))
            start = position
            for loaded in self._batches_of(chunk, start):
                expected_offset = self._check_order(loaded, expected_offset) if is_ordered else 0
                yield loaded
                position = start + loaded.entry.end
            if position == start:  # the first batch is larger than a chunk
                loaded = self.load_batch(start)
                expected_offset = self._check_order(loaded, expected_offset) if is_ordered else 0
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

    def _check_order(self, batch: LoadedBatch, expected_offset: int) -> int:
        """The offset expected after `batch`. No CRC covers a base offset; only the order shows an
        error."""
        if batch.entry.offset < expected_offset:
            raise CorruptBatchError(
                f"the batch has offset {batch.entry.offset}, expected {expected_offset} or more",
                position=batch.position,
                path=self.path,
                offsets=(batch.entry.offset, batch.header.next_offset - 1),
            )
        return batch.header.next_offset

    def release(self) -> None:
        """Close the file and forget all that was read. The next use opens the same file again,
        whatever has its name by then."""
        file = self.__dict__.get("file")
        if file is not None and self.identity is None:
            self.identity = file.identity
        for name in ("file", "offset_index", "times", "_rebuilt"):
            self.__dict__.pop(name, None)

    # -- by offset

    @cached_property
    def offset_index(self) -> IndexView:
        """The `.index` file, or one built from the log if the file is missing or wrong."""
        loaded = self.load_index(OFFSET_INDEX)
        return loaded or self.rebuilt_index(OFFSET_INDEX, self.no_index_reason)

    def position_after(self, offset: int, end_position: int) -> int:
        """A position up to which all records below `offset` are, by the offset index of a file in
        a store; else the end."""
        if not isinstance(self.path, RemotePath) or "offset_index" not in self.__dict__:
            return end_position
        index = self.offset_index
        following = index.after(index.lookup(offset))
        return end_position if following is None else min(end_position, following[2])

    def seek(self, target: int, trace: Trace | None = None) -> SeekResult:
        """Find the first batch whose last offset is at or above `target`. It may begin below
        `target`."""
        if target <= self.base_offset and isinstance(self.path, RemotePath):
            found = self._walk_to(target, (-1, self.base_offset, 0), trace)  # costs no index
            return found or SeekResult(0, None)
        anchor = self.offset_index.lookup(target, trace)
        found = self._guess(target, anchor) if trace is None else None
        if found is None:
            found = self._walk_to(target, anchor, trace)
        if found is None:
            self.offset_index = self.rebuilt_index(OFFSET_INDEX, "the file contradicts the log")
            found = self._walk_to(target, self.offset_index.lookup(target, trace), trace)
        return found or SeekResult(0, None)

    def _guess(self, target: int, anchor: Anchor) -> SeekResult | None:
        """The batch with `target` if it is an indexed one, as it usually is among large batches.

        The index need not be right: a batch that spans the target is the right one.
        """
        position = anchor[2]
        if anchor[1] != target:
            following = self.offset_index.after(anchor)
            if following is None or following[2] - position < WALK_WINDOW_BYTES:
                return None  # walking there reads no more than loading the index
            position = following[2]
        batch = self.file.peek(position) if 0 <= position < self.size_bytes else None
        if batch is None or not batch.base_offset <= target <= batch.last_offset:
            return None
        if not batch.is_plausible(self.base_offset, self.size_bytes - position):
            return None
        return SeekResult(position, batch)

    def _walk_to(self, target: int, anchor: Anchor, trace: Trace | None) -> SeekResult | None:
        """None when the log contradicts the anchor."""
        slot, indexed_offset, start = anchor
        end = start
        passed: list[tuple[int, Peek]] = []
        found: SeekResult | None = None
        for position, batch in self.file.walk(start, self.size_bytes, offset_min=self.base_offset):
            if batch.base_offset > indexed_offset and position == start and slot >= 0:
                return None
            end = position + batch.size_bytes
            if trace is not None:
                passed.append((position, batch))
            if batch.last_offset >= target:
                found = SeekResult(position, batch)
                break
        if end == start and slot >= 0:
            return None
        if trace is not None:
            trace.add(ScanStep(self.path, start, tuple(passed), end - start))
        if found is None and end < self.size_bytes:
            return self._seek_across_corruption(target, start)
        return found or SeekResult(end, None)

    def _seek_across_corruption(self, target: int, start: int) -> SeekResult:
        """Continue after corruption as long as later batches prove that `target` was not in it."""
        end = start
        for position, batch in self.walk(start):
            if position != end and batch.base_offset > target:
                return SeekResult(min(end, position), None)
            if batch.last_offset >= target:
                return SeekResult(position, batch)
            end = position + batch.size_bytes
        return SeekResult(end, None)

    # -- by time

    @cached_property
    def times(self) -> SegmentTimes:
        """Lookups by timestamp."""
        return SegmentTimes(self)

    # -- the end of the log

    @cached_property
    def end(self) -> SegmentEnd:
        """Where the last valid batch ends. Meant for the last segment of a log."""
        found = find_end(self)
        self.check_unchanged()
        return found

    def is_valid(self, position: int) -> bool:
        """Whether a complete batch with a valid CRC starts at `position`."""
        try:
            self._load_batch(position)
        except CorruptError:
            return False
        return True

    def next_valid_batch(self, position: int, *, offset_min: int) -> int | None:
        """Position of the first complete batch with a valid CRC from `position` on."""
        return next_valid_batch(self.file, position, self.size_bytes, offset_min=offset_min)

    # -- indexes

    def load_index(self, of: IndexFormat) -> IndexView | None:
        """The index file; None if it does not exist, may not be read, or takes longer to fetch than
        the log."""
        if self._is_fetched_whole:
            return None
        return self._load_index_file(of)

    def load_span_index(self) -> IndexView | None:
        """The time index that shows about which time the segment has: also if lookups fetch the log
        whole, unless that is hardly larger."""
        if not self._is_fetched_whole or self.size_bytes <= LOG_FOR_SPAN_BYTES_MAX:
            return self.load_index(TIME_INDEX)
        return self._load_index_file(TIME_INDEX)

    def _load_index_file(self, of: IndexFormat) -> IndexView | None:
        try:
            return IndexView.load(of, self.sibling(of.file_kind), self.base_offset)
        except (FileNotFoundError, PermissionError):
            return None

    def read_index_files(self) -> None:
        """From now on, the indexes are those of the files, also if the log is so small that lookups
        fetch it whole: to describe the files."""
        if self._is_fetched_whole:
            self._reads_index_files = True
            for name in ("offset_index", "times"):
                self.__dict__.pop(name, None)

    @property
    def _is_fetched_whole(self) -> bool:
        is_small = isinstance(self.path, RemotePath) and self.size_bytes <= WHOLE_FILE_BYTES
        return is_small and not self._reads_index_files

    @property
    def no_index_reason(self) -> str:
        """Why `load_index` has returned None."""
        return "the log is small and fetched whole" if self._is_fetched_whole else "no file"

    def rebuilt_index(self, of: IndexFormat, reason: str) -> IndexView:
        """The index as it follows from the log, in memory."""
        rebuilt = self._rebuilt
        data = rebuilt.offset_index if of is OFFSET_INDEX else rebuilt.time_index
        origin = f"{BUILT_FROM_LOG}{reason}"
        return IndexView(of, self.sibling(of.file_kind), self.base_offset, bytes(data), origin)

    @cached_property
    def _rebuilt(self) -> IndexBuilder:
        """Both indexes from one walk over the headers."""
        return rebuild_indexes(self)


class PublishedState(NamedTuple):
    """An active segment at one moment."""

    end: SegmentEnd
    largest: LargestTimestamp


class LiveSegmentView(SegmentView):
    """What was published of an active segment when this view was created, and no more.

    Index entries come from the writer's memory: the files are preallocated, and finding their end
    would take longer than most lookups. Only the newest are copied; older ones are read from the
    file when needed.
    """

    def __init__(
        self,
        path: Path,
        base_offset: int,
        state: PublishedState,
        file: LogFile,
        indexes: Mapping[IndexKind, IndexFile],
    ) -> None:
        super().__init__(path, base_offset, state.end.position)
        self.state = state
        self.end = state.end
        self.known_largest = state.largest
        self.file = file
        self._indexes = indexes

    def load_index(self, of: IndexFormat) -> IndexView | None:
        index = self._indexes[of.kind]
        if index.is_trimmed:
            return super().load_index(of)
        entries = index.entries_below(self.end.next_offset)  # newer ones are not for this view
        tail_entries = min(entries, WARM_BYTES // of.entry_bytes)
        first = (entries - tail_entries) * of.entry_bytes
        tail = bytes(index.buffer[first : entries * of.entry_bytes])
        return IndexView.of_tail(of, self.sibling(of.file_kind), self.base_offset, tail, entries)


class SegmentReaders:
    """What readers have open of a segment that is being written.

    All of them share one file and one view, from first use until the writer drops them. Whoever has
    the view may go on with it: the file is closed with the last reference. Any thread may call; two
    at once may each create a view, and either will do. The path may change, so it is an argument.
    """

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self._view: SegmentView | None = None
        self._log: LogFile | None = None
        self._identity: FileIdentity | None = None  # once another file may get the name

    def log(self, path: Path) -> LogFile:
        """The log, open from first use on. It stays readable after a delete.

        Raises SegmentGoneError when it was deleted before.
        """
        log = self._log
        if log is None:
            try:
                log = self._log = open_file(path)
            except FileNotFoundError:
                raise SegmentGoneError(path) from None
        return log

    def sealed_view(
        self, path: Path, size_bytes: int, largest: LargestTimestamp | None
    ) -> SegmentView:
        """View of an inactive segment's files. `largest` if its writer knows it."""
        view = self._view
        if view is None or view.size_bytes != size_bytes:
            view = SegmentView(path, self._base_offset, size_bytes)
            view.known_largest = largest
            self._view = view
        if self._identity is not None:  # read only after `self._view` is set: see `release_name`
            view.identity = self._identity
        return view

    def live_view(self, path: Path, writer: SegmentWriter, state: PublishedState) -> SegmentView:
        """View of the active segment in this state."""
        view = self._view
        if not isinstance(view, LiveSegmentView) or view.state != state:
            indexes: dict[IndexKind, IndexFile] = {
                "offset": writer.offset_index,
                "time": writer.time_index,
            }
            self.drop_view()
            view = LiveSegmentView(path, self._base_offset, state, self.log(path), indexes)
            self._view = view
        return view

    def release(self) -> None:
        """Close everything. The next use opens it again."""
        self.drop_view()
        self._log = None

    def drop_view(self) -> None:
        """The segment has changed: the next reader gets another view."""
        view, self._view = self._view, None
        if view is not None:
            view.__dict__.pop("times", None)  # it refers back to the view

    def release_name(self, path: Path) -> None:
        """Call before another segment gets the name: all views of this one then open its own file
        or none."""
        with suppress(FileNotFoundError):
            self._identity = FileIdentity.of(path.stat())
        view = self._view
        if view is not None:
            view.identity = self._identity
