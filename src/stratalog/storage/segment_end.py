"""Where a segment ends that somebody may be writing, or was writing when the power went.

The index is read before the size, so on a live log it never points past the bytes seen. Damage in
the middle is passed over: what follows it is part of the log still.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stratalog.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.storage.segment_view import LoadedBatch, SegmentView


class SegmentEnd(NamedTuple):
    """Where the valid batches of a segment end."""

    position: int
    next_offset: int


def find_end(view: SegmentView) -> SegmentEnd:
    """The end of the last whole, valid batch. Lets the view see what the file has by now.

    Looks behind the last index entry first, then behind ever earlier ones.
    """
    last = view.offset_index.last()
    view.size_bytes = max(view.size_bytes, view.file.size_bytes)
    if last is not None:
        view.seek(last[1])  # replaces the index if the log contradicts it
    index, stop = view.offset_index, view.size_bytes
    slot, back = index.entries - 1, 1
    while True:
        start = view.seek(index.entry(slot)[1]).position if slot >= 0 else 0
        found = _last_valid_batch(view, start, stop)
        if found is not None:
            return SegmentEnd(found.position + found.entry.size_bytes, found.header.next_offset)
        if slot < 0:
            return SegmentEnd(0, view.base_offset)
        slot, back, stop = max(-1, slot - back), back * 2, min(start, stop)


def _last_valid_batch(view: SegmentView, position: int, stop: int) -> LoadedBatch | None:
    """The last good batch that begins in [position, stop), whatever lies between.

    One whose base offset is damaged has a right CRC all the same. What follows gives it away when
    it fits the batch before.
    """
    before, found = None, None
    for batch in _good_batches(view, position, stop):
        if found is None or batch.entry.offset >= found.header.next_offset:
            before, found = found, batch
        elif before is None or batch.entry.offset >= before.header.next_offset:
            found = batch
    return found


def _good_batches(view: SegmentView, position: int, stop: int) -> Iterator[LoadedBatch]:
    """Every batch with a right CRC that begins in [position, stop), in any order of offsets."""
    resume: int | None = position
    while resume is not None and resume < stop:
        try:
            yield from view.batches(resume, stop, is_ordered=False)
            return
        except CorruptError as error:
            start = error.position + 1
            resume = view.next_valid_batch(start, offset_min=view.base_offset)
