"""What to do about a partition: decided from its files, and shown before anything is changed.

* Bytes of a segment without a valid batch are left out; the segment goes on after them. If copies
  of the partition are given, their valid batches take the place of what is missing: by offset, of
  the newest leader epoch, and by majority where copies differ.
* A torn tail is truncated.
* Indexes, transaction indexes, producer snapshots and leader epochs that are missing, wrong, or
  about bytes that change, are rebuilt.

A plan is a value. `files` carries it out, and keeps every file that it replaces.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import InvalidArgumentError, StratalogError
from stratalog.format.names import FileKind, RootFile, segment_file_name
from stratalog.log.partition_view import identity_of
from stratalog.maintenance.repair.valid_batches import OFFSET_MAX, scan_partition
from stratalog.maintenance.verify.directory import verify_partition
from stratalog.maintenance.verify.findings import Fault, Severity
from stratalog.storage.log_dir_scan import read_offset_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from stratalog.format.names import TopicPartition
    from stratalog.maintenance.repair.valid_batches import (
        CorruptBytes,
        ScannedSegment,
        ValidBatch,
    )
    from stratalog.maintenance.verify.findings import Finding

_INDEXES: Final = (".index", ".timeindex", ".txnindex")
_REBUILDS: Final = {Fault.BAD_SNAPSHOT.code, Fault.SNAPSHOT_MISMATCH.code}
_EPOCHS: Final = {Fault.BAD_EPOCHS.code, Fault.EPOCH_MISMATCH.code, Fault.EPOCHS_PAST_END.code}
_CHECKPOINTS: Final = (RootFile.RECOVERY_POINTS, RootFile.HIGH_WATERMARKS)


class Piece(NamedTuple):
    """Bytes of a file that become part of a segment."""

    path: Path
    start: int
    end: int
    base_offset: int | None = None
    """The base offset to write into this batch; None leaves it as it is."""


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


class SegmentRepair(NamedTuple):
    """A segment that is written anew."""

    name: str
    base_offset: int
    pieces: tuple[Piece, ...]
    is_new: bool
    """The partition has no such file: it comes from copies."""


@dataclass(frozen=True)
class RepairPlan:
    """Everything that is to be done to one partition."""

    path: Path
    topic_partition: TopicPartition
    segments: tuple[SegmentRepair, ...] = ()
    quarantined: tuple[CorruptBytes, ...] = ()
    """Bytes that leave the log. The files that have them are kept."""
    moved: tuple[ValidBatch, ...] = ()
    """Batches whose base offset is put right."""
    restored: tuple[Restored, ...] = ()
    lost: tuple[Lost, ...] = ()
    rebuilt: tuple[tuple[str, str], ...] = ()
    """Names of indexes, snapshots and the leader epochs to rebuild, and why."""
    removed: tuple[tuple[str, str], ...] = ()
    """Names of files to remove, and why."""
    checkpoints: tuple[tuple[str, int, int], ...] = ()
    """Checkpoints of the log directory that are past the new end: name, offset, new offset."""
    left: tuple[Finding, ...] = ()
    """Errors that a repair does not change."""
    log_end_offset: int = 0
    """After the repair."""

    @property
    def is_empty(self) -> bool:
        return not (self.segments or self.rebuilt or self.removed or self.checkpoints)


def plan_repair(path: Path, copies: Sequence[Path] = ()) -> RepairPlan:
    """What to do about a partition directory; `copies` are directories of the same partition.

    Reads all of the log, and never writes. Raises InvalidArgumentError for a copy of another
    partition.
    """
    topic_partition, _ = identity_of(path)
    for copy in copies:
        other, _ = identity_of(copy)
        if other != topic_partition and min(other.partition, topic_partition.partition) >= 0:
            raise InvalidArgumentError(f"{copy} is {other}, not a copy of {topic_partition}")
    log = _RepairedLog(path, [_Copy(copy) for copy in copies])
    findings = verify_partition(path).findings
    changed = {segment.base_offset for segment in log.repairs}
    rebuilt, removed = _side_files(path, findings, changed, log.next_offset)
    return RepairPlan(
        path,
        topic_partition,
        tuple(log.repairs),
        tuple(log.quarantined),
        tuple(log.moved),
        tuple(log.restored),
        tuple(log.lost),
        rebuilt,
        removed,
        tuple(_checkpoints(path, topic_partition, log.next_offset)),
        tuple(_left(findings)),
        log.next_offset,
    )


# -- the log


class _Copy:
    """A copy of the partition; one that cannot be listed has nothing to offer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.segments = scan_partition(path)

    def between(self, first_offset: int, next_offset: int) -> list[ValidBatch]:
        return [
            batch
            for segment in self.segments
            if (segment.next_base or OFFSET_MAX) > first_offset
            for batch in segment.between(first_offset, next_offset)
        ]

    def base_of(self, batch: ValidBatch) -> int:
        """Base offset of the segment that the batch is in."""
        return next(each.base_offset for each in self.segments if each.path == batch.path)


