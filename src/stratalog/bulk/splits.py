"""The splits of a read: which bytes of which segments hold a range of offsets, and where to divide.

A segment range is a run of batches of one segment: its bytes, and the offsets wanted from them. A
split is what one task reads, one or several segment ranges in order. Both are small and picklable,
hold no open file, and can be found again by offset if a broker has replaced the segment meanwhile.

Bytes are divided between batches. The offset index has an entry every few kilobytes; each entry is
checked against the log (a batch with a valid CRC starts there) before it is used. If more ranges
are wanted than the index has entries, the headers of the batches show which offsets they hold, and
a range may start or end inside a batch: the batch is then decoded for both.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import CorruptError
from stratalog.format.batch import MAGIC_2
from stratalog.format.log_entry import records_of
from stratalog.log.reader import first_offset_at
from stratalog.log.tiered_view import RemoteSegmentView
from stratalog.storage.remote_path import RemotePath
from stratalog.storage.segment_view import SeekResult

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from stratalog.format.names import TopicPartition
    from stratalog.format.txn_index import AbortedTxn
    from stratalog.log.partition_view import PartitionView
    from stratalog.storage.log_file import FileIdentity
    from stratalog.storage.segment_view import SegmentView
    from stratalog.storage.tiered_store import StoredSegment

OPEN_COST_BYTES: Final = 4 << 20
"""What opening a segment costs a task, in bytes that it could read instead. Spark's own figure for
files: it keeps a task from collecting hundreds of tiny segments."""


class OffsetRange(NamedTuple):
    """Offsets to read of one partition."""

    start: int
    end: int
    """Exclusive."""

    @property
    def is_empty(self) -> bool:
        return self.end <= self.start


class PartitionRef(NamedTuple):
    """A partition when the read was planned."""

    directory: Path
    topic_partition: TopicPartition
    topic_id: uuid.UUID | None
    """A topic that is created later with the same name has another id."""


@dataclass(frozen=True)
class SegmentRange:
    """A run of batches of one segment."""

    place: PartitionRef
    segment: Path
    base_offset: int
    identity: FileIdentity | None
    """Identity of the segment's file."""
    start_position: int
    end_position: int
    start_offset: int
    end_offset: int
    """Exclusive: records from here on are not wanted."""
    limit_offset: int
    """No batch of these bytes reaches it."""
    aborted: tuple[AbortedTxn, ...] = ()
    """Transactions to leave out."""
    stored: StoredSegment | None = None
    """Where a remote segment of a tiered log is."""

    @property
    def topic_partition(self) -> TopicPartition:
        return self.place.topic_partition

    @property
    def size_bytes(self) -> int:
        return self.end_position - self.start_position

    @property
    def offsets(self) -> int:
        """How many offsets it has; in a compacted log more than there are records."""
        return self.end_offset - self.start_offset

    def with_aborted(self, aborted: Iterable[AbortedTxn]) -> SegmentRange:
        """The same range, with those of the transactions that it has records of."""
        own = tuple(
            txn
            for txn in aborted
            if txn.first_offset < self.end_offset and txn.last_offset >= self.start_offset
        )
        return replace(self, aborted=own) if own else self

    def __str__(self) -> str:
        return (
            f"{self.topic_partition} offsets {self.start_offset} to {self.end_offset} in "
            f"{self.segment.name} bytes {self.start_position} to {self.end_position}"
        )


@dataclass(frozen=True)
class Split:
    """What one task reads."""

    ranges: tuple[SegmentRange, ...]

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.ranges)

    def __str__(self) -> str:
        return "; ".join(map(str, self.ranges))


def offset_ranges(splits: Iterable[Split]) -> dict[TopicPartition, OffsetRange]:
    """For each partition, the range of offsets that the splits have of it."""
    found: dict[TopicPartition, OffsetRange] = {}
    for part in (part for split in splits for part in split.ranges):
        held = found.get(part.topic_partition, OffsetRange(part.start_offset, part.end_offset))
        found[part.topic_partition] = OffsetRange(
            min(held.start, part.start_offset), max(held.end, part.end_offset)
        )
    return found


