"""Rows of Parquet and CSV files, converted to the columns of the sink.

With a column `value`, a row may have the sink's other columns under their own names; a mapping
names others. Without a value, a row becomes a JSON object of all its columns, nulls included. Keys
and values are taken as they are if they are text or bytes, else as their JSON text. Columns in the
names of directories count as columns of the file; the directory's topic is the topic.

In the JSON object numbers are numbers, structs and maps are objects, lists are arrays; times, dates
and UUIDs are text, and so are bytes if they are UTF-8 (see `json_lines`). Nanoseconds of a column
of timestamps stay in the object, and are truncated where it is the timestamp of the records.

An empty cell of CSV is null, a quoted empty cell is an empty string. The cells of a CSV column are
numbers in the JSON object, as they are written, if all of them in all files are; or booleans;
otherwise they are strings.

A null key or value is null. A timestamp is a timestamp, a date, milliseconds since 1970 or text; if
one was asked for and is null, or cannot be parsed, that is an error that names the row, unless
missing fields are allowed; then it is counted. A row with too few or too many cells is an error.
"""

from __future__ import annotations

import csv
import io
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from stratalog.bulk.input_files import InputFile, MissingFields, RecordColumns, open_input
from stratalog.bulk.json_lines import json_objects, json_values, plain_column, plain_texts
from stratalog.bulk.line_rows import TIME_MS_MAX, Rows, time_ms_of
from stratalog.errors import ConfigError, InputFileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

BATCH_BYTES: Final = 9 << 20
"""A little more than what is gathered before it is encoded, so that one batch is enough."""
BATCH_ROWS_MAX: Final = 1 << 18
BUFFER_BYTES: Final = 256 << 10
CSV_BLOCK_BYTES: Final = 4 << 20
_SAMPLED_BYTES: Final = 64
"""Per row: more is not the index of a dictionary entry."""
_LONG_BYTES: Final = 16 << 10
_TIME: Final = pa.timestamp("us")
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_SINK_COLUMNS: Final = ("value", "key", "timestamp", "topic", "partition", "headers")
_NOT_FINITE: Final = r"[+-]?(?i:nan|inf|infinity)"
_NUMBER: Final = rf"^(-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|{_NOT_FINITE})$"
_BOOLEAN: Final = r"^(true|false|True|False|TRUE|FALSE)$"
_WORD: Final = r"[a-df-zA-DF-Z]"
"""In cells that are not finite numbers."""
_MILLISECONDS: Final = r"^[0-9]{1,18}$"
_PANDAS_INDEX: Final = re.compile(r"__index_level_[0-9]+__")
"""What pandas calls the column of an index without a name, as of a DataFrame that was filtered."""


class RowGroups(NamedTuple):
    """Row groups of one Parquet file."""

    file: InputFile
    numbers: tuple[int, ...]
    size_bytes: int
    """Size of the columns that are read, before compression."""
    first_row: int


class CsvFile(NamedTuple):
    """A CSV file, and which of its columns are numbers or booleans."""

    file: InputFile
    literals: frozenset[str]

    @property
    def size_bytes(self) -> int:
        return self.file.size_bytes


