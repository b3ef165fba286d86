"""`stratalog compact`: what compaction would do and why, what it did, and what keeps a key.

Looking (`--dry-run`, `--explain`, `--key`) takes no lock and changes nothing. Acting opens the log
directory as its writer.
"""

from __future__ import annotations

import base64
import binascii
import logging
import time as clock
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path  # Typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

import typer

from stratalog.cli import compact_json as json
from stratalog.cli import compact_text as text
from stratalog.cli.arguments import (
    ConfigOption,
    MetadataLogDirOption,
    ServerPropertiesOption,
    check_conf,
)
from stratalog.cli.bulk import ConfOption, MasterOption, spark_session
from stratalog.cli.output import (
    Progress,
    json_line,
    print_truncations,
    report_error,
    report_line,
)
from stratalog.cli.overrides import Overrides, SettingsFinder
from stratalog.cli.targets import TopicSpec, open_topic
from stratalog.cli.when import TIME_HELP, NotAPointError, parse_time
from stratalog.config import BrokerConfig, LogConfig
from stratalog.config.topic import CleanupPolicy
from stratalog.errors import StratalogError, UnknownSettingsError
from stratalog.format.names import CLUSTER_METADATA_TOPIC, RootFile
from stratalog.maintenance.cleaning.plan import cleaner_log, plan_cleaning
from stratalog.partitions.settings import EffectiveConfig
from stratalog.partitions.view import LogDirsView, open_dirs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stratalog.format.names import TopicPartition
    from stratalog.log.partition_log import PartitionLog
    from stratalog.log.partition_view import PartitionView
    from stratalog.log_dir import LogDir
    from stratalog.maintenance.cleaning.key_trace import KeyTrace
    from stratalog.maintenance.cleaning.plan import (
        CleanerLog,
        CleaningPlan,
        CleaningResult,
        LogCleaner,
    )

FAILS_WHEN = "a partition could not be compacted or read, or no record has the key"
KeyFormat = Literal["utf-8", "hex", "base64"]

ROUNDS_MAX: Final = 10_000
"""Each but the last one fills the memory for keys; a log that needs more is one that never ends."""


def run(  # noqa: PLR0913, PLR0917  # a parameter is a flag
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A log directory.", show_default=False)
    ],
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC[:PARTITION]",
            help="What to compact; without any, every topic whose cleanup.policy has `compact`.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what is due, and change nothing.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="The same at length: what bounds a round, and why.")
    ] = False,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Where the records of a key are, and what keeps each. Changes nothing.",
        ),
    ] = None,
    key_format: Annotated[KeyFormat, typer.Option(help="How the key is written.")] = "utf-8",
    now: Annotated[
        str | None,
        typer.Option(metavar="TIME", help=f"Judge as of this time, not now: {TIME_HELP}."),
    ] = None,
    config: ConfigOption = None,
    server_properties: ServerPropertiesOption = None,
    metadata_log_dir: MetadataLogDirOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Compact what is dirty, even if it is not due.")
    ] = False,
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, one per partition.")
    ] = False,
) -> None:
    """Compact topics: of each key, the last record stays.

    A round cleans a partition from where the last one ended up to the active segment, or up to an
    open transaction, or up to what is younger than min.compaction.lag.ms. It is due when the dirty
    part is large enough (min.cleanable.dirty.ratio), or old enough (max.compaction.lag.ms).

    --dry-run, --explain and --key lock and write nothing, so they may look at a directory that a
    broker uses. Otherwise the directory is locked, and recovered if need be.

    The settings of a Kafka cluster's topics are read from the cluster's metadata, in the first of
    a node's log directories or in --metadata-log-dir. Where that is missing, or does not know the
    topic, nothing is compacted: name the topics and give --config cleanup.policy=compact.
    --explain shows where each setting comes from.

    \b
    Examples:
      stratalog compact /var/lib/kafka/data --dry-run
      stratalog compact /var/lib/kafka/data orders:3 --explain
      stratalog compact /var/lib/kafka/data customers --key customer-17
      stratalog compact /var/lib/kafka/data customers -c cleanup.policy=compact --force
      stratalog compact /mnt/shared/data --master spark://host:7077

    With --json there is an object of kind partition for each, and but for --key a last one of kind
    summary.
    """
    check_conf(conf, master)
    given = Overrides.parse(config or (), server_properties, metadata_log_dir)
    job = Job(directory, tuple(map(TopicSpec.parse, topics or ())), given)
    is_look = dry_run or explain or key is not None
    if now is not None and not is_look:
        raise typer.BadParameter("--now goes with --dry-run, --explain and --key only")
    now_ms = _time_of(now)
    if key is not None:
        _show_key(job, _bytes_of(key, key_format), now_ms, as_json=as_json)
    elif is_look:
        _show_plans(job, now_ms, is_long=explain, as_json=as_json)
    else:
        with _cleaner(job.settings.broker, master, conf) as cleaner:
            _act(job, cleaner, is_forced=force, as_json=as_json)


