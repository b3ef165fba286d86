"""Retention: which of the oldest segments of a log are deleted, and why the others are kept.

`plan_retention` decides as Kafka does, from values and a clock; `apply` deletes. Three rules in
this order: segments below the log start offset, segments beyond `retention.bytes`, segments older
than `retention.ms`. Each rule continues where the one before it stopped, oldest segment first, and
stops at the first segment that it keeps. The age of a segment is that of its largest timestamp, or
of the file if no record has a timestamp.

Invariants of a plan:

* deleted segments are a prefix of the log without records above the high watermark, so no gap is
  left;
* the log keeps a segment: if all are deleted, the active one is rolled first;
* planning again after it was applied, at the same time, finds nothing to delete.
"""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import CorruptError
from stratalog.format.batch import NO_TIMESTAMP
from stratalog.format.times import NS_PER_MS
from stratalog.storage.segment_view import SegmentView

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from stratalog.config import LogConfig
    from stratalog.format.names import TopicPartition
    from stratalog.log.partition_log import PartitionLog
    from stratalog.log.partition_view import PartitionView
    from stratalog.storage.segment import Segment
    from stratalog.storage.segment_view import LargestTimestamp

_log = logging.getLogger(__name__)


class RetentionSegment(NamedTuple):
    """What retention needs to know about a segment."""

    path: Path
    base_offset: int
    end_offset: int
    """Exclusive: where the next segment begins, or the log ends."""
    size_bytes: int
    largest_timestamp: int
    """Largest timestamp of its records; -1 if none has one."""
    timestamp_offset: int
    """The last offset of the batch with the largest timestamp; if that is in the future, the offset
    of the record."""
    mtime_ms: int
    """The file's, if no record has a timestamp; else -1, because it is not needed."""
    is_active: bool

    @property
    def uses_mtime(self) -> bool:
        """Whether its age is that of the file, because no record has a timestamp."""
        return self.largest_timestamp < 0

    @property
    def newest_ms(self) -> int:
        """The time from which its age is counted."""
        return self.mtime_ms if self.uses_mtime else self.largest_timestamp


class RetentionLog(NamedTuple):
    """What retention needs to know about a log."""

    topic_partition: TopicPartition
    path: Path
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    segments: tuple[RetentionSegment, ...]
    """In offset order, at least one; the last is active."""
    pending_commit_offset: int | None = None
    """Start offset of a bulk commit that is not yet recorded as installed; see `SegmentChanges`."""


class _SeenSegment(NamedTuple):
    """A segment, and what its writer or a reader knows of it."""

    segment: Segment | SegmentView
    largest: LargestTimestamp
    size_bytes: int


def retention_log(log: PartitionLog, now_ms: int) -> RetentionLog:
    """The facts of a log that is open for writing."""
    with log.maintenance.lock:
        end_offset, segments = log.log_end_offset, log.maintenance.segments
    seen = [
        _SeenSegment(segment, segment.largest_timestamp, segment.size_bytes) for segment in segments
    ]
    pending = log.maintenance.pending_commit_offset
    return _facts_of(log, seen, end_offset, now_ms)._replace(pending_commit_offset=pending)


def retention_log_of_view(view: PartitionView, now_ms: int) -> RetentionLog:
    """A partition opened for reading, with the facts that a writer would find on opening it."""
    return view.retry_if_gone(lambda: _facts_of_view(view, now_ms))


def _facts_of_view(view: PartitionView, now_ms: int) -> RetentionLog:
    end_offset, segments = view.log_end_offset, view.segments
    seen = [
        _SeenSegment(segment, segments.largest_timestamp(slot), segment.size_bytes)
        for slot, segment in enumerate(segments)
    ]
    seen[-1] = seen[-1]._replace(size_bytes=segments.end.position)
    return _facts_of(view, seen, end_offset, now_ms)


