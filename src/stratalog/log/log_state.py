"""The state of a log that is being written: its segments, its offsets, and who may change them.

`maintenance.recovery.open_log` hands a `LogState` to a `PartitionLog`; from then on all of it
belongs to that log.
"""

from __future__ import annotations

import random
import threading
from bisect import bisect_right
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from stratalog.errors import LogOfflineError
from stratalog.format.batch import NO_TIMESTAMP
from stratalog.log.segment_list import SegmentList
from stratalog.storage.locks import inherited_reason
from stratalog.storage.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from stratalog.config import LogConfig
    from stratalog.format.names import TopicPartition
    from stratalog.log.epochs import LeaderEpochCache
    from stratalog.log.producer_state_manager import ProducerStateManager
    from stratalog.log.snapshot_files import SnapshotFiles
    from stratalog.storage.disk import Disk


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
    """Leader epoch of the last leader; used until `become_leader` sets another."""
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
        try:
            self.check()
        except LogOfflineError:
            self.lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    def check(self) -> None:
        """Raise LogOfflineError if nobody may change the log."""
        if self.is_closed or self.failure is not None:
            raise LogOfflineError(self.path, self._reason())

    def _reason(self) -> str:
        if self.is_closed:
            return "the log is closed"
        if isinstance(self.failure, LogOfflineError):
            return self.failure.reason
        return f"an earlier write failed ({self.failure})"

    @property
    def is_usable(self) -> bool:
        return not self.is_closed and self.failure is None

    @contextmanager
    def fatal(self) -> Iterator[None]:
        """After an error in this block the log rejects writes: only recovery understands the files
        then."""
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
        """Reject all changes from now on. Does not wait for other threads. This reason replaces an
        earlier one, because opening the log again does not help."""
        self.failure = LogOfflineError(self.path, reason)

    def detach(self) -> None:
        """Reject all changes in a forked child: the log belongs to the parent."""
        self.lock = threading.RLock()  # its owner may be a thread that does not exist here
        self.take_offline(inherited_reason())


class LogOffsets:
    """The offsets that readers use: log start <= last stable offset <= high watermark <= log end.

    With a single replica the high watermark is the log end.
    """

    __slots__ = ("_producers", "end", "high_watermark", "last_stable", "log_start")

    def __init__(self, producers: ProducerStateManager, *, log_start: int, end: int) -> None:
        self._producers = producers
        self.log_start = log_start
        self.publish(end)

    def publish(self, end: int) -> None:
        """Let readers see everything below `end`, which is in the log."""
        self.end = self.high_watermark = end
        self.last_stable = self._producers.on_high_watermark_updated(end, self.log_start)

    def move_start(self, offset: int, latest_snapshot: int | None) -> None:
        """Hide everything below `offset` from readers."""
        self.log_start = offset
        self._producers.on_log_start_offset_incremented(offset, latest_snapshot)
        self.publish(self.end)

    def lower_to(self, offset: int) -> None:
        """Before a truncation, let readers stop at `offset` while the bytes are still there."""
        self.last_stable = min(self.last_stable, offset)
        self.high_watermark = min(self.high_watermark, offset)
        self.end = min(self.end, offset)
        self.log_start = min(self.log_start, offset)


