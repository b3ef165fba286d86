"""Planning a cleaning pass: which part of a compacted log may be cleaned now, and whether to.

A log is clean up to the cleaner's checkpoint and dirty from there on. A pass cleans from the first
dirty offset up to a bound: never the active segment, the segment where an open transaction begins,
or one that is younger than `min.compaction.lag.ms`. It is worth its cost if the dirty part is large
enough (`min.cleanable.dirty.ratio`) or old enough (`max.compaction.lag.ms`).

`plan_cleaning` is a pure function of a log's state (`cleaner_log`), settings and clock, and says
why."""

from __future__ import annotations

import enum
import math
import time
from bisect import bisect_right
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from stratalog.config.topic import CleanupPolicy
from stratalog.errors import CleaningAbortedError, CorruptError, SegmentGoneError
from stratalog.format.batch import NO_TIMESTAMP
from stratalog.format.index_search import RELATIVE_OFFSET_MAX
from stratalog.format.names import FileKind
from stratalog.format.times import NS_PER_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from stratalog.config import LogConfig
    from stratalog.format.names import TopicPartition
    from stratalog.log.partition_log import PartitionLog
    from stratalog.log.partition_view import PartitionView
    from stratalog.log.segment_list import SegmentList


@dataclass(frozen=True, slots=True)
class CleanerSegment:
    """What cleaning needs to know about one segment."""

    base_offset: int
    size_bytes: int
    offset_index_bytes: int
    time_index_bytes: int
    mtime_ms: int
    is_active: bool
    largest_timestamp: int = NO_TIMESTAMP
    """A dirty, sealed segment's; its mtime if no record has a timestamp. -1 for others, where
    it does not matter."""
    first_batch_timestamp: int = NO_TIMESTAMP
    """Max timestamp of the first batch of a dirty, sealed segment; -1 if it has none."""


@dataclass(frozen=True, slots=True)
class CleanerLog:
    """What cleaning needs to know about a log."""

    topic_partition: TopicPartition
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    high_watermark: int
    segments: tuple[CleanerSegment, ...]
    """All of them in offset order; the last one is the active one."""
    checkpoint: int | None
    """First dirty offset after the last pass; None before the first pass."""


def cleaner_log(log: PartitionLog | PartitionView, checkpoint: int | None) -> CleanerLog:
    """The log as it is now. Timestamps are read for dirty segments only: that costs I/O."""
    return log.retry_if_gone(lambda: _read_log(log, checkpoint))


def _read_log(log: PartitionLog | PartitionView, checkpoint: int | None) -> CleanerLog:
    segments, start, end = log.segments, log.log_start_offset, log.log_end_offset
    first_dirty_offset, _ = dirty_start(start, end, checkpoint)
    dirty_from = segments.slot_of(first_dirty_offset)
    last = len(segments) - 1
    return CleanerLog(
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
) -> CleanerSegment:
    view = segments[slot]
    try:
        mtime_ms = view.path.stat().st_mtime_ns // NS_PER_MS
    except FileNotFoundError:
        raise SegmentGoneError(view.path) from None
    largest = first = NO_TIMESTAMP
    if is_timed:
        largest = view.times.largest.timestamp
        largest = mtime_ms if largest < 0 else largest
        batch = view.file.peek(0) if view.size_bytes else None
        first = NO_TIMESTAMP if batch is None else batch.max_timestamp
    return CleanerSegment(
        base_offset=view.base_offset,
        size_bytes=view.size_bytes,
        offset_index_bytes=_size_of(view.sibling(FileKind.OFFSET_INDEX)),
        time_index_bytes=_size_of(view.sibling(FileKind.TIME_INDEX)),
        mtime_ms=mtime_ms,
        is_active=is_active,
        largest_timestamp=largest,
        first_batch_timestamp=first,
    )


