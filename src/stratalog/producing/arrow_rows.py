"""Checks rows in Arrow columns before they are written, and chooses their partitions.

The columns are those of Spark's Kafka connector: `value`, and if they are there `key`, `headers`,
`timestamp`, `partition` and `topic`. Others are ignored. A row goes to the partition that it names,
else to that of Kafka's partitioner. Whatever a leader would reject is rejected here, with Kafka's
errors and the number of the row, before anything is written. No Python object is created per row.

`append_columns` of a producer writes such rows (`ColumnWriter`); bulk jobs and the Spark sink stage
them by the same rules. Rows are worked on in portions of about `PORTION_BYTES`: small Arrow batches
are gathered, so that they do not become small record batches, and large ones are divided, so that
memory stays bounded.

Importing this module loads compiled kernels; import it where many records are written.
"""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    UnknownTopicOrPartitionError,
    WriteSchemaError,
)
from stratalog.format.batch import NO_TIMESTAMP, TIMESTAMP_MAX
from stratalog.format.encode_columns import BatchLimits, InputColumns, encode_rows
from stratalog.format.hashing import UNASSIGNED, partition_keys
from stratalog.format.names import TopicPartition
from stratalog.log.offset_assignment import AppendRules, BatchFacts
from stratalog.producing.batches import AppendedRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from stratalog.format.encode_columns import EncodedBatches
    from stratalog.log.log_state import AppendInfo
    from stratalog.partitions.topics import TopicInfo
    from stratalog.producing.producer import Producer

    RowNumber: TypeAlias = Callable[[int], int]
    """Returns the number of a row, for error messages, from its index in a batch."""

COLUMNS: Final = ("value", "key", "headers", "timestamp", "topic", "partition")
PORTION_BYTES: Final = 8 << 20

_RECORD_OVERHEAD_BYTES: Final = 16
_RADIX_MAX: Final = 1 << 16
_PER_MS: Final = {"ms": 1, "us": 1_000, "ns": 1_000_000}


# -- columns in, as they come


