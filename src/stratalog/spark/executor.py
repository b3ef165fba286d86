"""A split into Arrow batches, on the executor: decode what is wanted, give it Spark's types.

Memory is bounded by the chunk that is read and the part that is decoded, whatever the size of the
segment. Nothing is made per record.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from stratalog.errors import (
    NoSegmentError,
    OffsetOutOfRangeError,
    PartitionGoneError,
    SegmentGoneError,
)
from stratalog.format.column_types import int64_numbers, numpy_column, repeated_text
from stratalog.log.column_reading import ColumnReader
from stratalog.log.partition_view import PartitionView
from stratalog.log.reader import AbortedRanges, CorruptionPolicy, ReadPlan, Skipped
from stratalog.log.segments import SegmentPart
from stratalog.spark.failures import recreated
from stratalog.spark.predicates import ALL, Span
from stratalog.spark.topics import report_loss, topic_id_of
from stratalog.storage.segment_view import SegmentView

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stratalog.spark.splits import Piece, Split

_log = logging.getLogger(__name__)

_OF_THE_PARTITION: Final = frozenset({"topic", "partition"})
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_MILLISECONDS_MAX: Final = ((1 << 63) - 1) // 1000


@dataclass(frozen=True)
class ReadTask:
    """What all tasks of a query have in common."""

    schema: pa.Schema
    """Of the batches to yield: Spark's columns and types."""
    times_us: Span = ALL
    skips_damage: bool = False
    fails_on_data_loss: bool = True

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Every visible record of the split, in order."""
        for piece in split.pieces:
            yield from self._read_piece(piece)

    def _read_piece(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        shape = _Shape(self.schema, piece)
        for batch in self._decoded(piece):
            kept = _within(batch, self.times_us)
            if kept.num_rows:
                yield shape.fit(kept)

    def _decoded(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        due = piece.start_offset
        try:
            segment = SegmentView(
                piece.segment, piece.base_offset, piece.end_position, piece.identity
            )
            _ = segment.file  # from here on it stays readable, whatever becomes of its name
        except SegmentGoneError:
            yield from self._decoded_by_offset(piece, due)
            return
        # A file system may give a new file the inode of a deleted one, so the id decides.
        if self._is_recreated(piece):
            return
        part = SegmentPart(segment, due, piece.end_position, piece.limit_offset)
        yield from self._reader(piece, due).read([part])

    def _decoded_by_offset(self, piece: Piece, due: int) -> Iterator[pa.RecordBatch]:
        """The segment was compacted or deleted since the query was planned: look again."""
        try:
            view = PartitionView(piece.directory)
        except (PartitionGoneError, NoSegmentError) as error:
            self._report_loss(f"{piece.topic_partition} was deleted: {error}")
            return
        with view:
            if self._is_recreated(piece):
                return
            start = due
            try:
                view.locate(start)
            except OffsetOutOfRangeError as error:
                self._report_loss(f"{piece.topic_partition}: {error}")
                start = max(due, view.log_start_offset)
            if start < min(piece.end_offset, view.log_end_offset):
                yield from self._reader(piece, start).read(view.parts_from(start))

    def _is_recreated(self, piece: Piece) -> bool:
        """Whether the partition is now one of another topic, of which nothing is read: this query
        was planned for offsets of the old one."""
        topic_id = topic_id_of(piece.directory) if piece.topic_id is not None else None
        if piece.topic_id is None or topic_id is None or topic_id == piece.topic_id:
            return False
        self._report_loss(recreated(piece.topic, piece.topic_id, topic_id))
        return True

    def _report_loss(self, what: str) -> None:
        report_loss(what, fails_on_data_loss=self.fails_on_data_loss)

    def _reader(self, piece: Piece, start: int) -> ColumnReader:
        plan = ReadPlan(
            start_offset=start,
            end_offset=piece.end_offset,
            aborted=AbortedRanges(piece.aborted),
            corruption=CorruptionPolicy(_warn if self.skips_damage else None),
        )
        return ColumnReader(plan, self._columns)

    @property
    def _columns(self) -> list[str]:
        names = [name for name in self.schema.names if name not in _OF_THE_PARTITION]
        if not self.times_us.is_all and "timestamp" not in names:
            names.append("timestamp")
        return names or ["offset"]


def _warn(skipped: Skipped) -> None:
    _log.warning("%s", skipped)


def _within(batch: pa.RecordBatch, times_us: Span) -> pa.RecordBatch:
    """Only the records in this range of time."""
    if times_us.is_all:
        return batch
    times = _milliseconds(batch.column("timestamp"))
    low, high = -(-times_us.low // 1000), times_us.high // 1000
    keep = (times >= low) & (times <= high)
    if keep.all():
        return batch
    return batch.filter(numpy_column(keep, pa.bool_()))


class _Shape:
    """Gives decoded batches the columns that Spark expects."""

    def __init__(self, schema: pa.Schema, piece: Piece) -> None:
        self._schema = schema
        self._piece = piece
        self._constants: dict[str, pa.Array] = {}

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [self._column(field, batch) for field in self._schema]
        if not columns:
            rows = pa.StructArray.from_buffers(pa.struct([]), batch.num_rows, [None])
            return pa.RecordBatch.from_struct_array(rows)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, field: pa.Field, batch: pa.RecordBatch) -> pa.Array:
        if field.name in _OF_THE_PARTITION:
            return self._constant(field, batch.num_rows)
        column = batch.column(field.name)
        if field.name == "timestamp":
            return _in_microseconds(column)
        return column if column.type == field.type else column.cast(field.type)

    def _constant(self, field: pa.Field, count: int) -> pa.Array:
        """Made once for the longest batch; shorter ones get a part of it."""
        held = self._constants.get(field.name)
        if held is None or len(held) < count:
            if field.name == "topic":
                held = repeated_text(self._piece.topic, count)
            else:
                held = numpy_column(np.full(count, self._piece.partition), field.type)
            self._constants[field.name] = held
        return held[:count]


def _in_microseconds(column: pa.Array) -> pa.Array:
    """From the milliseconds of the log to what Spark counts in. No record lacks a timestamp."""
    return numpy_column(_milliseconds(column) * np.int64(1000), _TIMESTAMP)


def _milliseconds(column: pa.Array) -> NDArray[np.int64]:
    """Times of the log; those that microseconds cannot count are the last or first that they can.

    Kafka takes any time a producer sends, and 2^63 - 1 is a usual one for "never".
    """
    return np.clip(int64_numbers(column), -_MILLISECONDS_MAX, _MILLISECONDS_MAX)
