"""`stratalog compact`: compact topics; or show what is eligible, and what happens to a key.

`--dry-run`, `--explain` and `--key` take no lock and never write. Otherwise the log directory is
opened for writing.
"""

from __future__ import annotations

import time as clock
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path  # Typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple

import typer

from stratalog.cli.arguments import (
    ConfigOption,
    DirectoryArgument,
    DryRunOption,
    JsonOption,
    SettingsFiles,
    TopicsArgument,
    flag,
    key_bytes,
    now_option,
    now_or,
    option,
    with_groups,
)
from stratalog.cli.output import (
    AddedProgress,
    Progress,
    json_line,
    print_truncations,
    report_error,
    report_line,
    summary_row,
)
from stratalog.cli.records import visible
from stratalog.cli.settings import Overrides
from stratalog.cli.tables import (
    NOTHING,
    Column,
    columns_of,
    counted,
    human_size,
    print_table,
    table_time,
)
from stratalog.cli.targets import TopicSpec, open_topic
from stratalog.cli.workers import SparkOptions
from stratalog.config import BrokerConfig, LogConfig
from stratalog.config.topic import CleanupPolicy
from stratalog.errors import StratalogError, UnknownSettingsError
from stratalog.format.names import CLUSTER_METADATA_TOPIC, RootFile
from stratalog.format.times import format_time
from stratalog.maintenance.cleaning.key_trace import NextEvent
from stratalog.maintenance.cleaning.plan import (
    BoundKind,
    cleaner_log,
    group_segments,
    plan_cleaning,
)
from stratalog.partitions.settings import EffectiveConfig
from stratalog.partitions.view import LogDirsView, open_dirs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stratalog.format.names import TopicPartition
    from stratalog.log.partition_log import PartitionLog
    from stratalog.log.partition_view import PartitionView
    from stratalog.log_dir import LogDir
    from stratalog.maintenance.cleaning.key_trace import KeyTrace, RecordTrace
    from stratalog.maintenance.cleaning.plan import (
        CleaningBound,
        CleaningPlan,
        CleaningResult,
        LogCleaner,
    )
    from stratalog.maintenance.cleaning.preview import CleaningPreview

FAILS_WHEN = "a partition could not be compacted or read, or no record has the key"
KeyFormat = Literal["utf-8", "hex", "base64"]

PASSES_MAX: Final = 10_000
"""Every pass but the last fills the offset map. A log that needs more than this is growing."""
SETTINGS: Final = (
    "cleanup.policy",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
    "delete.retention.ms",
)
"""The settings that decide whether and how a log is compacted."""


@with_groups
def run(  # noqa: PLR0913, PLR0917  # a parameter is a flag
    directory: DirectoryArgument,
    topics: TopicsArgument = None,
    dry_run: DryRunOption = False,
    explain: Annotated[
        bool,
        flag(
            "--explain", "Show for each partition what would be compacted, and why. Writes nothing."
        ),
    ] = False,
    key: Annotated[
        str | None,
        option(
            "--key",
            "KEY",
            "Show where the records of a key are, and what compaction would do to each. Writes "
            "nothing.",
        ),
    ] = None,
    key_format: Annotated[KeyFormat, typer.Option(help="Format of KEY.")] = "utf-8",
    now: Annotated[str | None, now_option("--dry-run, --explain or --key")] = None,
    config: ConfigOption = None,
    *,
    settings_files: SettingsFiles,
    force: Annotated[
        bool,
        flag(
            "--force",
            "Compact all partitions with dirty segments, even if they are not eligible yet.",
        ),
    ] = False,
    spark: SparkOptions,
    as_json: JsonOption = False,
) -> None:
    """Compact topics by key: keep at least the last record of each key.

    If you name no topics, all topics whose cleanup.policy includes compact are compacted. --dry-run
    and --explain list all topics, and why each is eligible or not. --dry-run also reads the
    eligible partitions and shows how much space compaction would free.

    A cleaning pass starts where the last one ended. It stops at the active segment, at the first
    open transaction, or at the first segment younger than min.compaction.lag.ms, whichever comes
    first. A partition is eligible when its dirty part is large enough (min.cleanable.dirty.ratio)
    or old enough (max.compaction.lag.ms).

    --dry-run, --explain and --key take no lock and never write, so they are safe on the directory
    of a running broker. Otherwise the command locks the directory, and recovers logs if necessary.

    Topic settings are read from the cluster's metadata. A topic whose settings are unknown is not
    compacted, unless you name it and give --config cleanup.policy=compact. --explain shows the
    source of each setting.

    \b
    Examples:
      stratalog compact /var/lib/kafka/data --dry-run
      stratalog compact /var/lib/kafka/data orders:3 --explain
      stratalog compact /var/lib/kafka/data customers --key customer-17
      stratalog compact /var/lib/kafka/data customers -c cleanup.policy=compact --force
      stratalog compact /mnt/shared/data --master spark://host:7077

    With --json, the command prints one object of kind partition for each partition. The last object
    is of kind summary, except with --key.
    """
    spark.check()
    is_read_only = dry_run or explain or key is not None
    if now is not None and not is_read_only:
        raise typer.BadParameter("--now requires --dry-run, --explain or --key")
    given = Overrides.parse(config or (), *settings_files)
    request = CompactionRequest(directory, tuple(map(TopicSpec.parse, topics or ())), given)
    now_ms = now_or(now, "--now")
    if key is not None:
        _show_key(request, key_bytes(key, key_format), now_ms, as_json=as_json)
    elif is_read_only:
        _show_plans(request, now_ms, (explain, dry_run), as_json=as_json)
    else:
        with _cleaner(given.broker, spark) as cleaner:
            _compact(request, cleaner, is_forced=force, as_json=as_json)


