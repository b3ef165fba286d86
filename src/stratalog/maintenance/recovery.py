"""Opening a log for writing: what to keep after a crash, and what to build again.

The steps are those of Kafka's loader. Each leaves the directory in a state from which the steps,
run from the start, come to the same end; so a crash while loading costs nothing but time.

After a clean stop nothing is read but names, the end of the last segment, and the newest producer
snapshot. After an unclean one, every segment from the recovery point on is read and checked.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import InvalidNameError, StratalogError
from stratalog.format.batch import BatchHeader
from stratalog.format.names import (
    FileKind,
    FileState,
    PartitionFile,
    parse_partition_dir,
    parse_partition_file,
    segment_file_name,
)
from stratalog.format.txn_index import check_sanity
from stratalog.log import snapshot_plan
from stratalog.log.log_state import LogState
from stratalog.log.partition_log import PartitionLog
from stratalog.log.producer_state import ProducerStateManager
from stratalog.log.producers import markers_in
from stratalog.log.replay import ProducerReload
from stratalog.log.side_files import SnapshotFiles, load_epochs
from stratalog.storage.segment import Segment
from stratalog.storage.segment_view import LoadedBatch, SegmentView

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stratalog.config import LogConfig
    from stratalog.log.epochs import LeaderEpochCache
    from stratalog.log.producer_state import ProducerStateConfig
    from stratalog.storage.disk import Disk

_INDEX_KINDS = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX)


class LoadPoint(NamedTuple):
    """What the checkpoints of the log directory say about one log."""

    log_start_offset: int = 0
    recovery_point: int = 0
    was_clean: bool = False
    """The last writer closed the directory in good order."""


_NOTHING_KNOWN: Final = LoadPoint()


def open_log(
    path: Path,
    config: LogConfig,
    *,
    disk: Disk,
    now_ms: Callable[[], int],
    point: LoadPoint = _NOTHING_KNOWN,
    producer_config: ProducerStateConfig | None = None,
) -> PartitionLog:
    """Load the partition in directory `path`, which is made if it is not there."""
    return _Loader(path, config, disk, now_ms, producer_config).load(point)


class _Loader:
    def __init__(
        self,
        path: Path,
        config: LogConfig,
        disk: Disk,
        now_ms: Callable[[], int],
        producer_config: ProducerStateConfig | None,
    ) -> None:
        self._path = path
        self._config = config
        self._disk = disk
        self._now_ms = now_ms
        self._producer_config = producer_config
        self._snapshots = SnapshotFiles(disk, path)
        self._epochs: LeaderEpochCache
        self._segments: list[Segment] = []

    def load(self, point: LoadPoint) -> PartitionLog:
        directory = parse_partition_dir(self._path.name)
        if directory is None:
            raise InvalidNameError(f"{self._path.name!r} is not the name of a partition")
        self._disk.mkdir(self._path, exist_ok=True)
        settle_files(self._disk, self._path)
        names = set(self._disk.list_names(self._path))
        self._snapshots = SnapshotFiles.found_in(self._disk, self._path, names)
        self._epochs = load_epochs(self._disk, self._path)
        self._open_segments(names, point)
        recovery_point = self._recover_unflushed(point)
        log_start_offset = self._settle_start(point.log_start_offset)
        end = self._segments[-1].next_offset
        self._segments[-1].become_active(now_ms=self._now_ms())
        self._trim_epochs(log_start_offset, end)
        producers = self._load_producers(log_start_offset, end, is_clean=point.was_clean)
        return PartitionLog(
            LogState(
                path=self._path,
                topic_partition=directory.topic_partition,
                config=self._config,
                disk=self._disk,
                now_ms=self._now_ms,
                segments=self._segments,
                log_start_offset=log_start_offset,
                recovery_point=end if point.was_clean else min(recovery_point, end),
                producers=producers,
                epochs=self._epochs,
                snapshots=self._snapshots,
            )
        )

    # -- segments

    def _open_segments(self, names: set[str], point: LoadPoint) -> None:
        """In name order, which is offset order. A segment without its offset index, or with a
        transaction index that cannot be, is recovered at once."""
        for name in sorted(names):
            file = _classify(name)
            if file is None or file.base_offset is None or file.state is not FileState.LIVE:
                continue
            log_name = segment_file_name(file.base_offset, FileKind.LOG)
            if file.kind in _INDEX_KINDS and log_name not in names:
                self._disk.unlink(self._path / name)
            elif file.kind is FileKind.LOG:
                size_bytes = self._disk.size_of(self._path / name) or 0
                segment = Segment(
                    self._disk, self._path / name, file.base_offset, size_bytes, self._config
                )
                self._segments.append(segment)
                if not _has_sound_indexes(segment, names):
                    self._recover(segment, point.log_start_offset)

    def _recover_unflushed(self, point: LoadPoint) -> int:
        """Check what may not have reached the disk; answers the recovery point.

        At the first segment that loses bytes, later ones go: they would leave a hole.
        """
        if point.was_clean or not self._segments:
            return point.recovery_point
        bases = [segment.base_offset for segment in self._segments]
        first = max(0, bisect_right(bases, point.recovery_point) - 1)
        for slot in range(first, len(self._segments)):
            segment = self._segments[slot]
            size_before = segment.size_bytes
            self._recover(segment, point.log_start_offset)
            if segment.size_bytes < size_before:
                self._drop(self._segments[slot + 1 :])
                del self._segments[slot + 1 :]
                break
        return point.recovery_point

    def _recover(self, segment: Segment, log_start_offset: int) -> None:
        """Rebuild one segment's indexes, the producers' part of them included."""
        producers = ProducerStateManager(self._producer_config)
        before = [other for other in self._segments if other.base_offset < segment.base_offset]
        if before:
            start_offset = max(log_start_offset, before[0].base_offset)
            reload = ProducerReload(producers, self._snapshots, before, start_offset)
            reload.run(segment.base_offset, self._now_ms())
        producers.map_end_offset = segment.base_offset

        def on_batch(batch: LoadedBatch) -> None:
            header = batch.header
            if not isinstance(header, BatchHeader):
                return
            if header.partition_leader_epoch > (self._epochs.latest_epoch or -1):
                self._epochs.assign(header.partition_leader_epoch, header.base_offset)
            markers = markers_in(batch.buf, [(batch.entry.position, header)])
            marker = markers.get(header.base_offset)
            if header.is_control and marker is None:
                return
            txn = producers.replay(header, marker)
            if txn is not None and txn.is_aborted:
                segment.append_aborted(txn.index_entry())

        survivors = segment.recover(on_batch)
        producers.map_end_offset = survivors.next_offset
        self._snapshots.take(producers)

    def _settle_start(self, checkpointed: int) -> int:
        """The log start; a log that ends below it has nothing left that may be seen."""
        if self._segments and self._segments[-1].next_offset < checkpointed:
            self._drop(self._segments)
            self._segments = []
            self._snapshots.delete(self._snapshots.offsets)
            self._epochs.clear()
        if not self._segments:
            now_ms = self._now_ms()
            segment = Segment.create(
                self._disk, self._path, checkpointed, self._config, now_ms=now_ms
            )
            self._segments = [segment]
        return max(checkpointed, self._segments[0].base_offset)

    def _drop(self, segments: list[Segment]) -> None:
        for segment in reversed(segments):
            segment.delete()
            self._snapshots.delete([segment.base_offset])

    # -- what is derived

    def _trim_epochs(self, log_start_offset: int, end: int) -> None:
        """Epochs outside the log are of records that were lost or deleted."""
        if self._epochs.truncate_from_end(end) | self._epochs.truncate_from_start(log_start_offset):
            self._epochs.flush()

    def _load_producers(
        self, log_start_offset: int, end: int, *, is_clean: bool
    ) -> ProducerStateManager:
        bases = [segment.base_offset for segment in self._segments]
        self._snapshots.delete(snapshot_plan.stray(self._snapshots.offsets, bases))
        producers = ProducerStateManager(self._producer_config, start_offset=log_start_offset)
        reload = ProducerReload(producers, self._snapshots, self._segments, log_start_offset)
        reload.run(end, self._now_ms(), is_clean=is_clean)
        return producers


def settle_files(disk: Disk, path: Path) -> None:
    """Finish or undo what a crash interrupted: deletions, and compaction's replacement of segments.

    Unfinished (`.cleaned`) files go, and with them finished ones at or above: they belong to the
    same replacement. Other `.swap` files are complete: the segments they stand for go, and they
    take their places.
    """
    for name, file in _files(disk, path):
        if file.state is FileState.DELETED and file.kind is not FileKind.METADATA_SNAPSHOT:
            disk.unlink(path / name)
    files = _files(disk, path)
    unfinished = [file.base_offset for _, file in files if file.state is FileState.CLEANED]
    first_unfinished = min((base for base in unfinished if base is not None), default=None)
    for name, file in files:
        base = file.base_offset
        is_undone = first_unfinished is not None and base is not None and base >= first_unfinished
        if file.state is FileState.CLEANED or (file.state is FileState.SWAP and is_undone):
            disk.unlink(path / name)
    _finish_swaps(disk, path)


def _finish_swaps(disk: Disk, path: Path) -> None:
    files = _files(disk, path)
    swaps = [(name, file) for name, file in files if file.state is FileState.SWAP]
    logs = [(name, file.base_offset) for name, file in swaps if file.kind is FileKind.LOG]
    if not swaps:
        return
    ranges = [
        (base, SegmentView(path / name, base, disk.size_of(path / name) or 0).end.next_offset)
        for name, base in logs
        if base is not None
    ]
    if ranges:
        first, end = min(base for base, _ in ranges), max(end for _, end in ranges)
        for name, file in files:
            base = file.base_offset
            if file.state is FileState.LIVE and base is not None and first <= base < end:
                disk.unlink(path / name)
    for name, _ in swaps:
        disk.rename(path / name, path / name.removesuffix(FileState.SWAP.value))
    disk.fsync_dir(path)


def _files(disk: Disk, path: Path) -> list[tuple[str, PartitionFile]]:
    found = ((name, _classify(name)) for name in sorted(disk.list_names(path)))
    return [(name, file) for name, file in found if file is not None]


def _classify(name: str) -> PartitionFile | None:
    try:
        return parse_partition_file(name)
    except InvalidNameError:
        return None


def _has_sound_indexes(segment: Segment, names: set[str]) -> bool:
    if segment.sibling(FileKind.OFFSET_INDEX).name not in names:
        return segment.size_bytes == 0
    if segment.sibling(FileKind.TXN_INDEX).name not in names:
        return True
    try:
        check_sanity(segment.txn_index.read(), segment.base_offset)
    except StratalogError:
        return False
    return True
