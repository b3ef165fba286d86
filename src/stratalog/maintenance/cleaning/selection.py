"""Which part of a compacted log may be cleaned now, and whether that is worth a round.

A log is clean up to the cleaner's checkpoint and dirty from there on. A round goes from the first
dirty offset up to a bound: never into the active segment, into the segment where an open
transaction begins, or into one that is younger than `min.compaction.lag.ms`. It is worth its cost
when the dirty part is large enough (`min.cleanable.dirty.ratio`) or old enough
(`max.compaction.lag.ms`).

The decision is a pure function of facts (`log_facts.py`), settings and clock, and tells why.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stratalog.config.choices import CleanupPolicy
from stratalog.maintenance.cleaning.log_facts import dirty_start

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.config import LogConfig
    from stratalog.format.names import TopicPartition
    from stratalog.maintenance.cleaning.log_facts import CheckpointReset, LogFacts, SegmentFacts

NO_DELAY: Final = 0


class BoundKind(enum.StrEnum):
    """What ends the part of a log that may be cleaned."""

    ACTIVE_SEGMENT = "active segment"
    OPEN_TRANSACTION = "open transaction"
    HIGH_WATERMARK = "high watermark"
    MIN_LAG = "min.compaction.lag.ms"


@dataclass(frozen=True, slots=True)
class Bound:
    """Where the part of a log ends that may be cleaned, and why."""

    kind: BoundKind
    raw_offset: int
    """Nothing at or above it may be cleaned."""
    offset: int
    """Base offset of the segment that holds `raw_offset`: segments are cleaned whole or not."""
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
                    "segment and those behind it wait"
                )
            case BoundKind.HIGH_WATERMARK:
                return f"{where}: records from {self.raw_offset} on are not replicated yet"
            case BoundKind.MIN_LAG:
                return (
                    f"{where}: the segment there has a record of {self.timestamp}, too young for "
                    f"min.compaction.lag.ms until {self.cleanable_from_ms}"
                )


@dataclass(frozen=True, slots=True)
class Selection:
    """The range that a round would clean, and whether one is due."""

    topic_partition: TopicPartition
    now_ms: int
    first_dirty_offset: int
    checkpoint_reset: CheckpointReset | None
    """Set: the checkpoint is to be overwritten with `first_dirty_offset`."""
    bound: Bound
    clean_bytes: int
    """Of the segments that begin below the first dirty offset."""
    cleanable_bytes: int
    """Of the segments between the first dirty offset and the bound. A segment that the first dirty
    offset lies inside counts on both sides."""
    max_lag_exceeded_ms: int
    """How much longer than `max.compaction.lag.ms` the oldest dirty segment has waited; or 0."""
    is_selected: bool
    reasons: tuple[str, ...]
    segments: tuple[SegmentFacts, ...]
    """Every segment below the bound: what a round may rewrite."""

    @property
    def first_uncleanable_offset(self) -> int:
        return self.bound.offset

    @property
    def total_bytes(self) -> int:
        return self.clean_bytes + self.cleanable_bytes

    @property
    def ratio(self) -> float:
        """Cleanable part of what a round would look at; 0 for nothing."""
        return self.cleanable_bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def need_compaction_now(self) -> bool:
        return self.max_lag_exceeded_ms > NO_DELAY

    @property
    def dirty_segments(self) -> tuple[SegmentFacts, ...]:
        """Those that the offset map is built from."""
        return _between(self.segments, self.first_dirty_offset, self.bound.offset)


def select(facts: LogFacts, config: LogConfig, now_ms: int) -> Selection:
    """The range to clean at `now_ms`, and whether to."""
    segments = facts.segments
    first_dirty, reset = dirty_start(facts.log_start_offset, facts.log_end_offset, facts.checkpoint)
    waiting = _between(segments, first_dirty, segments[-1].base_offset)
    bound = _bound(facts, config, first_dirty, waiting, now_ms)
    clean_bytes = sum(s.size_bytes for s in segments if s.base_offset < first_dirty)
    cleanable = _between(segments, min(first_dirty, bound.offset), bound.offset)
    cleanable_bytes = sum(segment.size_bytes for segment in cleanable)
    exceeded_ms = _max_lag_exceeded_ms(waiting, config, now_ms)
    is_selected, reasons = _judged(clean_bytes, cleanable_bytes, exceeded_ms, config)
    return Selection(
        topic_partition=facts.topic_partition,
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
    segments: Sequence[SegmentFacts], start_offset: int, end_offset: int
) -> tuple[SegmentFacts, ...]:
    """The segment that holds `start_offset` and those after it that begin below `end_offset`."""
    if start_offset >= end_offset:
        return ()
    bases = [segment.base_offset for segment in segments]
    first = max(0, bisect_right(bases, start_offset) - 1)
    return tuple(s for s in segments[first:] if s.base_offset < end_offset)


def _bound(
    facts: LogFacts,
    config: LogConfig,
    first_dirty: int,
    waiting: Sequence[SegmentFacts],
    now_ms: int,
) -> Bound:
    """The lowest of three limits. One young segment holds back older ones behind it, too."""
    limit, kind = facts.segments[-1].base_offset, BoundKind.ACTIVE_SEGMENT
    if facts.last_stable_offset < limit:
        is_open = facts.last_stable_offset < facts.high_watermark
        kind = BoundKind.OPEN_TRANSACTION if is_open else BoundKind.HIGH_WATERMARK
        limit = facts.last_stable_offset
    young = _first_too_young(waiting, config.min_compaction_lag_ms, now_ms)
    if young is not None and young.base_offset < limit:
        kind, limit = BoundKind.MIN_LAG, young.base_offset
    raw = max(first_dirty, limit)
    timestamp = cleanable_from = None
    if young is not None and kind is BoundKind.MIN_LAG:
        timestamp = young.largest_timestamp
        cleanable_from = timestamp + config.min_compaction_lag_ms
    return Bound(kind, raw, _base_of_holder(facts.segments, raw), timestamp, cleanable_from)


def _first_too_young(
    waiting: Sequence[SegmentFacts], min_lag_ms: int, now_ms: int
) -> SegmentFacts | None:
    if min_lag_ms <= 0:
        return None
    return next((s for s in waiting if s.largest_timestamp > now_ms - min_lag_ms), None)


def _base_of_holder(segments: Sequence[SegmentFacts], offset: int) -> int:
    bases = [segment.base_offset for segment in segments]
    return bases[max(0, bisect_right(bases, offset) - 1)]


def _max_lag_exceeded_ms(waiting: Sequence[SegmentFacts], config: LogConfig, now_ms: int) -> int:
    """By the oldest first batch. All dirty sealed segments count, also those behind the bound."""
    started = [s.first_batch_timestamp for s in waiting if s.first_batch_timestamp > 0]
    if not started:
        return NO_DELAY
    return max(NO_DELAY, now_ms - config.max_compaction_lag_ms - min(started))


def _judged(
    clean_bytes: int, cleanable_bytes: int, exceeded_ms: int, config: LogConfig
) -> tuple[bool, tuple[str, ...]]:
    if CleanupPolicy.COMPACT not in config.cleanup_policy:
        policy = ",".join(sorted(config.cleanup_policy))
        return False, (f"cleanup.policy is {policy}, so the log is not compacted",)
    if not cleanable_bytes:
        return False, ("nothing between the first dirty offset and the bound can be cleaned",)
    ratio, least = (
        cleanable_bytes / (clean_bytes + cleanable_bytes),
        config.min_cleanable_dirty_ratio,
    )
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
        reasons.append(f"{missing} more dirty bytes would make a round due")
    return is_dirty or exceeded_ms > NO_DELAY, tuple(reasons)
