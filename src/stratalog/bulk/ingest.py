"""Which parts of which files a worker of an ingest reads, and as what.

Planned on the driver from names, sizes, footers and first bytes. Raises NeedsSparkError for what
workers cannot read by themselves.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from stratalog.bulk.input_files import (
    FileSource,
    IngestResult,
    Missing,
    check_names,
    find_files,
    format_of,
)
from stratalog.bulk.line_fields import (
    EXPORTED_BYTES_MAX,
    FieldLines,
    LineError,
    LineUse,
    RecordLines,
    ValueLines,
    is_exported,
)
from stratalog.bulk.parquet_rows import ColumnUse, RowGroups, plan_parquet, read_rows
from stratalog.bulk.target import (
    abandon_job,
    check_topic_column,
    commit_staged,
    find_topics,
    roll_back_topics,
)
from stratalog.bulk.text_lines import TextRange, read_lines
from stratalog.bulk.workers import (
    GROUP_BYTES,
    Clock,
    ThreadWorkers,
    interrupted_once,
    interrupts_held,
)
from stratalog.commits.staged import StagedCommit
from stratalog.errors import (
    ConfigError,
    InputFileError,
    JobError,
    NeedsSparkError,
    StratalogError,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from stratalog.bulk.input_files import InputFile
    from stratalog.bulk.options import WriteOptions
    from stratalog.bulk.workers import Workers
    from stratalog.commits.committer import CommitResult
    from stratalog.commits.staged import StagedRun, StagedTopic

TASK_BYTES_MIN: Final = 4 << 20
"""So much is worth a task of its own, to keep all workers busy."""
PIECE_COST_BYTES: Final = 64 << 10
"""What it takes to open a file, in bytes it could read instead."""
Piece: TypeAlias = TextRange | RowGroups


@dataclass(frozen=True)
class IngestPlan:
    """What is read, and as what."""

    pieces: tuple[Piece, ...]
    """In the order in which the rows are to be in the logs."""
    columns: tuple[ColumnUse, ...] = ()
    """Of Parquet."""
    lines: LineUse = field(default_factory=ValueLines)
    """What lines of text become."""
    has_topic: bool = False
    """Whether rows, or their directories, say which topic they are of."""

    @property
    def topics(self) -> tuple[str, ...]:
        """That directories name."""
        return tuple(dict.fromkeys(topic for piece in self.pieces if (topic := topic_of(piece))))


class IngestTask(NamedTuple):
    """What one worker reads at once."""

    number: int
    pieces: tuple[Piece, ...]


def plan_ingest(source: FileSource) -> IngestPlan:
    """What workers are to read. Raises NeedsSparkError if that is not for them to do."""
    check_names(source.paths)
    chosen = source.format or format_of(source.paths)
    if source.options:
        raise NeedsSparkError("options of Spark's reader are given")
    files = find_files(source.paths)
    if chosen == "csv":
        raise NeedsSparkError("rows of CSV become JSON objects")
    if chosen == "parquet":
        parquet = plan_parquet(files, source.mapping)
        columns = tuple(
            use for use in parquet.columns if use.name != "partition" or source.keeps_partitions
        )
        return IngestPlan(parquet.pieces, columns, has_topic=parquet.has_topic)
    if chosen == "json" and source.format is None and not source.mapping.given:
        chosen = "records" if _are_exported(files) else chosen
    pieces = tuple(TextRange(file.path, 0, file.size_bytes) for file in files if file.size_bytes)
    use = _line_use(source, files, chosen)
    return IngestPlan(pieces, lines=use, has_topic=isinstance(use, RecordLines))


def _line_use(source: FileSource, files: Sequence[InputFile], chosen: str) -> LineUse:
    if source.mapping.given and chosen != "json":
        have = "fields of their own" if chosen == "records" else "no fields"
        raise ConfigError("key", f"lines of {chosen} have {have}; give the format json")
    packed = next((file.path for file in files if file.is_packed), None)
    if packed is not None and chosen == "records":
        raise ConfigError("format", f"{packed}: is packed; records are read from unpacked files")
    if packed is not None:
        raise NeedsSparkError(f"{packed}: is packed")
    if chosen == "records":
        return RecordLines(source.keeps_partitions, source.allows_missing)
    if source.mapping.given:
        return FieldLines(source.mapping, source.allows_missing)
    return ValueLines()


def _are_exported(files: Sequence[InputFile]) -> bool:
    """Whether files of JSON are those of an export: all of them that are not empty, or none."""
    found: dict[bool, str] = {}
    for file in files:
        if file.size_bytes:
            with Path(file.path).open("rb") as opened:
                found.setdefault(is_exported(opened.read(EXPORTED_BYTES_MAX)), file.path)
    if len(found) > 1:
        raise ConfigError(
            "format",
            f"{found[True]} has records as export writes them, {found[False]} has not; give the "
            "format records or json",
        )
    return True in found


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


def topic_of(piece: Piece) -> str | None:
    """Of all rows, if the directory says it."""
    return piece.topic if isinstance(piece, RowGroups) else None


def ingest(
    source: FileSource, options: WriteOptions, *, workers: Workers | None = None
) -> IngestResult:
    """Write all rows of the files, once."""
    return run_ingest(plan_ingest(source), options, workers)


def run_ingest(
    plan: IngestPlan, options: WriteOptions, workers: Workers | None = None
) -> IngestResult:
    """Write what was planned. Whatever can be known to go wrong goes wrong before a task runs."""
    clock = Clock()
    workers = workers or ThreadWorkers()
    groups = [[task] for task in plan_tasks(plan.pieces, workers.slots)]
    with interrupted_once():
        done, missing = _write(workers, plan, groups, options)
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
    from stratalog.bulk.row_staging import stage_rows  # noqa: PLC0415 - loads kernels

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
