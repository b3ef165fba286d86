"""Reading a range of a log record by record; `column_reading` is the fast twin.

Both go through the parts of the log in order, let the damage policy decide at bad bytes, leave out
what the isolation level hides, and cut to the offset range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stratalog.errors import CorruptError, CorruptRecordError
from stratalog.format.entry import records_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.format.entry import EntryHeader
    from stratalog.format.record import Record
    from stratalog.log.damage import DamagePolicy
    from stratalog.log.isolation import AbortedRanges
    from stratalog.log.segments import SegmentList, SegmentPart
    from stratalog.storage.segment_view import LoadedBatch

NO_LIMIT: Final = (1 << 63) - 1


@dataclass(frozen=True)
class ReadPlan:
    """What is to be read, with every choice made."""

    start_offset: int
    end_offset: int
    """Exclusive."""
    aborted: AbortedRanges
    """Transactions to leave out; none for read_uncommitted."""
    damage: DamagePolicy
    bytes_max: int = NO_LIMIT
    """Stop before the batch that would exceed it; the first batch is returned all the same."""
    records_max: int = NO_LIMIT

    def hides(self, header: EntryHeader) -> bool:
        """Whether readers do not see this batch: markers, and data of aborted transactions."""
        if header.is_control:
            return True
        if not header.is_transactional or header.base_offset is None:
            return False
        return self.aborted.covers(header.producer_id, header.base_offset)


def read_records(segments: SegmentList, plan: ReadPlan) -> Iterator[Record]:
    """Every visible record in the range, one by one."""
    left = plan.records_max
    for path, batch in _visible_batches(segments, plan):
        if left <= 0:
            return
        for record in _records_of(path, batch, plan):
            if record.offset < plan.start_offset:
                continue
            if record.offset >= plan.end_offset or left <= 0:
                return
            left -= 1
            yield record


def _records_of(path: Path, batch: LoadedBatch, plan: ReadPlan) -> list[Record]:
    """All records of a batch, or none of it: a bad record spoils those before it too."""
    try:
        return list(records_of(batch.buf, batch.entry, check_crc=False))
    except CorruptRecordError as error:
        located = error.located(path, buffer_start=batch.position - batch.entry.position)
        plan.damage.resume_after_records(located, batch.entry.size_bytes)
        return []


def _visible_batches(segments: SegmentList, plan: ReadPlan) -> Iterator[tuple[Path, LoadedBatch]]:
    """Every visible batch that touches the range, within the limit on bytes."""
    bytes_left = plan.bytes_max
    is_first = True
    for part in segments.parts_from(plan.start_offset):
        for batch in _batches_of(part, plan):
            header = batch.header
            if header.base_offset is not None and header.base_offset >= plan.end_offset:
                return
            if plan.hides(header):
                continue
            bytes_left -= batch.entry.size_bytes
            if bytes_left < 0 and not is_first:
                return
            is_first = False
            yield part.segment.path, batch


def _batches_of(part: SegmentPart, plan: ReadPlan) -> Iterator[LoadedBatch]:
    """The batches of one segment from the range's start on, damage handled."""
    segment = part.segment
    position = segment.seek(plan.start_offset).position
    due_offset = max(plan.start_offset, segment.base_offset)
    while position < part.end_position:
        try:
            for batch in segment.batches(position, part.end_position):
                due_offset = batch.header.next_offset
                yield batch
            return
        except CorruptError as error:
            position = plan.damage.resume_after(part, error, due_offset=due_offset)
