"""How a log would look under other settings: its own batches, replayed without writing.

Each batch is taken as one append, in its own order and at its own time: the largest timestamp so
far is the clock. `Replay` asks `roll_reason` before a roll, as an append does. What retention
deletes in the course of time, and what compaction would do now, come from the plans that retention
and the cleaner make, for segments that exist in memory only.

The jitter of `segment.ms` is random; half of `segment.jitter.ms` is taken, its mean.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from stratalog.format import offset_index, time_index
from stratalog.format.batch import NO_TIMESTAMP
from stratalog.format.index_search import RELATIVE_OFFSET_MAX
from stratalog.format.kernels import simulation as kernel
from stratalog.format.names import FileKind, segment_file_name
from stratalog.maintenance.cleaning.plan import (
    CleanerLog,
    CleanerSegment,
    group_segments,
    plan_cleaning,
)
from stratalog.maintenance.retention import RetentionLog, RetentionSegment, plan_retention
from stratalog.storage.index_file import OffsetIndexFile, TimeIndexFile
from stratalog.storage.roll import (
    ActiveSegment,
    IncomingAppend,
    RollLimits,
    RollReason,
    roll_reason,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from stratalog.config import LogConfig
    from stratalog.format.names import TopicPartition


class SimulatedSegment(NamedTuple):
    """A segment that would be written."""

    base_offset: int
    end_offset: int
    size_bytes: int
    batches: int
    records: int
    offset_entries: int
    time_entries: int
    """Entries of the time index, including the one that is added when the segment is complete."""
    first_timestamp: int
    """Timestamp of its first batch, at which its roll clock starts."""
    min_timestamp: int
    largest_timestamp: int
    mean_timestamp: float
    """Mean timestamp of its records; -1 if none has a timestamp."""
    started_ms: int
    """When its first and its last batch are appended: the largest timestamp by then."""
    ended_ms: int
    rolled_by: RollReason | None
    """Why the next segment begins; None for the active one."""

    @property
    def index_bytes(self) -> int:
        """Both indexes, trimmed."""
        return (
            self.offset_entries * offset_index.ENTRY_BYTES
            + self.time_entries * time_index.ENTRY_BYTES
        )


class Distribution(NamedTuple):
    """A histogram of records, with buckets of about one percent."""

    total: float = 0.0
    """The exact sum."""
    buckets: tuple[tuple[int, int], ...] = ()
    """Number and count of each bucket that has any, in order."""

    @property
    def records(self) -> int:
        return sum(count for _, count in self.buckets)

    @property
    def mean(self) -> float:
        return self.total / self.records if self.buckets else 0.0

    @property
    def p99(self) -> int:
        """What 99 of 100 records do not exceed."""
        seen, wanted = 0, 0.99 * self.records
        for bucket, count in self.buckets:
            seen += count
            if seen >= wanted:
                return kernel.bucket_value(bucket)
        return 0

    @property
    def largest(self) -> int:
        return kernel.bucket_value(self.buckets[-1][0]) if self.buckets else 0

    def plus(self, other: Distribution) -> Distribution:
        counts = Counter(dict(self.buckets))
        counts.update(dict(other.buckets))
        return Distribution(self.total + other.total, tuple(sorted(counts.items())))


TIMELINE_POINTS: Final = 60
_TIMELINE_STEPS_MAX: Final = 400_000
"""Limit of points times segments: a plan reads every remaining segment."""


class DiskPoint(NamedTuple):
    """Size of the `.log` files at one time."""

    time_ms: int
    size_bytes: int


class Compaction(NamedTuple):
    """What a cleaning pass would find now."""

    is_eligible: bool
    reasons: tuple[str, ...]
    dirty_ratio: float
    cleanable_bytes: int
    segments_before: int
    segments_after: int


class RetentionEffect(NamedTuple):
    """What retention does now, and how long records outlive their limit."""

    deleted_segments: int
    deleted_bytes: int
    lag_mean_ms: int
    """How much longer than `retention.ms` records stay, because a segment goes as a whole."""
    lag_max_ms: int
    records: int
    """The number of records that the mean is over."""

    def plus(self, other: RetentionEffect) -> RetentionEffect:
        records = self.records + other.records
        weighted = self.lag_mean_ms * self.records + other.lag_mean_ms * other.records
        return RetentionEffect(
            self.deleted_segments + other.deleted_segments,
            self.deleted_bytes + other.deleted_bytes,
            weighted // records if records else 0,
            max(self.lag_max_ms, other.lag_max_ms),
            records,
        )


@dataclass(frozen=True)
class _Simulated:
    """What a config does to one log, or to all logs of a topic."""

    config: LogConfig
    scanned: Distribution
    """Bytes from where the offset index leads to the batch, over all records."""
    time_error: Distribution
    """Milliseconds from the entry of the time index to the batch, over records in order of time."""
    retention: RetentionEffect
    disk: tuple[DiskPoint, ...]


@dataclass(frozen=True)
class SimulatedLog(_Simulated):
    """One log under one config."""

    segments: tuple[SimulatedSegment, ...]
    compaction: Compaction | None
    """None unless `cleanup.policy` has compact."""


@dataclass(frozen=True)
class SimulatedTopic(_Simulated):
    """Several logs under one config."""

    partitions: int
    segments: int
    size_bytes: int
    offset_entries: int
    time_entries: int
    index_bytes: int
    rolls: Counter[RollReason]
    compactions: tuple[Compaction, ...]

    @property
    def peak_bytes(self) -> int:
        return max((point.size_bytes for point in self.disk), default=self.size_bytes)


def sum_of_logs(logs: Sequence[SimulatedLog]) -> SimulatedTopic:
    """The logs of a topic taken together; at least one."""
    segments = [segment for log in logs for segment in log.segments]
    return SimulatedTopic(
        logs[0].config,
        functools.reduce(Distribution.plus, (log.scanned for log in logs)),
        functools.reduce(Distribution.plus, (log.time_error for log in logs)),
        functools.reduce(RetentionEffect.plus, (log.retention for log in logs)),
        _sum_of_disk([log.disk for log in logs if log.disk]),
        len(logs),
        len(segments),
        sum(segment.size_bytes for segment in segments),
        sum(segment.offset_entries for segment in segments),
        sum(segment.time_entries for segment in segments),
        sum(segment.index_bytes for segment in segments),
        Counter(each.rolled_by for each in segments if each.rolled_by is not None),
        tuple(log.compaction for log in logs if log.compaction is not None),
    )


def _sum_of_disk(lines: Sequence[tuple[DiskPoint, ...]]) -> tuple[DiskPoint, ...]:
    if len(lines) <= 1:
        return lines[0] if lines else ()
    start = min(line[0].time_ms for line in lines)
    end = max(line[-1].time_ms for line in lines)
    times = np.linspace(start, end, TIMELINE_POINTS)
    sizes = np.zeros(TIMELINE_POINTS)
    for line in lines:
        known, values = zip(*line, strict=True)
        sizes += np.interp(times, known, values, left=0)
    pairs = zip(times.tolist(), sizes.tolist(), strict=True)
    return tuple(DiskPoint(round(time_ms), round(size)) for time_ms, size in pairs)


class LogSummary(NamedTuple):
    """Facts that a simulation needs about a log, besides its batches."""

    topic_partition: TopicPartition
    path: Path
    log_start_offset: int
    last_stable_offset: int
    cleaner_offset: int | None
    now_ms: int


# -- rolling and indexing


class Replay:
    """Lays out the batches of one log under one config, as they are added."""

    def __init__(self, config: LogConfig, base_offset: int) -> None:
        self._config = config
        jitter_ms = config.effective_segment_jitter_ms // 2
        self._limits = RollLimits(config.segment_bytes, config.effective_segment_ms - jitter_ms)
        index_bytes = config.segment_index_bytes
        self._offset_slots = index_bytes // OffsetIndexFile.entry_bytes - OffsetIndexFile.slots_kept
        self._time_slots = index_bytes // TimeIndexFile.entry_bytes - TimeIndexFile.slots_kept
        self._kernel_limits = np.zeros(kernel.LIMIT_SLOTS, np.int64)
        self._kernel_limits[:] = (
            *self._limits,
            config.index_interval_bytes,
            self._offset_slots,
            self._time_slots,
            RELATIVE_OFFSET_MAX,
        )
        self._histograms = np.zeros((2, kernel.BUCKETS), np.int64)
        self._sums = np.zeros(kernel.SUM_SLOTS)
        self._segments: list[SimulatedSegment] = []
        self._clock_ms = NO_TIMESTAMP
        self._started_ms = NO_TIMESTAMP
        self._begin(base_offset)

    def _begin(self, base_offset: int) -> None:
        state = np.zeros(kernel.STATE_SLOTS, np.int64)
        state[kernel.BASE_OFFSET] = state[kernel.NEXT_OFFSET] = base_offset
        state[kernel.MAX_TIMESTAMP_OFFSET] = base_offset
        for slot in (
            kernel.FIRST_TIMESTAMP,
            kernel.MAX_TIMESTAMP,
            kernel.LAST_INDEXED_TIMESTAMP,
            kernel.MIN_TIMESTAMP,
        ):
            state[slot] = NO_TIMESTAMP
        self._sums[kernel.TIMESTAMP_SUM] = 0
        self._state = state

    def add(self, rows: NDArray[Any]) -> None:
        """The next batches, in order."""
        at = 0
        while at < len(rows):
            if not self._state[kernel.SIZE_BYTES]:
                self._open(rows[at])
            at = kernel.replay(
                rows, at, self._kernel_limits, self._state, self._sums, self._histograms
            )
            self._clock_ms = max(self._clock_ms, int(self._state[kernel.MAX_TIMESTAMP]))
            if at < len(rows):
                self._seal(self._roll_reason(rows[at]))
                self._begin(int(self._state[kernel.NEXT_OFFSET]))

    def _open(self, row: Any) -> None:
        """The segment begins with this batch: after a gap, at its own offset."""
        base = max(int(row["base_offset"]), int(self._state[kernel.BASE_OFFSET]))
        self._begin(base)
        self._started_ms = max(self._clock_ms, int(row["max_timestamp"]))

    def _roll_reason(self, row: Any) -> RollReason:
        """Why the batch needs a new segment. Without timestamps no time passes, because a replay
        has no wall clock."""
        state = self._state
        segment = ActiveSegment(
            base_offset=int(state[kernel.BASE_OFFSET]),
            size_bytes=int(state[kernel.SIZE_BYTES]),
            first_timestamp=int(state[kernel.FIRST_TIMESTAMP]),
            created_ms=0,
            is_offset_index_full=bool(state[kernel.OFFSET_ENTRIES] >= self._offset_slots),
            is_time_index_full=bool(state[kernel.TIME_ENTRIES] >= self._time_slots),
        )
        incoming = IncomingAppend(
            int(row["size_bytes"]), int(row["last_offset"]), int(row["max_timestamp"]), 0
        )
        reason = roll_reason(segment, incoming, self._limits)
        if reason is None:
            raise RuntimeError(f"{segment} need not roll for {incoming}, but the kernel stopped")
        return reason

    def _seal(self, reason: RollReason | None) -> None:
        """The last entry of the time index is that of the largest timestamp."""
        state = [int(number) for number in self._state]
        largest = state[kernel.MAX_TIMESTAMP]
        timed = state[kernel.TIMED_RECORDS]
        is_newer = largest > state[kernel.LAST_INDEXED_TIMESTAMP]
        has_slot = state[kernel.TIME_ENTRIES] < self._time_slots + TimeIndexFile.slots_kept
        self._segments.append(
            SimulatedSegment(
                base_offset=state[kernel.BASE_OFFSET],
                end_offset=state[kernel.NEXT_OFFSET],
                size_bytes=state[kernel.SIZE_BYTES],
                batches=state[kernel.BATCH_COUNT],
                records=state[kernel.RECORDS],
                offset_entries=state[kernel.OFFSET_ENTRIES],
                time_entries=state[kernel.TIME_ENTRIES] + (is_newer and has_slot),
                first_timestamp=state[kernel.FIRST_TIMESTAMP],
                min_timestamp=state[kernel.MIN_TIMESTAMP],
                largest_timestamp=largest,
                mean_timestamp=self._sums[kernel.TIMESTAMP_SUM] / timed if timed else -1.0,
                started_ms=self._started_ms,
                ended_ms=self._clock_ms,
                rolled_by=reason,
            )
        )

    def finish(self, frame: LogSummary) -> SimulatedLog:
        """The log after its last batch."""
        self._seal(None)
        segments = tuple(self._segments)
        scanned = _distribution(self._histograms[0], self._sums[kernel.SCANNED_SUM])
        time_error = _distribution(self._histograms[1], self._sums[kernel.TIME_ERROR_SUM])
        config = self._config
        return SimulatedLog(
            config,
            scanned,
            time_error,
            _retention_effect(segments, config, frame),
            _disk_use(segments, config, frame),
            segments,
            _compaction(segments, config, frame) if config.is_compacted else None,
        )


def _distribution(histogram: NDArray[np.int64], total: float) -> Distribution:
    filled = np.flatnonzero(histogram)
    pairs = zip(filled.tolist(), histogram[filled].tolist(), strict=True)
    return Distribution(float(total), tuple(pairs))


# -- retention


def _retention_effect(
    segments: Sequence[SimulatedSegment], config: LogConfig, frame: LogSummary
) -> RetentionEffect:
    log = _retention_log([_retention_segment(each, frame) for each in segments], frame)
    plan = plan_retention(log, config, frame.now_ms)
    if not config.has_delete_policy or config.retention_ms < 0:
        return RetentionEffect(len(plan.deleted), plan.deleted_bytes, 0, 0, 0)
    gone_ms, weighted, records, worst = 0, 0.0, 0, 0
    for segment in segments:
        if segment.mean_timestamp < 0:
            continue
        gone_ms = max(gone_ms, segment.largest_timestamp)  # never before an older segment
        weighted += (gone_ms - segment.mean_timestamp) * segment.records
        records += segment.records
        worst = max(worst, gone_ms - segment.min_timestamp)
    mean = round(weighted / records) if records else 0
    return RetentionEffect(len(plan.deleted), plan.deleted_bytes, mean, worst, records)


def _retention_segment(segment: SimulatedSegment, frame: LogSummary) -> RetentionSegment:
    return RetentionSegment(
        path=frame.path / segment_file_name(segment.base_offset, FileKind.LOG),
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        size_bytes=segment.size_bytes,
        largest_timestamp=segment.largest_timestamp,
        timestamp_offset=segment.base_offset,
        mtime_ms=frame.now_ms if segment.largest_timestamp < 0 else NO_TIMESTAMP,
        is_active=segment.rolled_by is None,
    )


def _retention_log(segments: Sequence[RetentionSegment], frame: LogSummary) -> RetentionLog:
    end_offset = segments[-1].end_offset
    return RetentionLog(
        topic_partition=frame.topic_partition,
        path=frame.path,
        log_start_offset=frame.log_start_offset,
        high_watermark=end_offset,
        log_end_offset=end_offset,
        segments=tuple(segments),
    )


def _disk_use(
    segments: Sequence[SimulatedSegment], config: LogConfig, frame: LogSummary
) -> tuple[DiskPoint, ...]:
    """Size after retention, from the first batch until now or until the last record has expired.

    Segments are assumed to grow evenly from their first batch to their last.
    """
    start = max(0, segments[0].started_ms)
    end = min(max(segment.ended_ms for segment in segments), frame.now_ms)
    if segments[0].started_ms < 0 or end <= start:
        return ()
    points = max(2, min(TIMELINE_POINTS, _TIMELINE_STEPS_MAX // len(segments)))
    found, first = [], 0
    for number in range(points):
        time_ms = start + (end - start) * number // (points - 1)
        present = [
            _retention_segment(_as_of(each, time_ms), frame)
            for each in segments[first:]
            if each.started_ms <= time_ms
        ]
        size_bytes = 0
        if present:
            present[-1] = present[-1]._replace(is_active=True)
            plan = plan_retention(_retention_log(present, frame), config, time_ms)
            first += min(len(plan.deleted), len(present) - 1)
            size_bytes = plan.kept_bytes
        found.append(DiskPoint(time_ms, size_bytes))
    return tuple(found)


def _as_of(segment: SimulatedSegment, time_ms: int) -> SimulatedSegment:
    """The part that was written by then."""
    if time_ms >= segment.ended_ms:
        return segment
    span = segment.ended_ms - segment.started_ms
    part = (time_ms - segment.started_ms) / span
    return segment._replace(
        size_bytes=max(1, round(segment.size_bytes * part)), largest_timestamp=time_ms
    )


# -- compaction


def _compaction(
    segments: Sequence[SimulatedSegment], config: LogConfig, frame: LogSummary
) -> Compaction:
    log = CleanerLog(
        topic_partition=frame.topic_partition,
        log_start_offset=frame.log_start_offset,
        log_end_offset=segments[-1].end_offset,
        last_stable_offset=frame.last_stable_offset,
        high_watermark=segments[-1].end_offset,
        segments=tuple(_cleaner_segment(each, frame) for each in segments),
        checkpoint=frame.cleaner_offset,
    )
    plan = plan_cleaning(log, config, frame.now_ms)
    bound = plan.first_uncleanable_offset
    groups = group_segments(plan.segments, bound, bound, config)
    return Compaction(
        plan.is_selected,
        plan.reasons,
        plan.ratio,
        plan.cleanable_bytes,
        len(segments),
        len(segments) - len(plan.segments) + len(groups),
    )


def _cleaner_segment(segment: SimulatedSegment, frame: LogSummary) -> CleanerSegment:
    largest = segment.largest_timestamp
    return CleanerSegment(
        base_offset=segment.base_offset,
        size_bytes=segment.size_bytes,
        offset_index_bytes=segment.offset_entries * offset_index.ENTRY_BYTES,
        time_index_bytes=segment.time_entries * time_index.ENTRY_BYTES,
        mtime_ms=frame.now_ms,
        is_active=segment.rolled_by is None,
        largest_timestamp=frame.now_ms if largest < 0 else largest,
        first_batch_timestamp=segment.first_timestamp,
    )
