"""Logs that have bytes but no batch: whether that is normal, and if not, what to report.

A log ends with its last complete batch, so a reader sees such a log as empty. Usually it is: the
first batch is being written, or was when the broker died, or the file is preallocated. Any other
bytes were never a Kafka log, or are the remains of a corrupt one, and must be reported to the
reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import CorruptBatchError, CorruptError, command_line
from stratalog.log.reader import Skipped

if TYPE_CHECKING:
    from stratalog.format.batch import Peek
    from stratalog.log.partition_view import PartitionView
    from stratalog.storage.segment_view import SegmentView

_OFFSET_BYTES: Final = 8
_OFFSETS_OF_SEGMENT: Final = 1 << 31


class OnlyZeros(NamedTuple):
    """Space that was preallocated and not written yet, or data lost in a crash."""

    segment: SegmentView

    def __str__(self) -> str:
        path, size_bytes = self.segment.path, self.segment.size_bytes
        return (
            f"{path}: no records, all {size_bytes} bytes are zero; if there should be records, "
            f"they are lost ({_advice(self.segment)})"
        )


class NotALog(NamedTuple):
    """Reported for bytes that no broker writes at the beginning of a log."""

    segment: SegmentView
    reason: str

    @property
    def error(self) -> CorruptBatchError:
        return CorruptBatchError(self.reason, path=self.segment.path)

    @property
    def skipped(self) -> Skipped:
        """The entire segment, for readers that skip corrupt data."""
        segment = self.segment
        return Skipped(segment.path, 0, segment.size_bytes, segment.base_offset, None, self.reason)


def _advice(segment: SegmentView) -> str:
    return f"for details run {command_line('verify', segment.path.parent)}"


def no_batches_reason(view: PartitionView) -> OnlyZeros | NotALog | None:
    """Why a log with bytes has no batch; None if it has one, or if that is normal."""
    return view.retry_if_gone(lambda: _find_no_batches_reason(view))


def _find_no_batches_reason(view: PartitionView) -> OnlyZeros | NotALog | None:
    segment = view.segments.last
    if view.size_bytes > segment.size_bytes or view.segments.end.position:
        return None  # corruption in earlier segments is found when they are read
    if not segment.size_bytes:
        return None
    if segment.file.is_zero(0, segment.size_bytes):
        return OnlyZeros(segment)
    first = segment.file.peek(0)
    if _may_be_torn(segment, first):
        return None
    reason = f"no batch in {segment.size_bytes} bytes"
    if first is not None and first.is_plausible(segment.base_offset, segment.size_bytes):
        reason += f", {_reason_at_start(segment)}"
    else:
        reason += ": this is not a Kafka log, or its data is lost"
    return NotALog(segment, f"{reason}; {_advice(segment)}")


def _may_be_torn(segment: SegmentView, first: Peek | None) -> bool:
    """Whether these may be the first bytes of a batch that is not completely written yet."""
    if not _may_be_offset(segment.file.read(0, _OFFSET_BYTES), segment.base_offset):
        return False
    if first is None:
        return True  # too few bytes to know more
    is_complete = first.size_bytes <= segment.size_bytes
    return not is_complete and first.is_plausible(segment.base_offset, first.size_bytes)


def _may_be_offset(data: bytes, base_offset: int) -> bool:
    """Whether `data` may be the first bytes of an offset in a segment with this base offset."""
    lowest, highest = (
        int.from_bytes(data.ljust(_OFFSET_BYTES, rest), "big") for rest in (b"\x00", b"\xff")
    )
    return lowest < base_offset + _OFFSETS_OF_SEGMENT and highest >= base_offset


def _reason_at_start(segment: SegmentView) -> str:
    try:
        segment.load_batch(0)
    except CorruptError as error:
        return f"the first batch is corrupt: {error.reason}"
    return "the first was written only now"  # a second read will find it