class _RepairedLog:
    """The log as it will be: the valid parts of its segments, and what copies add."""

    def __init__(self, path: Path, copies: Sequence[_Copy]) -> None:
        self._path = path
        self._copies = copies
        self.repairs: list[SegmentRepair] = []
        self.quarantined: list[CorruptBytes] = []
        self.moved: list[ValidBatch] = []
        self.restored: list[Restored] = []
        self.lost: list[Lost] = []
        self._pieces: list[Piece] = []
        self._base_offset = 0
        self._is_changed = self._is_new = False
        self._epoch = -1
        self.next_offset = 0
        for segment in scan_partition(path):
            self._add(segment)
        self._fill(self.next_offset, None, None)
        self._close()

    def _add(self, segment: ScannedSegment) -> None:
        before = self.next_offset
        if before:  # a segment before it: offsets between the two may be in a copy
            self._fill(before, segment.base_offset, None)
        self._close()
        self._base_offset, self._is_new = segment.base_offset, False
        self.quarantined += segment.corrupt
        at = 0
        for corrupt in segment.corrupt:
            self._keep(segment, at, corrupt.position)
            self._is_changed = True
            later = segment.rows[segment.rows["position"] > corrupt.position]
            epoch_max = int(later["leader_epoch"][0]) if len(later) else OFFSET_MAX
            self._fill(corrupt.first_offset, corrupt.next_offset, corrupt, epoch_max)
            at = corrupt.position + corrupt.size_bytes
        self._keep(segment, at, segment.end_position)
        self.next_offset = max(self.next_offset, segment.next_offset, segment.base_offset)

    def _keep(self, segment: ScannedSegment, start: int, end: int) -> None:
        """The bytes of a segment from `start` to `end`, which are valid batches."""
        at = start
        for batch in segment.moved:
            if start <= batch.position < end:
                self.moved.append(batch)
                self._is_changed = True
                self._put(segment.path, at, batch.position)
                at = batch.position + batch.size_bytes
                self._pieces.append(Piece(segment.path, batch.position, at, batch.first_offset))
        self._put(segment.path, at, end)
        rows = segment.rows
        inside = rows[(rows["position"] >= start) & (rows["position"] < end)]
        if len(inside):
            self._epoch = int(inside["leader_epoch"][-1])
            self.next_offset = int(inside["last_offset"][-1]) + 1

    def _put(self, path: Path, start: int, end: int) -> None:
        if end > start:
            self._pieces.append(Piece(path, start, end))

    def _fill(
        self,
        first_offset: int,
        next_offset: int | None,
        corrupt: CorruptBytes | None,
        epoch_max: int = OFFSET_MAX,
    ) -> None:
        """Put batches of copies where offsets are missing, and note what is lost all the same."""
        end = OFFSET_MAX if next_offset is None else next_offset
        at = first_offset
        for copy, batch in _chosen(self._copies, (first_offset, end), (self._epoch, epoch_max)):
            self._note_lost(at, batch.first_offset, corrupt)
            # Copies have the segments of the original: one that begins where nothing is kept.
            is_start = batch.position == 0 and (corrupt is None or next_offset is None)
            if is_start:
                base = copy.base_of(batch)
                self._close()
                self._base_offset = base if base >= at else batch.first_offset
                self._is_new = True
            offset = batch.first_offset if batch.is_moved else None
            stop = batch.position + batch.size_bytes
            self._pieces.append(Piece(batch.path, batch.position, stop, offset))
            self._is_changed = True
            self._note_restored(copy.path, batch)
            at, self._epoch = batch.last_offset + 1, batch.leader_epoch
        self.next_offset = max(self.next_offset, at)
        if next_offset is not None or at == first_offset:  # else copies end where the log did
            self._note_lost(at, next_offset, corrupt)

    def _note_restored(self, path: Path, batch: ValidBatch) -> None:
        last = self.restored[-1] if self.restored else None
        if last is not None and last.path == path and last.next_offset == batch.first_offset:
            self.restored[-1] = last._replace(
                next_offset=batch.last_offset + 1, batches=last.batches + 1
            )
        else:
            self.restored.append(Restored(path, batch.first_offset, batch.last_offset + 1, 1))

    def _note_lost(self, first: int, following: int | None, corrupt: CorruptBytes | None) -> None:
        if corrupt is not None and (following is None or first < following):
            self.lost.append(Lost(corrupt.path, first, following, corrupt.reason))

    def _close(self) -> None:
        """The segment is complete."""
        if self._is_changed:
            name = segment_file_name(self._base_offset, FileKind.LOG)
            pieces = tuple(self._pieces)
            self.repairs.append(SegmentRepair(name, self._base_offset, pieces, self._is_new))
        self._pieces = []
        self._is_changed = False


