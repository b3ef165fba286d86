"""Retention: which of a log's oldest segments go, and what keeps the others.

`plan_retention` decides as Kafka does, from facts and a clock that are given to it; `apply` does
it. Three passes, in this order: segments below the log start offset, segments beyond
`retention.bytes`, segments older than `retention.ms`. Each goes on from where the one before it
stopped, oldest segment first, and stops at the first segment that it keeps.

Invariants of a plan:

* what goes is a prefix of the log, so no hole is left, and no record above the high watermark;
* the log keeps a segment: if all go, the active one is rolled before;
* planning once more after it was applied, at the same time, finds nothing to delete.
"""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.maintenance.retention_facts import facts_of_log

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stratalog.config import LogConfig
    from stratalog.log.partition_log import PartitionLog
    from stratalog.maintenance.retention_facts import LogFacts, SegmentFacts

_log = logging.getLogger(__name__)


class Pass(enum.StrEnum):
    """Why segments may go, in the order in which Kafka looks."""

    START_OFFSET = "start-offset"
    SIZE = "size"
    TIME = "time"


class Reason(enum.StrEnum):
    """What a pass found of a segment."""

    BELOW_LOG_START = "below-log-start"
    OVER_SIZE = "over-size"
    EXPIRED = "expired"
    # It keeps all others.
    ABOVE_LOG_START = "above-log-start"
    WITHIN_SIZE = "within-size"
    NOT_EXPIRED = "not-expired"
    FUTURE_TIMESTAMP = "future-timestamp"
    NO_LIMIT = "no-limit"
    NO_DELETE_POLICY = "no-delete-policy"
    REMOTE_STORAGE = "remote-storage"
    """Kafka deletes what it has copied to remote storage. Whether it has, the files do not tell."""
    ABOVE_HIGH_WATERMARK = "above-high-watermark"
    EMPTY_ACTIVE = "empty-active"
    BEHIND_KEPT = "behind-kept"


_DELETES: Final = {Reason.BELOW_LOG_START, Reason.OVER_SIZE, Reason.EXPIRED}


class Finding(NamedTuple):
    """What one pass says of one segment."""

    by: Pass
    reason: Reason
    amount: int = 0
    """By how much. Offsets: from the log start to the end of the segment, or from the high
    watermark. Bytes: how far the log is over the limit (over-size), or by how many more it would
    have to be for this segment to go (within-size). Milliseconds: since it expired, until it does,
    or how far its timestamp lies in the future. Behind a segment that is kept: its base offset."""

    @property
    def is_deletion(self) -> bool:
        return self.reason in _DELETES


class SegmentVerdict(NamedTuple):
    """Delete or keep, and why."""

    segment: SegmentFacts
    findings: tuple[Finding, ...]
    """For a segment that goes, the finding of the pass that takes it. For one that stays, one for
    each pass, of the log as the plan leaves it."""
    leaves_ms: int | None = None
    """The first time at which retention by time takes it, the segments before it included. None if
    it goes now, or time alone will never do it."""

    @property
    def deleted_by(self) -> Pass | None:
        return self.findings[0].by if self.findings[0].is_deletion else None

    @property
    def is_deleted(self) -> bool:
        return self.deleted_by is not None

    def finding(self, by: Pass) -> Finding | None:
        """Of one pass, if it was asked."""
        return next((found for found in self.findings if found.by is by), None)


@dataclass(frozen=True)
class RetentionPlan:
    """What retention would do to one log at one time."""

    log: LogFacts
    config: LogConfig
    now_ms: int
    verdicts: tuple[SegmentVerdict, ...]
    """One for each segment, in order: first those that go."""

    @property
    def deleted(self) -> tuple[SegmentFacts, ...]:
        """The segments that go, oldest first."""
        return tuple(verdict.segment for verdict in self.verdicts if verdict.is_deleted)

    @property
    def kept(self) -> tuple[SegmentFacts, ...]:
        """The segments that stay."""
        return tuple(verdict.segment for verdict in self.verdicts if not verdict.is_deleted)

    @property
    def rolls(self) -> bool:
        """Whether all segments go, and the log begins a new one first."""
        return not self.kept

    @property
    def new_log_start_offset(self) -> int:
        """The log start offset afterwards."""
        deleted = self.deleted
        return max(self.log.log_start_offset, deleted[-1].end_offset if deleted else 0)

    @property
    def deleted_bytes(self) -> int:
        """Of `.log` files."""
        return sum(segment.size_bytes for segment in self.deleted)

    @property
    def kept_bytes(self) -> int:
        """Of `.log` files."""
        return sum(segment.size_bytes for segment in self.kept)


# -- deciding


def plan_retention(log: LogFacts, config: LogConfig, now_ms: int) -> RetentionPlan:
    """What Kafka's retention would do to a log with these settings, at this time."""
    judge = _Judge(log, config, now_ms)
    verdicts: list[SegmentVerdict] = []
    for by in Pass:
        for segment in log.segments[len(verdicts) :]:
            finding = judge.look(by, segment)
            if not finding.is_deletion:
                break
            verdicts.append(SegmentVerdict(segment, (finding,)))
            judge.note_deleted(segment)
    verdicts += judge.kept(log.segments[len(verdicts) :])
    return RetentionPlan(log, config, now_ms, tuple(verdicts))


