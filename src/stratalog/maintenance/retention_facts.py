"""What retention looks at: a log and its segments as they are, as values.

The largest timestamp of a segment is what counts; the time at which its file was written stands in
where no record has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import CorruptError
from stratalog.format.batch import NO_TIMESTAMP
from stratalog.storage.segment_view import SegmentView

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stratalog.format.names import TopicPartition
    from stratalog.log.partition_log import PartitionLog
    from stratalog.log.partition_view import PartitionView
    from stratalog.storage.segment import Segment
    from stratalog.storage.segment_times import LargestTimestamp

_MS_NS: Final = 1_000_000


class SegmentFacts(NamedTuple):
    """What retention asks of a segment."""

    path: Path
    base_offset: int
    end_offset: int
    """Exclusive: where the next segment begins, or the log ends."""
    size_bytes: int
    largest_timestamp: int
    """Of its records; -1 if none has one."""
    timestamp_offset: int
    """The last offset of the batch that has it. If it lies in the future: of the record itself."""
    mtime_ms: int
    """Of the file, where no record has a timestamp; else -1, for nobody asks."""
    is_active: bool

    @property
    def uses_mtime(self) -> bool:
        """Its age is the file's: no record has a timestamp."""
        return self.largest_timestamp < 0

    @property
    def newest_ms(self) -> int:
        """What its age is counted from."""
        return self.mtime_ms if self.uses_mtime else self.largest_timestamp


class LogFacts(NamedTuple):
    """What retention asks of a log."""

    topic_partition: TopicPartition
    path: Path
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    segments: tuple[SegmentFacts, ...]
    """In offset order, at least one; the last is active."""


class _Seen(NamedTuple):
    """A segment, and what its writer or a reader knows of it."""

    segment: Segment | SegmentView
    largest: LargestTimestamp
    size_bytes: int


def facts_of_log(log: PartitionLog, now_ms: int) -> LogFacts:
    """Of a log that is being written."""
    with log.changing():
        end_offset, segments = log.log_end_offset, log.writable_segments
    seen = [_Seen(segment, segment.largest_timestamp, segment.size_bytes) for segment in segments]
    return _facts_of(log, seen, end_offset, now_ms)


def facts_of_view(view: PartitionView, now_ms: int) -> LogFacts:
    """Of a partition that is only read: the facts that a writer would find on opening it."""
    return view.looking_again(lambda: _facts_of_view(view, now_ms))


def _facts_of_view(view: PartitionView, now_ms: int) -> LogFacts:
    end_offset, segments = view.log_end_offset, view.segments
    seen = [
        _Seen(segment, segments.largest_timestamp(slot), segment.size_bytes)
        for slot, segment in enumerate(segments)
    ]
    seen[-1] = seen[-1]._replace(size_bytes=segments.end.position)
    return _facts_of(view, seen, end_offset, now_ms)


def _facts_of(
    log: PartitionLog | PartitionView, seen: Sequence[_Seen], end_offset: int, now_ms: int
) -> LogFacts:
    bounds = [*(after.segment.base_offset for after in seen[1:]), end_offset]
    segments = [_facts_of_segment(*pair, now_ms) for pair in zip(seen, bounds, strict=True)]
    segments[-1] = segments[-1]._replace(is_active=True)
    return LogFacts(
        topic_partition=log.topic_partition,
        path=log.path,
        log_start_offset=log.log_start_offset,
        high_watermark=log.high_watermark,
        log_end_offset=end_offset,
        segments=tuple(segments),
    )


def _facts_of_segment(seen: _Seen, end_offset: int, now_ms: int) -> SegmentFacts:
    segment, largest = seen.segment, seen.largest
    if largest.timestamp > now_ms:
        largest = _exactly(segment, largest)
    return SegmentFacts(
        path=segment.path,
        base_offset=segment.base_offset,
        end_offset=end_offset,
        size_bytes=seen.size_bytes,
        largest_timestamp=largest.timestamp,
        timestamp_offset=largest.offset,
        mtime_ms=_mtime_ms(segment.path, largest),
        is_active=False,
    )


def _exactly(segment: Segment | SegmentView, largest: LargestTimestamp) -> LargestTimestamp:
    """With the offset of the very record: somebody will want to look at it."""
    view = segment if isinstance(segment, SegmentView) else segment.view()
    try:
        hit = view.times.find(largest.timestamp, view.base_offset)
    except CorruptError:
        return largest
    return largest if hit is None else largest._replace(offset=hit.offset)


def _mtime_ms(path: Path, largest: LargestTimestamp) -> int:
    if largest.timestamp >= 0:
        return NO_TIMESTAMP
    try:
        return path.stat().st_mtime_ns // _MS_NS
    except FileNotFoundError:
        return NO_TIMESTAMP  # it goes while we look; whoever acts on this looks again
