"""Plans a read: from options to partitions, to ranges of offsets, to splits.

Both ends of a range are checked here, on the driver, so that a task never meets an offset that the
log does not have. Planning reads file names, sizes, index entries and headers of batches, a few or,
if the splits are to have equal numbers of records, all. It reads the batch that a lookup by time
ends in, the batches at which ranges are divided, to check them, and for `read_committed` what
follows the last producer snapshot, to find the last stable offset.
"""

from __future__ import annotations

import logging
import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from stratalog.bulk.options import EARLIEST, EARLIEST_OFFSET, LATEST, LATEST_OFFSET, ByTimestamp
from stratalog.bulk.predicates import EVERYTHING, LONG_MAX
from stratalog.bulk.splits import (
    OffsetRange,
    PartitionRef,
    PlanSummary,
    Split,
    SplitPlan,
    divide_by_bytes,
    divide_by_offsets,
    divide_evenly,
    group_partitions,
    pack_splits,
    requests_of,
    segment_of,
    segment_ranges,
    shares,
)
from stratalog.errors import (
    AccessDeniedError,
    ConfigError,
    CorruptError,
    DataLossError,
    NoSegmentError,
    PartitionGoneError,
    SegmentGoneError,
    SourceError,
    UnknownTopicOrPartitionError,
)
from stratalog.format.names import SYSTEM_TOPICS, TopicPartition
from stratalog.format.uuids import encode_id
from stratalog.log.partition_view import PartitionView, read_topic_id
from stratalog.log.reader import IsolationLevel
from stratalog.partitions.view import LogDirsView

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from stratalog.bulk.options import OffsetBound, ReadOptions
    from stratalog.bulk.predicates import Predicate
    from stratalog.bulk.splits import SegmentRange
    from stratalog.format.txn_index import AbortedTxn
    from stratalog.log.reader import LogReader

_log: Final = logging.getLogger(__name__)
T = TypeVar("T")


def plan_read(options: ReadOptions, predicate: Predicate = EVERYTHING) -> SplitPlan:
    """The splits of a batch read, and a summary of what is pruned."""
    logs = LogDirsView(options.paths, options.remote)
    partitions = subscribed_partitions(logs, options)
    check_named_partitions(options, partitions)
    views = open_partitions(logs, partitions, options)
    return plan_ranges(
        views, lambda each, view: batch_range(each, view, options), options, predicate
    )


class PinnedRange(NamedTuple):
    """What is read of a partition, fixed once for several plans."""

    topic_partition: TopicPartition
    topic_id: uuid.UUID | None
    offsets: OffsetRange


def pin_ranges(options: ReadOptions) -> tuple[PinnedRange, ...]:
    """What a batch read with these options reads if it begins now."""
    logs = LogDirsView(options.paths, options.remote)
    partitions = subscribed_partitions(logs, options)
    check_named_partitions(options, partitions)
    pinned = []
    for each, view in open_partitions(logs, partitions, options).items():
        with deletion_is_loss(each, options):
            pinned.append(retry_if_moved(view, options, partial(_pinned, each, options)))
    return tuple(pinned)


def _pinned(
    topic_partition: TopicPartition, options: ReadOptions, view: PartitionView
) -> PinnedRange:
    offsets = batch_range(topic_partition, view, options)
    return PinnedRange(topic_partition, topic_id_of(view), offsets)


def plan_pinned(
    pinned: Iterable[PinnedRange], options: ReadOptions, predicate: Predicate = EVERYTHING
) -> SplitPlan:
    """The splits of these ranges, as far as the logs still have them."""
    by_partition = {each.topic_partition: each for each in pinned}
    logs = LogDirsView(options.paths, options.remote)
    fails = options.fail_on_data_loss
    for gone in by_partition.keys() - set(logs.topic_partitions):
        report_loss(f"{gone} was deleted", fails_on_data_loss=fails)
        del by_partition[gone]

    def range_of(topic_partition: TopicPartition, view: PartitionView) -> OffsetRange:
        _, before, offsets = by_partition[topic_partition]
        now = topic_id_of(view)
        if before is not None and now is not None and before != now:
            report_loss(recreated(topic_partition.topic, before, now), fails_on_data_loss=fails)
            return OffsetRange(0, 0)
        return available_range(topic_partition, view, offsets, options)

    views = open_partitions(logs, by_partition, options)
    return plan_ranges(views, range_of, options, predicate)


