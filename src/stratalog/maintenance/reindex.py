"""Rebuilding the indexes of a log from the log alone: the same bytes that recovery writes.

Segments are independent: each takes its producers from the snapshot at its base offset, or from the
newest earlier one and the batches since. So a plan has one task per segment, and tasks may run
anywhere. The caller holds the lock of the log directory; tasks do not lock.

An index may differ and still be right: with the topic's own `index.interval.bytes`, if a cleaner or
a follower wrote it, or after a restart, when Kafka starts counting bytes again. An index in which
`verify` finds no fault is kept, unless the task is forced.

The log itself is never changed. A segment with corruption in the middle is skipped: an index of the
part before it would hide the part after it.
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import StratalogError
from stratalog.format.batch import BatchHeader
from stratalog.format.index_entries import INTERVAL_BYTES_DEFAULT
from stratalog.format.names import FileKind
from stratalog.log.aborted_transactions import replay_producers
from stratalog.log.partition_listing import list_partition
from stratalog.log.producer_transitions import markers_in
from stratalog.log.segment_list import SegmentList
from stratalog.maintenance.verify.findings import Fault, Severity
from stratalog.storage.recovery import check_segment
from stratalog.storage.segment_view import SegmentView

if TYPE_CHECKING:
    from stratalog.errors import CorruptError
    from stratalog.log.producer_transitions import ProducerReplay
    from stratalog.storage.disk import Disk
    from stratalog.storage.recovery import ValidPart
    from stratalog.storage.segment_view import LoadedBatch

_HARMLESS: Final = {Fault.INDEX_COARSE.code, Fault.INDEX_SPARSE.code}


@dataclass(frozen=True)
class ReindexTask:
    """A segment whose indexes are to be built."""

    path: str
    """Path of the `.log` file."""
    base_offset: int
    size_bytes: int
    interval_bytes: int = INTERVAL_BYTES_DEFAULT
    """The topic's `index.interval.bytes`."""
    is_forced: bool = False
    """Also replace valid indexes if recovery would write them differently."""


class IndexChange(enum.StrEnum):
    """What happens to an index file."""

    UNCHANGED = "unchanged"
    KEPT = "kept"
    """It is valid, although recovery would write it differently."""
    CREATED = "created"
    REPLACED = "replaced"
    REMOVED = "removed"


class FileChange(NamedTuple):
    """One index file, before and after."""

    path: str
    change: IndexChange
    bytes_before: int
    bytes_after: int
    """If it is kept: the size that recovery would write."""

    @property
    def is_change(self) -> bool:
        """Whether the file is changed."""
        return self.change not in {IndexChange.UNCHANGED, IndexChange.KEPT}


class Reindexed(NamedTuple):
    """A segment whose indexes were built."""

    path: str
    size_bytes: int
    changes: tuple[FileChange, ...]
    failure: str = ""
    """Why nothing was written; empty on success."""


class IndexBytes(NamedTuple):
    """The bytes of the three index files. Without entries there is no transaction index."""

    offset_index: bytes
    time_index: bytes
    txn_index: bytes

    def by_kind(self) -> tuple[tuple[FileKind, bytes], ...]:
        kinds = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX)
        return tuple(zip(kinds, self, strict=True))


def plan_reindex(
    partition: Path, *, interval_bytes: int = INTERVAL_BYTES_DEFAULT, is_forced: bool = False
) -> tuple[ReindexTask, ...]:
    """One task for each segment of a partition directory."""
    return tuple(
        ReindexTask(
            os.fspath(segment.path),  # raises for a log in a store
            segment.base_offset,
            segment.size_bytes,
            interval_bytes,
            is_forced,
        )
        for segment in list_partition(partition).segments
    )


def build_indexes(task: ReindexTask) -> IndexBytes | CorruptError:
    """The index files rebuilt from the log, or the corruption that prevents it.

    Invalid bytes at the end do not: recovery truncates them, and nothing follows them.
    """
    view = SegmentView(Path(task.path), task.base_offset, task.size_bytes)
    try:
        replay = _producers_before(task)

        def on_batch(batch: LoadedBatch) -> None:
            _replay_batch(replay, batch)

        valid_part = check_segment(view, task.interval_bytes, on_batch)
        if valid_part.corruption is not None and _has_valid_batches_after(view, valid_part):
            return valid_part.corruption
    finally:
        view.release()
    aborted = (txn for txn in replay.aborted if txn.last_offset >= task.base_offset)
    return IndexBytes(
        bytes(valid_part.indexes.offset_index),
        bytes(valid_part.indexes.time_index),
        b"".join(txn.pack() for txn in aborted),
    )


