"""What the accelerator runs in Python: the planner of a scan, and the function that its tasks call.

The accelerator (`accelerator/` in the sources) implements Spark's table interface in Scala. It
knows the filters, columns and limit of a query, and passes Arrow batches on to Spark unchanged.
Everything else is done here, as without the accelerator: options, plans, decoding, errors.

The planner is a Python process next to the driver, like those that Spark starts for Python sources.
It gets the same input as Spark's own planner of filters, and then the ranges that an earlier plan
of the same DataFrame has pinned.
"""

from __future__ import annotations

import json
import logging
import pickle
import struct
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final

from pyspark.logger.worker_io import capture_outputs
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructField, StructType, _parse_datatype_json_string
from pyspark.sql.worker.data_source_pushdown_filters import deserializeFilter
from pyspark.sql.worker.utils import worker_run
from pyspark.worker_util import pickleSer, read_command

from stratalog.bulk.read_planning import PinnedRange, pin_ranges, plan_pinned
from stratalog.spark.failures import one_line_errors
from stratalog.spark.filters import predicate_of
from stratalog.spark.reader import (
    StratalogReader,
    format_ranges,
    input_partitions,
    read_split,
    scan_description,
)
from stratalog.spark.schema import COLUMNS
from stratalog.spark.workers import freeze_imported_modules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter, InputPartition

    from stratalog.bulk.options import ReadOptions
    from stratalog.bulk.predicates import Predicate
    from stratalog.bulk.splits import SplitPlan

_log: Final = logging.getLogger(__name__)
_pickler: Final[Any] = pickleSer
_INT: Final = struct.Struct(">i")
_OF_ROWS: Final = struct.Struct(
    ">i"  # records in a batch, for sources that yield rows
    "?"  # whether such a source gets bytes or bytearrays
)
_NUMBER_BYTES: Final = {"partition": 4, "offset": 8, "timestamp": 8, "timestampType": 4}
_TOPIC_BYTES: Final = 20
"""Estimated size of a topic name: the default of Spark for a short text."""
_NO_COLUMNS: Final = StructType([StructField("partition", COLUMNS["partition"])])
"""What is read where only the number of records matters: the column that costs least."""


# -- planning


@dataclass(frozen=True)
class ColumnarPlan:
    """A planned scan, as the accelerator gets it."""

    pinned: tuple[PinnedRange, ...]
    plan: SplitPlan
    read: ReadFunction
    left: tuple[int, ...]
    """The filters, by number, that Spark still has to check."""

    @property
    def partitions(self) -> list[InputPartition]:
        return input_partitions(self.plan.splits)

    @property
    def facts(self) -> dict[str, Any]:
        """For Spark's optimizer, its pages and `explain`."""
        splits, summary = self.plan.splits, self.plan.summary
        records = sum(part.offsets for split in splits for part in split.ranges)
        sizes = {name: records * width for name, width in _NUMBER_BYTES.items()}
        sizes["topic"] = records * _TOPIC_BYTES
        paths = ", ".join(map(str, self.read.options.paths))
        return {
            "records": records,
            # Any other column may hold most of the bytes. An estimate that is too large costs less
            # than one that is too small, which makes Spark broadcast the records.
            "columnBytes": {name: sizes.get(name, summary.bytes_read) for name in COLUMNS},
            "splitBytes": [split.size_bytes for split in splits],
            "segmentsRead": summary.segments_read,
            "segmentsPruned": summary.segments - summary.segments_read,
            "shown": {
                "Location": paths,
                "Reads": str(summary),
                "Offsets": format_ranges(splits),
            },
        }


@one_line_errors
def plan_scan(
    source: DataSource,
    schema: StructType,
    filters: Sequence[Filter],
    pinned: tuple[PinnedRange, ...] | None = None,
) -> ColumnarPlan:
    """Plan a scan of a table with this schema. All filters are offered; none has to be taken."""
    freeze_imported_modules()
    reader = source.reader(schema)
    assert isinstance(reader, StratalogReader)
    options = reader.options
    predicate, left = predicate_of(filters)
    ranges = pin_ranges(options) if pinned is None else pinned
    plan = plan_pinned(ranges, options, predicate)
    _log.info("%s", scan_description(plan, options, f"pushed filters: {str(predicate) or 'none'}"))
    is_left = {id(each) for each in left}
    return ColumnarPlan(
        ranges,
        plan,
        ReadFunction(options, predicate),
        tuple(number for number, each in enumerate(filters) if id(each) in is_left),
    )


# -- tasks


@dataclass(frozen=True)
class ReadFunction:
    """What a task calls with one row: its split, and what the query wants of it."""

    options: ReadOptions
    predicate: Predicate

    def __call__(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        (row,) = rows
        split, request = (column[0].as_py() for column in row.columns)
        wanted = json.loads(request)
        batches = read_split(
            _pickler.loads(split),
            StructType.fromJson(wanted["schema"]) or _NO_COLUMNS,
            self.options,
            self.predicate.times_us,
            wanted["limit"],
        )
        return _cut(batches, wanted["batchRecords"])


def _cut(batches: Iterable[pa.RecordBatch], records_max: int) -> Iterator[pa.RecordBatch]:
    """Batches of at most this many records, if that is positive. Spark looks whether a query is
    cancelled between two batches."""
    for batch in batches:
        step = records_max if records_max > 0 else batch.num_rows
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)


# -- the process


def main(infile: IO[bytes], outfile: IO[bytes]) -> None:
    """Answer one request of the accelerator. Spark's daemon of Python workers calls it."""
    worker_run(_answer, infile, outfile)


def _answer(infile: IO[bytes], outfile: IO[bytes]) -> None:
    source = read_command(pickleSer, infile)
    schema = _parse_datatype_json_string(_read(infile).decode())
    filters = [deserializeFilter(each) for each in json.loads(_read(infile))]
    infile.read(_OF_ROWS.size)
    pinned = _read(infile)
    assert isinstance(source, DataSource)
    assert isinstance(schema, StructType)
    with capture_outputs():
        found = plan_scan(source, schema, filters, pickle.loads(pinned) if pinned else None)
    _write(_pickler.dumps((found.read, schema)), outfile)
    _write_numbers([len(found.partitions)], outfile)
    for partition in found.partitions:
        _write(_pickler.dumps(partition), outfile)
    taken = [number for number in range(len(filters)) if number not in found.left]
    _write_numbers([len(taken), *taken], outfile)
    _write(pickle.dumps(found.pinned), outfile)
    _write(json.dumps(found.facts).encode(), outfile)


def _read(infile: IO[bytes]) -> bytes:
    (size,) = _INT.unpack(infile.read(_INT.size))
    return infile.read(size)


def _write(content: bytes, outfile: IO[bytes]) -> None:
    outfile.write(_INT.pack(len(content)) + content)


def _write_numbers(numbers: Iterable[int], outfile: IO[bytes]) -> None:
    for number in numbers:
        outfile.write(_INT.pack(number))