@dataclass(frozen=True)
class PlanSummary:
    """How much of the subscribed topics a plan reads."""

    partitions: int
    partitions_read: int
    segments: int
    segments_read: int
    bytes_total: int
    bytes_read: int
    splits: int
    requests: int
    """Requests to stores: about one for every 16 MiB of a segment range, and two to open and check
    its file."""

    def __str__(self) -> str:
        share = self.bytes_read / self.bytes_total if self.bytes_total else 0
        requests = f", {self.requests} requests" if self.requests else ""
        return (
            f"{self.splits} splits read {self.bytes_read} of {self.bytes_total} bytes "
            f"({share:.2%}), {self.segments_read} of {self.segments} segments, "
            f"{self.partitions_read} of {self.partitions} partitions{requests}"
        )


@dataclass(frozen=True)
class SplitPlan:
    """All splits of a query."""

    splits: tuple[Split, ...]
    summary: PlanSummary


def requests_of(part: SegmentRange) -> int:
    """How many requests reading a range takes; none on a disk."""
    if not isinstance(part.segment, RemotePath):
        return 0
    from stratalog.storage.remote_file import ranges_of  # noqa: PLC0415  # not for local files

    return ranges_of(part.start_position, part.end_position) + 2


# -- from offsets to bytes


def segment_ranges(
    view: PartitionView, place: PartitionRef, wanted: OffsetRange, *, time_min_ms: int
) -> list[SegmentRange]:
    """The parts of segments that hold these offsets, oldest first. Segments whose records are all
    older than `time_min_ms` are left out."""
    found: list[SegmentRange] = []
    if wanted.is_empty:
        return found
    segments = view.segments
    for slot in range(segments.slot_of(wanted.start), len(segments)):
        if segments.bases[slot] >= wanted.end:
            break
        if time_min_ms > 0 and segments.is_older(slot, time_min_ms):
            continue
        part = _segment_range(view, place, slot, wanted)
        if part.size_bytes > 0:
            found.append(part)
    return found


def _segment_range(
    view: PartitionView, place: PartitionRef, slot: int, wanted: OffsetRange
) -> SegmentRange:
    segments = view.segments
    segment, base = segments[slot], segments.bases[slot]
    is_last = slot + 1 == len(segments)
    limit = segments.end.next_offset if is_last else segments.bases[slot + 1]
    end_position = segments.end.position if is_last else segment.size_bytes
    start, end = max(wanted.start, base), min(wanted.end, limit)
    if end < limit:
        end_position = min(end_position, _end_position(segment.seek(end), end, end_position))
    return SegmentRange(
        place=place,
        segment=segment.path,
        base_offset=segment.base_offset,
        identity=segment.identity,
        start_position=segment.seek(start).position if start > base else 0,
        end_position=end_position,
        start_offset=start,
        end_offset=end,
        limit_offset=limit,
        stored=segment.stored if isinstance(segment, RemoteSegmentView) else None,
    )


def segment_of(view: PartitionView, part: SegmentRange) -> SegmentView:
    """The segment of a range of this view."""
    return view.segments[view.segments.slot_of(part.start_offset)]


def _end_position(at: SeekResult, end: int, otherwise: int) -> int:
    """Where the last batch with an offset below `end` ends; `at` is the first to reach `end`."""
    if at.batch is None:
        return otherwise
    # The header of a compressed set of old messages has its last offset only; it may start below.
    if at.batch.magic == MAGIC_2 and at.batch.base_offset >= end:
        return at.position
    return at.position + at.batch.size_bytes


# -- dividing