def record_batches(data: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The schema and the batches of Arrow data: a table, record batch or reader, or any object with
    `__arrow_c_stream__`."""
    if isinstance(data, pa.RecordBatch):
        return data.schema, iter((data,))
    if isinstance(data, pa.Table):
        return data.schema, iter(data.to_batches())
    if not isinstance(data, pa.RecordBatchReader):
        if not hasattr(data, "__arrow_c_stream__"):
            raise TypeError(
                f"{type(data).__name__} is not Arrow data: pass a pyarrow Table, RecordBatch or "
                "RecordBatchReader, or an object with __arrow_c_stream__ (a DataFrame of pandas or "
                "polars, a relation of DuckDB)"
            )
        try:
            data = pa.RecordBatchReader.from_stream(data)
        except pa.ArrowInvalid as error:
            raise WriteSchemaError(f"{type(data).__name__} has no columns: {error}") from error
    return data.schema, iter(data)


def check_columns(schema: pa.Schema, topic: str | None) -> None:
    """Raise WriteSchemaError unless rows of this schema can be written, all to `topic` if that is
    given."""
    names = schema.names
    if "value" not in names:
        raise WriteSchemaError(f"there is no column value, only {', '.join(names) or 'none'}")
    if topic is None and "topic" not in names:
        raise WriteSchemaError("there is no column topic: pass the topic of the rows")
    for name, is_allowed, expected in _TYPES:
        found = [field.type for field in schema if field.name == name]
        if len(found) > 1:
            raise WriteSchemaError(f"there are {len(found)} columns named {name}")
        if found and not is_allowed(found[0]):
            raise WriteSchemaError(f"column {name} has type {found[0]}; it must be {expected}")


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(kind):
        return _is_bytes(kind.value_type)
    is_binary = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return bool(is_binary or types.is_fixed_size_binary(kind) or types.is_null(kind)) or _is_text(
        kind
    )


def _is_headers(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_null(kind):
        return True
    if not (types.is_list(kind) or types.is_large_list(kind)):
        return False
    entry = kind.value_type
    if not types.is_struct(entry) or [field.name for field in entry] != ["key", "value"]:
        return False
    if any(types.is_dictionary(field.type) for field in entry):
        return False
    return _is_text(entry.field("key").type) and _is_bytes(entry.field("value").type)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_null(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind)) or _is_number(kind)


_TYPES: Final = (
    ("value", _is_bytes, "string or binary"),
    ("key", _is_bytes, "string or binary"),
    ("headers", _is_headers, "a list of struct<key: string, value: binary>"),
    ("timestamp", _is_time, "a timestamp, or int64 in milliseconds"),
    ("topic", _is_text, "string"),
    ("partition", _is_number, "an integer"),
)


def _normalized(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with only the columns that are written, each in a type that kernels read."""
    names = [name for name in COLUMNS if name in batch.schema.names]
    columns = [_converted(name, batch.column(name)) for name in names]
    return pa.RecordBatch.from_arrays(columns, names)


def _converted(name: str, column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    wanted = _wanted_type(name, column.type)
    if wanted is None or wanted == column.type:
        return column
    try:
        return column.cast(wanted)
    except pa.ArrowInvalid as error:
        raise InvalidRecordError(f"column {name} cannot be written: {error}") from error


def _wanted_type(name: str, kind: pa.DataType) -> pa.DataType | None:
    """The type to convert a column to; None: any type is right."""
    if name in ("key", "value"):
        return kind if kind in (pa.binary(), pa.string()) else pa.binary()
    if name == "topic":
        return pa.string()
    if name == "headers":
        return None
    if name == "timestamp" and pa.types.is_timestamp(kind):
        return None
    return pa.int64()


def _size_bytes(batch: pa.RecordBatch) -> int:
    """Estimated size after the conversion. Views and dictionaries share bytes, which are counted
    for each row."""
    size = 0
    for name in COLUMNS:
        if name not in batch.schema.names:
            continue
        column = batch.column(name)
        kind = column.type
        if pa.types.is_dictionary(kind):
            lengths = pc.binary_length(column.dictionary.cast(pa.large_binary()))
            size += pc.sum(lengths.take(column.indices)).as_py() or 0
        elif pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
            # Of the 16 bytes of a view, the first four are the length.
            lengths = np.frombuffer(column.buffers()[1], np.int32)[::4]
            size += int(lengths[column.offset : column.offset + len(column)].sum(dtype=np.int64))
        else:
            size += column.nbytes
    return size


class RowPortions:
    """Joins and divides batches of any size into portions of about the same size."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._gathered: list[pa.RecordBatch] = []
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Add rows, and return the portions that are complete now."""
        rows = batch.num_rows
        if not rows:
            return
        size_bytes = max(_size_bytes(batch), 1)
        # What is not much too large stays whole: parts of it would have to be copied together.
        is_large = size_bytes >= 2 * self._size_bytes
        step = max(1, self._size_bytes * rows // size_bytes) if is_large else rows
        for start in range(0, rows, step):
            part = batch.slice(start, step)
            self._gathered.append(_normalized(part))
            self._bytes += size_bytes * part.num_rows // rows
            if self._bytes >= self._size_bytes:
                yield from self.remaining()

    def remaining(self) -> Iterator[pa.RecordBatch]:
        """The rows that were added since the last portion."""
        batches, self._gathered, self._bytes = self._gathered, [], 0
        if batches:
            yield batches[0] if len(batches) == 1 else pa.concat_batches(batches)


# -- what a leader checks of each record


def rows_by_topic(
    batch: pa.RecordBatch, default: str | None, first_row: int = 0
) -> Iterator[tuple[str, pa.RecordBatch, RowNumber]]:
    """The rows of each topic, in order. With a `default`, all rows are of that topic."""
    if default is not None:
        yield default, batch, first_row.__add__
        return
    codes = batch.column("topic").dictionary_encode()
    if codes.null_count:
        raise InvalidRecordError(
            "null topic present in the data. Use the topic option for setting a topic "
            f"(row {first_row + _first(codes.is_null())})."
        )
    names = codes.dictionary.to_pylist()
    for code, name in enumerate(names):
        if len(names) == 1:
            yield name, batch, first_row.__add__
        else:
            chosen = pc.equal(codes.indices, code)
            yield name, batch.filter(chosen), partial(_number_among, chosen, first_row)


def _number_among(chosen: pa.BooleanArray, first_row: int, index: int) -> int:
    return first_row + int(pc.indices_nonzero(chosen)[index].as_py())


def with_null_times(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Null for -1, with which Kafka marks a record without a timestamp."""
    index = rows.schema.get_field_index("timestamp")
    kind = rows.schema.field(index).type if index >= 0 else None
    if kind is None or pa.types.is_null(kind):
        return rows
    if not pa.types.is_timestamp(kind):
        none = pa.scalar(NO_TIMESTAMP, kind)
    elif kind.unit != "s":
        none = pa.scalar(NO_TIMESTAMP, pa.timestamp("ms", kind.tz)).cast(kind)
    else:
        return rows
    column = rows.column(index)
    absent = pc.equal(column, none)
    if not pc.any(absent).as_py():
        return rows
    return rows.set_column(index, "timestamp", pc.if_else(absent, pa.scalar(None, kind), column))


def check_rows(
    rows: pa.RecordBatch, topic: str, rules: AppendRules, now_ms: int, number_of: RowNumber = int
) -> None:
    """Check each record as a leader does."""
    names = rows.schema.names
    if rules.is_compacted and ("key" not in names or rows.column("key").null_count):
        row = _first(rows.column("key").is_null()) if "key" in names else 0
        raise InvalidRecordError(
            f"Compacted topic cannot accept message without key in topic {topic!r} "
            f"(row {number_of(row)})."
        )
    if "headers" in names and not pa.types.is_null(rows.column("headers").type):
        _check_headers(rows.column("headers"), number_of)
    if "timestamp" in names and not pa.types.is_null(rows.column("timestamp").type):
        _check_timestamps(rows.column("timestamp"), (topic, rules), now_ms, number_of)


def _check_headers(column: pa.Array, number_of: RowNumber) -> None:
    entries = column.flatten()
    keys = entries.field("key")
    if entries.null_count or keys.null_count:
        bad = pc.or_(entries.is_null(), keys.is_null())
        row = pc.list_parent_indices(column)[_first(bad)].as_py()
        raise InvalidRecordError(f"a header is null or has no key (row {number_of(row)})")


def _check_timestamps(
    column: pa.Array, topic: tuple[str, AppendRules], now_ms: int, number_of: RowNumber
) -> None:
    name, rules = topic
    if not pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", "UTC"))
    found = pc.min_max(column)
    if not found["min"].is_valid:
        return
    oldest, newest = _milliseconds(found["min"]), _milliseconds(found["max"])
    if oldest < 0:
        raise InvalidTimestampError(
            f"Invalid timestamp: {oldest}. Timestamp should always be non-negative or null "
            f"(row {number_of(_row_of(column, found['min']))})."
        )
    if newest > TIMESTAMP_MAX:
        raise _outside(newest, name, number_of(_row_of(column, found["max"])))
    if rules.is_log_append_time:
        return
    if now_ms - oldest > rules.timestamp_before_max_ms:
        raise _outside(oldest, name, number_of(_row_of(column, found["min"])))
    if newest - now_ms > rules.timestamp_after_max_ms:
        raise _outside(newest, name, number_of(_row_of(column, found["max"])))


def _milliseconds(time: pa.TimestampScalar) -> int:
    """Rounded down, as it is encoded."""
    value, unit = int(time.value), time.type.unit
    return value * 1000 if unit == "s" else value // _PER_MS[unit]


def _outside(timestamp: int, topic: str, row: int) -> InvalidTimestampError:
    return InvalidTimestampError(
        f"timestamp {timestamp} is outside of what topic {topic!r} allows "
        f"(message.timestamp.before.max.ms, message.timestamp.after.max.ms; row {row})"
    )


def _first(mask: pa.BooleanArray) -> int:
    return int(pc.index(mask, True).as_py())


def _row_of(column: pa.Array, value: pa.Scalar) -> int:
    return int(pc.index(column, value).as_py())


# -- partitions


class RowPartitioner:
    """Chooses partitions of one topic for rows, one batch of them after the other."""

    def __init__(
        self, topic: str, partition_count: int, here: Sequence[int], sticky_bytes: int, seed: int
    ) -> None:
        """`here` are the partitions that exist in these directories. Rows without a key stick to
        one of them for about `sticky_bytes`."""
        self._topic = topic
        self._count = partition_count
        self._here = np.array(here, np.int32)
        self._sticky_bytes = sticky_bytes
        self._chooser = random.Random(seed)
        self._current = self._next(None)
        self._bytes = 0

    def row_numbers(
        self, batch: pa.RecordBatch, number_of: RowNumber = int
    ) -> list[tuple[int, NDArray[np.int32] | None]]:
        """The partitions that get rows, with the numbers of these rows in order; None: all rows."""
        if self._count == 1 and "partition" not in batch.schema.names:
            return [(int(self._here[0]), None)]
        partitions = self.partitions_of(batch, number_of)
        first = partitions[0]
        if (partitions == first).all():
            return [(int(first), None)]
        numbers = partitions.astype(np.uint16) if self._count <= _RADIX_MAX else partitions
        order = np.argsort(numbers, kind="stable").astype(np.int32)
        counts = np.bincount(partitions, minlength=self._count)
        ends = np.cumsum(counts)
        return [
            (int(partition), order[ends[partition] - counts[partition] : ends[partition]])
            for partition in np.flatnonzero(counts)
        ]

    def partitions_of(self, batch: pa.RecordBatch, number_of: RowNumber = int) -> NDArray[np.int32]:
        """The partition of each row. Raises for one that the topic does not have here."""
        names = batch.schema.names
        partitions = np.full(batch.num_rows, UNASSIGNED, np.int32)
        if "partition" in names:
            self._use_given(batch.column("partition"), partitions, number_of)
        left = batch.num_rows
        if "key" in names and not pa.types.is_null(batch.column("key").type):
            left = partition_keys(batch.column("key"), self._count, partitions)
        if left:
            self._choose_sticky(batch, partitions)
        if len(self._here) < self._count:
            self._check_here(partitions, number_of)
        return partitions

    def _use_given(
        self, column: pa.Array, partitions: NDArray[np.int32], number_of: RowNumber
    ) -> None:
        given = column.fill_null(UNASSIGNED).to_numpy(zero_copy_only=False)
        is_given = column.is_valid().to_numpy(zero_copy_only=False)
        bad = is_given & ((given < 0) | (given >= self._count))
        if bad.any():
            row = int(bad.argmax())
            raise InvalidRecordError(
                f"Invalid partition given with record: {given[row]} is not in the range "
                f"[0...{self._count}) of topic {self._topic!r} (row {number_of(row)})."
            )
        partitions[:] = given

    def _choose_sticky(self, batch: pa.RecordBatch, partitions: NDArray[np.int32]) -> None:
        """Rows without a key fill one partition up to the size of a batch, then another."""
        rows = np.flatnonzero(partitions == UNASSIGNED)
        if not len(rows):
            return
        sizes = _value_bytes(batch.column("value"))[rows] + _RECORD_OVERHEAD_BYTES
        # The row that exceeds the limit still goes to the same partition.
        turns = (np.cumsum(sizes) - sizes + self._bytes) // self._sticky_bytes
        chosen = np.empty(int(turns[-1]) + 1, np.int32)
        for turn in range(len(chosen)):
            chosen[turn] = self._current if turn == 0 else self._next(int(chosen[turn - 1]))
        partitions[rows] = chosen[turns]
        self._current = int(chosen[-1])
        self._bytes = int(self._bytes + sizes.sum()) - int(turns[-1]) * self._sticky_bytes

    def _next(self, current: int | None) -> int:
        """A random partition other than `current`, if there is one."""
        others = [int(number) for number in self._here if number != current]
        return self._chooser.choice(others or [int(self._here[0])])

    def _check_here(self, partitions: NDArray[np.int32], number_of: RowNumber) -> None:
        missing = ~np.isin(partitions, self._here)
        if missing.any():
            row = int(missing.argmax())
            raise UnknownTopicOrPartitionError(
                f"a row belongs to partition {partitions[row]} of topic {self._topic!r}, which is "
                f"not in the log directory (row {number_of(row)})"
            )


def _value_bytes(column: pa.Array) -> NDArray[Any]:
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64)
    lengths = pc.binary_length(column).fill_null(0)
    numbers: NDArray[Any] = lengths.to_numpy(zero_copy_only=False)
    return numbers


def limits_of(rules: AppendRules, batch_bytes: int) -> BatchLimits:
    """The sizes of batches of `batch_bytes` in a topic with these rules."""
    bytes_max = min(rules.max_message_bytes, rules.segment_bytes)
    return BatchLimits(min(batch_bytes, bytes_max), bytes_max)


# -- rows into the log


class ColumnWriter:
    """Writes the rows of one call of `append_columns`."""

    def __init__(self, producer: Producer, topic: str | None) -> None:
        self._producer = producer
        self._topic = topic
        self._rows = 0
        self._partitioners: dict[str, tuple[TopicInfo, RowPartitioner]] = {}
        self._stored: dict[TopicPartition, AppendedRange] = {}

    def write(self, data: Any) -> list[AppendedRange]:
        """Write all rows, portion by portion. Nothing of a portion is written before all of its
        rows were checked and encoded."""
        schema, batches = record_batches(data)
        check_columns(schema, self._topic)
        portions = RowPortions(PORTION_BYTES)
        for batch in batches:
            for portion in portions.add(batch):
                self._write_portion(portion)
        for portion in portions.remaining():
            self._write_portion(portion)
        return sorted(self._stored.values())

    def _write_portion(self, rows: pa.RecordBatch) -> None:
        with self._producer.writing():
            encoded = [
                part
                for name, of_topic, number_of in rows_by_topic(
                    with_null_times(rows), self._topic, self._rows
                )
                for part in self._encoded(name, of_topic, number_of)
            ]
            for target, batches, facts in encoded:
                for part in batches:
                    info = self._producer.append_encoded(target, part, facts)
                    self._note(target, part.record_count, info)
        self._rows += rows.num_rows

    def _encoded(
        self, name: str, rows: pa.RecordBatch, number_of: RowNumber
    ) -> list[tuple[TopicPartition, list[EncodedBatches], BatchFacts]]:
        producer = self._producer
        info, now_ms = producer.topic_info(name), producer.now_ms()
        rules = AppendRules.of(info.config)
        check_rows(rows, name, rules, now_ms, number_of)
        groups = [
            (TopicPartition(name, partition), numbers)
            for partition, numbers in self._partitioner(info).row_numbers(rows, number_of)
        ]
        producer.write_waiting([target for target, _ in groups])
        columns = InputColumns(rows, now_ms)
        has_all_keys = "key" in rows.schema.names and not rows.column("key").null_count
        facts = BatchFacts(int(columns.timestamps.min()), has_all_keys)
        limits = limits_of(rules, producer.options.batch_bytes)
        return [
            (
                target,
                [
                    *encode_rows(
                        columns, numbers, producer.batch_fields(target, rules), limits, number_of
                    )
                ],
                facts,
            )
            for target, numbers in groups
        ]

    def _partitioner(self, info: TopicInfo) -> RowPartitioner:
        known, partitioner = self._partitioners.get(info.name, (None, None))
        if partitioner is None or known is not info:
            sticky_bytes, seed = self._producer.options.batch_bytes, random.getrandbits(32)
            partitioner = RowPartitioner(
                info.name, info.partition_count, info.partitions, sticky_bytes, seed
            )
            self._partitioners[info.name] = (info, partitioner)
        return partitioner

    def _note(self, target: TopicPartition, record_count: int, info: AppendInfo) -> None:
        before = self._stored.get(target)
        first = info.first_offset if before is None else before.first_offset
        count = record_count if before is None else before.record_count + record_count
        self._stored[target] = AppendedRange(*target, count, first, info.last_offset)