# -- partitions


def subscribed_partitions(logs: LogDirsView, options: ReadOptions) -> list[TopicPartition]:
    """The partitions to read, in order. Raises if one that is named is missing."""
    wanted = options.subscription
    if wanted.assigned:
        return [_known(logs, TopicPartition(*pair)) for pair in wanted.assigned]
    if wanted.topics:
        for topic in wanted.topics:
            logs.partitions_of(topic)  # raises if it is missing
        names = set(wanted.topics)
    elif wanted.pattern is not None:
        names = _matching(logs, wanted.pattern)
    else:
        names = {name for name in logs.partition_numbers if not name.startswith("__")}
    return [found for found in logs.topic_partitions if found.topic in names]


def existing_partitions(logs: LogDirsView, options: ReadOptions) -> list[TopicPartition]:
    """The partitions that the options name and that exist."""
    topics, assigned = options.subscription.topics, options.subscription.assigned
    return [found for found in logs.topic_partitions if found.topic in topics or found in assigned]


def _matching(logs: LogDirsView, pattern: str) -> set[str]:
    """A pattern does not match system topics, as with Kafka's clients."""
    names = [name for name in logs.partition_numbers if name not in SYSTEM_TOPICS]
    found = {name for name in names if re.fullmatch(pattern, name)}
    if not found:
        known = ", ".join(names[:10]) or "none"
        raise SourceError(f"{_where(logs)}: no topic matches {pattern!r}; topics here: {known}")
    return found


def _known(logs: LogDirsView, wanted: TopicPartition) -> TopicPartition:
    numbers = logs.partition_numbers.get(wanted.topic, [])
    if wanted.partition not in numbers:
        known = f"it has {numbers}" if numbers else "there is no such topic"
        raise UnknownTopicOrPartitionError(f"{_where(logs)}: no partition {wanted}: {known}")
    return wanted


def _where(logs: LogDirsView) -> str:
    return ", ".join(str(log_dir.path) for log_dir in logs.dirs)


def open_partitions(
    logs: LogDirsView, partitions: Iterable[TopicPartition], options: ReadOptions
) -> dict[TopicPartition, PartitionView]:
    """Views of these partitions. One without a segment is left out: a broker is creating it."""
    views = {}
    for each in partitions:
        with deletion_is_loss(each, options), suppress(NoSegmentError):
            views[each] = logs.partition(*each)
    return views


def retry_if_moved(
    view: PartitionView, options: ReadOptions, operation: Callable[[PartitionView], T]
) -> T:
    """Return what `operation` returns. It is called again, with another view, if a broker has moved
    the partition to another log directory since it was opened."""
    try:
        with view:
            return operation(view)
    except PartitionGoneError as gone:
        try:
            moved = LogDirsView(options.paths, options.remote).partition(*view.topic_partition)
        except (UnknownTopicOrPartitionError, NoSegmentError):
            raise gone from None
        with moved:
            return operation(moved)


def topic_id_of(partition: PartitionView | Path) -> uuid.UUID | None:
    """Topic id of a view or a directory, from `partition.metadata`. None if there is no such file
    (Kafka before 2.8, copies of logs) or it cannot be read: then ids are not compared."""
    try:
        if isinstance(partition, PartitionView):
            return partition.topic_id
        return read_topic_id(partition)
    except (CorruptError, AccessDeniedError) as error:
        _log.warning(
            "cannot check whether the topic was deleted and created again, because its "
            "id is unknown: %s",
            error,
        )
        return None