def divide_by_bytes(
    segment: SegmentView, whole: SegmentRange, bytes_max: int
) -> Iterator[SegmentRange]:
    """Ranges of about equal size, none much larger than `bytes_max`, as far as the index allows."""
    count = -(-whole.size_bytes // bytes_max)
    step = whole.size_bytes / count
    left, target = whole, whole.start_position + step
    while target < whole.end_position:
        found = _indexed_batch(segment, int(target))
        if found is None or found[0] >= whole.end_position:
            break
        position, offset = found
        if position > left.start_position and left.start_offset < offset < left.end_offset:
            yield replace(left, end_position=position, end_offset=offset, limit_offset=offset)
            left = replace(left, start_position=position, start_offset=offset)
        target = max(target, position) + step
    yield left


def _indexed_batch(segment: SegmentView, target: int) -> tuple[int, int] | None:
    """Position and first offset of the first indexed batch at or after the position `target`."""
    index = segment.offset_index
    slot = bisect_left(range(index.entries), target, key=lambda slot: index.entry(slot)[2])
    if slot >= index.entries:
        return None
    found = segment.seek(index.entry(slot)[1])
    if found.batch is None:
        return None
    try:
        batch = segment.load_batch(found.position, found.batch.size_bytes)
        offset = batch.header.base_offset
        if offset is None:
            first = next(records_of(batch.buf, batch.entry, check_crc=False), None)
            offset = None if first is None else first.offset
    except CorruptError:
        return None
    return None if offset is None else (found.position, offset)


def divide_by_offsets(
    segment: SegmentView, whole: SegmentRange, offsets_max: int
) -> Iterator[SegmentRange]:
    """Ranges of at most this many offsets.

    Offsets without records, of which compaction may leave billions, are skipped.
    """
    left = whole
    while left.start_offset < whole.end_offset:
        end = min(left.start_offset + offsets_max, whole.end_offset)
        following = (
            segment.seek(end) if end < whole.end_offset else SeekResult(whole.end_position, None)
        )
        end_position = min(whole.end_position, _end_position(following, end, whole.end_position))
        if left.start_position < end_position:
            yield replace(left, end_position=end_position, end_offset=end)
        left = replace(
            left,
            start_position=max(left.start_position, following.position),
            start_offset=max(end, _first_offset(segment, following, end + offsets_max)),
        )
        if following.batch is None:
            if left.size_bytes > 0:  # corrupt: the task that reads it reports it
                yield left
            return


def _first_offset(segment: SegmentView, at: SeekResult, limit_offset: int) -> int:
    """An offset below which the batch has no record. The header of old messages has their last
    offset only; if that is not below `limit_offset`, there may be a gap before the messages, so
    they are read."""
    batch = at.batch
    if batch is None:
        return 0
    if batch.magic == MAGIC_2:
        return batch.base_offset
    if batch.last_offset < limit_offset:
        return 0
    try:
        return first_offset_at(segment, at.position)
    except CorruptError:
        return 0  # the task that reads it reports it


def divide_evenly(
    view: PartitionView, ranges: Sequence[SegmentRange], count: int
) -> Iterator[SegmentRange]:
    """`count` ranges with about as many offsets each; fewer ranges if there are fewer offsets.

    From the headers of all batches: the index had too few entries.
    """
    batches = [_batch_ranges(segment_of(view, each), each) for each in ranges]
    sizes = [sum(batch.end_offset - batch.start_offset for batch in each) for each in batches]
    total = max(1, sum(sizes))
    count = min(count, total)
    done = 0
    for whole, within, size in zip(ranges, batches, sizes, strict=True):
        share = (done + size) * count // total - done * count // total
        yield from _divide_into(whole, within, share)
        done += size


class _BatchRange(NamedTuple):
    """The offsets of one batch that are wanted."""

    position: int
    end_position: int
    start_offset: int
    end_offset: int
    """Exclusive."""


def _batch_ranges(segment: SegmentView, whole: SegmentRange) -> list[_BatchRange]:
    """The wanted offsets of each batch. Empty if the headers do not account for every byte in
    order: then the log is corrupt, and the task that reads the range reports it."""
    found: list[_BatchRange] = []
    next_offset, walked_to = 0, whole.start_position
    walk = segment.file.walk(
        whole.start_position, whole.end_position, offset_min=segment.base_offset
    )
    for position, batch in walk:
        # The header of a compressed set of old messages has its last offset only.
        first = batch.base_offset if batch.magic == MAGIC_2 else next_offset
        if first < next_offset or batch.last_offset >= whole.limit_offset:
            return []
        walked_to, next_offset = position + batch.size_bytes, batch.last_offset + 1
        start, end = max(first, whole.start_offset), min(next_offset, whole.end_offset)
        if start < end:
            found.append(_BatchRange(position, walked_to, start, end))
    return found if walked_to == whole.end_position else []


def _divide_into(
    whole: SegmentRange, batches: Sequence[_BatchRange], count: int
) -> Iterator[SegmentRange]:
    """`count` ranges with equal numbers of offsets that batches hold; fewer if there are fewer."""
    # The number of offsets before each batch, and of all.
    before = [0, *accumulate(batch.end_offset - batch.start_offset for batch in batches)]
    count = min(count, before[-1])
    if count <= 1:
        yield whole
        return
    left = replace(whole, start_position=batches[0].position)
    for number in range(1, count):
        index = before[-1] * number // count
        last, following = bisect_left(before, index) - 1, bisect_right(before, index) - 1
        offset = batches[following].start_offset + index - before[following]
        yield replace(left, end_position=batches[last].end_position, end_offset=offset)
        left = replace(left, start_position=batches[following].position, start_offset=offset)
    yield left


# -- packing


def group_partitions(
    partitions: Sequence[Sequence[SegmentRange]], count_max: int
) -> Iterator[list[SegmentRange]]:
    """The ranges of neighbouring partitions in groups of about equal size: one for each partition,
    but no more than `count_max`."""
    count = min(max(1, count_max), len(partitions))
    bytes_left = sum(part.size_bytes for ranges in partitions for part in ranges)
    held: list[SegmentRange] = []
    held_bytes = 0
    for following, ranges in zip(range(len(partitions) - 1, -1, -1), partitions, strict=True):
        held += ranges
        held_bytes += sum(part.size_bytes for part in ranges)
        is_full = held_bytes * count >= bytes_left
        if count > 1 and (is_full or following < count):
            yield held
            bytes_left, count = bytes_left - held_bytes, count - 1
            held, held_bytes = [], 0
    if held:
        yield held


def pack_splits(
    ranges: Iterable[SegmentRange], *, split_bytes: int, records_max: int | None
) -> list[Split]:
    """Splits of about `split_bytes`, with the ranges in their order.

    No range is larger; small ones share a task, even those of different partitions if
    `group_partitions` has put them together.
    """
    open_cost = min(OPEN_COST_BYTES, split_bytes // 16)
    splits: list[Split] = []
    held: list[SegmentRange] = []
    cost = offsets = 0
    for part in ranges:
        added = part.size_bytes + open_cost
        is_full = cost + added > split_bytes
        is_capped = records_max is not None and offsets + part.offsets > records_max
        if held and (is_full or is_capped):
            splits.append(Split(tuple(held)))
            held, cost, offsets = [], 0, 0
        held.append(part)
        cost += added
        offsets += part.offsets
    if held:
        splits.append(Split(tuple(held)))
    return splits


def shares(sizes: Sequence[int], wanted: int) -> Iterator[int]:
    """How many of about `wanted` tasks each size gets: its share, rounded, at least one.

    As Spark's Kafka connector does it.
    """
    total = sum(sizes)
    for size in sizes:
        yield max(1, int(size / total * wanted + 0.5)) if total else 1
