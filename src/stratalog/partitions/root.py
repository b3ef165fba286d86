"""One log directory that is open for writing: its partitions, checkpoints and shutdown marker.

Invariants:

* the clean-shutdown marker is removed, durably, before anything in the directory changes, and is
  written last: a crash in between is an unclean shutdown, whatever else reached the disk;
* a checkpoint file is replaced atomically, so after a crash it has its old or its new content;
* a checkpoint has no entry for a partition that is not here: a topic of the same name may be
  created again, and must not start with the offsets of its predecessor.

A partition is opened when it is first used; until then its checkpointed offsets are written back
unchanged. Only after an unclean shutdown are all partitions opened, so that all are recovered.

After a failed fsync nobody knows what the disk holds: the kernel may have dropped the pages it
could not write, and the next fsync may still succeed. So the directory goes offline, as in
Kafka: nothing more is written to it, no checkpoint and no shutdown marker. The next writer recovers
it from the recovery points on.
"""

from __future__ import annotations

import logging
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import CorruptError, LogOfflineError, StorageError, StratalogError
from stratalog.format.checkpoint import encode_offsets
from stratalog.format.directory_metadata import decode_clean_shutdown, encode_clean_shutdown
from stratalog.format.names import CLUSTER_METADATA_TOPIC, DirState, RootFile, directory_name
from stratalog.format.times import current_time_ms
from stratalog.maintenance.recovery_plan import LoadPoint
from stratalog.storage.disk import Disk
from stratalog.storage.log_dir_scan import read_offset_checkpoint
from stratalog.storage.log_file import read_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from stratalog.config import BrokerConfig
    from stratalog.errors import FsyncError
    from stratalog.format.names import TopicPartition
    from stratalog.log.partition_log import PartitionLog
    from stratalog.partitions.partition_table import PartitionSlot
    from stratalog.partitions.view import LogDirView

NO_BROKER_EPOCH: Final = -1
CHECKPOINTS: Final = (
    RootFile.RECOVERY_POINTS,
    RootFile.LOG_START_OFFSETS,
    RootFile.HIGH_WATERMARKS,
)

_log = logging.getLogger(__name__)


class LogContext(NamedTuple):
    """What every part of an open log directory needs."""

    disk: Disk
    now_ms: Callable[[], int]
    config: BrokerConfig

    @classmethod
    def of(
        cls, config: BrokerConfig, disk: Disk | None = None, now_ms: Callable[[], int] | None = None
    ) -> LogContext:
        """Create a context. The defaults are the local disk and the wall clock."""
        return cls((disk or Disk()).for_this_process(), now_ms or current_time_ms, config)


class LastShutdown(NamedTuple):
    """How the last writer of the directory stopped."""

    was_clean: bool
    broker_epoch: int = NO_BROKER_EPOCH
    """Epoch of the broker that stopped cleanly. It is written back, because the broker sends it to
    its controller."""