class CompactionRequest(NamedTuple):
    """What to compact, and with which settings."""

    directory: Path
    specs: tuple[TopicSpec, ...]
    settings: Overrides


# -- plans: nothing is written


class PlannedPartition(NamedTuple):
    """One partition, and what a cleaning pass would do to it."""

    view: PartitionView
    settings: EffectiveConfig
    plan: CleaningPlan
    preview: CleaningPreview | None = None
    """What a pass would leave; None if the partition is not eligible."""

    @property
    def freed_bytes(self) -> int:
        return 0 if self.preview is None else self.preview.freed_bytes


class Failures:
    """Reports and counts partitions that fail; the others continue."""

    count = 0

    @contextmanager
    def reported(self, topic_partition: TopicPartition) -> Iterator[None]:
        try:
            yield
        except StratalogError as error:
            self.count += 1
            report_error(f"{topic_partition}: {error}")


def _planned(
    request: CompactionRequest, now_ms: int, failures: Failures, *, compacted_only: bool
) -> Iterator[PlannedPartition]:
    """Every partition that is named, or else all; or those that are compacted."""
    dirs = open_dirs(request.directory)
    finder = request.settings.finder()
    checkpoints = dirs.dirs[0].checkpoint(RootFile.CLEANER_OFFSETS)
    for view in _views(dirs, request.specs):
        with view:
            planned = None
            with failures.reported(view.topic_partition):
                settings = finder.of(view).given(request.settings.of_topics)
                is_compacted = CleanupPolicy.COMPACT in settings.config.cleanup_policy
                if request.specs or is_compacted or not compacted_only:
                    checkpoint = checkpoints.get(view.topic_partition)
                    planned = PlannedPartition(
                        view, settings, _plan(view, checkpoint, settings, now_ms)
                    )
            if planned is not None:
                yield planned


def _plan(
    view: PartitionView, checkpoint: int | None, settings: EffectiveConfig, now_ms: int
) -> CleaningPlan:
    """A partition whose settings are unknown is not eligible, for that reason."""
    plan = plan_cleaning(cleaner_log(view, checkpoint), settings.config, now_ms)
    if settings.unknown is None:
        return plan
    reason = str(UnknownSettingsError(view.topic_partition.topic, settings.unknown))
    return replace(plan, is_selected=False, reasons=(reason,))


def _views(dirs: LogDirsView, specs: Sequence[TopicSpec]) -> Iterator[PartitionView]:
    for spec in specs:
        yield from open_topic(dirs, spec)
    if not specs:
        for topic, partition in dirs.topic_partitions:
            if topic != CLUSTER_METADATA_TOPIC:  # controllers write snapshots of it instead
                yield dirs.partition(topic, partition)


