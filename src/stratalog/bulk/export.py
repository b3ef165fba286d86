"""Exports topics into files that other tools read: Parquet or lines of JSON, by topic and day.

A task decodes columns and writes files below a staging directory that readers of the target ignore.
This process moves the files of finished tasks into place, so a task that runs twice, or dies
half-way, leaves nothing behind. In a store, where nothing can be renamed, the store itself copies
the files; `_SUCCESS` comes last.

Layout: `topic=orders/date=2026-11-16/part-00003-<job>.parquet`, where Spark, DuckDB and pyarrow
find partition columns. Records without a timestamp are in the directory that Hive uses for null.

A task writes one file for each topic and day that it meets, and has at most `OPEN_FILES_MAX` open,
since records may come in any order of time. Memory is bounded by the row groups of open files.

Incremental exports remember where they stopped, and add only what is new: see `incremental`.
"""

from __future__ import annotations

import shutil
import uuid
from collections import OrderedDict
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stratalog.bulk.incremental import (
    STAGING_PREFIX,
    ExportedUpTo,
    IncrementalTarget,
    StagedFile,
    has_files,
    is_incremental,
    next_range,
)
from stratalog.bulk.json_lines import json_lines
from stratalog.bulk.options import Subscription
from stratalog.bulk.read_planning import (
    batch_range,
    check_named_partitions,
    open_partitions,
    plan_ranges,
    plan_read,
    subscribed_partitions,
    topic_id_of,
)
from stratalog.bulk.read_task import ReadTask
from stratalog.bulk.splits import Split
from stratalog.bulk.workers import Clock, JobResult, ThreadWorkers, interrupts_ignored, pack
from stratalog.errors import ConfigError, StratalogError, TextError
from stratalog.format.arguments import word_of
from stratalog.partitions.view import LogDirsView
from stratalog.storage.disk import storage_error
from stratalog.storage.remote_disk import disk_of
from stratalog.storage.remote_path import RemotePath, location
from stratalog.storage.store import fetch_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from stratalog.bulk.incremental import ExportState, LostRecords
    from stratalog.bulk.options import ReadOptions
    from stratalog.bulk.splits import OffsetRange
    from stratalog.bulk.workers import Workers
    from stratalog.format.names import TopicPartition
    from stratalog.log.partition_view import PartitionView
    from stratalog.log.reader import Skipped

CODECS: Final = ("none", "snappy", "lz4", "zstd", "gzip")
FORMATS: Final = ("parquet", "jsonl")
OPEN_FILES_MAX: Final = 16
ROW_GROUP_BYTES: Final = 32 << 20
_NO_DATE: Final = "__HIVE_DEFAULT_PARTITION__"
_DAY_US: Final = 86_400_000_000
_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
_DELTA: Final = "DELTA_BINARY_PACKED"
_SAMPLE_ROWS: Final = 4096


