"""`stratalog maintain`: retention and compaction of log directories, as a service.

The directories are locked while it runs. It reports what it did, and what failed.
"""

from __future__ import annotations

from pathlib import Path  # Typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.arguments import (
    DefaultsOption,
    JsonOption,
    SettingsFiles,
    argument,
    config_option,
    flag,
    local_path,
    with_groups,
)
from stratalog.cli.output import (
    json_line,
    json_names,
    print_truncations,
    report_error,
    report_line,
    set_by_stop_signals,
)
from stratalog.cli.settings import Overrides, settings_lines, settings_row
from stratalog.cli.tables import counted, human_size
from stratalog.errors import UnknownSettingsError
from stratalog.format.times import format_time
from stratalog.partitions.inventory import label_of
from stratalog.partitions.saved_state import MissingDirs
from stratalog.partitions.settings import POLICY, ConfigSource, TopicSettings
from stratalog.partitions.view import LogDirsView

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stratalog.config import BrokerConfig
    from stratalog.format.names import TopicPartition
    from stratalog.log_dir import LogDir
    from stratalog.service.health import Failure
    from stratalog.service.maintenance import MaintenanceState, PartitionState


_SETTINGS = (POLICY, "retention.ms", "retention.bytes")
FAILS_WHEN = "a partition or directory could not be opened, or was failing when the command ended"


@with_groups
def run(  # noqa: PLR0913  # a parameter is a flag
    directories: Annotated[list[Path], argument("DIR", "Log directories.", parser=local_path)],
    once: Annotated[bool, flag("--once", "Run retention and compaction once, then exit.")] = False,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.01, help="Interval of reports, in seconds.")
    ] = 60,
    config: Annotated[
        list[str] | None,
        config_option(
            "Set a Kafka broker setting for this run only, or a topic setting for topics whose own "
            "settings are unknown."
        ),
    ] = None,
    *,
    settings_files: SettingsFiles,
    defaults: DefaultsOption = False,
    missing_dirs: Annotated[
        MissingDirs,
        typer.Option(
            help="What to do if log directories that belong to this set are not given: refuse to "
            "start, treat them as offline, or forget them (their partitions are created "
            "again, empty).",
        ),
    ] = "refuse",
    as_json: JsonOption = False,
) -> None:
    """Run retention and compaction on log directories, as a broker does in the background.

    The command runs until SIGINT (Ctrl-C), SIGTERM or SIGHUP, then shuts down cleanly. Topic
    settings are read from what Stratalog has saved, or from the Kafka cluster's metadata; --config
    and --server-properties set broker defaults and intervals. Topics whose settings are unknown are
    left alone unless you give --config cleanup.policy=...

    If a partition fails, the others continue. The error is printed to standard error; with --json,
    the partition's object includes the traceback. The command locks the directories, so it fails
    while a broker is running.

    \b
    Examples:
      stratalog maintain data --once
      stratalog maintain data -c log.retention.check.interval.ms=60000
      stratalog maintain /disk1 /disk2 -c log.cleaner.threads=2 --json | jq .failures

    The first lines show the settings of topics and their sources. With --json, these are objects of
    kind topic. An object of kind partition follows for each change; the last object is of kind
    summary.
    """
    from stratalog.log_dir import LogDir  # noqa: PLC0415  # heavy

    LogDirsView(directories)  # raises before anything is written if one is not a log directory
    given = Overrides.parse(config or [], *settings_files)
    broker = _broker_config(directories, given, uses_defaults=defaults)
    assumed = given.of_topics if defaults else {"retention.ms": -1, **given.of_topics}
    reporter = MaintenanceReporter(as_json=as_json)
    with LogDir.open(
        *directories,
        config=broker,
        create=False,
        missing_dirs=missing_dirs,
        assumed_config=assumed,
    ) as logs:
        _note_unknown(logs, given)
        _print_settings(logs, as_json=as_json)
        if once:
            logs.maintenance.run_once()
        else:
            stopping = set_by_stop_signals()
            report_line(f"stratalog: maintaining {', '.join(map(str, directories))}")
            with logs.maintenance:
                while not stopping.wait(every):
                    reporter.report(logs.maintenance.state())
        state = logs.maintenance.state()
        reporter.report(state)
    reporter.sum_up(state)
    if state.failing or any(
        not f.is_resolved for _, failures in state.directories for f in failures
    ):
        raise typer.Exit(1)


def _broker_config(
    directories: Sequence[Path], given: Overrides, *, uses_defaults: bool
) -> BrokerConfig:
    is_kafka_dir = TopicSettings(directories, given.broker).is_broker_dir
    is_known = given.has_properties or "retention.ms" in given.names
    if uses_defaults or is_known or not is_kafka_dir:
        return given.broker
    report_line(
        "stratalog: note: the broker's server.properties is unknown, so topics without their own "
        "retention.ms have no limit by age; give --server-properties, --config "
        "log.retention.hours=..., or --defaults"
    )
    return given.broker_with({"log.retention.ms": -1})