def _show_plans(
    request: CompactionRequest, now_ms: int, how: tuple[bool, bool], *, as_json: bool
) -> None:
    """`how`: whether to explain, and whether to read the logs for what would be freed."""
    is_long, previews = how
    failures = Failures()
    found = _planned(request, now_ms, failures, compacted_only=False)
    planned = [_previewed(each, failures) if previews else each for each in found]
    if as_json:
        for each in planned:
            row = _plan_row(each.plan, each.settings)
            print(json_line({**row, "freedBytes": each.freed_bytes if previews else None}))
        print(json_line(_plans_row(planned, failures.count)))
    elif not planned and not failures.count:
        print(_NOTHING_COMPACTED)
    elif is_long:
        for each in planned:
            print("\n".join(_plan_lines(each)))
    elif planned:
        _print_plans(planned)
    if planned and previews and not as_json:
        _print_total(planned)
    if failures.count:
        raise typer.Exit(1)


def _previewed(planned: PlannedPartition, failures: Failures) -> PlannedPartition:
    """With what a pass would leave, if the partition is eligible. Reads the log."""
    if not planned.plan.is_selected:
        return planned
    from stratalog.maintenance.cleaning.preview import preview_cleaning  # noqa: PLC0415 - kernels

    plan = planned.plan
    progress = AddedProgress(plan.cleanable_bytes + plan.total_bytes, is_output_last=True)
    with failures.reported(plan.topic_partition), planned.view:
        preview = preview_cleaning(
            planned.view, plan, planned.settings.config, on_progress=progress.add
        )
        planned = planned._replace(preview=preview)
    progress.clear()
    return planned


def _print_total(planned: Sequence[PlannedPartition]) -> None:
    eligible = [each for each in planned if each.plan.is_selected]
    freed = sum(each.freed_bytes for each in eligible)
    size_bytes = sum(each.view.size_bytes for each in planned)
    print(
        f"{counted(len(planned), 'partition')}: {len(eligible)} eligible; compaction would free "
        f"{human_size(freed)} of {human_size(size_bytes)}"
    )


def _show_key(request: CompactionRequest, key: bytes, now_ms: int, *, as_json: bool) -> None:
    is_found = False
    failures = Failures()
    for planned in _planned(request, now_ms, failures, compacted_only=True):
        with failures.reported(planned.plan.topic_partition):
            trace = _trace(planned, key)
            is_found = is_found or bool(trace.record_count)
            if as_json:
                print(json_line(_trace_row(trace)))
            elif trace.record_count:
                _print_trace(trace)
    if not is_found and not failures.count:
        report_error(f"{request.directory}: no record with this key in the partitions searched")
    if failures.count or not is_found:
        raise typer.Exit(1)