@dataclass(frozen=True)
class TableRows:
    """What the rows of tables become."""

    mapping: RecordColumns = field(default_factory=RecordColumns)
    allows_missing: bool = False
    keeps_partitions: bool = True
    delimiter: str = ","
    takes_topic: bool = True
    """From a column; not if all rows have one topic."""

    def sources(self, names: Sequence[str], file: InputFile) -> dict[str, str]:
        """The sink's columns, and their names in the file. Without a value, it is an object."""
        outside = [name for name, _ in file.columns]
        for name in self.mapping.given:
            if name not in names and name not in outside:
                known = ", ".join((*names, *outside))
                raise ConfigError("column", f"{file.path}: no column {name!r}; it has {known}")
        own = {name: name for name in _SINK_COLUMNS if name in names} if "value" in names else {}
        if not self.keeps_partitions:
            own.pop("partition", None)
        if not self.takes_topic or dict(file.columns).get("topic") is not None:
            own.pop("topic", None)
        mapping = self.mapping
        given = {"value": mapping.value, "key": mapping.key, "timestamp": mapping.timestamp}
        return own | {name: source for name, source in given.items() if source}

    def has_topic(self, names: Sequence[str], file: InputFile) -> bool:
        return "topic" in self.sources(names, file) or "topic" in dict(file.columns)

    def read(self, part: RowGroups | CsvFile) -> Iterator[Rows]:
        """The rows, in batches of about `BATCH_BYTES`."""
        if isinstance(part, CsvFile):
            row = 2  # the first is the header
            for batch in _read_csv(part.file, self.delimiter):
                yield self._rows(batch, part.file, row, part.literals)
                row += batch.num_rows
            return
        row = part.first_row
        for batch in self._read_row_groups(part):
            yield self._rows(batch, part.file, row)
            row += batch.num_rows

    def _read_row_groups(self, part: RowGroups) -> Iterator[pa.RecordBatch]:
        with open_parquet(part.file.path) as parquet:
            names = _columns_to_read(self.sources(parquet.schema_arrow.names, part.file), parquet)
            for number in part.numbers:
                batch_rows = _batch_rows(parquet.metadata.row_group(number), set(names))
                yield from parquet.iter_batches(
                    batch_rows, row_groups=[number], columns=names, use_threads=False
                )

    def _rows(
        self,
        batch: pa.RecordBatch,
        file: InputFile,
        row: int,
        literals: frozenset[str] = frozenset(),
    ) -> Rows:
        try:
            return self._taken(batch, file, row, literals)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            # a number or a time that is out of range, or a type that nobody writes
            raise InputFileError(f"{file.path}: {str(error).splitlines()[0]}") from None

    def _taken(
        self, batch: pa.RecordBatch, file: InputFile, row: int, literals: frozenset[str]
    ) -> Rows:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        sources = self.sources(batch.schema.names, file)
        for name, text in file.columns:
            if name in sources.values() or "value" not in sources:
                columns[name] = pa.repeat(pa.scalar(text), batch.num_rows)
        taken: dict[str, pa.Array] = {}
        missing = MissingFields()
        if "value" not in sources:
            texts = {name: _literals(columns[name]) for name in literals if name in columns}
            taken["value"] = json_objects({**columns, **texts}, literals).cast(pa.binary())
        for name, source in sources.items():
            if name == "timestamp":
                taken[name], missing = self._times(columns[source], source, file, row)
            else:
                taken[name] = _shaped(columns[source], name)
        return Rows(pa.RecordBatch.from_pydict(taken), missing)

    def _times(
        self, column: pa.Array, source: str, file: InputFile, row: int
    ) -> tuple[pa.Array, MissingFields]:
        times = times_of(column)
        if not times.null_count:
            return times, MissingFields()
        is_asked_for = self.mapping.timestamp is not None
        lacking = times.is_null() if is_asked_for else pc.and_(times.is_null(), column.is_valid())
        count = pc.sum(lacking).as_py() or 0
        if count and not self.allows_missing:
            index = pc.index(lacking, True).as_py()
            raise InputFileError(
                f"{file.path}: row {row + index}: column {source!r} is not a timestamp, in ms "
                f"since 1970 or as a date: {column[index].as_py()!r}"
            )
        return times, MissingFields(times=count)


def _literals(cells: pa.Array) -> pa.Array:
    """Numbers or booleans of CSV as JSON; those that JSON does not have (NaN) are strings."""
    if not pc.any(pc.match_substring_regex(cells, _WORD)).as_py():
        return cells
    quoted = pc.binary_join_element_wise('"', cells, '"', "")
    is_finite = pc.invert(pc.match_substring_regex(cells, f"^{_NOT_FINITE}$"))
    is_boolean = pc.match_substring_regex(cells, _BOOLEAN)
    return pc.if_else(is_boolean, pc.utf8_lower(cells), pc.if_else(is_finite, cells, quoted))


# -- planning


