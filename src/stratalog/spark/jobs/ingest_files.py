"""Files into topics, read by the workers themselves: no row becomes one of Spark's.

The driver looks at the files and cuts them into tasks of about equal size, in order; a task reads
its part, stages it under the job's id and answers what it has staged; the driver commits all
answers at once. What a task leaves that died or ran twice is nobody's answer, so it is removed
with the commit, or when the job fails.

This is for rows that are records already: lines, and Parquet with the sink's columns. Where rows
have to be computed first, Spark reads the files (`ingest.read_files`) and the sink writes them.
"""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import pyarrow as pa

from stratalog.errors import ConfigError, StratalogError
from stratalog.log_dir.commits.finding import TopicFinder
from stratalog.log_dir.commits.staged import StagedCommit
from stratalog.spark.jobs.ingest_inputs import (
    FileSource,
    IngestResult,
    NeedsSparkError,
    find_files,
    format_of,
)
from stratalog.spark.jobs.parquet_rows import ColumnUse, RowGroups, plan_parquet, read_rows
from stratalog.spark.jobs.running import GROUP_BYTES, Clock, JobError, SparkWorkers
from stratalog.spark.jobs.text_lines import TextRange, read_lines
from stratalog.spark.staged_writes import abandon_job, commit_staged, stage_rows
from stratalog.spark.write_options import WriteOptions
from stratalog.spark.write_schema import check_topic_column

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from stratalog.log_dir.commits.staged import StagedRun
    from stratalog.spark.jobs.ingest_inputs import InputFile
    from stratalog.spark.jobs.running import OnProgress, Workers

__all__ = ["FileSource", "IngestPlan", "ingest_files", "plan_ingest", "run_ingest"]

TASK_BYTES_MIN: Final = 4 << 20
"""So much is worth a task of its own, to keep all workers busy."""
PIECE_COST_BYTES: Final = 64 << 10
"""What it takes to open a file, in bytes it could read instead."""
_LINES: Final = (ColumnUse("value", "value"),)

Piece: TypeAlias = TextRange | RowGroups


@dataclass(frozen=True)
class IngestPlan:
    """What is read, and as what."""

    columns: tuple[ColumnUse, ...]
    pieces: tuple[Piece, ...]
    """In the order in which the rows are to be in the logs."""
    has_topic: bool = False
    """Whether rows, or their directories, say which topic they are of."""

    @property
    def topics(self) -> tuple[str, ...]:
        """That directories name."""
        return tuple(dict.fromkeys(topic for piece in self.pieces if (topic := _topic_of(piece))))


class IngestTask(NamedTuple):
    """What one worker reads at once."""

    number: int
    pieces: tuple[Piece, ...]


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
        from stratalog.spark.jobs.ingest import ingest, read_files  # noqa: PLC0415 - loads Spark

        frame = read_files(
            spark,
            source.paths,
            format=source.format,
            mapping=source.mapping,
            options=source.options,
        )
        return ingest(frame, log_dir, topic=topic, options=options, on_progress=on_progress)
    workers = SparkWorkers(spark, on_progress)
    return run_ingest(workers, plan, log_dir, topic=topic, options=options)


