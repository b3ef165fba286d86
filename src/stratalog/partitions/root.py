"""Directories that wait to be removed: renamed to `-delete`, kept for a while for their readers.

The time of the rename is the directory's own modification time, so that the wait is over at the
right time even if the process ends before.
"""

from __future__ import annotations

import logging
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import (
    CorruptError,
    FlushedCorruptionError,
    InvalidNameError,
    LogOfflineError,
    NotALogDirError,
    StorageError,
    StratalogError,
)
from stratalog.format.checkpoint import encode_offsets
from stratalog.format.metadata import (
    MetaProperties,
    decode_clean_shutdown,
    decode_meta_properties,
    encode_clean_shutdown,
)
from stratalog.format.names import (
    CLUSTER_METADATA_TOPIC,
    DirState,
    FileKind,
    RootFile,
    directory_name,
    is_topic_name,
    parse_partition_dir,
    parse_partition_file,
)
from stratalog.maintenance.recovery_plan import LoadPoint
from stratalog.storage.log_dir_scan import read_offset_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from stratalog.config import BrokerConfig
    from stratalog.errors import FsyncError
    from stratalog.format.names import PartitionDir, TopicPartition
    from stratalog.log.partition_log import PartitionLog
    from stratalog.storage.disk import Disk

_log = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    path: Path
    since_ms: int


class PendingDeletes:
    """The partition directories that are on their way out."""

    def __init__(self, disk: Disk, delay_ms: int) -> None:
        self._disk = disk
        self._delay_ms = delay_ms
        self._waiting: list[_Waiting] = []
        self._lock = threading.Lock()

    @property
    def paths(self) -> list[Path]:
        """What is still there."""
        return [waiting.path for waiting in self._waiting]

    def take_over(self, path: Path) -> None:
        """Remove a directory that somebody has renamed before."""
        with self._lock:
            self._waiting.append(_Waiting(path, self._disk.mtime_ms(path)))

    def throw(self, path: Path, topic_partition: TopicPartition, now_ms: int) -> None:
        """Rename a partition's directory, to be removed after the delay. Durable once the directory
        around it is synced."""
        name = directory_name(topic_partition, DirState.DELETE, uuid.uuid4().hex)
        target = path.with_name(name)
        self._disk.rename(path, target)
        self._disk.set_mtime_ms(target, now_ms)
        with self._lock:
            self._waiting.append(_Waiting(target, now_ms))

    def remove_due(self, now_ms: int) -> None:
        """Remove what has waited long enough. What cannot be removed stays for the next time."""
        with self._lock:
            due = [item for item in self._waiting if now_ms - item.since_ms >= self._delay_ms]
            for waiting in due:
                try:
                    self._disk.remove_tree(waiting.path)
                except StorageError as error:
                    _log.warning("%s", error)
                else:
                    self._waiting.remove(waiting)


# The root files of one log directory, as its writer reads and writes them.
#
# Invariants:
#
# * the clean-shutdown marker is gone, durably, before anything in the directory changes, and comes
#   back last: a crash in between is an unclean stop, whatever else reached the disk;
# * a checkpoint is replaced whole, so after a crash it has its old or its new content.

NO_BROKER_EPOCH: Final = -1


class LastStop(NamedTuple):
    """How whoever wrote to the directory last has stopped."""

    was_clean: bool
    broker_epoch: int = NO_BROKER_EPOCH
    """Of the Kafka broker that stopped cleanly. To be handed on: its controller asks for it."""


