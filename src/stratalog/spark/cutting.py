"""Where the bytes of a range of offsets lie, and where they may be cut.

Pieces of bytes are cut between batches. The offset index names one every few kilobytes; each is
checked against the log (a valid batch with the right CRC must begin there) before anything hangs on
it. Where more pieces are wanted than the index has entries, the headers of the batches say which
offsets they hold, and a piece may be a part of a batch: it is decoded for each of them.
Times leave out segments that hold nothing as new as what is wanted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from stratalog.errors import CorruptError
from stratalog.format.batch import MAGIC_2
from stratalog.format.entry import records_of
from stratalog.storage.segment_view import Seek

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from stratalog.format.names import TopicPartition
    from stratalog.format.txn_index import AbortedTxn
    from stratalog.log.reader import LogReader
    from stratalog.spark.ranges import OffsetRange
    from stratalog.storage.segment_view import SegmentView

from stratalog.spark.splits import Piece


@dataclass(frozen=True)
class Stretch:
    """The part of one segment that holds a range of offsets."""

    slot: int
    """Of the segment in its log."""
    start_position: int
    end_position: int
    start_offset: int
    end_offset: int
    limit_offset: int

    @property
    def size_bytes(self) -> int:
        return self.end_position - self.start_position


class PartitionPlace(NamedTuple):
    """Which partition pieces are of, and where it is."""

    directory: Path
    topic_partition: TopicPartition
    topic_id: uuid.UUID | None


class Cut(NamedTuple):
    """A batch that another piece may begin with."""

    position: int
    offset: int
    """The first of the batch."""


def stretches(view: LogReader, wanted: OffsetRange, *, time_min_ms: int) -> Iterator[Stretch]:
    """The segments that hold these offsets, oldest first, without those that are too old."""
    if wanted.is_empty:
        return
    segments = view.segments
    for slot in range(segments.slot_of(wanted.start), len(segments)):
        base = segments.bases[slot]
        if base >= wanted.end:
            return
        if time_min_ms > 0 and segments.largest_timestamp(slot).timestamp < time_min_ms:
            continue
        found = _stretch(view, slot, wanted)
        if found.size_bytes > 0:
            yield found


def _stretch(view: LogReader, slot: int, wanted: OffsetRange) -> Stretch:
    segments = view.segments
    segment, base = segments[slot], segments.bases[slot]
    is_last = slot + 1 == len(segments)
    limit = segments.end.next_offset if is_last else segments.bases[slot + 1]
    end_position = segments.end.position if is_last else segment.size_bytes
    start, end = max(wanted.start, base), min(wanted.end, limit)
    start_position = segment.seek(start).position if start > base else 0
    if end < limit:
        end_position = min(end_position, _end_position(segment.seek(end), end, end_position))
    return Stretch(slot, start_position, end_position, start, end, limit)


def _end_position(at: Seek, end: int, otherwise: int) -> int:
    """Behind the last batch with an offset below `end`; `at` is the first that reaches `end`."""
    if at.batch is None:
        return otherwise
    # A compressed set of old messages tells its last offset only, so it may begin below.
    if at.batch.magic == MAGIC_2 and at.batch.base_offset >= end:
        return at.position
    return at.position + at.batch.size_bytes


def cut_by_bytes(segment: SegmentView, whole: Stretch, bytes_max: int) -> Iterator[Stretch]:
    """Stretches of about the same size, none much larger than `bytes_max`, as far as there are
    places to cut."""
    count = -(-whole.size_bytes // bytes_max)
    step = whole.size_bytes / count
    left, target = whole, whole.start_position + step
    while target < whole.end_position:
        cut = _cut_at(segment, int(target))
        if cut is None or cut.position >= whole.end_position:
            break
        if cut.position > left.start_position and (
            left.start_offset < cut.offset < left.end_offset
        ):
            yield replace(
                left, end_position=cut.position, end_offset=cut.offset, limit_offset=cut.offset
            )
            left = replace(left, start_position=cut.position, start_offset=cut.offset)
        target = max(target, cut.position) + step
    yield left


def cut_by_offsets(segment: SegmentView, whole: Stretch, offsets_max: int) -> Iterator[Stretch]:
    """Stretches of at most so many offsets. A batch that is cut is read for both.

    Offsets without records, of which compaction may leave billions, are passed over.
    """
    left = whole
    while left.start_offset < whole.end_offset:
        end = min(left.start_offset + offsets_max, whole.end_offset)
        following = segment.seek(end) if end < whole.end_offset else Seek(whole.end_position, None)
        end_position = min(whole.end_position, _end_position(following, end, whole.end_position))
        if left.start_position < end_position:
            yield replace(left, end_position=end_position, end_offset=end)
        left = replace(
            left,
            start_position=max(left.start_position, following.position),
            start_offset=max(end, _first_offset(following)),
        )
        if following.batch is None:
            if left.size_bytes > 0:  # damage, and who knows what behind it: its reader has to tell
                yield left
            return


class BatchSpan(NamedTuple):
    """The offsets of one batch that are wanted."""

    position: int
    end_position: int
    start_offset: int
    end_offset: int
    """Exclusive."""


def batch_spans(segment: SegmentView, whole: Stretch) -> list[BatchSpan]:
    """What the headers of the batches say, from one walk over them.

    Empty where they do not account for every byte, or not in order: the log is corrupt there, which
    is for whoever reads it to report.
    """
    spans: list[BatchSpan] = []
    due, walked_to = 0, whole.start_position
    walk = segment.file.walk(
        whole.start_position, whole.end_position, offset_min=segment.base_offset
    )
    for position, batch in walk:
        # A compressed set of old messages tells its last offset only.
        first = batch.base_offset if batch.magic == MAGIC_2 else due
        if first < due or batch.last_offset >= whole.limit_offset:
            return []
        walked_to, due = position + batch.size_bytes, batch.last_offset + 1
        start, end = max(first, whole.start_offset), min(due, whole.end_offset)
        if start < end:
            spans.append(BatchSpan(position, walked_to, start, end))
    return spans if walked_to == whole.end_position else []


def cut_into(whole: Stretch, spans: Sequence[BatchSpan], count: int) -> Iterator[Stretch]:
    """So many stretches with the same number of offsets each, counting those that batches hold.

    Fewer if there are not so many offsets.
    """
    # How many offsets there are before each batch, and in all.
    before = [0, *accumulate(span.end_offset - span.start_offset for span in spans)]
    count = min(count, before[-1])
    if count <= 1:
        yield whole
        return
    left = replace(whole, start_position=spans[0].position)
    for number in range(1, count):
        index = before[-1] * number // count
        last, following = bisect_left(before, index) - 1, bisect_right(before, index) - 1
        cut = spans[following].start_offset + index - before[following]
        yield replace(left, end_position=spans[last].end_position, end_offset=cut)
        left = replace(left, start_position=spans[following].position, start_offset=cut)
    yield left


def _first_offset(at: Seek) -> int:
    """No record of the batch is below it. Old messages tell their last offset only."""
    batch = at.batch
    return batch.base_offset if batch is not None and batch.magic == MAGIC_2 else 0


def _cut_at(segment: SegmentView, target: int) -> Cut | None:
    """The first indexed batch at or behind this position."""
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
    return None if offset is None else Cut(found.position, offset)


def piece_of(
    stretch: Stretch,
    segment: SegmentView,
    place: PartitionPlace,
    aborted: list[AbortedTxn],
) -> Piece:
    """A stretch as a task gets it."""
    return Piece(
        directory=place.directory,
        topic=place.topic_partition.topic,
        partition=place.topic_partition.partition,
        segment=segment.path,
        base_offset=segment.base_offset,
        identity=segment.identity,
        start_position=stretch.start_position,
        end_position=stretch.end_position,
        start_offset=stretch.start_offset,
        end_offset=stretch.end_offset,
        limit_offset=stretch.limit_offset,
        aborted=tuple(
            txn
            for txn in aborted
            if txn.first_offset < stretch.end_offset and txn.last_offset >= stretch.start_offset
        ),
        topic_id=place.topic_id,
    )