def _facts_of(
    log: PartitionLog | PartitionView, seen: Sequence[_SeenSegment], end_offset: int, now_ms: int
) -> RetentionLog:
    bounds = [*(after.segment.base_offset for after in seen[1:]), end_offset]
    segments = [_facts_of_segment(*pair, now_ms) for pair in zip(seen, bounds, strict=True)]
    segments[-1] = segments[-1]._replace(is_active=True)
    return RetentionLog(
        topic_partition=log.topic_partition,
        path=log.path,
        log_start_offset=log.log_start_offset,
        high_watermark=log.high_watermark,
        log_end_offset=end_offset,
        segments=tuple(segments),
    )


def _facts_of_segment(seen: _SeenSegment, end_offset: int, now_ms: int) -> RetentionSegment:
    segment, largest = seen.segment, seen.largest
    if largest.timestamp > now_ms:
        largest = _with_exact_offset(segment, largest)
    return RetentionSegment(
        path=segment.path,
        base_offset=segment.base_offset,
        end_offset=end_offset,
        size_bytes=seen.size_bytes,
        largest_timestamp=largest.timestamp,
        timestamp_offset=largest.offset,
        mtime_ms=_mtime_ms(segment.path, largest),
        is_active=False,
    )


def _with_exact_offset(
    segment: Segment | SegmentView, largest: LargestTimestamp
) -> LargestTimestamp:
    """The largest timestamp with the offset of its record, for the report."""
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
        return path.stat().st_mtime_ns // NS_PER_MS
    except FileNotFoundError:
        return NO_TIMESTAMP  # deleted just now; `apply` checks again


class RetentionRule(enum.StrEnum):
    """The rules that delete segments, in Kafka's order."""

    START_OFFSET = "start-offset"
    SIZE = "size"
    TIME = "time"


class RetentionReason(enum.StrEnum):
    """Why a rule deletes or keeps a segment."""

    BELOW_LOG_START = "below-log-start"
    OVER_SIZE = "over-size"
    EXPIRED = "expired"
    # All others keep the segment.
    ABOVE_LOG_START = "above-log-start"
    WITHIN_SIZE = "within-size"
    NOT_EXPIRED = "not-expired"
    FUTURE_TIMESTAMP = "future-timestamp"
    NO_LIMIT = "no-limit"
    NO_DELETE_POLICY = "no-delete-policy"
    REMOTE_STORAGE = "remote-storage"
    """Kafka deletes what it has copied to remote storage; the files do not show whether it has."""
    ABOVE_HIGH_WATERMARK = "above-high-watermark"
    PENDING_COMMIT = "pending-commit"
    EMPTY_ACTIVE = "empty-active"
    AFTER_KEPT = "after-kept"


_DELETES: Final = {
    RetentionReason.BELOW_LOG_START,
    RetentionReason.OVER_SIZE,
    RetentionReason.EXPIRED,
}


class RuleResult(NamedTuple):
    """The result of one rule for one segment."""

    by: RetentionRule
    reason: RetentionReason
    amount: int = 0
    """By how much. Offsets: from the log start to the end of the segment, or from the high
    watermark, or from where a pending commit begins. Bytes: how far the log is over the limit
    (over-size), or by how many more it would have to be for this segment to be deleted
    (within-size). Milliseconds: since it expired, until it does, or how far its timestamp is in the
    future. After a kept segment: its base offset."""

    @property
    def is_deletion(self) -> bool:
        return self.reason in _DELETES


class SegmentDecision(NamedTuple):
    """Delete or keep, and why."""

    segment: RetentionSegment
    results: tuple[RuleResult, ...]
    """For a deleted segment, the result of the rule that deletes it. For a kept one, one for each
    rule, of the log as the plan leaves it."""
    expires_ms: int | None = None
    """The earliest time at which `retention.ms` deletes it and all segments before it. None if it
    is deleted now, or time alone never deletes it."""

    @property
    def deleted_by(self) -> RetentionRule | None:
        return self.results[0].by if self.results[0].is_deletion else None

    @property
    def is_deleted(self) -> bool:
        return self.deleted_by is not None