def _check_local(spark: SparkSession) -> None:
    """A path without a scheme is a local file, unless Spark is told otherwise."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    default = str(hadoop.get("fs.defaultFS", "file:///"))
    if not default.startswith("file:"):
        raise NeedsSparkError(f"paths are those of {default}")


def plan_ingest(source: FileSource) -> IngestPlan:
    """What workers are to read. Raises NeedsSparkError if that is not for them to do."""
    chosen = source.format or format_of(source.paths)
    if source.options:
        raise NeedsSparkError("options of Spark's reader are given")
    files = find_files(source.paths)
    if chosen == "csv":
        raise NeedsSparkError("rows of CSV become JSON objects")
    if chosen == "parquet":
        parquet = plan_parquet(files, source.mapping)
        return IngestPlan(parquet.columns, parquet.pieces, parquet.has_topic)
    return IngestPlan(_LINES, _plan_lines(source, files, is_json=chosen == "json"))


def _plan_lines(
    source: FileSource, files: Sequence[InputFile], *, is_json: bool
) -> tuple[TextRange, ...]:
    if source.mapping.given:
        if not is_json:
            raise ConfigError("key", "lines of text have no fields; give the format json")
        raise NeedsSparkError("fields are taken out of JSON")
    packed = next((file.path for file in files if file.is_packed), None)
    if packed is not None:
        raise NeedsSparkError(f"{packed}: is packed")
    return tuple(TextRange(file.path, 0, file.size_bytes) for file in files if file.size_bytes)


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
    _check(parsed, plan)
    job = uuid.uuid4().hex
    columns = tuple(use for use in plan.columns if use.name != "topic" or parsed.topic is None)
    groups = [[task] for task in plan_tasks(plan.pieces, workers.slots)]
    work = partial(_stage, columns=columns, options=parsed, job=job)
    try:
        answers = workers.run(work, groups, title=f"stratalog ingest to {path}")
        runs = tuple(run for answer in answers for run in answer)
        done = commit_staged(parsed.target, StagedCommit(runs, job, 0, parsed.identity))
    except BaseException as error:
        with suppress(StratalogError):  # what is left is swept one day
            abandon_job(parsed.target, job)
        if isinstance(error, OSError):
            raise JobError(f"{error.filename}: {error.strerror}") from None
        raise
    return IngestResult("ingest", done.record_count, done.size_bytes, clock.seconds, len(groups))


def _check(options: WriteOptions, plan: IngestPlan) -> None:
    """What the sink checks of a write."""
    check_topic_column(options.topic, is_present=plan.has_topic)
    finder = TopicFinder(options.target)
    for topic in plan.topics if options.topic is None else (options.topic,):
        finder.find(topic)
    options.target.check()
    options.target.check_lock()


def plan_tasks(pieces: Sequence[Piece], slots: int) -> tuple[IngestTask, ...]:
    """Shares of about equal size, in order; text is cut to measure, row groups stay whole."""
    total = sum(piece.size_bytes + PIECE_COST_BYTES for piece in pieces)
    count = _task_count(total, max(1, slots))
    step = max(1, -(-total // count))
    shares: dict[int, list[Piece]] = {}
    at = 0
    for piece in pieces:
        at += PIECE_COST_BYTES
        for part in _cut(piece, at, step):
            middle = at + part.size_bytes // 2
            shares.setdefault(min(middle // step, count - 1), []).append(part)
            at += part.size_bytes
    ordered = [tuple(_joined(shares[share])) for share in sorted(shares)]
    return tuple(IngestTask(number, parts) for number, parts in enumerate(ordered))


def _task_count(total_bytes: int, slots: int) -> int:
    """As many tasks for every slot, none of them too large or not worth it."""
    rounds = -(-total_bytes // (GROUP_BYTES * slots))
    return max(1, min(rounds * slots, -(-total_bytes // TASK_BYTES_MIN)))


def _cut(piece: Piece, at: int, step: int) -> Iterator[Piece]:
    """Where the shares are cut that are `step` long, if the piece begins at `at`."""
    if isinstance(piece, RowGroups):
        yield piece
        return
    start = piece.start
    while start < piece.end:
        here = at + start - piece.start
        end = min(piece.end, start + step - here % step)
        yield piece._replace(start=start, end=end)
        start = end


def _joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Row groups of one file together, so that it is opened once."""
    last: Piece | None = None
    for piece in pieces:
        if isinstance(last, RowGroups) and isinstance(piece, RowGroups) and last.path == piece.path:
            size_bytes = last.size_bytes + piece.size_bytes
            last = last._replace(numbers=last.numbers + piece.numbers, size_bytes=size_bytes)
            continue
        if last is not None:
            yield last
        last = piece
    if last is not None:
        yield last


def _stage(
    task: IngestTask, *, columns: tuple[ColumnUse, ...], options: WriteOptions, job: str
) -> tuple[StagedRun, ...]:
    """Runs in a worker."""
    runs: tuple[StagedRun, ...] = ()
    for topic, pieces in groupby(task.pieces, key=_topic_of):
        own = options if topic is None or options.topic else replace(options, topic=topic)
        rows = (batch for piece in pieces for batch in _read(piece, columns))
        runs += stage_rows(rows, own, job, 0, task.number)
    return runs


def _read(piece: Piece, columns: tuple[ColumnUse, ...]) -> Iterator[pa.RecordBatch]:
    if isinstance(piece, RowGroups):
        yield from read_rows(piece, columns)
        return
    for lines in read_lines(piece):
        yield pa.RecordBatch.from_arrays([lines], ["value"])


def _topic_of(piece: Piece) -> str | None:
    return piece.topic if isinstance(piece, RowGroups) else None
