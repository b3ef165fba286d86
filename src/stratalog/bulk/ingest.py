"""Ingests files into topics: every row once, or nothing.

The files are listed and divided into tasks of about equal size, in order. A task reads its parts,
stages their rows under the job's id and returns what it has staged; all of that is committed at
once. What a task leaves that died or ran twice is in no result, so it is removed with the commit,
or when the job fails.

What a row becomes is the same for every format and compression: `line_rows` and `table_rows`.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from stratalog.bulk.input_files import (
    STDIN,
    FileSource,
    IngestResult,
    MissingFields,
    check_names,
    compression_of,
    find_files,
    format_of,
    open_input,
    stdin,
)
from stratalog.bulk.line_rows import (
    EXPORTED_BYTES_MAX,
    FieldLines,
    LineError,
    LineRows,
    RecordLines,
    TextRange,
    ValueLines,
    is_exported,
    read_lines,
)
from stratalog.bulk.table_rows import CsvFile, RowGroups, TableRows, plan_tables
from stratalog.bulk.target import (
    abandon_job,
    check_topic_column,
    commit_staged,
    find_topics,
    roll_back_topics,
)
from stratalog.bulk.workers import (
    GROUP_BYTES,
    Clock,
    ThreadWorkers,
    interrupted_once,
    interrupts_ignored,
)
from stratalog.commits.staged import RunStager, StagedCommit
from stratalog.errors import ConfigError, InputFileError, JobError, StratalogError
from stratalog.storage.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from stratalog.bulk.input_files import Format, InputFile
    from stratalog.bulk.line_rows import Rows
    from stratalog.bulk.options import WriteOptions
    from stratalog.bulk.workers import Workers
    from stratalog.commits.committer import CommitResult
    from stratalog.commits.staged import StagedRun, StagedTopic

FilePart: TypeAlias = TextRange | RowGroups | CsvFile


@dataclass(frozen=True)
class IngestPlan:
    """What to read, and what it becomes."""

    parts: tuple[FilePart, ...]
    """In the order in which the rows are written to the logs."""
    lines: LineRows = field(default_factory=ValueLines)
    tables: TableRows = field(default_factory=TableRows)
    has_topic: bool = False
    """Whether rows, or their directories, name their topics."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that directories name."""
        return tuple(dict.fromkeys(topic for part in self.parts if (topic := _topic_of(part))))


class IngestTask(NamedTuple):
    """What one task reads."""

    number: int
    parts: tuple[FilePart, ...]


def ingest(
    source: FileSource, options: WriteOptions, *, workers: Workers | None = None
) -> IngestResult:
    """Write all rows of the files, once.

    Every worker must see files and log directory under the same paths. Raises a StratalogError that
    names file and row, and then nothing is written.
    """
    clock = Clock()
    return run_ingest(plan_ingest(source), options, workers, clock=clock)


# -- planning

TASK_BYTES_MIN: Final = 4 << 20
"""From this size on, a part of the input gets its own task, to keep all workers busy."""
FILE_COST_BYTES: Final = 64 << 10
"""What opening a file costs, in bytes that could be read instead."""


def plan_ingest(source: FileSource) -> IngestPlan:
    """From names, sizes, footers and first bytes. CSV is read, to find the columns of numbers."""
    if STDIN in map(str, source.paths):
        return _plan_stdin(source)
    check_names(source.paths)
    files = find_files(source.paths)
    chosen = source.format or format_of(files)
    if chosen in {"csv", "parquet"}:
        tables = TableRows(
            source.mapping, source.allows_missing, source.keeps_partitions, source.delimiter
        )
        parts, has_topic = plan_tables(files, tables, is_csv=chosen == "csv")
        return IngestPlan(parts, tables=tables, has_topic=has_topic)
    if chosen == "json" and source.format is None and not source.mapping.given:
        chosen = "records" if _are_exported(files) else chosen
    lines = _line_rows(source, chosen)
    ranges = tuple(
        TextRange(file.path, 0, file.size_bytes, compression_of(file.path) is not None)
        for file in files
        if file.size_bytes
    )
    return IngestPlan(ranges, lines, has_topic=isinstance(lines, RecordLines))