@dataclass(frozen=True)
class RetentionPlan:
    """What retention does to one log at one time."""

    log: RetentionLog
    config: LogConfig
    now_ms: int
    decisions: tuple[SegmentDecision, ...]
    """One for each segment, in offset order: deleted ones first."""

    @property
    def deleted(self) -> tuple[RetentionSegment, ...]:
        """The deleted segments, oldest first."""
        return tuple(decision.segment for decision in self.decisions if decision.is_deleted)

    @property
    def kept(self) -> tuple[RetentionSegment, ...]:
        """The kept segments."""
        return tuple(decision.segment for decision in self.decisions if not decision.is_deleted)

    @property
    def rolls(self) -> bool:
        """Whether all segments are deleted, so that the log rolls a new one first."""
        return not self.kept

    @property
    def new_log_start_offset(self) -> int:
        """The log start offset afterwards."""
        deleted = self.deleted
        return max(self.log.log_start_offset, deleted[-1].end_offset if deleted else 0)

    @property
    def deleted_bytes(self) -> int:
        """Size of `.log` files."""
        return _log_bytes(self.deleted)

    @property
    def kept_bytes(self) -> int:
        """Size of `.log` files."""
        return _log_bytes(self.kept)


def _log_bytes(segments: Iterable[RetentionSegment]) -> int:
    return sum(segment.size_bytes for segment in segments)


# -- deciding


def plan_retention(log: RetentionLog, config: LogConfig, now_ms: int) -> RetentionPlan:
    """What Kafka's retention does to a log with these settings at this time."""
    rules = _Rules(log, config, now_ms)
    decisions: list[SegmentDecision] = []
    for by in RetentionRule:
        for segment in log.segments[len(decisions) :]:
            result = rules.apply_rule(by, segment)
            if not result.is_deletion:
                break
            decisions.append(SegmentDecision(segment, (result,)))
            rules.note_deleted(segment)
    decisions += rules.kept(log.segments[len(decisions) :])
    return RetentionPlan(log, config, now_ms, tuple(decisions))


