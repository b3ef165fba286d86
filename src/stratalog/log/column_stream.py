"""Columns of one or several partitions as one `pyarrow.RecordBatchReader`.

The reader is lazy: partitions are read one after the other, a chunk at a time. Besides the columns
that are decoded it has `topic` and `partition`, and keys and values can be more than bytes
(`ValueFormat`):

* "bytes": as they are;
* "text": strings. What is not UTF-8 raises TextError;
* an Arrow type: each value is parsed as one JSON document of that type, often a `pa.struct`. Fields
  that it does not have are ignored. What cannot be parsed so raises TextError;
* "json": the same, with the type inferred from the first batch of records. A later record with a
  field or type that those do not have raises TextError: then pass the type.

A record without a key or value has null in all of them. Importing this module loads kernels.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from stratalog.errors import InvalidArgumentError, TextError
from stratalog.format.arguments import word_of
from stratalog.format.column_types import (
    ALL_COLUMNS,
    PARTITION_COLUMNS,
    RECORD_COLUMNS,
    PartitionColumns,
    int64_numbers,
    schema_of,
)
from stratalog.log.column_reader import ColumnReader

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from stratalog.format.names import TopicPartition
    from stratalog.log.reader import LogReader, ReadPlan

ValueFormat: TypeAlias = "Literal['bytes', 'text', 'json'] | pa.DataType | pa.Schema"

_PARTITION_FIELDS: Final = {
    "topic": pa.field("topic", pa.string(), nullable=False),
    "partition": pa.field("partition", pa.int32(), nullable=False),
}
_WORDS: Final = ("bytes", "text", "json")
_ROW: Final = re.compile(r"in row (\d+)")


class ColumnSource(NamedTuple):
    """A partition, and what to read of it."""

    log: LogReader
    plan: ReadPlan
    closing: AbstractContextManager[object] = nullcontext()
    """Exited when the partition has been read."""


class ColumnStream:
    """Converts decoded columns to the columns of the result."""

    def __init__(
        self,
        columns: Collection[str] | None = None,
        *,
        keys: ValueFormat = "bytes",
        values: ValueFormat = "bytes",
    ) -> None:
        self._names = list(RECORD_COLUMNS if columns is None else _checked(columns))
        self._decoded = [name for name in self._names if name not in PARTITION_COLUMNS]
        formats = {
            "key": _ValueConverter.of(keys, "keys"),
            "value": _ValueConverter.of(values, "values"),
        }
        self._formats = {
            name: each
            for name, each in formats.items()
            if name in self._names and not each.is_bytes
        }
        if self._formats and "offset" not in self._decoded:
            self._decoded.append("offset")  # for messages

    @cached_property
    def _schema(self) -> pa.Schema:
        """Once all types are known."""
        plain = schema_of([name for name in self._names if name not in PARTITION_COLUMNS])
        fields = []
        for name in self._names:
            field = _PARTITION_FIELDS[name] if name in PARTITION_COLUMNS else plain.field(name)
            found = self._formats.get(name)
            fields.append(field if found is None else field.with_type(found.type))
        return pa.schema(fields)

    def open(self, sources: Iterable[ColumnSource]) -> pa.RecordBatchReader:
        """The records of these partitions, in order. If a type has to be inferred, the first batch
        is read now."""
        batches = self._batches(sources)
        inferred = [each for each in self._formats.values() if each.type is None]
        if inferred:
            first = next(batches, None)
            for each in inferred:
                each.type = each.type or pa.struct([])  # no record at all
            if first is not None:
                batches = _chained(first, batches)
        return pa.RecordBatchReader.from_batches(self._schema, batches)

    def _batches(self, sources: Iterable[ColumnSource]) -> Iterator[pa.RecordBatch]:
        for log, plan, closing in sources:
            with closing:
                reader = ColumnReader(plan, self._decoded or ["offset"])
                partition = PartitionColumns(log.topic_partition)
                for batch in reader.read(log.parts_from(plan.start_offset)):
                    yield self._fit(batch, partition)

    def _fit(self, batch: pa.RecordBatch, partition: PartitionColumns) -> pa.RecordBatch:
        if self._names == batch.schema.names and not self._formats:
            return batch
        columns = [self._column(name, batch, partition) for name in self._names]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, name: str, batch: pa.RecordBatch, partition: PartitionColumns) -> pa.Array:
        if name in PARTITION_COLUMNS:
            return partition.column(name, batch.num_rows)
        found = self._formats.get(name)
        column = batch.column(name)
        if found is None:
            return column
        return found.convert(column, _RowErrors(name, batch, partition.topic_partition))


def _chained(first: pa.RecordBatch, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from batches


def _checked(columns: Collection[str]) -> Collection[str]:
    if isinstance(columns, str):
        raise InvalidArgumentError(f"columns is {columns!r}, a str; use a list of names")
    known = (*PARTITION_COLUMNS, *ALL_COLUMNS)
    unknown = [name for name in columns if name not in known]
    if unknown or not columns:
        wrong = f"no column named {', '.join(map(str, unknown))}" if unknown else "columns is empty"
        raise InvalidArgumentError(f"{wrong}; choose from {', '.join(known)}")
    if len(set(columns)) < len(columns):
        raise InvalidArgumentError(f"columns is {columns!r}; name each column once")
    return columns


class _RowErrors(NamedTuple):
    """Creates errors that name a record of the batch."""

    column: str
    batch: pa.RecordBatch
    tp: TopicPartition

    def error(self, row: int | None, reason: str) -> TextError:
        offsets = int64_numbers(self.batch.column("offset"))
        where = f"a record of offsets {offsets[0]} to {offsets[-1]}"
        if row is not None:
            where = f"offset {offsets[row]}"
        return TextError(f"{self.tp}, {where}: {reason}")


class _ValueConverter:
    """How a column of keys or values is converted."""

    def __init__(self, kind: str, wanted: pa.DataType | None = None) -> None:
        self._kind = kind
        self._is_inferred = kind == "json" and wanted is None
        self.is_bytes = kind == "bytes"
        self.type = pa.string() if kind == "text" else wanted
        """Type of the result; None until it is inferred."""

    @classmethod
    def of(cls, given: ValueFormat, name: str) -> _ValueConverter:
        if isinstance(given, pa.Schema):
            return cls("json", pa.struct(list(given)))
        if isinstance(given, pa.DataType):
            return cls("json", given)
        return cls(word_of(given, _WORDS, name))

    def convert(self, column: pa.Array, rows: _RowErrors) -> pa.Array:
        return self._text(column, rows) if self._kind == "text" else self._json(column, rows)

    def _text(self, column: pa.Array, rows: _RowErrors) -> pa.Array:
        try:
            return column.cast(pa.string())
        except pa.ArrowInvalid:
            row = next(row for row, raw in enumerate(column) if not _is_text(raw.as_py()))
            reason = f"the {rows.column} is not UTF-8 text; read it as bytes"
            raise rows.error(row, reason) from None

    def _json(self, column: pa.Array, rows: _RowErrors) -> pa.Array:
        if self.type is None:
            self.type = _without_times(self._parse(column, None, rows).type)
        return self._parse(column, self.type, rows)

    def _parse(self, column: pa.Array, wanted: pa.DataType | None, rows: _RowErrors) -> pa.Array:
        """Each document is wrapped in an object with one field, so that the parser returns one row
        for each, whatever it contains."""
        import pyarrow.compute as pc  # noqa: PLC0415 - bytes and text need neither
        from pyarrow import json  # noqa: PLC0415

        prefix, null, suffix, empty = (
            pa.scalar(text, pa.binary()) for text in (b'{"":', b"null", b"}\n", b"")
        )
        objects = pc.binary_join_element_wise(prefix, column.fill_null(null), suffix, empty)
        raw = _bytes_of(objects)
        options = json.ParseOptions(
            explicit_schema=None if wanted is None else pa.schema([("", wanted)]),
            newlines_in_values=True,
            unexpected_field_behavior="error" if self._is_inferred and wanted else "ignore",
        )
        if wanted is None:
            options.unexpected_field_behavior = "infer"
        reading = json.ReadOptions(use_threads=False, block_size=max(raw.size, 1) + 1)
        try:
            table = json.read_json(pa.BufferReader(raw), reading, options)
        except pa.ArrowInvalid as error:
            raise self._error(str(error), rows) from None
        if table.num_rows != len(column):
            raise self._error("more than one JSON document in a value", rows)
        return table.column(0).combine_chunks()

    def _error(self, reason: str, rows: _RowErrors) -> TextError:
        found = _ROW.search(reason)
        hint = f"; pass the Arrow type of all {rows.column}s" if self._is_inferred else ""
        row = None if found is None else int(found[1])
        why = _ROW.sub("", reason).removeprefix("JSON parse error: ").rstrip(". ")
        return rows.error(row, f"the {rows.column} cannot be parsed as JSON: {why}{hint}")


def _bytes_of(column: pa.Array) -> pa.Buffer:
    """All values of a binary column, end to end."""
    _, ends, data = column.buffers()
    if not len(column):
        return pa.py_buffer(b"")
    positions = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1]
    start, end = int(positions[0]), int(positions[-1])
    return data.slice(start, end - start)


def _is_text(raw: bytes | None) -> bool:
    try:
        return raw is None or raw.decode() is not None
    except UnicodeDecodeError:
        return False


def _without_times(kind: pa.DataType) -> pa.DataType:
    """Strings that look like times stay strings, because a later one may not be a time."""
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        fields: list[Any] = [field.with_type(_without_times(field.type)) for field in kind]
        return pa.struct(fields)
    if pa.types.is_list(kind):
        return pa.list_(_without_times(kind.value_type))
    return kind