def _plan_stdin(source: FileSource) -> IngestPlan:
    """Lines of standard input: records as export writes them, or what the format says."""
    if len(source.paths) > 1:
        raise ConfigError("paths", "standard input (-) cannot be combined with files")
    if source.format in {"csv", "parquet"}:
        raise ConfigError(
            "format", f"{source.format} cannot be read from standard input; use a file"
        )
    start = stdin.peek(EXPORTED_BYTES_MAX)
    chosen = source.format
    if chosen is None:
        if is_exported(start) and not source.mapping.given:
            chosen = "records"
        elif start.lstrip().startswith(b"{") or not start:
            chosen = "json"
        else:
            raise ConfigError(
                "format", "cannot be detected from standard input; use json, text or records"
            )
    lines = _line_rows(source, chosen)
    part = TextRange(STDIN, 0, max(1, len(start)), is_compressed=True)  # its size is not known
    parts = (part,) if start else ()
    return IngestPlan(parts, lines, has_topic=isinstance(lines, RecordLines))


def _line_rows(source: FileSource, chosen: Format) -> LineRows:
    if source.mapping.given and chosen != "json":
        have = "fields of their own" if chosen == "records" else "no fields"
        raise ConfigError("key", f"lines in the format {chosen} have {have}; use the format json")
    if chosen == "records":
        return RecordLines(source.keeps_partitions, source.allows_missing)
    if source.mapping.given:
        return FieldLines(source.mapping, source.allows_missing)
    return ValueLines()


def _are_exported(files: Sequence[InputFile]) -> bool:
    """Whether export wrote the JSON lines: all files that are not empty, or none."""
    found: dict[bool, str] = {}
    for file in files:
        if file.size_bytes:
            with open_input(file.path) as opened:
                found.setdefault(is_exported(opened.read(EXPORTED_BYTES_MAX)), file.path)
    if len(found) > 1:
        raise ConfigError(
            "format",
            f"{found[True]} has records as written by export, but {found[False]} has other JSON; "
            "use the format records or json",
        )
    return True in found


