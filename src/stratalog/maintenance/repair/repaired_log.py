"""The log as a repair leaves it: the valid parts of its segments, and what copies add.

Copies fill holes: offsets that no valid batch of the log has. Of batches with the same offset the
newest leader epoch counts, then what most copies have, then the order of the copies. A batch is
taken only if its leader epoch fits between those around the hole, and if its copy has not parted
ways with the log, or with a copy of a newer epoch, before it (`lineage`): else it may be what a
follower had to truncate.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from stratalog.format.batch import OFFSET_MAX
from stratalog.format.names import FileKind, segment_file_name
from stratalog.maintenance.repair.lineage import divergence, fits
from stratalog.maintenance.repair.valid_batches import epoch_at, joined, read_epochs, scan_partition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from stratalog.maintenance.repair.lineage import Divergence
    from stratalog.maintenance.repair.valid_batches import CorruptBytes, ScannedSegment, ValidBatch

_LENGTH_AT: Final = 8
_NO_SEGMENT: Final = "no segment has them: compaction leaves such gaps, but so does a missing file"
_NO_START: Final = (
    "leader-epoch-checkpoint starts there: a file is missing, or its deletion was interrupted"
)


class Piece(NamedTuple):
    """Bytes of a file that become part of a segment."""

    path: Path
    start: int
    end: int
    header: bytes = b""
    """What to write in place of the first bytes."""


class Restored(NamedTuple):
    """Offsets that come back from a copy."""

    path: Path
    """The partition directory of the copy."""
    first_offset: int
    next_offset: int
    batches: int


class Lost(NamedTuple):
    """Offsets that no valid batch has. In a compacted topic some of them may never have had a
    record."""

    path: Path
    first_offset: int
    next_offset: int | None
    """None: up to the end of the log, which is not known."""
    reason: str

    def __str__(self) -> str:
        until = "on" if self.next_offset is None else f"to {self.next_offset - 1}"
        return f"offsets {self.first_offset} {until}: {self.reason}"


class Diverging(NamedTuple):
    """A copy that is of another history from an offset on."""

    path: Path
    offset: int
    leader_epoch: int
    """Of the log, or of a copy of a newer epoch."""
    copy_epoch: int

    def __str__(self) -> str:
        return (
            f"{self.path} from offset {self.offset} on: its leader epoch is {self.copy_epoch} "
            f"there, not {self.leader_epoch}"
        )


class SegmentRepair(NamedTuple):
    """A segment that is written anew."""

    name: str
    base_offset: int
    pieces: tuple[Piece, ...]
    is_new: bool
    """The partition has no such file: it comes from copies."""


class KnownFacts(NamedTuple):
    """What other files say of the log."""

    is_compacted: bool = False
    """Then offsets may be missing for good reason: only corrupt ranges are restored."""
    end_offset: int = 0
    """The log has had records up to here; 0 if nothing is known."""
    end_file: str = ""
    """Where that comes from."""


class Copy:
    """A copy of the partition."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._segments = scan_partition(path)
        self.rows = joined([segment.rows for segment in self._segments])
        self.divergence: Divergence | None = None
        """From the log, or from a copy of a newer leader epoch."""

    def between(self, first_offset: int, next_offset: int) -> Iterator[ValidBatch]:
        for segment in self._segments:
            if (segment.next_base or OFFSET_MAX) > first_offset:
                yield from segment.between(first_offset, next_offset)

    def base_of(self, batch: ValidBatch) -> int:
        """Base offset of the segment that the batch is in."""
        return next(each.base_offset for each in self._segments if each.path == batch.path)

    def is_trusted(self, batch: ValidBatch, epochs: tuple[int, int]) -> bool:
        """Whether a batch is certainly of the same history as the log, which has these epochs
        before and after it."""
        if self.divergence is None or batch.last_offset < self.divergence.agreed_offset:
            return True
        is_same_epoch = epochs == (batch.leader_epoch, batch.leader_epoch)
        return is_same_epoch and batch.last_offset < self.divergence.offset


@dataclass(frozen=True)
class _Hole:
    """Offsets that the log lacks."""

    path: Path
    first_offset: int
    next_offset: int | None
    """None: the end of the log."""
    reason: str = ""
    is_corrupt: bool = False
    """There are corrupt bytes. Else it may be that nothing is lost."""
    may_roll: bool = False
    """Segments of a copy may begin here: between two segments, or at the end of the log."""


