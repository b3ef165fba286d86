"""Reading a range of a log record by record; `column_reading` is the fast twin.

Both go through the parts of the log in order, let the damage policy decide at bad bytes, leave out
what the isolation level hides, and cut to the offset range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stratalog.errors import CorruptBatchError, CorruptError, CorruptRecordError
from stratalog.format.entry import records_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from stratalog.format.entry import EntryHeader
    from stratalog.format.record import Record
    from stratalog.log.damage import DamagePolicy
    from stratalog.log.isolation import AbortedRanges
    from stratalog.log.segments import SegmentPart
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


def read_records(parts: Iterable[SegmentPart], plan: ReadPlan) -> Iterator[Record]:
    """Every visible record in the range, one by one. `parts` begin with the range's start."""
    left = plan.records_max
    if left <= 0:
        return
    for part, batch in _visible_batches(parts, plan):
        for record in _records_of(part.segment.path, batch, plan):
            if record.offset < part.start_offset:
                continue
            if record.offset >= plan.end_offset:
                return
            yield record
            left -= 1
            if left <= 0:
                return


def batches_of(part: SegmentPart, damage: DamagePolicy) -> Iterator[LoadedBatch]:
    """The batches of one part from its start on, damage handled."""
    segment = part.segment
    position = segment.seek(part.start_offset).position
    due_offset: int | None = None
    while position < part.end_position:
        try:
            for batch in segment.batches(position, part.end_position, due_offset=due_offset):
                _check_within(part, batch)
                due_offset = batch.header.next_offset
                yield batch
            return
        except CorruptError as error:
            due = max(part.start_offset, due_offset or 0)
            position = damage.resume_after(part, error, due_offset=due)


def _visible_batches(
    parts: Iterable[SegmentPart], plan: ReadPlan
) -> Iterator[tuple[SegmentPart, LoadedBatch]]:
    """Every visible batch that touches the range, within the limit on bytes."""
    bytes_left = plan.bytes_max
    is_first = True
    for part in parts:
        if part.start_offset >= plan.end_offset:
            return
        for batch in batches_of(part, plan.damage):
            header = batch.header
            if header.base_offset is not None and header.base_offset >= plan.end_offset:
                return
            if not plan.hides(header):
                bytes_left -= batch.entry.size_bytes
                if bytes_left < 0 and not is_first:
                    return
                is_first = False
                yield part, batch
            if header.next_offset >= plan.end_offset or (bytes_left <= 0 and not is_first):
                return


def _records_of(path: Path, batch: LoadedBatch, plan: ReadPlan) -> list[Record]:
    """All records of a batch, or none of it: a bad record spoils those before it too."""
    try:
        return list(records_of(batch.buf, batch.entry, check_crc=False))
    except CorruptRecordError as error:
        located = error.located(path, buffer_start=batch.position - batch.entry.position)
        plan.damage.resume_after_records(located, batch.entry.size_bytes)
        return []


def raise_for_batch(part: SegmentPart, position: int, due_offset: int) -> None:
    """Raise what reading the batch at `position` raises; it is known to be damaged."""
    for batch in part.segment.batches(position, part.end_position, due_offset=due_offset):
        _check_within(part, batch)
        return


def _check_within(part: SegmentPart, batch: LoadedBatch) -> None:
    """No CRC covers a base offset, but the batches behind it give a damaged one away."""
    if batch.header.next_offset > part.end_offset:
        raise CorruptBatchError(
            f"offset {batch.entry.offset} where all lie below {part.end_offset}",
            position=batch.position,
            path=part.segment.path,
            offsets=(batch.entry.offset, batch.header.next_offset - 1),
        )
