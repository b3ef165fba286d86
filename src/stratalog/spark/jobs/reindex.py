"""Rebuilding indexes on a cluster: one task a segment, under the lock of the log directories.

The driver holds the locks as long as the job lasts, so no broker starts meanwhile. Files are
replaced whole, so a task that runs twice does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.format.index_entries import INTERVAL_BYTES_DEFAULT
from stratalog.maintenance.reindex import (
    Reindexed,
    ReindexTask,
    plan_reindex,
    reindex_segment,
)
from stratalog.partitions.lock import lock_dirs
from stratalog.spark.jobs.running import Clock, JobResult, SparkWorkers, pack
from stratalog.storage.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from stratalog.spark.jobs.running import OnProgress


@dataclass(frozen=True)
class ReindexResult(JobResult):
    """What became of every segment."""

    segments: tuple[Reindexed, ...] = ()

    @property
    def changed_files(self) -> int:
        return sum(change.is_made for segment in self.segments for change in segment.changes)

    @property
    def damaged(self) -> tuple[Reindexed, ...]:
        return tuple(segment for segment in self.segments if segment.damage)


def reindex(
    spark: SparkSession,
    partitions: Iterable[Path | str],
    *,
    interval_bytes: int = INTERVAL_BYTES_DEFAULT,
    is_forced: bool = False,
    is_dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> ReindexResult:
    """Build the indexes of these partition directories again; those that are right only if forced.

    Every worker must see the files under the same paths, and may write there. Raises
    LogDirLockedError while a broker or another writer holds a directory.
    """
    clock = Clock()
    paths = [Path(path).absolute() for path in partitions]
    roots = sorted({path.parent for path in paths})
    with lock_dirs(Disk(), [] if is_dry_run else roots):
        tasks = [
            task
            for path in paths
            for task in plan_reindex(path, interval_bytes=interval_bytes, is_forced=is_forced)
        ]
        workers = SparkWorkers(spark, on_progress)
        groups = pack(tasks, lambda task: task.size_bytes, slots=workers.slots)
        work = partial(_reindex, is_dry_run=is_dry_run)
        done = workers.run(work, groups, title=f"stratalog reindex: {len(tasks)} segments")
    segments = tuple(sorted(done, key=lambda segment: segment.path))
    size_bytes = sum(segment.size_bytes for segment in segments)
    return ReindexResult("reindex", 0, size_bytes, clock.seconds, len(groups), segments)


def _reindex(task: ReindexTask, *, is_dry_run: bool) -> Reindexed:
    return reindex_segment(task, Disk(), is_dry_run=is_dry_run)
