"""Rebuilding of indexes, spread over workers: one task a segment.

This process holds the locks of the log directories as long as the job runs, so that no broker can
start. A file is replaced by a complete one, so a task may run twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.bulk.workers import Clock, JobResult, ThreadWorkers, pack
from stratalog.format.index_entries import INTERVAL_BYTES_DEFAULT
from stratalog.maintenance.reindex import Reindexed, ReindexTask, plan_reindex, reindex_segment
from stratalog.partitions.lock import lock_dirs
from stratalog.storage.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stratalog.bulk.workers import Workers


@dataclass(frozen=True)
class ReindexResult(JobResult):
    """What became of every segment."""

    segments: tuple[Reindexed, ...] = ()

    @property
    def changed_files(self) -> int:
        return sum(change.is_change for segment in self.segments for change in segment.changes)

    @property
    def corrupt(self) -> tuple[Reindexed, ...]:
        return tuple(segment for segment in self.segments if segment.failure)


def reindex(
    partitions: Iterable[Path | str],
    *,
    interval_bytes: int = INTERVAL_BYTES_DEFAULT,
    is_forced: bool = False,
    is_dry_run: bool = False,
    workers: Workers | None = None,
) -> ReindexResult:
    """Rebuild the indexes of these partition directories; correct ones only if it `is_forced`.

    Every worker must see the files under the same paths, and may write there. Raises
    LogDirLockedError while a broker or another writer holds a directory.
    """
    clock = Clock()
    workers = workers or ThreadWorkers()
    paths = [Path(path).absolute() for path in partitions]
    roots = sorted({path.parent for path in paths})
    with lock_dirs(Disk(), [] if is_dry_run else roots):
        tasks = [
            task
            for path in paths
            for task in plan_reindex(path, interval_bytes=interval_bytes, is_forced=is_forced)
        ]
        groups = pack(tasks, lambda task: task.size_bytes, slots=workers.slots)
        work = partial(_reindex, is_dry_run=is_dry_run)
        done = workers.run(work, groups, title=f"stratalog reindex: {len(tasks)} segments")
    segments = tuple(sorted(done, key=lambda segment: segment.path))
    size_bytes = sum(segment.size_bytes for segment in segments)
    return ReindexResult("reindex", 0, size_bytes, clock.seconds, len(groups), segments)


def _reindex(task: ReindexTask, *, is_dry_run: bool) -> Reindexed:
    return reindex_segment(task, Disk(), is_dry_run=is_dry_run)