def _size_of(path: Path) -> int:
    """0 without a file: a missing index is rebuilt when it is needed."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


class CheckpointReset(enum.StrEnum):
    """Why a checkpointed offset is ignored."""

    BELOW_LOG_START = "below the log start offset"
    BEYOND_LOG_END = "beyond the log end offset"


def dirty_start(
    log_start_offset: int, log_end_offset: int, checkpoint: int | None
) -> tuple[int, CheckpointReset | None]:
    """The first dirty offset. A checkpoint outside the log means that the log was truncated: then
    all of it is dirty."""
    if checkpoint is None:
        return log_start_offset, None
    if checkpoint < log_start_offset:
        return log_start_offset, CheckpointReset.BELOW_LOG_START
    if checkpoint > log_end_offset:
        return log_start_offset, CheckpointReset.BEYOND_LOG_END
    return checkpoint, None


# Which segments a pass merges, and how long legacy tombstones are kept. Every segment below the end
# of the offset map is rewritten, the clean head included. Adjacent segments become one if it is
# certain to stay within the topic's limits: sizes are those before cleaning.

NO_LEGACY_HORIZON_MS: Final = 0


def group_segments(
    segments: Sequence[CleanerSegment], end_offset: int, bound: int, config: LogConfig
) -> list[tuple[CleanerSegment, ...]]:
    """Groups of the sealed segments that begin below `end_offset`, in order, as large as possible.

    `bound` is the first uncleanable offset: all records of the last segment are below it.
    """
    chosen = [s for s in segments if s.base_offset < end_offset and not s.is_active]
    groups: list[_Group] = []
    for slot, segment in enumerate(chosen):
        next_base = chosen[slot + 1].base_offset if slot + 1 < len(chosen) else bound
        if groups and groups[-1].has_room_for(segment, next_base - 1, config):
            groups[-1].add(segment)
        else:
            groups.append(_Group(segment))
    return [tuple(group.segments) for group in groups]


class _Group:
    """Segments that are merged into one, with running sums: a log may have many small ones."""

    def __init__(self, first: CleanerSegment) -> None:
        self.segments: list[CleanerSegment] = []
        self._size_bytes = self._offset_index_bytes = self._time_index_bytes = 0
        self.add(first)

    def add(self, segment: CleanerSegment) -> None:
        self.segments.append(segment)
        self._size_bytes += segment.size_bytes
        self._offset_index_bytes += segment.offset_index_bytes
        self._time_index_bytes += segment.time_index_bytes

    def has_room_for(self, segment: CleanerSegment, last_offset: int, config: LogConfig) -> bool:
        if self._size_bytes + segment.size_bytes > config.segment_bytes:
            return False
        index_bytes_max = config.segment_index_bytes
        if self._offset_index_bytes + segment.offset_index_bytes > index_bytes_max:
            return False
        if self._time_index_bytes + segment.time_index_bytes > index_bytes_max:
            return False
        # An empty segment has no offsets; otherwise one would remain for every 2^31 offsets.
        span = last_offset - self.segments[0].base_offset
        return not segment.size_bytes or span <= RELATIVE_OFFSET_MAX


def legacy_delete_horizon_ms(
    segments: Sequence[CleanerSegment], first_dirty_offset: int, delete_retention_ms: int
) -> int:
    """Tombstones of magic 0 and 1 are kept in segments whose mtime is above this.

    Their batches cannot store a delete horizon, so the age of the newest clean segment is used: its
    tombstones have been through a pass since it was written.
    """
    clean = [s.mtime_ms for s in segments if s.base_offset < first_dirty_offset]
    return clean[-1] - delete_retention_ms if clean else NO_LEGACY_HORIZON_MS


# -- the plan


class BoundKind(enum.StrEnum):
    """What ends the part of a log that may be cleaned."""

    ACTIVE_SEGMENT = "active segment"
    OPEN_TRANSACTION = "open transaction"
    HIGH_WATERMARK = "high watermark"
    MIN_LAG = "min.compaction.lag.ms"


@dataclass(frozen=True, slots=True)
class CleaningBound:
    """Where the part of a log ends that may be cleaned, and why."""

    kind: BoundKind
    raw_offset: int
    """Records at or above it must not be cleaned."""
    offset: int
    """Base offset of the segment with `raw_offset`: only complete segments are cleaned."""
    timestamp: int | None = None
    """With MIN_LAG: the largest timestamp of the segment that is too young."""
    cleanable_from_ms: int | None = None
    """With MIN_LAG: when that segment is old enough."""

    def __str__(self) -> str:
        where = f"offset {self.offset}"
        match self.kind:
            case BoundKind.ACTIVE_SEGMENT:
                return f"{where}: the active segment is never cleaned"
            case BoundKind.OPEN_TRANSACTION:
                return (
                    f"{where}: a transaction that began at {self.raw_offset} is open, so its "
                    "segment and later ones are not cleaned yet"
                )
            case BoundKind.HIGH_WATERMARK:
                return f"{where}: records from {self.raw_offset} on are not replicated yet"
            case BoundKind.MIN_LAG:
                return (
                    f"{where}: a record of the segment there has timestamp {self.timestamp}, "
                    f"too young for min.compaction.lag.ms until {self.cleanable_from_ms}"
                )


@dataclass(frozen=True, slots=True)
class CleaningPlan:
    """The range that a pass would clean, and whether the log is eligible for one."""

    topic_partition: TopicPartition
    now_ms: int
    first_dirty_offset: int
    checkpoint_reset: CheckpointReset | None
    """If set, the checkpoint must be overwritten with `first_dirty_offset`."""
    bound: CleaningBound
    clean_bytes: int
    """Size of the segments that begin below the first dirty offset."""
    cleanable_bytes: int
    """Size of those between the first dirty offset and the bound. A segment that the first dirty
    offset lies inside counts on both sides."""
    max_lag_exceeded_ms: int
    """How much older than `max.compaction.lag.ms` the oldest dirty segment is; or 0."""
    is_selected: bool
    reasons: tuple[str, ...]
    segments: tuple[CleanerSegment, ...]
    """All segments below the bound: those that a pass may rewrite."""

    @property
    def first_uncleanable_offset(self) -> int:
        return self.bound.offset

    @property
    def total_bytes(self) -> int:
        return self.clean_bytes + self.cleanable_bytes

    @property
    def ratio(self) -> float:
        """Kafka's dirty ratio: the cleanable part of all bytes below the bound; 0 if there are
        none."""
        return self.cleanable_bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def dirty_segments(self) -> tuple[CleanerSegment, ...]:
        """The segments from which the offset map is built."""
        return _between(self.segments, self.first_dirty_offset, self.bound.offset)


def plan_cleaning(log: CleanerLog, config: LogConfig, now_ms: int) -> CleaningPlan:
    """The range to clean at `now_ms`, and whether to clean it."""
    segments = log.segments
    first_dirty, reset = dirty_start(log.log_start_offset, log.log_end_offset, log.checkpoint)
    waiting = _between(segments, first_dirty, segments[-1].base_offset)
    bound = _bound(log, config, first_dirty, waiting, now_ms)
    clean_bytes = sum(s.size_bytes for s in segments if s.base_offset < first_dirty)
    cleanable = _between(segments, min(first_dirty, bound.offset), bound.offset)
    cleanable_bytes = sum(segment.size_bytes for segment in cleanable)
    exceeded_ms = _max_lag_exceeded_ms(waiting, config, now_ms)
    is_selected, reasons = _eligibility(clean_bytes, cleanable_bytes, exceeded_ms, config)
    return CleaningPlan(
        topic_partition=log.topic_partition,
        now_ms=now_ms,
        first_dirty_offset=first_dirty,
        checkpoint_reset=reset,
        bound=bound,
        clean_bytes=clean_bytes,
        cleanable_bytes=cleanable_bytes,
        max_lag_exceeded_ms=exceeded_ms,
        is_selected=is_selected,
        reasons=reasons,
        segments=tuple(s for s in segments if s.base_offset < bound.offset),
    )


def _between(
    segments: Sequence[CleanerSegment], start_offset: int, end_offset: int
) -> tuple[CleanerSegment, ...]:
    """The segment that holds `start_offset` and those after it that begin below `end_offset`."""
    if start_offset >= end_offset:
        return ()
    bases = [segment.base_offset for segment in segments]
    first = max(0, bisect_right(bases, start_offset) - 1)
    return tuple(s for s in segments[first:] if s.base_offset < end_offset)


def _bound(
    log: CleanerLog,
    config: LogConfig,
    first_dirty: int,
    waiting: Sequence[CleanerSegment],
    now_ms: int,
) -> CleaningBound:
    """The lowest of three limits. A young segment also holds back older ones after it."""
    limit, kind = log.segments[-1].base_offset, BoundKind.ACTIVE_SEGMENT
    if log.last_stable_offset < limit:
        is_open = log.last_stable_offset < log.high_watermark
        kind = BoundKind.OPEN_TRANSACTION if is_open else BoundKind.HIGH_WATERMARK
        limit = log.last_stable_offset
    young = _first_too_young(waiting, config.min_compaction_lag_ms, now_ms)
    if young is not None and young.base_offset < limit:
        kind, limit = BoundKind.MIN_LAG, young.base_offset
    raw = max(first_dirty, limit)
    timestamp = cleanable_from = None
    if young is not None and kind is BoundKind.MIN_LAG:
        timestamp = young.largest_timestamp
        cleanable_from = timestamp + config.min_compaction_lag_ms
    return CleaningBound(kind, raw, _base_of_holder(log.segments, raw), timestamp, cleanable_from)


def _first_too_young(
    waiting: Sequence[CleanerSegment], min_lag_ms: int, now_ms: int
) -> CleanerSegment | None:
    if min_lag_ms <= 0:
        return None
    return next((s for s in waiting if s.largest_timestamp > now_ms - min_lag_ms), None)


def _base_of_holder(segments: Sequence[CleanerSegment], offset: int) -> int:
    bases = [segment.base_offset for segment in segments]
    return bases[max(0, bisect_right(bases, offset) - 1)]


NO_DELAY: Final = 0


def _max_lag_exceeded_ms(waiting: Sequence[CleanerSegment], config: LogConfig, now_ms: int) -> int:
    """By how much the oldest first batch exceeds the lag. All dirty sealed segments count, also
    those above the bound."""
    started = [s.first_batch_timestamp for s in waiting if s.first_batch_timestamp > 0]
    if not started:
        return NO_DELAY
    return max(NO_DELAY, now_ms - config.max_compaction_lag_ms - min(started))


def _eligibility(
    clean_bytes: int, cleanable_bytes: int, exceeded_ms: int, config: LogConfig
) -> tuple[bool, tuple[str, ...]]:
    if CleanupPolicy.COMPACT not in config.cleanup_policy:
        policy = ",".join(sorted(config.cleanup_policy))
        return False, (f"cleanup.policy is {policy}, so the log is not compacted",)
    if not cleanable_bytes:
        return False, ("nothing between the first dirty offset and the bound can be cleaned",)
    ratio = cleanable_bytes / (clean_bytes + cleanable_bytes)
    least = config.min_cleanable_dirty_ratio
    is_dirty = ratio > least
    compared = "above" if is_dirty else "not above"
    reasons = [f"dirty ratio {ratio:.3g} is {compared} min.cleanable.dirty.ratio {least:g}"]
    if exceeded_ms > NO_DELAY:
        reasons.append(
            f"a dirty segment has waited {exceeded_ms} ms longer than max.compaction.lag.ms "
            f"{config.max_compaction_lag_ms}"
        )
    elif not is_dirty and least < 1:
        missing = int(least * clean_bytes / (1 - least)) - cleanable_bytes + 1
        reasons.append(f"{missing} more dirty bytes would make the log eligible")
    return is_dirty or exceeded_ms > NO_DELAY, tuple(reasons)


# -- throttling

_NAP_S: Final = 0.1


class Throttle:
    """Limits how fast a cleaner reads: `log.cleaner.io.max.bytes.per.second`."""

    def __init__(
        self,
        bytes_per_second: float = math.inf,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self._free_at = clock()

    def pay(self, size_bytes: int, may_continue: Callable[[], bool]) -> None:
        """Wait until `size_bytes` more are within the rate, or until `may_continue` returns False.

        Idle time is not credited.
        """
        self._free_at = max(self._free_at, self._clock()) + size_bytes / self._rate
        while may_continue() and (left_s := self._free_at - self._clock()) > 0:
            self._sleep(min(left_s, _NAP_S))


# -- the result, and who cleans


@dataclass(frozen=True, slots=True)
class CleaningResult:
    """What a cleaning pass did."""

    first_dirty_offset: int
    end_offset: int
    """The first dirty offset from now on: what the cleaner's checkpoint gets."""
    first_uncleanable_offset: int
    groups: tuple[tuple[int, ...], ...]
    """Base offsets of the segments that were merged, group by group."""
    map_entries: int
    is_map_full: bool
    """There were more keys than fit the memory: the log is eligible for another pass at once."""
    bytes_read: int
    """Size of the segments that were rewritten."""
    bytes_written: int
    records_read: int
    records_kept: int
    records_without_key: int
    """Dropped: a compacted log cannot have them."""
    seconds: float


