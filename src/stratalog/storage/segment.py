"""One segment as its only writer sees it: `.log` with its indexes, appended to, truncated, sealed.

A segment is *active* (a `SegmentWriter` has its log open and both sparse indexes mapped at full
size) or *inactive* (nothing is open until somebody reads). Creating an object for an inactive one
costs no I/O, so a partition of a thousand segments opens at once.

Invariants:

* one thread writes, any number read. Readers take `view()` or `seek`, which end at the published
  size; it grows only when a batch is complete in the file;
* an append that raises has changed nothing: what may fail is done before the state changes;
* the log is the truth. Index entries are removed before the log is truncated, and indexes that
  contradict the log are rebuilt when the segment becomes active.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NoReturn, Self, TypeAlias

from stratalog.errors import CorruptBatchError, DiskFullError, OffsetOverflowError, StorageError
from stratalog.format.batch import NO_TIMESTAMP, BatchSpan
from stratalog.format.index_entries import after_batch
from stratalog.format.index_search import RELATIVE_OFFSET_MAX
from stratalog.format.names import FileKind, FileState, segment_file_name
from stratalog.format.offset_index import POSITION_MAX
from stratalog.storage.index_file import IndexPair, TxnIndexFile
from stratalog.storage.recovery import check_segment
from stratalog.storage.roll import (
    NO_FIRST_TIMESTAMP,
    ActiveSegment,
    IncomingAppend,
    RollLimits,
    RollReason,
    roll_reason,
)
from stratalog.storage.segment_view import (
    LargestTimestamp,
    PublishedState,
    SeekResult,
    SegmentEnd,
    SegmentReaders,
    SegmentView,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from stratalog.config import LogConfig
    from stratalog.format.buffers import Buffer
    from stratalog.format.index_entries import IndexBuilder, IndexState
    from stratalog.format.txn_index import AbortedTxn
    from stratalog.storage.disk import AppendFile, Disk
    from stratalog.storage.index_file import OffsetIndexFile, TimeIndexFile
    from stratalog.storage.log_file import LogFile
    from stratalog.storage.recovery import OnBatch, ValidPart

_KINDS = (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX)

_State: TypeAlias = "tuple[int, int, IndexState]"
"""Size in bytes, next offset, and what the rule for index entries remembers."""


class SegmentWriter:
    """Appends to a segment. One thread calls it; others may read `published` at any time.

    Everything that decides whether an append counts is in one tuple, which is replaced last. So
    whatever interrupts an append, even Ctrl-C between two instructions, leaves the earlier state;
    the next append removes what may be in the files by then. `first_timestamp` is set before the
    tuple, but decides nothing while the segment is empty. The earlier tuple is kept for readers,
    who do not see an append before the log end has moved.
    """

    def __init__(
        self,
        log: AppendFile,
        offset_index: OffsetIndexFile,
        time_index: TimeIndexFile,
        next_offset: int,
        interval_bytes: int,
    ) -> None:
        self.base_offset = offset_index.base_offset
        self.log = log
        self.offset_index = offset_index
        self.time_index = time_index
        self.interval_bytes = interval_bytes
        self.first_timestamp = NO_FIRST_TIMESTAMP
        self.created_ms = 0
        self.limits = RollLimits(segment_bytes=POSITION_MAX, segment_ms=(1 << 63) - 1)
        self._next_offset_max = self.base_offset + RELATIVE_OFFSET_MAX + 1
        self._state: _State = (log.size_bytes, next_offset, (*time_index.last, 0))
        self._earlier_state = self._state
        with suppress(DiskFullError):
            time_index.make_ready(1)  # so that closing the segment needs no more space

    @property
    def published(self) -> SegmentEnd:
        """Batches below it are complete, in the file and indexed."""
        return SegmentEnd(*self._state[:2])

    @property
    def largest_timestamp(self) -> LargestTimestamp:
        """(-1, base offset) when no batch has a timestamp."""
        return LargestTimestamp(*self._state[2][:2])

    def state_at(self, log_end_offset: int | None) -> PublishedState:
        """`published` and `largest_timestamp`, at the same moment.

        With a log end, an append that is not part of the log yet is left out. This relies on the
        order of reads: if the earlier state is newer than the log end, the log has grown since.
        """
        state, earlier = self._state, self._earlier_state
        if (
            log_end_offset is not None
            and state[1] > log_end_offset
            and earlier[1] >= log_end_offset
        ):
            state = earlier
        position, next_offset, (timestamp, offset, _) = state
        return PublishedState(
            SegmentEnd(position, next_offset), LargestTimestamp(timestamp, offset)
        )

    def roll_reason(
        self, size_bytes: int, last_offset: int, max_timestamp: int, now_ms: int
    ) -> RollReason | None:
        """Why this append needs a new segment, see `roll.roll_reason`."""
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
        facts = ActiveSegment(
            base_offset=self.base_offset,
            size_bytes=self._state[0],
            first_timestamp=first_timestamp,
            created_ms=self.created_ms,
            is_offset_index_full=offset_index.is_full,
            is_time_index_full=time_index.is_full,
        )
        return roll_reason(
            facts, IncomingAppend(size_bytes, last_offset, max_timestamp, now_ms), self.limits
        )

    def has_index_room(self, entries: int) -> bool:
        """Whether both indexes have room for this many entries before they count as full."""
        offset_index, time_index = self.offset_index, self.time_index
        return (
            offset_index.entries + entries < offset_index.entries_max
            and time_index.entries + entries < time_index.entries_max - 1
        )

    def append(self, data: Buffer, spans: Sequence[BatchSpan]) -> int:
        """Write the batches of `data`, in order and without gaps, with one call to the system.

        Returns the position of the first. Raises OffsetOverflowError or StorageError, and has then
        changed nothing. Index entries are written first because they are easily removed again.
        """
        if len(spans) == 1:
            position, size_bytes, base_offset, last_offset, max_timestamp = spans[0]
            if position or size_bytes != len(data):
                self._reject(data, spans)
            return self.append_batch(data, base_offset, last_offset, max_timestamp)
        start = self._state[0]
        offset_entries, time_entries, after = self._plan(data, spans)
        if self.log.size_bytes != start:
            self._remove_unpublished()
        try:
            if offset_entries:
                self.offset_index.extend(offset_entries)
                self.time_index.extend(time_entries)
            self.log.write(data)
        except BaseException:
            self._remove_unpublished()
            raise
        if not start:
            self.first_timestamp = spans[0].max_timestamp
        self._earlier_state = self._state
        self._state = after
        return start

    def _plan(
        self, data: Buffer, spans: Sequence[BatchSpan]
    ) -> tuple[list[int], list[int], _State]:
        """Fields of the index entries for the batches, and the state after them."""
        end, expected_offset, index_state = self._state
        start, base, interval = end, self.base_offset, self.interval_bytes
        indexed_timestamp = self.time_index.last_timestamp
        offset_entries: list[int] = []
        time_entries: list[int] = []
        for position, size_bytes, base_offset, last_offset, max_timestamp in spans:
            if start + position != end or not expected_offset <= base_offset <= last_offset:
                self._reject(data, spans)
            index_state, has_entry = after_batch(
                index_state, interval, size_bytes, last_offset, max_timestamp
            )
            if has_entry:
                offset_entries += (last_offset - base, end)
                largest, largest_offset, _ = index_state
                if largest > indexed_timestamp:
                    time_entries += (largest, largest_offset - base)
                    indexed_timestamp = largest
            end += size_bytes
            expected_offset = last_offset + 1
        if end - start != len(data) or not spans or end > POSITION_MAX:
            self._reject(data, spans)
        if expected_offset > self._next_offset_max:
            self._reject(data, spans)
        return offset_entries, time_entries, (end, expected_offset, index_state)

    def append_batch(
        self, data: Buffer, base_offset: int, last_offset: int, max_timestamp: int
    ) -> int:
        """A faster `append` for a single batch, which is what producers send."""
        start, expected_offset, index_state = self._state
        log, size_bytes = self.log, len(data)
        end = start + size_bytes
        if (
            end > POSITION_MAX
            or not expected_offset <= base_offset <= last_offset < self._next_offset_max
        ):
            self._reject(data, [BatchSpan(0, size_bytes, base_offset, last_offset, max_timestamp)])
        if log.size_bytes != start:
            self._remove_unpublished()
        index_state, has_entry = after_batch(
            index_state, self.interval_bytes, size_bytes, last_offset, max_timestamp
        )
        try:
            if has_entry:
                self.offset_index.append(last_offset - self.base_offset, start)
                largest, largest_offset, _ = index_state
                if largest > self.time_index.last_timestamp:
                    self.time_index.append(largest, largest_offset - self.base_offset)
            log.write(data)
        except BaseException:
            self._remove_unpublished()
            raise
        if not start:
            self.first_timestamp = max_timestamp
        self._earlier_state = self._state
        self._state = (end, last_offset + 1, index_state)
        return start

    def _reject(self, data: Buffer, spans: Sequence[BatchSpan]) -> NoReturn:
        """Raise for an append that does not continue the segment. Anything but an overflow is a bug
        of the caller."""
        size_bytes, next_offset = self.published
        last_offset = spans[-1].last_offset if spans else next_offset
        if last_offset >= self._next_offset_max:
            raise OffsetOverflowError(last_offset, base_offset=self.base_offset)
        raise ValueError(
            f"{len(data)} bytes in batches {list(spans[:3])} … do not continue a segment of "
            f"{size_bytes} bytes at offset {next_offset}"
        )

    def _remove_unpublished(self) -> None:
        """Remove what a failed append left after the published end."""
        size_bytes, next_offset = self.published
        self.offset_index.truncate_to(next_offset)
        self.time_index.truncate_to(next_offset)
        if self.log.size_bytes > size_bytes:
            self.log.truncate(size_bytes)

    def truncate(self, offset: int, position: int, reader: LogFile) -> None:
        """Drop everything from `position` on: the batches that reach `offset` or above.

        Index entries are removed first: a crash in between leaves an index that is short, never one
        that points past the log. The published end is lowered before the bytes are gone.
        """
        before = self._state
        size_bytes, next_offset, (largest, largest_offset, _) = before
        size_bytes = min(position, size_bytes)
        next_offset = min(next_offset, max(offset, self.base_offset))
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self._earlier_state = (size_bytes, next_offset, (largest, largest_offset, 0))
        self._state = self._earlier_state
        try:
            self.log.truncate(size_bytes)
        except BaseException:
            self._state = before
            raise
        if not size_bytes:
            self.first_timestamp = NO_FIRST_TIMESTAMP
        if largest > NO_TIMESTAMP:
            self._state = (size_bytes, next_offset, (*self._find_largest(reader), 0))

    def _find_largest(self, reader: LogFile) -> LargestTimestamp:
        """The largest timestamp: that of the last time entry, unless a later batch has a larger
        one."""
        timestamp, offset = self.time_index.last
        start, end = self.offset_index.lookup(offset).position, self._state[0]
        for _, batch in reader.walk(start, end, offset_min=self.base_offset):
            if batch.max_timestamp > timestamp:
                timestamp, offset = batch.max_timestamp, batch.last_offset
        return LargestTimestamp(timestamp, offset)

    def seal(self) -> None:
        """Write the last time entry, trim the files and close the log: the segment gets no more
        batches.

        May be called again after it failed.
        """
        if self.log.size_bytes != self._state[0]:
            self._remove_unpublished()
        self.time_index.close_with(*self.largest_timestamp)
        self.offset_index.trim()
        self.time_index.trim()
        self.log.trim()
        self.log.close()


class Segment:
    """The segment at `base_offset`; inactive until `become_active`."""

    def __init__(
        self, disk: Disk, path: Path, base_offset: int, size_bytes: int, config: LogConfig
    ) -> None:
        """`path` and `size_bytes` are those of the `.log` file. No I/O."""
        self.path = path
        self.base_offset = base_offset
        self._disk = disk
        self._config = config
        self._roll_jitter_ms = 0
        self._writer: SegmentWriter | None = None
        # Cached facts of an inactive segment; the writer has those of an active one.
        self._size_bytes = size_bytes
        self._end: SegmentEnd | None = None
        self._largest_timestamp: LargestTimestamp | None = None
        self._readers = SegmentReaders(base_offset)

    @classmethod
    def create(
        cls, disk: Disk, directory: Path, base_offset: int, config: LogConfig, *, now_ms: int
    ) -> Self:
        """A new, empty, active segment. Files that have its names already are removed first."""
        path = directory / segment_file_name(base_offset, FileKind.LOG)
        segment = cls(disk, path, base_offset, 0, config)
        segment.delete()
        segment._end = SegmentEnd(0, base_offset)
        try:
            segment.become_active(now_ms=now_ms)
        except BaseException:
            with suppress(StorageError):
                segment.delete()
            raise
        return segment

    @classmethod
    def adopt(
        cls, disk: Disk, path: Path, end: SegmentEnd, indexes: IndexBuilder, config: LogConfig
    ) -> Self:
        """A complete, inactive segment whose log is about to be renamed to `path`. Writes its
        indexes; only their names are not durable yet."""
        segment = cls(disk, path, indexes.base_offset, end.position, config)
        segment._end = end
        segment.txn_index.delete()
        segment._indexes().write(indexes)
        for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
            disk.fsync(segment.sibling(kind))
        return segment

    def __repr__(self) -> str:
        state = "active" if self.is_active else "inactive"
        return f"Segment({self.path.name!r}, {self.size_bytes} bytes, {state})"

    # -- facts

    @property
    def is_active(self) -> bool:
        return self._writer is not None

    @property
    def size_bytes(self) -> int:
        """Published: every batch below it is complete."""
        writer = self._writer
        return self._size_bytes if writer is None else writer.published.position

    @property
    def next_offset(self) -> int:
        """The offset after the last batch; the base offset of an empty segment."""
        writer = self._writer
        if writer is not None:
            return writer.published.next_offset
        if self._end is None:
            with self._short_view() as view:
                self._end = view.end
        return self._end.next_offset

    @property
    def largest_timestamp(self) -> LargestTimestamp:
        """The largest timestamp, and the last offset of the first batch that has it; (-1, base
        offset) without any."""
        writer = self._writer
        if writer is not None:
            return writer.largest_timestamp
        if self._largest_timestamp is None:
            with self._short_view() as view:
                self._largest_timestamp = view.times.largest
        return self._largest_timestamp

    @property
    def first_timestamp(self) -> int:
        """Max timestamp of the first batch: where the roll clock starts. -1 when empty."""
        writer = self._writer
        if writer is not None:
            return writer.first_timestamp
        if not self._size_bytes:
            return NO_FIRST_TIMESTAMP
        with self._short_view() as view:
            first = view.file.peek(0)
        return NO_FIRST_TIMESTAMP if first is None else first.max_timestamp

    def sibling(self, kind: FileKind) -> Path:
        """The segment's file of this kind, in the same state."""
        return self.path.with_name(self.path.name.replace(FileKind.LOG.value, kind.value, 1))

    @property
    def txn_index(self) -> TxnIndexFile:
        """The aborted transactions whose marker is in this segment."""
        return TxnIndexFile(self._disk, self.sibling(FileKind.TXN_INDEX))

    # -- writing

    def append(self, data: Buffer, spans: Sequence[BatchSpan]) -> int:
        """Write batches that have their offsets, see `SegmentWriter.append`. Returns the position
        of the first."""
        return self.writer.append(data, spans)

    def roll_reason(
        self, size_bytes: int, last_offset: int, max_timestamp: int, now_ms: int
    ) -> RollReason | None:
        """Why an append of this size, last offset and largest timestamp needs a new segment."""
        return self.writer.roll_reason(size_bytes, last_offset, max_timestamp, now_ms)

    @property
    def writer_if_active(self) -> SegmentWriter | None:
        """None if the segment is inactive."""
        return self._writer

    @property
    def writer(self) -> SegmentWriter:
        """Writer of the active segment."""
        if self._writer is None:
            raise ValueError(f"{self.path.name} is not active")
        return self._writer

    def configure(self, config: LogConfig, *, roll_jitter_ms: int | None = None) -> None:
        """Roll by these limits from now on. The indexes keep their size."""
        self._config = config
        if roll_jitter_ms is not None:
            self._roll_jitter_ms = roll_jitter_ms
        if self._writer is not None:
            segment_ms = config.effective_segment_ms - self._roll_jitter_ms
            self._writer.limits = RollLimits(config.segment_bytes, segment_ms)

    def append_aborted(self, txn: AbortedTxn) -> None:
        """Record a transaction whose ABORT marker was appended to this segment."""
        self.txn_index.append(txn)

    def truncate_to(self, offset: int, *, now_ms: int) -> int:
        """Drop every batch that reaches `offset` or above; returns how many bytes that were.

        A batch that begins below `offset` is dropped as a whole. The segment is active afterwards.
        """
        self.become_active(now_ms=now_ms)
        writer, size_bytes = self.writer, self.size_bytes
        found = self.seek(offset)
        position = size_bytes if found.batch is None else found.position
        self.txn_index.truncate_to(offset)
        writer.truncate(offset, position, self.reader)
        if not writer.published.position:
            writer.created_ms = now_ms
        self._readers.drop_view()
        return size_bytes - writer.published.position

    def flush(self) -> None:
        """Make the files durable, in Kafka's order; their names need `fsync_dir`."""
        writer = self._writer
        if writer is None or not writer.log.fsync():
            self._disk.fsync(self.path)
        self._disk.fsync(self.sibling(FileKind.OFFSET_INDEX))
        self._disk.fsync(self.sibling(FileKind.TIME_INDEX))
        self.txn_index.flush()

    # -- active and inactive

    def become_active(self, *, now_ms: int) -> None:
        """Open the log for appending and map the indexes at full size.

        Raises CorruptBatchError if the log does not end with a complete batch: `recover` it.
        """
        if self._writer is not None:
            return
        end = self._checked_end()
        is_new = not self._disk.exists(self.path)
        log = self._disk.open_append(self.path, size_bytes=self._size_bytes)
        try:
            if is_new and self._config.preallocate:
                log.preallocate(self._config.segment_bytes)
            indexes = self._indexes().open(
                end, self._config.segment_index_bytes, lambda: self._valid_part().indexes
            )
        except BaseException:
            log.close()
            raise
        interval_bytes = self._config.index_interval_bytes
        writer = SegmentWriter(log, *indexes, end.next_offset, interval_bytes)
        writer.first_timestamp = self.first_timestamp
        writer.created_ms = now_ms
        self._writer = writer
        self._readers.drop_view()
        self.configure(self._config)

    def _checked_end(self) -> SegmentEnd:
        end = self._end = self.view().end if self._end is None else self._end
        if end.position != self._size_bytes:
            raise CorruptBatchError(
                f"no complete batch starts here; the file has {self._size_bytes} bytes",
                position=end.position,
                path=self.path,
            )
        return end

    def _indexes(self) -> IndexPair:
        offset_index, time_index = map(self.sibling, (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX))
        return IndexPair(self._disk, offset_index, time_index, self.base_offset)

    def become_inactive(self) -> None:
        """Write the last time entry and trim the files: the segment gets no more batches."""
        writer = self._writer
        if writer is not None:
            writer.seal()
            self._end = writer.published
            self._size_bytes = self._end.position
            self._largest_timestamp = writer.largest_timestamp
            self._writer = None
            self._readers.drop_view()

    def close(self) -> None:
        """`become_inactive`, and close what readers have open. No fsync."""
        try:
            self.become_inactive()
        finally:
            self.release()

    # -- recovery

    def recover(
        self, on_batch: OnBatch, *, before_truncation: Callable[[ValidPart], None] | None = None
    ) -> ValidPart:
        """Truncate the log at the first batch that is not valid, and rebuild the indexes.

        `on_batch` may call `append_aborted`: the transaction index starts empty.
        `before_truncation` is called once it is known that bytes will be dropped. The truncation is
        durable, so that a crash cannot bring dropped bytes back after new ones. The segment must be
        inactive, and nobody may read it meanwhile.
        """
        if self._writer is not None:
            raise ValueError(f"{self.path.name} is active")
        self.release()
        self.txn_index.delete()
        valid_part = self._valid_part(on_batch)
        if valid_part.valid_bytes < (self._disk.size_of(self.path) or 0):
            if before_truncation is not None:
                before_truncation(valid_part)
            self._disk.truncate(self.path, valid_part.valid_bytes)
            self._disk.fsync(self.path)
        self._end = SegmentEnd(valid_part.valid_bytes, valid_part.next_offset)
        self._size_bytes = valid_part.valid_bytes
        self._largest_timestamp = None
        self._indexes().write(valid_part.indexes)
        self.release()
        return valid_part

    def check(self) -> ValidPart:
        """Read every batch and check its CRC, up to the first that is corrupt. Never writes.

        If all are valid, `become_active` does not read them again.
        """
        valid_part = self._valid_part()
        if valid_part.corruption is None and self._writer is None:
            self._end = SegmentEnd(valid_part.valid_bytes, valid_part.next_offset)
        return valid_part

    def _valid_part(self, on_batch: OnBatch = lambda _: None) -> ValidPart:
        view = SegmentView(self.path, self.base_offset, self._size_bytes)
        return check_segment(view, self._config.index_interval_bytes, on_batch)

    # -- reading, from any thread

    @property
    def reader(self) -> LogFile:
        """The log, open for reading from first use on. It stays readable after a delete.

        Raises SegmentGoneError when it was deleted before.
        """
        return self._readers.log(self.path)

    def view(self, log_end_offset: int | None = None) -> SegmentView:
        """The segment up to its published end, for all lookups; as part of a log that ends at
        `log_end_offset`, without what is being appended or installed."""
        writer = self._writer
        if writer is None:
            size_bytes, end, largest = self._size_bytes, self._end, self._largest_timestamp
            base = self.base_offset
            if log_end_offset == base and end is not None and end.next_offset > base:
                # It is being installed as a whole, and readers do not see it yet.
                size_bytes, end = 0, SegmentEnd(0, base)
                largest = LargestTimestamp(NO_TIMESTAMP, base)
            view = self._readers.sealed_view(self.path, size_bytes, largest)
            if end is not None and end.position == size_bytes:
                view.end = end  # found later, it might include an append in progress
            return view
        return self._readers.live_view(self.path, writer, writer.state_at(log_end_offset))

    @contextmanager
    def _short_view(self) -> Iterator[SegmentView]:
        """A view for one lookup, closed afterwards: a lookup in a thousand segments leaves no file
        open."""
        view = SegmentView(self.path, self.base_offset, self._size_bytes)
        try:
            yield view
        finally:
            view.release()

    def seek(self, target: int) -> SeekResult:
        """The first batch whose last offset is at or above `target`, up to the published end."""
        writer = self._writer
        if writer is None:
            return self.view().seek(target)
        end = writer.published.position
        position = writer.offset_index.lookup(target).position
        for found_at, batch in self.reader.walk(position, end, offset_min=self.base_offset):
            if batch.last_offset >= target:
                return SeekResult(found_at, batch)
            position = found_at + batch.size_bytes
        return SeekResult(position, None)

    def release(self) -> None:
        """Close what readers have open. The next use opens it again."""
        self._readers.release()

    # -- files

    def release_name(self) -> None:
        """Detach readers from the name before another segment gets it: from then on, all views of
        this segment open its own file or none."""
        self._readers.release_name(self.path)

    def rename(self, state: FileState) -> None:
        """Give all files the suffix of this state. Durable only after `fsync_dir`.

        If it fails halfway, the segment has the name that its log has then: readers can continue.
        """
        for kind, source in [(kind, self.sibling(kind)) for kind in _KINDS]:
            if kind is not FileKind.LOG and not self._disk.exists(source):
                continue
            target = source.with_name(segment_file_name(self.base_offset, kind, state))
            self._disk.rename(source, target)
            if kind is FileKind.LOG:
                self.path = target
                self.release()
        self.release()  # a reader may have missed an index meanwhile
        writer = self._writer
        if writer is not None:
            writer.log.path = self.path
            writer.offset_index.path = self.sibling(FileKind.OFFSET_INDEX)
            writer.time_index.path = self.sibling(FileKind.TIME_INDEX)

    def delete(self) -> None:
        """Remove all files. Readers that have the log open may finish."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.log.close()
        for kind in _KINDS:
            self._disk.unlink(self.sibling(kind), missing_ok=True)
        self.release()
