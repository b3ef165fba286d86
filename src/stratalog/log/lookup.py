"""From an offset or a time to a file, a position and a record.

Both ways are Kafka's two steps: choose the segment, then let its sparse index say where a short
scan begins. Pass a `Trace` to see every comparison.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stratalog.format.entry import records_of
from stratalog.storage.trace import RecordStep

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.format.entry import EntryHeader
    from stratalog.format.record import Record
    from stratalog.log.segments import SegmentList
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


def locate_offset(
    segments: SegmentList, target: int, trace: Trace | None = None
) -> Location | None:
    """The first record at or above `target`: itself, or the next one if compaction removed it."""
    for slot in range(segments.slot_of(target, trace), len(segments)):
        segment = segments[slot]
        found = segment.seek(target, trace)
        while found.batch is not None:
            location = _first_record(segment, found.position, target, trace)
            if location is not None:
                return location
            found = segment.seek(found.batch.last_offset + 1)
    return None


def find_time(
    segments: SegmentList, timestamp: int, start_offset: int, trace: Trace | None = None
) -> OffsetAndTimestamp | None:
    """The earliest record at or above `start_offset` whose timestamp is `timestamp` or later.

    When timestamps are out of order this does not part old from new: later records may be older.
    """
    first = segments.slot_of_time(timestamp, trace)
    if first is None:
        return None
    for slot in range(first, len(segments)):
        if segments.largest_timestamp(slot).timestamp >= timestamp:
            hit = segments[slot].times.find(timestamp, start_offset, trace)
            if hit is not None:
                return OffsetAndTimestamp(hit.offset, hit.timestamp)
    return None


def find_max_timestamp(segments: SegmentList, start_offset: int) -> OffsetAndTimestamp | None:
    """The first record that has the largest timestamp of the log."""
    largest = [segments.largest_timestamp(slot).timestamp for slot in range(len(segments))]
    if max(largest) < 0:
        return None
    hit = segments[largest.index(max(largest))].times.find(max(largest), start_offset)
    return None if hit is None else OffsetAndTimestamp(hit.offset, hit.timestamp)


def _first_record(
    segment: SegmentView, position: int, target: int, trace: Trace | None
) -> Location | None:
    batch = segment.load_batch(position)
    for passed, record in enumerate(records_of(batch.buf, batch.entry, check_crc=False)):
        if record.offset >= target:
            if trace is not None:
                trace.add(RecordStep(position, passed, record.offset, record.timestamp))
            return Location(segment.path, position, batch.header, record)
    return None
