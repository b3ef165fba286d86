"""`stratalog recover`: recover logs after an unclean shutdown, or show what that would truncate.

A dry run makes the same plan that recovery applies. It takes no lock and never writes.
"""

from __future__ import annotations

from pathlib import Path  # Typer reads the annotations
from typing import TYPE_CHECKING, NamedTuple

import typer

from stratalog.cli.arguments import DirectoryArgument, DryRunOption, JsonOption, TopicsArgument
from stratalog.cli.output import json_line, print_truncations, report_error, truncation_row
from stratalog.cli.tables import counted, human_size
from stratalog.cli.targets import TopicSpec, open_topic
from stratalog.errors import StratalogError
from stratalog.format.names import RootFile
from stratalog.partitions.view import open_dirs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.format.names import TopicPartition
    from stratalog.maintenance.recovery_plan import SegmentSplit, Truncation
    from stratalog.partitions.view import LogDirsView

FAILS_WHEN = "a partition could not be read or recovered"


def run(
    directory: DirectoryArgument,
    topics: TopicsArgument = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Recover logs as a broker does at startup, or show what it would truncate.

    After an unclean shutdown, recovery reads each log from its recovery point and truncates it at
    the first batch that is incomplete or corrupt. Later segments are deleted. Readable records
    after a corrupt batch are lost as well; the command counts them. To keep them, use `stratalog
    repair` instead, save them first with `stratalog export --skip-corrupt`, or restore the
    partition from a replica. A segment whose offsets are too far above its base offset for its
    index is split; this loses no record.

    --dry-run takes no lock and never writes. Otherwise the command locks the directory. Once all
    logs are recovered, the directory is marked as cleanly shut down. If you name topics, only their
    logs are recovered.

    \b
    Examples:
      stratalog recover /var/lib/kafka/data --dry-run
      stratalog recover /var/lib/kafka/data orders:3 --dry-run --json
      stratalog recover /var/lib/kafka/data

    With --json, the command prints one object of kind truncation for each log that loses bytes and,
    with --dry-run, one of kind split for each segment to be split. The last object is of kind
    summary.
    """
    dirs = open_dirs(directory)
    specs = tuple(map(TopicSpec.parse, topics or ()))
    wanted = _wanted(dirs, specs)
    result = _plan(dirs, wanted) if dry_run else _recover(directory, wanted, recovers_all=not specs)
    if as_json:
        _print_json(result, len(wanted), is_done=not dry_run)
    else:
        _print_text(result, len(wanted), is_done=not dry_run)
    if result.failed:
        raise typer.Exit(1)


class RecoveryResult(NamedTuple):
    """What was truncated, or would be."""

    truncations: Sequence[Truncation]
    failed: int
    was_clean: bool
    splits: Sequence[SegmentSplit] = ()
    """Only in a dry run."""


def _wanted(dirs: LogDirsView, specs: Sequence[TopicSpec]) -> list[TopicPartition]:
    if not specs:
        return dirs.topic_partitions
    return [view.topic_partition for spec in specs for view in open_topic(dirs, spec)]


def _plan(dirs: LogDirsView, wanted: Sequence[TopicPartition]) -> RecoveryResult:
    from stratalog.maintenance.recovery_plan import LoadPoint, plan_recovery  # noqa: PLC0415

    (log_dir,) = dirs.dirs
    points = log_dir.checkpoint(RootFile.RECOVERY_POINTS)
    found: list[Truncation] = []
    splits: list[SegmentSplit] = []
    failed = 0
    for topic_partition in wanted:
        start = log_dir.log_start_offsets.get(topic_partition, -1)
        point = LoadPoint(
            max(start, 0),
            points.get(topic_partition, 0),
            log_dir.has_clean_shutdown,
            is_start_checkpointed=start >= 0,
        )
        try:
            plan = plan_recovery(log_dir.path / str(topic_partition), point)
            found += plan.truncations
            splits += plan.splits
        except StratalogError as error:
            failed += 1
            report_error(f"{topic_partition}: {error}")
    return RecoveryResult(found, failed, log_dir.has_clean_shutdown, splits)


def _recover(
    directory: Path, wanted: Sequence[TopicPartition], *, recovers_all: bool
) -> RecoveryResult:
    from stratalog.log_dir import LogDir  # noqa: PLC0415  # heavy

    was_clean = (directory / RootFile.CLEAN_SHUTDOWN.value).exists()
    failed = 0
    with LogDir.open(
        directory, create=False, background=False, recover_all=recovers_all, missing_dirs="offline"
    ) as logs:
        for topic_partition in wanted:
            try:
                if topic_partition.topic in logs.topics:  # not the cluster metadata log
                    logs.partition(*topic_partition)
            except StratalogError as error:
                failed += 1
                report_error(f"{topic_partition}: {error}")
        return RecoveryResult(logs.recovery, failed, was_clean)


def _print_json(result: RecoveryResult, partitions: int, *, is_done: bool) -> None:
    if is_done:
        print_truncations()
    else:
        for truncation in result.truncations:
            print(json_line(truncation_row(truncation, is_done=False)))
    for split in result.splits:
        row = {"path": str(split.path), "baseOffsets": split.base_offsets, "isDone": False}
        print(json_line({"kind": "split", **split.topic_partition._asdict(), **row}))
    summary = {
        "kind": "summary",
        "isDryRun": not is_done,
        "wasCleanShutdown": result.was_clean,
        "partitions": partitions,
        "failed": result.failed,
        "splits": None if is_done else len(result.splits),
        "truncations": len(result.truncations),
        "droppedBytes": sum(each.dropped_bytes for each in result.truncations),
        "readableRecords": sum(each.readable_records for each in result.truncations),
    }
    print(json_line(summary))


def _print_text(result: RecoveryResult, partitions: int, *, is_done: bool) -> None:
    truncations = result.truncations
    if not is_done:
        for truncation in truncations:
            print(truncation.text("would be truncated"))
    for split in result.splits:
        print(split)
    dropped = sum(each.dropped_bytes for each in truncations)
    readable = sum(each.readable_records for each in truncations)
    what = "nothing to truncate"
    if truncations:
        verb = "truncated" if is_done else "would be truncated"
        what = (
            f"{counted(len(truncations), 'log')} {verb}, {human_size(dropped)}, "
            f"including {counted(readable, 'readable record')}"
        )
    if result.splits:
        what += f"; {counted(len(result.splits), 'segment')} would be split"
    stop = "after a clean shutdown" if result.was_clean else "after an unclean shutdown"
    print(f"{counted(partitions, 'partition')} {stop}: {what}")
