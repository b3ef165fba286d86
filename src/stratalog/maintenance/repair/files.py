"""Carrying out a repair, and undoing it.

A repair has a directory of its own in the partition directory, which Kafka and Stratalog ignore:

    repair-20261117T150405Z/
      old/            the files that were replaced or removed, as they were
      new/            the repaired partition while it is being built
      repair.json     what was changed: written before the first file is

The repaired partition is built completely in `new/`, from hard links to what stays, and verified.
Then its files are renamed into place. A kill before that leaves the partition as it was; a kill in
between is completed or undone by the next run. Undoing renames the files of `old/` back; they are
the same files, so every byte comes back.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stratalog.errors import CorruptError, RepairError
from stratalog.format.checkpoint import (
    EpochEntry,
    decode_leader_epochs,
    encode_leader_epochs,
    encode_offsets,
)
from stratalog.format.names import FileKind, FileState, RootFile, parse_partition_file
from stratalog.format.producer_snapshot import encode_snapshot
from stratalog.log.aborted_transactions import replay_producers
from stratalog.log.partition_listing import list_partition
from stratalog.log.partition_view import PartitionView, identity_of
from stratalog.log.segment_list import SegmentList
from stratalog.maintenance.reindex import plan_reindex, reindex_segment
from stratalog.maintenance.repair.journal import (
    NEW,
    OLD,
    PREFIX,
    Repair,
    RepairedFile,
    interrupted_repairs,
    repairs_of,
)
from stratalog.maintenance.verify.directory import verify_partition
from stratalog.maintenance.verify.findings import Severity
from stratalog.storage.log_dir_scan import read_offset_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stratalog.maintenance.repair.plan import RepairPlan
    from stratalog.maintenance.repair.repaired_log import FileBytes, SegmentRepair
    from stratalog.storage.disk import AppendFile, Disk

_COPY_BYTES: Final = 8 << 20


# -- doing


def apply_repair(plan: RepairPlan, disk: Disk) -> Repair:
    """Carry out a plan. The caller holds the lock of the log directory."""
    finish_interrupted(plan.path, disk)
    directory = plan.path / f"{PREFIX}{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    while directory.exists():
        directory = directory.with_name(directory.name + "a")
    new = directory / NEW / plan.path.name
    for path in (directory, new.parent, new, directory / OLD):
        disk.mkdir(path)
    try:
        _PartitionBuilder(plan, new, disk).run()
        _check(plan, new)
        open_transactions = tuple(_without_marker(plan, new))
        changes = _changes(plan, new)
        for change in changes:
            if change.existed:
                disk.link(plan.path / change.name, directory / OLD / change.name)
        disk.fsync_dir(directory / OLD)
    except BaseException:
        disk.remove_tree(directory)
        raise
    repair = Repair(directory, tuple(changes), plan.checkpoints)
    repair.save(disk)
    _install(repair, disk)
    return replace(repair, open_transactions=open_transactions)


def _check(plan: RepairPlan, new: Path) -> None:
    """Verify the repaired partition before files are replaced. Raises RepairError if it has new
    errors."""
    for finding in verify_partition(new).findings:
        if finding.severity is Severity.ERROR and finding.code not in plan.errors:
            raise RepairError(
                f"{plan.path}: nothing was changed, because the repaired files would fail "
                f"verification: {Path(finding.path).name}: {finding.what}"
            )


def _without_marker(plan: RepairPlan, new: Path) -> Iterator[tuple[int, int]]:
    """Open transactions that began before offsets that are lost, as their marker may be."""
    if plan.lost:
        last = plan.lost[-1]
        with PartitionView(new) as view:
            for entry in view.producers:
                first = entry.open_txn_first_offset
                if first is not None and (last.next_offset is None or first < last.next_offset):
                    yield entry.producer_id, first


def finish_interrupted(partition: Path, disk: Disk) -> Repair | None:
    """Complete a repair that was killed after its journal was written, and return it; drop one that
    was killed earlier."""
    finished = None
    for name in interrupted_repairs(partition):
        repair = Repair.load(partition / name)
        if repair is None:
            disk.remove_tree(partition / name)
        else:
            _install(repair, disk)
            finished = repair
    return finished


def _install(repair: Repair, disk: Disk) -> None:
    """Rename the new files into place. May be repeated."""
    partition, new = repair.partition, repair.directory / NEW / repair.partition.name
    for change in repair.changes:
        if change.is_removed:
            disk.unlink(partition / change.name, missing_ok=True)
        elif (new / change.name).exists():
            disk.rename(new / change.name, partition / change.name)
    disk.fsync_dir(partition)
    for name, _, after in repair.checkpoints:
        _set_checkpoint(partition, RootFile(name), after, disk)
    disk.remove_tree(repair.directory / NEW)


def _set_checkpoint(partition: Path, file: RootFile, offset: int, disk: Disk) -> None:
    root = partition.absolute().parent
    offsets = read_offset_checkpoint(root, file)
    offsets[identity_of(partition)[0]] = offset
    disk.write_atomically(root / file.value, encode_offsets(offsets))


def _changes(plan: RepairPlan, new: Path) -> list[RepairedFile]:
    """What differs between the partition and the new one, which has links to what stays."""
    found, partition = [], plan.path
    gone = {name for name, _ in plan.removed}
    for name in sorted({*_live_names(partition), *_live_names(new), *gone}):
        before, after = partition / name, new / name
        if not after.exists():
            found.append(RepairedFile(name, existed=True, is_removed=True))
        elif not before.exists() or not before.samefile(after):
            found.append(RepairedFile.written(after, existed=before.exists()))
    return found


def _live_names(directory: Path) -> Iterator[str]:
    for path in directory.iterdir():
        if path.is_file():
            file = parse_partition_file(path.name)
            if file is not None and file.state is FileState.LIVE:
                yield path.name


@dataclass
class _PartitionBuilder:
    """Builds the repaired partition in a directory of its own."""

    plan: RepairPlan
    new: Path
    disk: Disk

    def run(self) -> None:
        plan, rebuilt = self.plan, dict(self.plan.rebuilt)
        gone = {name for name, _ in plan.removed} | set(rebuilt)
        gone |= {segment.name for segment in plan.segments}
        for name in _live_names(plan.path):
            if name not in gone:
                self.disk.link(plan.path / name, self.new / name)
        for segment in plan.segments:
            self._write_segment(segment)
        self._rebuild_indexes({name.partition(".")[0] for name in rebuilt})
        self._rebuild_snapshots(name for name in rebuilt if name.endswith(".snapshot"))
        if FileKind.LEADER_EPOCHS.value in rebuilt or plan.restored:
            self._rebuild_epochs()
        self._chown_new_files()
        self.disk.fsync_dir(self.new)

    def _chown_new_files(self) -> None:
        """Give new files the owner of the partition: a broker must be able to write them."""
        owner = self.plan.path.stat()
        for name in _live_names(self.new):
            path, before = self.new / name, self.plan.path / name
            if path.stat().st_nlink == 1:
                with suppress(PermissionError):
                    os.chown(path, owner.st_uid, owner.st_gid)
                if before.exists():
                    self.disk.set_mode(path, self.disk.mode_of(before))

    def _write_segment(self, segment: SegmentRepair) -> None:
        path = self.new / segment.name
        with self.disk.open_append(path, is_new=True) as target:
            for piece in segment.pieces:
                _copy(piece, target)
            target.fsync()
        before = self.plan.path / segment.name
        sources = (before, *(piece.path for piece in segment.pieces[:1]))
        for source in [each for each in sources if each.exists()][:1]:
            self.disk.set_mtime_ms(path, self.disk.mtime_ms(source))  # retention may use it

    def _rebuild_indexes(self, stems: set[str]) -> None:
        """Rebuild the indexes that are missing now. Other indexes of these segments are rebuilt
        only if they are wrong."""
        for task in plan_reindex(self.new):
            if Path(task.path).stem in stems:
                done = reindex_segment(task, self.disk)
                if done.failure:
                    raise RepairError(f"{task.path}: cannot be indexed: {done.failure}")

    def _rebuild_snapshots(self, names: Iterable[str]) -> None:
        listing = list_partition(self.new)
        segments = SegmentList(listing.segments)
        try:
            for name in sorted(names):
                offset = int(name.partition(".")[0])
                snapshots = tuple(each for each in listing.snapshots if each[0] < offset)
                entries = replay_producers(segments, snapshots, offset).producers.values()
                self.disk.write_atomically(self.new / name, encode_snapshot(entries))
        finally:
            segments.close()

    def _rebuild_epochs(self) -> None:
        """From the batches; what the old file says of epochs before the log is kept."""
        entries: dict[int, int] = {}
        for segment in list_partition(self.new).segments:
            for _, header in segment.walk_headers():
                epoch = header.partition_leader_epoch
                if epoch >= 0 and epoch > max(entries, default=-1):
                    entries[epoch] = header.base_offset
            segment.release()
        if entries:
            first = min(entries)
            entries[first] = min(entries[first], self._known_start(first, entries[first]))
            content = encode_leader_epochs(map(EpochEntry._make, sorted(entries.items())))
            self.disk.write_atomically(self.new / FileKind.LEADER_EPOCHS.value, content)

    def _known_start(self, epoch: int, default: int) -> int:
        """Where the first epoch starts in the old file, if that can be read."""
        try:
            old = decode_leader_epochs((self.plan.path / FileKind.LEADER_EPOCHS.value).read_bytes())
        except (CorruptError, OSError):
            return default
        return dict(old).get(epoch, default)


def _copy(piece: FileBytes, target: AppendFile) -> None:
    with piece.path.open("rb") as source:
        target.write(piece.header)
        at = piece.start + len(piece.header)
        while at < piece.end:
            data = os.pread(source.fileno(), min(_COPY_BYTES, piece.end - at), at)
            if not data:
                raise RepairError(f"{piece.path}: truncated during the repair; try again")
            target.write(data)
            at += len(data)


# -- undoing


def undo_repair(repair: Repair, disk: Disk) -> None:
    """Give the partition the files that it had. The caller holds the lock of the log directory.

    Raises RepairError, and changes nothing, if a file that the repair wrote was changed since: what
    was written to it would be lost.
    """
    partition, old = repair.partition, repair.directory / OLD
    for change in repair.changes:
        _check_unchanged(repair, change)
    for change in repair.changes:
        if change.existed and (old / change.name).exists():
            disk.rename(old / change.name, partition / change.name)
        elif not change.existed:
            disk.unlink(partition / change.name, missing_ok=True)
    disk.fsync_dir(partition)
    for name, before, _ in repair.checkpoints:
        _set_checkpoint(partition, RootFile(name), before, disk)
    repair.discard(disk)


def _check_unchanged(repair: Repair, change: RepairedFile) -> None:
    path = repair.partition / change.name
    with suppress(FileNotFoundError):
        status = path.stat()
        kept = repair.directory / OLD / change.name
        is_old = change.existed and (not kept.exists() or kept.samefile(path))
        if not (is_old or change.is_as_written(status)) or (change.is_removed and not is_old):
            raise RepairError(
                f"{path}: changed since the repair, so undoing it would lose data; to restore the "
                f"old files anyway, copy them from {repair.directory / OLD}"
            )


def forget_repairs(partition: Path, disk: Disk) -> int:
    """Remove the kept files of all repairs; returns how many repairs can no longer be undone."""
    found = repairs_of(partition)
    for repair in found:
        repair.discard(disk)
    return len(found)
