"""Which topic and which partition each row goes to: as the row says, else as Kafka's partitioner.

Columns in, one number a row out; no Python object per row. Importing this module loads compiled
kernels.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.errors import InvalidRecordError, UnknownTopicOrPartitionError
from stratalog.format.key_partitions import UNPLACED, place_keys
from stratalog.format.numpy_columns import numpy_column

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stratalog.log_dir.commits.staged import StagedTopic

_RECORD_OVERHEAD_BYTES: Final = 16
_RADIX_MAX: Final = 1 << 16


def rows_by_topic(
    batch: pa.RecordBatch, default: str | None
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows of each topic, in order. `default`, if given, is the topic of all."""
    if default is not None:
        yield default, batch
        return
    codes = batch.column("topic").dictionary_encode()
    if codes.null_count:
        raise InvalidRecordError(
            "null topic present in the data. Use the topic option for setting a topic."
        )
    names = codes.dictionary.to_pylist()
    for code, name in enumerate(names):
        if len(names) == 1:
            yield name, batch
        else:
            yield name, batch.filter(pc.equal(codes.indices, code))


class Placer:
    """Chooses partitions of one topic for the rows of one task."""

    def __init__(self, topic: StagedTopic, sticky_bytes: int, task: int) -> None:
        """Rows without a key stick to a partition for about `sticky_bytes`."""
        self._topic = topic
        self._count = topic.partition_count
        self._here = np.array([number for number, _ in topic.dirs], np.int32)
        self._sticky_bytes = sticky_bytes
        self._chooser = random.Random(task)  # tasks begin with different partitions
        self._current = self._next(None)
        self._bytes = 0

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The rows of each partition, in order."""
        if self._count == 1 and "partition" not in batch.schema.names:
            yield int(self._here[0]), batch
            return
        partitions = self.partitions_of(batch)
        first = partitions[0]
        if (partitions == first).all():
            yield int(first), batch
            return
        numbers = partitions.astype(np.uint16) if self._count <= _RADIX_MAX else partitions
        order = np.argsort(numbers, kind="stable")
        ordered = batch.take(numpy_column(order, pa.int64()))
        counts = np.bincount(partitions, minlength=self._count)
        start = 0
        for partition in np.flatnonzero(counts):
            count = int(counts[partition])
            yield int(partition), ordered.slice(start, count)
            start += count

    def partitions_of(self, batch: pa.RecordBatch) -> NDArray[np.int32]:
        """Of each row. Raises for a partition that the topic does not have, here at least."""
        names = batch.schema.names
        partitions = np.full(batch.num_rows, UNPLACED, np.int32)
        if "partition" in names:
            self._take_given(batch.column("partition"), partitions)
        left = batch.num_rows
        if "key" in names and not pa.types.is_null(batch.column("key").type):
            left = place_keys(batch.column("key"), self._count, partitions)
        if left:
            self._stick(batch, partitions)
        if len(self._here) < self._count:
            self._check_here(partitions)
        return partitions

    def _take_given(self, column: pa.Array, partitions: NDArray[np.int32]) -> None:
        given = column.fill_null(UNPLACED).to_numpy(zero_copy_only=False)
        is_given = column.is_valid().to_numpy(zero_copy_only=False)
        bad = is_given & ((given < 0) | (given >= self._count))
        if bad.any():
            raise InvalidRecordError(
                f"Invalid partition given with record: {given[bad.argmax()]} is not in the range "
                f"[0...{self._count}) of topic {self._topic.name!r}."
            )
        partitions[:] = given

    def _stick(self, batch: pa.RecordBatch, partitions: NDArray[np.int32]) -> None:
        """Rows in order fill one partition up to a batch's bytes, then another."""
        rows = np.flatnonzero(partitions == UNPLACED)
        if not len(rows):
            return
        sizes = _value_bytes(batch.column("value"))[rows] + _RECORD_OVERHEAD_BYTES
        # The row that fills a turn up still belongs to it.
        turns = (np.cumsum(sizes) - sizes + self._bytes) // self._sticky_bytes
        chosen = np.empty(int(turns[-1]) + 1, np.int32)
        for turn in range(len(chosen)):
            chosen[turn] = self._current if turn == 0 else self._next(int(chosen[turn - 1]))
        partitions[rows] = chosen[turns]
        self._current = int(chosen[-1])
        self._bytes = int(self._bytes + sizes.sum()) - int(turns[-1]) * self._sticky_bytes

    def _next(self, current: int | None) -> int:
        """Any but the last one, if there is another."""
        others = [int(number) for number in self._here if number != current]
        return self._chooser.choice(others or [int(self._here[0])])

    def _check_here(self, partitions: NDArray[np.int32]) -> None:
        missing = ~np.isin(partitions, self._here)
        if missing.any():
            raise UnknownTopicOrPartitionError(
                f"a row belongs to partition {partitions[missing.argmax()]} of topic "
                f"{self._topic.name!r}, which is not in the log directory"
            )


def _value_bytes(column: pa.Array) -> NDArray[Any]:
    lengths = pc.binary_length(column).fill_null(0)
    numbers: NDArray[Any] = lengths.to_numpy(zero_copy_only=False)
    return numbers
