"""The log as a repair leaves it: the valid parts of its segments, and what copies add.

Copies fill holes: offsets that no valid batch of the log has. Of batches with the same offset the
newest leader epoch counts, then what most copies have, then the order of the copies. A batch is
taken only if its leader epoch fits between those around the hole, and if its copy has not parted
ways with the log, or with a copy of a newer epoch, before it (`lineage`): else it may be what a
follower had to truncate.

The first copy is the log itself: batches that are in a file of another name, as after segments were
renamed, or copied from a replica that rolled elsewhere.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np

from stratalog.format.batch import MAGIC_2, OFFSET_MAX
from stratalog.format.names import FileKind, FileState, segment_file_name
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


class FileBytes(NamedTuple):
    """Bytes of a file that become part of a segment."""

    path: Path
    start: int
    end: int
    header: bytes = b""
    """What to write in place of the first bytes."""


class SegmentRepair(NamedTuple):
    """A segment that is written anew."""

    name: str
    base_offset: int
    pieces: tuple[FileBytes, ...]
    is_new: bool
    """The partition has no such file: it comes from copies."""


class RestoredOffsets(NamedTuple):
    """Offsets that come back from a copy."""

    path: Path
    """The partition directory of the copy."""
    first_offset: int
    next_offset: int
    batches: int


class LostOffsets(NamedTuple):
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


class DivergingCopy(NamedTuple):
    """A copy that is of another history from an offset on."""

    path: Path
    offset: int
    leader_epoch: int
    """The leader epoch of the log, or of a copy with a newer epoch."""
    copy_epoch: int

    def __str__(self) -> str:
        return (
            f"{self.path} from offset {self.offset} on: its leader epoch is {self.copy_epoch} "
            f"there, not {self.leader_epoch}"
        )


class KnownFacts(NamedTuple):
    """What other files say of the log."""

    is_compacted: bool = False
    """Then offsets may be missing for good reason: only corrupt ranges are restored."""
    end_offset: int = 0
    """The log has had records up to here; 0 if nothing is known."""
    end_file: str = ""
    """Where that comes from."""


class PartitionCopy:
    """A copy of the partition."""

    def __init__(self, path: Path, segments: Sequence[ScannedSegment]) -> None:
        self.path = path
        self._segments = segments
        self.rows = joined([segment.rows for segment in self._segments])
        self.divergence: Divergence | None = None
        """From the log, or from a copy of a newer leader epoch."""

    @classmethod
    def of(cls, path: Path) -> Self:
        """What a partition directory has."""
        return cls(path, scan_partition(path))

    @classmethod
    def of_outside(cls, path: Path, segments: Sequence[ScannedSegment]) -> Self:
        """The batches of these segments that certainly belong in other files."""
        return cls(
            path,
            [
                replace(each, rows=each.outside[each.is_certain], next_base=None)
                for each in segments
            ],
        )

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

    def __init__(self, path: Path, copies: Sequence[PartitionCopy], facts: KnownFacts) -> None:
        self._facts = facts
        self._scan = scan_partition(path)
        self._own = PartitionCopy.of_outside(path, self._scan)
        self._copies = (self._own, *copies) if len(self._own.rows) else tuple(copies)
        self._rows = joined([segment.rows for segment in self._scan])
        known = read_epochs(path)
        self.log_names = {segment.path.name for segment in self._scan}
        self._other_rows = joined([copy.rows for copy in self._copies])
        self._known_epochs = known if fits(self._rows, known) else ()
        self.repairs: list[SegmentRepair] = []
        self.quarantined: list[CorruptBytes] = []
        self.corrected: list[ValidBatch] = []
        self.restored: list[RestoredOffsets] = []
        self.lost: list[LostOffsets] = []
        self.missing: list[LostOffsets] = []
        """Offsets between segments; perhaps nothing is lost."""
        self.foreign: list[tuple[str, str]] = []
        """Names of segments that are not part of the log, and why."""
        self.swaps: list[SegmentRepair] = []
        """Unchanged segments of an interrupted compaction, which are written if others are."""
        self.diverging = list(self._compare_copies())
        self._pieces: list[FileBytes] = []
        self._base_offset = -1
        self._is_changed = self._is_new = False
        self._epoch = -1
        self.next_offset = 0
        self._build(path)

    @property
    def has_epochs_of_checkpoint(self) -> bool:
        """Whether the leader-epoch-checkpoint fits the batches, those that are corrected too."""
        return bool(self._known_epochs)

    def range_after(self, offset: int) -> tuple[int, int]:
        """Where the segment that has this offset ends, and where the next one begins."""
        ends = [each.next_offset for each in self._scan if each.base_offset <= offset]
        bases = [each.base_offset for each in self._scan if each.base_offset > offset]
        return max(ends, default=offset), min(bases, default=OFFSET_MAX)

    def _compare_copies(self) -> Iterator[DivergingCopy]:
        """Copies of the newest leader epoch first: others have to agree with them."""
        histories = [self._rows]
        others = [copy for copy in self._copies if copy is not self._own]
        newest = {id(copy): int(copy.rows["leader_epoch"].max(initial=-1)) for copy in others}
        for copy in sorted(others, key=lambda each: -newest[id(each)]):
            found = [each for rows in histories if (each := divergence(rows, copy.rows))]
            if not found:
                histories.append(copy.rows)
                continue
            first = min(found)
            agreed = min(each.agreed_offset for each in found)
            copy.divergence = first._replace(agreed_offset=agreed)
            yield DivergingCopy(copy.path, first.offset, *first.epochs)

    def _build(self, path: Path) -> None:
        if self._scan:
            base = self._scan[0].base_offset
            start = int(self._own.rows["first_offset"].min(initial=base))
            self._restore_start(path, start)
            self.next_offset = max(self.next_offset, start)
        before = path
        for number, segment in enumerate(self._scan):
            if self._is_foreign(segment, is_first=not number):
                continue
            following = self._gap_end(segment)
            if self.next_offset < following:
                hole = _Hole(before, self.next_offset, following, _NO_SEGMENT, may_roll=True)
                self._fill_gap(hole)
                if self._is_foreign(segment, is_first=False):
                    continue
            before = segment.path
            self._close()
            self._begin(segment)
            self._add(segment)
        end = _Hole(path, self.next_offset, None, may_roll=True)
        self._fill(end, self._copies)
        self._close()
        self._note_lost_end(path)
        self.lost = [each for each in self.lost if not self._is_kept(each)]
        self.missing = [each for each in self.missing if not self._is_kept(each)]
        self._note_unused()

    def _gap_end(self, segment: ScannedSegment) -> int:
        """Where what is missing before a segment ends: its base offset, unless that is wrong and in
        the middle of a batch."""
        base, others = segment.base_offset, self._other_rows
        around = others[(others["first_offset"] < base) & (base <= others["last_offset"])]
        end = int(around["last_offset"].max(initial=base - 1)) + 1
        return min(end, int(segment.rows["first_offset"][0])) if len(segment.rows) else end

    def _is_foreign(self, segment: ScannedSegment, *, is_first: bool) -> bool:
        """Note a segment without a batch of its own, whose offsets begin in the segment before
        it, or whose batches belong to other segments."""
        if len(segment.rows):
            return False
        if segment.is_certain.any():
            reason = "its name is wrong: its batches have the offsets of other segments"
        elif is_first or segment.base_offset >= self.next_offset:
            return False
        else:
            reason = "it has no valid batch, and its base offset is in the segment before it"
        self.foreign.append((segment.path.name, reason))
        return True

    def _restore_start(self, path: Path, base_offset: int) -> None:
        """Deleting the start of a log raises the start of its first leader epoch."""
        start = self._known_epochs[0].start_offset if self._known_epochs else base_offset
        if start < base_offset:
            self.next_offset = start
            self._fill_gap(_Hole(path, start, base_offset, _NO_START, may_roll=True))

    def _begin(self, segment: ScannedSegment) -> None:
        self._base_offset, self._is_new = segment.base_offset, False
        if segment.base_offset < self.next_offset and len(segment.rows):
            reason = "its name is wrong: its base offset is in the segment before it"
            self.foreign.append((segment.path.name, reason))
            self._base_offset, self._is_new = self.next_offset, True
            self._is_changed = True

    def _add(self, segment: ScannedSegment) -> None:
        self.quarantined += segment.corrupt
        at = 0
        for corrupt in segment.corrupt:
            self._keep(segment, at, corrupt.place.position)
            self._is_changed = True
            hole = _Hole(
                segment.path,
                corrupt.first_offset,
                corrupt.next_offset,
                corrupt.place.reason,
                is_corrupt=True,
                may_roll=corrupt.next_offset is None,
            )
            self._fill(hole, self._copies)
            at = corrupt.place.position + corrupt.place.size_bytes
        self._keep(segment, at, segment.end_position)
        self.next_offset = max(self.next_offset, segment.next_offset, segment.base_offset)

    def _keep(self, segment: ScannedSegment, start: int, end: int) -> None:
        """The bytes of a segment from `start` to `end`, which are valid batches."""
        rows = segment.rows
        rows = rows[(rows["position"] >= start) & (rows["position"] < end)]
        if not len(rows):
            self._put(segment.path, start, end)
            return
        base = max(segment.base_offset, self.next_offset)
        first_expected = int(rows["first_offset"][0]) if start else base
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
            self._pieces.append(FileBytes(path, start, end))

    def _take(self, batch: ValidBatch) -> None:
        """One batch, with the base offset and leader epoch that it should have."""
        header = _header(batch) if batch.is_corrected else b""
        end = batch.position + batch.size_bytes
        self._pieces.append(FileBytes(batch.path, batch.position, end, header))
        self._is_changed = True

    # -- holes

    def _fill_gap(self, hole: _Hole) -> None:
        """A hole without corrupt bytes: where compaction may have left it, it stays."""
        if self._facts.is_compacted:
            self._fill(replace(hole, reason=""), (self._own,))
        else:
            self._fill(hole, self._copies)

    def _fill(self, hole: _Hole, copies: Sequence[PartitionCopy]) -> None:
        """Put batches of copies where offsets are missing, and note what is still lost."""
        at = hole.first_offset
        for copy, batch in self._chosen(hole, copies):
            self._note_lost(hole, at, batch.first_offset)
            if hole.may_roll and (batch.position == 0 or self._base_offset < 0):
                self._roll(copy.base_of(batch), at, batch)
            self._take(batch)
            self._note_restored(copy.path, batch)
            at, self._epoch = batch.last_offset + 1, batch.leader_epoch
        self.next_offset = max(self.next_offset, at)
        if hole.next_offset is not None or at == hole.first_offset:
            self._note_lost(hole, at, hole.next_offset)  # else copies end where the log did

    def _roll(self, base: int, start: int, batch: ValidBatch) -> None:
        """Begin a segment with a batch of a copy, which has it in a segment of this base offset."""
        if not start <= base <= batch.first_offset:
            # That of an old compressed set is its last one.
            base = batch.first_offset if batch.magic == MAGIC_2 else start
        if base > self._base_offset:
            self._close()
            self._base_offset, self._is_new = base, True

    def _chosen(
        self, hole: _Hole, copies: Sequence[PartitionCopy]
    ) -> Iterator[tuple[PartitionCopy, ValidBatch]]:
        """The batches to take."""
        end = OFFSET_MAX if hole.next_offset is None else hole.next_offset
        epoch_max = self._epoch_from(end)
        found = [
            (copy, each)
            for copy in copies
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
        has_epoch = hole.next_offset is not None and batch.magic == MAGIC_2
        known = epoch_at(self._known_epochs, batch.first_offset) if has_epoch else None
        return (self._epoch, epoch_max) if known is None else (known, known)

    def _fits(self, copy: PartitionCopy, batch: ValidBatch, epochs: tuple[int, int]) -> bool:
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
            self.restored.append(
                RestoredOffsets(path, batch.first_offset, batch.last_offset + 1, 1)
            )

    def _note_lost(self, hole: _Hole, first: int, following: int | None) -> None:
        if hole.reason and (following is None or first < following):
            found = self.lost if hole.is_corrupt else self.missing
            found.append(LostOffsets(hole.path, first, following, hole.reason))

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
            self.lost.append(LostOffsets(path, self.next_offset, end, reason))

    def _is_kept(self, lost: LostOffsets) -> bool:
        """Whether the log has all of these offsets after all, around a wrong base offset."""
        first, end = lost.first_offset, lost.next_offset
        if end is None:
            return False
        restored = np.array([each[1:3] for each in self.restored], np.int64).reshape(-1, 2)
        starts = np.concatenate((self._rows["first_offset"], restored[:, 0]))
        ends = np.concatenate((self._rows["last_offset"] + 1, restored[:, 1]))
        inside = np.minimum(ends, end) - np.maximum(starts, first)
        return int(inside.clip(0).sum()) >= end - first

    def _note_unused(self) -> None:
        """Batches out of order whose offsets nothing else has, or has noted yet."""
        rows = self._rows
        noted = [(each.first_offset, each.next_offset or OFFSET_MAX) for each in self.lost]
        noted += [(each.first_offset, each.next_offset or OFFSET_MAX) for each in self.missing]
        noted += [(each.first_offset, each.next_offset) for each in self.restored]
        for segment in self._scan:
            for row in segment.outside:
                batch = segment.batch(row)
                first, last = batch.first_offset, batch.last_offset
                is_kept = (rows["first_offset"] <= last) & (rows["last_offset"] >= first)
                is_noted = any(start <= first and last < end for start, end in noted)
                if not is_kept.any() and not is_noted:
                    reason = "their batch is out of order, and does not fit elsewhere"
                    self.lost.append(LostOffsets(segment.path, first, last + 1, reason))

    def _close(self) -> None:
        """The segment is complete."""
        if self._base_offset < 0:
            return
        name = segment_file_name(self._base_offset, FileKind.LOG)
        repair = SegmentRepair(name, self._base_offset, tuple(self._pieces), self._is_new)
        if self._is_changed:
            self.repairs.append(repair)
        elif any(piece.path.suffix == FileState.SWAP.value for piece in self._pieces):
            self.swaps.append(repair)
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
