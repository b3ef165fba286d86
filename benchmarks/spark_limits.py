"""A Python data source and a sink that have nothing to do: the limits of any such source and sink.

The source's workers hold a batch of rows ready and yield it again and again; the sink's workers
count what they get and drop it. What is left is Spark's own work: the socket, Arrow in the JVM, a
row for each record, the query. Both spare collections as this project's own workers do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from stratalog.spark.workers import freeze_imported_modules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructType

BATCH_ROWS: Final = 10_000
KEY_BYTES: Final = 12
OPTIONS: Final = ("rows", "valueBytes", "tasks")


class ReadyRows(DataSource):
    """Options: how many rows, of how many bytes, in how many tasks."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return (
            "key binary, value binary, topic string, partition int, offset long, "
            "timestamp timestamp, timestampType int"
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        rows, value_bytes, tasks = (int(self.options[name]) for name in OPTIONS)
        return _Reader(rows, value_bytes, tasks, schema.names)


class _Reader(DataSourceReader):
    def __init__(self, rows: int, value_bytes: int, tasks: int, names: list[str]) -> None:
        self._rows = rows
        self._value_bytes = value_bytes
        self._tasks = tasks
        self._names = names

    def partitions(self) -> list[InputPartition]:
        share, rest = divmod(self._rows, self._tasks)
        return [InputPartition(share + (task < rest)) for task in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        freeze_imported_modules()
        left = partition.value
        columns = [_column(name, self._value_bytes) for name in self._names]
        batch = pa.RecordBatch.from_arrays(columns, self._names)
        while left > 0:
            yield batch[:left]
            left -= BATCH_ROWS


class DroppedRows(DataSource):
    """Takes rows of any schema and keeps none."""

    @classmethod
    def name(cls) -> str:
        return "dropped"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _Dropper()


@dataclass
class _Dropped(WriterCommitMessage):
    rows: int


class _Dropper(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Dropped:
        freeze_imported_modules()
        return _Dropped(sum(batch.num_rows for batch in iterator))


def _column(name: str, value_bytes: int) -> pa.Array:
    numbers = np.arange(BATCH_ROWS)
    match name:
        case "key" | "value":
            return _bytes(value_bytes if name == "value" else KEY_BYTES)
        case "topic":
            return pa.repeat("bench", BATCH_ROWS)
        case "offset":
            return pa.array(numbers)
        case "timestamp":
            return pa.array(numbers).cast(pa.timestamp("us", "UTC"))
        case _:
            return pa.repeat(pa.scalar(0, pa.int32()), BATCH_ROWS)


def _bytes(size: int) -> pa.Array:
    ends = np.arange(BATCH_ROWS + 1, dtype=np.int32) * size
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(bytes(BATCH_ROWS * size))]
    return pa.Array.from_buffers(pa.binary(), BATCH_ROWS, buffers)
