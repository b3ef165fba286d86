"""Retention plans in words and as JSON: what `stratalog retain` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stratalog.cli.inventory import label_of
from stratalog.cli.tables import Column, counted, human_size, table_time
from stratalog.cli.when import format_time
from stratalog.format.batch import NO_TIMESTAMP
from stratalog.maintenance.retention import RetentionReason, RetentionRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.cli.retention_plans import Planned
    from stratalog.cli.tables import Row
    from stratalog.maintenance.retention import RetentionPlan, RuleResult, SegmentDecision

SETTINGS: Final = ("cleanup.policy", "retention.ms", "retention.bytes")
COLUMNS: Final = (
    Column("SEGMENT"),
    Column("SIZE", is_number=True, rank=2),
    Column("NEWEST", rank=1),
    Column("DO"),
    Column("WHY", fold_at=40),
)
_STEPS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))
_YEAR_DAYS: Final = 365


def duration_text(ms: int) -> str:
    """The two largest units: `2 d 3 h`, `5 min 30 s`, `12 ms`."""
    parts = []
    for size_ms, unit in _STEPS:
        amount, ms = divmod(ms, size_ms)
        if amount:
            parts.append(f"{amount} {unit}")
        if parts and (len(parts) == 2 or (unit == "d" and amount >= _YEAR_DAYS)):
            break
    return " ".join(parts) or "0 ms"


def settings_text(outcome: Planned) -> str:
    """The settings that decide, and where each comes from."""
    config, settings = outcome.settings.config, outcome.settings
    shown = config.as_dict()
    texts = []
    for name in SETTINGS:
        if name in outcome.unknown:
            texts.append(f"{name} unknown")
            continue
        source = settings.source_of(name).label
        if name == "retention.ms" and config.retention_ms > 0:
            source = f"{duration_text(config.retention_ms)}; {source}"
        if name == "cleanup.policy" and settings.unknown is not None:
            source = "assumed"
        texts.append(f"{name}={shown[name]} ({source})")
    return ", ".join(texts)


def summary(plan: RetentionPlan, *, is_done: bool) -> str:
    """One line for the log as a whole."""
    label, count = label_of(plan.log.topic_partition), len(plan.verdicts)
    if not plan.deleted:
        return f"{label}: nothing to delete in {counted(count, 'segment')}"
    size_bytes = plan.deleted_bytes + plan.kept_bytes
    done = "deleted" if is_done else "would delete"
    text = (
        f"{label}: {done} {len(plan.deleted)} of {counted(count, 'segment')}, "
        f"{human_size(plan.deleted_bytes)} of {human_size(size_bytes)}; "
        f"log start offset {plan.log.log_start_offset} -> {plan.new_log_start_offset}"
    )
    return text + ("; the active segment is rolled first" if plan.rolls else "")


def rows(plan: RetentionPlan) -> list[Row]:
    """One for each segment, for a table of `COLUMNS`."""
    return [
        (
            f"{verdict.segment.base_offset:020d}" + (" *" if verdict.segment.is_active else ""),
            human_size(verdict.segment.size_bytes),
            table_time(verdict.segment.newest_ms) + ("~" if verdict.segment.uses_mtime else ""),
            "delete" if verdict.is_deleted else "keep",
            why(plan, verdict),
        )
        for verdict in plan.verdicts
    ]


def legend(plan: RetentionPlan) -> Iterator[str]:
    """What the marks in the table mean, those that are there."""
    yield "* the active segment"
    if any(verdict.segment.uses_mtime for verdict in plan.verdicts):
        yield "~ the time of the file: no record of the segment has a timestamp"


def why(plan: RetentionPlan, verdict: SegmentDecision) -> str:
    """What takes a segment, or what keeps it."""
    first = verdict.findings[0]
    if first.is_deletion:
        return _deletion(plan, first)
    if first.reason is RetentionReason.BEHIND_KEPT:
        return _behind(plan, verdict)
    texts = [_keeping(plan, verdict, finding) for finding in verdict.findings]
    return "; ".join(dict.fromkeys(text for text in texts if text))


def _behind(plan: RetentionPlan, verdict: SegmentDecision) -> str:
    """The segment before it that stays longest is what keeps it, if not its own records do."""
    segment = verdict.segment
    own = _own_age(plan, verdict)
    if verdict.leaves_ms is None:
        holder = plan.kept[0]
        text = f"behind {holder.base_offset:020d}, which stays"
    else:
        before = [kept for kept in plan.kept if kept.base_offset <= segment.base_offset]
        holder = max(before, key=lambda kept: kept.newest_ms)
        if holder.newest_ms == segment.newest_ms:
            return own
        until = format_time(verdict.leaves_ms)
        text = f"behind {holder.base_offset:020d}, which stays until {until}"
    return text + (f"; itself {own}" if own else "")


def _deletion(plan: RetentionPlan, finding: RuleResult) -> str:
    if finding.by is RetentionRule.START_OFFSET:
        return f"below the log start offset {plan.log.log_start_offset}"
    if finding.by is RetentionRule.SIZE:
        over = human_size(finding.amount)
        return f"with it the log is {over} over retention.bytes" if finding.amount else "empty"
    return f"expired {duration_text(finding.amount)} ago"


def _keeping(plan: RetentionPlan, verdict: SegmentDecision, finding: RuleResult) -> str:
    """Nothing for what goes without saying: that a log has no limit of size, or that records above
    its start may be read."""
    amount = finding.amount
    if finding.reason is RetentionReason.FUTURE_TIMESTAMP:
        return (
            f"{_future(plan, verdict)}, which keeps the segment and all behind it until "
            f"{format_time(verdict.leaves_ms or NO_TIMESTAMP)}"
        )
    if finding.reason is RetentionReason.WITHIN_SIZE:
        return f"retention.bytes would take it if the log had {human_size(amount)} more"
    if finding.reason is RetentionReason.NO_LIMIT and finding.by is RetentionRule.TIME:
        return "there is no limit by age"
    texts = {
        RetentionReason.NOT_EXPIRED: f"expires in {duration_text(amount)}",
        RetentionReason.NO_DELETE_POLICY: "cleanup.policy has no delete",
        RetentionReason.REMOTE_STORAGE: (
            "remote.storage.enable: only Kafka knows what is copied already"
        ),
        RetentionReason.ABOVE_HIGH_WATERMARK: (
            f"reaches above the high watermark {plan.log.high_watermark}"
        ),
        RetentionReason.EMPTY_ACTIVE: "empty: the log goes on with it",
    }
    return texts.get(finding.reason, "")


def _own_age(plan: RetentionPlan, verdict: SegmentDecision) -> str:
    """What time alone would say of a segment that another one keeps."""
    segment, config = verdict.segment, plan.config
    if not config.is_deleted or config.retention_ms < 0 or not segment.size_bytes:
        return ""
    left_ms = segment.newest_ms + config.retention_ms - plan.now_ms
    if left_ms < 0:
        return f"expired {duration_text(-left_ms)} ago"
    if segment.largest_timestamp > plan.now_ms:
        return _future(plan, verdict)
    return f"expires in {duration_text(left_ms + 1)}"


def _future(plan: RetentionPlan, verdict: SegmentDecision) -> str:
    segment = verdict.segment
    ahead = duration_text(segment.largest_timestamp - plan.now_ms)
    return f"has a timestamp {ahead} in the future, of offset {segment.timestamp_offset}"


# -- JSON


def partition_row(outcome: Planned, *, is_done: bool) -> dict[str, Any]:
    """The log as a whole."""
    plan, unknown, settings = outcome
    config = plan.config.as_dict()
    return {
        "kind": "partition",
        **plan.log.topic_partition._asdict(),
        "path": str(plan.log.path),
        "nowMs": plan.now_ms,
        "isDryRun": not is_done,
        "config": {name: None if name in unknown else config[name] for name in SETTINGS},
        "configSources": {
            name: None if name in unknown else settings.source_of(name).value for name in SETTINGS
        },
        "settingsUnknown": settings.unknown,
        "segments": len(plan.verdicts),
        "deletedSegments": len(plan.deleted),
        "deletedBytes": plan.deleted_bytes,
        "keptBytes": plan.kept_bytes,
        "logStartOffset": plan.log.log_start_offset,
        "newLogStartOffset": plan.new_log_start_offset,
        "highWatermark": plan.log.high_watermark,
        "logEndOffset": plan.log.log_end_offset,
        "rollsActiveSegment": plan.rolls,
        "error": None,
    }


def segment_row(plan: RetentionPlan, verdict: SegmentDecision) -> dict[str, Any]:
    """One segment."""
    segment = verdict.segment
    return {
        "kind": "segment",
        **plan.log.topic_partition._asdict(),
        "path": str(segment.path),
        "baseOffset": segment.base_offset,
        "endOffset": segment.end_offset,
        "sizeBytes": segment.size_bytes,
        "isActive": segment.is_active,
        "largestTimestamp": None if segment.uses_mtime else segment.largest_timestamp,
        "timestampOffset": None if segment.uses_mtime else segment.timestamp_offset,
        "modifiedMs": segment.mtime_ms if segment.uses_mtime else None,
        "action": "delete" if verdict.is_deleted else "keep",
        "findings": [
            {"pass": found.by.value, "reason": found.reason.value, "amount": found.amount}
            for found in verdict.findings
        ],
        "leavesMs": verdict.leaves_ms,
        "why": why(plan, verdict),
    }


def leaving_text(plan: RetentionPlan) -> str | None:
    """When time takes the next segment, if nothing is appended and nothing else takes it."""
    leaves_ms = next((v.leaves_ms for v in plan.verdicts if not v.is_deleted), None)
    return None if leaves_ms is None else f"the next one goes at {format_time(leaves_ms)}"
