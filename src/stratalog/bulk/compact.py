"""Compaction of huge partitions, spread over workers: the tasks of
`maintenance.cleaning.distributed`.

This process holds the lock of the log directory and directs each cleaning pass; workers read
segments, collect keys and write the records that are retained. The files are the same as those that
the local cleaner writes if it has memory for all keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from stratalog.bulk.workers import Clock, JobResult, ThreadWorkers, pack
from stratalog.config.topic import CleanupPolicy
from stratalog.errors import JobError
from stratalog.format.names import TopicPartition
from stratalog.log_dir import LogDir
from stratalog.maintenance.cleaning.distributed import DistributedCleaner

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from stratalog.bulk.workers import Workers
    from stratalog.config import BrokerConfig
    from stratalog.maintenance.cleaning.distributed import (
        MapPart,
        MapTask,
        RewriteTask,
        RewrittenGroup,
    )
    from stratalog.service.cleaners import PassReport

T = TypeVar("T", "MapTask", "RewriteTask")
R = TypeVar("R", "MapPart", "RewrittenGroup")


@dataclass(frozen=True)
class CompactResult(JobResult):
    """The cleaning pass of every eligible partition."""

    passes: tuple[PassReport, ...] = ()

    @property
    def bytes_written(self) -> int:
        return sum(each.result.bytes_written for each in self.passes if each.result is not None)

    @property
    def failed(self) -> tuple[PassReport, ...]:
        return tuple(each for each in self.passes if each.error is not None)


class ClusterTasks:
    """Runs the tasks of a cleaning pass on workers."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self.count = 0

    def map_all(self, tasks: Sequence[MapTask]) -> list[MapPart]:
        return self._run(_map, tasks, f"keys of {len(tasks)} segments")

    def rewrite_all(self, tasks: Sequence[RewriteTask]) -> list[RewrittenGroup]:
        return self._run(_rewrite, tasks, f"rewriting {len(tasks)} groups of segments")

    def _run(self, function: Callable[[T], R], tasks: Sequence[T], what: str) -> list[R]:
        """Results in the order of their offsets. An error of a task is raised here, as if this
        process ran the pass."""
        groups = pack(tasks, lambda task: task.size_bytes, slots=self._workers.slots)
        self.count += len(groups)
        try:
            done = self._workers.run(function, groups, title=f"stratalog compact: {what}")
        except JobError as failure:
            if failure.error is None:
                raise
            raise failure.error from None
        return sorted(done, key=lambda part: part.base_offset)


def _map(task: MapTask) -> MapPart:
    return task.run()


def _rewrite(task: RewriteTask) -> RewrittenGroup:
    return task.run()


def distributed_cleaner(workers: Workers) -> DistributedCleaner:
    """Cleans a log on workers, in the place of `Cleaner`."""
    return DistributedCleaner(ClusterTasks(workers))


def compact(
    directory: Path | str,
    *,
    topics: Collection[str] | None = None,
    config: BrokerConfig | Mapping[str, object] | None = None,
    assumed_config: Mapping[str, object] | None = None,
    is_forced: bool = False,
    workers: Workers | None = None,
) -> CompactResult:
    """Compact the partitions of a log directory that are eligible; all that are dirty if it
    `is_forced`. `topics` narrows them down. `assumed_config` is for topics whose own settings are
    unknown (see `LogDir.open`); without it, naming one raises UnknownSettingsError.

    Every worker must see the directory under the same path, and may write there. Raises
    LogDirLockedError while a broker or another writer has it open.
    """
    clock = Clock()
    tasks = ClusterTasks(workers or ThreadWorkers())
    cleaner = DistributedCleaner(tasks)
    passes: list[PassReport] = []
    path = Path(directory).absolute()
    with LogDir.open(
        path,
        config=config,
        create=False,
        background=False,
        missing_dirs="offline",
        recover_all=False,
        assumed_config=assumed_config,
    ) as logs:
        for topic_partition in _compacted(logs, topics):
            report = logs.cleaning.clean(topic_partition, cleaner, is_forced=is_forced)
            if report is not None:
                passes.append(report)
    done = [each.result for each in passes if each.result is not None]
    return CompactResult(
        "compact",
        sum(result.records_read for result in done),
        sum(result.bytes_read for result in done),
        clock.seconds,
        tasks.count,
        tuple(passes),
    )


def _compacted(logs: LogDir, topics: Collection[str] | None) -> Iterator[TopicPartition]:
    for name, topic in sorted(logs.topics.items()):
        is_chosen = topic.unknown is None if topics is None else name in topics
        if is_chosen and CleanupPolicy.COMPACT in topic.config.cleanup_policy:
            for partition in topic.partitions:
                yield TopicPartition(name, partition)
