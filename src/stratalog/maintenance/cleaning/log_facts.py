"""What cleaning looks at: a log, its segments and the cleaner's checkpoint, as values."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stratalog.errors import SegmentGoneError
from stratalog.format.batch import NO_TIMESTAMP
from stratalog.format.names import FileKind

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.format.names import TopicPartition
    from stratalog.log.partition_log import PartitionLog
    from stratalog.log.partition_view import PartitionView
    from stratalog.log.segments import SegmentList

_MS_NS: Final = 1_000_000


class CheckpointReset(enum.StrEnum):
    """Why a checkpointed offset does not count."""

    BELOW_LOG_START = "below the log start offset"
    BEYOND_LOG_END = "beyond the log end offset"


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What cleaning asks of one segment."""

    base_offset: int
    size_bytes: int
    offset_index_bytes: int
    time_index_bytes: int
    mtime_ms: int
    is_active: bool
    largest_timestamp: int = NO_TIMESTAMP
    """Of a dirty, sealed segment; its mtime when no record has a timestamp. -1 for the others,
    where it decides nothing."""
    first_batch_timestamp: int = NO_TIMESTAMP
    """Of a dirty, sealed segment: the max timestamp of its first batch; -1 when it has none."""


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What cleaning asks of one log at one moment."""

    topic_partition: TopicPartition
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    high_watermark: int
    segments: tuple[SegmentFacts, ...]
    """All of them in offset order; the last one is the active one."""
    checkpoint: int | None
    """First dirty offset as the last round left it; None before the first round."""


def facts_of(log: PartitionLog | PartitionView, checkpoint: int | None) -> LogFacts:
    """The log as it is now. Looks at the times of dirty segments only: reading them costs I/O."""
    return log.looking_again(lambda: _look(log, checkpoint))


def _look(log: PartitionLog | PartitionView, checkpoint: int | None) -> LogFacts:
    segments, start, end = log.segments, log.log_start_offset, log.log_end_offset
    first_dirty_offset, _ = dirty_start(start, end, checkpoint)
    dirty_from = segments.slot_of(first_dirty_offset)
    last = len(segments) - 1
    return LogFacts(
        topic_partition=log.topic_partition,
        log_start_offset=start,
        log_end_offset=end,
        last_stable_offset=log.last_stable_offset,
        high_watermark=log.high_watermark,
        segments=tuple(
            _segment_facts(
                segments, slot, is_active=slot == last, is_timed=dirty_from <= slot < last
            )
            for slot in range(len(segments))
        ),
        checkpoint=checkpoint,
    )


def _segment_facts(
    segments: SegmentList, slot: int, *, is_active: bool, is_timed: bool
) -> SegmentFacts:
    view = segments[slot]
    try:
        mtime_ms = view.path.stat().st_mtime_ns // _MS_NS
    except FileNotFoundError:
        raise SegmentGoneError(view.path) from None
    largest = first = NO_TIMESTAMP
    if is_timed:
        largest = view.times.largest.timestamp
        largest = mtime_ms if largest < 0 else largest
        batch = view.file.peek(0) if view.size_bytes else None
        first = NO_TIMESTAMP if batch is None else batch.max_timestamp
    return SegmentFacts(
        base_offset=view.base_offset,
        size_bytes=view.size_bytes,
        offset_index_bytes=_size_of(view.sibling(FileKind.OFFSET_INDEX.value)),
        time_index_bytes=_size_of(view.sibling(FileKind.TIME_INDEX.value)),
        mtime_ms=mtime_ms,
        is_active=is_active,
        largest_timestamp=largest,
        first_batch_timestamp=first,
    )


def _size_of(path: Path) -> int:
    """0 without a file: an index may be missing, and is made anew when it is needed."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def dirty_start(
    log_start_offset: int, log_end_offset: int, checkpoint: int | None
) -> tuple[int, CheckpointReset | None]:
    """The first dirty offset. A checkpoint outside the log means that the log was cut: then all of
    it counts as dirty."""
    if checkpoint is None:
        return log_start_offset, None
    if checkpoint < log_start_offset:
        return log_start_offset, CheckpointReset.BELOW_LOG_START
    if checkpoint > log_end_offset:
        return log_start_offset, CheckpointReset.BEYOND_LOG_END
    return checkpoint, None
