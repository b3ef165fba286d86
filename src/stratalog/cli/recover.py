"""`stratalog recover`: recover logs after an unclean stop, or show what that would truncate.

A dry run asks the same plan that recovery acts on. It takes no lock and never writes.
"""

from __future__ import annotations

from pathlib import Path  # Typer reads the annotations
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from stratalog.cli.output import (
    json_line,
    print_truncations,
    report_error,
    truncation_row,
)
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
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="A log directory.", show_default=False)
    ],
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC[:PARTITION]",
            help="What to recover; without any, every partition.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be truncated, and change nothing.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, one for each truncation.")
    ] = False,
) -> None:
    """Recover logs as a broker does at its start, or show what it would truncate.

    After an unclean stop, every log is read from its recovery point on and truncated before the
    first batch that is incomplete or corrupt; later segments are deleted. Records after a corrupt
    batch are dropped even if they are readable: they are counted here. Copy them first with
    `stratalog read --skip-corrupt`, or restore the partition from a replica. A segment with offsets
    that are too far above its base offset for an index is split; nothing of it is dropped.

    --dry-run takes no lock and never writes. Otherwise the directory is locked, and marked as
    cleanly shut down if all of it was recovered. With topics, the other logs stay as they are.

    \b
    Examples:
      stratalog recover /var/lib/kafka/data --dry-run
      stratalog recover /var/lib/kafka/data orders:3 --dry-run --json
      stratalog recover /var/lib/kafka/data

    With --json there is an object of kind truncation for each log that loses bytes, in a dry run
    one of kind split for each segment that would be split, and a last one of kind summary.
    """
    dirs = open_dirs(directory)
    specs = tuple(map(TopicSpec.parse, topics or ()))
    wanted = _wanted(dirs, specs)
    outcome = (
        _plan(dirs, wanted) if dry_run else _recover(directory, wanted, recovers_all=not specs)
    )
    if as_json:
        _print_json(outcome, len(wanted), is_done=not dry_run)
    else:
        _print_text(outcome, len(wanted), is_done=not dry_run)
    if outcome.failed:
        raise typer.Exit(1)


class _Outcome(NamedTuple):
    truncations: Sequence[Truncation]
    failed: int
    was_clean: bool
    splits: Sequence[SegmentSplit] = ()
    """Only in a dry run."""


def _wanted(dirs: LogDirsView, specs: Sequence[TopicSpec]) -> list[TopicPartition]:
    if not specs:
        return dirs.topic_partitions
    return [view.topic_partition for spec in specs for view in open_topic(dirs, spec)]


def _plan(dirs: LogDirsView, wanted: Sequence[TopicPartition]) -> _Outcome:
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
            is_start_told=start >= 0,
        )
        try:
            plan = plan_recovery(log_dir.path / str(topic_partition), point)
            found += plan.truncations
            splits += plan.splits
        except StratalogError as error:
            failed += 1
            report_error(f"{topic_partition}: {error}")
    return _Outcome(found, failed, log_dir.has_clean_shutdown, splits)


def _recover(directory: Path, wanted: Sequence[TopicPartition], *, recovers_all: bool) -> _Outcome:
    from stratalog.log_dir import LogDir  # noqa: PLC0415  # loads the whole engine

    was_clean = (directory / RootFile.CLEAN_SHUTDOWN.value).exists()
    failed = 0
    with LogDir.open(
        directory, create=False, background=False, recover_all=recovers_all, missing_dirs="offline"
    ) as logs:
        for topic_partition in wanted:
            try:
                if topic_partition.topic in logs.topics:  # not the cluster's metadata log
                    logs.partition(*topic_partition)
            except StratalogError as error:
                failed += 1
                report_error(f"{topic_partition}: {error}")
        return _Outcome(logs.recovery, failed, was_clean)


def _print_json(outcome: _Outcome, partitions: int, *, is_done: bool) -> None:
    if is_done:
        print_truncations()
    else:
        for truncation in outcome.truncations:
            print(json_line(truncation_row(truncation, is_done=False)))
    for split in outcome.splits:
        row = {"path": str(split.path), "baseOffsets": split.base_offsets, "isDone": False}
        print(json_line({"kind": "split", **split.topic_partition._asdict(), **row}))
    summary = {
        "kind": "summary",
        "isDryRun": not is_done,
        "wasCleanShutdown": outcome.was_clean,
        "partitions": partitions,
        "failed": outcome.failed,
        "splits": None if is_done else len(outcome.splits),
        "truncations": len(outcome.truncations),
        "droppedBytes": sum(each.dropped_bytes for each in outcome.truncations),
        "readableRecords": sum(each.readable_records for each in outcome.truncations),
    }
    print(json_line(summary))


def _print_text(outcome: _Outcome, partitions: int, *, is_done: bool) -> None:
    truncations = outcome.truncations
    if not is_done:
        for truncation in truncations:
            print(truncation.text("would be truncated"))
    for split in outcome.splits:
        print(split)
    dropped = sum(each.dropped_bytes for each in truncations)
    readable = sum(each.readable_records for each in truncations)
    what = "nothing to truncate"
    if truncations:
        verb = "truncated" if is_done else "would be truncated"
        what = (
            f"{counted(len(truncations), 'log')} {verb}, {human_size(dropped)}, "
            f"{counted(readable, 'readable record')} among them"
        )
    if outcome.splits:
        what += f"; {counted(len(outcome.splits), 'segment')} would be split"
    stop = "after a clean stop" if outcome.was_clean else "after an unclean stop"
    print(f"{counted(partitions, 'partition')} {stop}: {what}")