class RecordCounts(NamedTuple):
    """What became of the records that were read."""

    read: int = 0
    kept: int = 0
    without_key: int = 0
    """Dropped: a compacted log cannot have them."""


class PassControl(NamedTuple):
    """Observes the progress of a cleaning pass, and may stop it."""

    on_progress: Callable[[int], None] = lambda _: None
    """Called with bytes as they are read."""
    may_continue: Callable[[], bool] = lambda: True

    def step(self, path: Path, bytes_done: int) -> None:
        """Report progress. Raises CleaningAbortedError if the pass is to stop."""
        if not self.may_continue():
            raise CleaningAbortedError(path, "stop was requested")
        self.on_progress(bytes_done)


UNCONTROLLED: Final = PassControl()


class LogCleaner(Protocol):
    """Cleans a log, in this process or in a cluster."""

    def clean(
        self, log: PartitionLog, plan: CleaningPlan, control: PassControl = UNCONTROLLED
    ) -> CleaningResult:
        """See `Cleaner.clean`."""
        ...


@contextmanager
def abort_if_truncated(log: PartitionLog, truncation_epoch: int) -> Iterator[None]:
    """Abort the pass instead of reporting corruption that a concurrent truncation explains."""
    try:
        yield
    except (CorruptError, SegmentGoneError) as error:
        if isinstance(error, SegmentGoneError) or log.truncated_since(truncation_epoch):
            raise CleaningAbortedError(log.path, "the log was truncated meanwhile") from error
        raise
