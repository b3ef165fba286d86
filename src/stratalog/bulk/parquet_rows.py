"""Parquet files as the rows that the sink takes: which columns, in which row groups.

Only what is bytes, text, times, numbers of partitions and headers already; rows that have to be
computed (numbers as text, rows as JSON objects) are Spark's.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from stratalog.errors import ConfigError, InputFileError, NeedsSparkError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from stratalog.bulk.input_files import InputFile, RecordColumns

BATCH_BYTES: Final = 9 << 20
"""A little more than what rows are gathered to before they are encoded: one batch will do."""
BATCH_ROWS_MAX: Final = 1 << 18
BUFFER_BYTES: Final = 256 << 10
_SAMPLED_BYTES: Final = 64
"""Of a row: more is not the number of an entry in a dictionary."""
_LONG_BYTES: Final = 16 << 10
_TIME: Final = pa.timestamp("us")
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_BYTES: Final = (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())


def _is_bytes(kind: pa.DataType) -> bool:
    return kind in _BYTES


def _is_text(kind: pa.DataType) -> bool:
    return kind in {pa.string(), pa.large_string()}


def _is_number(kind: pa.DataType) -> bool:
    return bool(kind == pa.int32())


def _is_headers(kind: pa.DataType) -> bool:
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    fields = [(field.name, field.type) for field in kind.value_type]
    return fields == [(field.name, field.type) for field in _HEADERS.value_type]


_KINDS: Final[Mapping[str, tuple[Callable[[Any], bool], pa.DataType]]] = {
    "value": (_is_bytes, pa.binary()),
    "key": (_is_bytes, pa.binary()),
    "timestamp": (pa.types.is_timestamp, _TIME),
    "topic": (_is_text, pa.string()),
    "partition": (_is_number, pa.int32()),
    "headers": (_is_headers, _HEADERS),
}
"""What each of the sink's columns may be in a file, and what it becomes."""


class ColumnUse(NamedTuple):
    """A column of the file, as what the sink calls it."""

    name: str
    source: str


class RowGroups(NamedTuple):
    """Row groups of one file."""

    path: str
    numbers: tuple[int, ...]
    size_bytes: int
    """Of the columns that are read, before compression."""
    topic: str | None
    """Of all rows, if the directory says it."""


@dataclass(frozen=True)
class ParquetPlan:
    """What is read of all files."""

    columns: tuple[ColumnUse, ...]
    pieces: tuple[RowGroups, ...]
    has_topic: bool
    """In a column, or in the names of directories."""


def plan_parquet(files: tuple[InputFile, ...], mapping: RecordColumns) -> ParquetPlan:
    """Every row group that has rows. Raises NeedsSparkError if files differ in what matters."""
    if not files:
        raise NeedsSparkError("there are no files to take columns from")
    first: tuple[ColumnUse, ...] | None = None
    kinds: set[tuple[object, ...]] = set()
    pieces: list[RowGroups] = []
    for file in files:
        if not file.size_bytes and len(files) > 1:
            raise NeedsSparkError(f"{file.path}: is empty")
        with _opened(file.path) as parquet:
            schema, metadata = parquet.schema_arrow, parquet.metadata
            columns = choose_columns(schema, file, mapping)
            kinds.add(tuple(_kind(schema.field(column.source).type) for column in columns))
            if columns != (first := first or columns) or len(kinds) > 1:
                raise NeedsSparkError(f"{file.path}: has other columns than {files[0].path}")
            pieces += _row_groups(file, metadata, columns)
    columns = first or ()
    has_topic = any(use.name == "topic" for use in columns) or files[0].topic is not None
    return ParquetPlan(columns, tuple(pieces), has_topic)


def _kind(kind: pa.DataType) -> object:
    """What must be the same in all files: Spark takes one schema for all."""
    if pa.types.is_timestamp(kind):
        return kind.tz is None
    return kind in _BYTES or str(kind)


def choose_columns(
    schema: pa.Schema, file: InputFile, mapping: RecordColumns
) -> tuple[ColumnUse, ...]:
    """As `read_files` chooses them. Raises NeedsSparkError for what workers cannot take as it is,
    ConfigError for a column that is not there."""
    outside = [name for name, _ in file.columns]
    for name in mapping.given:
        if name not in schema.names and name not in outside:
            known = ", ".join((*schema.names, *outside))
            raise ConfigError("column", f"there is no column {name!r}; there are {known}")
    wanted = _wanted(schema.names, mapping)
    if "value" not in wanted:
        raise NeedsSparkError("rows without a column `value` become JSON objects")
    if file.topic is not None:
        wanted.pop("topic", None)  # the directory's is the one that counts
    lower = [name.lower() for name in schema.names]
    taken = {name.lower() for name in wanted.values()}
    if len(set(lower)) < len(lower) or not taken.isdisjoint(name.lower() for name in outside):
        raise NeedsSparkError(f"{file.path}: two columns have the same name")
    for name, source in wanted.items():
        kind = schema.field(source).type
        if not _KINDS[name][0](kind) or "." in source:
            raise NeedsSparkError(f"{file.path}: column {source!r} is {kind}")
    return tuple(ColumnUse(*use) for use in wanted.items())