class Job(NamedTuple):
    """What the arguments name."""

    directory: Path
    specs: tuple[TopicSpec, ...]
    settings: Overrides


class Plan(NamedTuple):
    """One partition, looked at."""

    view: PartitionView
    settings: EffectiveConfig
    selection: CleaningPlan

    @property
    def config(self) -> LogConfig:
        return self.settings.config


def _time_of(now: str | None) -> int:
    now_ms = clock.time_ns() // 1_000_000
    try:
        return now_ms if now is None else parse_time(now, now_ms=now_ms)
    except NotAPointError as error:
        raise typer.BadParameter(str(error)) from None


def _bytes_of(key: str, key_format: KeyFormat) -> bytes:
    try:
        if key_format == "hex":
            return bytes.fromhex(key)
        if key_format == "base64":
            return base64.b64decode(key, validate=True)
    except (ValueError, binascii.Error):
        raise typer.BadParameter(f"--key {key!r} is not {key_format}") from None
    return key.encode(errors="surrogateescape")


# -- looking


class Problems:
    """What went wrong with one partition is told at once; the others have their turn."""

    count = 0

    @contextmanager
    def told(self, topic_partition: TopicPartition) -> Iterator[None]:
        try:
            yield
        except StratalogError as error:
            self.count += 1
            report_error(f"{topic_partition}: {error}")


def _plans(job: Job, now_ms: int, problems: Problems) -> Iterator[Plan]:
    """Of every partition that is named, or else compacted."""
    dirs = open_dirs(job.directory)
    finder = SettingsFinder(job.settings)
    checkpoints = dirs.dirs[0].checkpoint(RootFile.CLEANER_OFFSETS)
    for view in _views(dirs, job.specs):
        with view:
            plan = None
            with problems.told(view.topic_partition):
                settings = finder.of(view).given(job.settings.of_topics)
                config = settings.config
                if job.specs or CleanupPolicy.COMPACT in config.cleanup_policy:
                    facts = cleaner_log(view, checkpoints.get(view.topic_partition))
                    plan = Plan(view, settings, _selection(facts, settings, now_ms))
            if plan is not None:
                yield plan


def _selection(facts: CleanerLog, settings: EffectiveConfig, now_ms: int) -> CleaningPlan:
    """Nothing is due where the settings are unknown: that is the reason then."""
    found = plan_cleaning(facts, settings.config, now_ms)
    if settings.unknown is None:
        return found
    reason = str(UnknownSettingsError(facts.topic_partition.topic, settings.unknown))
    return replace(found, is_selected=False, reasons=(reason,))


def _views(dirs: LogDirsView, specs: Sequence[TopicSpec]) -> Iterator[PartitionView]:
    for spec in specs:
        yield from open_topic(dirs, spec)
    if not specs:
        for topic, partition in dirs.topic_partitions:
            if topic != CLUSTER_METADATA_TOPIC:  # that is the controllers': they write snapshots
                yield dirs.partition(topic, partition)


def _show_plans(job: Job, now_ms: int, *, is_long: bool, as_json: bool) -> None:
    problems = Problems()
    plans = list(_plans(job, now_ms, problems))
    if as_json:
        for plan in plans:
            print(json_line(json.plan_row(plan.selection, plan.settings)))
        print(json_line(json.plans_row([plan.selection for plan in plans], problems.count)))
    elif not plans and not problems.count:
        print(text.NOTHING_COMPACTED)
    elif is_long:
        for plan in plans:
            print("\n".join(text.plan_story(plan.selection, plan.settings)))
    elif plans:
        text.print_plans([plan.selection for plan in plans])
    if problems.count:
        raise typer.Exit(1)


def _show_key(job: Job, key: bytes, now_ms: int, *, as_json: bool) -> None:
    is_found = False
    problems = Problems()
    for plan in _plans(job, now_ms, problems):
        with problems.told(plan.selection.topic_partition):
            trace = _traced(plan, key)
            is_found = is_found or bool(trace.record_count)
            if as_json:
                print(json_line(json.trace_row(trace)))
            elif trace.record_count:
                text.print_trace(trace)
    if not is_found and not problems.count:
        report_error(f"{job.directory}: no record has this key in the partitions looked at")
    if problems.count or not is_found:
        raise typer.Exit(1)


