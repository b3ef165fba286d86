"""Every byte of a `.log` file, checked: whole batches in chunks, and the stretches that are none.

A chunk comes with the verdict on each of its batches. Between chunks lies damage: bytes where no
good batch begins. The walk finds its way across as readers do: by the length that a damaged batch
declares if a good one follows there, else by a search for the next good one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from stratalog.format.batch_table import BatchTable, Stop, scan_batches
from stratalog.format.peek import PEEK_BYTES, peek
from stratalog.format.soundness import SoundnessChecker, Verdict, reason_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stratalog.format.buffers import Buffer
    from stratalog.format.peek import Peek
    from stratalog.storage.segment_view import SegmentView

CHUNK_BYTES: Final = 4 << 20


class Chunk(NamedTuple):
    """Good batches, end to end. Valid until the next step of the walk."""

    buf: Buffer
    position: int
    """In the file, of the first byte of `buf`."""
    rows: NDArray[Any]
    """Positions in it are those in the file."""
    found: NDArray[Any]
    """The verdict on the records of each batch."""

    def in_buf(self, row: Any) -> Any:
        """The same batch, by its position in `buf`."""
        copy = row.copy()
        copy["position"] -= self.position
        return copy


class Damage(NamedTuple):
    """A stretch of bytes that holds no good batch."""

    position: int
    end: int
    reason: str
    is_tail: bool
    """No good batch follows in the file."""
    is_cut: bool
    """It looks like a batch of which the end is missing."""
    is_zero: bool


Step: TypeAlias = Chunk | Damage


class LogWalk:
    """One pass over a segment. Use it once."""

    def __init__(self, segment: SegmentView) -> None:
        self._segment = segment
        self._end = segment.size_bytes
        self._checker = SoundnessChecker()

    def __iter__(self) -> Iterator[Step]:
        position = 0
        while position < self._end:
            buf, table = self._load(position)
            if not buf:
                return  # the file has shrunk
            found = self._checker.check(buf, table)
            is_bad = found["verdict"] == Verdict.BAD_BATCH
            good = int(np.argmax(is_bad)) if is_bad.any() else len(table)
            if good:
                rows = table.rows[:good].copy()
                rows["position"] += position
                yield Chunk(buf, position, rows, found[:good])
            reason = ""
            if good < len(table):
                reason = reason_of(buf, table.rows[good]) or "the bytes changed while being read"
                position += int(table.rows["position"][good])
            else:
                position += table.end
                if not (table.stop is Stop.CORRUPT or (table.stop is Stop.PARTIAL and not good)):
                    continue  # it is whole, or is to be read once more from its start
                reason = table.reason
            damage = self._damage(position, reason)
            yield damage
            position = damage.end

    def _load(self, position: int) -> tuple[bytes, BatchTable]:
        """A chunk; larger if its first batch is."""
        file, left = self._segment.file, self._end - position
        buf = file.read(position, min(CHUNK_BYTES, left))
        table = scan_batches(buf)
        if not len(table) and table.stop is Stop.PARTIAL:
            batch = peek(buf)
            if batch is not None and len(buf) < batch.size_bytes <= left:
                buf = file.read(position, batch.size_bytes)
                table = scan_batches(buf)
        return buf, table

    def _damage(self, position: int, reason: str) -> Damage:
        segment, end = self._segment, self._end
        batch = peek(segment.file.read(position, PEEK_BYTES))
        declared = position + batch.size_bytes if batch is not None else -1
        resume: int | None = None
        if position < declared < end and segment.is_valid(declared):
            resume = declared
        else:
            resume = segment.next_valid_batch(position + 1, offset_min=segment.base_offset)
        is_tail = resume is None
        stop = end if resume is None else resume
        is_whole = position < declared <= end
        is_cut = is_tail and not reason and not is_whole and self._may_be_batch(batch)
        if not reason:
            reason = f"{end - position} bytes that are no whole batch"
        is_zero = is_tail and self._is_zero(position, end)
        return Damage(position, stop, reason, is_tail, is_cut, is_zero)

    def _may_be_batch(self, batch: Peek | None) -> bool:
        """Whether these may be the first bytes of one; so few tell nothing."""
        if batch is None:
            return True
        return batch.is_plausible(self._segment.base_offset, batch.size_bytes)

    def _is_zero(self, position: int, end: int) -> bool:
        while position < end:
            data = self._segment.file.read(position, min(CHUNK_BYTES, end - position))
            if not data:
                return True  # it shrank
            if data.count(0) != len(data):
                return False
            position += len(data)
        return True
