"""Reads a split into Arrow batches with the columns and types of Spark's Kafka connector.

Memory is bounded by the chunk that is read and the part that is decoded, whatever the size of the
segment. No Python object is created per record.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from stratalog.bulk.predicates import ALL, Interval
from stratalog.bulk.read_planning import recreated, report_loss, topic_id_of
from stratalog.errors import (
    NoSegmentError,
    OffsetOutOfRangeError,
    PartitionGoneError,
    SegmentGoneError,
)
from stratalog.format.column_types import (
    PARTITION_COLUMNS,
    PartitionColumns,
    int64_numbers,
    numpy_column,
)
from stratalog.log.column_reader import ColumnReader
from stratalog.log.reader import AbortedRanges, CorruptionPolicy, ReadPlan, Skipped, TimeRange
from stratalog.log.segment_list import SegmentPart
from stratalog.log.tiered_view import RemoteSegmentView
from stratalog.partitions.view import open_partition_of
from stratalog.storage.remote_path import RemotePath
from stratalog.storage.segment_view import SegmentView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from stratalog.bulk.splits import SegmentRange, Split
    from stratalog.log.partition_view import PartitionView

_log = logging.getLogger(__name__)

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_MILLISECONDS_MAX: Final = ((1 << 63) - 1) // 1000


@dataclass(frozen=True)
class ReadTask:
    """What all tasks of a query have in common."""

    schema: pa.Schema
    """Schema of the batches to yield."""
    times_us: Interval = ALL
    skips_corruption: bool = False
    fails_on_data_loss: bool = True
    records_max: int | None = None
    """Stop after this many records."""
    paths: tuple[Path, ...] = ()
    """The log directories, to find a partition that is moved from one to another."""

    def read(
        self, split: Split, on_skip: Callable[[Skipped], None] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Every visible record of the split, in order. Corruption that is skipped is logged, or
        reported to `on_skip`."""
        report = on_skip or _warn
        batches = (batch for part in split.ranges for batch in self._read_range(part, report))
        return batches if self.records_max is None else _first(batches, self.records_max)

    def _read_range(
        self, part: SegmentRange, on_skip: Callable[[Skipped], None]
    ) -> Iterator[pa.RecordBatch]:
        columns = _SparkColumns(self.schema, part)
        for batch in self._decoded(part, on_skip):
            yield columns.convert(batch)

    def _decoded(
        self, part: SegmentRange, on_skip: Callable[[Skipped], None]
    ) -> Iterator[pa.RecordBatch]:
        try:
            segment = _segment_view(part)
            segment.open()
        except SegmentGoneError:
            yield from self._decoded_by_offset(part, on_skip)
            return
        # A file system may give a new file the inode of a deleted one, so the id decides.
        # Objects of a store have no inode: a time is part of their identity.
        directory = part.place.directory
        if not isinstance(part.segment, RemotePath) and self._is_recreated(part, directory):
            return
        bounded = SegmentPart(
            segment,
            start_offset=part.start_offset,
            end_position=part.end_position,
            next_base=part.limit_offset,
            start_position=part.start_position,
        )
        yield from self._reader(part, part.start_offset, on_skip).read([bounded])

    def _decoded_by_offset(
        self, part: SegmentRange, on_skip: Callable[[Skipped], None]
    ) -> Iterator[pa.RecordBatch]:
        """Find the records by offset, because the segment was compacted or deleted since
        planning."""
        try:
            view = open_partition_of(part.place.directory, self.paths)
        except (PartitionGoneError, NoSegmentError) as error:
            self._report_loss(f"{part.topic_partition} was deleted: {error}")
            return
        with view:
            if self._is_recreated(part, view):
                return
            start = part.start_offset
            try:
                view.locate(start)
            except OffsetOutOfRangeError as error:
                self._report_loss(f"{part.topic_partition}: {error}")
                start = max(start, view.log_start_offset)
            else:
                if view.log_end_offset < part.end_offset:  # truncated since
                    self._report_loss(
                        f"{part.topic_partition} ends at offset {view.log_end_offset}, but was to "
                        f"be read up to {part.end_offset}"
                    )
            if start < min(part.end_offset, view.log_end_offset):
                yield from self._reader(part, start, on_skip).read(view.parts_from(start))

    def _is_recreated(self, part: SegmentRange, partition: PartitionView | Path) -> bool:
        """Whether the topic was deleted and created again. Nothing is read then: the offsets were
        planned for the old topic."""
        _, (topic, _), planned = part.place
        now = None if planned is None else topic_id_of(partition)
        if planned is None or now is None or now == planned:
            return False
        self._report_loss(recreated(topic, planned, now))
        return True

    def _report_loss(self, what: str) -> None:
        report_loss(what, fails_on_data_loss=self.fails_on_data_loss)

    def _reader(
        self, part: SegmentRange, start: int, on_skip: Callable[[Skipped], None]
    ) -> ColumnReader:
        plan = ReadPlan(
            start_offset=start,
            end_offset=part.end_offset,
            aborted=AbortedRanges(part.aborted),
            times=_time_range(self.times_us),
            corruption=CorruptionPolicy(on_skip if self.skips_corruption else None),
        )
        names = [name for name in self.schema.names if name not in PARTITION_COLUMNS]
        return ColumnReader(plan, names or ["offset"])


