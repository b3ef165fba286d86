"""The reader of a streaming query.

One instance runs in a process beside the driver and decides how far each micro-batch reads; copies
of it do the reading on the executors. Only Spark's checkpoint records what has been read: the
offsets where the next batch starts, in the Kafka connector's format. The directories are listed
again each time, so new segments, topics and partitions are seen.

How much a micro-batch takes is decided by pure functions of offsets and the clock. Their rules are
those of Spark's Kafka connector, so that a query that is moved from it has the same batches.
"""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from stratalog.bulk.options import TRIGGER_DELAY_MS_DEFAULT
from stratalog.bulk.read_planning import (
    available_range,
    check_named_partitions,
    deletion_is_loss,
    existing_partitions,
    open_partitions,
    plan_ranges,
    recreated,
    report_loss,
    retry_if_moved,
    starting_offset,
    subscribed_partitions,
    topic_id_of,
    visible_end,
)
from stratalog.bulk.splits import OffsetRange
from stratalog.errors import SourceError, UnknownTopicOrPartitionError
from stratalog.format.times import current_time_ms
from stratalog.partitions.view import LogDirsView
from stratalog.spark.failures import one_line_errors
from stratalog.spark.offset_json import offsets_from_json, offsets_to_json, topic_ids_from_json
from stratalog.spark.reader import input_partitions, read_split
from stratalog.spark.schema import check_schema

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

    from stratalog.bulk.options import ReadOptions
    from stratalog.format.names import TopicPartition
    from stratalog.log.partition_view import PartitionView

    Offsets = Mapping[TopicPartition, int]
    OffsetsJson = dict[str, dict[str, Any]]

_log: Final = logging.getLogger(__name__)


class LogEnds(NamedTuple):
    """The visible offsets of one partition, now."""

    start: int
    end: int
    """Exclusive; for committed reads the last stable offset."""
    topic_id: uuid.UUID | None = None


def share_limit(start: Offsets, latest: Offsets, limit: int) -> dict[TopicPartition, int]:
    """End offsets that take about `limit` offsets, shared among partitions in proportion to what
    each has: rounded down, but at least one if it has any, so that small partitions do not
    starve."""
    sizes = {tp: max(0, end - start.get(tp, end)) for tp, end in latest.items()}
    total = sum(sizes.values())
    if limit >= total:
        return dict(latest)
    ends = {}
    for tp, size in sizes.items():
        share = limit * (size / total)
        taken = math.ceil(share) if share < 1 else math.floor(share)
        ends[tp] = min(latest[tp], start.get(tp, latest[tp]) + taken)
    return ends


def is_delayed(
    start: Offsets, latest: Offsets, *, offsets_min: int, waited_ms: int, delay_max_ms: int
) -> bool:
    """Whether to wait for more records: there are few new ones, and the wait is not over."""
    if waited_ms >= delay_max_ms:
        return False
    new = sum(max(0, end - start.get(tp, end)) for tp, end in latest.items())
    return new < offsets_min


def with_new_partitions(
    start: Offsets, logs: Mapping[TopicPartition, LogEnds], *, fails_on_data_loss: bool
) -> dict[TopicPartition, int]:
    """Where the next batch starts. Partitions that are new since the last batch are read from their
    start."""
    begin = dict(start)
    for tp, log in logs.items():
        if tp not in begin:
            if log.start > 0:
                what = f"{tp} is new and starts at offset {log.start}, not 0"
                report_loss(what, fails_on_data_loss=fails_on_data_loss)
            begin[tp] = log.start
    return begin


def without_lost(start: Offsets, logs: Mapping[TopicPartition, LogEnds]) -> Offsets:
    """The same offsets, limited to what the logs still have, so that a loss does not count and is
    reported once."""
    return {
        tp: min(max(offset, logs[tp].start), logs[tp].end)
        for tp, offset in start.items()
        if tp in logs
    }