def _trace(planned: PlannedPartition, key: bytes) -> KeyTrace:
    from stratalog.maintenance.cleaning.key_trace import trace_key  # noqa: PLC0415

    view = planned.view
    start, end, size_bytes = view.log_start_offset, view.log_end_offset, view.size_bytes
    progress = Progress(size_bytes, is_output_last=True)

    def on_progress(offset: int) -> None:
        progress.update(size_bytes * (offset - start) // max(1, end - start))

    try:
        config = planned.settings.config
        return trace_key(view, key, planned.plan, config, on_progress=on_progress)
    finally:
        progress.clear()


# -- compacting


class CompactedPartition(NamedTuple):
    """One partition after a run."""

    plan: CleaningPlan
    """As of the start."""
    before_bytes: int
    after_bytes: int
    passes: tuple[CleaningResult, ...]
    """Empty if the partition was not eligible."""
    error: Exception | None

    @property
    def records_kept(self) -> int:
        """Records that are left of those that were read."""
        return self.passes[-1].records_kept if self.passes else 0

    @property
    def records(self) -> int:
        """Records that were read, each counted once."""
        removed = sum(done.records_read - done.records_kept for done in self.passes)
        return self.records_kept + removed

    @property
    def bytes_read(self) -> int:
        return sum(done.bytes_read for done in self.passes)


@contextmanager
def _cleaner(broker: BrokerConfig, spark: SparkOptions) -> Iterator[LogCleaner]:
    """One in this process, or on Spark."""
    if spark.master is None:
        from stratalog.maintenance.cleaning.cleaner import Cleaner  # noqa: PLC0415
        from stratalog.maintenance.cleaning.plan import Throttle  # noqa: PLC0415

        yield Cleaner(
            broker.log_cleaner_dedupe_buffer_size,
            load_factor=broker.log_cleaner_io_buffer_load_factor,
            throttle=Throttle(broker.log_cleaner_io_max_bytes_per_second),
        )
        return
    from stratalog.bulk.compact import distributed_cleaner  # noqa: PLC0415 - as needed
    from stratalog.spark.workers import SparkWorkers  # noqa: PLC0415

    with spark.session("stratalog compact") as session:
        yield distributed_cleaner(SparkWorkers(session))


def _compact(
    request: CompactionRequest, cleaner: LogCleaner, *, is_forced: bool, as_json: bool
) -> None:
    from stratalog.log_dir import LogDir  # noqa: PLC0415  # heavy

    open_dirs(request.directory)  # raises if it is not a log directory
    results = []
    started = clock.perf_counter()
    with LogDir.open(
        request.directory,
        config=request.settings.broker,
        create=False,
        background=False,
        missing_dirs="offline",
        recover_all=False,
        assumed_config=request.settings.of_topics,
    ) as logs:
        for log in _logs_to_compact(logs, request):
            result = _clean(logs, log, cleaner, is_forced=is_forced)
            results.append(result)
            if as_json:
                print(json_line(_result_row(result, _settings_of(logs, log, request))))
            if result.error is not None:
                report_error(f"{log.topic_partition}: {result.error}")
    seconds = clock.perf_counter() - started
    if as_json:
        print_truncations()
        print(json_line(_results_row(results, seconds)))
    else:
        _print_results(results, seconds)
    if any(result.error is not None for result in results):
        raise typer.Exit(1)


def _settings_of(logs: LogDir, log: PartitionLog, request: CompactionRequest) -> EffectiveConfig:
    info = logs.topic(log.topic_partition.topic)
    found = EffectiveConfig(info.config, info.overrides, info.sources, info.unknown)
    return found.given(request.settings.of_topics)


def _logs_to_compact(logs: LogDir, request: CompactionRequest) -> list[PartitionLog]:
    """With the settings of this run. All are opened before the first is cleaned."""
    dirs = open_dirs(request.directory)
    found = [view.topic_partition for view in _views(dirs, request.specs)]
    chosen = []
    skipped: set[str] = set()
    for topic_partition in found:
        info = logs.topic(topic_partition.topic)
        config = LogConfig.parse(request.settings.of_topics, info.config)
        if info.unknown is not None:
            if request.specs:
                raise UnknownSettingsError(info.name, info.unknown)
            if info.name not in skipped:
                skipped.add(info.name)
                report_line(f"stratalog: note: {UnknownSettingsError(info.name, info.unknown)}")
            continue
        if request.specs or CleanupPolicy.COMPACT in config.cleanup_policy:
            log = logs.partition(*topic_partition)
            log.update_config(config)
            chosen.append(log)
    return chosen


def _clean(
    logs: LogDir, log: PartitionLog, cleaner: LogCleaner, *, is_forced: bool
) -> CompactedPartition:
    """Cleaning passes until all is clean: more than one if the keys do not fit the offset map."""
    plan = logs.cleaning.plan(log)
    size_bytes = log.size_bytes
    # Kafka never cleans a log with another policy; nor does --force.
    if CleanupPolicy.COMPACT not in log.config.cleanup_policy:
        return CompactedPartition(plan, size_bytes, size_bytes, (), None)
    passes: list[CleaningResult] = []
    error: Exception | None = None
    progress = AddedProgress(plan.cleanable_bytes + plan.total_bytes, is_output_last=True)
    for _ in range(PASSES_MAX):
        is_wanted = is_forced or bool(passes)  # once started, finish
        report = logs.cleaning.clean(
            log.topic_partition, cleaner, is_forced=is_wanted, on_progress=progress.add
        )
        if report is None:
            break
        if report.result is None:
            error = report.error
            break
        passes.append(report.result)
        if not report.result.is_map_full:
            break
    progress.clear()
    log.maintenance.remove_discarded(
        plan.now_ms, at_once=True
    )  # nobody else reads the old segments
    if error is not None and not isinstance(error, StratalogError | OSError):
        raise error
    return CompactedPartition(plan, size_bytes, log.size_bytes, tuple(passes), error)


# -- JSON


def _plan_row(plan: CleaningPlan, settings: EffectiveConfig) -> dict[str, Any]:
    config = settings.config
    texts = config.as_dict()
    bound, reset = plan.bound, plan.checkpoint_reset
    return {
        "kind": "partition",
        **plan.topic_partition._asdict(),
        "config": {name: texts[name] for name in SETTINGS},
        "configSources": {name: settings.source_of(name).value for name in SETTINGS},
        "settingsUnknown": settings.unknown,
        "isEligible": plan.is_selected,
        "reasons": list(plan.reasons),
        "firstDirtyOffset": plan.first_dirty_offset,
        "checkpointReset": None if reset is None else reset.value,
        "firstUncleanableOffset": bound.offset,
        "bound": {
            "kind": bound.kind.value,
            "rawOffset": bound.raw_offset,
            "timestamp": bound.timestamp,
            "cleanableFromMs": bound.cleanable_from_ms,
        },
        "cleanBytes": plan.clean_bytes,
        "cleanableBytes": plan.cleanable_bytes,
        "dirtyRatio": plan.ratio,
        "maxLagExceededMs": plan.max_lag_exceeded_ms,
        "groups": _groups_of(plan, config) if plan.cleanable_bytes else [],
    }


def _plans_row(planned: Sequence[PlannedPartition], failed: int) -> dict[str, Any]:
    plans = [each.plan for each in planned]
    return {
        "kind": "summary",
        "isDryRun": True,
        "partitions": len(plans) + failed,
        "failed": failed,
        "eligible": sum(plan.is_selected for plan in plans),
        "cleanBytes": sum(plan.clean_bytes for plan in plans),
        "cleanableBytes": sum(plan.cleanable_bytes for plan in plans),
        "freedBytes": sum(each.freed_bytes for each in planned),
    }


def _result_row(result: CompactedPartition, settings: EffectiveConfig) -> dict[str, Any]:
    """The plan of the first pass, and the results of all."""
    return {
        **_plan_row(result.plan, settings),
        "beforeBytes": result.before_bytes,
        "afterBytes": result.after_bytes,
        "passes": [_pass_row(done) for done in result.passes],
        "error": None if result.error is None else str(result.error),
    }


def _results_row(results: Sequence[CompactedPartition], seconds: float) -> dict[str, Any]:
    return summary_row(
        sum(result.records for result in results),
        sum(result.bytes_read for result in results),
        seconds,
        isDryRun=False,
        partitions=len(results),
        failed=sum(result.error is not None for result in results),
        compacted=sum(bool(result.passes) for result in results),
        beforeBytes=sum(result.before_bytes for result in results),
        afterBytes=sum(result.after_bytes for result in results),
        recordsKept=sum(result.records_kept for result in results),
    )


def _pass_row(done: CleaningResult) -> dict[str, Any]:
    return {
        "firstDirtyOffset": done.first_dirty_offset,
        "endOffset": done.end_offset,
        "groups": [list(group) for group in done.groups],
        "keys": done.map_entries,
        "isMemoryFull": done.is_map_full,
        "bytesRead": done.bytes_read,
        "bytesWritten": done.bytes_written,
        "recordsRead": done.records_read,
        "recordsKept": done.records_kept,
        "recordsWithoutKey": done.records_without_key,
        "seconds": round(done.seconds, 6),
    }


def _trace_row(trace: KeyTrace) -> dict[str, Any]:
    return {
        "kind": "partition",
        **trace.plan.topic_partition._asdict(),
        "key": trace.key.hex(),
        "isEligible": trace.plan.is_selected,
        "reasons": list(trace.plan.reasons),
        "bound": _bound_text(trace.plan.bound),
        "recordCount": trace.record_count,
        "records": [_record_row(record) for record in trace.records],
    }


def _record_row(record: RecordTrace) -> dict[str, Any]:
    decision = record.decision
    is_superseded = decision is not None and decision.newer_offset >= 0
    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "valueBytes": record.value_bytes,
        "file": str(record.path),
        "position": record.position,
        "isKept": None if decision is None else decision.is_kept,
        "reason": None if decision is None else decision.reason.value,
        "supersededBy": decision.newer_offset if decision and is_superseded else None,
        "next": record.next_event.value,
        "nextFromMs": record.next_event_ms,
    }