class RootFiles:
    """The files at `path` that are about the directory as a whole."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self.path = path
        self._disk = disk

    def meta_properties(self) -> MetaProperties | None:
        """Which cluster the directory belongs to; None if it was never part of one."""
        path = self.path / RootFile.META_PROPERTIES.value
        try:
            return decode_meta_properties(self._disk.read_bytes(path))
        except FileNotFoundError:
            return None
        except CorruptError as error:
            raise error.located(path) from None

    def take_last_stop(self) -> LastStop:
        """Read the clean-shutdown marker and remove it."""
        path = self.path / RootFile.CLEAN_SHUTDOWN.value
        try:
            content = self._disk.read_bytes(path)
        except FileNotFoundError:
            return LastStop(was_clean=False)
        self._disk.unlink(path)
        self._disk.fsync_dir(self.path)
        try:
            epoch = decode_clean_shutdown(content)
        except StratalogError as error:  # that the file exists is the message
            _log.warning("%s: %s", path, error)
            epoch = None
        return LastStop(was_clean=True, broker_epoch=NO_BROKER_EPOCH if epoch is None else epoch)

    def write_clean_shutdown(self, broker_epoch: int) -> None:
        """Say that everything is on disk. Nothing may be written afterwards."""
        path = self.path / RootFile.CLEAN_SHUTDOWN.value
        self._disk.write_atomically(path, encode_clean_shutdown(broker_epoch))

    def read_offsets(self, file: RootFile) -> dict[TopicPartition, int]:
        """One of the four offset files. As for Kafka, one that cannot be read counts as missing:
        then recovery begins at 0, and a log starts with its first segment."""

        def warn(error: StratalogError) -> None:
            _log.warning("%s: ignored: %s", self.path / file.value, error)

        try:
            return read_offset_checkpoint(
                self.path, file, read=self._disk.read_bytes, on_corrupt=warn
            )
        except StratalogError as error:
            warn(error)
            return {}

    def write_offsets(self, file: RootFile, offsets: Mapping[TopicPartition, int]) -> None:
        """Replace one of the four offset files."""
        self._disk.write_atomically(self.path / file.value, encode_offsets(offsets))


# One log directory that is being written: its partitions, checkpoints and markers.
#
# A partition is opened when it is first asked for; what the checkpoints said of the others is kept
# and written back. Only after an unclean stop all are opened, so that all are recovered.
#
# After a failed fsync nobody knows what the disk holds: the kernel may have dropped what it could
# not write, and the next fsync succeeds all the same. So the directory goes offline, as in Kafka:
# nothing more is written to it, no checkpoint and no marker of a clean stop. Whoever opens it next
# recovers it by reading from the recovery points on.
#
# Invariant: a checkpoint has no entry for a partition that is not here. A topic of that name may
# be made again, and must not begin with the offsets of its predecessor.

CHECKPOINTS: Final = (
    RootFile.RECOVERY_POINTS,
    RootFile.LOG_START_OFFSETS,
    RootFile.HIGH_WATERMARKS,
)


class LogContext(NamedTuple):
    """What every part of a log directory works with."""

    disk: Disk
    now_ms: Callable[[], int]
    config: BrokerConfig


class PartitionSlot:
    """A partition's place in a log directory. Opens the log when it is first asked for."""

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
        """The log, if it has been opened."""
        self._epochs_before = 0  # truncation epochs of the logs that were opened before this one
        self.has_pending_commit = False
        """A bulk commit is not recorded as installed. Its batches in the log are the only proof of
        how much is, so the log is not compacted: what has no proof is appended again."""
        self.remote_start: int | None = None
        """Where the log starts in a broker's remote storage, if that is below its first segment."""

    @property
    def truncation_epoch(self) -> int:
        """Grows when the log is truncated, or opened anew after a failure."""
        log = self.loaded
        return self._epochs_before + (0 if log is None else log.truncation_epoch)

    @property
    def start_to_tell(self) -> int | None:
        """What the checkpoint is to say of the log start. None: the first segment's name does."""
        log = self.loaded
        if log is not None and log.log_start_offset > log.segments.bases[0]:
            return log.log_start_offset
        return self.remote_start

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to read, told from file sizes if the log is not open."""
        if self.loaded is not None:
            return self.loaded.log_start_offset == self.loaded.log_end_offset
        return not any(path.stat().st_size for path in self.path.glob("*.log"))

    def log(self) -> PartitionLog:
        """The log, opened and perhaps recovered now: at first use, and again after it was closed or
        a write has failed."""
        log = self.loaded
        if log is not None and log.is_usable:
            return log
        self.root.check_online()  # first: in a forked child nobody may give the lock back
        with self._lock:
            if self._is_retired:
                raise LogOfflineError(self.path, "it was deleted, or its LogDir closed")
            if self.loaded is None:
                point = self.root.load_point(self.topic_partition)
                self.loaded = self._open(point)
                if self.root.offline_reason is not None:  # meanwhile
                    self.loaded.take_offline(self.root.offline_reason)
                if point.is_start_told and point.log_start_offset < self.loaded.segments.bases[0]:
                    self.remote_start = point.log_start_offset
            elif not self.loaded.is_usable:
                self.loaded = self._reopen(self.loaded)
            return self.loaded

    def _reopen(self, log: PartitionLog) -> PartitionLog:
        log.close()  # gives back what a failed one has still open
        self._epochs_before += log.truncation_epoch + 1
        told = self.start_to_tell
        start = log.log_start_offset if told is None else told
        return self._open(
            LoadPoint(start, log.recovery_point, is_start_told=told is not None),
        )

    def _open(self, point: LoadPoint) -> PartitionLog:
        try:
            return self._load(self, point)
        except FlushedCorruptionError:
            raise  # as it was; to call the directory unclean would have it cut by whoever is next
        except BaseException:
            self.root.is_doubtful = True  # a repair may be half done
            raise

    def delete_records(self, before_offset: int) -> int:
        """See `PartitionLog.delete_records`. What a broker has in remote storage is gone, too."""
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
        """It is being deleted, or its LogDir was closed."""
        return self._is_retired

    def retire(self) -> PartitionLog | None:
        """Open it no more. Returns the log if it was open: it is the caller's to close."""
        with self._lock:
            self._is_retired = True
            return self.loaded