# -- lost data


@contextmanager
def deletion_is_loss(topic_partition: TopicPartition, options: ReadOptions) -> Iterator[None]:
    """Report a partition that is deleted in this block as lost data: raise DataLossError, or log a
    warning."""
    try:
        yield
    except PartitionGoneError as error:
        report_loss(
            f"{topic_partition} was deleted: {error}", fails_on_data_loss=options.fail_on_data_loss
        )


def report_loss(what: str, *, fails_on_data_loss: bool) -> None:
    """Raise DataLossError, or log a warning."""
    if fails_on_data_loss:
        raise data_loss(what)
    _log.warning("Some data may have been lost: %s", what)


def data_loss(what: str) -> DataLossError:
    """The error for records that should be there, with the option that tolerates it."""
    return DataLossError(
        f"Some data may have been lost because they are not available any more: {what}. Set the "
        "option failOnDataLoss to false to continue with the data that is available."
    )


def recreated(topic: str, before: uuid.UUID, now: uuid.UUID) -> str:
    """The message for a topic that was deleted and created again."""
    return (
        f"topic {topic} was deleted and created again: its id was {encode_id(before)}, now it is "
        f"{encode_id(now)}"
    )


# -- ranges of offsets


def visible_end(view: LogReader, isolation: IsolationLevel) -> int:
    """The first offset that a reader of this isolation level cannot see."""
    is_committed = isolation is IsolationLevel.READ_COMMITTED
    return view.last_stable_offset if is_committed else view.high_watermark


def check_named_partitions(options: ReadOptions, partitions: Collection[TopicPartition]) -> None:
    """Offsets by partition must name all partitions that are read, and no other."""
    for name, bound in (("startingOffsets", options.starting), ("endingOffsets", options.ending)):
        is_by_time = isinstance(bound, ByTimestamp)
        numbers = bound.each if isinstance(bound, ByTimestamp) else bound
        if not isinstance(numbers, tuple) or (is_by_time and not numbers):
            continue
        named = {topic_partition for topic_partition, _ in numbers}
        if named != set(partitions):
            option = f"{name}ByTimestamp" if is_by_time else name
            advice = "" if is_by_time else " Use -1 for latest, -2 for earliest."
            raise ConfigError(
                option,
                f"If {option} contains specific offsets, you must specify all TopicPartitions."
                f"{advice} Specified: {_shown(named)} Assigned: {_shown(partitions)}",
            )


def _shown(partitions: Collection[TopicPartition]) -> str:
    return "[" + ", ".join(map(str, sorted(partitions))) + "]"


def batch_range(
    topic_partition: TopicPartition, view: LogReader, options: ReadOptions
) -> OffsetRange:
    """What a batch query reads of this partition."""
    first, last = view.log_start_offset, visible_end(view, options.isolation)
    start = starting_offset(topic_partition, view, options, last)
    end = ending_offset(topic_partition, view, options, last)
    if start > end:
        if isinstance(options.starting, ByTimestamp) or isinstance(options.ending, ByTimestamp):
            return OffsetRange(start, start)
        raise SourceError(
            f"{topic_partition}: the starting offset {start} is beyond the ending offset {end}"
        )
    return _available_part(
        topic_partition, OffsetRange(start, end), OffsetRange(first, last), options
    )


def available_range(
    topic_partition: TopicPartition, view: LogReader, wanted: OffsetRange, options: ReadOptions
) -> OffsetRange:
    """The range if the log has all of it. Otherwise the part that the log has, or DataLossError."""
    if wanted.is_empty:
        return wanted
    held = OffsetRange(view.log_start_offset, view.log_end_offset)
    return _available_part(topic_partition, wanted, held, options)


