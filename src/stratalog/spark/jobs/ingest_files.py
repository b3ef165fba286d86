"""Files into topics, read by the workers themselves: no row becomes one of Spark's.

The driver looks at the files and cuts them into tasks of about equal size, in order; a task reads
its part, stages it under the job's id and answers what it has staged; the driver commits all
answers at once. What a task leaves that died or ran twice is nobody's answer, so it is removed
with the commit, or when the job fails.

This is for rows that are records already: lines, with fields of JSON where they are asked for, and
Parquet with the sink's columns. Where rows have to be computed first, Spark reads the files
(`ingest.read_files`) and the sink writes them.
"""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stratalog.bulk.topics import roll_back_topics
from stratalog.commits.staged import StagedCommit
from stratalog.errors import InputFileError, JobError, NeedsSparkError, StratalogError
from stratalog.spark.jobs.ingest_inputs import FileSource, IngestResult, Missing
from stratalog.spark.jobs.ingest_plan import IngestPlan, plan_ingest, plan_tasks, topic_of
from stratalog.spark.jobs.ingest_topics import find_topics
from stratalog.spark.jobs.line_fields import LineError
from stratalog.spark.jobs.parquet_rows import RowGroups, read_rows
from stratalog.spark.jobs.running import Clock, SparkWorkers, interrupted_once, interrupts_held
from stratalog.spark.jobs.text_lines import read_lines
from stratalog.spark.staged_writes import abandon_job, commit_staged, stage_rows
from stratalog.spark.write_options import WriteOptions
from stratalog.spark.write_schema import check_topic_column

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from stratalog.commits.committer import CommitResult
    from stratalog.commits.staged import StagedRun, StagedTopic
    from stratalog.spark.jobs.ingest_plan import IngestTask, Piece
    from stratalog.spark.jobs.running import OnProgress, Workers
    from stratalog.spark.jobs.text_lines import TextRange

__all__ = ["FileSource", "IngestPlan", "ingest_files", "plan_ingest", "plan_tasks", "run_ingest"]


def ingest_files(
    spark: SparkSession,
    source: FileSource,
    log_dir: Path | str,
    *,
    topic: str | None = None,
    options: Mapping[str, str] | None = None,
    on_progress: OnProgress | None = None,
) -> IngestResult:
    """Write all rows of the files, once: by workers alone where they can read them, else as
    `ingest(read_files(...))` does.

    `options` are the sink's. Driver and workers must see files and log directory under the same
    paths. Raises a StratalogError with the one line that says what is wrong.
    """
    try:
        _check_local(spark)
        plan = plan_ingest(source)
    except NeedsSparkError:
        from stratalog.spark.jobs.ingest import ingest_source  # noqa: PLC0415 - loads Spark

        return ingest_source(
            spark, source, log_dir, topic=topic, options=options, on_progress=on_progress
        )
    workers = SparkWorkers(spark, on_progress)
    return run_ingest(workers, plan, log_dir, topic=topic, options=options)


def _check_local(spark: SparkSession) -> None:
    """A path without a scheme is a local file, unless Spark is told otherwise."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    default = str(hadoop.get("fs.defaultFS", "file:///"))
    if not default.startswith("file:"):
        raise NeedsSparkError(f"paths are those of {default}")


def run_ingest(
    workers: Workers,
    plan: IngestPlan,
    log_dir: Path | str,
    *,
    topic: str | None = None,
    options: Mapping[str, str] | None = None,
) -> IngestResult:
    """Write what was planned. Whatever can be known to go wrong goes wrong before a task runs."""
    clock = Clock()
    path = Path(log_dir).absolute()
    given = {**({"topic": topic} if topic else {}), **(options or {})}
    parsed = WriteOptions.parse({**given, "path": json.dumps([str(path)])})
    groups = [[task] for task in plan_tasks(plan.pieces, workers.slots)]
    with interrupted_once():
        done, missing = _write(workers, plan, groups, parsed)
    return IngestResult(
        "ingest", done.record_count, done.size_bytes, clock.seconds, len(groups), missing
    )


def _write(
    workers: Workers, plan: IngestPlan, groups: list[list[IngestTask]], options: WriteOptions
) -> tuple[CommitResult, Missing]:
    """Stage and commit, or leave everything as it was."""
    made = _check(options, plan)
    kept = tuple(use for use in plan.columns if use.name != "topic" or options.topic is None)
    plan = replace(plan, columns=kept, pieces=())
    job = uuid.uuid4().hex
    work = partial(_stage, plan=plan, options=options, job=job)
    done: CommitResult | None = None
    try:
        title = f"stratalog ingest to {options.target.paths[0]}"
        answers = workers.run(work, groups, title=title)
        runs = tuple(run for answer in answers for run in answer.runs)
        missing = _sum_of(answer.missing for answer in answers)
        with interrupts_held():
            done = commit_staged(options.target, StagedCommit(runs, job, 0, options.identity))
    except BaseException as error:
        if done is not None:  # an interrupt right behind the commit
            raise KeyboardInterrupt("all was written") from None
        with interrupts_held(), suppress(StratalogError):  # what is left is swept one day
            abandon_job(options.target, job)
            roll_back_topics(options.target, made)
        if isinstance(error, OSError):
            raise JobError(f"{error.filename}: {error.strerror}") from None
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt("nothing was written") from None
        raise
    return done, missing


def _check(options: WriteOptions, plan: IngestPlan) -> tuple[StagedTopic, ...]:
    """What the sink checks of a write, and the topics that had to be made."""
    check_topic_column(options.topic, is_present=plan.has_topic)
    return find_topics(options, plan.topics if options.topic is None else (options.topic,))


class _Staged(NamedTuple):
    """What a task answers."""

    runs: tuple[StagedRun, ...]
    missing: Missing


def _stage(task: IngestTask, *, plan: IngestPlan, options: WriteOptions, job: str) -> _Staged:
    """Runs in a worker. The plan has no pieces but those of the task."""
    runs: tuple[StagedRun, ...] = ()
    missing: list[Missing] = []
    for topic, pieces in groupby(task.pieces, key=topic_of):
        own = options if topic is None or options.topic else replace(options, topic=topic)
        rows = (batch for piece in pieces for batch in _read(piece, plan, missing))
        runs += stage_rows(rows, own, job, 0, task.number)
    return _Staged(runs, _sum_of(missing))


def _read(piece: Piece, plan: IngestPlan, missing: list[Missing]) -> Iterator[pa.RecordBatch]:
    """The rows; what they lack is added to `missing`."""
    if isinstance(piece, RowGroups):
        yield from read_rows(piece, plan.columns)
        return
    lines_before = 0
    for lines in read_lines(piece):
        try:
            found = plan.lines.rows(lines)
        except LineError as error:
            number = _count_lines(piece._replace(start=0, end=piece.start)) + lines_before
            raise InputFileError(
                f"{piece.path}: line {number + error.index + 1}: {error.reason}"
            ) from None
        lines_before += len(lines)
        missing.append(found.missing)
        yield found.batch


def _sum_of(found: Iterable[Missing]) -> Missing:
    return reduce(Missing.plus, found, Missing())


def _count_lines(source: TextRange) -> int:
    return sum(len(lines) for lines in read_lines(source))
