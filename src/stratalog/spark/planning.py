"""The splits of a query: what to read of which partition, cut and packed.

Reads file names, sizes, index entries and a few batch headers; never records, except inside the one
batch that a lookup by time ends in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratalog.log.reader import IsolationLevel
from stratalog.spark.cutting import (
    PartitionPlace,
    batch_spans,
    cut_by_bytes,
    cut_by_offsets,
    cut_into,
    piece_of,
    stretches,
)
from stratalog.spark.options import ReadOptions
from stratalog.spark.predicates import LONG_MAX, Predicate
from stratalog.spark.ranges import OffsetRange, batch_range, check_named
from stratalog.spark.splits import PlanSummary, SplitPlan, one_each, pack, shares
from stratalog.spark.topics import losing, open_logs, opened, subscribed, topic_id_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from stratalog.format.names import TopicPartition
    from stratalog.format.txn_index import AbortedTxn
    from stratalog.log.partition_view import PartitionView
    from stratalog.log.segments import SegmentList
    from stratalog.spark.cutting import Stretch
    from stratalog.spark.splits import Piece

EVERYTHING = Predicate()


@dataclass
class _Partition:
    """What is wanted of one partition."""

    topic_partition: TopicPartition
    view: PartitionView
    stretches: list[Stretch]
    aborted: list[AbortedTxn]

    @property
    def size_bytes(self) -> int:
        return sum(stretch.size_bytes for stretch in self.stretches)

    @property
    def offsets(self) -> int:
        """Of a compacted log more than there are records."""
        return sum(stretch.end_offset - stretch.start_offset for stretch in self.stretches)


def plan_read(
    options: Mapping[str, str] | ReadOptions, predicate: Predicate = EVERYTHING
) -> SplitPlan:
    """The plan of a batch query with these options: its splits, and a summary of what is pruned."""
    parsed = options if isinstance(options, ReadOptions) else ReadOptions.parse(options)
    return _plan(parsed.for_batch(), predicate)


def _plan(options: ReadOptions, predicate: Predicate) -> SplitPlan:
    logs = open_logs(options)
    partitions = subscribed(logs, options)
    check_named(options, partitions)
    views = opened(logs, partitions, options)
    return plan_ranges(
        views, lambda each, view: batch_range(each, view, options), options, predicate
    )


def plan_ranges(
    views: Mapping[TopicPartition, PartitionView],
    range_of: Callable[[TopicPartition, PartitionView], OffsetRange],
    options: ReadOptions,
    predicate: Predicate = EVERYTHING,
) -> SplitPlan:
    """The plan that reads these ranges. Views are closed again."""
    found = []
    for topic_partition, view in views.items():
        with view, losing(topic_partition, options):
            if predicate.admits(*topic_partition):
                wanted = range_of(topic_partition, view)
                if wanted.end >= view.log_end_offset and not options.skips_damage:
                    view.check_end()
                found.append(_look(topic_partition, view, wanted, options, predicate))
    pieces = _pieces(found, options)
    if options.min_partitions is not None:
        splits = one_each(pieces)
    else:
        splits = pack(
            pieces,
            split_bytes=options.split_bytes,
            records_max=options.max_records_per_partition,
        )
    read = [partition for partition in found if partition.stretches]
    summary = PlanSummary(
        partitions=len(views),
        partitions_read=len(read),
        segments=sum(len(view.segments) for view in views.values()),
        segments_read=sum(len(partition.stretches) for partition in read),
        bytes_total=sum(view.size_bytes for view in views.values()),
        bytes_read=sum(partition.size_bytes for partition in read),
        splits=len(splits),
    )
    return SplitPlan(tuple(splits), summary)


def _look(
    topic_partition: TopicPartition,
    view: PartitionView,
    wanted: OffsetRange,
    options: ReadOptions,
    predicate: Predicate,
) -> _Partition:
    return view.retry_if_gone(lambda: _look_once(topic_partition, view, wanted, options, predicate))


def _look_once(
    topic_partition: TopicPartition,
    view: PartitionView,
    wanted: OffsetRange,
    options: ReadOptions,
    predicate: Predicate,
) -> _Partition:
    wanted = _narrowed(view, wanted, options, predicate)
    found = list(stretches(view, wanted, time_min_ms=predicate.time_min_ms))
    aborted: list[AbortedTxn] = []
    if found and options.isolation is IsolationLevel.READ_COMMITTED:
        aborted = view.aborted_transactions(wanted.start, wanted.end)
    return _Partition(topic_partition, view, found, aborted)


def _narrowed(
    view: PartitionView, wanted: OffsetRange, options: ReadOptions, predicate: Predicate
) -> OffsetRange:
    """The range without what no record of can qualify."""
    start = max(wanted.start, predicate.offsets.low)
    end = min(wanted.end, predicate.offsets.high + 1)
    if start < end and predicate.time_min_ms > 0:
        first = view.find_time(predicate.time_min_ms)
        start = end if first is None else max(start, first.offset)
    disorder = options.timestamp_disorder_ms
    if start < end and disorder is not None and predicate.time_max_ms < LONG_MAX // 1000:
        # What is so much newer than all that is wanted has nothing wanted behind it.
        beyond = view.find_time(max(0, predicate.time_max_ms + 1 + disorder))
        end = end if beyond is None else min(end, beyond.offset)
    return OffsetRange(start, max(start, end))


def _pieces(partitions: list[_Partition], options: ReadOptions) -> Iterator[Piece]:
    wanted = options.min_partitions or 1
    counts = shares([partition.offsets for partition in partitions], wanted)
    for partition, count in zip(partitions, counts, strict=True):
        with partition.view, losing(partition.topic_partition, options):
            yield from _cut(partition, count, options)


def _cut(partition: _Partition, count: int, options: ReadOptions) -> Iterator[Piece]:
    """The pieces of one partition: none larger than a split, and `count` of them or more."""
    view = partition.view
    place = PartitionPlace(view.path, partition.topic_partition, topic_id_of(view.path))
    target = min(options.split_bytes, max(1, -(-partition.size_bytes // count)))
    segments = view.segments
    parts = [
        part
        for stretch in partition.stretches
        for part in cut_by_bytes(segments[stretch.slot], stretch, target)
    ]
    if len(parts) < count:
        parts = list(_divided(segments, parts, count))
    records_max = options.max_records_per_partition
    for part in parts:
        segment = segments[part.slot]
        if records_max is None or part.end_offset - part.start_offset <= records_max:
            yield piece_of(part, segment, place, partition.aborted)
            continue
        for smaller in cut_by_offsets(segment, part, records_max):
            yield piece_of(smaller, segment, place, partition.aborted)


def _divided(segments: SegmentList, parts: list[Stretch], count: int) -> Iterator[Stretch]:
    """`count` parts if there are so many offsets. The index had no more places to cut at."""
    spans = [batch_spans(segments[part.slot], part) for part in parts]
    sizes = [sum(span.end_offset - span.start_offset for span in each) for each in spans]
    total = max(1, sum(sizes))
    count = min(count, total)
    done = 0
    for part, within, size in zip(parts, spans, sizes, strict=True):
        share = (done + size) * count // total - done * count // total
        yield from cut_into(part, within, share)
        done += size