def plan_tables(
    files: Sequence[InputFile], use: TableRows, *, is_csv: bool
) -> tuple[tuple[RowGroups | CsvFile, ...], bool]:
    """What to read of the files, and whether all rows have a topic. Raises ConfigError for a column
    that a file lacks, or whose type cannot be used."""
    parts: list[RowGroups | CsvFile] = []
    kinds: dict[str, list[str]] = {}
    has_topic = True
    for file in files:
        if is_csv:
            if not file.size_bytes:
                continue
            names = csv_header(file, use.delimiter)
            use.sources(names, file)
            _narrow_kinds(kinds, file, use.delimiter)
            parts.append(CsvFile(file, frozenset()))
        else:
            with open_parquet(file.path) as parquet:
                schema = parquet.schema_arrow
                names = schema.names
                sources = use.sources(names, file)
                _check_types(schema, sources, file)
                parts += _row_groups(file, parquet, set(_columns_to_read(sources, parquet)))
        has_topic = has_topic and use.has_topic(names, file)
    literals = frozenset(name for name, left in kinds.items() if left)
    typed = (
        part._replace(literals=literals) if isinstance(part, CsvFile) else part for part in parts
    )
    return tuple(typed), has_topic and bool(files)


def csv_header(file: InputFile, delimiter: str) -> list[str]:
    """The names of the columns."""
    with open_input(file.path) as source, io.TextIOWrapper(source, "utf-8-sig", newline="") as text:
        try:
            names = next(csv.reader(text, delimiter=delimiter), [])
        except (csv.Error, UnicodeDecodeError) as error:
            raise InputFileError(f"{file.path}: row 1: {error}") from None
    if len(set(names)) < len(names):
        raise ConfigError("column", f"{file.path}: two columns have the same name")
    return names


def _narrow_kinds(kinds: dict[str, list[str]], file: InputFile, delimiter: str) -> None:
    """Leave those of `_NUMBER` and `_BOOLEAN` that all cells of a column match, in all files."""
    for batch in _read_csv(file, delimiter):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            left = kinds.get(name, [_NUMBER, _BOOLEAN])
            if left and column.null_count < len(column):
                left = [
                    kind for kind in left if pc.all(pc.match_substring_regex(column, kind)).as_py()
                ]
                kinds[name] = left


def _read_csv(file: InputFile, delimiter: str) -> Iterator[pa.RecordBatch]:
    """All columns as text."""
    names = csv_header(file, delimiter)
    with open_input(file.path) as source:
        try:
            yield from pa_csv.open_csv(
                source,
                read_options=pa_csv.ReadOptions(use_threads=False, block_size=CSV_BLOCK_BYTES),
                parse_options=pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
                convert_options=pa_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()),
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as error:
            reason = str(error).strip().splitlines()[0]
            raise InputFileError(f"{file.path}: not CSV: {reason}") from None


