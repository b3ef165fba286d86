"""What a reader does at damaged bytes: stop with an error, or go on and say what was skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stratalog.errors import SegmentGoneError, StratalogError
from stratalog.format.entry import records_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stratalog.errors import CorruptError, CorruptRecordError
    from stratalog.log.segments import SegmentPart
    from stratalog.storage.segment_view import SegmentView


class Skipped(NamedTuple):
    """A run of bytes that a reader passed over."""

    path: Path
    position: int
    size_bytes: int
    first_offset: int
    """The offset that was due here; it and those up to `next_offset` may be lost."""
    next_offset: int | None
    """Base offset of the next good batch; None when the segment has no more."""
    reason: str

    def __str__(self) -> str:
        until = "the end of the segment" if self.next_offset is None else self.next_offset
        return (
            f"{self.path} at byte {self.position}: skipped {self.size_bytes} bytes, "
            f"offsets {self.first_offset} up to {until}: {self.reason}"
        )


class DamagePolicy:
    """Without a listener the first damage is raised; with one it is told and passed over.

    What looks like damage in a log that is being cut is none: `is_cut` says so, and then the
    segment is called gone.
    """

    def __init__(
        self,
        on_skip: Callable[[Skipped], None] | None = None,
        is_cut: Callable[[], bool] | None = None,
    ) -> None:
        self._on_skip = on_skip
        self._is_cut = is_cut

    def _check_not_cut(self, path: Path) -> None:
        if self._is_cut is not None and self._is_cut():
            raise SegmentGoneError(path)

    def resume_after_records(self, error: CorruptRecordError, size_bytes: int) -> int:
        """Where to go on after a batch whose CRC is right and whose records are not.

        The header can be believed, so the next batch begins `size_bytes` further on.
        """
        if error.path is not None:
            self._check_not_cut(error.path)
        if self._on_skip is None or error.path is None or error.offsets is None:
            raise error
        first, last = error.offsets
        self._on_skip(
            Skipped(error.path, error.position, size_bytes, first, last + 1, error.reason)
        )
        return error.position + size_bytes

    def resume_after(self, part: SegmentPart, error: CorruptError, *, due_offset: int) -> int:
        """Where to go on in this part of the log after the damage that `error` tells of.

        Junk behind the last batch of a segment does no harm when the next segment begins with the
        offset that is due: then nothing is missing, and nothing is said.
        """
        segment, end = part.segment, part.end_position
        self._check_not_cut(segment.path)
        position = error.position
        resume = self._declared_end(segment, position, end)
        if resume is None:
            resume = segment.next_valid_batch(position + 1, offset_min=due_offset)
        if resume is None and part.next_base == due_offset:
            return end
        if self._on_skip is None:
            raise error
        stop = end if resume is None else resume
        next_offset = None if resume is None else _first_offset(segment, resume)
        skipped_bytes = stop - position
        self._on_skip(
            Skipped(segment.path, position, skipped_bytes, due_offset, next_offset, error.reason)
        )
        return stop

    @staticmethod
    def _declared_end(segment: SegmentView, position: int, end: int) -> int | None:
        """The end that the damaged batch declares, if a good batch begins there.

        Tried first: a search byte by byte could fall for a batch stored inside a record's value.
        """
        batch = segment.file.peek(position)
        if batch is None or batch.size_bytes <= 0:
            return None
        declared = position + batch.size_bytes
        return declared if declared < end and segment.is_valid(declared) else None


def _first_offset(segment: SegmentView, position: int) -> int:
    """Of the good batch at `position`. A compressed set of old messages has to be opened for it."""
    batch = segment.load_batch(position)
    if batch.header.base_offset is not None:
        return batch.header.base_offset
    try:
        return next(records_of(batch.buf, batch.entry, check_crc=False)).offset
    except (StratalogError, StopIteration):
        return batch.entry.offset  # its last