def _chosen(
    copies: Sequence[_Copy], offsets: tuple[int, int], epochs: tuple[int, int]
) -> Iterator[tuple[_Copy, ValidBatch]]:
    """The batches to take for these offsets (the end is exclusive), of these leader epochs.

    Of batches with the same offset the newest leader epoch counts, then what most copies have, then
    the order of the copies. Leader epochs never decrease along a log: a batch of an older epoch is
    what a follower had to truncate.
    """
    found = [(copy, each) for copy in copies for each in copy.between(*offsets)]
    votes = Counter(_identity(batch) for _, batch in found) if len(copies) > 1 else Counter()
    found.sort(
        key=lambda each: (
            each[1].first_offset,
            -each[1].leader_epoch,
            -votes[_identity(each[1])] if votes else 0,
        )
    )
    at, (epoch, epoch_max) = offsets[0], epochs
    for copy, batch in found:
        if batch.first_offset >= at and epoch <= batch.leader_epoch <= max(epoch, epoch_max):
            yield copy, batch
            at, epoch = batch.last_offset + 1, batch.leader_epoch


def _identity(batch: ValidBatch) -> tuple[int, int, int, int]:
    return batch.first_offset, batch.last_offset, batch.leader_epoch, batch.crc


# -- the other files


def _side_files(
    path: Path, findings: Iterable[Finding], changed: set[int], log_end_offset: int
) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """What to rebuild and what to remove: names, and why."""
    rebuilt: dict[str, str] = {}
    removed: dict[str, str] = {}
    for base in sorted(changed):
        for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
            rebuilt[segment_file_name(base, kind)] = "its log changes"
    for finding in findings:
        name = Path(finding.path).name
        if finding.code == Fault.ORPHAN_INDEX.code:
            removed[name] = finding.what
        elif finding.code in _REBUILDS or (
            name.endswith(_INDEXES) and finding.severity is not Severity.NOTE
        ):
            rebuilt.setdefault(name, finding.what)
        elif finding.code in _EPOCHS:
            rebuilt.setdefault(FileKind.LEADER_EPOCHS.value, finding.what)
    for snapshot in sorted(path.glob("*.snapshot")):
        if snapshot.stem.isdigit() and int(snapshot.stem) > log_end_offset:
            rebuilt.pop(snapshot.name, None)
            removed[snapshot.name] = f"it is after the end of the log, offset {log_end_offset}"
    return tuple(rebuilt.items()), tuple(removed.items())


def _checkpoints(
    path: Path, topic_partition: TopicPartition, log_end_offset: int
) -> Iterator[tuple[str, int, int]]:
    for file in _CHECKPOINTS:
        try:
            offset = read_offset_checkpoint(path.absolute().parent, file).get(topic_partition, 0)
        except StratalogError:
            continue
        if offset > log_end_offset:
            yield file.value, offset, log_end_offset


_REPAIRED: Final = {
    Fault.BAD_BATCH.code,
    Fault.BAD_RECORDS.code,
    Fault.BAD_RECORD_OFFSETS.code,
    Fault.OFFSETS_OUT_OF_ORDER.code,
    Fault.OFFSET_OUTSIDE_SEGMENT.code,
    Fault.TRUNCATED_SEALED_LOG.code,
    Fault.GARBAGE_TAIL.code,
    *_REBUILDS,
    *_EPOCHS,
}


def _left(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Errors about which nothing is done."""
    for finding in findings:
        is_index = finding.path.endswith(_INDEXES)
        if finding.severity is Severity.ERROR and not is_index and finding.code not in _REPAIRED:
            yield finding
