"""The reader of a batch query: plans on the driver, reads on the executors.

Spark calls `pushFilters` and `partitions` on the driver, pickles the reader, and calls `read` in
each task.

Filters are taken only where the option `filterPushdown` asks for it. Spark 4.3.0 keeps the splits
it was given last with the DataFrame, and reads them for every scan of it: after
`df.where("offset = 7").count()`, `df.count()` is 1, and both sides of a union read what the second
asked for. So a DataFrame that takes filters is for one `where` in one query.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from stratalog.bulk.planning import plan_read
from stratalog.bulk.predicates import ALL, EVERYTHING, Interval, Predicate
from stratalog.bulk.splits import Split
from stratalog.spark.failures import iterate_with_one_line_errors, one_line_errors
from stratalog.spark.filters import take_filters
from stratalog.spark.schema import check_schema
from stratalog.spark.workers import freeze_imported_modules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from stratalog.bulk.options import ReadOptions

_log: Final = logging.getLogger(__name__)


class _OptionalPushdown:
    """`pushFilters` as an attribute that Spark takes for the inherited method.

    Spark refuses a reader that implements `pushFilters` while pushdown is switched off, which it is
    by default, for fear of filters that are silently ignored. Here every filter is optional: what
    is not pushed, Spark checks itself. So the method says of itself that it is the inherited one,
    which is all that Spark looks at, and works when it is called.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: StratalogReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.take_filters(filters)


class StratalogReader(DataSourceReader):
    """One batch query."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_schema(schema)
        self._options = options
        self._schema = schema
        self._predicate: Predicate = EVERYTHING

    @property
    def pushFilters(self) -> Any:
        return _OptionalPushdown(self)

    def take_filters(self, filters: Iterable[Filter]) -> list[Filter]:
        """Keep what can be pruned by; the other filters are left to Spark."""
        if not self._options.takes_filters:
            return list(filters)
        self._predicate, left = take_filters(filters)
        return left

    @one_line_errors
    def partitions(self) -> Sequence[InputPartition]:
        freeze_imported_modules()
        plan = plan_read(self._options, self._predicate)
        _log.info("%s", plan.summary)
        # Spark would read an empty list as "one split of everything".
        return as_partitions(plan.splits or (Split(()),))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_split(partition, self._schema, self._options, self._predicate.times_us)


def as_partitions(splits: Iterable[Split]) -> list[InputPartition]:
    """Splits as Spark passes them to tasks."""
    return [InputPartition(split) for split in splits]


def read_split(
    partition: InputPartition, schema: StructType, options: ReadOptions, times_us: Interval = ALL
) -> Iterator[pa.RecordBatch]:
    """What one task yields."""
    from stratalog.bulk.read_task import ReadTask  # noqa: PLC0415 - loads kernels, not to plan

    split = partition.value
    assert isinstance(split, Split)
    freeze_imported_modules()
    task = ReadTask(
        schema=to_arrow_schema(schema, timezone="UTC"),
        times_us=times_us,
        skips_corruption=options.skips_corruption,
        fails_on_data_loss=options.fail_on_data_loss,
    )
    return iterate_with_one_line_errors(task.read(split))
