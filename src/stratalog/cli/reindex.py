"""`stratalog reindex`: rebuild the indexes of partitions from their logs."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from stratalog.cli.arguments import (
    DryRunOption,
    JsonOption,
    LocalLogDirOption,
    WhereArgument,
    flag,
    option,
    with_groups,
)
from stratalog.cli.output import JobProgress, json_line, json_names, report_error
from stratalog.cli.tables import counted, rate_text
from stratalog.cli.targets import targets_of
from stratalog.cli.workers import SparkOptions
from stratalog.errors import command_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.maintenance.reindex import Reindexed, ReindexTask

_KEPT = "kept"  # the index differs from what recovery would write, but is right


@with_groups
def run(  # noqa: PLR0913  # a parameter is a flag
    where: WhereArgument = None,
    log_dir: LocalLogDirOption = None,
    dry_run: DryRunOption = False,
    index_interval_bytes: Annotated[
        int,
        option(
            "--index-interval-bytes",
            "BYTES",
            "The topic's index.interval.bytes: bytes of log between two index entries.",
            least=0,
        ),
    ] = 4096,
    force: Annotated[
        bool,
        flag("--force", "Also replace valid indexes that differ from what recovery would write."),
    ] = False,
    *,
    spark: SparkOptions,
    as_json: JsonOption = False,
) -> None:
    """Rebuild .index, .timeindex and .txnindex files from the logs, as recovery does.

    Index files that are missing or wrong are replaced atomically. A valid index is kept, even if
    recovery would write a different one; use --force to replace it as well. The command locks the
    log directory, so it fails while a broker is running. If a segment has a corrupt batch, its
    indexes are left alone, and the exit status is 1.

    \b
    Examples:
      stratalog reindex /var/lib/kafka/data/orders-3 --dry-run
      stratalog reindex orders -d /var/lib/kafka/data
      stratalog reindex /var/lib/kafka/data --master 'local[*]'

    With --json, the command prints one object per index file that is replaced, or would be with
    --force (path, change, bytesBefore, bytesAfter), and one per corrupt segment. The last object is
    of kind summary.
    """
    spark.check()
    started = time.perf_counter()
    partitions = targets_of(where, log_dir).all_partitions()
    options = ReindexOptions(index_interval_bytes, is_forced=force, is_dry_run=dry_run)
    segments = _run(partitions, options, spark)
    seconds = time.perf_counter() - started
    _print(segments, seconds, as_json=as_json, is_dry_run=dry_run)
    if any(segment.failure for segment in segments):
        raise typer.Exit(1)


class ReindexOptions(NamedTuple):
    """How to rebuild."""

    interval_bytes: int
    is_forced: bool
    is_dry_run: bool


def _run(
    partitions: Sequence[Path], options: ReindexOptions, spark: SparkOptions
) -> Sequence[Reindexed]:
    if spark.master is None:
        return _run_here(partitions, options)
    from stratalog.bulk.reindex import reindex  # noqa: PLC0415 - as needed
    from stratalog.spark.workers import SparkWorkers  # noqa: PLC0415

    with (
        JobProgress(1) as progress,
        spark.session("stratalog reindex") as session,
    ):
        workers = SparkWorkers(session, progress.groups_done)
        return reindex(partitions, **options._asdict(), workers=workers).segments


def _run_here(partitions: Sequence[Path], options: ReindexOptions) -> list[Reindexed]:
    from stratalog.maintenance.reindex import plan_reindex, reindex_segment  # noqa: PLC0415
    from stratalog.partitions.lock import lock_dirs  # noqa: PLC0415 - as needed
    from stratalog.storage.disk import Disk  # noqa: PLC0415

    disk = Disk()
    roots = sorted({path.absolute().parent for path in partitions})
    interval_bytes, is_forced, is_dry_run = options
    with lock_dirs(disk, [] if is_dry_run else roots):
        tasks = [
            task
            for path in partitions
            for task in plan_reindex(path, interval_bytes=interval_bytes, is_forced=is_forced)
        ]
        with (
            JobProgress(sum(task.size_bytes for task in tasks)) as progress,
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
    changes = [change for change in files if change.is_change]
    kept = [change for change in files if change.change == _KEPT]
    corrupt = [segment for segment in segments if segment.failure]
    size_bytes = sum(segment.size_bytes for segment in segments)
    if as_json:
        for change in (*changes, *kept):
            row = json_names({**change._asdict(), "change": str(change.change)})
            print(json_line({"kind": "file", **row}))
        for segment in corrupt:
            print(json_line({"kind": "corrupt", "path": segment.path, "reason": segment.failure}))
        summary = {
            "segments": len(segments),
            "changed_files": len(changes),
            "kept_files": len(kept),
            "corrupt": len(corrupt),
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
    for segment in corrupt:
        advice = command_line("verify", Path(segment.path).parent)
        report_error(f"not reindexed: {segment.failure}; for details run {advice}")
    verb = "to change" if is_dry_run else "changed"
    amount = rate_text(0, size_bytes, seconds)
    others = (
        f", {len(kept):,} valid but not as recovery would write them (see --force)" if kept else ""
    )
    print(
        f"{counted(len(segments), 'segment')}, {amount}: "
        f"{counted(len(changes), 'file')} {verb}{others}"
    )