def _note_unknown(logs: LogDir, given: Overrides) -> None:
    """List topics that are not touched. Raises BadParameter if topic settings apply to none."""
    topics = logs.topics.values()
    if given.of_topics and not any(ConfigSource.GIVEN in info.sources.values() for info in topics):
        names = ", ".join(given.of_topics)
        raise typer.BadParameter(
            f"{names}: a topic setting applies only to topics whose own settings are unknown, and "
            "there is no such topic; use a broker setting"
        )
    for info in topics:
        if info.unknown is not None:
            report_line(f"stratalog: note: {UnknownSettingsError(info.name, info.unknown)}")


def _print_settings(logs: LogDir, *, as_json: bool) -> None:
    """The settings of topics, and their sources."""
    topics = {name: info for name, info in logs.topics.items() if not info.is_internal}
    if not as_json:
        known = {name: info for name, info in topics.items() if info.unknown is None}
        for line in settings_lines(known, _SETTINGS):
            print(line, flush=True)
        return
    for name, info in topics.items():
        names = dict.fromkeys((*_SETTINGS, *sorted(info.sources)))
        print(json_line({"kind": "topic", **settings_row(name, info, names)}), flush=True)


class MaintenanceReporter:
    """Prints what changed since the last report."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._before: dict[TopicPartition, dict[str, Any]] = {}
        self._failures: set[tuple[object, str, int]] = set()

    def report(self, state: MaintenanceState) -> None:
        for partition in state.partitions:
            row = partition_row(partition)
            before = self._before.get(partition.topic_partition, _NOTHING_DONE)
            if row["done"] != before["done"] or row["failures"] != before["failures"]:
                self._report_partition(partition, row, before)
            self._before[partition.topic_partition] = row
        for path, failures in state.directories:
            self._report_failures(path, str(path), failures)

    def _report_partition(
        self, partition: PartitionState, row: dict[str, Any], before: Mapping[str, Any]
    ) -> None:
        label = label_of(partition.topic_partition)
        if self._as_json:
            print(json_line(row), flush=True)
        elif row["done"] != before["done"]:
            print(f"{label}: {_changes(row['done'], before['done'])}", flush=True)
        self._report_failures(partition.topic_partition, label, partition.failures)

    def _report_failures(self, subject: object, label: str, failures: Sequence[Failure]) -> None:
        """Each failure once, however often it is retried."""
        for failure in failures:
            known = (subject, failure.task, failure.count)
            if not failure.is_resolved and known not in self._failures:
                self._failures.add(known)
                when = format_time(failure.at_ms)
                report_error(f"{label}: {failure.task} failed at {when}: {failure.message}")

    def sum_up(self, state: MaintenanceState) -> None:
        """Print the total."""
        done = [partition_row(partition)["done"] for partition in state.partitions]
        total = {name: sum(each[name] for each in done) for name in _NOTHING_DONE["done"]}
        if self._as_json:
            failed = {"partitions": len(done), "failing": len(state.failing)}
            print_truncations()
            print(json_line({"kind": "summary", **failed, **total}))
        else:
            what = _changes(total, _NOTHING_DONE["done"]) or "nothing to do"
            print(f"{counted(len(done), 'partition')}: {what}")


_NOTHING_DONE: Mapping[str, Any] = {
    "done": {"deletedSegments": 0, "deletedBytes": 0, "cleaningPasses": 0},
    "failures": [],
}


def _changes(now: Mapping[str, int], before: Mapping[str, int]) -> str:
    return "; ".join(_change_texts({name: now[name] - before[name] for name in now}))


def _change_texts(more: Mapping[str, int]) -> Iterator[str]:
    if more["deletedSegments"]:
        size = human_size(more["deletedBytes"])
        yield f"deleted {counted(more['deletedSegments'], 'segment')}, {size}"
    if more["cleaningPasses"]:
        yield f"compacted in {counted(more['cleaningPasses'], 'pass')}"


def partition_row(partition: PartitionState) -> dict[str, Any]:
    """The state of a partition, as JSON."""
    cleaning = partition.cleaning
    return {
        "kind": "partition",
        **partition.topic_partition._asdict(),
        "path": str(partition.path),
        "checkedMs": partition.checked_ms,
        "done": {
            "deletedSegments": partition.deleted_segments,
            "deletedBytes": partition.deleted_bytes,
            "cleaningPasses": 0 if cleaning is None else cleaning.passes,
        },
        "cleaning": None if cleaning is None else cleaning.status.value,
        "cleanedMs": None if cleaning is None else cleaning.last_pass_ms,
        "isFailing": partition.is_failing,
        "failures": [json_names(vars(failure)) for failure in partition.failures],
    }