def _check_types(schema: pa.Schema, sources: Mapping[str, str], file: InputFile) -> None:
    if len(set(schema.names)) < len(schema.names):
        raise ConfigError("column", f"{file.path}: two columns have the same name")
    expected = {
        "timestamp": ("a timestamp", _is_time),
        "topic": ("text", _is_text),
        "partition": ("an integer", pa.types.is_integer),
        "headers": ("a list of keys and values", _is_headers),
    }
    for name, source in sources.items():
        if name in expected and source in schema.names:
            what, accepts = expected[name]
            kind = _plain_type(schema.field(source).type)
            if not accepts(kind):
                raise ConfigError("column", f"{file.path}: column {source!r} is {kind}, not {what}")


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of `plain_column`."""
    return plain_column(pa.nulls(0, kind)).type


def _is_text(kind: pa.DataType) -> bool:
    return bool(kind == pa.string())


def _is_time(kind: pa.DataType) -> bool:
    types = pa.types
    is_known = types.is_timestamp(kind) or types.is_date(kind) or types.is_integer(kind)
    return is_known or _is_text(kind) or types.is_null(kind)


def _is_headers(kind: pa.DataType) -> bool:
    types = pa.types
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return False
    if not types.is_struct(kind.value_type):
        return False
    fields = {field.name: _plain_type(field.type) for field in kind.value_type}
    return list(fields) == ["key", "value"] and (
        _is_text(fields["key"]) and fields["value"] in {pa.binary(), pa.string()}
    )


def _columns_to_read(sources: Mapping[str, str], parquet: pq.ParquetFile) -> list[str]:
    names = parquet.schema_arrow.names
    if "value" not in sources:
        taken = set(sources.values())
        named = [name for name in names if name in taken or not _PANDAS_INDEX.fullmatch(name)]
        return named or list(names)
    return list(dict.fromkeys(source for source in sources.values() if source in names))


def _row_groups(file: InputFile, parquet: pq.ParquetFile, wanted: set[str]) -> Iterator[RowGroups]:
    """Every row group that has rows."""
    metadata = parquet.metadata
    numbers = [
        number
        for number in range(metadata.num_columns)
        if metadata.schema.column(number).path.partition(".")[0] in wanted
    ]
    first_row = 1
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        if group.num_rows:
            size_bytes = sum(group.column(each).total_uncompressed_size for each in numbers)
            yield RowGroups(file, (number,), size_bytes, first_row)
        first_row += group.num_rows


# -- reading


def _batch_rows(group: pq.RowGroupMetaData, sources: set[str]) -> int:
    """How many rows make a batch, judged by the sizes in the file."""
    chunks = [group.column(number) for number in range(group.num_columns)]
    row_bytes = 1 + sum(
        _row_bytes(chunk, group.num_rows)
        for chunk in chunks
        if chunk.path_in_schema.partition(".")[0] in sources
    )
    return min(int(BATCH_BYTES / row_bytes) + 1, BATCH_ROWS_MAX)


def _row_bytes(chunk: pq.ColumnChunkMetaData, rows: int) -> float:
    """What a column takes per row in memory.

    For rows that are indexes into a dictionary, the smallest and the largest entry are samples. The
    file lacks them if they are long.
    """
    row_bytes = float(chunk.total_uncompressed_size / rows)
    has_dictionary = any("DICTIONARY" in name for name in chunk.encodings)
    if chunk.physical_type != "BYTE_ARRAY" or row_bytes >= _SAMPLED_BYTES or not has_dictionary:
        return row_bytes
    found = chunk.statistics
    if found is not None and found.has_min_max:
        return max(row_bytes, len(found.min_raw), len(found.max_raw))
    return 0.0 if found is not None and found.null_count == rows else _LONG_BYTES


def _shaped(column: pa.Array, name: str) -> pa.Array:
    """A column as the sink takes it."""
    column = plain_column(column)
    if name in {"value", "key"}:
        if pa.types.is_nested(column.type):
            none = pa.scalar(None, pa.string())
            column = pc.if_else(column.is_valid(), json_values(column), none)
        elif not pa.types.is_binary(column.type):
            column = plain_texts(column)
        return column.cast(pa.binary())
    kind = {"topic": pa.string(), "partition": pa.int32(), "headers": _HEADERS}[name]
    return column if column.type == kind else column.cast(kind)


def times_of(column: pa.Array) -> pa.Array:
    """Timestamps in microseconds; null for what is not a time."""
    column = plain_column(column)
    kind = column.type
    if pa.types.is_timestamp(kind):
        # Nanoseconds are truncated; years out of the range of microseconds are an error.
        return column if kind == _TIME else column.cast(_TIME, safe=kind.unit != "ns")
    if pa.types.is_date(kind) or pa.types.is_null(kind):
        return column.cast(_TIME)
    if pa.types.is_integer(kind):
        return _from_milliseconds(column.cast(pa.int64()))
    if pc.all(pc.match_substring_regex(column, _MILLISECONDS)).as_py():
        return _from_milliseconds(column.cast(pa.int64()))
    for zoned in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:  # all of them at once, if they are dates of one form
            return column.cast(zoned).cast(_TIME)
        except pa.ArrowInvalid:
            continue
    each = (None if value is None else time_ms_of(value) for value in column.to_pylist())
    return _from_milliseconds(pa.array(each, pa.int64()))


def _from_milliseconds(column: pa.Array) -> pa.Array:
    in_range = pc.and_(pc.greater_equal(column, 0), pc.less_equal(column, TIME_MS_MAX))
    valid = pc.if_else(in_range, column, pa.scalar(None, pa.int64()))
    return pc.multiply(valid, 1000).cast(_TIME)


@contextmanager
def open_parquet(path: str) -> Iterator[pq.ParquetFile]:
    """The file; errors name it.

    Read through a small buffer: a row group may be larger than the memory of a task.
    """
    try:
        with pq.ParquetFile(
            path, pre_buffer=False, buffer_size=BUFFER_BYTES, coerce_int96_timestamp_unit="us"
        ) as parquet:
            yield parquet
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk
        reason = str(error).strip().splitlines()
        raise InputFileError(f"{path}: cannot be read as Parquet: {reason[0]}") from None
