"""`stratalog retain`: delete old segments as a Kafka broker does, or show what it would delete.

Plans are made without a lock and without writing. The log directory is opened for writing only if
there is something to delete; then each log is planned again under the lock.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from stratalog.cli.arguments import (
    ConfigOption,
    DefaultsOption,
    DryRunOption,
    JsonOption,
    LogDirOption,
    SettingsFiles,
    WhereArgument,
    flag,
    locked_text,
    now_option,
    now_or,
    with_groups,
)
from stratalog.cli.output import Progress, json_line, print_truncations, report_error, report_line
from stratalog.cli.settings import Overrides
from stratalog.cli.tables import (
    Column,
    columns_of,
    counted,
    duration_text,
    human_size,
    print_table,
    table_time,
)
from stratalog.cli.targets import lazy_targets, not_a_directory
from stratalog.errors import LogDirLockedError, StratalogError, UnknownSettingsError
from stratalog.format.batch import NO_TIMESTAMP
from stratalog.format.names import CLUSTER_METADATA_TOPIC
from stratalog.format.times import format_time
from stratalog.maintenance.retention import (
    RetentionReason,
    RetentionRule,
    apply,
    plan_retention,
    retention_log,
)
from stratalog.partitions.inventory import label_of
from stratalog.partitions.retention_plans import (
    LIMITS,
    FailedPartition,
    PlannedRetention,
    RetentionPlanner,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stratalog.cli.tables import Row
    from stratalog.config import BrokerConfig
    from stratalog.log.partition_view import PartitionView
    from stratalog.log_dir import LogDir
    from stratalog.maintenance.retention import RetentionPlan, RuleResult, SegmentDecision
    from stratalog.partitions.retention_plans import RetentionOutcome

ExplainOption = Annotated[
    bool, flag("--explain", "Show for each segment why it is deleted or kept. Writes nothing.")
]


@with_groups
def run(  # noqa: PLR0913  # a parameter is a flag
    where: WhereArgument = None,
    log_dir: LogDirOption = None,
    dry_run: DryRunOption = False,
    explain: ExplainOption = False,
    config: ConfigOption = None,
    *,
    settings_files: SettingsFiles,
    defaults: DefaultsOption = False,
    now: Annotated[str | None, now_option("--dry-run or --explain")] = None,
    as_json: JsonOption = False,
) -> None:
    """Delete old segments, as a Kafka broker does by retention.ms and retention.bytes.

    Segments are deleted from the oldest on: first those below the log start offset, then those in
    excess of retention.bytes, then those whose newest record is older than retention.ms. Once a
    segment is kept, all later segments are kept as well. With cleanup.policy=compact, only segments
    below the log start offset are deleted.

    --dry-run and --explain take no lock and never write, so they are safe on the directory of a
    running broker. Otherwise the command locks the directory, recovers logs if necessary, and
    deletes files immediately.

    Topic settings are read from the cluster's metadata. If it lacks a limit, the limit is taken
    from --server-properties or, with --defaults, from Kafka's defaults; otherwise there is no
    limit. If the settings of a topic are unknown, nothing is deleted unless you give --config
    cleanup.policy=... --explain shows the source of each setting.

    \b
    Examples:
      stratalog retain /var/lib/kafka/data --explain
      stratalog retain /var/lib/kafka/data orders -c retention.ms=1d --dry-run
      stratalog retain /mnt/copy/orders-3 -c cleanup.policy=delete -c retention.bytes=1GiB
      stratalog retain data --explain --now 2027-01-01 --json | jq 'select(.action == "delete")'

    With --json, each object has a kind: segment, partition or summary.
    """
    is_done = not (dry_run or explain)
    if now is not None and is_done:
        raise typer.BadParameter("--now requires --dry-run or --explain")
    for text in where or []:
        if Path(text).is_file():
            raise not_a_directory(Path(text))
    given = Overrides.parse(config or [], *settings_files)
    now_ms = now_or(now, "--now")
    views, outcomes = _open(where or [], log_dir or [])
    named = (path for path in map(Path, where or []) if path.is_dir())  # may have the metadata only
    roots = (*(log_dir or []), *(view.path.absolute().parent for view in views), *named)
    planner = RetentionPlanner(
        given.finder(roots),
        now_ms,
        overrides=given.of_topics,
        has_broker_config=given.has_properties,
        uses_defaults=defaults,
    )
    outcomes += _plan(views, planner)
    _note_unknown(outcomes)
    if is_done:
        outcomes = _delete(outcomes, now_ms, given.broker)
    _report_failures(outcomes)
    if as_json:
        _print_json(outcomes, is_done=is_done)
    else:
        _print_text(outcomes, is_done=is_done, is_explained=explain)
    if any(isinstance(outcome, FailedPartition) for outcome in outcomes):
        raise typer.Exit(1)


def _open(
    where: Sequence[str], log_dirs: Sequence[Path]
) -> tuple[list[PartitionView], list[RetentionOutcome]]:
    """The partitions named, and those that could not be opened."""
    views: list[PartitionView] = []
    failed: list[RetentionOutcome] = []
    for opener in lazy_targets(where, log_dirs).openers():
        try:
            views += opener()
        except StratalogError as error:
            failed.append(FailedPartition(None, str(error)))
    return views, failed


def _plan(views: Sequence[PartitionView], planner: RetentionPlanner) -> Iterator[RetentionOutcome]:
    progress = Progress(sum(view.size_bytes for view in views), is_output_last=True)
    done_bytes = 0
    for view in views:
        if view.topic_partition.topic != CLUSTER_METADATA_TOPIC:  # controllers delete from it
            with view:
                yield planner.plan(view)
        done_bytes += view.size_bytes
        progress.update(done_bytes)
    progress.clear()


# -- deleting


def _delete(
    outcomes: Sequence[RetentionOutcome], now_ms: int, broker: BrokerConfig
) -> list[RetentionOutcome]:
    """Delete what was planned, one log directory after the other."""
    done: list[RetentionOutcome] = []
    wanted: dict[Path, list[PlannedRetention]] = {}
    for outcome in outcomes:
        if isinstance(outcome, FailedPartition) or not outcome.plan.deleted:
            done.append(outcome)
        elif outcome.settings.unknown is not None:
            place = outcome.plan.log.topic_partition
            refused = UnknownSettingsError(place.topic, outcome.settings.unknown)
            done.append(FailedPartition(place, f"{refused} (--config)"))
        else:
            wanted.setdefault(outcome.plan.log.path.resolve().parent, []).append(outcome)
    for root, planned in wanted.items():
        done += _delete_in(root, planned, now_ms, broker)
    return done


def _delete_in(
    root: Path, planned: Sequence[PlannedRetention], now_ms: int, broker: BrokerConfig
) -> Iterator[RetentionOutcome]:
    from stratalog.log_dir import LogDir  # noqa: PLC0415  # heavy

    try:
        logs = LogDir.open(
            root,
            config=broker,
            create=False,
            background=False,
            missing_dirs="offline",
            recover_all=False,
        )
    except LogDirLockedError as error:
        for outcome in planned:
            yield FailedPartition(outcome.plan.log.topic_partition, locked_text(error))
        return
    except StratalogError as error:
        for outcome in planned:
            yield FailedPartition(outcome.plan.log.topic_partition, str(error))
        return
    for outcome in planned:
        yield _retain(logs, outcome, now_ms)
    try:
        logs.close()
    except StratalogError as error:
        yield FailedPartition(None, f"{root}: not shut down cleanly: {error}")


def _retain(logs: LogDir, outcome: PlannedRetention, now_ms: int) -> RetentionOutcome:
    topic_partition = outcome.plan.log.topic_partition
    try:
        log = logs.partition(*topic_partition)
        with log.maintenance.lock:
            plan = plan_retention(retention_log(log, now_ms), outcome.plan.config, now_ms)
            apply(log, plan)
        log.maintenance.remove_discarded(now_ms, at_once=True)
    except StratalogError as error:
        return FailedPartition(topic_partition, str(error))
    return outcome._replace(plan=plan)


# -- JSON

SETTINGS: Final = ("cleanup.policy", "retention.ms", "retention.bytes")


def _print_json(outcomes: Sequence[RetentionOutcome], *, is_done: bool) -> None:
    for outcome in outcomes:
        for row in _json_rows(outcome, is_done=is_done):
            print(json_line(row))
    plans = [outcome.plan for outcome in outcomes if isinstance(outcome, PlannedRetention)]
    total = {
        "kind": "summary",
        "isDryRun": not is_done,
        "partitions": len(plans),
        "failed": len(outcomes) - len(plans),
        "deletedSegments": sum(len(plan.deleted) for plan in plans),
        "deletedBytes": sum(plan.deleted_bytes for plan in plans),
        "keptBytes": sum(plan.kept_bytes for plan in plans),
    }
    print_truncations()
    print(json_line(total))


def _json_rows(outcome: RetentionOutcome, *, is_done: bool) -> Iterator[dict[str, Any]]:
    if isinstance(outcome, FailedPartition):
        topic, number = outcome.topic_partition or (None, None)
        yield {"kind": "partition", "topic": topic, "partition": number, "error": outcome.message}
        return
    for decision in outcome.plan.decisions:
        yield _segment_row(outcome.plan, decision)
    yield _partition_row(outcome, is_done=is_done)


def _partition_row(outcome: PlannedRetention, *, is_done: bool) -> dict[str, Any]:
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
        "segments": len(plan.decisions),
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


def _segment_row(plan: RetentionPlan, decision: SegmentDecision) -> dict[str, Any]:
    segment = decision.segment
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
        "action": "delete" if decision.is_deleted else "keep",
        "findings": [
            {"pass": found.by.value, "reason": found.reason.value, "amount": found.amount}
            for found in decision.results
        ],
        "leavesMs": decision.expires_ms,
        "why": _reason(plan, decision),
    }


# -- text


def _note_unknown(outcomes: Sequence[RetentionOutcome]) -> None:
    plans = [each for each in outcomes if isinstance(each, PlannedRetention) and each.unknown]
    names = [name for name in LIMITS if any(name in outcome.unknown for outcome in plans)]
    if names:
        verb = "is" if len(names) == 1 else "are"
        report_line(
            f"stratalog: note: {' and '.join(names)} {verb} unknown for "
            f"{counted(len(plans), 'partition')}, and not applied; give --config or "
            "--server-properties, or apply Kafka's defaults with --defaults"
        )


def _report_failures(outcomes: Sequence[RetentionOutcome]) -> None:
    """Each message once: a lock, for instance, concerns all partitions of a directory."""
    failed: dict[str, list[FailedPartition]] = {}
    for outcome in outcomes:
        if isinstance(outcome, FailedPartition):
            failed.setdefault(outcome.message, []).append(outcome)
    for message, (first, *others) in failed.items():
        name = first.topic_partition
        report_error(message if name is None or others else f"{label_of(name)}: {message}")


def _print_text(outcomes: Sequence[RetentionOutcome], *, is_done: bool, is_explained: bool) -> None:
    plans = [outcome for outcome in outcomes if isinstance(outcome, PlannedRetention)]
    show: Callable[[PlannedRetention], None] = (
        _explain if is_explained else lambda outcome: _print_summary(outcome, is_done=is_done)
    )
    for outcome in plans:
        show(outcome)
    if plans or not outcomes:
        _print_total([outcome.plan for outcome in plans], is_done=is_done)


def _print_summary(outcome: PlannedRetention, *, is_done: bool) -> None:
    if outcome.plan.deleted:
        is_refused = outcome.settings.unknown is not None
        more = "; requires --config cleanup.policy=..., which is unknown" if is_refused else ""
        print(_summary(outcome.plan, is_done=is_done) + more)


def _explain(outcome: PlannedRetention) -> None:
    plan = outcome.plan
    print(_summary(plan, is_done=False))
    print(f"  as of {format_time(plan.now_ms)}, with {_settings_text(outcome)}")
    if outcome.settings.unknown is not None:
        print(
            "  cleanup.policy is assumed; nothing is deleted unless --config sets it: "
            f"{outcome.settings.unknown}"
        )
    columns = columns_of("SEGMENT | SIZE#/2 | NEWEST/1 | ACTION", Column("REASON", fold_at=40))
    print_table(columns, [_segment_cells(plan, decision) for decision in plan.decisions])
    print("  * the active segment")
    if any(decision.segment.uses_mtime for decision in plan.decisions):
        print("  ~ the modification time of the file, because no record has a timestamp")
    expires_ms = next((v.expires_ms for v in plan.decisions if not v.is_deleted), None)
    if expires_ms is not None:
        print(f"  the next segment expires at {format_time(expires_ms)}")
    print()


def _segment_cells(plan: RetentionPlan, decision: SegmentDecision) -> Row:
    segment = decision.segment
    return (
        f"{segment.base_offset:020d}" + (" *" if segment.is_active else ""),
        human_size(segment.size_bytes),
        table_time(segment.newest_ms) + ("~" if segment.uses_mtime else ""),
        "delete" if decision.is_deleted else "keep",
        _reason(plan, decision),
    )


def _print_total(plans: Sequence[RetentionPlan], *, is_done: bool) -> None:
    segments = sum(len(plan.deleted) for plan in plans)
    size_bytes = sum(plan.deleted_bytes for plan in plans)
    kept_bytes = sum(plan.kept_bytes for plan in plans)
    done = "deleted" if is_done else "would delete"
    what = f"{done} {counted(segments, 'segment')}, {human_size(size_bytes)}"
    if not segments:
        what = "nothing to delete"
    print(f"{counted(len(plans), 'partition')}: {what}; {human_size(kept_bytes)} kept")


def _summary(plan: RetentionPlan, *, is_done: bool) -> str:
    """One line for the partition."""
    label, count = label_of(plan.log.topic_partition), len(plan.decisions)
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


def _settings_text(outcome: PlannedRetention) -> str:
    """The settings that decide, and their sources."""
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


# -- why a segment is deleted or kept


def _reason(plan: RetentionPlan, decision: SegmentDecision) -> str:
    first = decision.results[0]
    if first.is_deletion:
        return _why_deleted(plan, first)
    if first.reason is RetentionReason.AFTER_KEPT:
        return _kept_by_earlier(plan, decision)
    texts = [_why_kept(plan, decision, finding) for finding in decision.results]
    return "; ".join(dict.fromkeys(text for text in texts if text))


def _why_deleted(plan: RetentionPlan, finding: RuleResult) -> str:
    if finding.by is RetentionRule.START_OFFSET:
        return f"below the log start offset {plan.log.log_start_offset}"
    if finding.by is RetentionRule.SIZE:
        over = human_size(finding.amount)
        return f"with it the log exceeds retention.bytes by {over}" if finding.amount else "empty"
    return f"expired {duration_text(finding.amount)} ago"


def _kept_by_earlier(plan: RetentionPlan, decision: SegmentDecision) -> str:
    """The earlier segment that is kept longest, unless its own records keep it longer."""
    segment = decision.segment
    own = _own_age(plan, decision)
    if decision.expires_ms is None:
        holder = plan.kept[0]
        text = f"after {holder.base_offset:020d}, which is kept"
    else:
        before = [kept for kept in plan.kept if kept.base_offset <= segment.base_offset]
        holder = max(before, key=lambda kept: kept.newest_ms)
        if holder.newest_ms == segment.newest_ms:
            return own
        until = format_time(decision.expires_ms)
        text = f"after {holder.base_offset:020d}, which is kept until {until}"
    return text + (f"; this one {own}" if own else "")


def _why_kept(plan: RetentionPlan, decision: SegmentDecision, finding: RuleResult) -> str:
    """Empty for the obvious: there is no size limit, or records are above the log start offset."""
    amount = finding.amount
    if finding.reason is RetentionReason.FUTURE_TIMESTAMP:
        return (
            f"{_future(plan, decision)}, which keeps this and all later segments until "
            f"{format_time(decision.expires_ms or NO_TIMESTAMP)}"
        )
    if finding.reason is RetentionReason.WITHIN_SIZE:
        return f"{human_size(amount)} below the size at which retention.bytes deletes it"
    if finding.reason is RetentionReason.NO_LIMIT and finding.by is RetentionRule.TIME:
        return "there is no limit by age"
    texts = {
        RetentionReason.NOT_EXPIRED: f"expires in {duration_text(amount)}",
        RetentionReason.NO_DELETE_POLICY: "cleanup.policy does not include delete",
        RetentionReason.REMOTE_STORAGE: (
            "remote.storage.enable is set; only Kafka knows what is already copied"
        ),
        RetentionReason.ABOVE_HIGH_WATERMARK: (
            f"has records above the high watermark {plan.log.high_watermark}"
        ),
        RetentionReason.PENDING_COMMIT: (
            f"a bulk commit from offset {plan.log.pending_commit_offset} on is not finished"
        ),
        RetentionReason.EMPTY_ACTIVE: "empty active segment",
    }
    return texts.get(finding.reason, "")


def _own_age(plan: RetentionPlan, decision: SegmentDecision) -> str:
    """What retention.ms alone would do to a segment that an earlier one keeps."""
    segment, config = decision.segment, plan.config
    if not config.has_delete_policy or config.retention_ms < 0 or not segment.size_bytes:
        return ""
    left_ms = segment.newest_ms + config.retention_ms - plan.now_ms
    if left_ms < 0:
        return f"expired {duration_text(-left_ms)} ago"
    if segment.largest_timestamp > plan.now_ms:
        return _future(plan, decision)
    return f"expires in {duration_text(left_ms + 1)}"


def _future(plan: RetentionPlan, decision: SegmentDecision) -> str:
    segment = decision.segment
    ahead = duration_text(segment.largest_timestamp - plan.now_ms)
    return f"has a timestamp {ahead} in the future (offset {segment.timestamp_offset})"
