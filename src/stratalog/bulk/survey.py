"""Surveys batch headers of partitions and simulates other settings, spread over workers.

A partition is one task: where a segment begins depends on all batches before it. Its headers are
read once, for the facts and for every config.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from stratalog.bulk.workers import Clock, JobResult, ThreadWorkers, pack
from stratalog.format.names import RootFile
from stratalog.format.times import current_time_ms
from stratalog.log.partition_view import PartitionView
from stratalog.storage.remote_path import location
from stratalog.tuning.headers import HeaderCounter, HeaderScan
from stratalog.tuning.simulation import LogSummary, Replay

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from stratalog.bulk.workers import Workers
    from stratalog.config import LogConfig
    from stratalog.format.names import TopicPartition
    from stratalog.tuning.headers import HeaderFacts
    from stratalog.tuning.simulation import SimulatedLog


class SurveyTask(NamedTuple):
    """A partition directory, and the settings to replay it under."""

    path: Path
    size_bytes: int
    configs: tuple[LogConfig, ...]
    now_ms: int


class SurveyedPartition(NamedTuple):
    """What was found in one partition."""

    topic_partition: TopicPartition
    path: str
    facts: HeaderFacts
    simulated: tuple[SimulatedLog, ...]
    """One for each config."""


def amounts_of(found: Iterable[SurveyedPartition]) -> tuple[int, int]:
    """The records and bytes of all these partitions."""
    facts = [each.facts for each in found]
    return sum(each.records for each in facts), sum(each.size_bytes for each in facts)


@dataclass(frozen=True)
class SurveyResult(JobResult):
    """All partitions, in order."""

    partitions: tuple[SurveyedPartition, ...] = ()


def survey(
    partitions: Iterable[Path | str],
    *,
    configs: Mapping[str, Sequence[LogConfig]] | None = None,
    now_ms: int | None = None,
    workers: Workers | None = None,
) -> SurveyResult:
    """Read the batch headers of these partition directories.

    `configs` has the settings to replay each topic under; a topic without any is only counted.
    """
    clock = Clock()
    workers = workers or ThreadWorkers()
    now_ms = current_time_ms() if now_ms is None else now_ms
    tasks = []
    for path in map(location, partitions):
        with PartitionView(path) as view:
            chosen = (configs or {}).get(view.topic_partition.topic, ())
            tasks.append(SurveyTask(path.absolute(), view.size_bytes, tuple(chosen), now_ms))
    groups = pack(tasks, lambda task: task.size_bytes, slots=workers.slots)
    title = f"stratalog tune: headers of {len(tasks)} partitions"
    found = sorted(workers.run(survey_partition, groups, title=title))
    return SurveyResult(
        "tune",
        *amounts_of(found),
        clock.seconds,
        len(groups),
        tuple(found),
    )


def survey_partition(task: SurveyTask) -> SurveyedPartition:
    """Runs in a worker."""
    path = task.path
    with PartitionView(path) as view:
        segments = view.segments
        counter = HeaderCounter(task.now_ms, segments[0].base_offset)
        replays = [Replay(config, segments[0].base_offset) for config in task.configs]
        corrupt_bytes = 0
        for segment in segments:
            counter.begin_segment(segment.base_offset)
            scan = HeaderScan(segment, task.now_ms)
            for rows in scan:
                counter.add(rows)
                for replay in replays:
                    replay.add(rows)
            corrupt_bytes += scan.corrupt_bytes
        frame = LogSummary(
            view.topic_partition,
            path,
            view.log_start_offset,
            view.last_stable_offset,
            view.checkpointed(RootFile.CLEANER_OFFSETS),
            task.now_ms,
        )
    simulated = tuple(replay.finish(frame) for replay in replays)
    facts = counter.finish(corrupt_bytes)
    return SurveyedPartition(view.topic_partition, str(path), facts, simulated)
