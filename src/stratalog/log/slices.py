"""Slices of a log's files, for sending batches to clients unchanged.

A slice is a range of one `.log` file. It begins with the batch that has the offset asked for, which
may begin below it, and may end inside a batch: clients drop an incomplete one at the end. The file
stays readable as long as the slice lives, whatever becomes of its name.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from stratalog.log.reader import LogReader
    from stratalog.log.segment_list import SegmentPart
    from stratalog.storage.log_file import LogFile
    from stratalog.storage.segment_view import SegmentView


class LogSlice(NamedTuple):
    """Batches in a file."""

    segment: SegmentView
    file: LogFile
    """The segment's. A segment of a reader whose list is refreshed may not find its file again."""
    position: int
    size_bytes: int
    stop_offset: int
    """Where the batches end that the slice is taken from."""
    is_cut: bool
    """Whether there are more of them."""

    @property
    def end_offset(self) -> int:
        """No whole batch of the slice reaches it; a bound, the batches may end earlier."""
        if not self.is_cut:
            return self.stop_offset
        end = self.position + self.size_bytes
        return min(self.stop_offset, _offset_bound(self.segment, end, self.stop_offset))


def find_slice(
    log: LogReader, offset: int, end_offset: int, bytes_max: int, *, is_first_whole: bool
) -> LogSlice | None:
    """The batches from `offset` up to `end_offset`, at most `bytes_max` bytes of one segment.

    If not even the first batch fits, the result is that batch with `is_first_whole`, else None. It
    is also None at the end. Raises OffsetOutOfRangeError.
    """
    if offset >= end_offset:
        return None
    for part in log.parts_from(offset):
        segment = part.segment
        file = segment.file
        found = segment.seek(part.start_offset)
        if found.batch is None:
            continue  # compaction removed the rest of this segment
        end = _end_position(part, end_offset, log.log_end_offset)
        size_bytes = min(bytes_max, end - found.position)
        if size_bytes < found.batch.size_bytes:
            if end - found.position < found.batch.size_bytes or not is_first_whole:
                return None
            size_bytes = found.batch.size_bytes
        stop = end_offset if part.next_base is None else min(end_offset, part.next_base)
        is_cut = found.position + size_bytes < end
        return LogSlice(segment, file, found.position, size_bytes, stop, is_cut)
    return None


def _end_position(part: SegmentPart, end_offset: int, log_end_offset: int) -> int:
    """Where the batches below `end_offset` end in this part."""
    if end_offset >= log_end_offset:
        return part.end_position
    if part.next_base is not None and end_offset >= part.next_base:
        return part.end_position
    return min(part.end_position, part.segment.seek(end_offset).position)


def _offset_bound(segment: SegmentView, position: int, otherwise: int) -> int:
    """An offset that batches before `position` do not reach: the next one that the index has."""
    index = segment.offset_index
    slot = bisect_left(range(index.entries), position, key=lambda slot: index.entry(slot)[2])
    return index.entry(slot)[1] + 1 if slot < index.entries else otherwise
