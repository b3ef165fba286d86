"""`stratalog maintain`: the maintenance service of log directories, in the foreground.

Holds the lock of the directories for as long as it runs, and tells what it did and what failed.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path  # Typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.arguments import MetadataLogDirOption, ServerPropertiesOption
from stratalog.cli.inventory import label_of
from stratalog.cli.output import json_line, json_names, print_truncations, report_error, report_line
from stratalog.cli.overrides import Overrides, settings_lines, settings_row
from stratalog.cli.tables import counted, human_size
from stratalog.cli.when import format_time
from stratalog.errors import UnknownSettingsError
from stratalog.partitions.settings import POLICY, ConfigSource, TopicSettings
from stratalog.partitions.state import MissingDirs
from stratalog.partitions.view import LogDirsView

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from stratalog.config import BrokerConfig
    from stratalog.format.names import TopicPartition
    from stratalog.log_dir import LogDir
    from stratalog.service.health import Failure
    from stratalog.service.maintenance import MaintenanceState, PartitionState


_SETTINGS = (POLICY, "retention.ms", "retention.bytes")
FAILS_WHEN = "a partition or a directory is failing at the end, or cannot be opened"


def run(  # noqa: PLR0913, PLR0917  # a parameter is a flag
    directories: Annotated[
        list[Path],
        typer.Argument(metavar="DIR", help="Log directories.", show_default=False),
    ],
    once: Annotated[bool, typer.Option("--once", help="Do all that is due now, and end.")] = False,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.01, help="How often to tell what was done.")
    ] = 60,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="NAME=VALUE",
            help="A broker's setting by Kafka's name, or a topic's for those whose own are "
            "unknown; for this run only. Repeatable.",
        ),
    ] = None,
    server_properties: ServerPropertiesOption = None,
    metadata_log_dir: MetadataLogDirOption = None,
    defaults: Annotated[
        bool,
        typer.Option("--defaults", help="Go by Kafka's retention where settings are not known."),
    ] = False,
    missing_dirs: Annotated[
        MissingDirs,
        typer.Option(
            help="If log directories that belong to these were not given: refuse to start, leave "
            "them offline, or forget them for good (their partitions are created again, empty).",
        ),
    ] = "refuse",
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object a line, one for each change."),
    ] = False,
) -> None:
    """Retain and compact log directories, as a broker does in the background.

    Runs until SIGINT (Ctrl-C) or SIGTERM, then closes the directories in good order. Topics go by
    the settings that Stratalog has kept, a Kafka cluster's by those in the cluster's metadata;
    --config and --server-properties give a broker's defaults and intervals. Topics whose settings
    are unknown are left alone unless --config cleanup.policy=... says which policy holds for them.

    A partition that fails does not stop the others: it is told on standard error, with --json with
    the traceback as well. The directories are locked, so this is refused while a broker runs.

    \b
    Examples:
      stratalog maintain data --once
      stratalog maintain data -c log.retention.check.interval.ms=60000
      stratalog maintain /disk1 /disk2 -c log.cleaner.threads=2 --json | jq .failures

    The first lines say which settings topics go by, and where they come from. With --json these are
    objects of kind topic; one of kind partition follows for each change, and a last one of kind
    summary.
    """
    from stratalog.log_dir import LogDir  # noqa: PLC0415  # loads the whole engine

    LogDirsView(directories)  # refuses what holds no log, before anything is written there
    given = Overrides.parse(config or [], server_properties, metadata_log_dir)
    broker = _broker_config(directories, given, uses_defaults=defaults)
    assumed = given.of_topics if defaults else {"retention.ms": -1, **given.of_topics}
    stopping = threading.Event()
    told = _Told(as_json=as_json)
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
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: stopping.set())
            report_line(f"stratalog: maintaining {', '.join(map(str, directories))}")
            with logs.maintenance:
                while not stopping.wait(every):
                    told.tell(logs.maintenance.state())
        state = logs.maintenance.state()
        told.tell(state)
    told.sum_up(state)
    if state.failing or any(
        not f.is_resolved for _, failures in state.directories for f in failures
    ):
        raise typer.Exit(1)


def _broker_config(
    directories: Sequence[Path], given: Overrides, *, uses_defaults: bool
) -> BrokerConfig:
    is_a_broker_s = TopicSettings(directories, given.broker).is_broker_dir
    is_known = given.has_properties or "retention.ms" in given.names
    if uses_defaults or is_known or not is_a_broker_s:
        return given.broker
    report_line(
        "stratalog: note: the broker's server.properties is not known here, so topics without a "
        "retention.ms of their own have no limit of age; give --server-properties, "
        "log.retention.hours with --config, or --defaults"
    )
    return given.broker_with({"log.retention.ms": -1})


def _note_unknown(logs: LogDir, given: Overrides) -> None:
    """Topics that are left alone. Raises BadParameter for settings that would be for none."""
    topics = logs.topics.values()
    if given.of_topics and not any(ConfigSource.GIVEN in info.sources.values() for info in topics):
        names = ", ".join(given.of_topics)
        raise typer.BadParameter(
            f"{names}: --config takes a broker's settings here; a topic's are for topics whose own "
            "are unknown, and there is none"
        )
    for info in topics:
        if info.unknown is not None:
            report_line(f"stratalog: note: {UnknownSettingsError(info.name, info.unknown)}")


def _print_settings(logs: LogDir, *, as_json: bool) -> None:
    """What the topics go by, and where it comes from."""
    topics = {name: info for name, info in logs.topics.items() if not info.is_internal}
    if not as_json:
        known = {name: info for name, info in topics.items() if info.unknown is None}
        for line in settings_lines(known, _SETTINGS):
            print(line, flush=True)
        return
    for name, info in topics.items():
        names = dict.fromkeys((*_SETTINGS, *sorted(info.sources)))
        print(json_line({"kind": "topic", **settings_row(name, info, names)}), flush=True)


class _Told:
    """What has been told of each partition, so that only changes are."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._before: dict[TopicPartition, dict[str, Any]] = {}
        self._failures: set[tuple[object, str, int]] = set()

    def tell(self, state: MaintenanceState) -> None:
        for partition in state.partitions:
            row = partition_row(partition)
            before = self._before.get(partition.topic_partition, _NOTHING_DONE)
            if row["done"] != before["done"] or row["failures"] != before["failures"]:
                self._tell(partition, row, before)
            self._before[partition.topic_partition] = row
        for path, failures in state.directories:
            self._report(path, str(path), failures)

    def _tell(
        self, partition: PartitionState, row: dict[str, Any], before: Mapping[str, Any]
    ) -> None:
        label = label_of(partition.topic_partition)
        if self._as_json:
            print(json_line(row), flush=True)
        elif row["done"] != before["done"]:
            print(f"{label}: {_news(row['done'], before['done'])}", flush=True)
        self._report(partition.topic_partition, label, partition.failures)

    def _report(self, subject: object, label: str, failures: Sequence[Failure]) -> None:
        """Each failure once, though it is tried again and again."""
        for failure in failures:
            known = (subject, failure.task, failure.count)
            if not failure.is_resolved and known not in self._failures:
                self._failures.add(known)
                when = format_time(failure.at_ms)
                report_error(f"{label}: {failure.task} failed at {when}: {failure.message}")

    def sum_up(self, state: MaintenanceState) -> None:
        """What was done in all."""
        done = [partition_row(partition)["done"] for partition in state.partitions]
        total = {name: sum(each[name] for each in done) for name in _NOTHING_DONE["done"]}
        if self._as_json:
            failed = {"partitions": len(done), "failing": len(state.failing)}
            print_truncations()
            print(json_line({"kind": "summary", **failed, **total}))
        else:
            what = _news(total, _NOTHING_DONE["done"]) or "nothing was due"
            print(f"{counted(len(done), 'partition')}: {what}")


