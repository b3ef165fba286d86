"""`stratalog verify`: check every file of log directories."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.arguments import (
    JsonOption,
    LogDirOption,
    RemoteOption,
    SettingsFiles,
    WhereArgument,
    flag,
    option,
    reads_stores,
    with_groups,
)
from stratalog.cli.output import JobProgress, json_line, json_names, summary_row, use_colour
from stratalog.cli.settings import Overrides, settings_lines, settings_row
from stratalog.cli.tables import counted, rate_text
from stratalog.cli.targets import Targets, targets_of
from stratalog.cli.workers import SparkOptions
from stratalog.errors import StratalogError
from stratalog.log.partition_view import PartitionView
from stratalog.partitions.cluster_metadata import METADATA_DIR
from stratalog.partitions.settings import POLICY

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stratalog.maintenance.verify.directory import VerifyPlan
    from stratalog.maintenance.verify.findings import Finding, VerifyReport
    from stratalog.partitions.settings import EffectiveConfig

FAILS_WHEN = "there are errors (not for warnings and notes), or a target was not found"
_COLOURS = {"error": "31", "warning": "33", "note": "2"}


@reads_stores
@with_groups
def run(  # noqa: PLR0913  # a parameter is a flag
    where: WhereArgument = None,
    log_dir: LogDirOption = None,
    remote: RemoteOption = None,
    *,
    settings_files: SettingsFiles,
    notes: Annotated[bool, flag("--notes", "List notes. Default: only count them.")] = False,
    threads: Annotated[
        int | None,
        option(
            "--threads",
            "N",
            "Number of threads. Default: one per core. Not with --master.",
            least=1,
        ),
    ] = None,
    spark: SparkOptions,
    as_json: JsonOption = False,
) -> None:
    """Check every CRC, record, index entry, snapshot and checkpoint. Never writes.

    An error is data that cannot be read, or that would give readers a wrong result. A warning is a
    problem that a broker repairs by itself, or that is normal only if the topic is compacted. A
    note is something unusual that Kafka itself leaves behind. Each finding names a file and a
    position, and says what to do.

    Whether a topic is compacted is read from its settings or the cluster's metadata; the first
    lines of output show the cleanup.policy of each topic and its source.

    With --remote, only the remote segments of tiered topics are checked: whether the log of each
    partition is complete, every object exists, and the CRC of every batch matches. Objects that are
    not part of any log are notes.

    The command takes no lock, so it is safe on the directory of a running broker.

    \b
    Examples:
      stratalog verify /var/lib/kafka/data
      stratalog verify orders:3 -d /disk1 -d /disk2
      stratalog verify /var/lib/kafka/data/orders-3 --notes
      stratalog verify /mnt/backup --master spark://host:7077 --json

    With --json, the command prints one object per finding: severity, code, path, position (null if
    the finding concerns the entire file), what and advice. The last object is of kind summary, with
    the cleanup.policy of each topic and its source.
    """
    if threads is not None and spark.master is not None:
        raise typer.BadParameter("--threads and --master cannot be combined")
    spark.check()
    started = time.perf_counter()
    if remote is not None:
        report = _verify_remote(where or [], log_dir or [])
        _finish(report, started, [], shows_notes=notes, as_json=as_json)
        return
    given = Overrides.parse((), *settings_files)
    compacted = _Compacted(given, log_dir or [])
    plan = _plan(targets_of(where, log_dir), compacted)
    if not as_json:
        for line in settings_lines(compacted.found, [POLICY]):
            print(line)
    with JobProgress(plan.size_bytes) as progress:
        report = _run(plan, progress, threads, spark)
    _finish(report, started, compacted.rows(), shows_notes=notes, as_json=as_json)


def _finish(
    report: VerifyReport,
    started: float,
    topics: list[dict[str, Any]],
    *,
    shows_notes: bool,
    as_json: bool,
) -> None:
    seconds = time.perf_counter() - started
    if as_json:
        _print_json(report, seconds, topics)
    else:
        _print_text(report, seconds, shows_notes=shows_notes)
    if report.has_errors:
        raise typer.Exit(1)


def _verify_remote(where: Sequence[str], log_dirs: Sequence[Path]) -> VerifyReport:
    from stratalog.cli.tiered_topics import tiered_partitions  # noqa: PLC0415 - only for this
    from stratalog.partitions.tiered_inventory import verify_tier  # noqa: PLC0415 - as above

    return verify_tier(*tiered_partitions(where, log_dirs))


class _Compacted:
    """Whether partitions are compacted, by the settings of their topics."""

    def __init__(self, given: Overrides, log_dirs: Sequence[Path]) -> None:
        self._finder = given.finder(log_dirs)
        self.found: dict[str, EffectiveConfig] = {}
        """By topic."""
        self._known: dict[tuple[Path, str], bool] = {}
        """By log directory and topic, whose partitions have the same settings."""

    def __call__(self, partition: Path) -> bool:
        """False also if the settings are unknown or the partition cannot be opened."""
        if partition.name == METADATA_DIR:
            return False
        key = (partition.parent, partition.name.rpartition("-")[0])
        if key not in self._known:
            try:
                with PartitionView(partition) as view:
                    found = self._finder.of(view)
            except (StratalogError, OSError):
                return False
            self.found[view.topic_partition.topic] = found
            self._known[key] = found.unknown is None and found.config.is_compacted
        return self._known[key]

    def rows(self) -> list[dict[str, Any]]:
        """The settings that were found, for JSON."""
        return [settings_row(topic, found, [POLICY]) for topic, found in sorted(self.found.items())]


def _plan(targets: Targets, is_compacted: _Compacted) -> VerifyPlan:
    from stratalog.maintenance.verify.directory import VerifyPlan, plan_directory  # noqa: PLC0415 - kernels
    from stratalog.maintenance.verify.partition import plan_partition  # noqa: PLC0415

    plan = VerifyPlan(
        tuple(plan_partition(path, is_compacted=is_compacted(path)) for path in targets.partitions)
    )
    for path in targets.directories:
        plan = plan.plus(plan_directory(path, is_compacted))
    return plan


def _run(
    plan: VerifyPlan, progress: JobProgress, threads: int | None, spark: SparkOptions
) -> VerifyReport:
    if spark.master is None:
        from stratalog.maintenance.verify.directory import run_plan  # noqa: PLC0415 - kernels

        return run_plan(plan, threads=threads, on_bytes=progress.add_bytes)
    from stratalog.bulk.verify import verify_plan  # noqa: PLC0415 - loads Spark
    from stratalog.spark.workers import SparkWorkers  # noqa: PLC0415

    with spark.session("stratalog verify") as session:
        return verify_plan(plan, SparkWorkers(session, progress.groups_done)).report


def _row(finding: Finding) -> dict[str, Any]:
    row = finding._asdict()
    row["severity"] = str(finding.severity)
    if finding.position < 0:
        row["position"] = None
    return {"kind": "finding", **row}


def _numbers(report: VerifyReport) -> dict[str, int]:
    from stratalog.maintenance.verify.findings import Severity  # noqa: PLC0415 - as needed

    return {f"{severity}s": report.count_of(severity) for severity in Severity}


def _print_json(report: VerifyReport, seconds: float, topics: list[dict[str, Any]]) -> None:
    for finding in report.findings:
        print(json_line(_row(finding)))
    counts, more = report.counts, json_names(report.counts._asdict())
    del more["records"], more["sizeBytes"]
    row = summary_row(counts.records, counts.size_bytes, seconds, **_numbers(report), **more)
    print(json_line({**row, "topics": topics}))


def _print_text(report: VerifyReport, seconds: float, *, shows_notes: bool) -> None:

    is_coloured = use_colour(sys.stdout)
    for finding in report.findings:
        if finding.severity != "note" or shows_notes:
            text = str(finding)
            if is_coloured:
                grade, _, rest = text.partition(":")
                text = f"\x1b[{_COLOURS[grade]}m{grade}\x1b[0m:{rest}"
            print(f"{text}\n    {finding.advice}")
    counts = report.counts
    numbers = ", ".join(
        counted(number, name.removesuffix("s")) for name, number in _numbers(report).items()
    )
    what = f"{counted(counts.partitions, 'partition')}, {counted(counts.segments, 'segment')}"
    print(f"{what}, {rate_text(counts.records, counts.size_bytes, seconds)}: {numbers}")
