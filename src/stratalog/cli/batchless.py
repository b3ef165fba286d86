"""Logs that have bytes and no batch: whether that is normal, and what to say where it is not.

A log ends with its last whole batch, so to a reader such a log is simply empty. Mostly it is: its
first batch is just being written, or was when the broker died; or its space is preallocated. Other
bytes were never a log of Kafka's, or are the remains of one, and whoever asked for its records
should hear of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import CorruptBatchError, CorruptError
from stratalog.log.reader import Skipped

if TYPE_CHECKING:
    from stratalog.format.batch import Peek
    from stratalog.log.partition_view import PartitionView
    from stratalog.storage.segment_view import SegmentView

_ADVICE: Final = "`stratalog verify` on it says more"
_OFFSET_BYTES: Final = 8
_OFFSETS_OF_SEGMENT: Final = 1 << 31
_CHUNK_BYTES: Final = 1 << 20


class Zeros(NamedTuple):
    """Space that was preallocated and not written to yet; or what a crash left of data."""

    segment: SegmentView

    def __str__(self) -> str:
        return (
            f"{self.segment.path} at byte 0: no records yet, its {self.segment.size_bytes} bytes "
            f"are zeros; if there should be records, they are lost ({_ADVICE})"
        )


class Junk(NamedTuple):
    """Bytes that no broker leaves at the beginning of a log."""

    segment: SegmentView
    reason: str

    @property
    def error(self) -> CorruptBatchError:
        return CorruptBatchError(self.reason, path=self.segment.path)

    @property
    def skipped(self) -> Skipped:
        """All of it, for readers that go on after damage."""
        segment = self.segment
        return Skipped(segment.path, 0, segment.size_bytes, segment.base_offset, None, self.reason)


def batchless(view: PartitionView) -> Zeros | Junk | None:
    """Why the log has no batch although it has bytes; None if it has one, or that is normal."""
    return view.retry_if_gone(lambda: _batchless(view))


def _batchless(view: PartitionView) -> Zeros | Junk | None:
    *before, segment = view.listing.segments
    if view.segments.end.position or any(each.size_bytes for each in before):
        return None  # damage before the last segment is met when it is read
    if not segment.size_bytes:
        return None
    if _is_zero(segment):
        return Zeros(segment)
    first = segment.file.peek(0)
    if _is_cut(segment, first):
        return None
    reason = f"no batch in all of its {segment.size_bytes} bytes"
    if first is not None and first.is_plausible(segment.base_offset, segment.size_bytes):
        reason += f", {_reason_at_start(segment)}"
    else:
        reason += ": this is not a log of Kafka's, or its data is lost"
    return Junk(segment, f"{reason}; {_ADVICE}")


def _is_cut(segment: SegmentView, first: Peek | None) -> bool:
    """Whether these may be the first bytes of a batch whose end is not written yet."""
    if not _may_be_offset(segment.file.read(0, _OFFSET_BYTES), segment.base_offset):
        return False
    if first is None:
        return True  # so few bytes tell nothing more
    is_whole = first.size_bytes <= segment.size_bytes
    return not is_whole and first.is_plausible(segment.base_offset, first.size_bytes)


def _may_be_offset(data: bytes, base_offset: int) -> bool:
    """Whether an offset that such a segment may have begins with `data`."""
    lowest, highest = (
        int.from_bytes(data.ljust(_OFFSET_BYTES, rest), "big") for rest in (b"\x00", b"\xff")
    )
    return lowest < base_offset + _OFFSETS_OF_SEGMENT and highest >= base_offset


def _reason_at_start(segment: SegmentView) -> str:
    try:
        segment.load_batch(0)
    except CorruptError as error:
        return f"the first: {error.reason}"
    return "the first was written only now"  # whoever asks once more will find it


def _is_zero(segment: SegmentView) -> bool:
    for position in range(0, segment.size_bytes, _CHUNK_BYTES):
        data = segment.file.read(position, min(_CHUNK_BYTES, segment.size_bytes - position))
        if data.count(0) != len(data):
            return False
    return True