# -- text

_NOTHING_COMPACTED: Final = (
    "No topic is known to have cleanup.policy=compact. To compact topics whose settings are "
    "unknown (see --explain), name them and give --config cleanup.policy=compact."
)
_LABEL_CHARS: Final = 9
_GROUPS_SHOWN: Final = 5


def _print_plans(planned: Sequence[PlannedPartition]) -> None:
    """One line per partition."""
    columns = columns_of(
        "PARTITION | ELIGIBLE | FIRST DIRTY# | UP TO# | CLEAN#/2 | DIRTY# | RATIO#/1 | FREES#",
        Column("REASON", fold_at=40),
    )
    rows = [
        (
            str(plan.topic_partition),
            "yes" if plan.is_selected else "no",
            str(plan.first_dirty_offset),
            str(plan.first_uncleanable_offset),
            human_size(plan.clean_bytes),
            human_size(plan.cleanable_bytes),
            f"{plan.ratio:.2f}",
            NOTHING if each.preview is None else human_size(each.freed_bytes),
            "; ".join(plan.reasons),
        )
        for each in planned
        for plan in [each.plan]
    ]
    print_table(columns, rows)


def _plan_lines(planned: PlannedPartition) -> Iterator[str]:
    """Why a partition is eligible or not, and what would be compacted."""
    plan, settings = planned.plan, planned.settings
    config = settings.config
    yield f"{plan.topic_partition}: {_eligible_text(plan)}"
    start = f"offset {plan.first_dirty_offset}"
    if plan.checkpoint_reset is not None:
        start += f", the log start offset: the cleaner's checkpoint is {plan.checkpoint_reset}"
    yield _labelled("dirty", f"from {start}")
    yield _labelled("up to", _bound_text(plan.bound))
    amounts = f"{plan.clean_bytes} clean, {plan.cleanable_bytes} dirty, ratio {plan.ratio:.3g}"
    yield _labelled("bytes", amounts)
    if planned.preview is not None:
        records = planned.preview.records
        left = f"{records.kept:,} of {counted(records.read, 'record')} stay"
        yield _labelled("frees", f"{human_size(planned.freed_bytes)}; {left}")
    for number, reason in enumerate(plan.reasons):
        yield _labelled("" if number else "reason", reason)
    texts = config.as_dict()
    for number, name in enumerate(SETTINGS):
        source = settings.source_of(name).label
        if name == "cleanup.policy" and settings.unknown is not None:
            source = "assumed"
        yield _labelled("" if number else "settings", f"{name}={texts[name]} ({source})")
    groups = _groups_of(plan, config)
    if groups and plan.cleanable_bytes:
        count = counted(len(plan.segments), "segment")
        yield _labelled("rewrites", f"{count} into {len(groups)}, if all keys fit the offset map")
        for group in groups[:_GROUPS_SHOWN]:
            yield _labelled("", f"{group[0]}: from {counted(len(group), 'segment')}")
        if len(groups) > _GROUPS_SHOWN:
            yield _labelled("", f"and {len(groups) - _GROUPS_SHOWN} more")