def _first(batches: Iterator[pa.RecordBatch], count: int) -> Iterator[pa.RecordBatch]:
    left = count
    while left > 0 and (batch := next(batches, None)) is not None:
        yield batch[:left]
        left -= batch.num_rows


def _warn(skipped: Skipped) -> None:
    _log.warning("%s", skipped)


def _segment_view(part: SegmentRange) -> SegmentView:
    if part.stored is not None:
        return RemoteSegmentView(part.stored, part.base_offset, part.end_position)
    return SegmentView(part.segment, part.base_offset, part.end_position, part.identity)


def _time_range(times_us: Interval) -> TimeRange:
    """The range in milliseconds. As `_in_microseconds` limits timestamps, a bound at or beyond the
    limit selects by what Spark sees: all records that are beyond it, or none."""
    since_ms, until_ms = -(-times_us.low // 1000), times_us.high // 1000 + 1
    if since_ms > _MILLISECONDS_MAX or until_ms <= -_MILLISECONDS_MAX:
        return TimeRange(0, 0)
    return TimeRange(
        since_ms if since_ms > -_MILLISECONDS_MAX else None,
        until_ms if until_ms <= _MILLISECONDS_MAX else None,
    )


class _SparkColumns:
    """Converts decoded batches to the columns that Spark expects."""

    def __init__(self, schema: pa.Schema, part: SegmentRange) -> None:
        self._schema = schema
        self._partition_columns = PartitionColumns(part.topic_partition)

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [self._column(field, batch) for field in self._schema]
        if not columns:
            rows = pa.StructArray.from_buffers(pa.struct([]), batch.num_rows, [None])
            return pa.RecordBatch.from_struct_array(rows)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _column(self, field: pa.Field, batch: pa.RecordBatch) -> pa.Array:
        if field.name in PARTITION_COLUMNS:
            return self._partition_columns.column(field.name, batch.num_rows)
        column = batch.column(field.name)
        if field.name == "timestamp":
            return _in_microseconds(column)
        return column if column.type == field.type else column.cast(field.type)


def _in_microseconds(column: pa.Array) -> pa.Array:
    """From the milliseconds of the log to Spark's microseconds, limited to what 64 bits can hold.

    Every record has a timestamp. Kafka accepts any from a producer; 2^63 - 1 is commonly used for
    "never".
    """
    limited = np.clip(int64_numbers(column), -_MILLISECONDS_MAX, _MILLISECONDS_MAX)
    return numpy_column(limited * np.int64(1000), _TIMESTAMP)