_NOTHING_DONE: Mapping[str, Any] = {
    "done": {"deletedSegments": 0, "deletedBytes": 0, "cleaningRounds": 0},
    "failures": [],
}


def _news(now: Mapping[str, int], before: Mapping[str, int]) -> str:
    return "; ".join(_news_of({name: now[name] - before[name] for name in now}))


def _news_of(more: Mapping[str, int]) -> Iterator[str]:
    if more["deletedSegments"]:
        size = human_size(more["deletedBytes"])
        yield f"deleted {counted(more['deletedSegments'], 'segment')}, {size}"
    if more["cleaningRounds"]:
        yield f"compacted in {counted(more['cleaningRounds'], 'round')}"


def partition_row(partition: PartitionState) -> dict[str, Any]:
    """The state of a partition, as JSON has it."""
    cleaning = partition.cleaning
    return {
        "kind": "partition",
        **partition.topic_partition._asdict(),
        "path": str(partition.path),
        "checkedMs": partition.checked_ms,
        "done": {
            "deletedSegments": partition.deleted_segments,
            "deletedBytes": partition.deleted_bytes,
            "cleaningRounds": 0 if cleaning is None else cleaning.passes,
        },
        "cleaning": None if cleaning is None else cleaning.status.value,
        "cleanedMs": None if cleaning is None else cleaning.last_pass_ms,
        "isFailing": partition.is_failing,
        "failures": [json_names(vars(failure)) for failure in partition.failures],
    }
