"""Topics into files that other tools read: Parquet or lines of JSON, by topic and day.

Workers decode columns and write the files themselves; rows never become Spark's. A task writes
below a directory of its own that readers of the target ignore, and only what the accepted answer of
a task names is moved into place by the driver, so a task that runs twice, or dies half-way, leaves
nothing behind.

Layout: `topic=orders/date=2026-11-16/part-00003-<job>.parquet`, the way Spark, DuckDB and pyarrow
find partition columns. Records without a timestamp go to Hive's name for null.
"""

from __future__ import annotations

import json
import shutil
import uuid
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import ConfigError
from stratalog.partitions.view import LogDirsView
from stratalog.spark.jobs.export_files import CODECS, ExportedFile, FileSet, FileSpec
from stratalog.spark.jobs.running import Clock, JobResult, SparkWorkers, pack
from stratalog.spark.options import ReadOptions
from stratalog.spark.planning import plan_read

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from stratalog.spark.jobs.running import Workers
    from stratalog.spark.splits import Split

STAGING_PREFIX: Final = "_stratalog-"
"""Spark and others leave out names that begin with an underscore."""
SUCCESS: Final = "_SUCCESS"
FILE_BYTES_MIN: Final = 8 << 20
"""So much of a log is worth a file of its own, to keep all workers busy."""
UNEVEN_TURNS: Final = 3
"""With more turns, it matters little that the last one does not keep all workers busy."""


@dataclass(frozen=True)
class ExportResult(JobResult):
    """What was written."""

    files: tuple[ExportedFile, ...] = ()

    @property
    def output_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True)
class ExportPlan:
    """What is to be read, and into what."""

    options: ReadOptions
    splits: tuple[Split, ...]
    size_bytes: int
    """Of the log that is read."""
    spec: FileSpec = field(default_factory=FileSpec)


class _Task(NamedTuple):
    number: int
    split: Split


class _Done(NamedTuple):
    """What one task has written, below its own directory."""

    directory: str
    files: tuple[ExportedFile, ...]


def export(
    spark: SparkSession,
    log_dirs: Path | str | Sequence[Path | str],
    target: Path | str,
    *,
    topics: str | Sequence[str] | None = None,
    options: Mapping[str, str] | None = None,
    spec: FileSpec | None = None,
) -> ExportResult:
    """Write topics (all but internal ones unless named) as files below `target`.

    `options` are those of a read: offsets, times, isolation level, split size. Driver and workers
    must see log directories and target under the same paths.
    """
    plan = plan_export(log_dirs, topics=topics, options=options, spec=spec)
    return run_export(SparkWorkers(spark), plan, Path(target))


def plan_export(
    log_dirs: Path | str | Sequence[Path | str],
    *,
    topics: str | Sequence[str] | None = None,
    options: Mapping[str, str] | None = None,
    spec: FileSpec | None = None,
) -> ExportPlan:
    """Splits of everything that was asked for. Raises ConfigError for what cannot be."""
    given = dict(options or {})
    paths = [log_dirs] if isinstance(log_dirs, str | Path) else list(log_dirs)
    given["path"] = json.dumps([str(Path(path).absolute()) for path in paths])
    if not {"subscribe", "subscribepattern", "assign"} & {name.lower() for name in given}:
        given["subscribe"] = ",".join(_topics(paths, topics))
    parsed = ReadOptions.parse(given)
    plan = plan_read(parsed)
    chosen = spec or FileSpec(has_headers=parsed.includes_headers)
    if chosen.codec is not None and chosen.codec not in CODECS:
        raise ConfigError("codec", f"{chosen.codec!r} is none of {', '.join(CODECS)}")
    return ExportPlan(parsed, plan.splits, plan.summary.bytes_read, chosen)


def _topics(paths: Iterable[Path | str], topics: str | Sequence[str] | None) -> list[str]:
    if isinstance(topics, str):
        return [topics]
    if topics is not None:
        return list(topics)
    found = LogDirsView(Path(path) for path in paths).topics
    return [topic for topic in found if not topic.startswith("__")]


def run_export(workers: Workers, plan: ExportPlan, target: Path) -> ExportResult:
    """Write what was planned. Raises ConfigError if the target has files and none may be added."""
    clock = Clock()
    target = target.absolute()
    _check_target(target, plan.spec)
    job = uuid.uuid4().hex[:12]
    staging = target / f"{STAGING_PREFIX}{job}"
    staging.mkdir(parents=True)
    try:
        splits = _for_all(workers, plan)
        tasks = [_Task(number, split) for number, split in enumerate(splits)]
        groups = pack(tasks, lambda task: task.split.size_bytes, slots=workers.slots, group_bytes=1)
        work = partial(_write, plan=plan, staging=str(staging))
        title = f"stratalog export: {len(tasks)} splits to {target}"
        done = workers.run(work, groups, title=title)
        files = _install(done, target, job)
        (target / SUCCESS).touch()
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    records = sum(file.records for file in files)
    return ExportResult("export", records, plan.size_bytes, clock.seconds, len(groups), files)


def _for_all(workers: Workers, plan: ExportPlan) -> tuple[Split, ...]:
    """The splits of the plan; smaller ones if some workers would have nothing to do at the end."""
    slots = workers.slots
    turns = -(-len(plan.splits) // slots)
    is_even = len(plan.splits) == turns * slots or turns > UNEVEN_TURNS
    if plan.options.min_partitions is not None or is_even:
        return plan.splits
    share_bytes = -(-plan.size_bytes // (turns * slots))
    if share_bytes < FILE_BYTES_MIN:
        return plan.splits
    return plan_read(replace(plan.options, split_bytes=share_bytes)).splits


def _check_target(target: Path, spec: FileSpec) -> None:
    if spec.appends or not target.exists():
        return
    if not target.is_dir():
        raise ConfigError("target", f"{target} is not a directory")
    if any(target.iterdir()):
        raise ConfigError("target", f"{target} is not empty; choose another, or --append to it")


def _write(task: _Task, *, plan: ExportPlan, staging: str) -> _Done:
    """Runs in a worker."""
    from stratalog.spark.jobs.export_files import read_split  # noqa: PLC0415 - loads kernels

    directory = Path(staging) / f"{task.number:05d}-{uuid.uuid4().hex[:8]}"
    with FileSet(directory, plan.spec, task.number) as files:
        for topic, batch in read_split(task.split, plan.options, plan.spec):
            files.add(topic, batch)
    return _Done(str(directory), files.written)


def _install(done: Iterable[_Done], target: Path, job: str) -> tuple[ExportedFile, ...]:
    """Move the files of accepted tasks into place."""
    installed = []
    for task in done:
        for file in task.files:
            relative = Path(file.path)
            stem, dot, suffix = relative.name.partition(".")
            path = relative.with_name(f"{stem}-{job}{dot}{suffix}")
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(task.directory) / relative).rename(target / path)
            installed.append(file._replace(path=str(path)))
    return tuple(sorted(installed))
