"""The columns that records can be decoded into: their names, Arrow types and meaning.

The first six have the names and types of Spark's own Kafka source. The others are fields of the
record's batch, repeated for each record, and are decoded only if they are requested by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from stratalog.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from stratalog.format.names import TopicPartition

HEADER: Final = pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())])

_FIELDS: Final = {
    "offset": pa.int64(),
    "timestamp": pa.timestamp("ms", tz="UTC"),
    "timestampType": pa.int32(),  # 0 CreateTime, 1 LogAppendTime, -1 none (magic 0)
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(pa.field("element", HEADER, nullable=False)),
    "producerId": pa.int64(),
    "producerEpoch": pa.int16(),
    "sequence": pa.int32(),
    "partitionLeaderEpoch": pa.int32(),
    "codec": pa.string(),
    "isTransactional": pa.bool_(),
    "isControl": pa.bool_(),
    "baseOffset": pa.int64(),  # -1 for a compressed legacy set
    "lastOffset": pa.int64(),
    "batchPosition": pa.int64(),  # in the buffer that was decoded
    "batchSize": pa.int32(),
    "magic": pa.int8(),
}
_NULLABLE: Final = frozenset({"key", "value"})

ALL_COLUMNS: Final = tuple(_FIELDS)
RECORD_COLUMNS: Final = ALL_COLUMNS[:6]
"""What is decoded by default."""
PARTITION_COLUMNS: Final = ("topic", "partition")
"""Names of the columns that say which partition a record is from."""


def schema_of(columns: Collection[str] = RECORD_COLUMNS) -> pa.Schema:
    """The Arrow schema of these columns, in the order they are given."""
    unknown = [name for name in columns if name not in _FIELDS]
    if unknown:
        names = ", ".join(map(str, unknown))
        raise InvalidArgumentError(f"no column named {names}; choose from {', '.join(_FIELDS)}")
    return pa.schema([pa.field(name, _FIELDS[name], name in _NULLABLE) for name in columns])


# Conversion between Arrow and numpy. `pa.array`, `pa.scalar` and `to_numpy` do the same, but import
# pandas if it is installed, which takes a third of a second.


def numpy_column(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """A column without nulls, of integers, timestamps or booleans. Copies only if necessary."""
    if pa.types.is_boolean(kind):
        memory = np.packbits(values, bitorder="little")
    else:
        memory = np.ascontiguousarray(values, np.dtype(f"i{kind.bit_width // 8}"))
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(memory)])


def repeated_text(text: str, count: int) -> pa.Array:
    """A column with the same text `count` times."""
    raw = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(raw))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(raw * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


class PartitionColumns:
    """Topic and partition as columns, for the batches of one partition."""

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self._created: dict[str, pa.Array] = {}

    def column(self, name: str, count: int) -> pa.Array:
        """Created once for the longest batch; shorter ones get a slice of it."""
        created = self._created.get(name)
        if created is None or len(created) < count:
            if name == "topic":
                created = repeated_text(self.topic_partition.topic, count)
            else:
                created = numpy_column(np.full(count, self.topic_partition.partition), pa.int32())
            self._created[name] = created
        return created[:count]


def int64_numbers(column: pa.Array) -> NDArray[np.int64]:
    """A column of 64-bit numbers or timestamps without nulls, without a copy."""
    memory = column.buffers()[1]
    if memory is None:
        return np.empty(0, np.int64)
    return np.frombuffer(memory, np.int64)[column.offset : column.offset + len(column)]
