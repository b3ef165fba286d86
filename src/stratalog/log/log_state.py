"""What a log that is being written consists of: the loaded state, its offsets, and who may write.

`maintenance.recovery.open_log` hands a `LogState` to a `PartitionLog`; from then on all of it
belongs to that log.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from stratalog.errors import LogOfflineError
from stratalog.format.batch import NO_TIMESTAMP
from stratalog.storage.forking import inherited_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from stratalog.config import LogConfig
    from stratalog.format.names import TopicPartition
    from stratalog.log.epochs import LeaderEpochCache
    from stratalog.log.producer_state import ProducerStateManager
    from stratalog.log.snapshots import SnapshotFiles
    from stratalog.storage.disk import Disk
    from stratalog.storage.segment import Segment


class LogState(NamedTuple):
    """A loaded log."""

    path: Path
    topic_partition: TopicPartition
    config: LogConfig
    disk: Disk
    now_ms: Callable[[], int]
    segments: list[Segment]
    """In offset order; the last one is active."""
    log_start_offset: int
    recovery_point: int
    unsynced_from: int
    """From the segment of this offset on, indexes may have been rebuilt and not be durable."""
    leader_epoch: int
    """Of the last leader; used until `become_leader` sets another."""
    producers: ProducerStateManager
    epochs: LeaderEpochCache
    snapshots: SnapshotFiles


class WriteGuard:
    """Who may change a log: one thread at a time, and nobody once the log is closed or has failed.

    `with guard:` takes the lock, or raises LogOfflineError. Readers never need it. After a write
    that failed halfway (`fatal`), only recovery understands the files, so the log refuses to be
    written until it is opened again.
    """

    __slots__ = ("failure", "is_closed", "lock", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.RLock()
        self.is_closed = False
        self.failure: BaseException | None = None

    def __enter__(self) -> None:
        self.lock.acquire()
        if self.is_closed or self.failure is not None:
            self.lock.release()
            raise LogOfflineError(self.path, self._reason())

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    def _reason(self) -> str:
        if self.is_closed:
            return "it is closed"
        if isinstance(self.failure, LogOfflineError):
            return self.failure.reason
        return f"an earlier write failed ({self.failure})"

    @property
    def is_usable(self) -> bool:
        return not self.is_closed and self.failure is None

    @contextmanager
    def fatal(self) -> Iterator[None]:
        """An error in here leaves the files in a state that only recovery understands."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            raise

    def fail(self, error: BaseException) -> None:
        """Refuse all changes until the log is opened again. The first reason is kept."""
        if self.failure is None:
            self.failure = error

    def take_offline(self, reason: str) -> None:
        """Refuse all changes from now on. Waits for nobody."""
        self.failure = LogOfflineError(self.path, reason)

    def detach(self) -> None:
        """In a forked child, where the log is the parent's."""
        self.lock = threading.RLock()  # its owner may be a thread that does not exist here
        self.take_offline(inherited_reason())


class LogOffsets:
    """What readers go by: log start <= last stable offset <= high watermark <= log end.

    With a single replica the high watermark is the log end.
    """

    __slots__ = ("_producers", "end", "high_watermark", "last_stable", "log_start")

    def __init__(self, producers: ProducerStateManager, *, log_start: int, end: int) -> None:
        self._producers = producers
        self.log_start = log_start
        self.publish(end)

    def publish(self, end: int) -> None:
        """Everything below `end` is in the log: readers may see it."""
        producers = self._producers
        self.end = self.high_watermark = end
        producers.on_high_watermark_updated(end)
        self.last_stable = producers.last_stable_offset(end, self.log_start)

    def lower_to(self, offset: int) -> None:
        """Before a truncation: readers stop below `offset` while the bytes are still there."""
        self.last_stable = min(self.last_stable, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.end = min(self.end, offset)
        self.log_start = min(self.log_start, offset)


class IndexSizes(NamedTuple):
    """Bytes of the two sparse index files of a segment."""

    offset_index: int
    time_index: int

    def exceed(self, other: IndexSizes) -> bool:
        """Whether one of the files is larger than the other's."""
        return self.offset_index > other.offset_index or self.time_index > other.time_index


class AppendInfo(NamedTuple):
    """What an append returns."""

    first_offset: int
    last_offset: int
    log_append_time_ms: int = NO_TIMESTAMP
    """The time of the append if the topic's timestamps are LogAppendTime; else -1."""
    is_duplicate: bool = False
    """The log already had the batch, at these offsets."""
