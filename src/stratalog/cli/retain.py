"""`stratalog retain`: delete old segments as a Kafka broker would, or say what it would delete.

A plan is made read-only, without a lock. Only if there is something to delete, and that is wanted,
the log directory is opened for writing, and each log is planned again under the lock.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.arguments import (
    ConfigOption,
    LogDirOption,
    MetadataLogDirOption,
    ServerPropertiesOption,
)
from stratalog.cli.inventory import label_of
from stratalog.cli.output import json_line, print_truncations, report_error, report_line
from stratalog.cli.overrides import Overrides
from stratalog.cli.retention_plans import LIMITS, Failed, Planned, Rules, look
from stratalog.cli.retention_text import (
    COLUMNS,
    leaving_text,
    legend,
    partition_row,
    rows,
    segment_row,
    settings_text,
    summary,
)
from stratalog.cli.tables import counted, human_size, print_table
from stratalog.cli.targets import not_a_directory
from stratalog.cli.when import TIME_HELP, NotAPointError, format_time, parse_time
from stratalog.errors import StratalogError, UnknownSettingsError
from stratalog.maintenance.retention import apply, plan_retention, retention_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stratalog.cli.retention_plans import Outcome
    from stratalog.log_dir import LogDir
    from stratalog.maintenance.retention import RetentionPlan


def run(  # noqa: PLR0913, PLR0917  # a parameter is a flag
    where: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WHERE",
            help="Log directories (default: the current one), TOPIC or TOPIC:PARTITION in them, "
            "or partition directories.",
            show_default=False,
        ),
    ] = None,
    log_dir: LogDirOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be deleted; change nothing.")
    ] = False,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="For every segment what takes or keeps it; dry run."),
    ] = False,
    config: ConfigOption = None,
    server_properties: ServerPropertiesOption = None,
    metadata_log_dir: MetadataLogDirOption = None,
    defaults: Annotated[
        bool,
        typer.Option("--defaults", help="Go by Kafka's default limits where they are unknown."),
    ] = False,
    now: Annotated[
        str | None, typer.Option("--now", metavar="TIME", help=f"As if it were: {TIME_HELP}.")
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object a line: exact numbers, milliseconds."),
    ] = False,
) -> None:
    """Delete old segments, as a Kafka broker does by retention.ms and retention.bytes.

    Whole segments go, oldest first: those below the log start offset, then those beyond
    retention.bytes, then those whose newest record is older than retention.ms. The first segment
    that stays keeps all behind it. With cleanup.policy=compact only the first rule holds.

    --dry-run and --explain lock and write nothing, so they may look at a directory that a broker
    uses. Otherwise the directory is locked, recovered if need be, and files are removed at once.

    The settings of a Kafka cluster's topics are read from the cluster's metadata, in the first of
    a node's log directories or in --metadata-log-dir. Limits that are not in it come from
    --server-properties, or with --defaults are Kafka's; else they do not apply. Where the metadata
    is missing, or does not know the topic, nothing is deleted until --config cleanup.policy=...
    says which policy holds. --explain shows where each setting comes from.

    \b
    Examples:
      stratalog retain /var/lib/kafka/data --explain
      stratalog retain /var/lib/kafka/data orders -c retention.ms=86400000 --dry-run
      stratalog retain /mnt/copy/orders-3 -c cleanup.policy=delete -c retention.bytes=1073741824
      stratalog retain data --explain --now 2027-01-01 --json | jq 'select(.action == "delete")'

    With --json each object has a kind: segment, partition or summary.
    """
    is_done = not (dry_run or explain)
    if now is not None and is_done:
        raise typer.BadParameter("--now goes with --dry-run and --explain only")
    for text in where or []:
        if Path(text).is_file():
            raise not_a_directory(Path(text))
    given = Overrides.parse(config or [], server_properties, metadata_log_dir)
    rules = Rules(_time_of(now), given, uses_defaults=defaults)
    outcomes = look(where or [], log_dir or [], rules)
    _note_unknown(outcomes)
    if is_done:
        outcomes = act(outcomes, rules)
    if as_json:
        _print_json(outcomes, is_done=is_done)
    else:
        _print_text(outcomes, is_done=is_done, is_explained=explain)
    if any(isinstance(outcome, Failed) for outcome in outcomes):
        raise typer.Exit(1)


def _time_of(now: str | None) -> int:
    now_ms = time.time_ns() // 1_000_000
    try:
        return now_ms if now is None else parse_time(now, now_ms=now_ms)
    except NotAPointError as error:
        raise typer.BadParameter(str(error)) from None


# -- acting


def act(outcomes: Sequence[Outcome], rules: Rules) -> list[Outcome]:
    """Do what was planned, and tell what came of it."""
    done: list[Outcome] = []
    wanted: dict[Path, list[Planned]] = {}
    for outcome in outcomes:
        if isinstance(outcome, Failed) or not outcome.plan.deleted:
            done.append(outcome)
        elif outcome.settings.unknown is not None:
            place = outcome.plan.log.topic_partition
            refused = UnknownSettingsError(place.topic, outcome.settings.unknown)
            done.append(Failed(place, f"{refused} (--config)"))
        else:
            wanted.setdefault(outcome.plan.log.path.resolve().parent, []).append(outcome)
    for root, planned in wanted.items():
        done += _act_in(root, planned, rules)
    return done


def _act_in(root: Path, planned: Sequence[Planned], rules: Rules) -> Iterator[Outcome]:
    from stratalog.log_dir import LogDir  # noqa: PLC0415  # loads the whole engine

    try:
        logs = LogDir.open(
            root,
            config=rules.settings.broker,
            create=False,
            background=False,
            missing_dirs="offline",
            recover_all=False,
        )
    except StratalogError as error:
        for outcome in planned:
            yield Failed(outcome.plan.log.topic_partition, str(error))
        return
    for outcome in planned:
        yield _retain(logs, outcome, rules)
    try:
        logs.close()
    except StratalogError as error:
        yield Failed(None, f"{root}: cannot be closed in good order: {error}")


def _retain(logs: LogDir, outcome: Planned, rules: Rules) -> Outcome:
    topic_partition = outcome.plan.log.topic_partition
    try:
        log = logs.partition(*topic_partition)
        with log.maintenance.lock:
            facts = retention_log(log, rules.now_ms)
            plan = plan_retention(facts, outcome.plan.config, rules.now_ms)
            apply(log, plan)
        log.maintenance.remove_discarded(rules.now_ms, at_once=True)
    except StratalogError as error:
        return Failed(topic_partition, str(error))
    return Planned(plan, outcome.unknown, outcome.settings)


# -- printing


def _note_unknown(outcomes: Sequence[Outcome]) -> None:
    plans = [outcome for outcome in outcomes if isinstance(outcome, Planned) and outcome.unknown]
    names = [name for name in LIMITS if any(name in outcome.unknown for outcome in plans)]
    if names:
        report_line(
            f"stratalog: note: {' and '.join(names)} of {counted(len(plans), 'partition')} not "
            "known here, so there is no limit by that; give it with --config or "
            "--server-properties, or --defaults to go by Kafka's"
        )


def _print_json(outcomes: Sequence[Outcome], *, is_done: bool) -> None:
    for outcome in outcomes:
        for row in _json_rows(outcome, is_done=is_done):
            print(json_line(row))
    plans = [outcome.plan for outcome in outcomes if isinstance(outcome, Planned)]
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


def _json_rows(outcome: Outcome, *, is_done: bool) -> Iterator[dict[str, Any]]:
    if isinstance(outcome, Failed):
        name = outcome.topic_partition
        topic, number = (None, None) if name is None else name
        report_error(_failure_text(outcome))
        yield {
            "kind": "partition",
            "topic": topic,
            "partition": number,
            "error": outcome.message,
        }
        return
    for verdict in outcome.plan.verdicts:
        yield segment_row(outcome.plan, verdict)
    yield partition_row(outcome, is_done=is_done)


def _failure_text(failed: Failed) -> str:
    name = failed.topic_partition
    return failed.message if name is None else f"{label_of(name)}: {failed.message}"


def _print_text(outcomes: Sequence[Outcome], *, is_done: bool, is_explained: bool) -> None:
    plans = [outcome for outcome in outcomes if isinstance(outcome, Planned)]
    show: Callable[[Planned], None] = _explain if is_explained else _summarise(is_done=is_done)
    for outcome in outcomes:
        if isinstance(outcome, Failed):
            report_error(_failure_text(outcome))
        else:
            show(outcome)
    if plans or not outcomes:
        _print_total([outcome.plan for outcome in plans], is_done=is_done)


def _summarise(*, is_done: bool) -> Callable[[Planned], None]:
    def show(outcome: Planned) -> None:
        if outcome.plan.deleted:
            is_refused = outcome.settings.unknown is not None
            more = "; only with --config cleanup.policy=..., which is unknown" * is_refused
            print(summary(outcome.plan, is_done=is_done) + more)

    return show


def _explain(outcome: Planned) -> None:
    plan = outcome.plan
    print(summary(plan, is_done=False))
    print(f"  as of {format_time(plan.now_ms)}, by {settings_text(outcome)}")
    if outcome.settings.unknown is not None:
        print(
            "  the cleanup.policy is assumed, and nothing is deleted until --config gives it: "
            f"{outcome.settings.unknown}"
        )
    print_table(COLUMNS, rows(plan))
    for line in legend(plan):
        print(f"  {line}")
    if (leaving := leaving_text(plan)) is not None:
        print(f"  {leaving}")
    print()


def _print_total(plans: Sequence[RetentionPlan], *, is_done: bool) -> None:
    segments = sum(len(plan.deleted) for plan in plans)
    size_bytes = sum(plan.deleted_bytes for plan in plans)
    kept_bytes = sum(plan.kept_bytes for plan in plans)
    done = "deleted" if is_done else "would delete"
    what = f"{done} {counted(segments, 'segment')}, {human_size(size_bytes)}"
    if not segments:
        what = "nothing to delete"
    print(f"{counted(len(plans), 'partition')}: {what}; {human_size(kept_bytes)} stay")
