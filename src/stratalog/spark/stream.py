"""The reader of a streaming query.

One instance lives in a process beside the driver for as long as the query runs, and says how far
each micro-batch goes; a copy goes to the executors and reads. What has been read is known from
Spark's checkpoint alone: offsets as the Kafka connector writes them, where the next batch begins.
Every look at the directories is a fresh one, so new segments, topics and partitions are seen.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from stratalog.errors import StratalogError
from stratalog.spark.admission import (
    LogEnds,
    check_still_there,
    is_delayed,
    lost,
    share_limit,
    with_new_partitions,
)
from stratalog.spark.failures import told_in_one_line
from stratalog.spark.offsets import from_json, to_json
from stratalog.spark.planning import plan_ranges
from stratalog.spark.ranges import OffsetRange, check_named, starting_offset, visible_end
from stratalog.spark.reader import as_partitions, read_split
from stratalog.spark.schema import check_schema
from stratalog.spark.topics import check_topics, open_logs, opened, subscribed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from stratalog.format.names import TopicPartition
    from stratalog.log.partition_view import PartitionView
    from stratalog.spark.options import ReadOptions

    OffsetsJson = dict[str, dict[str, int]]

_log: Final = logging.getLogger(__name__)


class StratalogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_schema(schema)
        check_topics(options)
        self._options = options
        self._schema = schema
        self._target: dict[TopicPartition, int] | None = None
        self._last_batch_ms = 0

    # -- what there is

    def _views(self) -> dict[TopicPartition, PartitionView]:
        """What is subscribed to now. A topic may have gone since the query began."""
        logs = open_logs(self._options)
        try:
            wanted = subscribed(logs, self._options)
        except StratalogError as error:
            if self._options.fail_on_data_loss:
                raise lost(str(error)) from None
            topics = set(self._options.subscription.topics)
            wanted = [each for each in logs.topic_partitions if each.topic in topics]
        return opened(logs, wanted)

    def _log_ends(self) -> dict[TopicPartition, LogEnds]:
        ends = {}
        for at, view in self._views().items():
            with view:
                ends[at] = LogEnds(
                    view.log_start_offset, visible_end(view, self._options.isolation)
                )
        return ends

    # -- how far a batch goes

    @told_in_one_line
    def initialOffset(self) -> OffsetsJson:
        views = self._views()
        check_named(self._options, views)
        offsets = {}
        for at, view in views.items():
            with view:
                offsets[at] = starting_offset(at, view, self._options)
        return to_json(offsets)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark knows one limit at a time; where both are given, the other is looked up here."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @told_in_one_line
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {at: log.end for at, log in self._log_ends().items()}

    @told_in_one_line
    def latestOffset(self, start: OffsetsJson, limit: ReadLimit) -> OffsetsJson:
        read = from_json(start)
        logs = self._log_ends()
        if self._target is not None:
            seen = self._target
            logs = {
                at: log._replace(end=min(log.end, seen[at]))
                for at, log in logs.items()
                if at in seen
            }
        fails = self._options.fail_on_data_loss
        check_still_there(read, logs, fails_on_data_loss=fails)
        begin = with_new_partitions(read, logs, fails_on_data_loss=fails)
        latest = {at: log.end for at, log in logs.items()}
        return to_json(self._admitted(begin, latest, limit))

    def _admitted(
        self, begin: dict[TopicPartition, int], latest: dict[TopicPartition, int], limit: ReadLimit
    ) -> dict[TopicPartition, int]:
        if isinstance(limit, ReadAllAvailable):
            return latest
        now_ms = int(time.time() * 1000)
        offsets_min = self._options.min_offsets_per_trigger
        # With AvailableNow there is nothing to wait for.
        if offsets_min is not None and self._target is None:
            if is_delayed(
                begin,
                latest,
                offsets_min=offsets_min,
                waited_ms=now_ms - self._last_batch_ms,
                delay_max_ms=self._options.max_trigger_delay_ms,
            ):
                return begin
            self._last_batch_ms = now_ms
        if isinstance(limit, ReadMaxRows):
            return share_limit(begin, latest, limit.max_rows)
        return latest

    @told_in_one_line
    def reportLatestOffset(self) -> OffsetsJson:
        """Shown in the query's progress beside what has been read."""
        return to_json({at: log.end for at, log in self._log_ends().items()})

    # -- what a batch reads

    @told_in_one_line
    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> Sequence[InputPartition]:
        begin, stop = from_json(start), from_json(end)
        views = self._views()
        if self._options.fail_on_data_loss:
            for at in stop.keys() - views.keys():
                raise lost(f"{at} is gone")
        wanted = {at: view for at, view in views.items() if at in stop}

        def range_of(at: TopicPartition, view: PartitionView) -> OffsetRange:
            first = begin.get(at, view.log_start_offset)
            return self._held(at, view, OffsetRange(first, max(first, stop[at])))

        plan = plan_ranges(wanted, range_of, self._options)
        _log.info("%s", plan.summary)
        return as_partitions(plan.splits)

    def _held(self, at: TopicPartition, view: PartitionView, wanted: OffsetRange) -> OffsetRange:
        """The range, if the log has all of it; what the log has of it, if that will do."""
        if wanted.is_empty:
            return wanted
        first, last = view.log_start_offset, view.log_end_offset
        if self._options.fail_on_data_loss and (wanted.start < first or wanted.end > last):
            raise lost(
                f"offsets {wanted.start} to {wanted.end} of {at} are wanted, {first} to {last} "
                "are there"
            )
        start = max(wanted.start, first)
        return OffsetRange(start, max(start, min(wanted.end, last)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_split(partition, self._schema, self._options)