def _traced(plan: Plan, key: bytes) -> KeyTrace:
    from stratalog.maintenance.cleaning.key_trace import trace_key  # noqa: PLC0415

    view = plan.view
    start, end, size_bytes = view.log_start_offset, view.log_end_offset, view.size_bytes
    progress = Progress(size_bytes, is_output_last=True)

    def on_progress(offset: int) -> None:
        progress.update(size_bytes * (offset - start) // max(1, end - start))

    try:
        return trace_key(view, key, plan.selection, plan.config, on_progress=on_progress)
    finally:
        progress.clear()


# -- acting


@contextmanager
def _cleaner(
    broker: BrokerConfig, master: str | None, conf: list[str] | None
) -> Iterator[LogCleaner]:
    """This process, or a cluster."""
    if master is None:
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

    with spark_session("stratalog compact", master, conf) as spark:
        yield distributed_cleaner(SparkWorkers(spark))


def _act(job: Job, cleaner: LogCleaner, *, is_forced: bool, as_json: bool) -> None:
    from stratalog.log_dir import LogDir  # noqa: PLC0415  # the whole engine

    logging.getLogger("stratalog").addHandler(logging.NullHandler())  # errors are told below
    open_dirs(job.directory)  # says what is wrong with a directory that is none
    broker = job.settings.broker
    outcomes = []
    started = clock.perf_counter()
    with LogDir.open(
        job.directory,
        config=broker,
        create=False,
        background=False,
        missing_dirs="offline",
        recover_all=False,
        assumed_config=job.settings.of_topics,
    ) as logs:
        logs_to_clean = _logs(logs, job)
        for log in logs_to_clean:
            outcome = _clean(logs, log, cleaner, is_forced=is_forced)
            outcomes.append(outcome)
            if as_json:
                print(json_line(json.outcome_row(outcome, _settings_of(logs, log, job))))
            if outcome.error is not None:
                report_error(f"{log.topic_partition}: {outcome.error}")
    seconds = clock.perf_counter() - started
    if as_json:
        print_truncations()
        print(json_line(json.outcomes_row(outcomes, seconds)))
    else:
        text.print_outcomes(outcomes, seconds)
    if any(outcome.error is not None for outcome in outcomes):
        raise typer.Exit(1)


def _settings_of(logs: LogDir, log: PartitionLog, job: Job) -> EffectiveConfig:
    info = logs.topic(log.topic_partition.topic)
    found = EffectiveConfig(info.config, info.overrides, info.sources, info.unknown)
    return found.given(job.settings.of_topics)


def _logs(logs: LogDir, job: Job) -> list[PartitionLog]:
    """To be compacted, with the settings of this run. All are found before the first is cleaned."""
    dirs = open_dirs(job.directory)
    found = [view.topic_partition for view in _views(dirs, job.specs)]
    chosen = []
    left_alone: set[str] = set()
    for topic_partition in found:
        info = logs.topic(topic_partition.topic)
        config = LogConfig.parse(job.settings.of_topics, info.config)
        if info.unknown is not None:
            if job.specs:
                raise UnknownSettingsError(info.name, info.unknown)
            if info.name not in left_alone:
                left_alone.add(info.name)
                report_line(f"stratalog: note: {UnknownSettingsError(info.name, info.unknown)}")
            continue
        if job.specs or CleanupPolicy.COMPACT in config.cleanup_policy:
            log = logs.partition(*topic_partition)
            log.update_config(config)
            chosen.append(log)
    return chosen


def _clean(
    logs: LogDir, log: PartitionLog, cleaner: LogCleaner, *, is_forced: bool
) -> text.Outcome:
    """Rounds until nothing is due: more than one where keys do not fit the memory."""
    selection = logs.cleaning.selection(log)
    size_bytes = log.size_bytes
    # Kafka gives no round to a log whose policy is another; neither does force.
    if CleanupPolicy.COMPACT not in log.config.cleanup_policy:
        return text.Outcome(selection, size_bytes, size_bytes, (), None)
    rounds: list[CleaningResult] = []
    error: Exception | None = None
    meter = _Meter(selection.cleanable_bytes + selection.total_bytes)
    for _ in range(ROUNDS_MAX):
        is_wanted = is_forced or bool(rounds)  # what was begun is finished
        report = logs.cleaning.clean(
            log.topic_partition, cleaner, is_forced=is_wanted, on_progress=meter.add
        )
        if report is None:
            break
        if report.result is None:
            error = report.error
            break
        rounds.append(report.result)
        if not report.result.is_map_full:
            break
    meter.clear()
    log.maintenance.remove_discarded(selection.now_ms, at_once=True)  # no broker is here to read on
    if error is not None and not isinstance(error, StratalogError | OSError):
        raise error
    return text.Outcome(selection, size_bytes, log.size_bytes, tuple(rounds), error)


class _Meter(Progress):
    """Progress by increments."""

    def __init__(self, total_bytes: int) -> None:
        super().__init__(total_bytes, is_output_last=True)
        self._done_bytes = 0

    def add(self, count: int) -> None:
        self._done_bytes += count
        self.update(self._done_bytes)