def _available_part(
    topic_partition: TopicPartition, wanted: OffsetRange, held: OffsetRange, options: ReadOptions
) -> OffsetRange:
    """The part of a range that the log has. The other part is reported as lost."""
    if wanted.start < held.start or wanted.end > held.end:
        report_loss(
            f"offsets {wanted.start} to {wanted.end} of {topic_partition} were requested, but the "
            f"log has {held.start} to {held.end}",
            fails_on_data_loss=options.fail_on_data_loss,
        )
    start, end = (min(max(bound, held.start), held.end) for bound in wanted)
    return OffsetRange(start, end)


def starting_offset(
    topic_partition: TopicPartition, view: LogReader, options: ReadOptions, end: int
) -> int:
    """Where a query without a checkpoint starts; `end` is the first offset that is not visible."""
    bound = options.starting or EARLIEST
    if isinstance(bound, ByTimestamp):
        timestamp = _timestamp(bound, topic_partition)
        found = view.find_time(timestamp)
        if found is not None:
            return min(found.offset, end)
        if not options.starting_or_latest:
            raise SourceError(
                f"No offset matched from request of topic-partition {topic_partition} and "
                f"timestamp {timestamp}. Set the option startingOffsetsByTimestampStrategy to "
                "latest to begin at the end of such partitions."
            )
        return end
    return _plain_offset(bound, topic_partition, view.log_start_offset, end)


def ending_offset(
    topic_partition: TopicPartition, view: LogReader, options: ReadOptions, end: int
) -> int:
    """Where a batch query ends; `end` is the first offset that is not visible."""
    bound = options.ending or LATEST
    if isinstance(bound, ByTimestamp):
        found = view.find_time(_timestamp(bound, topic_partition))
        return end if found is None else min(found.offset, end)
    return _plain_offset(bound, topic_partition, view.log_start_offset, end)


def _plain_offset(bound: OffsetBound, tp: TopicPartition, start: int, end: int) -> int:
    if bound == EARLIEST:
        return start
    if bound == LATEST:
        return end
    assert isinstance(bound, tuple)
    offset = dict(bound)[tp]
    return {EARLIEST_OFFSET: start, LATEST_OFFSET: end}.get(offset, offset)


def _timestamp(bound: ByTimestamp, topic_partition: TopicPartition) -> int:
    return bound.for_all if bound.for_all is not None else dict(bound.each)[topic_partition]


# -- splits


@dataclass
class _PartitionPlan:
    """The ranges to read of one partition."""

    topic_partition: TopicPartition
    view: PartitionView
    ranges: list[SegmentRange]
    aborted: list[AbortedTxn]

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.ranges)


def plan_ranges(
    views: Mapping[TopicPartition, PartitionView],
    range_of: Callable[[TopicPartition, PartitionView], OffsetRange],
    options: ReadOptions,
    predicate: Predicate = EVERYTHING,
) -> SplitPlan:
    """The splits that read these ranges. All views are closed afterwards."""
    found: list[_PartitionPlan] = []
    for topic_partition, view in views.items():
        with view, deletion_is_loss(topic_partition, options):
            if predicate.admits(*topic_partition):
                plan = partial(_plan_partition, topic_partition, range_of, options, predicate)
                found.append(retry_if_moved(view, options, plan))
    splits = _splits(found, options)
    read = [partition for partition in found if partition.ranges]
    summary = PlanSummary(
        partitions=len(views),
        partitions_read=len(read),
        segments=sum(len(view.segments) for view in views.values()),
        segments_read=sum(len(partition.ranges) for partition in read),
        bytes_total=sum(view.size_bytes for view in views.values()),
        bytes_read=sum(partition.size_bytes for partition in read),
        splits=len(splits),
        requests=sum(requests_of(part) for split in splits for part in split.ranges),
    )
    return SplitPlan(tuple(splits), summary)