class _Judge:
    """Looks at one segment at a time, of the log as it is once those before it are gone."""

    def __init__(self, log: LogFacts, config: LogConfig, now_ms: int) -> None:
        self._log = log
        self._config = config
        self._now_ms = now_ms
        size_bytes = sum(segment.size_bytes for segment in log.segments)
        self._excess_bytes = size_bytes - config.retention_bytes
        self._log_start_offset = log.log_start_offset

    def note_deleted(self, segment: SegmentFacts) -> None:
        self._excess_bytes -= segment.size_bytes
        self._log_start_offset = max(self._log_start_offset, segment.end_offset)

    def look(self, by: Pass, segment: SegmentFacts) -> Finding:
        """What the pass says, provided that nothing before the segment is kept."""
        if segment.is_active and not segment.size_bytes:
            return Finding(by, Reason.EMPTY_ACTIVE)
        if segment.end_offset > self._log.high_watermark:
            beyond = segment.end_offset - self._log.high_watermark
            return Finding(by, Reason.ABOVE_HIGH_WATERMARK, beyond)
        if by is Pass.START_OFFSET:
            return self._by_start_offset(segment)
        if not self._config.is_deleted:
            return Finding(by, Reason.NO_DELETE_POLICY)
        if self._config.remote_storage_enable:
            return Finding(by, Reason.REMOTE_STORAGE)
        return self._by_size(segment) if by is Pass.SIZE else self._by_time(segment)

    def _by_start_offset(self, segment: SegmentFacts) -> Finding:
        above = segment.end_offset - self._log_start_offset
        if segment.is_active or above > 0:
            return Finding(Pass.START_OFFSET, Reason.ABOVE_LOG_START, above)
        return Finding(Pass.START_OFFSET, Reason.BELOW_LOG_START, -above)

    def _by_size(self, segment: SegmentFacts) -> Finding:
        if self._config.retention_bytes < 0:
            return Finding(Pass.SIZE, Reason.NO_LIMIT)
        missing = segment.size_bytes - self._excess_bytes
        if missing > 0:
            return Finding(Pass.SIZE, Reason.WITHIN_SIZE, missing)
        return Finding(Pass.SIZE, Reason.OVER_SIZE, self._excess_bytes)

    def _by_time(self, segment: SegmentFacts) -> Finding:
        if self._config.retention_ms < 0:
            return Finding(Pass.TIME, Reason.NO_LIMIT)
        age_ms = self._now_ms - segment.newest_ms
        if age_ms > self._config.retention_ms:
            return Finding(Pass.TIME, Reason.EXPIRED, age_ms - self._config.retention_ms)
        if age_ms < 0 and not segment.uses_mtime:
            return Finding(Pass.TIME, Reason.FUTURE_TIMESTAMP, -age_ms)
        # It has to be older than the limit, by a millisecond at least.
        return Finding(Pass.TIME, Reason.NOT_EXPIRED, self._config.retention_ms - age_ms + 1)

    def kept(self, segments: Sequence[SegmentFacts]) -> Iterator[SegmentVerdict]:
        """The first of them stops every pass, and so keeps those behind it."""
        leaves_ms: int | None = 0
        for slot, segment in enumerate(segments):
            if slot == 0:
                findings = tuple(self.look(by, segment) for by in Pass)
            else:
                first = segments[0].base_offset
                findings = tuple(Finding(by, Reason.BEHIND_KEPT, first) for by in Pass)
            by_time = self.look(Pass.TIME, segment).reason
            is_timed = by_time in {Reason.EXPIRED, Reason.NOT_EXPIRED, Reason.FUTURE_TIMESTAMP}
            if leaves_ms is not None:
                due_ms = segment.newest_ms + self._config.retention_ms + 1
                leaves_ms = max(leaves_ms, due_ms) if is_timed else None
            yield SegmentVerdict(segment, findings, leaves_ms)


# -- acting


def apply(log: PartitionLog, plan: RetentionPlan) -> int:
    """Delete what the plan says, as far as the log is still as it was then; how many segments.

    A segment that has grown, was cut or was replaced since stays, and so do those behind it.
    """
    with log.changing():
        count = 0
        for segment, planned in zip(log.writable_segments, plan.deleted, strict=False):
            now = (segment.path.name, segment.size_bytes)
            if now != (planned.path.name, planned.size_bytes):
                break
            count += 1
        if count == len(log.writable_segments) and log.log_end_offset != plan.log.log_end_offset:
            count -= 1
        start = log.delete_oldest(count)
    for verdict in plan.verdicts[:count]:
        _log.info(
            "%s: deleted segment %d of %d bytes (%s); the log starts at %d now",
            log.topic_partition,
            verdict.segment.base_offset,
            verdict.segment.size_bytes,
            verdict.findings[0].reason.value,
            start,
        )
    return count


def retain(log: PartitionLog, now_ms: int) -> RetentionPlan:
    """Plan by the log's own settings and do it; the plan, which is what was done."""
    plan = plan_retention(facts_of_log(log, now_ms), log.config, now_ms)
    if plan.deleted:
        with log.changing():  # what had to be read for the plan is known by now
            plan = plan_retention(facts_of_log(log, now_ms), log.config, now_ms)
            apply(log, plan)
    return plan