def plan_tasks(parts: Sequence[FilePart], slots: int) -> tuple[IngestTask, ...]:
    """Shares of about equal size, in order; text is divided to measure, other parts stay whole."""
    total = sum(part.size_bytes + FILE_COST_BYTES for part in parts)
    count = _task_count(total, max(1, slots))
    step = max(1, -(-total // count))
    shares: dict[int, list[FilePart]] = {}
    at = 0
    for part in parts:
        at += FILE_COST_BYTES
        for smaller in _divided(part, at, step):
            middle = at + smaller.size_bytes // 2
            shares.setdefault(min(middle // step, count - 1), []).append(smaller)
            at += smaller.size_bytes
    ordered = [tuple(_joined(shares[share])) for share in sorted(shares)]
    return tuple(IngestTask(number, each) for number, each in enumerate(ordered))


def _task_count(total_bytes: int, slots: int) -> int:
    """As many tasks for every slot, none of them too large or too small."""
    turns = -(-total_bytes // (GROUP_BYTES * slots))
    return max(1, min(turns * slots, -(-total_bytes // TASK_BYTES_MIN)))


def _divided(part: FilePart, at: int, step: int) -> Iterator[FilePart]:
    """Divided where shares of length `step` end, if the part starts at `at`."""
    if not isinstance(part, TextRange) or part.is_compressed:
        yield part
        return
    start = part.start
    while start < part.end:
        here = at + start - part.start
        end = min(part.end, start + step - here % step)
        yield part._replace(start=start, end=end)
        start = end


def _joined(parts: Iterable[FilePart]) -> Iterator[FilePart]:
    """Adjacent row groups of one file together, so that it is opened once."""
    last: FilePart | None = None
    for part in parts:
        if isinstance(last, RowGroups) and isinstance(part, RowGroups) and last.file == part.file:
            size_bytes = last.size_bytes + part.size_bytes
            last = last._replace(numbers=last.numbers + part.numbers, size_bytes=size_bytes)
            continue
        if last is not None:
            yield last
        last = part
    if last is not None:
        yield last


def _topic_of(part: FilePart) -> str | None:
    """The topic of all rows, if a directory names it."""
    return None if isinstance(part, TextRange) else dict(part.file.columns).get("topic")


# -- running


def run_ingest(
    plan: IngestPlan,
    options: WriteOptions,
    workers: Workers | None = None,
    *,
    clock: Clock | None = None,
) -> IngestResult:
    """Write what was planned. What can be known to fail fails before a task runs.

    The result has the time of `clock`, which the caller started before planning.
    """
    clock = clock or Clock()
    workers = workers or ThreadWorkers()
    groups = [[task] for task in plan_tasks(plan.parts, workers.slots)]
    with interrupted_once():
        done, missing = _write(workers, plan, groups, options)
    return IngestResult(
        "ingest", done.record_count, done.size_bytes, clock.seconds, len(groups), missing
    )


def _write(
    workers: Workers, plan: IngestPlan, groups: list[list[IngestTask]], options: WriteOptions
) -> tuple[CommitResult, MissingFields]:
    """Stage and commit, or leave everything as it was."""
    created = _check(options, plan)
    tables = replace(plan.tables, takes_topic=options.topic is None)
    job = uuid.uuid4().hex
    work = partial(_stage, plan=replace(plan, tables=tables, parts=()), options=options, job=job)
    done: CommitResult | None = None
    try:
        title = f"stratalog ingest to {options.target.paths[0]}"
        staged = workers.run(work, groups, title=title)
        runs = tuple(run for each in staged for run in each.runs)
        missing = MissingFields.sum(each.missing for each in staged)
        with interrupts_ignored():
            done = commit_staged(options.target, StagedCommit(runs, job, 0, options.identity))
    except BaseException as error:
        if done is not None:  # interrupted right after the commit
            raise KeyboardInterrupt("everything was written") from None
        with interrupts_ignored(), suppress(StratalogError):  # what is left is swept later
            abandon_job(options.target, job)
            roll_back_topics(options.target, created)
        if isinstance(error, OSError):
            raise JobError(f"{error.filename}: {error.strerror}") from None
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt("nothing was written") from None
        raise
    return done, missing


def _check(options: WriteOptions, plan: IngestPlan) -> tuple[StagedTopic, ...]:
    """Check the write as the sink does, and return the topics that were created."""
    check_topic_column(options.topic, is_present=plan.has_topic)
    return find_topics(options, plan.topics if options.topic is None else (options.topic,))


class _StagedTask(NamedTuple):
    """What one task has staged."""

    runs: tuple[StagedRun, ...]
    missing: MissingFields


def _stage(task: IngestTask, *, plan: IngestPlan, options: WriteOptions, job: str) -> _StagedTask:
    """Runs in a worker. The parts are those of the task."""
    from stratalog.bulk.row_staging import stage_rows  # noqa: PLC0415 - loads kernels

    runs: tuple[StagedRun, ...] = ()
    missing: list[MissingFields] = []
    for topic, parts in groupby(task.parts, key=_topic_of):
        own = options if topic is None or options.topic else replace(options, topic=topic)
        rows = (batch for part in parts for batch in _read(part, plan, missing))
        runs += stage_rows(rows, own, RunStager(Disk(), job, 0, task.number))
    return _StagedTask(runs, MissingFields.sum(missing))


def _read(
    part: FilePart, plan: IngestPlan, missing: list[MissingFields]
) -> Iterator[pa.RecordBatch]:
    """The rows; what they lack is added to `missing`."""
    found = _read_lines(part, plan) if isinstance(part, TextRange) else plan.tables.read(part)
    for rows in found:
        missing.append(rows.missing)
        yield rows.batch


def _read_lines(part: TextRange, plan: IngestPlan) -> Iterator[Rows]:
    lines_before = 0
    for lines in read_lines(part):
        try:
            yield plan.lines.rows(lines)
        except LineError as error:
            number = _count_lines(part._replace(start=0, end=part.start)) + lines_before
            raise InputFileError(
                f"{part.path}: line {number + error.index + 1}: {error.reason}"
            ) from None
        lines_before += len(lines)


def _count_lines(source: TextRange) -> int:
    return sum(len(lines) for lines in read_lines(source))
