"""What opening a log for writing truncates and splits, as values, before anything is changed.

`recovery` calls these functions and then acts on the result; `plan_recovery` is the dry run.
Nothing here writes."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import (
    CorruptBatchError,
    CorruptError,
    FlushedCorruptionError,
    LimitExceededError,
    OffsetOverflowError,
    StratalogError,
)
from stratalog.format.batch import BatchHeader
from stratalog.format.index_entries import INTERVAL_BYTES_DEFAULT
from stratalog.format.log_entry import records_of
from stratalog.format.names import FileKind, RootFile, TopicPartition, segment_file_name
from stratalog.format.quantities import counted
from stratalog.format.txn_index import ENTRY_BYTES, check_sanity
from stratalog.log.log_state import IndexSizes
from stratalog.log.partition_listing import list_partition
from stratalog.log.partition_view import identity_of
from stratalog.log.producer_transitions import markers_in
from stratalog.maintenance.interrupted_changes import split_points
from stratalog.storage.index_file import OffsetIndexFile, TimeIndexFile
from stratalog.storage.log_file import read_file
from stratalog.storage.recovery import SegmentSpan, check_segment
from stratalog.storage.segment_view import SegmentView

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from stratalog.config import LogConfig
    from stratalog.storage.recovery import ValidPart
    from stratalog.storage.segment_view import LoadedBatch


class LoadPoint(NamedTuple):
    """What the checkpoints of the log directory say about one log."""

    log_start_offset: int = 0
    recovery_point: int = 0
    was_clean: bool = False
    """The last writer closed the directory cleanly."""
    is_start_checkpointed: bool = False
    """The log start is from the checkpoint. Below the first segment, it is that of a log whose
    older part is in remote storage; a broker needs the epochs of that part."""


class Truncation(NamedTuple):
    """What recovery drops from the end of one log, or from one segment of it."""

    topic_partition: TopicPartition
    path: Path
    """The segment that is truncated, or the first that is deleted."""
    position: int
    """The first byte of it that is dropped."""
    reason: str
    first_offset: int
    """The first offset that is dropped."""
    end_offset: int
    """After the last record that could still be read in what is dropped; `first_offset` if there is
    none."""
    dropped_bytes: int
    deleted_segments: int
    """Segments after the truncated one."""
    readable_batches: int
    """Complete batches with the valid CRC among the dropped bytes."""
    readable_records: int

    def text(self, done: str = "truncated") -> str:
        """One sentence for people."""
        deleted = ""
        if self.deleted_segments:
            deleted = f", {counted(self.deleted_segments, 'later segment')} deleted"
        lost = "no readable record is lost"
        if self.readable_batches:
            lost = (
                f"lost with them: {counted(self.readable_records, 'readable record')} in "
                f"{counted(self.readable_batches, 'batch')}, up to offset {self.end_offset - 1}"
            )
        return (
            f"{self.path}: {done} at byte {self.position}, offset {self.first_offset}: "
            f"{self.reason}; {self.dropped_bytes} bytes dropped{deleted}; {lost}"
        )

    def __str__(self) -> str:
        return self.text()


class SegmentSplit(NamedTuple):
    """A segment that recovery splits, because an index cannot store offsets so far above its base
    offset. Nothing is dropped."""

    topic_partition: TopicPartition
    path: Path
    base_offsets: tuple[int, ...]
    """Base offsets of the segments that take its place."""

    def __str__(self) -> str:
        bases = ", ".join(map(str, self.base_offsets))
        return (
            f"{self.path}: would be split into {counted(len(self.base_offsets), 'segment')}, at "
            f"base offset{'s' * (len(self.base_offsets) != 1)} {bases}: it has offsets that are "
            "too far above its base offset for an index"
        )


class RecoveryPlan(NamedTuple):
    """What opening one log for writing would change of its segments."""

    truncations: tuple[Truncation, ...]
    splits: tuple[SegmentSplit, ...]


class _Readable(NamedTuple):
    batches: int = 0
    records: int = 0
    end_offset: int = 0

    def plus(self, other: _Readable) -> _Readable:
        end_offset = max(self.end_offset, other.end_offset)
        return _Readable(self.batches + other.batches, self.records + other.records, end_offset)


def truncation_of(
    topic_partition: TopicPartition,
    segment: SegmentView,
    valid_part: ValidPart,
    later: Sequence[SegmentView] = (),
) -> Truncation:
    """What is dropped if a segment keeps only its valid bytes and those `later` are deleted."""
    readable = _readable_after(segment, valid_part)
    for view in later:
        readable = readable.plus(_readable_in(view))
    corruption = valid_part.corruption
    return Truncation(
        topic_partition,
        segment.path,
        valid_part.valid_bytes,
        "no complete batch follows" if corruption is None else corruption.reason,
        valid_part.next_offset,
        readable.end_offset if readable.batches else valid_part.next_offset,
        segment.size_bytes - valid_part.valid_bytes + sum(view.size_bytes for view in later),
        len(later),
        readable.batches,
        readable.records,
    )


def truncation_of_all(
    topic_partition: TopicPartition, segments: Sequence[SegmentView], end: int, log_start: int
) -> Truncation:
    """A log that ends below its start is deleted. Readers could not see any of it."""
    reason = f"all of the log is below the log start offset {log_start}"
    size_bytes = sum(segment.size_bytes for segment in segments)
    first = segments[0]
    return Truncation(
        topic_partition, first.path, 0, reason, first.base_offset, end, size_bytes,
        len(segments), 0, 0,
    )  # fmt: skip


def first_unflushed(bases: Sequence[int], point: LoadPoint) -> int:
    """The first segment that is read and checked; all before it count as flushed."""
    if point.was_clean:
        return len(bases)
    return max(0, bisect_right(bases, point.recovery_point) - 1)


def has_sound_indexes(log: Path, base_offset: int, size_bytes: int, names: Collection[str]) -> bool:
    """Whether a flushed segment has an offset index and, if any, a plausible transaction index.
    `names` are the files in the directory."""
    if log.with_suffix(FileKind.OFFSET_INDEX.value).name not in names:
        return size_bytes == 0
    txn_index = log.with_suffix(FileKind.TXN_INDEX.value)
    if txn_index.name not in names:
        return True
    try:
        data = read_file(txn_index)
        check_sanity(data[: len(data) // ENTRY_BYTES * ENTRY_BYTES], base_offset)
    except (StratalogError, FileNotFoundError):
        return False
    return True


def refuse_corruption(
    segment: SegmentView, valid_part: ValidPart, point: LoadPoint, flushed_end: int
) -> None:
    """Raise FlushedCorruptionError if a batch of a log that was closed cleanly is corrupt. Bytes
    that follow all that was flushed, up to `flushed_end`, may still be an interrupted write."""
    corruption = valid_part.corruption
    if corruption is None:
        return
    has_more = segment.end.position > valid_part.valid_bytes
    if not has_more and valid_part.next_offset >= flushed_end:
        return
    raise _flushed_corruption(corruption, segment.path, point, valid_part.next_offset)


def refuse_overflow(segment: SegmentView, error: OffsetOverflowError, point: LoadPoint) -> None:
    """Raise FlushedCorruptionError if a log that was closed cleanly has a batch after its end, too
    far for an index: its base offset, which no CRC covers, is corrupt."""
    if error.offset >= point.recovery_point > 0:
        corruption = CorruptBatchError(f"offset {error.offset}", position=segment.end.position)
        raise _flushed_corruption(corruption, segment.path, point, point.recovery_point)


def _flushed_corruption(
    corruption: CorruptError, path: Path, point: LoadPoint, end: int
) -> FlushedCorruptionError:
    return FlushedCorruptionError(
        f"corrupt ({corruption.reason}), although the log was closed cleanly at offset "
        f"{point.recovery_point}; nothing was changed. Restore the file from a copy or a "
        f"replica, or remove {RootFile.CLEAN_SHUTDOWN.value} from the log directory to have "
        f"the log truncated to offset {end}",
        path=path,
        position=corruption.position,
        offsets=corruption.offsets,
    )


def flushed_end(bases: Sequence[int], base_offset: int, point: LoadPoint) -> int:
    """The offset up to which a segment was flushed when its log was closed cleanly."""
    return min([base for base in bases if base > base_offset] or [point.recovery_point])


def plan_recovery(path: Path, point: LoadPoint) -> RecoveryPlan:
    """What opening the partition for writing would truncate and split. Never writes.

    Raises FlushedCorruptionError where opening would: a cleanly closed log that is corrupt.
    """
    listing = list_partition(path)
    names = {listed.path.name for listed in listing.files}
    return _Planner(identity_of(path)[0], listing.segments, names, point).run()


class _Segment(NamedTuple):
    """A segment as recovery would meet it: a file, or a part of one that it would split."""

    view: SegmentView
    """View of the file."""
    path: Path
    span: SegmentSpan

    @property
    def base_offset(self) -> int:
        return self.span.base_offset

    @property
    def size_bytes(self) -> int:
        return self.span.end - self.span.start

    def up_to(self, end: int) -> SegmentView:
        """The file up to a position, to look for what is readable in it."""
        if end == self.view.size_bytes:
            return self.view
        return SegmentView(self.view.path, self.base_offset, end, self.view.identity)


class _Planner:
    def __init__(
        self,
        topic_partition: TopicPartition,
        segments: Sequence[SegmentView],
        names: Collection[str],
        point: LoadPoint,
    ) -> None:
        self._topic_partition = topic_partition
        self._views = segments
        self._segments = [
            _Segment(view, view.path, SegmentSpan(view.base_offset, 0, view.size_bytes))
            for view in segments
        ]
        self._names = set(names)
        self._point = point
        self._end = segments[-1].base_offset if segments else 0
        self._found: list[Truncation] = []
        self._splits: list[SegmentSplit] = []

    def run(self) -> RecoveryPlan:
        while True:  # as the loader does: from the start again after a split
            self._found = []
            try:
                self._check_all()
                break
            except OffsetOverflowError as error:
                self._split(error.base_offset)
        truncations = tuple(self._found)
        start = self._point.log_start_offset
        if self._views and self._end < start:
            truncations = (truncation_of_all(self._topic_partition, self._views, self._end, start),)
        return RecoveryPlan(truncations, tuple(self._splits))

    @property
    def _bases(self) -> list[int]:
        return [segment.base_offset for segment in self._segments]

    def _check_all(self) -> None:
        unflushed = first_unflushed(self._bases, self._point)
        for segment in self._segments[:unflushed]:
            if not self._is_index_sound(segment):
                self._check(segment, ())
            elif segment is self._segments[-1]:
                self._check_last(segment)
        for slot, segment in enumerate(self._segments[unflushed:], unflushed):
            if not self._check(segment, self._segments[slot + 1 :]):
                break

    def _check_last(self, segment: _Segment) -> None:
        """The last one is read in any case, to be appended to, but not recovered and so not split
        if it is intact."""
        try:
            self._check(segment, ())
        except OffsetOverflowError as error:
            refuse_overflow(segment.view, error, self._point)
            self._end = segment.view.end.next_offset

    def _check(self, segment: _Segment, later: Sequence[_Segment]) -> bool:
        """Whether the segment stays as it is. If not, the truncation is added to the plan."""
        view, span = segment.view, segment.span
        try:
            on_batch = _ignore if self._point.was_clean else _check_marker
            valid_part = check_segment(view, INTERVAL_BYTES_DEFAULT, on_batch, span)
            if self._point.was_clean:
                end = flushed_end(self._bases, segment.base_offset, self._point)
                refuse_corruption(segment.up_to(span.end), valid_part, self._point, end)
            self._end = valid_part.next_offset
            if valid_part.valid_bytes == span.end:
                return True
            self._found.append(self._truncation(segment, valid_part, later))
            return False
        finally:
            view.release()

    def _truncation(
        self, segment: _Segment, valid_part: ValidPart, later: Sequence[_Segment]
    ) -> Truncation:
        views = dict.fromkeys(each.view for each in later)
        is_rest_dropped = segment.view in views  # the parts after it in the same file
        end = segment.view.size_bytes if is_rest_dropped else segment.span.end
        views.pop(segment.view, None)
        found = truncation_of(self._topic_partition, segment.up_to(end), valid_part, list(views))
        return found._replace(
            path=segment.path,
            position=valid_part.valid_bytes - segment.span.start,
            deleted_segments=len(later),
        )

    def _split(self, base_offset: int) -> None:
        slot = self._bases.index(base_offset)
        view = self._segments[slot].view
        try:
            starts = split_points(view.file, base_offset)
        finally:
            view.release()
        ends = [*(position for _, position in starts[1:]), view.size_bytes]
        self._segments[slot : slot + 1] = [
            _Segment(view, _log_path(view.path.parent, base), SegmentSpan(base, start, end))
            for (base, start), end in zip(starts, ends, strict=True)
        ]
        for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX):
            self._names.discard(segment_file_name(base_offset, kind))
        bases = tuple(base for base, _ in starts)
        self._splits.append(SegmentSplit(self._topic_partition, view.path, bases))

    def _is_index_sound(self, segment: _Segment) -> bool:
        log = segment.path
        if not has_sound_indexes(log, segment.base_offset, segment.size_bytes, self._names):
            return False
        if log.with_suffix(FileKind.TIME_INDEX.value).name in self._names:
            return True
        first = segment.view.file.peek(0)
        return first is None or first.magic == 0


class IndexLimits(NamedTuple):
    """What a broker's last segment shows of its `segment.index.bytes`, if that is not configured.

    A broker maps the indexes of earlier segments at their size, but resizes those of the last one
    to the setting, and cannot start if they have more entries than fit.
    """

    sizes: IndexSizes
    """The index sizes that the broker accepts for the last segment."""
    segment_index_bytes: int | None = None
    """The setting, if the files still have the size that they were created with."""


def last_index_limits(path: Path, config: LogConfig, *, was_clean: bool) -> IndexLimits:
    """What the last segment of a partition shows, before it is opened. Never writes.

    After a clean stop its indexes are trimmed: the broker accepts them as they are. Otherwise they
    have the size of the setting, unless that is the size in `config`: then a writer with that
    config may have been killed. Missing or empty indexes show nothing. One entry each is always
    accepted."""
    one_entry = IndexSizes(OffsetIndexFile.entry_bytes, TimeIndexFile.entry_bytes)
    log = max(path.glob("[0-9]" * 20 + FileKind.LOG.value), default=None)
    if log is None:
        return IndexLimits(one_entry)
    files = [log.with_suffix(kind.value) for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)]
    sizes = IndexSizes(*(file.stat().st_size if file.exists() else 0 for file in files))
    if was_clean:
        return IndexLimits(IndexSizes(*map(max, sizes, one_entry)))
    setting = max(sizes)
    is_exact = all(
        0 < size == setting // entry * entry and _ends_empty(file, entry)
        for file, size, entry in zip(files, sizes, one_entry, strict=True)
    )
    if not is_exact or setting == config.segment_index_bytes:
        return IndexLimits(one_entry)
    return IndexLimits(sizes, setting)


def _ends_empty(index: Path, entry_bytes: int) -> bool:
    """Whether the last slot of an index file has no entry."""
    data = read_file(index)[-entry_bytes:]
    return len(data) == entry_bytes and not any(data)


def _log_path(directory: Path, base_offset: int) -> Path:
    return directory / segment_file_name(base_offset, FileKind.LOG)


def _ignore(_: LoadedBatch) -> None:
    pass


def _check_marker(batch: LoadedBatch) -> None:
    """Recovery reads markers, and truncates the log after one that is not readable."""
    if isinstance(batch.header, BatchHeader):
        markers_in(batch.buf, [(batch.entry.position, batch.header)])


def _readable_after(segment: SegmentView, valid_part: ValidPart) -> _Readable:
    """The valid batches after the first corrupt one."""
    position, offset_min = valid_part.valid_bytes, valid_part.next_offset
    found = segment.file.peek(position)
    if found is not None and found.base_offset <= offset_min and segment.is_valid(position):
        # Intact: its offset, or that of the batch before it, is wrong; or the marker before it.
        return _readable_from(segment, position, found.base_offset)
    # The end that the corrupt batch declares is tried first: a search byte by byte could take a
    # batch that is stored in the value of a record for one of the log.
    declared = position + found.size_bytes if found is not None and found.size_bytes > 0 else -1
    start = declared if position < declared < segment.size_bytes else position + 1
    return _readable_from(segment, start, offset_min)


def _readable_in(segment: SegmentView) -> _Readable:
    try:
        return _readable_from(segment, 0, segment.base_offset)
    finally:
        segment.release()


_RESYNC_FAILS: Final = (LimitExceededError, OSError)


def _readable_from(segment: SegmentView, start: int, offset_min: int) -> _Readable:
    counted = _Readable()
    position: int | None = start
    try:
        if not segment.is_valid(start):
            position = segment.next_valid_batch(start, offset_min=offset_min)
        while position is not None:
            try:
                for batch in segment.batches(
                    position, segment.size_bytes, expected_offset=offset_min
                ):
                    position = batch.position + batch.entry.size_bytes
                    offset_min = batch.header.next_offset
                    counted = counted.plus(_Readable(1, _records_in(batch), offset_min))
                break
            except CorruptError:
                position = segment.next_valid_batch(position + 1, offset_min=offset_min)
    except _RESYNC_FAILS:
        return counted  # an incomplete count
    return counted


def _records_in(batch: LoadedBatch) -> int:
    """Transaction markers are not counted: readers never see them."""
    header = batch.header
    if isinstance(header, BatchHeader):
        return 0 if header.is_control else header.record_count
    try:
        return sum(1 for _ in records_of(batch.buf, batch.entry, check_crc=False))
    except StratalogError:
        return 0