class LogSegments:
    """The segments in offset order, each with the producer snapshot at its base offset.

    The last one is active, unless the disk had no space for a new one. The caller of a method that
    changes something holds the `WriteGuard`; readers call `published` at any time.

    Invariants:

    * everything below `recovery_point` is durable;
    * the name of a segment is created only after the segment before it is durable, and removed,
      durably, before the one before it is truncated. So whatever a crash leaves, only the last
      segment can lack bytes.
    """

    def __init__(self, state: LogState, guard: WriteGuard) -> None:
        self.path = state.path
        self.config = state.config
        self.disk = state.disk
        self.snapshots = state.snapshots
        self.recovery_point = state.recovery_point
        self.is_changed = False
        """Whether the log has changed since it was opened."""
        self.first_written_base = state.segments[-1].base_offset
        """Base offset of the first segment that this process writes to."""
        self.unflushed_messages = 0
        self.last_flush_ms = state.now_ms()
        self.now_ms = state.now_ms
        self._guard = guard
        self._producers = state.producers
        self._all = state.segments
        self.active = state.segments[-1]
        self._unsynced_from = state.unsynced_from  # the recovery point, for rebuilt indexes too
        self._are_names_synced = False
        self._generation = 0  # grows after the list, or a segment before its end, has changed
        self._published: tuple[int, int, list[Segment], SegmentList] | None = None
        self._draw_jitter(self.active)

    # -- what there is

    @property
    def all(self) -> Sequence[Segment]:
        """Never changed in place."""
        return self._all

    @property
    def size_bytes(self) -> int:
        """Size of the batches in the `.log` files, not counting preallocated space."""
        return sum(segment.size_bytes for segment in self._all)

    def slot_of(self, offset: int) -> int:
        """The last segment that begins at or below `offset`; the first one if none does."""
        slot = bisect_right(self._all, offset, key=_base_offset_of) - 1
        return max(0, slot)

    def published(self, end: int) -> SegmentList:
        """The segments as readers see them while the log ends at `end`.

        The list is cached between calls. An append changes only its last segment.
        """
        published, now = self._published, (self._generation, end)
        if published is not None and published[:2] == now:
            return published[3]
        segments = self._all
        last = segments[-1].view(end)  # only the last one may have what is not part of the log yet
        if published is not None and published[2] is segments:
            views = published[3].with_last(last)
        else:
            listed = [*(segment.view() for segment in segments[:-1]), last]
            views = SegmentList(listed) if published is None else published[3].updated(listed)
        # If the log has changed since the caller read its end, they do not belong to that end.
        if not views.is_end_known or views.end.next_offset == end:
            self._published = (*now, segments, views)
        return views

    def forget_published(self) -> None:
        """Drop the cached list, because a file of it is gone. The next list is built from
        scratch."""
        self._published = None

    # -- changing the list

    def use(self, segments: list[Segment]) -> None:
        """Replace the list of segments."""
        self._all = segments
        self.active = segments[-1]
        self.note_change()

    def note_change(self) -> None:
        """Invalidate the readers' list, because bytes that they may have read have changed."""
        self._generation += 1
        self.is_changed = True

    def create(self, base_offset: int, now_ms: int) -> Segment:
        """A new, empty, active segment, which `use` makes part of the log."""
        segment = Segment.create(self.disk, self.path, base_offset, self.config, now_ms=now_ms)
        self._are_names_synced = False
        self._draw_jitter(segment)
        return segment

    def _draw_jitter(self, segment: Segment) -> None:
        """Set a random roll jitter, so that not all partitions of a topic roll at the same time."""
        jitter_ms = self.config.effective_segment_jitter_ms
        segment.configure(
            self.config, roll_jitter_ms=random.randrange(jitter_ms) if jitter_ms else 0
        )

    def roll(self, base_offset: int) -> None:
        """Seal the active segment and begin a new one at `base_offset`.

        If the disk has no space for a new segment, the log stays sealed, and the next append tries
        again. An empty segment that begins at `base_offset` already is replaced instead; if that
        fails, the log rejects writes until it is opened again.
        """
        active, now_ms = self.active, self.now_ms()
        if active.base_offset == base_offset:
            self._replace_empty(active, now_ms)
            return
        self.end_active(base_offset, is_snapshot_synced=False)
        segment = self.create(base_offset, now_ms)
        self.use([*self._all, segment])
        with self._guard.fatal():
            self._sync_names()

    def end_active(self, end_offset: int, *, is_snapshot_synced: bool) -> None:
        """Seal the active segment, flush it, and take a producer snapshot: another segment will
        begin at `end_offset`."""
        with self._guard.fatal():
            self.seal_active()
            self.flush_below(end_offset)
        self._producers.map_end_offset = end_offset
        self.snapshots.take(self._producers, is_synced=is_snapshot_synced)

    def _replace_empty(self, active: Segment, now_ms: int) -> None:
        """Replace the empty active segment by a new one, because its indexes have no room for an
        entry."""
        with self._guard.fatal():
            active.delete()
            segment = self.create(active.base_offset, now_ms)
            self.use([*self._all[:-1], segment])

    def seal_active(self) -> None:
        active = self.active
        if active.is_active:
            active.become_inactive()
            self._unsynced_from = min(self._unsynced_from, active.base_offset)

    def delete(self, segments: Sequence[Segment]) -> None:
        """Remove files from the last segment down, each durably, so that no crash leaves a gap."""
        for segment in reversed(segments):
            segment.delete()
            self.snapshots.delete([segment.base_offset])
            self.disk.fsync_dir(self.path)

    # -- durability

    def flush_below(self, offset: int) -> None:
        """Sync the files, then their names, then advance the recovery point."""
        if offset > self._unsynced_from:
            for segment in self._all[self.slot_of(self._unsynced_from) :]:
                if segment.base_offset < offset:
                    segment.flush()
                    self.snapshots.sync(segment.base_offset)
        self._sync_names()
        self._unsynced_from = max(self._unsynced_from, offset)
        self.recovery_point = max(self.recovery_point, offset)
        self.unflushed_messages = 0
        self.last_flush_ms = self.now_ms()

    def _sync_names(self) -> None:
        if not self._are_names_synced:
            self.disk.fsync_dir(self.path)
            self._are_names_synced = True

    def lower_durable_to(self, offset: int) -> None:
        """Before a truncation, no longer count as durable what is written from `offset` on."""
        self.recovery_point = min(self.recovery_point, offset)
        self._unsynced_from = min(self._unsynced_from, offset)

    def set_durable(self, offset: int) -> None:
        """Note that everything below `offset` is durable, and that nothing above it exists."""
        self.recovery_point = self._unsynced_from = offset

    def close(self) -> None:
        """Trim preallocated space and close the files. A log that did not change needs no fsync."""
        for segment in self._all:
            segment.close()
        if self.is_changed:
            self.disk.fsync_dir(self.path)

    def release(self) -> None:
        """Close what readers have opened, and leave the files of a failed log as they are."""
        for segment in self._all:
            segment.release()


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


def _base_offset_of(segment: Segment) -> int:
    return segment.base_offset
