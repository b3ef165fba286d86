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
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from stratalog.bulk.predicates import ALL, EVERYTHING, Interval, Predicate
from stratalog.bulk.read_planning import plan_read
from stratalog.bulk.splits import Split, offset_ranges
from stratalog.spark.failures import iterate_with_one_line_errors, one_line_errors
from stratalog.spark.filters import predicate_of
from stratalog.spark.schema import check_schema
from stratalog.spark.workers import freeze_imported_modules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from stratalog.bulk.options import ReadOptions
    from stratalog.bulk.splits import SplitPlan

_log: Final = logging.getLogger(__name__)
_RANGES_SHOWN: Final = 8
_NONE_PUSHED: Final = (
    "no filters were pushed (if there is a where, set spark.sql.python.filterPushdown.enabled)"
)


class _OptionalPushdown:
    """`pushFilters` as an attribute that Spark takes for the inherited method.

    Spark refuses a reader that implements `pushFilters` while pushdown is switched off, which it is
    by default, for fear of filters that are silently ignored. Here every filter is optional: what
    is not pushed, Spark checks itself. So the attribute has the `__func__` of the inherited method,
    which is all that Spark checks, and works when it is called.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: StratalogReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._reader.accept_filters(filters)


class StratalogReader(DataSourceReader):
    """One batch query."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_schema(schema)
        self.options = options
        self._schema = schema
        self._predicate: Predicate = EVERYTHING
        self._not_pushed: Predicate = EVERYTHING

    @property
    def pushFilters(self) -> Any:
        return _OptionalPushdown(self)

    def accept_filters(self, filters: Iterable[Filter]) -> list[Filter]:
        """Keep the filters that planning can prune by, and return the others, which Spark checks.
        Without the option `filterPushdown`, Spark checks all; what they would prune goes into a
        warning."""
        given = list(filters)
        predicate, left = predicate_of(given)
        if not self.options.takes_filters:
            self._not_pushed = predicate
            return given
        self._predicate = predicate
        return left

    @one_line_errors
    def partitions(self) -> Sequence[InputPartition]:
        freeze_imported_modules()
        plan = plan_read(self.options, self._predicate)
        _log.info("%s", scan_description(plan, self.options, self._shown_filters()))
        if self._not_pushed != EVERYTHING:
            _log.warning(
                "this query reads more than it needs: `where %s` would prune with the option "
                "filterPushdown; set it to true, and call load() for each such query",
                self._not_pushed,
            )
        # Spark would read an empty list as "one split of everything".
        return input_partitions(plan.splits or (Split(()),))

    def _shown_filters(self) -> str:
        if not self.options.takes_filters:
            return "filters are not pushed (option filterPushdown)"
        return f"pushed filters: {self._predicate}" if str(self._predicate) else _NONE_PUSHED

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_split(partition, self._schema, self.options, self._predicate.times_us)


def scan_description(plan: SplitPlan, options: ReadOptions, filters: str) -> str:
    """One line: what is read, from where, and which filters were pushed."""
    where = ", ".join(map(str, options.paths))
    return f"scan of {where}: {plan.summary}; offsets {format_ranges(plan.splits)}; {filters}"


def format_ranges(splits: Iterable[Split]) -> str:
    """The offsets that are read of each partition, of the first few if there are many."""
    ranges = offset_ranges(splits)
    shown = [f"{tp} {start}..{end}" for tp, (start, end) in islice(ranges.items(), _RANGES_SHOWN)]
    if len(ranges) > _RANGES_SHOWN:
        shown.append(f"and {len(ranges) - _RANGES_SHOWN} more")
    return ", ".join(shown) or "none"


def input_partitions(splits: Iterable[Split]) -> list[InputPartition]:
    """The splits as Spark's input partitions."""
    return [InputPartition(split) for split in splits]


def read_split(
    partition: InputPartition,
    schema: StructType,
    options: ReadOptions,
    times_us: Interval = ALL,
    records_max: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """The batches that one task yields."""
    from stratalog.bulk.read_task import ReadTask  # noqa: PLC0415 - loads kernels, not to plan

    split = partition.value
    assert isinstance(split, Split)
    freeze_imported_modules()
    task = ReadTask(
        schema=to_arrow_schema(schema, timezone="UTC"),
        times_us=times_us,
        skips_corruption=options.skips_corruption,
        fails_on_data_loss=options.fail_on_data_loss,
        records_max=records_max,
        paths=options.paths,
    )
    return iterate_with_one_line_errors(task.read(split))
