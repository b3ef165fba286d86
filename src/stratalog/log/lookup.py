"""From an offset or a time to a file, a position and a record.

Both ways are Kafka's two steps: choose the segment, then let its sparse index say where a short
scan begins. Pass a `Trace` to see every comparison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stratalog.errors import CorruptError
from stratalog.format.entry import records_of
from stratalog.log.damage import DamagePolicy
from stratalog.log.reading import raise_for_batch
from stratalog.storage.trace import RecordStep

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from stratalog.format.entry import EntryHeader
    from stratalog.format.record import Record
    from stratalog.log.segments import SegmentList, SegmentPart
    from stratalog.storage.segment_times import TimeHit
    from stratalog.storage.segment_view import SegmentView
    from stratalog.storage.trace import Trace


class Location(NamedTuple):
    """Where a record lies."""

    path: Path
    position: int
    """Of its batch in the file."""
    header: EntryHeader
    record: Record


class OffsetAndTimestamp(NamedTuple):
    """What Kafka's offsetsForTimes answers."""

    offset: int
    timestamp: int


def locate_offset(parts: Iterable[SegmentPart], trace: Trace | None = None) -> Location | None:
    """The first record at or above the start of the parts: the one asked for, or the next one if
    compaction removed it."""
    for part in parts:
        segment, due_offset = part.segment, part.start_offset
        found = segment.seek(due_offset, trace)
        while found.batch is not None:
            if found.batch.last_offset >= part.end_offset:
                raise_for_batch(part, found.position, segment.base_offset)
            location = _first_record(segment, found.position, part.start_offset, trace)
            if location is not None:
                return location
            due_offset = found.batch.last_offset + 1
            found = segment.seek(due_offset)
        _check_stop(part, found.position, due_offset)
    return None


def _check_stop(part: SegmentPart, position: int, due_offset: int) -> None:
    """Raise if the batches of this part end at damage that may have held the record."""
    try:
        for _ in part.segment.batches(position, part.end_position, due_offset=due_offset):
            return
    except CorruptError as error:
        DamagePolicy().resume_after(part, error, due_offset=due_offset)


def find_time(
    segments: SegmentList, timestamp: int, start_offset: int, trace: Trace | None = None
) -> OffsetAndTimestamp | None:
    """The earliest record at or above `start_offset` whose timestamp is `timestamp` or later.

    When timestamps are out of order this does not part old from new: later records may be older.
    """
    first = segments.slot_of_time(timestamp, trace)
    if first is None:
        return None
    # Segments below the start may be there still; they need not be opened.
    for slot in range(max(first, segments.slot_of(start_offset)), len(segments)):
        if segments.largest_timestamp(slot).timestamp >= timestamp:
            hit = segments[slot].times.find(timestamp, start_offset, trace)
            if hit is not None:
                return OffsetAndTimestamp(hit.offset, hit.timestamp)
    return None


def find_max_timestamp(segments: SegmentList, start_offset: int) -> OffsetAndTimestamp | None:
    """The first record at or above `start_offset` that has the largest timestamp of all those."""
    largest = [segments.largest_timestamp(slot).timestamp for slot in range(len(segments))]
    found: OffsetAndTimestamp | None = None
    for slot in sorted(range(len(segments)), key=lambda slot: -largest[slot]):
        if largest[slot] < 0 or (found is not None and largest[slot] < found.timestamp):
            break
        times = segments[slot].times
        # The newest may lie below the start, or have left an empty batch behind.
        hit = times.find(largest[slot], start_offset) or times.find_newest(start_offset)
        if hit is not None and (found is None or _is_newer(hit, found)):
            found = OffsetAndTimestamp(hit.offset, hit.timestamp)
    return found


def _is_newer(hit: TimeHit, found: OffsetAndTimestamp) -> bool:
    """Of equal timestamps the first counts."""
    return (hit.timestamp, -hit.offset) > (found.timestamp, -found.offset)


def _first_record(
    segment: SegmentView, position: int, target: int, trace: Trace | None
) -> Location | None:
    batch = segment.load_batch(position)
    try:
        for passed, record in enumerate(records_of(batch.buf, batch.entry, check_crc=False)):
            if record.offset >= target:
                if trace is not None:
                    trace.add(RecordStep(position, passed, record.offset, record.timestamp))
                return Location(segment.path, position, batch.header, record)
    except CorruptError as error:
        raise error.located(segment.path, buffer_start=position) from None
    return None