class LogRoot:
    """A log directory. Looking at it changes nothing; `begin` makes it the writer's."""

    def __init__(self, path: Path, engine: LogContext) -> None:
        self.path = path
        self.files = RootFiles(path, engine.disk)
        self.meta = self.files.meta_properties()
        self.last_stop = LastStop(was_clean=False)
        self.is_doubtful = False
        """A partition could not be opened: the directory is not to be called clean."""
        self.offline_reason: str | None = None
        """Why nothing may be written here any more."""
        self.slots: dict[TopicPartition, PartitionSlot] = {}
        self.found: list[TopicPartition] = []
        """Partitions whose directories were here at the start."""
        self.trash = PendingDeletes(engine.disk, engine.config.log_config.file_delete_delay_ms)
        self._engine = engine
        self._lock = threading.Lock()
        self._cleaned_lock = threading.Lock()
        self._offsets: dict[RootFile, dict[TopicPartition, int]] = {}
        self._in_trash: list[Path] = []
        self._list()

    @property
    def meta_node(self) -> int | None:
        """The number of the Kafka node that formatted the directory."""
        return None if self.meta is None else self.meta.node_id

    def _list(self) -> None:
        """Tell partitions from what is on its way out; Kafka stops at anything else."""
        strangers = []
        for path in sorted(self.path.iterdir()):
            if not path.is_dir():
                _refuse_partition_file(path)
                continue
            directory = _partition_dir(path)
            if isinstance(directory, InvalidNameError):
                strangers.append(path.name)
            elif directory is None or directory.topic_partition.topic == CLUSTER_METADATA_TOPIC:
                continue  # Kafka's log manager leaves these alone, too
            elif directory.state is DirState.LIVE:
                self.found.append(directory.topic_partition)
            elif directory.state is DirState.DELETE:
                self._in_trash.append(path)
        if strangers:
            names = ", ".join(map(repr, strangers[:10]))
            raise InvalidNameError(
                f"{self.path}: not in the form topic-partition: {names}; "
                "such directories stop a Kafka broker from starting, so they stop a writer here"
            )

    def begin(self) -> None:
        """Take over: from here on a crash is an unclean stop."""
        self.last_stop = self.files.take_last_stop()
        present = set(self.found)
        for file in CHECKPOINTS:
            offsets = self.files.read_offsets(file)
            self._offsets[file] = {tp: offsets[tp] for tp in offsets if tp in present}
            if len(self._offsets[file]) < len(offsets):
                self.files.write_offsets(file, self._offsets[file])
        for path in self._in_trash:
            self.trash.take_over(path)

    def take_offline(self, reason: str) -> None:
        """Refuse every change to this directory until it is opened again. Waits for nobody."""
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

    def load_point(self, topic_partition: TopicPartition) -> LoadPoint:
        """What the checkpoints and the last stop say about a partition."""
        start = self._offsets[RootFile.LOG_START_OFFSETS].get(topic_partition, -1)
        return LoadPoint(
            max(start, 0),
            self._offsets[RootFile.RECOVERY_POINTS].get(topic_partition, 0),
            self.last_stop.was_clean,
            is_start_told=start >= 0,
        )

    # -- checkpoints

    def checkpoint(self, files: Iterable[RootFile] = CHECKPOINTS) -> None:
        """Write the offset files anew, those that have changed; none while offline."""
        if self.offline_reason is not None:
            return
        with self._lock:
            for file in files:
                offsets = self._offsets_now(file)
                if offsets != self._offsets[file]:
                    self.files.write_offsets(file, offsets)
                    self._offsets[file] = offsets

    def _offsets_now(self, file: RootFile) -> dict[TopicPartition, int]:
        offsets = {}
        known = self._offsets[file]
        for topic_partition, slot in list(self.slots.items()):
            log = slot.loaded
            value = known.get(topic_partition) if log is None else _offset_of(slot, log, file)
            if value is not None:
                offsets[topic_partition] = value
        return offsets

    def drop(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that have left the directory: in all four files."""
        gone = set(topic_partitions)
        with self._lock:
            for topic_partition in gone:
                self.slots.pop(topic_partition, None)
        self.checkpoint()
        with self._cleaned_lock:
            self._write_cleaned({tp: at for tp, at in self.cleaned().items() if tp not in gone})

    def cleaned(self) -> dict[TopicPartition, int]:
        """Up to where the cleaner has been, by partition."""
        return self.files.read_offsets(RootFile.CLEANER_OFFSETS)

    def set_cleaned(
        self, slot: PartitionSlot, offset: int, *, truncation_epoch: int | None = None
    ) -> None:
        """Write the cleaner's checkpoint of a partition, and drop those of partitions that are not
        here. One that is gone gets none: a partition of its name that was made since is another.

        With `truncation_epoch`, nothing is written if the log was truncated since then.
        """
        with self._cleaned_lock:
            is_past = truncation_epoch not in {None, slot.truncation_epoch}
            if self.slots.get(slot.topic_partition) is slot and not is_past:
                present = {tp: at for tp, at in self.cleaned().items() if tp in self.slots}
                self._write_cleaned({**present, slot.topic_partition: offset})

    def lower_cleaned(self, slot: PartitionSlot, offset: int) -> None:
        """A log is about to be truncated: what it gets from `offset` on is not clean. If it were
        believed to be, a tombstone there could go before the value that it deletes."""
        with self._cleaned_lock:
            cleaned = self.cleaned()
            is_here = self.slots.get(slot.topic_partition) is slot
            if is_here and cleaned.get(slot.topic_partition, 0) > offset:
                self._write_cleaned({**cleaned, slot.topic_partition: offset})

    def _write_cleaned(self, offsets: Mapping[TopicPartition, int]) -> None:
        if self.offline_reason is None and offsets != self.cleaned():
            self.files.write_offsets(RootFile.CLEANER_OFFSETS, offsets)

    # -- the end

    def close(self, threads: int) -> list[Exception]:
        """Close all logs and say that all is well, or return why it is not.

        A partition that was never opened is as well as it was before.
        """
        logs = [slot.retire() for slot in self.slots.values()]
        opened = [log for log in logs if log is not None]
        with ThreadPoolExecutor(threads, thread_name_prefix="stratalog-close") as pool:
            errors: list[Exception] = [
                error for error in pool.map(_close, opened) if error is not None
            ]
        is_complete = self.last_stop.was_clean or len(opened) == len(logs)
        if self.offline_reason is not None:
            return [*errors, LogOfflineError(self.path, self.offline_reason)]
        is_sound = not self.is_doubtful and not any(log.has_failed for log in opened)
        try:
            self.checkpoint()
            if is_complete and is_sound:
                self.files.write_clean_shutdown(self.last_stop.broker_epoch)
        except StratalogError as error:
            errors.append(error)
        return errors


def _close(log: PartitionLog) -> Exception | None:
    try:
        log.close()
    except Exception as error:  # the others are closed all the same
        return error
    return None


def _offset_of(slot: PartitionSlot, log: PartitionLog, file: RootFile) -> int | None:
    if file is RootFile.RECOVERY_POINTS:
        return log.recovery_point
    if file is RootFile.HIGH_WATERMARKS:
        return log.high_watermark
    return slot.start_to_tell


def _partition_dir(path: Path) -> PartitionDir | InvalidNameError | None:
    try:
        directory = parse_partition_dir(path.name)
    except InvalidNameError as error:
        return error
    if directory is not None and not is_topic_name(directory.topic_partition.topic):
        return InvalidNameError(f"{path.name!r} is no topic that Kafka could have made")
    return directory


def _refuse_partition_file(path: Path) -> None:
    """A common slip: the partition's directory in place of the log directory around it."""
    try:
        file = parse_partition_file(path.name)
    except InvalidNameError:
        return
    if file is not None and file.kind is FileKind.LOG:
        raise NotALogDirError(
            f"{path.parent}: has segments in it, so it is a partition; give the directory around it"
        )