class LogRoot:
    """A log directory. Creating the object changes nothing on disk; `start` does."""

    def __init__(self, view: LogDirView, context: LogContext) -> None:
        view.check_writable()
        self.path = view.path
        self.meta = view.meta_properties
        self.last_shutdown = LastShutdown(was_clean=False)
        self.needs_recovery = False
        """Whether closing must not mark the directory as cleanly shut down: opening a partition
        failed, or recovery of transactions was left to the next writer."""
        self.offline_reason: str | None = None
        """Why nothing more may be written here."""
        self.slots: dict[TopicPartition, PartitionSlot] = {}
        self.found: list[TopicPartition] = []
        """The partitions that were here when the directory was listed."""
        self.pending_deletes = PendingDeletes(
            context.disk, context.config.log_config.file_delete_delay_ms
        )
        self._deleted: list[Path] = []
        for path, directory in view.partitions:
            if directory.topic_partition.topic == CLUSTER_METADATA_TOPIC:
                continue  # not a partition of Kafka's log manager
            if directory.state is DirState.LIVE:
                self.found.append(directory.topic_partition)
            elif directory.state is DirState.DELETE:
                self._deleted.append(path)
        self._disk = context.disk
        self._now_ms = context.now_ms
        self._lock = threading.Lock()
        self._cleaner_lock = threading.Lock()
        self._offsets: dict[RootFile, dict[TopicPartition, int]] = {}

    def start(self) -> None:
        """Become the writer: from here on a crash is an unclean shutdown."""
        self.last_shutdown = self._take_clean_shutdown()
        present = set(self.found)
        for file in CHECKPOINTS:
            offsets = self._read_offsets(file)
            self._offsets[file] = {tp: offsets[tp] for tp in offsets if tp in present}
            if len(self._offsets[file]) < len(offsets):
                self._write_offsets(file, self._offsets[file])
        for path in self._deleted:
            self.pending_deletes.adopt(path)

    def _take_clean_shutdown(self) -> LastShutdown:
        """Read the clean-shutdown marker and remove it."""
        path = self.path / RootFile.CLEAN_SHUTDOWN.value
        try:
            content = read_file(path)
        except FileNotFoundError:
            return LastShutdown(was_clean=False)
        self._disk.unlink(path)
        self._disk.fsync_dir(self.path)
        try:
            epoch = decode_clean_shutdown(content)
        except StratalogError as error:  # its existence is what matters
            _log.warning("%s: %s", path, error)
            epoch = None
        epoch = NO_BROKER_EPOCH if epoch is None else epoch
        return LastShutdown(was_clean=True, broker_epoch=epoch)

    def load_point(self, topic_partition: TopicPartition) -> LoadPoint:
        """Where the checkpoints and the last shutdown let a partition start."""
        start = self._offsets[RootFile.LOG_START_OFFSETS].get(topic_partition, -1)
        return LoadPoint(
            max(start, 0),
            self._offsets[RootFile.RECOVERY_POINTS].get(topic_partition, 0),
            self.last_shutdown.was_clean,
            is_start_checkpointed=start >= 0,
        )

    # -- going offline

    def take_offline(self, reason: str) -> None:
        """Refuse every change to this directory until it is opened again. Never blocks."""
        if self.offline_reason is None:
            self.offline_reason = reason
            for slot in list(self.slots.values()):
                if slot.loaded is not None:
                    slot.loaded.take_offline(reason)

    def on_failed_fsync(self, error: FsyncError) -> None:
        """Take the directory offline if the file is in it."""
        if self.offline_reason is None and error.path.is_relative_to(self.path):
            _log.error("%s: offline until it is opened again: %s", self.path, error)
            self.take_offline(f"its log directory is offline: {error}")

    def check_online(self) -> None:
        """Raise LogOfflineError if the directory was taken offline."""
        if self.offline_reason is not None:
            raise LogOfflineError(self.path, self.offline_reason)

    # -- checkpoints

    def checkpoint(self, files: Iterable[RootFile] = CHECKPOINTS) -> None:
        """Write the offset checkpoints that have changed; none while offline."""
        if self.offline_reason is not None:
            return
        with self._lock:
            for file in files:
                offsets = self._current_offsets(file)
                if offsets != self._offsets[file]:
                    self._write_offsets(file, offsets)
                    self._offsets[file] = offsets

    def _current_offsets(self, file: RootFile) -> dict[TopicPartition, int]:
        offsets = {}
        known = self._offsets[file]
        for topic_partition, slot in list(self.slots.items()):
            log = slot.loaded
            value = known.get(topic_partition) if log is None else _offset_of(slot, log, file)
            if value is not None:
                offsets[topic_partition] = value
        return offsets

    def drop(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions that have left the directory from all four checkpoints."""
        gone = set(topic_partitions)
        with self._lock:
            for topic_partition in gone:
                self.slots.pop(topic_partition, None)
        self.checkpoint()
        with self._cleaner_lock:
            offsets = self.cleaner_offsets()
            self._write_cleaner_offsets({tp: offsets[tp] for tp in offsets if tp not in gone})

    def cleaner_offsets(self) -> dict[TopicPartition, int]:
        """The first dirty offset of each partition that was cleaned."""
        return self._read_offsets(RootFile.CLEANER_OFFSETS)

    def set_cleaner_offset(
        self, slot: PartitionSlot, offset: int, *, truncation_epoch: int | None = None
    ) -> None:
        """Write the cleaner checkpoint of a partition, and drop those of partitions that are gone.

        Nothing is written for a deleted partition: one of the same name created since is another.
        With `truncation_epoch`, nothing is written if the log was truncated since then.
        """
        with self._cleaner_lock:
            is_current = truncation_epoch in {None, slot.truncation_epoch}
            if self.slots.get(slot.topic_partition) is slot and is_current:
                offsets = self.cleaner_offsets()
                present = {tp: offsets[tp] for tp in offsets if tp in self.slots}
                self._write_cleaner_offsets({**present, slot.topic_partition: offset})

    def lower_cleaner_offset(self, slot: PartitionSlot, offset: int) -> None:
        """A log is about to be truncated: what is appended from `offset` on is dirty. If it counted
        as clean, a tombstone there could be removed before the value that it deletes."""
        with self._cleaner_lock:
            offsets = self.cleaner_offsets()
            is_here = self.slots.get(slot.topic_partition) is slot
            if is_here and offsets.get(slot.topic_partition, 0) > offset:
                self._write_cleaner_offsets({**offsets, slot.topic_partition: offset})

    def _write_cleaner_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        if self.offline_reason is None and offsets != self.cleaner_offsets():
            self._write_offsets(RootFile.CLEANER_OFFSETS, offsets)

    def _read_offsets(self, file: RootFile) -> dict[TopicPartition, int]:
        """As in Kafka, an unreadable file counts as missing: recovery then starts at offset 0, and
        a log starts with its first segment."""

        def warn(error: StratalogError) -> None:
            reason = error.reason if isinstance(error, CorruptError) else error
            path = self.path / file.value
            _log.warning("%s: ignored, because it cannot be read: %s", path, reason)

        try:
            return read_offset_checkpoint(self.path, file, on_corrupt=warn)
        except StratalogError as error:
            warn(error)
            return {}

    def _write_offsets(self, file: RootFile, offsets: Mapping[TopicPartition, int]) -> None:
        self._disk.write_atomically(self.path / file.value, encode_offsets(offsets))

    # -- closing

    def close(self, threads: int) -> list[Exception]:
        """Close all logs and mark the shutdown as clean. Returns the errors that prevented it.

        A partition that was never opened is in the state in which it was found.
        """
        logs = [slot.retire() for slot in self.slots.values()]
        opened = [log for log in logs if log is not None]
        errors = _close_all(opened, threads)
        if self.offline_reason is not None:
            return [*errors, LogOfflineError(self.path, self.offline_reason)]
        self.pending_deletes.remove_expired(self._now_ms())
        is_recovered = self.last_shutdown.was_clean or len(opened) == len(logs)
        has_failed = self.needs_recovery or any(log.has_failed for log in opened)
        try:
            self.checkpoint()
            if is_recovered and not has_failed:
                path = self.path / RootFile.CLEAN_SHUTDOWN.value
                content = encode_clean_shutdown(self.last_shutdown.broker_epoch)
                self._disk.write_atomically(path, content)
        except StratalogError as error:
            errors.append(error)
        return errors


def _close_all(logs: list[PartitionLog], threads: int) -> list[Exception]:
    try:
        with ThreadPoolExecutor(threads, thread_name_prefix="stratalog-close") as pool:
            results = list(pool.map(_close, logs))
    except RuntimeError:  # Python is shutting down and starts no more threads
        results = [_close(log) for log in logs]
    return [error for error in results if error is not None]


def _close(log: PartitionLog) -> Exception | None:
    try:
        log.close()
    except Exception as error:  # the others must still be closed
        return error
    return None


def _offset_of(slot: PartitionSlot, log: PartitionLog, file: RootFile) -> int | None:
    if file is RootFile.RECOVERY_POINTS:
        return log.recovery_point
    if file is RootFile.HIGH_WATERMARKS:
        return log.high_watermark
    return slot.start_to_checkpoint


class _PendingDelete(NamedTuple):
    path: Path
    since_ms: int


class PendingDeletes:
    """Deleted partitions: renamed to `-delete` at once, removed after `file.delete.delay.ms`.

    The time of the rename is the directory's modification time, so that the delay holds even if
    the process ends before it is over.
    """

    def __init__(self, disk: Disk, delay_ms: int) -> None:
        self._disk = disk
        self._delay_ms = delay_ms
        self._pending: list[_PendingDelete] = []
        self._lock = threading.Lock()

    @property
    def paths(self) -> list[Path]:
        """The directories that are not removed yet."""
        return [pending.path for pending in self._pending]

    def adopt(self, path: Path) -> None:
        """Remove a directory that an earlier writer has renamed."""
        with self._lock:
            self._pending.append(_PendingDelete(path, self._disk.mtime_ms(path)))

    def add(self, path: Path, topic_partition: TopicPartition, now_ms: int) -> None:
        """Rename a partition's directory, to be removed after the delay. Durable once the log
        directory is synced."""
        name = directory_name(topic_partition, DirState.DELETE, uuid.uuid4().hex)
        target = path.with_name(name)
        self._disk.rename(path, target)
        self._disk.set_mtime_ms(target, now_ms)
        with self._lock:
            self._pending.append(_PendingDelete(target, now_ms))

    def remove_expired(self, now_ms: int) -> None:
        """Remove directories whose delay is over. Those that cannot be removed are tried again."""
        with self._lock:
            expired = [each for each in self._pending if now_ms - each.since_ms >= self._delay_ms]
            for pending in expired:
                try:
                    self._disk.remove_tree(pending.path)
                except StorageError as error:
                    _log.warning("%s", error)
                else:
                    self._pending.remove(pending)