class _Rules:
    """Applies the rules to one segment at a time, after those before it were deleted."""

    def __init__(self, log: RetentionLog, config: LogConfig, now_ms: int) -> None:
        self._log = log
        self._config = config
        self._now_ms = now_ms
        size_bytes = _log_bytes(log.segments)
        self._excess_bytes = size_bytes - config.retention_bytes
        self._log_start_offset = log.log_start_offset

    def note_deleted(self, segment: RetentionSegment) -> None:
        self._excess_bytes -= segment.size_bytes
        self._log_start_offset = max(self._log_start_offset, segment.end_offset)

    def apply_rule(self, by: RetentionRule, segment: RetentionSegment) -> RuleResult:
        """The result of a rule, provided that no segment before this one is kept."""
        kept = self._kept_by_any(by, segment)
        if kept is not None:
            return kept
        if by is RetentionRule.START_OFFSET:
            return self._by_start_offset(segment)
        if not self._config.has_delete_policy:
            return RuleResult(by, RetentionReason.NO_DELETE_POLICY)
        if self._config.remote_storage_enable:
            return RuleResult(by, RetentionReason.REMOTE_STORAGE)
        return self._by_size(segment) if by is RetentionRule.SIZE else self._by_time(segment)

    def _kept_by_any(self, by: RetentionRule, segment: RetentionSegment) -> RuleResult | None:
        """The result if every rule keeps the segment, whatever the limits."""
        if segment.is_active and not segment.size_bytes:
            return RuleResult(by, RetentionReason.EMPTY_ACTIVE)
        if segment.end_offset > self._log.high_watermark:
            beyond = segment.end_offset - self._log.high_watermark
            return RuleResult(by, RetentionReason.ABOVE_HIGH_WATERMARK, beyond)
        pending = self._log.pending_commit_offset
        if pending is not None and segment.end_offset > pending:
            return RuleResult(by, RetentionReason.PENDING_COMMIT, segment.end_offset - pending)
        return None

    def _by_start_offset(self, segment: RetentionSegment) -> RuleResult:
        above = segment.end_offset - self._log_start_offset
        if segment.is_active or above > 0:
            return RuleResult(RetentionRule.START_OFFSET, RetentionReason.ABOVE_LOG_START, above)
        return RuleResult(RetentionRule.START_OFFSET, RetentionReason.BELOW_LOG_START, -above)

    def _by_size(self, segment: RetentionSegment) -> RuleResult:
        if self._config.retention_bytes < 0:
            return RuleResult(RetentionRule.SIZE, RetentionReason.NO_LIMIT)
        missing = segment.size_bytes - self._excess_bytes
        if missing > 0:
            return RuleResult(RetentionRule.SIZE, RetentionReason.WITHIN_SIZE, missing)
        return RuleResult(RetentionRule.SIZE, RetentionReason.OVER_SIZE, self._excess_bytes)

    def _by_time(self, segment: RetentionSegment) -> RuleResult:
        if self._config.retention_ms < 0:
            return RuleResult(RetentionRule.TIME, RetentionReason.NO_LIMIT)
        age_ms = self._now_ms - segment.newest_ms
        if age_ms > self._config.retention_ms:
            return RuleResult(
                RetentionRule.TIME, RetentionReason.EXPIRED, age_ms - self._config.retention_ms
            )
        if age_ms < 0 and not segment.uses_mtime:
            return RuleResult(RetentionRule.TIME, RetentionReason.FUTURE_TIMESTAMP, -age_ms)
        # It has to be older than the limit by at least a millisecond.
        return RuleResult(
            RetentionRule.TIME, RetentionReason.NOT_EXPIRED, self._config.retention_ms - age_ms + 1
        )

    def kept(self, segments: Sequence[RetentionSegment]) -> Iterator[SegmentDecision]:
        """The first kept segment stops every rule, so those after it are kept too."""
        expires_ms: int | None = 0
        for slot, segment in enumerate(segments):
            if slot == 0:
                results = tuple(self.apply_rule(by, segment) for by in RetentionRule)
            else:
                first = segments[0].base_offset
                results = tuple(
                    RuleResult(by, RetentionReason.AFTER_KEPT, first) for by in RetentionRule
                )
            by_time = self.apply_rule(RetentionRule.TIME, segment).reason
            is_timed = by_time in {
                RetentionReason.EXPIRED,
                RetentionReason.NOT_EXPIRED,
                RetentionReason.FUTURE_TIMESTAMP,
            }
            if expires_ms is not None:
                own_ms = segment.newest_ms + self._config.retention_ms + 1
                expires_ms = max(expires_ms, own_ms) if is_timed else None
            yield SegmentDecision(segment, results, expires_ms)


# -- acting


def apply(log: PartitionLog, plan: RetentionPlan) -> int:
    """Delete the planned segments, if the log has not changed since; returns how many were deleted.

    A segment that grew, was truncated or was replaced since is kept, and so are those after it.
    """
    with log.maintenance.lock:
        count = 0
        for segment, planned in zip(log.maintenance.segments, plan.deleted, strict=False):
            now = (segment.path.name, segment.size_bytes)
            if now != (planned.path.name, planned.size_bytes):
                break
            count += 1
        if count == len(log.maintenance.segments) and log.log_end_offset != plan.log.log_end_offset:
            count -= 1
        start = log.maintenance.delete_oldest(count)
    for decision in plan.decisions[:count]:
        _log.info(
            "%s: deleted segment %d of %d bytes (%s); the log starts at %d now",
            log.topic_partition,
            decision.segment.base_offset,
            decision.segment.size_bytes,
            decision.results[0].reason.value,
            start,
        )
    return count


def retain(log: PartitionLog, now_ms: int) -> RetentionPlan:
    """Apply retention with the log's own settings; returns the plan that was applied."""
    plan = plan_retention(retention_log(log, now_ms), log.config, now_ms)
    if plan.deleted:
        with log.maintenance.lock:  # cheap now: timestamps are cached
            plan = plan_retention(retention_log(log, now_ms), log.config, now_ms)
            apply(log, plan)
    return plan
