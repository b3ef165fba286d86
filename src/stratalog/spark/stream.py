"""The reader of a streaming query.

One instance lives in a process beside the driver for as long as the query runs, and says how far
each micro-batch goes; a copy goes to the executors and reads. What has been read is known from
Spark's checkpoint alone: offsets as the Kafka connector writes them, where the next batch begins.
Every look at the directories is a fresh one, so new segments, topics and partitions are seen.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

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
    find_recreated,
    is_delayed,
    share_limit,
    topic_ids,
    with_new_partitions,
)
from stratalog.spark.failures import lost, recreated, told_in_one_line
from stratalog.spark.offsets import from_json, ids_from_json, to_json
from stratalog.spark.planning import plan_ranges
from stratalog.spark.ranges import OffsetRange, check_named, starting_offset, visible_end
from stratalog.spark.reader import as_partitions, read_split
from stratalog.spark.schema import check_schema
from stratalog.spark.topics import (
    check_topics,
    losing,
    open_logs,
    opened,
    report_loss,
    subscribed,
    topic_id_of,
)

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from stratalog.format.names import TopicPartition
    from stratalog.log.partition_view import PartitionView
    from stratalog.spark.options import ReadOptions

    OffsetsJson = dict[str, dict[str, Any]]

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
        return opened(logs, wanted, self._options)

    def _log_ends(self) -> dict[TopicPartition, LogEnds]:
        ends = {}
        for at, view in self._views().items():
            with view, losing(at, self._options):
                end = visible_end(view, self._options.isolation)
                ends[at] = LogEnds(view.log_start_offset, end, topic_id_of(view.path))
        return ends

    # -- how far a batch goes

    @told_in_one_line
    def initialOffset(self) -> OffsetsJson:
        views = self._views()
        check_named(self._options, views)
        offsets, ids = {}, {}
        for at, view in views.items():
            with view, losing(at, self._options):
                offsets[at] = starting_offset(at, view, self._options)
                if (topic_id := topic_id_of(view.path)) is not None:
                    ids[at.topic] = topic_id
        return to_json(offsets, ids)

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
        for at, what in find_recreated(ids_from_json(start), logs).items():
            report_loss(what, fails_on_data_loss=fails)
            read.pop(at, None)  # a new one, which is read from its start
        check_still_there(read, logs, fails_on_data_loss=fails)
        begin = with_new_partitions(read, logs, fails_on_data_loss=fails)
        latest = {at: log.end for at, log in logs.items()}
        return to_json(self._admitted(begin, latest, limit), topic_ids(logs))

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
        logs = self._log_ends()
        return to_json({at: log.end for at, log in logs.items()}, topic_ids(logs))

    # -- what a batch reads

    @told_in_one_line
    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> Sequence[InputPartition]:
        begin, stop = from_json(start), from_json(end)
        ids_before, ids = ids_from_json(start), ids_from_json(end)
        views = self._views()
        if self._options.fail_on_data_loss:
            for at in stop.keys() - views.keys():
                raise lost(f"{at} is gone")
        wanted = {at: view for at, view in views.items() if at in stop}

        def range_of(at: TopicPartition, view: PartitionView) -> OffsetRange:
            if self._is_recreated(at.topic, ids.get(at.topic), topic_id_of(view.path)):
                return OffsetRange(0, 0)  # the next batch begins with the new topic
            first = begin.get(at, view.log_start_offset)
            if self._is_recreated(at.topic, ids_before.get(at.topic), ids.get(at.topic)):
                first = view.log_start_offset
            return self._held(at, view, OffsetRange(first, max(first, stop[at])))

        plan = plan_ranges(wanted, range_of, self._options)
        _log.info("%s", plan.summary)
        return as_partitions(plan.splits)

    def _is_recreated(self, topic: str, before: uuid.UUID | None, now: uuid.UUID | None) -> bool:
        """Whether these are ids of different topics, which is an error unless data may be lost."""
        if before is None or now is None or before == now:
            return False
        what = recreated(topic, before, now)
        report_loss(what, fails_on_data_loss=self._options.fail_on_data_loss)
        return True

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