@dataclass(frozen=True)
class FileSpec:
    """What files look like."""

    format: Literal["parquet", "jsonl"] = "parquet"
    codec: str | None = None
    """Codec of Parquet pages (default snappy)."""
    is_text: bool = False
    """Keys and values are text; Parquet gets strings. Else they are bytes."""
    by_date: bool = True
    has_headers: bool = False
    appends: bool = False
    """The target may have files already."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "format", word_of(self.format, FORMATS, "format"))
        if self.codec is not None:
            object.__setattr__(self, "codec", word_of(self.codec, CODECS, "codec"))

    @property
    def suffix(self) -> str:
        return ".parquet" if self.format == "parquet" else ".jsonl"

    @property
    def layout(self) -> dict[str, object]:
        """What files must have in common to be read together."""
        return {
            "format": self.format,
            "text": self.is_text,
            "headers": self.has_headers,
            "by-date": self.by_date,
        }

    @property
    def schema(self) -> pa.Schema:
        """Schema of what is read."""
        fields = [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", tz="UTC")),
            ("timestampType", pa.int32()),
        ]
        if self.has_headers:
            fields.append(("headers", pa.list_(_HEADER)))
        return pa.schema(fields)

    @property
    def file_schema(self) -> pa.Schema:
        """Schema of Parquet files."""
        schema = self.schema
        if self.is_text:
            for at, name in enumerate(("key", "value")):
                schema = schema.set(at, pa.field(name, pa.string()))
        return schema


class ExportedFile(NamedTuple):
    """One file, by its path below the target."""

    path: str
    topic: str
    date: str | None
    records: int
    size_bytes: int


class _Writer(Protocol):
    def write(self, batch: pa.RecordBatch) -> None: ...

    def close(self) -> int:
        """Complete the file, and return its size."""
        ...

    def abandon(self) -> None:
        """Release resources; the file will not be used."""
        ...


class _OpenFile:
    """A file that is being written."""

    def __init__(self, relative: Path, writer: _Writer) -> None:
        self.relative = relative
        self.records = 0
        self.writer = writer


def _opened_sink(path: Path) -> pa.NativeFile:
    """A new file, on a disk or in a store."""
    if isinstance(path, RemotePath):
        path.store.create_dir(path.parent.key, path.parent)
        return path.store.open_output(path.key, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    return pa.OSFile(str(path), "wb")


def _closed(sink: pa.NativeFile) -> int:
    size_bytes: int = sink.tell()
    sink.close()
    return size_bytes


class FileSet:
    """The files of one task. Leave it by its context to complete them."""

    def __init__(self, directory: Path, spec: FileSpec, number: int) -> None:
        self._directory = directory
        self._spec = spec
        self._number = number
        self._open: OrderedDict[tuple[str, str | None], _OpenFile] = OrderedDict()
        self._count = 0
        self.written: tuple[ExportedFile, ...] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        while self._open:
            key, file = self._open.popitem(last=False)
            if kind is None:
                self._close(key, file)
            else:
                file.writer.abandon()

    def add(self, topic: str, batch: pa.RecordBatch) -> None:
        """Write each record to the file of its day."""
        if not self._spec.by_date:
            self._write(topic, None, batch)
            return
        times = batch.column("timestamp").view(pa.int64()).to_numpy()
        days = times // _DAY_US
        if days[0] == days[-1] and (days == days[0]).all():
            self._write(topic, _date(int(days[0])), batch)
            return
        for day in np.unique(days).tolist():
            self._write(topic, _date(day), batch.filter(pa.array(days == day)))

    def _write(self, topic: str, date: str | None, batch: pa.RecordBatch) -> None:
        key = (topic, date)
        file = self._open.get(key)
        if file is None:
            if len(self._open) >= OPEN_FILES_MAX:
                self._close(*self._open.popitem(last=False))
            file = self._open[key] = self._create(key)
        self._open.move_to_end(key)
        file.writer.write(batch)
        file.records += batch.num_rows

    def _create(self, key: tuple[str, str | None]) -> _OpenFile:
        topic, date = key
        relative = Path(f"topic={topic}")
        if date is not None:
            relative /= f"date={date}"
        again = f"-{self._count}" if self._count else ""
        self._count += 1
        relative /= f"part-{self._number:05d}{again}{self._spec.suffix}"
        sink = _opened_sink(self._directory / str(relative))
        if self._spec.format == "parquet":
            return _OpenFile(relative, _ParquetWriter(sink, self._spec))
        return _OpenFile(relative, _JsonWriter(sink, topic))

    def _close(self, key: tuple[str, str | None], file: _OpenFile) -> None:
        size_bytes = file.writer.close()
        topic, date = key
        exported = ExportedFile(str(file.relative), topic, date, file.records, size_bytes)
        self.written = (*self.written, exported)


def _date(day: int) -> str:
    return _NO_DATE if day < 0 else str(np.datetime64(day, "D"))


class _ParquetWriter:
    """Offsets and times as deltas, values as they are, keys through a dictionary if they repeat.

    Batches are held until they make a row group; the first one shows what the keys are like.
    """

    def __init__(self, sink: pa.NativeFile, spec: FileSpec) -> None:
        self._sink = sink
        self._spec = spec
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._writer: pq.ParquetWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        shaped = self._shaped(batch)
        self._held.append(shaped)
        self._held_bytes += shaped.nbytes
        if self._held_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> int:
        self._flush()
        if self._writer is not None:
            self._writer.close()
        return _closed(self._sink)

    def abandon(self) -> None:
        self._held = []
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            self._sink.close()

    def _flush(self) -> None:
        if not self._held:
            return
        table = pa.Table.from_batches(self._held)
        self._held, self._held_bytes = [], 0
        if self._writer is None:
            self._writer = self._opened(table.column("key"))
        self._writer.write_table(table, row_group_size=table.num_rows)

    def _opened(self, keys: pa.ChunkedArray) -> pq.ParquetWriter:
        of_few_values = ["partition", "timestampType"]
        if _repeats(keys):
            of_few_values.append("key")
        return pq.ParquetWriter(
            self._sink,
            self._spec.file_schema,
            compression=self._spec.codec or "snappy",
            use_dictionary=of_few_values,
            column_encoding={"offset": _DELTA, "timestamp": _DELTA},
            write_statistics=["partition", "offset", "timestamp", "key"],
        )

    def _shaped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._spec.is_text:
            return batch
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        for name in ("key", "value"):
            columns[name] = _as_text(name, columns[name], batch)
        return pa.RecordBatch.from_pydict(columns, self._spec.file_schema)


def _repeats(column: pa.ChunkedArray) -> bool:
    """Whether a dictionary is worth its time, from a sample."""
    sample = column[:_SAMPLE_ROWS]
    return bool(2 * pc.count_distinct(sample).as_py() <= len(sample))


def _as_text(name: str, column: pa.Array, batch: pa.RecordBatch) -> pa.Array:
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        for row, raw in enumerate(column.to_pylist()):
            if raw is not None and not _is_text(raw):
                offset = batch.column("offset")[row].as_py()
                raise TextError(
                    f"offset {offset}: the {name} is not UTF-8; export it as bytes"
                ) from None
        raise


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


class _JsonWriter:
    """A record a line."""

    def __init__(self, sink: pa.NativeFile, topic: str) -> None:
        self._topic = topic
        self._sink = sink

    def write(self, batch: pa.RecordBatch) -> None:
        for lines in json_lines(self._topic, batch):
            self._sink.write(lines)

    def close(self) -> int:
        return _closed(self._sink)

    def abandon(self) -> None:
        self._sink.close()


# -- the job

SUCCESS: Final = "_SUCCESS"
FILE_BYTES_MIN: Final = 8 << 20
"""From this size on, a part of a log gets its own file, to keep all workers busy."""
UNEVEN_TURNS: Final = 3
"""With more turns, it hardly matters that some workers are idle in the last one."""


class ExportedRange(NamedTuple):
    """Which offsets of a partition were exported."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    """Exclusive: where the next export starts."""


@dataclass(frozen=True)
class ExportResult(JobResult):
    """What was written."""

    files: tuple[ExportedFile, ...] = ()
    partitions: tuple[ExportedRange, ...] = ()
    lost: tuple[LostRecords, ...] = ()
    """What could no longer be exported. Empty unless `fail_on_data_loss` is False."""
    skipped: tuple[Skipped, ...] = ()
    """Corruption that was skipped. Empty unless `skips_corruption` is True."""

    @property
    def output_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def export(
    options: ReadOptions,
    target: Path | str,
    spec: FileSpec | None = None,
    *,
    incremental: bool = False,
    workers: Workers | None = None,
) -> ExportResult:
    """Write what `options` select as files below `target`.

    With `incremental`, only what earlier incremental exports into `target` have not written; the
    starting offsets in `options` apply to topics that are new. Records that were deleted meanwhile,
    and topics that were created again, raise DataLossError, or are listed in the result if
    `options.fail_on_data_loss` is False.

    Every worker must see log directories and target under the same paths. Raises ConfigError if the
    target is not empty and neither `incremental` nor `spec` allows that.
    """
    clock = Clock()
    if not incremental:
        return run_export(plan_export(options, spec), location(target), workers, clock=clock)
    chosen = spec or FileSpec(has_headers=options.includes_headers)
    with IncrementalTarget(target, chosen.layout) as opened:
        return run_export(plan_export(options, chosen, opened), opened, workers, clock=clock)


# -- planning


@dataclass(frozen=True)
class ExportPlan:
    """What to read, and into what."""

    options: ReadOptions
    """The options with the planned offsets, so that planning again has the same result."""
    splits: tuple[Split, ...]
    size_bytes: int
    """Size of the log that is read."""
    spec: FileSpec = field(default_factory=FileSpec)
    partitions: tuple[ExportedRange, ...] = ()
    next_offsets: tuple[tuple[TopicPartition, ExportedUpTo], ...] = ()
    lost: tuple[LostRecords, ...] = ()


def plan_export(
    options: ReadOptions, spec: FileSpec | None = None, target: IncrementalTarget | None = None
) -> ExportPlan:
    """The splits to export; with a `target`, of what was not exported to it yet.

    Raises ConfigError for options that cannot be met.
    """
    chosen = spec or FileSpec(has_headers=options.includes_headers)
    logs = LogDirsView(options.paths, options.remote)
    partitions = subscribed_partitions(logs, options)
    check_named_partitions(options, partitions)
    views = open_partitions(logs, partitions, options)
    found = _Ranges(options, None if target is None else target.state)
    plan = plan_ranges(views, found.of, options)
    return ExportPlan(
        found.fixed_options(),
        plan.splits,
        plan.summary.bytes_read,
        chosen,
        tuple(ExportedRange(*each, *found.ranges[each]) for each in sorted(found.ranges)),
        tuple(sorted(found.next_offsets.items())),
        tuple(found.lost.values()),
    )


class _Ranges:
    """Finds the range of each partition, and remembers it. It is asked again for a partition that
    a broker moves meanwhile."""

    def __init__(self, options: ReadOptions, state: ExportState | None) -> None:
        self._options = options
        self._state = state
        self.ranges: dict[TopicPartition, OffsetRange] = {}
        self.next_offsets: dict[TopicPartition, ExportedUpTo] = {}
        self.lost: dict[TopicPartition, LostRecords] = {}

    def of(self, topic_partition: TopicPartition, view: PartitionView) -> OffsetRange:
        if self._state is None:
            found = batch_range(topic_partition, view, self._options)
        else:
            found, lost = next_range(topic_partition, view, self._options, self._state)
            if lost is not None:
                lost.report(fails=self._options.fail_on_data_loss)
                self.lost[topic_partition] = lost
            self.next_offsets[topic_partition] = ExportedUpTo(topic_id_of(view), found.end)
        self.ranges[topic_partition] = found
        return found

    def fixed_options(self) -> ReadOptions:
        """Options that select exactly these ranges, even if the logs have grown."""
        starting = tuple((each, found.start) for each, found in sorted(self.ranges.items()))
        ending = tuple((each, found.end) for each, found in sorted(self.ranges.items()))
        assigned = tuple((each.topic, each.partition) for each in sorted(self.ranges))
        return replace(
            self._options,
            subscription=Subscription(assigned=assigned),
            starting=starting,
            ending=ending,
        )


# -- running


def run_export(
    plan: ExportPlan,
    target: Path | IncrementalTarget,
    workers: Workers | None = None,
    *,
    clock: Clock | None = None,
) -> ExportResult:
    """Write what was planned: with an IncrementalTarget, all of it or nothing."""
    clock = clock or Clock()
    workers = workers or ThreadWorkers()
    if isinstance(target, IncrementalTarget):
        root = target.path
    else:
        root = target.absolute()
        _check_target(root, plan.spec)
    job = uuid.uuid4().hex[:12]
    staging = root / f"{STAGING_PREFIX}{job}"
    try:
        with _storage_errors(root):
            done, groups = _write_all(plan, staging, workers)
            if not isinstance(target, IncrementalTarget):
                _install(done, staging, job)
    except BaseException:
        _remove(staging)
        raise
    if isinstance(target, IncrementalTarget):
        # From here on the next export finishes what is left.
        with interrupts_ignored(), _storage_errors(root):
            target.commit(dict(plan.next_offsets), _moves(done, staging.name, job))
    if isinstance(root, RemotePath):
        disk_of(root).write_atomically(root / SUCCESS, b"")
    else:
        with _storage_errors(root):
            (root / SUCCESS).touch()
    _remove(staging)
    files = tuple(sorted(_named(file, job) for task in done for file in task.files))
    records = sum(file.records for file in files)
    return ExportResult(
        "export",
        records,
        plan.size_bytes,
        clock.seconds,
        groups,
        files,
        plan.partitions,
        plan.lost,
        tuple(skipped for task in done for skipped in task.skipped),
    )


def exported_lines(
    plan: ExportPlan,
    *,
    on_skip: Callable[[Skipped], None],
    on_bytes: Callable[[int], None] = lambda _: None,
) -> Iterator[pa.Buffer]:
    """What was planned as lines of JSON, partition by partition, in the order of offsets.

    `on_bytes` is called with the size of each part of the log that is done.
    """
    read = _read_task(plan)
    ranges = [part for split in plan.splits for part in split.ranges]
    for part in sorted(ranges, key=lambda part: (part.topic_partition, part.start_offset)):
        for batch in read.read(Split((part,)), on_skip):
            yield from json_lines(part.topic_partition.topic, batch)
        on_bytes(part.size_bytes)


@contextmanager
def _storage_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except StratalogError:  # some are an OSError as well
        raise
    except OSError as error:
        where = target if error.filename is None else location(str(error.filename))
        raise storage_error(error, "write", where) from error


class _ExportTask(NamedTuple):
    number: int
    split: Split


def _write_all(plan: ExportPlan, staging: Path, workers: Workers) -> tuple[list[_TaskOutput], int]:
    """Have the tasks write their files, and return how many groups of tasks there were."""
    if not isinstance(staging, RemotePath):
        staging.mkdir(parents=True)
    splits = _for_all(workers, plan)
    tasks = [_ExportTask(number, split) for number, split in enumerate(splits)]
    groups = pack(tasks, lambda task: task.split.size_bytes, slots=workers.slots, group_bytes=1)
    work = partial(_write, read=_read_task(plan), spec=plan.spec, staging=staging)
    title = f"stratalog export: {len(tasks)} splits to {staging.parent}"
    return workers.run(work, groups, title=title), len(groups)


def _read_task(plan: ExportPlan) -> ReadTask:
    return ReadTask(
        schema=plan.spec.schema,
        skips_corruption=plan.options.skips_corruption,
        fails_on_data_loss=plan.options.fail_on_data_loss,
        paths=plan.options.paths,
    )


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
    if not target.exists():
        return
    if not target.is_dir():
        raise ConfigError("target", f"{target} is not a directory")
    if is_incremental(target):
        raise ConfigError(
            "target",
            f"{target} has incremental exports; use incremental=True, or another directory",
        )
    if spec.appends:
        return
    is_used = has_files(target) if isinstance(target, RemotePath) else any(target.iterdir())
    if is_used:
        reason = f"{target} is not empty; choose another directory, or set appends=True"
        raise ConfigError("target", reason)


class _TaskOutput(NamedTuple):
    """What one task has written, below its own directory in the staging directory."""

    directory: str
    files: tuple[ExportedFile, ...]
    skipped: tuple[Skipped, ...]


def _write(task: _ExportTask, *, read: ReadTask, spec: FileSpec, staging: Path) -> _TaskOutput:
    """Runs in a worker."""
    directory = staging / f"{task.number:05d}-{uuid.uuid4().hex[:8]}"
    skipped: list[Skipped] = []
    with _writing(directory), FileSet(directory, spec, task.number) as files:
        for part in task.split.ranges:
            for batch in read.read(Split((part,)), skipped.append):
                files.add(part.topic_partition.topic, batch)
    return _TaskOutput(directory.name, files.written, tuple(skipped))


def _writing(path: Path) -> AbstractContextManager[None]:
    return path.store.writing(path.key, path) if isinstance(path, RemotePath) else nullcontext()


def _remove(staging: Path) -> None:
    """If that fails, readers ignore what is left."""
    if isinstance(staging, RemotePath):
        with suppress(StratalogError):
            disk_of(staging).remove_tree(staging)
    else:
        shutil.rmtree(staging, ignore_errors=True)


def _install(done: Iterable[_TaskOutput], staging: Path, job: str) -> None:
    """Move the files of accepted tasks into place."""
    target = staging.parent
    moves = _moves(done, staging.name, job)
    if isinstance(target, RemotePath):
        disk = disk_of(target)
        for _ in fetch_pool().map(
            lambda move: disk.rename(target / move.staged, target / move.path), moves
        ):
            pass
        return
    for move in moves:
        path = target / move.path
        path.parent.mkdir(parents=True, exist_ok=True)
        (target / move.staged).rename(path)


def _moves(done: Iterable[_TaskOutput], staging: str, job: str) -> Sequence[StagedFile]:
    """What has to be moved, by paths below the target."""
    return [
        StagedFile(f"{staging}/{task.directory}/{file.path}", _named(file, job).path)
        for task in done
        for file in task.files
    ]


def _named(file: ExportedFile, job: str) -> ExportedFile:
    """The file under its final name, which no other job uses."""
    relative = Path(file.path)
    stem, dot, suffix = relative.name.partition(".")
    return file._replace(path=str(relative.with_name(f"{stem}-{job}{dot}{suffix}")))