def _plan_partition(
    topic_partition: TopicPartition,
    range_of: Callable[[TopicPartition, PartitionView], OffsetRange],
    options: ReadOptions,
    predicate: Predicate,
    view: PartitionView,
) -> _PartitionPlan:
    wanted = range_of(topic_partition, view)
    if wanted.end >= view.log_end_offset and not options.skips_corruption:
        view.check_end()

    def plan_segments() -> _PartitionPlan:
        narrowed = _prune_offsets(view, wanted, options, predicate)
        place = PartitionRef(view.path, topic_partition, topic_id_of(view))
        ranges = segment_ranges(view, place, narrowed, time_min_ms=predicate.time_min_ms)
        aborted: list[AbortedTxn] = []
        if ranges and options.isolation is IsolationLevel.READ_COMMITTED:
            aborted = view.aborted_transactions(narrowed.start, narrowed.end)
        return _PartitionPlan(topic_partition, view, ranges, aborted)

    return view.retry_if_gone(plan_segments)


def _prune_offsets(
    view: PartitionView, wanted: OffsetRange, options: ReadOptions, predicate: Predicate
) -> OffsetRange:
    """The range without offsets at both ends whose records cannot match the predicate."""
    start = max(wanted.start, predicate.offsets.low)
    end = min(wanted.end, predicate.offsets.high + 1)
    if start < end and predicate.time_min_ms > 0:
        first = view.find_time(predicate.time_min_ms, is_exact=True)
        start = end if first is None else max(start, first.offset)
    disorder = options.timestamp_disorder_ms
    if start < end and disorder is not None and predicate.time_max_ms < LONG_MAX // 1000:
        # After a record that is newer by this much, no record matches.
        beyond = view.find_time(max(0, predicate.time_max_ms + 1 + disorder), is_exact=True)
        end = end if beyond is None else min(end, beyond.offset)
    return OffsetRange(start, max(start, end))


def _splits(partitions: list[_PartitionPlan], options: ReadOptions) -> list[Split]:
    offsets = [sum(part.offsets for part in partition.ranges) for partition in partitions]
    counts = shares(offsets, options.min_partitions or 1)
    divided: list[list[SegmentRange]] = []
    for partition, count in zip(partitions, counts, strict=True):
        ranges: list[SegmentRange] = []
        with partition.view, deletion_is_loss(partition.topic_partition, options):
            ranges += _divided(partition, count, options)
        if ranges:
            divided.append(ranges)
    if options.min_partitions is not None:
        return [Split((each,)) for ranges in divided for each in ranges]
    records_max = options.max_records_per_partition
    return [
        split
        for ranges in group_partitions(divided, options.parallelism)
        for split in pack_splits(ranges, split_bytes=options.split_bytes, records_max=records_max)
    ]


def _divided(partition: _PartitionPlan, count: int, options: ReadOptions) -> Iterator[SegmentRange]:
    """The ranges of one partition: none larger than a split, and at least `count` of them.

    If a broker has moved the partition since they were planned, or compacted it, they stay as they
    are: tasks look for them again, by offset.
    """
    try:
        ranges = _divided_by_size(partition, count, options)
    except SegmentGoneError:
        ranges = partition.ranges
    return (each.with_aborted(partition.aborted) for each in ranges)


def _divided_by_size(
    partition: _PartitionPlan, count: int, options: ReadOptions
) -> list[SegmentRange]:
    view = partition.view
    target = min(options.split_bytes, max(1, -(-partition.size_bytes // count)))
    ranges = [
        each
        for part in partition.ranges
        for each in divide_by_bytes(segment_of(view, part), part, target)
    ]
    if len(ranges) < count:
        ranges = list(divide_evenly(view, ranges, count))
    records_max = options.max_records_per_partition
    if records_max is None:
        return ranges
    return [
        smaller
        for part in ranges
        for smaller in (
            [part]
            if part.offsets <= records_max
            else divide_by_offsets(segment_of(view, part), part, records_max)
        )
    ]