class RepairedLog:
    """What is kept, restored and lost, segment by segment."""

    def __init__(self, path: Path, copies: Sequence[Copy], facts: KnownFacts) -> None:
        self._copies = copies
        self._facts = facts
        self._scan = scan_partition(path)
        self._rows = joined([segment.rows for segment in self._scan])
        known = read_epochs(path)
        self._known_epochs = known if fits(self._rows, known) else ()
        self.repairs: list[SegmentRepair] = []
        self.quarantined: list[CorruptBytes] = []
        self.corrected: list[ValidBatch] = []
        self.restored: list[Restored] = []
        self.lost: list[Lost] = []
        self.missing: list[Lost] = []
        """Offsets between segments; perhaps nothing is lost."""
        self.diverging = list(self._compare_copies())
        self._pieces: list[Piece] = []
        self._base_offset = 0
        self._is_changed = self._is_new = False
        self._epoch = -1
        self.next_offset = 0
        self._build(path)

    @property
    def has_epochs_of_checkpoint(self) -> bool:
        """Whether the leader-epoch-checkpoint fits the batches, those that are corrected too."""
        return bool(self._known_epochs)

    def _compare_copies(self) -> Iterator[Diverging]:
        """Copies of the newest leader epoch first: others have to agree with them."""
        histories = [self._rows]
        newest = {id(copy): int(copy.rows["leader_epoch"].max(initial=-1)) for copy in self._copies}
        for copy in sorted(self._copies, key=lambda each: -newest[id(each)]):
            found = [each for rows in histories if (each := divergence(rows, copy.rows))]
            if not found:
                histories.append(copy.rows)
                continue
            first = min(found)
            agreed = min(each.agreed_offset for each in found)
            copy.divergence = first._replace(agreed_offset=agreed)
            yield Diverging(copy.path, first.offset, *first.epochs)

    def _build(self, path: Path) -> None:
        if self._scan:
            self._restore_start(path, self._scan[0].base_offset)
        for number, segment in enumerate(self._scan):
            if number and self.next_offset < segment.base_offset:
                before = self._scan[number - 1]
                self._fill_gap(
                    _Hole(
                        before.path,
                        self.next_offset,
                        segment.base_offset,
                        _NO_SEGMENT,
                        may_roll=True,
                    )
                )
            self._close()
            self._add(segment)
        end = _Hole(path, self.next_offset, None, may_roll=True)
        self._fill(end)
        self._close()
        self._note_lost_end(path)

    def _restore_start(self, path: Path, base_offset: int) -> None:
        """Deleting the start of a log raises the start of its first leader epoch."""
        start = self._known_epochs[0].start_offset if self._known_epochs else base_offset
        if start < base_offset:
            self.next_offset = start
            self._fill_gap(_Hole(path, start, base_offset, _NO_START, may_roll=True))

    def _add(self, segment: ScannedSegment) -> None:
        self._base_offset, self._is_new = segment.base_offset, False
        self.quarantined += segment.corrupt
        at = 0
        for corrupt in segment.corrupt:
            self._keep(segment, at, corrupt.position)
            self._is_changed = True
            hole = _Hole(
                segment.path,
                corrupt.first_offset,
                corrupt.next_offset,
                corrupt.reason,
                is_corrupt=True,
                may_roll=corrupt.next_offset is None,
            )
            self._fill(hole)
            at = corrupt.position + corrupt.size_bytes
        self._keep(segment, at, segment.end_position)
        self.next_offset = max(self.next_offset, segment.next_offset, segment.base_offset)

    def _keep(self, segment: ScannedSegment, start: int, end: int) -> None:
        """The bytes of a segment from `start` to `end`, which are valid batches."""
        rows = segment.rows
        rows = rows[(rows["position"] >= start) & (rows["position"] < end)]
        if not len(rows):
            self._put(segment.path, start, end)
            return
        first_expected = int(rows["first_offset"][0]) if start else segment.base_offset
        expected = np.concatenate(([first_expected], rows["last_offset"][:-1] + 1))
        is_after_gap = (rows["first_offset"] > expected) & bool(self._copies)
        at = start
        for number in np.flatnonzero(is_after_gap | rows["is_corrected"]).tolist():
            position = int(rows["position"][number])
            self._put(segment.path, at, position)
            at = position
            if is_after_gap[number]:
                self._epoch = int(rows["leader_epoch"][number - 1]) if number else self._epoch
                first = int(rows["first_offset"][number])
                self._fill_gap(_Hole(segment.path, int(expected[number]), first))
            if rows["is_corrected"][number]:
                batch = segment.batch(rows[number])
                self.corrected.append(batch)
                self._take(batch)
                at += batch.size_bytes
        self._put(segment.path, at, end)
        self._epoch = int(rows["leader_epoch"][-1])
        self.next_offset = int(rows["last_offset"][-1]) + 1

    def _put(self, path: Path, start: int, end: int) -> None:
        if end > start:
            self._pieces.append(Piece(path, start, end))

    def _take(self, batch: ValidBatch) -> None:
        """One batch, with the base offset and leader epoch that it should have."""
        header = _header(batch) if batch.is_corrected else b""
        end = batch.position + batch.size_bytes
        self._pieces.append(Piece(batch.path, batch.position, end, header))
        self._is_changed = True

    # -- holes

    def _fill_gap(self, hole: _Hole) -> None:
        """A hole without corrupt bytes: where compaction may have left it, it stays."""
        if not self._facts.is_compacted:
            self._fill(hole)

    def _fill(self, hole: _Hole) -> None:
        """Put batches of copies where offsets are missing, and note what is still lost."""
        at = hole.first_offset
        for copy, batch in self._chosen(hole):
            self._note_lost(hole, at, batch.first_offset)
            if batch.position == 0 and hole.may_roll:
                base = copy.base_of(batch)
                self._close()
                self._base_offset = base if base >= at else batch.first_offset
                self._is_new = True
            self._take(batch)
            self._note_restored(copy.path, batch)
            at, self._epoch = batch.last_offset + 1, batch.leader_epoch
        self.next_offset = max(self.next_offset, at)
        if hole.next_offset is not None or at == hole.first_offset:
            self._note_lost(hole, at, hole.next_offset)  # else copies end where the log did

    def _chosen(self, hole: _Hole) -> Iterator[tuple[Copy, ValidBatch]]:
        """The batches to take."""
        end = OFFSET_MAX if hole.next_offset is None else hole.next_offset
        epoch_max = self._epoch_from(end)
        found = [
            (copy, each)
            for copy in self._copies
            for each in copy.between(hole.first_offset, end)
            if self._fits(copy, each, self._epochs_around(each, hole, epoch_max))
        ]
        votes = Counter(_identity(batch) for _, batch in found)
        found.sort(
            key=lambda each: (
                each[1].first_offset,
                -each[1].leader_epoch,
                -votes[_identity(each[1])],
            )
        )
        at, epoch = hole.first_offset, self._epoch
        for copy, batch in found:
            if batch.first_offset >= at and batch.leader_epoch >= epoch:
                yield copy, batch
                at, epoch = batch.last_offset + 1, batch.leader_epoch

    def _epoch_from(self, offset: int) -> int:
        """Leader epoch of the first batch of the log from an offset on: no earlier one has a newer
        epoch."""
        at = int(np.searchsorted(self._rows["first_offset"], offset))
        return int(self._rows["leader_epoch"][at]) if at < len(self._rows) else OFFSET_MAX

    def _epochs_around(self, batch: ValidBatch, hole: _Hole, epoch_max: int) -> tuple[int, int]:
        """The smallest and the largest leader epoch that fits there. A checkpoint says nothing of
        what the log never had, after its end."""
        known = (
            None if hole.next_offset is None else epoch_at(self._known_epochs, batch.first_offset)
        )
        return (self._epoch, epoch_max) if known is None else (known, known)

    def _fits(self, copy: Copy, batch: ValidBatch, epochs: tuple[int, int]) -> bool:
        low, high = epochs
        return low <= batch.leader_epoch <= max(low, high) and copy.is_trusted(batch, epochs)

    # -- what comes of it

    def _note_restored(self, path: Path, batch: ValidBatch) -> None:
        last = self.restored[-1] if self.restored else None
        if last is not None and last.path == path and last.next_offset == batch.first_offset:
            self.restored[-1] = last._replace(
                next_offset=batch.last_offset + 1, batches=last.batches + 1
            )
        else:
            self.restored.append(Restored(path, batch.first_offset, batch.last_offset + 1, 1))

    def _note_lost(self, hole: _Hole, first: int, following: int | None) -> None:
        if hole.reason and (following is None or first < following):
            found = self.lost if hole.is_corrupt else self.missing
            found.append(Lost(hole.path, first, following, hole.reason))

    def _note_lost_end(self, path: Path) -> None:
        """A checkpoint may know of records after the last valid batch."""
        end, file = self._facts.end_offset, self._facts.end_file
        if end <= self.next_offset:
            return
        last = self.lost[-1] if self.lost else None
        if last is not None and (last.next_offset or OFFSET_MAX) > self.next_offset:
            known = max(end, last.next_offset or 0)
            self.lost[-1] = last._replace(next_offset=known)
        else:
            reason = f"the log ends before them, but {file} is past them"
            self.lost.append(Lost(path, self.next_offset, end, reason))

    def _close(self) -> None:
        """The segment is complete."""
        if self._is_changed:
            name = segment_file_name(self._base_offset, FileKind.LOG)
            pieces = tuple(self._pieces)
            self.repairs.append(SegmentRepair(name, self._base_offset, pieces, self._is_new))
        self._pieces = []
        self._is_changed = False


def _identity(batch: ValidBatch) -> tuple[int, int, int, int]:
    return batch.first_offset, batch.last_offset, batch.leader_epoch, batch.crc


def _header(batch: ValidBatch) -> bytes:
    """The first fields of a batch: base offset, length, leader epoch."""
    length = batch.size_bytes - _LENGTH_AT - 4
    return b"".join(
        number.to_bytes(size, signed=True)
        for number, size in ((batch.first_offset, 8), (length, 4), (batch.leader_epoch, 4))
    )