def find_recreated(
    ids: Mapping[str, uuid.UUID], logs: Mapping[TopicPartition, LogEnds]
) -> dict[TopicPartition, str]:
    """Partitions whose topic had another id the last time it was read, with the message for each. A
    topic whose id is unknown counts as the same."""
    found = {}
    for tp, log in logs.items():
        before = ids.get(tp.topic)
        if before is not None and log.topic_id is not None and log.topic_id != before:
            found[tp] = recreated(tp.topic, before, log.topic_id)
    return found


def topic_ids(logs: Mapping[TopicPartition, LogEnds]) -> dict[str, uuid.UUID]:
    """Ids of the topics whose id is known."""
    return {tp.topic: log.topic_id for tp, log in logs.items() if log.topic_id is not None}


def report_lost_offsets(
    start: Offsets, logs: Mapping[TopicPartition, LogEnds], *, fails_on_data_loss: bool
) -> None:
    """Report offsets that were to be read next but are no longer in the logs."""
    for tp, offset in start.items():
        what = _lost_of(tp, offset, logs.get(tp))
        if what is not None:
            report_loss(what, fails_on_data_loss=fails_on_data_loss)


def _lost_of(tp: TopicPartition, offset: int, log: LogEnds | None) -> str | None:
    if log is None:
        return f"{tp} was deleted"
    if log.end < offset:
        return f"{tp} ends at offset {log.end}, but was read up to {offset}"
    if log.start > offset:
        return f"{tp} starts at offset {log.start}, but was read only up to {offset}"
    return None


class StratalogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        check_schema(schema)
        self._options = options
        self._schema = schema
        self._target: dict[TopicPartition, int] | None = None
        self._last_batch_ms = 0
        self._missing = ""

    # -- partitions

    def _subscribed(self, logs: LogDirsView) -> list[TopicPartition]:
        """The partitions that are subscribed to now. A topic may have been deleted since the query
        started."""
        try:
            return subscribed_partitions(logs, self._options)
        except (UnknownTopicOrPartitionError, SourceError) as error:
            self._report_missing(str(error))
            return existing_partitions(logs, self._options)

    def _report_missing(self, what: str) -> None:
        """Report that subscribed partitions are missing. Warns once, although partitions are listed
        several times for each batch."""
        if what != self._missing:
            report_loss(what, fails_on_data_loss=self._options.fail_on_data_loss)
        self._missing = what

    def _log_ends(self) -> dict[TopicPartition, LogEnds]:
        logs = LogDirsView(self._options.paths, self._options.remote)
        ends = {}
        for tp, view in open_partitions(logs, self._subscribed(logs), self._options).items():
            with deletion_is_loss(tp, self._options):
                ends[tp] = retry_if_moved(view, self._options, self._ends_of)
        return ends

    def _ends_of(self, view: PartitionView) -> LogEnds:
        end = visible_end(view, self._options.isolation)
        return LogEnds(view.log_start_offset, end, topic_id_of(view))

    # -- how far a batch reads

    @one_line_errors
    def initialOffset(self) -> OffsetsJson:
        logs = LogDirsView(self._options.paths, self._options.remote)
        views = open_partitions(logs, subscribed_partitions(logs, self._options), self._options)
        check_named_partitions(self._options, views)
        offsets, ids = {}, {}
        for tp, view in views.items():
            with deletion_is_loss(tp, self._options):
                start_of = partial(self._start_of, tp)
                offsets[tp], topic_id = retry_if_moved(view, self._options, start_of)
                if topic_id is not None:
                    ids[tp.topic] = topic_id
        return offsets_to_json(offsets, ids)

    def _start_of(self, tp: TopicPartition, view: PartitionView) -> tuple[int, uuid.UUID | None]:
        end = visible_end(view, self._options.isolation)
        return starting_offset(tp, view, self._options, end), topic_id_of(view)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark passes one limit; if both are given, the other is taken from the options."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    @one_line_errors
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {tp: log.end for tp, log in self._log_ends().items()}

    @one_line_errors
    def latestOffset(self, start: OffsetsJson, limit: ReadLimit) -> OffsetsJson:
        read = offsets_from_json(start)
        logs = self._log_ends()
        if self._target is not None:
            seen = self._target
            logs = {
                tp: log._replace(end=min(log.end, seen[tp]))
                for tp, log in logs.items()
                if tp in seen
            }
        fails = self._options.fail_on_data_loss
        for tp, what in find_recreated(topic_ids_from_json(start), logs).items():
            report_loss(what, fails_on_data_loss=fails)
            read.pop(tp, None)  # a new one, which is read from its start
        report_lost_offsets(read, logs, fails_on_data_loss=fails)
        begin = with_new_partitions(without_lost(read, logs), logs, fails_on_data_loss=fails)
        latest = {tp: log.end for tp, log in logs.items()}
        return offsets_to_json(self._admitted(begin, latest, limit), topic_ids(logs))

    def _admitted(
        self, begin: dict[TopicPartition, int], latest: dict[TopicPartition, int], limit: ReadLimit
    ) -> dict[TopicPartition, int]:
        if isinstance(limit, ReadAllAvailable):
            return latest
        now_ms = current_time_ms()
        offsets_min = self._options.min_offsets_per_trigger
        # With AvailableNow there is nothing to wait for.
        if offsets_min is not None and self._target is None:
            if is_delayed(
                begin,
                latest,
                offsets_min=offsets_min,
                waited_ms=now_ms - self._last_batch_ms,
                delay_max_ms=self._options.max_trigger_delay_ms or TRIGGER_DELAY_MS_DEFAULT,
            ):
                return begin
            self._last_batch_ms = now_ms
        if isinstance(limit, ReadMaxRows):
            return share_limit(begin, latest, limit.max_rows)
        return latest

    @one_line_errors
    def reportLatestOffset(self) -> OffsetsJson:
        """Shown in the query's progress beside what has been read."""
        logs = self._log_ends()
        return offsets_to_json({tp: log.end for tp, log in logs.items()}, topic_ids(logs))

    # -- splits of a batch

    @one_line_errors
    def partitions(self, start: OffsetsJson, end: OffsetsJson) -> Sequence[InputPartition]:
        begin, stop = offsets_from_json(start), offsets_from_json(end)
        ids_before, ids = topic_ids_from_json(start), topic_ids_from_json(end)
        logs = LogDirsView(self._options.paths, self._options.remote)
        views = open_partitions(logs, self._subscribed(logs), self._options)
        for tp in sorted(stop.keys() - views.keys()):
            report_loss(f"{tp} was deleted", fails_on_data_loss=self._options.fail_on_data_loss)
        views_to_read = {tp: view for tp, view in views.items() if tp in stop}

        def range_of(tp: TopicPartition, view: PartitionView) -> OffsetRange:
            if self._is_recreated(tp.topic, ids.get(tp.topic), topic_id_of(view)):
                return OffsetRange(0, 0)  # the next batch begins with the new topic
            first = begin.get(tp, view.log_start_offset)
            if self._is_recreated(tp.topic, ids_before.get(tp.topic), ids.get(tp.topic)):
                first = view.log_start_offset
            wanted = OffsetRange(first, max(first, stop[tp]))
            return available_range(tp, view, wanted, self._options)

        plan = plan_ranges(views_to_read, range_of, self._options)
        _log.debug("%s", plan.summary)
        return input_partitions(plan.splits)

    def _is_recreated(self, topic: str, before: uuid.UUID | None, now: uuid.UUID | None) -> bool:
        """Whether these ids differ. Raises DataLossError unless loss is allowed."""
        if before is None or now is None or before == now:
            return False
        what = recreated(topic, before, now)
        report_loss(what, fails_on_data_loss=self._options.fail_on_data_loss)
        return True

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_split(partition, self._schema, self._options)
