"""`stratalog reindex`: the indexes of partitions, built again from their logs."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, NamedTuple

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
)
from stratalog.cli.output import json_line, json_names, report_error
from stratalog.cli.tables import counted
from stratalog.cli.targets import targets_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stratalog.maintenance.reindex import Reindexed, ReindexTask

_KEPT = "kept"


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
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace indexes that are right but not as recovery's, too."),
    ] = False,
    master: MasterOption = None,
    conf: ConfOption = None,
    as_json: JsonOption = False,
) -> None:
    """Build .index, .timeindex and .txnindex again from the logs, as recovery does.

    Files that are missing or wrong are replaced, each at once and whole. One that is right is left
    alone, even if recovery with this interval would write another; --force replaces it, too.
    The lock of the log directory is taken, so this is refused while a broker runs. A segment that
    is damaged in its middle is left as it is, and the status is 1.

    \b
    Examples:
      stratalog reindex /var/lib/kafka/data/orders-3 --dry-run
      stratalog reindex orders -d /var/lib/kafka/data
      stratalog reindex /var/lib/kafka/data --master 'local[*]'

    With --json there is an object for each index file that changes, or would with --force (path,
    change, bytesBefore, bytesAfter), one for each damaged segment, and a last one of kind summary.
    """
    started = time.perf_counter()
    partitions = targets_of(where, log_dir).all_partitions()
    build = _Build(index_interval_bytes, is_forced=force, is_dry_run=dry_run)
    segments = _run(partitions, build, master, conf)
    seconds = time.perf_counter() - started
    _print(segments, seconds, as_json=as_json, is_dry_run=dry_run)
    if any(segment.damage for segment in segments):
        raise typer.Exit(1)


class _Build(NamedTuple):
    """How it is done."""

    interval_bytes: int
    is_forced: bool
    is_dry_run: bool


def _run(
    partitions: Sequence[Path], build: _Build, master: str | None, conf: Sequence[str] | None
) -> Sequence[Reindexed]:
    if master is None:
        return _run_here(partitions, build)
    from stratalog.bulk.reindex import reindex  # noqa: PLC0415 - as needed
    from stratalog.spark.workers import SparkWorkers  # noqa: PLC0415

    with (
        BulkProgress(1) as progress,
        spark_session("stratalog reindex", master, conf) as spark,
    ):
        workers = SparkWorkers(spark, progress.groups_done)
        return reindex(partitions, **build._asdict(), workers=workers).segments


def _run_here(partitions: Sequence[Path], build: _Build) -> list[Reindexed]:
    from stratalog.maintenance.reindex import plan_reindex, reindex_segment  # noqa: PLC0415
    from stratalog.partitions.lock import lock_dirs  # noqa: PLC0415 - as needed
    from stratalog.storage.disk import Disk  # noqa: PLC0415

    disk = Disk()
    roots = sorted({path.absolute().parent for path in partitions})
    interval_bytes, is_forced, is_dry_run = build
    with lock_dirs(disk, [] if is_dry_run else roots):
        tasks = [
            task
            for path in partitions
            for task in plan_reindex(path, interval_bytes=interval_bytes, is_forced=is_forced)
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
    files = [change for segment in segments for change in segment.changes]
    changes = [change for change in files if change.is_made]
    kept = [change for change in files if change.change == _KEPT]
    damaged = [segment for segment in segments if segment.damage]
    size_bytes = sum(segment.size_bytes for segment in segments)
    if as_json:
        for change in (*changes, *kept):
            row = json_names({**change._asdict(), "change": str(change.change)})
            print(json_line({"kind": "file", **row}))
        for segment in damaged:
            print(json_line({"kind": "damaged", "path": segment.path, "reason": segment.damage}))
        summary = {
            "segments": len(segments),
            "changed_files": len(changes),
            "kept_files": len(kept),
            "damaged": len(damaged),
            "size_bytes": size_bytes,
            "seconds": round(seconds, 3),
            "dry_run": is_dry_run,
        }
        print(json_line({"kind": "summary", **json_names(summary)}))
        return
    for change in changes:
        would = "would be " if is_dry_run else ""
        sizes = f"{change.bytes_before} to {counted(change.bytes_after, 'byte')}"
        print(f"{change.path}: {would}{change.change} ({sizes})")
    for segment in damaged:
        report_error(f"left alone: {segment.damage}; see stratalog verify")
    verb = "to change" if is_dry_run else "changed"
    amount = rate_text(0, size_bytes, seconds)
    others = f", {len(kept):,} left that are right in another way (see --force)" if kept else ""
    print(
        f"{counted(len(segments), 'segment')}, {amount}: "
        f"{counted(len(changes), 'file')} {verb}{others}"
    )
