"""From options to offsets: which range of each partition a query reads.

A bound is a word, an offset or a time; a range is two numbers that the log holds. Both ends are
checked here, on the driver, so that a task never meets an offset that was never there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stratalog.errors import ConfigError, DataLossError, SourceError
from stratalog.log.reader import IsolationLevel
from stratalog.spark.offsets import EARLIEST, EARLIEST_OFFSET, LATEST, LATEST_OFFSET, ByTimestamp

if TYPE_CHECKING:
    from collections.abc import Collection

    from stratalog.format.names import TopicPartition
    from stratalog.log.reader import LogReader
    from stratalog.spark.offsets import OffsetBound, PartitionNumbers
    from stratalog.spark.options import ReadOptions


class OffsetRange(NamedTuple):
    """Offsets to read of one partition."""

    start: int
    end: int
    """Exclusive."""

    @property
    def is_empty(self) -> bool:
        return self.end <= self.start


def visible_end(view: LogReader, isolation: IsolationLevel) -> int:
    """Where a reader of this isolation level has to stop."""
    is_committed = isolation is IsolationLevel.READ_COMMITTED
    return view.last_stable_offset if is_committed else view.high_watermark


def check_named(options: ReadOptions, partitions: Collection[TopicPartition]) -> None:
    """Bounds by partition must name all partitions that are read, and no other."""
    for name, bound in (("starting", options.starting), ("ending", options.ending)):
        numbers = bound.each if isinstance(bound, ByTimestamp) else bound
        if not isinstance(numbers, tuple) or (isinstance(bound, ByTimestamp) and not bound.each):
            continue
        named = {topic_partition for topic_partition, _ in numbers}
        if named != set(partitions):
            raise ConfigError(
                f"{name}Offsets",
                f"If {name}Offsets contains specific offsets, you must specify all "
                "TopicPartitions. Use -1 for latest, -2 for earliest. "
                f"Specified: {_shown(named)} Assigned: {_shown(partitions)}",
            )


def _shown(partitions: Collection[TopicPartition]) -> str:
    return "[" + ", ".join(map(str, sorted(partitions))) + "]"


def batch_range(
    topic_partition: TopicPartition, view: LogReader, options: ReadOptions
) -> OffsetRange:
    """What a batch query reads of this partition."""
    end_seen = visible_end(view, options.isolation)
    start = starting_offset(topic_partition, view, options)
    end = _ending_offset(topic_partition, view, options, end_seen)
    if start > end:
        if _is_by_time(options.starting) or _is_by_time(options.ending):
            return OffsetRange(start, start)
        raise SourceError(
            f"{topic_partition}: the starting offset {start} is beyond the ending offset {end}"
        )
    first, last = view.log_start_offset, end_seen
    if options.fail_on_data_loss and (start < first or end > last):
        raise DataLossError(
            f"Some data may have been lost because they are not available any more: offsets "
            f"{start} to {end} of {topic_partition} are wanted, {first} to {last} are there. Set "
            "the option failOnDataLoss to false to read what is there."
        )
    return OffsetRange(max(start, first), min(end, last))


def starting_offset(topic_partition: TopicPartition, view: LogReader, options: ReadOptions) -> int:
    """Where a query begins that no checkpoint says it of."""
    bound = options.starting or EARLIEST
    end = visible_end(view, options.isolation)
    if isinstance(bound, ByTimestamp):
        timestamp = _number(bound, topic_partition)
        found = view.find_time(timestamp)
        if found is not None:
            return min(found.offset, end)
        if not options.starting_or_latest:
            raise SourceError(
                f"No offset matched from request of topic-partition {topic_partition} and "
                f"timestamp {timestamp}."
            )
        return end
    return _plain_offset(bound, topic_partition, view.log_start_offset, end)


def _ending_offset(
    topic_partition: TopicPartition, view: LogReader, options: ReadOptions, end: int
) -> int:
    bound = options.ending or LATEST
    if isinstance(bound, ByTimestamp):
        found = view.find_time(_number(bound, topic_partition))
        return end if found is None else min(found.offset, end)
    return _plain_offset(bound, topic_partition, view.log_start_offset, end)


def _plain_offset(bound: OffsetBound, at: TopicPartition, start: int, end: int) -> int:
    if bound == EARLIEST:
        return start
    if bound == LATEST:
        return end
    assert isinstance(bound, tuple)
    offset = dict(bound)[at]
    return {EARLIEST_OFFSET: start, LATEST_OFFSET: end}.get(offset, offset)


def _number(bound: ByTimestamp, topic_partition: TopicPartition) -> int:
    if bound.for_all is not None:
        return bound.for_all
    each: PartitionNumbers = bound.each
    return dict(each)[topic_partition]


def _is_by_time(bound: OffsetBound | None) -> bool:
    return isinstance(bound, ByTimestamp)