def _eligible_text(plan: CleaningPlan) -> str:
    return "eligible for compaction" if plan.is_selected else "not eligible for compaction"


def _bound_text(bound: CleaningBound) -> str:
    """Where a cleaning pass stops, and why."""
    if bound.kind is BoundKind.MIN_LAG and bound.timestamp is not None:
        until = "" if bound.cleanable_from_ms is None else format_time(bound.cleanable_from_ms)
        return (
            f"offset {bound.offset}: the segment there has a record of "
            f"{format_time(bound.timestamp)}, younger than min.compaction.lag.ms until {until}"
        )
    return str(bound)


def _groups_of(plan: CleaningPlan, config: LogConfig) -> list[list[int]]:
    """Base offsets of the segments that would be merged into one."""
    bound = plan.first_uncleanable_offset
    groups = group_segments(plan.segments, bound, bound, config)
    return [[segment.base_offset for segment in group] for group in groups]


def _labelled(label: str, text: str) -> str:
    return f"  {label:<{_LABEL_CHARS}} {text}"


def _print_results(results: Sequence[CompactedPartition], seconds: float) -> None:
    """One line per partition, and a total."""
    if not results:
        print(_NOTHING_COMPACTED)
        return
    columns = columns_of(
        "PARTITION | BEFORE# | AFTER# | RECORDS#/1 | KEPT#/1 | PASSES#/2 | SECONDS#/3",
        Column("REASON", fold_at=40),
    )
    print_table(columns, [_result_cells(result) for result in results])
    cleaned = [result for result in results if result.passes]
    before = sum(result.before_bytes for result in cleaned)
    after = sum(result.after_bytes for result in cleaned)
    if cleaned:
        records = sum(result.records for result in cleaned)
        kept = sum(result.records_kept for result in cleaned)
        rate = human_size(round(before / seconds)) if seconds else NOTHING
        print(
            f"{len(cleaned)} of {counted(len(results), 'partition')} compacted: "
            f"{counted(records, 'record')} before, {kept:,} after; {human_size(before)} before, "
            f"{human_size(after)} after, in {seconds:.1f} s ({rate}/s)"
        )