def _wanted(names: list[str], mapping: RecordColumns) -> dict[str, str]:
    """The sink's columns, and what they are called in the file. A file with a column `value` may
    have the others under their own names."""
    own = {name: name for name in _KINDS if name in names} if "value" in names else {}
    given = {"value": mapping.value, "key": mapping.key, "timestamp": mapping.timestamp}
    return own | {name: source for name, source in given.items() if source}


def _row_groups(
    file: InputFile, metadata: pq.FileMetaData, columns: tuple[ColumnUse, ...]
) -> Iterator[RowGroups]:
    wanted = {column.source for column in columns}
    numbers = [
        number
        for number in range(metadata.num_columns)
        if metadata.schema.column(number).path.partition(".")[0] in wanted
    ]
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if group.num_rows:
            size_bytes = sum(group.column(each).total_uncompressed_size for each in numbers)
            yield RowGroups(file.path, (number,), size_bytes, file.topic)


def read_rows(piece: RowGroups, columns: tuple[ColumnUse, ...]) -> Iterator[pa.RecordBatch]:
    """The rows of the groups in order, in batches of about `BATCH_BYTES`."""
    sources = list(dict.fromkeys(column.source for column in columns))
    with _opened(piece.path) as parquet:
        for number in piece.numbers:
            batch_rows = _batch_rows(parquet.metadata.row_group(number), columns)
            for batch in parquet.iter_batches(
                batch_rows, row_groups=[number], columns=sources, use_threads=False
            ):
                yield _shaped(batch, columns)


def _batch_rows(group: pq.RowGroupMetaData, columns: tuple[ColumnUse, ...]) -> int:
    """How many rows make a batch, as far as the sizes in the file tell."""
    sources = {column.source for column in columns}
    chunks = [group.column(number) for number in range(group.num_columns)]
    row_bytes = 1 + sum(
        _row_bytes(chunk, group.num_rows)
        for chunk in chunks
        if chunk.path_in_schema.partition(".")[0] in sources
    )
    return min(int(BATCH_BYTES / row_bytes) + 1, BATCH_ROWS_MAX)


def _row_bytes(chunk: pq.ColumnChunkMetaData, rows: int) -> float:
    """What a row has of a column in memory.

    Where rows are numbers of entries in a dictionary, the least and the greatest entry are taken as
    samples. They are left out of the file if they are long.
    """
    row_bytes = float(chunk.total_uncompressed_size / rows)
    has_dictionary = any("DICTIONARY" in name for name in chunk.encodings)
    if chunk.physical_type != "BYTE_ARRAY" or row_bytes >= _SAMPLED_BYTES or not has_dictionary:
        return row_bytes
    found = chunk.statistics
    if found is not None and found.has_min_max:
        return max(row_bytes, len(found.min_raw), len(found.max_raw))
    return 0.0 if found is not None and found.null_count == rows else _LONG_BYTES


def _shaped(batch: pa.RecordBatch, columns: tuple[ColumnUse, ...]) -> pa.RecordBatch:
    arrays = []
    for name, source in columns:
        column, kind = batch.column(source), _KINDS[name][1]
        if column.type != kind:
            # Nanoseconds are cut off; years that microseconds cannot tell are refused.
            is_cut = pa.types.is_timestamp(column.type) and column.type.unit == "ns"
            column = column.cast(kind, safe=not is_cut)
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, [column.name for column in columns])


@contextmanager
def _opened(path: str) -> Iterator[pq.ParquetFile]:
    """The file; what is wrong with it is told with its name.

    Read through a small buffer: a row group may be larger than what a task may have in memory.
    """
    try:
        with pq.ParquetFile(
            path, pre_buffer=False, buffer_size=BUFFER_BYTES, coerce_int96_timestamp_unit="us"
        ) as parquet:
            yield parquet
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's word, not Arrow's on what it has read
        reason = str(error).strip().splitlines()
        raise InputFileError(f"{path}: not Parquet, or damaged: {reason[0]}") from None