def reindex_segment(task: ReindexTask, disk: Disk, *, is_dry_run: bool = False) -> Reindexed:
    """Rebuild the indexes of one segment and replace each atomically.

    The lock of the log directory must be held, unless `is_dry_run`. Valid files are kept.
    """
    try:
        built = build_indexes(task)
    except StratalogError as error:
        return Reindexed(task.path, task.size_bytes, (), str(error))
    if not isinstance(built, IndexBytes):
        return Reindexed(task.path, task.size_bytes, (), str(built))
    planned = []
    for kind, data in built.by_kind():
        path = Path(task.path).with_suffix(kind.value)
        is_needed = bool(data) or kind is not FileKind.TXN_INDEX
        planned.append((_change(path, data, is_needed=is_needed), data))
    if not task.is_forced:
        planned = list(zip(_kept([change for change, _ in planned], task), built, strict=True))
    if not is_dry_run:
        for change, data in planned:
            _apply(disk, Path(change.path), data, change.change)
    return Reindexed(task.path, task.size_bytes, tuple(change for change, _ in planned))


def _kept(changes: list[FileChange], task: ReindexTask) -> list[FileChange]:
    """The same changes, except that valid files are kept."""
    present = {IndexChange.REPLACED, IndexChange.REMOVED}
    doubtful = [change.path for change in changes if change.change in present]
    if not doubtful:
        return changes
    from stratalog.maintenance.verify.partition import plan_partition  # noqa: PLC0415 - kernels
    from stratalog.maintenance.verify.segment import verify_segment  # noqa: PLC0415

    # Planned as for verify: a transaction may have begun in a segment before.
    plan = plan_partition(Path(task.path).parent)
    (verify_task,) = (each for each in plan.tasks if each.path == Path(task.path))
    verified = verify_segment(verify_task)
    wrong = {
        finding.path
        for finding in verified.findings
        if finding.code not in _HARMLESS or finding.severity is not Severity.NOTE
    }
    return [
        change._replace(change=IndexChange.KEPT)
        if change.path in doubtful and change.path not in wrong
        else change
        for change in changes
    ]


def _change(path: Path, data: bytes, *, is_needed: bool) -> FileChange:
    try:
        before: bytes | None = path.read_bytes()
    except FileNotFoundError:
        before = None
    if before == data or (before is None and not is_needed):
        change = IndexChange.UNCHANGED
    elif not is_needed:
        change = IndexChange.REMOVED
    else:
        change = IndexChange.CREATED if before is None else IndexChange.REPLACED
    return FileChange(str(path), change, len(before or b""), len(data))


def _apply(disk: Disk, path: Path, data: bytes, change: IndexChange) -> None:
    if change in {IndexChange.CREATED, IndexChange.REPLACED}:
        disk.write_atomically(path, data)
    elif change is IndexChange.REMOVED:
        disk.unlink(path)
        disk.fsync_dir(path.parent)


def _producers_before(task: ReindexTask) -> ProducerReplay:
    listing = list_partition(Path(task.path).parent)
    segments = SegmentList(listing.segments)
    try:
        snapshots = tuple(s for s in listing.snapshots if s[0] <= task.base_offset)
        return replay_producers(segments, snapshots, task.base_offset)
    finally:
        segments.close()


def _replay_batch(replay: ProducerReplay, batch: LoadedBatch) -> None:
    header = batch.header
    if not isinstance(header, BatchHeader) or not header.has_producer:
        return
    if not header.is_control:
        replay.add_data(header)
        return
    markers = markers_in(batch.buf, [(batch.entry.position, header)])
    marker = markers.get(header.base_offset)
    if marker is not None:
        replay.add_marker(header, marker)


def _has_valid_batches_after(view: SegmentView, valid_part: ValidPart) -> bool:
    """Whether valid batches follow the corruption."""
    start = valid_part.valid_bytes + 1
    found = view.next_valid_batch(start, offset_min=valid_part.next_offset)
    return found is not None
