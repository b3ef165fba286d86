"""`stratalog reindex`: the indexes of partitions, built again from their logs."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stratalog.cli.arguments import LogDirOption
from stratalog.cli.bulk import (
    BulkProgress,
    ConfOption,
    JsonOption,
    MasterOption,
    WhereArgument,
    rate_text,
    spark_session,
    targets_of,
)
from stratalog.cli.output import json_line, report_error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stratalog.maintenance.reindex import Reindexed, ReindexTask

_UNCHANGED = "unchanged"


def run(  # noqa: PLR0913, PLR0917  # a parameter is a flag
    where: WhereArgument = None,
    log_dir: LogDirOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would change; no lock, nothing written.")
    ] = False,
    index_interval_bytes: Annotated[
        int,
        typer.Option(
            "--index-interval-bytes",
            min=0,
            metavar="BYTES",
            help="The topic's index.interval.bytes.",
        ),
    ] = 4096,
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Build .index, .timeindex and .txnindex again from the logs, as recovery does.

    Files that are right already are left alone; the others are replaced, each at once and whole.
    The lock of the log directory is taken, so this is refused while a broker runs. A segment that
    is damaged in its middle is left as it is, and the status is 1.

    \b
    Examples:
      stratalog reindex /var/lib/kafka/data/orders-3 --dry-run
      stratalog reindex orders -d /var/lib/kafka/data
      stratalog reindex /var/lib/kafka/data --master 'local[*]'

    With --json there is an object for each index file that changes (path, change, bytes_before,
    bytes_after), one for each damaged segment, and a last one of kind summary.
    """
    started = time.perf_counter()
    partitions = targets_of(where, log_dir).all_partitions()
    segments = _run(partitions, index_interval_bytes, master, conf, is_dry_run=dry_run)
    seconds = time.perf_counter() - started
    _print(segments, seconds, as_json=as_json, is_dry_run=dry_run)
    if any(segment.damage for segment in segments):
        raise typer.Exit(1)


def _run(
    partitions: Sequence[Path],
    interval_bytes: int,
    master: str | None,
    conf: Sequence[str] | None,
    *,
    is_dry_run: bool,
) -> Sequence[Reindexed]:
    if master is None:
        return _run_here(partitions, interval_bytes, is_dry_run=is_dry_run)
    from stratalog.spark.jobs.reindex import reindex  # noqa: PLC0415 - loads Spark

    with (
        BulkProgress(1) as progress,
        spark_session("stratalog reindex", master, conf) as spark,
    ):
        return reindex(
            spark,
            partitions,
            interval_bytes=interval_bytes,
            is_dry_run=is_dry_run,
            on_progress=progress.groups_done,
        ).segments


def _run_here(
    partitions: Sequence[Path], interval_bytes: int, *, is_dry_run: bool
) -> list[Reindexed]:
    from stratalog.log_dir.lock import lock_dirs  # noqa: PLC0415 - as needed
    from stratalog.maintenance.reindex import plan_reindex, reindex_segment  # noqa: PLC0415
    from stratalog.storage.disk import Disk  # noqa: PLC0415

    disk = Disk()
    roots = sorted({path.absolute().parent for path in partitions})
    with lock_dirs(disk, [] if is_dry_run else roots):
        tasks = [
            task
            for path in partitions
            for task in plan_reindex(path, interval_bytes=interval_bytes)
        ]
        with (
            BulkProgress(sum(task.size_bytes for task in tasks)) as progress,
            ThreadPoolExecutor(os.cpu_count() or 1) as pool,
        ):

            def work(task: ReindexTask) -> Reindexed:
                done = reindex_segment(task, disk, is_dry_run=is_dry_run)
                progress.add_bytes(task.size_bytes)
                return done

            return list(pool.map(work, tasks))


def _print(
    segments: Sequence[Reindexed], seconds: float, *, as_json: bool, is_dry_run: bool
) -> None:
    changes = [
        change for segment in segments for change in segment.changes if change.change != _UNCHANGED
    ]
    damaged = [segment for segment in segments if segment.damage]
    size_bytes = sum(segment.size_bytes for segment in segments)
    if as_json:
        for change in changes:
            row: dict[str, Any] = {**change._asdict(), "change": str(change.change)}
            print(json_line({"kind": "file", **row}))
        for segment in damaged:
            print(json_line({"kind": "damaged", "path": segment.path, "reason": segment.damage}))
        summary = {
            "kind": "summary",
            "segments": len(segments),
            "changed_files": len(changes),
            "damaged": len(damaged),
            "size_bytes": size_bytes,
            "seconds": round(seconds, 3),
            "dry_run": is_dry_run,
        }
        print(json_line(summary))
        return
    for change in changes:
        would = "would be " if is_dry_run else ""
        sizes = f"{change.bytes_before} to {change.bytes_after} bytes"
        print(f"{change.path}: {would}{change.change} ({sizes})")
    for segment in damaged:
        report_error(f"left alone: {segment.damage}; see stratalog verify")
    verb = "to change" if is_dry_run else "changed"
    amount = rate_text(0, size_bytes, seconds)
    print(f"{len(segments):,} segments, {amount}: {len(changes):,} files {verb}")