def _result_cells(result: CompactedPartition) -> tuple[str, ...]:
    passes = result.passes
    reason = "; ".join(result.plan.reasons)
    if result.error is not None:
        reason = str(result.error)
    elif passes and not result.plan.is_selected:
        reason = f"forced: {reason}"
    records = kept = seconds = NOTHING
    if passes:
        kept, records = str(result.records_kept), str(result.records)
        seconds = f"{sum(done.seconds for done in passes):.1f}"
    return (
        str(result.plan.topic_partition),
        human_size(result.before_bytes),
        human_size(result.after_bytes) if passes else NOTHING,
        records,
        kept,
        str(len(passes)) if passes else NOTHING,
        seconds,
        reason,
    )


def _print_trace(trace: KeyTrace) -> None:
    """Where the records of a key are in one partition, and what happens to each."""
    plan = trace.plan
    shown = visible("utf-8")(trace.key)
    more = trace.record_count - len(trace.records)
    print(
        f"{plan.topic_partition}: {counted(trace.record_count, 'record')} with key {shown}"
        + (f"; the newest {len(trace.records)} are:" if more else "")
    )
    columns = columns_of(
        "OFFSET# | TIME/1 | VALUE#/2 | SEGMENT/3 | AT BYTE#/4",
        Column("COMPACTION NOW", fold_at=30),
        Column("LATER", fold_at=30),
    )
    print_table(columns, [_record_cells(record, plan) for record in trace.records])
    print(f"The partition is {_eligible_text(plan)}: {'; '.join(plan.reasons)}")


def _record_cells(record: RecordTrace, plan: CleaningPlan) -> tuple[str, ...]:
    return (
        str(record.offset),
        table_time(record.timestamp),
        "tombstone" if record.value_bytes is None else human_size(record.value_bytes),
        record.path.name,
        str(record.position),
        _decision_text(record),
        _next_text(record, plan),
    )


def _decision_text(record: RecordTrace) -> str:
    decision = record.decision
    if decision is None:
        return "does not reach it"
    if record.next_event is NextEvent.NEWER_REACHED:
        return "keeps it: it does not reach the newer record of its key yet"
    if decision.is_kept:
        return f"keeps it: {decision.reason}"
    newer = f" at {decision.newer_offset}" if decision.newer_offset >= 0 else ""
    return f"removes it: {decision.reason}{newer}"


def _next_text(record: RecordTrace, plan: CleaningPlan) -> str:
    if record.decision is None:
        return f"{record.next_event}; compaction stops at {_bound_text(plan.bound)}"
    if record.next_event_ms is not None:
        return f"{record.next_event}, {format_time(record.next_event_ms)}"
    return str(record.next_event)
