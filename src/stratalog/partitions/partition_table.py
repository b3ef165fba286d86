"""The partitions of all log directories: where each is. A log is opened when it is first used.

The table knows directories, not topics. The catalog decides what changes, and records each change
first, so that a crash in the middle can be repaired. It also serializes the changes.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from stratalog.errors import FlushedCorruptionError, LogOfflineError, StratalogError
from stratalog.format.batch import NO_LEADER_EPOCH
from stratalog.format.directory_metadata import PartitionMetadata, encode_partition_metadata
from stratalog.format.names import FileKind
from stratalog.log.epochs import read_latest_epoch
from stratalog.maintenance.recovery_plan import LoadPoint

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterable, Sequence

    from stratalog.format.names import TopicPartition
    from stratalog.log.partition_log import PartitionLog
    from stratalog.partitions.root import LogContext, LogRoot

CREATE_THREADS: Final = 8
"""How many partitions are created at a time. Most of the time they wait for the disk."""


class PartitionSlot:
    """The place of one partition in a log directory. Opens its log when that is first used."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        root: LogRoot,
        load: Callable[[PartitionSlot, LoadPoint], PartitionLog],
    ) -> None:
        self.topic_partition = topic_partition
        self.root = root
        self.path = root.path / str(topic_partition)
        self._load = load
        self._lock = threading.Lock()
        self._is_retired = False
        self.loaded: PartitionLog | None = None
        """The log, if it was opened."""
        self._epochs_before = 0  # truncation epochs of the logs that were opened before this one
        self._pending_commit_offset: int | None = None
        self._announced_epoch = NO_LEADER_EPOCH
        self.remote_start: int | None = None
        """Where the log starts in a broker's remote storage, if before its first segment."""

    @property
    def has_pending_commit(self) -> bool:
        """Whether a bulk commit to this partition is not recorded as installed. Its batches in the
        log show how much is installed; without them the commit would append its records again. So
        the log is not compacted, and retention stops where the commit begins."""
        return self._pending_commit_offset is not None

    def set_pending_commit(self, start_offset: int | None) -> None:
        """A bulk commit that begins at this offset is not recorded as installed; None: it is."""
        with self._lock:
            self._pending_commit_offset = start_offset
            if self.loaded is not None:
                self.loaded.maintenance.pending_commit_offset = start_offset

    @property
    def truncation_epoch(self) -> int:
        """Incremented when the log is truncated, or opened again after a failure."""
        log = self.loaded
        return self._epochs_before + (0 if log is None else log.truncation_epoch)

    @property
    def start_to_checkpoint(self) -> int | None:
        """The log start offset for the checkpoint; None if it is the first segment's base offset,
        which needs no entry."""
        log = self.loaded
        if log is not None and log.log_start_offset > log.segments.bases[0]:
            return log.log_start_offset
        return self.remote_start

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read. Does not open the log."""
        if self.loaded is not None:
            return self.loaded.log_start_offset == self.loaded.log_end_offset
        return not any(path.stat().st_size for path in self.path.glob("*.log"))

    @property
    def leader_epoch(self) -> int:
        """The current leader epoch. Does not open the log. A log that is opened later starts with
        this epoch or a newer one, because clients reject a leader whose epoch has decreased."""
        log = self.loaded
        if log is not None:
            return log.leader_epoch
        if self._announced_epoch < 0:
            self._announced_epoch = max(0, read_latest_epoch(self.path))
        return self._announced_epoch

    def log(self) -> PartitionLog:
        """The log, opened (and recovered, if needed) at first use, and again after a close or a
        failed write."""
        log = self.loaded
        if log is not None and log.is_usable:
            return log
        self.root.check_online()  # first: in a forked child nobody may ever release the lock
        with self._lock:
            if self._is_retired:
                raise LogOfflineError(
                    self.path,
                    "the partition is deleted, or is being deleted, or its LogDir is closed",
                )
            if self.loaded is None:
                point = self.root.load_point(self.topic_partition)
                self.loaded = self._open(point)
                if self.root.offline_reason is not None:  # since the check above
                    self.loaded.take_offline(self.root.offline_reason)
                if (
                    point.is_start_checkpointed
                    and point.log_start_offset < self.loaded.segments.bases[0]
                ):
                    self.remote_start = point.log_start_offset
            elif not self.loaded.is_usable:
                self.loaded = self._reopen(self.loaded)
            return self.loaded

    def _reopen(self, log: PartitionLog) -> PartitionLog:
        log.close()  # a failed log may still hold open files
        self._epochs_before += log.truncation_epoch + 1
        start = self.start_to_checkpoint
        offset = log.log_start_offset if start is None else start
        return self._open(
            LoadPoint(offset, log.recovery_point, is_start_checkpointed=start is not None)
        )

    def _open(self, point: LoadPoint) -> PartitionLog:
        try:
            log = self._load(self, point)
        except FlushedCorruptionError:
            raise  # unchanged; an unclean shutdown would let the next writer truncate it
        except BaseException:
            self.root.needs_recovery = True  # a repair may be incomplete
            raise
        log.maintenance.pending_commit_offset = self._pending_commit_offset
        if log.leader_epoch < self._announced_epoch:
            log.become_leader(self._announced_epoch)
        return log

    def delete_records(self, before_offset: int) -> int:
        """See `PartitionLog.delete_records`. Also applies to records in a broker's remote
        storage."""
        log = self.log()
        start_before = log.log_start_offset
        start = log.delete_records(before_offset)
        if self.remote_start is not None and start > start_before:
            self.remote_start = start
        return start

    def flush(self) -> None:
        """See `PartitionLog.flush`."""
        self.log().flush()

    @property
    def is_retired(self) -> bool:
        """Whether it is being deleted, or its LogDir was closed."""
        return self._is_retired

    def retire(self) -> PartitionLog | None:
        """Never open it again. Returns the log if it is open: the caller closes it."""
        with self._lock:
            self._is_retired = True
            return self.loaded


class PartitionTable:
    """The partitions of all log directories. Lookups need no lock."""

    def __init__(
        self,
        roots: Sequence[LogRoot],
        context: LogContext,
        load: Callable[[PartitionSlot, LoadPoint], PartitionLog],
    ) -> None:
        """Starts with the partitions that the roots have found. `load` opens a partition's log."""
        self._roots = roots
        self._disk = context.disk
        self._now_ms = context.now_ms
        self._load = load
        self._slots: dict[TopicPartition, PartitionSlot] = {}
        for root in roots:
            for topic_partition in root.found:
                self._add(root, topic_partition)

    def _add(self, root: LogRoot, topic_partition: TopicPartition) -> PartitionSlot:
        slot = PartitionSlot(topic_partition, root, self._load)
        self._slots[topic_partition] = root.slots[topic_partition] = slot
        return slot

    def find(self, topic_partition: TopicPartition) -> PartitionSlot | None:
        """A partition's slot, if it exists."""
        return self._slots.get(topic_partition)

    def slots(self) -> list[PartitionSlot]:
        """The slots of all partitions."""
        return list(self._slots.values())

    # -- creating

    def create(
        self, topic_partitions: Iterable[TopicPartition], topic_id: uuid.UUID | None
    ) -> None:
        """Create partitions that are missing, and complete those that a crash left incomplete."""
        slots = [self._slots.get(tp) or self._add(self._root_for(), tp) for tp in topic_partitions]
        with ThreadPoolExecutor(CREATE_THREADS, thread_name_prefix="stratalog-create") as pool:
            list(pool.map(partial(self._create, topic_id=topic_id), slots))
        for root in {slot.root for slot in slots}:
            self._disk.fsync_dir(root.path)

    def _root_for(self) -> LogRoot:
        """As in Kafka, a new partition goes to the log directory with the fewest partitions."""
        online = [root for root in self._roots if root.offline_reason is None] or self._roots
        return min(online, key=lambda root: len(root.slots))

    def _create(self, slot: PartitionSlot, *, topic_id: uuid.UUID | None) -> None:
        self._disk.mkdir(slot.path, exist_ok=True)
        if topic_id is not None:
            path = slot.path / FileKind.PARTITION_METADATA.value
            metadata = encode_partition_metadata(PartitionMetadata(topic_id))
            self._disk.write_atomically(path, metadata)
        log = slot.log()
        if not log.epochs.entries:
            log.become_leader(log.leader_epoch)

    # -- removing

    def remove(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions whose creation failed, at once."""
        for topic_partition in topic_partitions:
            slot = self._slots.pop(topic_partition, None)
            if slot is not None:
                _close_quietly(slot.retire())
                slot.root.drop([topic_partition])
                self._disk.remove_tree(slot.path)
                self._disk.fsync_dir(slot.root.path)

    def retire(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Close partitions that will be deleted: no more writes are acknowledged there."""
        for topic_partition in topic_partitions:
            slot = self._slots.get(topic_partition)
            if slot is not None:
                _close_quietly(slot.retire())

    def delete(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Delete partitions: their names are free at once, their files are removed later."""
        deleted: dict[LogRoot, list[TopicPartition]] = {}
        try:
            for topic_partition in topic_partitions:
                slot = self._slots.get(topic_partition)
                if slot is None:
                    continue  # deleted by an earlier attempt
                _close_quietly(slot.retire())
                slot.root.pending_deletes.add(slot.path, topic_partition, self._now_ms())
                del self._slots[topic_partition]
                deleted.setdefault(slot.root, []).append(topic_partition)
        finally:
            for root, gone in deleted.items():
                self._disk.fsync_dir(root.path)
                root.drop(gone)


def _close_quietly(log: PartitionLog | None) -> None:
    """Close a log whose files are no longer needed."""
    if log is not None:
        with suppress(StratalogError):
            log.close()
