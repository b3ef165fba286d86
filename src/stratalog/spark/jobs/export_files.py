"""The files of one export task: columns in, Parquet or lines of JSON out.

One file for each topic and day that the task meets; never more than `OPEN_FILES_MAX` at a time,
since records may come in any order of time. Memory is bounded by the row groups of open files.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stratalog.errors import TextError
from stratalog.spark.executor import ReadTask
from stratalog.spark.jobs.json_lines import json_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.spark.options import ReadOptions
    from stratalog.spark.splits import Split

CODECS: Final = ("none", "snappy", "lz4", "zstd", "gzip")
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
    """Of Parquet pages (default snappy)."""
    is_text: bool = False
    """Keys and values are text; Parquet gets strings. Else they are bytes."""
    by_date: bool = True
    has_headers: bool = False
    appends: bool = False
    """The target may have files already."""

    @property
    def suffix(self) -> str:
        return ".parquet" if self.format == "parquet" else ".jsonl"

    @property
    def schema(self) -> pa.Schema:
        """Of what is read."""
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
        """Of Parquet files."""
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


def read_split(
    split: Split, options: ReadOptions, spec: FileSpec
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Topic and columns of everything in the split."""
    task = ReadTask(
        schema=spec.schema,
        skips_damage=options.skips_damage,
        fails_on_data_loss=options.fail_on_data_loss,
    )
    for piece in split.pieces:
        for batch in task.read(type(split)((piece,))):
            yield piece.topic, batch


class _Writer(Protocol):
    def write(self, batch: pa.RecordBatch) -> None: ...

    def close(self) -> None: ...

    def abandon(self) -> None:
        """Give back what is held; nobody will look at the file."""
        ...


class _Open:
    """A file that is being written."""

    def __init__(self, path: Path, relative: Path, key: tuple[str, str | None]) -> None:
        self.path = path
        self.relative = relative
        self.key = key
        self.records = 0
        self.writer: _Writer


class FileSet:
    """The files of one task. Leave it by its context to complete them."""

    def __init__(self, directory: Path, spec: FileSpec, number: int) -> None:
        self._directory = directory
        self._spec = spec
        self._number = number
        self._open: OrderedDict[tuple[str, str | None], _Open] = OrderedDict()
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
        """Each record to the file of its day."""
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

    def _create(self, key: tuple[str, str | None]) -> _Open:
        topic, date = key
        relative = Path(f"topic={topic}")
        if date is not None:
            relative /= f"date={date}"
        again = f"-{self._count}" if self._count else ""
        self._count += 1
        relative /= f"part-{self._number:05d}{again}{self._spec.suffix}"
        file = _Open(self._directory / relative, relative, key)
        file.path.parent.mkdir(parents=True, exist_ok=True)
        if self._spec.format == "parquet":
            file.writer = _ParquetWriter(file.path, self._spec)
        else:
            file.writer = _JsonWriter(file.path, topic)
        return file

    def _close(self, key: tuple[str, str | None], file: _Open) -> None:
        file.writer.close()
        topic, date = key
        size_bytes = file.path.stat().st_size
        exported = ExportedFile(str(file.relative), topic, date, file.records, size_bytes)
        self.written = (*self.written, exported)


def _date(day: int) -> str:
    return _NO_DATE if day < 0 else str(np.datetime64(day, "D"))


class _ParquetWriter:
    """Offsets and times as deltas, values as they are, keys through a dictionary if they repeat.

    Batches are held until they make a row group; the first one shows what the keys are like.
    """

    def __init__(self, path: Path, spec: FileSpec) -> None:
        self._path = path
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

    def close(self) -> None:
        self._flush()
        self.abandon()

    def abandon(self) -> None:
        self._held = []
        if self._writer is not None:
            self._writer.close()

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
            self._path,
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

    def __init__(self, path: Path, topic: str) -> None:
        self._topic = topic
        self._file: IO[bytes] = path.open("wb")

    def write(self, batch: pa.RecordBatch) -> None:
        for lines in json_lines(self._topic, batch):
            self._file.write(lines)

    def close(self) -> None:
        self._file.close()

    abandon = close
