"""Opens a log for writing, and recovers it after a crash: truncates it and rebuilds its indexes.

The steps are those of Kafka's loader. Each leaves the directory in a state from which loading
again has the same result, so a crash while loading costs nothing but time.

After a clean stop, what is read is the names, the newest producer snapshot, and the last segment:
each of its batches with its CRC. A crash cannot explain a corrupt batch there, so opening fails
with FlushedCorruptionError, and the log is neither truncated nor appended to. Earlier segments are
read only if an index file is missing; `verify` reads everything.

After an unclean stop, every segment from the recovery point on is read and checked. The log is
truncated before the first corrupt batch, as in Kafka, and a warning lists what was dropped.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from stratalog.errors import CorruptBatchError, InvalidNameError, OffsetOverflowError
from stratalog.format.batch import NO_LEADER_EPOCH, BatchHeader
from stratalog.format.checkpoint import EpochEntry
from stratalog.format.names import (
    FileKind,
    FileState,
    known_partition_file,
    parse_partition_dir,
    segment_file_name,
)
from stratalog.log.aborted_transactions import AbortedLookup
from stratalog.log.epochs import load_epochs, rebuild_epochs
from stratalog.log.log_state import LogState
from stratalog.log.partition_log import PartitionLog
from stratalog.log.producer_state_manager import ProducerStateManager
from stratalog.log.producer_transitions import markers_in
from stratalog.log.segment_list import SegmentList
from stratalog.log.snapshot_files import ProducerReload, SnapshotFiles, stray_snapshots
from stratalog.maintenance.interrupted_changes import (
    create_directory,
    finish_swaps,
    split_segment,
)
from stratalog.maintenance.recovery_plan import (
    LoadPoint,
    Truncation,
    first_unflushed,
    flushed_end,
    has_sound_indexes,
    refuse_corruption,
    refuse_overflow,
    truncation_of,
    truncation_of_all,
)
from stratalog.storage.segment import Segment
from stratalog.storage.segment_view import SegmentView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from stratalog.config import LogConfig
    from stratalog.format.names import TopicPartition
    from stratalog.log.epochs import LeaderEpochCache
    from stratalog.log.producer_state_manager import ProducerStateConfig
    from stratalog.storage.disk import Disk
    from stratalog.storage.recovery import ValidPart
    from stratalog.storage.segment_view import LoadedBatch

_INDEX_KINDS = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX)


__all__ = ["LoadPoint", "open_log"]

_NOTHING_KNOWN: Final = LoadPoint()
_log = logging.getLogger(__name__)


def open_log(  # noqa: PLR0913  # independent choices, all but two by keyword
    path: Path,
    config: LogConfig,
    *,
    disk: Disk,
    now_ms: Callable[[], int],
    point: LoadPoint = _NOTHING_KNOWN,
    producer_config: ProducerStateConfig | None = None,
    on_truncation: Callable[[Truncation], None] | None = None,
) -> PartitionLog:
    """Load the partition in directory `path`, which is created if it does not exist.

    Every truncation is logged as a warning and passed to `on_truncation` before it happens.
    """
    loader = _Loader(path, config, disk, now_ms, producer_config)
    loader.on_truncation = on_truncation
    return loader.load(point)


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
        self.on_truncation: Callable[[Truncation], None] | None = None
        self._config = config
        self._disk = disk
        self._now_ms = now_ms
        self._producer_config = producer_config
        self._snapshots = SnapshotFiles(disk, path)
        self._epochs: LeaderEpochCache
        self._segments: list[Segment] = []
        self._recovered: list[int] = []
        self._topic_partition: TopicPartition

    def load(self, point: LoadPoint) -> PartitionLog:
        directory = parse_partition_dir(self._path.name)
        if directory is None:
            raise InvalidNameError(f"{self._path.name!r} is not the name of a partition")
        self._topic_partition = directory.topic_partition
        path, disk = self._path, self._disk
        create_directory(disk, path)
        while True:
            finish_swaps(disk, path)
            try:
                self._load_segments(point)
                break
            except OffsetOverflowError as error:
                split_segment(disk, path, error.base_offset)
        log_start_offset = self._resolve_start(point.log_start_offset)
        self._activate_last(point)
        self._rebuild_last_txn_index()
        end = self._segments[-1].next_offset
        last_batch = self._last_batch()
        if last_batch is not None and last_batch.last_offset >= log_start_offset:
            self._check_epochs(last_batch)
        leader_epoch = self._last_epoch(last_batch)
        self._trim_epochs(
            point.log_start_offset if point.is_start_checkpointed else log_start_offset, end
        )
        producers = self._load_producers(log_start_offset, end, is_clean=point.was_clean)
        return PartitionLog(
            LogState(
                path=path,
                topic_partition=directory.topic_partition,
                config=self._config,
                disk=disk,
                now_ms=self._now_ms,
                segments=self._segments,
                log_start_offset=log_start_offset,
                recovery_point=end if point.was_clean else min(point.recovery_point, end),
                unsynced_from=min([end, *self._recovered]),
                leader_epoch=leader_epoch,
                producers=producers,
                epochs=self._epochs,
                snapshots=self._snapshots,
            )
        )

    # -- segments

    def _load_segments(self, point: LoadPoint) -> None:
        names = set(self._disk.list_names(self._path))
        self._snapshots = SnapshotFiles.found_in(self._disk, self._path, names)
        self._segments = self._find_segments(names)
        unflushed = first_unflushed([segment.base_offset for segment in self._segments], point)
        if not point.was_clean:
            self._drop_caches(self._segments[unflushed:])
        self._epochs = load_epochs(self._disk, self._path, self._epochs_in_log)
        for segment in self._segments[:unflushed]:
            self._check_indexes(segment, names, point)
        slot = unflushed
        while slot < len(self._segments):  # recovery may shorten the list
            self._recover(self._segments[slot], point.log_start_offset, drops_later=True)
            slot += 1

    def _drop_caches(self, unflushed: Iterable[Segment]) -> None:
        """Recovery must read what is on the disk. After a failed fsync the page cache may still
        hold what was never written."""
        paths = [segment.path for segment in unflushed]
        paths += [self._snapshots.path_of(offset) for offset in self._snapshots.offsets]
        paths.append(self._path / FileKind.LEADER_EPOCHS.value)
        for path in paths:
            if self._disk.exists(path):
                self._disk.drop_cache(path)

    def _find_segments(self, names: set[str]) -> list[Segment]:
        """Find the segments, in offset order. Delete index files without a log."""
        segments = []
        for name in sorted(names):
            file = known_partition_file(name)
            if file is None or file.base_offset is None or file.state is not FileState.LIVE:
                continue
            path = self._path / name
            log_name = segment_file_name(file.base_offset, FileKind.LOG)
            if file.kind in _INDEX_KINDS and log_name not in names:
                self._disk.unlink(path)
            elif file.kind is FileKind.LOG:
                size_bytes = self._disk.size_of(path) or 0
                segments.append(
                    Segment(self._disk, path, file.base_offset, size_bytes, self._config)
                )
        return segments

    def _check_indexes(self, segment: Segment, names: set[str], point: LoadPoint) -> None:
        """A flushed segment without an offset index, or with an invalid transaction index, is
        recovered too. If that loses bytes, no crash explains it: later segments are kept, and a
        log that was closed cleanly is not opened."""
        log, base_offset = segment.path, segment.base_offset
        if not has_sound_indexes(log, base_offset, segment.size_bytes, names):
            self._recover_flushed(segment, point)
        elif segment.sibling(FileKind.TIME_INDEX).name not in names:
            self._add_time_index(segment, point)

    def _add_time_index(self, segment: Segment, point: LoadPoint) -> None:
        """Brokers before 0.10 wrote none, for their messages had no timestamps."""
        first = segment.reader.peek(0)
        if first is None or first.magic == 0:
            path = segment.sibling(FileKind.TIME_INDEX)
            self._disk.write_file(path, b"", is_synced=False)
        else:
            self._recover_flushed(segment, point)

    def _recover_flushed(self, segment: Segment, point: LoadPoint) -> None:
        if point.was_clean:
            self._refuse_corruption(segment, point)
        self._recover(segment, point.log_start_offset)

    def _refuse_corruption(self, segment: Segment, point: LoadPoint) -> None:
        """Read a segment of a log that was closed cleanly. Raises FlushedCorruptionError if a batch
        is corrupt; bytes that follow all that was flushed may still be an interrupted write."""
        try:
            valid_part = segment.check()
        except OffsetOverflowError as error:
            refuse_overflow(segment.view(), error, point)
            return  # intact; only a log that is recovered has such segments split
        bases = [each.base_offset for each in self._segments]
        end = flushed_end(bases, segment.base_offset, point)
        refuse_corruption(segment.view(), valid_part, point, end)

    def _recover(
        self, segment: Segment, log_start_offset: int, *, drops_later: bool = False
    ) -> None:
        """Rebuild one segment's indexes, the producers' part of them included.

        With `drops_later`, later segments are deleted if this one loses bytes: they would leave a
        gap."""
        producers = self._producers_before(segment, log_start_offset)
        self._recovered.append(segment.base_offset)
        valid_part = segment.recover(
            partial(self._replay, segment, producers),
            before_truncation=partial(self._before_truncation, segment, drops_later=drops_later),
        )
        producers.map_end_offset = valid_part.next_offset
        self._snapshots.take(producers)

    def _producers_before(self, segment: Segment, log_start_offset: int) -> ProducerStateManager:
        """The state of producers at the start of the segment."""
        producers = ProducerStateManager(self._producer_config)
        before = [other for other in self._segments if other.base_offset < segment.base_offset]
        if before:
            start_offset = max(log_start_offset, before[0].base_offset)
            reload = ProducerReload(producers, self._snapshots, before, start_offset)
            reload.run(segment.base_offset, self._now_ms())
        producers.map_end_offset = segment.base_offset
        return producers

    def _replay(
        self, segment: Segment, producers: ProducerStateManager, batch: LoadedBatch
    ) -> None:
        """Apply a batch to leader epochs, producers and aborted transactions."""
        header = batch.header
        if not isinstance(header, BatchHeader):
            return
        if header.partition_leader_epoch > _or_none(self._epochs.latest_epoch):
            self._epochs.assign(header.partition_leader_epoch, header.base_offset)
        marker = markers_in(batch.buf, [(batch.entry.position, header)]).get(header.base_offset)
        if header.is_control and marker is None:
            return
        txn = producers.replay(header, marker)
        if txn is not None and txn.is_aborted:
            segment.append_aborted(txn.index_entry())

    def _before_truncation(
        self, segment: Segment, valid_part: ValidPart, *, drops_later: bool
    ) -> None:
        slot = self._segments.index(segment) + 1 if drops_later else len(self._segments)
        later = self._segments[slot:]
        views = [_full_view(each) for each in later]
        self._report(truncation_of(self._topic_partition, _full_view(segment), valid_part, views))
        self._drop(later)
        del self._segments[slot:]

    def _report(self, truncation: Truncation) -> None:
        _log.warning("%s", truncation)
        if self.on_truncation is not None:
            self.on_truncation(truncation)

    def _resolve_start(self, checkpointed: int) -> int:
        """Determine the log start offset. Delete a log that ends below it: readers cannot see any
        of it."""
        if self._segments and self._segments[-1].next_offset < checkpointed:
            views = [_full_view(segment) for segment in self._segments]
            end = self._segments[-1].next_offset
            self._report(truncation_of_all(self._topic_partition, views, end, checkpointed))
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

    def _activate_last(self, point: LoadPoint) -> None:
        """A log that does not end with a complete batch was not closed cleanly, whatever the marker
        says; unless flushed bytes are missing. That is corruption and is never truncated."""
        segment = self._segments[-1]
        if point.was_clean and segment.base_offset not in self._recovered:
            self._refuse_corruption(segment, point)
        try:
            segment.become_active(now_ms=self._now_ms())
        except CorruptBatchError:
            self._recover(segment, point.log_start_offset)
            segment.become_active(now_ms=self._now_ms())

    def _rebuild_last_txn_index(self) -> None:
        """Rebuild a missing or truncated transaction index of the active segment, which would stay
        incomplete otherwise. For earlier segments the log itself is searched when aborted
        transactions are needed: reading all headers of a large log would slow down opening it."""
        segment = self._segments[-1]
        if segment.base_offset in self._recovered or not segment.size_bytes:
            return
        views = SegmentList([each.view() for each in self._segments])
        missing = AbortedLookup(views, self._snapshots.listed).missing_at_end()
        if missing is not None:
            entries = b"".join(txn.pack() for txn in missing.aborted)
            self._disk.write_atomically(missing.path, entries)
            _log.warning(
                "%s: missing or truncated, although %d transactions were aborted in this segment; "
                "rebuilt from the log",
                missing.path,
                len(missing.aborted),
            )

    def _drop(self, segments: list[Segment]) -> None:
        """Delete segments from the last one down, each durably, so that a crash never leaves a
        gap."""
        for segment in reversed(segments):
            segment.delete()
            self._snapshots.delete([segment.base_offset])
            self._disk.fsync_dir(self._path)

    # -- epochs and producers

    def _epochs_in_log(self) -> Iterator[EpochEntry]:
        """Where leader epochs begin, according to the batches of all segments."""
        latest = NO_LEADER_EPOCH
        for segment in self._segments:
            view = segment.view()
            for position, header in view.walk_headers():
                epoch = header.partition_leader_epoch
                if epoch > latest and view.is_valid(position):
                    latest = epoch
                    yield EpochEntry(epoch, header.base_offset)
            segment.release()

    def _last_batch(self) -> BatchHeader | None:
        """The last batch of magic 2, in the last segment that has batches."""
        found = None
        segment = next((each for each in reversed(self._segments) if each.size_bytes), None)
        if segment is not None:
            view = segment.view()
            last = view.offset_index.last()
            for _, header in view.walk_headers(0 if last is None else last[2]):
                found = header
        return found

    def _check_epochs(self, last_batch: BatchHeader) -> None:
        """Rebuild the epochs if the last batch contradicts the checkpoint. Kafka does not check
        this, but gets the epoch of its next batch from the controller."""
        epoch = last_batch.partition_leader_epoch
        known = self._epochs.epoch_for_offset(last_batch.last_offset)
        if epoch not in {NO_LEADER_EPOCH, known}:
            reason = (
                f"the batch at offset {last_batch.base_offset} has leader epoch {epoch}, the file "
                f"has {'none' if known is None else known}"
            )
            entries = self._epochs_in_log()
            self._epochs = rebuild_epochs(self._disk, self._path, entries, reason)

    def _last_epoch(self, last_batch: BatchHeader | None) -> int:
        """Leader epoch of the last leader, so that epochs never decrease; 0 if it is not known.

        Epochs that wrote nothing are dropped by the next opening, and a log start at the very end
        hides all others; then the last batch decides.
        """
        latest = self._epochs.latest_epoch
        if latest is None and last_batch is not None:
            latest = last_batch.partition_leader_epoch
        return max(0, _or_none(latest))

    def _trim_epochs(self, start: int, end: int) -> None:
        """Drop epochs outside the log: their records were lost or deleted.

        Like Kafka's loader, leaves an empty file where there was none.
        """
        if self._epochs.truncate_from_end(end) | self._epochs.truncate_from_start(start):
            self._epochs.flush()
        path = self._path / FileKind.LEADER_EPOCHS.value
        if not self._disk.exists(path):
            self._disk.write_file(path, b"", is_synced=False)

    def _load_producers(
        self, log_start_offset: int, end: int, *, is_clean: bool
    ) -> ProducerStateManager:
        bases = [segment.base_offset for segment in self._segments]
        self._snapshots.delete(stray_snapshots(self._snapshots.offsets, bases))
        producers = ProducerStateManager(self._producer_config, start_offset=log_start_offset)
        reload = ProducerReload(producers, self._snapshots, self._segments, log_start_offset)
        reload.run(end, self._now_ms(), is_clean=is_clean)
        return producers


def _or_none(epoch: int | None) -> int:
    return NO_LEADER_EPOCH if epoch is None else epoch


def _full_view(segment: Segment) -> SegmentView:
    """The complete file, whether or not all of it is valid."""
    return SegmentView(segment.path, segment.base_offset, segment.size_bytes)
