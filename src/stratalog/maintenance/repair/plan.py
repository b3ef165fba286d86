"""The plan of a repair, made from the files of a partition and shown before anything is changed.

* Bytes of a segment without a valid batch are left out; the segment continues after them. If copies
  of the partition are given, their valid batches take the place of what is missing
  (`repaired_log`).
* A torn tail is truncated.
* Indexes, transaction indexes, producer snapshots and leader epochs that are missing, wrong, or
  about bytes that change, are rebuilt.

A plan is a value. `files` carries it out, and keeps every file that it replaces.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stratalog.errors import InvalidArgumentError, StratalogError
from stratalog.format.names import FileKind, FileState, RootFile, segment_file_name
from stratalog.log.partition_listing import list_partition
from stratalog.log.partition_view import identity_of
from stratalog.maintenance.repair.journal import interrupted_repairs
from stratalog.maintenance.repair.repaired_log import (
    KnownFacts,
    LostOffsets,
    PartitionCopy,
    RepairedLog,
)
from stratalog.maintenance.verify.directory import verify_partition
from stratalog.maintenance.verify.findings import Fault, Severity
from stratalog.storage.log_dir_scan import read_offset_checkpoint
from stratalog.storage.segment_view import SegmentView

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from stratalog.format.names import TopicPartition
    from stratalog.log.partition_listing import ListedFile
    from stratalog.maintenance.repair.repaired_log import (
        DivergingCopy,
        RestoredOffsets,
        SegmentRepair,
    )
    from stratalog.maintenance.repair.valid_batches import CorruptBytes, ValidBatch
    from stratalog.maintenance.verify.findings import Finding

_INDEXES: Final = (".index", ".timeindex", ".txnindex")
_REBUILDS: Final = {Fault.BAD_SNAPSHOT.code, Fault.SNAPSHOT_MISMATCH.code}
_EPOCHS: Final = {Fault.BAD_EPOCHS.code, Fault.EPOCH_MISMATCH.code, Fault.EPOCHS_PAST_END.code}
_ENDS: Final = (RootFile.RECOVERY_POINTS, RootFile.HIGH_WATERMARKS)
"""Checkpoints of offsets up to which the log has had records."""


@dataclass(frozen=True)
class RepairPlan:
    """Everything that is to be done to one partition."""

    path: Path
    topic_partition: TopicPartition
    segments: tuple[SegmentRepair, ...] = ()
    quarantined: tuple[CorruptBytes, ...] = ()
    """Bytes that leave the log. The files that have them are kept."""
    corrected: tuple[ValidBatch, ...] = ()
    """Batches whose base offset or leader epoch is put right."""
    restored: tuple[RestoredOffsets, ...] = ()
    lost: tuple[LostOffsets, ...] = ()
    missing: tuple[LostOffsets, ...] = ()
    """Offsets between segments: they are lost, unless the topic is compacted."""
    diverging: tuple[DivergingCopy, ...] = ()
    """Copies that are not used from an offset on."""
    rebuilt: tuple[tuple[str, str], ...] = ()
    """Names of indexes, snapshots and the leader epochs to rebuild, and why."""
    removed: tuple[tuple[str, str], ...] = ()
    """Names of files to remove, and why."""
    checkpoints: tuple[tuple[str, int, int], ...] = ()
    """Checkpoints of the log directory that are past the new end: name, offset, new offset."""
    left: tuple[Finding, ...] = ()
    """Errors that a repair does not change."""
    errors: frozenset[str] = frozenset()
    """Codes of all errors before the repair; it must not add any."""
    interrupted: tuple[str, ...] = ()
    """Directories of repairs that were killed: they are completed, or dropped, first."""
    log_end_offset: int = 0
    """After the repair."""

    @property
    def is_empty(self) -> bool:
        changes = (self.segments, self.rebuilt, self.removed, self.checkpoints, self.interrupted)
        return not any(changes)


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
    checkpoints = dict(_checkpointed(path, topic_partition))
    found = verify_partition(path).findings
    log = RepairedLog(
        path, [PartitionCopy.of(copy) for copy in copies], _known_facts(checkpoints, found)
    )
    findings = [
        each
        for each in found
        if each.code != Fault.EPOCH_MISMATCH.code or not log.has_epochs_of_checkpoint
    ]
    changed = {segment.base_offset for segment in log.repairs}
    rebuilt, removed = _side_files(path, findings, changed, log.next_offset)
    if changed or log.foreign or rebuilt or removed:
        log.repairs += log.swaps
        changed |= {segment.base_offset for segment in log.swaps}
        rebuilt, removed = _side_files(path, findings, changed, log.next_offset)
        replaced = _replaced_by_compaction(path, log)
        removed.update(_interrupted_compaction(path, replaced))
        log.missing += _after_compaction(log, replaced)
    written = {segment.name for segment in log.repairs}
    for log_name, reason in log.foreign:
        if log_name in written:
            continue  # a new segment takes its place
        for name in _files_of_segment(log_name):
            rebuilt.pop(name, None)
            if (path / name).exists():
                removed[name] = reason
    return RepairPlan(
        path,
        topic_partition,
        segments=tuple(log.repairs),
        quarantined=tuple(log.quarantined),
        corrected=tuple(log.corrected),
        restored=tuple(log.restored),
        lost=tuple(log.lost),
        missing=tuple(log.missing),
        diverging=tuple(log.diverging),
        rebuilt=tuple(rebuilt.items()),
        removed=tuple(removed.items()),
        checkpoints=tuple(
            (file.value, checkpoints[file], log.next_offset)
            for file in _ENDS
            if checkpoints.get(file, 0) > log.next_offset
        ),
        left=tuple(_left(findings)),
        errors=frozenset(each.code for each in findings if each.severity is Severity.ERROR),
        interrupted=tuple(interrupted_repairs(path)),
        log_end_offset=log.next_offset,
    )


# -- the other files


def _side_files(
    path: Path, findings: Iterable[Finding], changed: set[int], log_end_offset: int
) -> tuple[dict[str, str], dict[str, str]]:
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
    return rebuilt, removed


def _replaced_by_compaction(path: Path, log: RepairedLog) -> list[ListedFile]:
    """The logs that a broker deletes when it completes an interrupted compaction."""
    files = list_partition(path).files
    if all(each.file.state is not FileState.SWAP for each in files):
        return []
    names = log.log_names.union(segment.name for segment in log.repairs)
    return [
        each
        for each in files
        if each.file.state is FileState.LIVE
        and each.file.kind is FileKind.LOG
        and each.name not in names
    ]


def _interrupted_compaction(
    path: Path, replaced: Iterable[ListedFile]
) -> Iterator[tuple[str, str]]:
    """Files that would change the repaired log when a broker completes a compaction, and those that
    it would replace."""
    files = list_partition(path).files
    if all(each.file.state is not FileState.SWAP for each in files):
        return
    for each in files:
        if each.file.state in {FileState.SWAP, FileState.CLEANED}:
            yield each.name, "left by an interrupted compaction, which the repair completes"
    for each in replaced:
        for name in _files_of_segment(each.name):
            if (path / name).exists():
                yield name, "an interrupted compaction has replaced it"


def _after_compaction(log: RepairedLog, replaced: Iterable[ListedFile]) -> Iterator[LostOffsets]:
    """What replaced logs have after the end of the segment in their place: compaction may have
    removed it, or their names are wrong."""
    for each in replaced:
        segment = SegmentView(each.path, each.file.base_offset or 0, each.size_bytes, each.identity)
        try:
            end = segment.end.next_offset
        finally:
            segment.release()
        start, limit = log.range_after(segment.base_offset)
        is_noted = any(missing.first_offset == start for missing in (*log.missing, *log.lost))
        if start < min(end, limit) and not is_noted:
            reason = f"{each.name} has them, but an interrupted compaction has replaced it"
            yield LostOffsets(each.path, start, min(end, limit), reason)


def _files_of_segment(log_name: str) -> Iterator[str]:
    """The names of a log file and of its indexes."""
    for kind in (FileKind.LOG, *map(FileKind, _INDEXES)):
        yield Path(log_name).with_suffix(kind.value).name


def _checkpointed(path: Path, topic_partition: TopicPartition) -> Iterator[tuple[RootFile, int]]:
    """What the checkpoints of the log directory say of the partition."""
    for file in (*_ENDS, RootFile.CLEANER_OFFSETS):
        with suppress(StratalogError):
            offsets = read_offset_checkpoint(path.absolute().parent, file)
            if topic_partition in offsets:
                yield file, offsets[topic_partition]


def _known_facts(checkpoints: Mapping[RootFile, int], findings: Iterable[Finding]) -> KnownFacts:
    """The log is compacted if the cleaner has a checkpoint for it, or if its batches show it: then
    gaps are but notes."""
    is_compacted = RootFile.CLEANER_OFFSETS in checkpoints or any(
        each.code == Fault.OFFSET_GAP.code and each.severity is Severity.NOTE for each in findings
    )
    ends = [(checkpoints[file], file.value) for file in _ENDS if file in checkpoints]
    return KnownFacts(is_compacted, *max(ends, default=(0, "")))


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
