"""The segments of a log that is being written: publishing, rolling, making durable, closing.

One thread at a time changes a log (a lock sees to that); any number may read meanwhile, without it.

Invariants:

* log start offset <= last stable offset <= high watermark <= log end offset;
* everything below `recovery_point` is durable;
* a segment's name is made only after the one before it is durable, and removed, durably, before the
  one before it is cut. So whatever a crash leaves, only the last segment can lack bytes;
* after a failed write the log either is as before, or refuses to be written until it is opened
  again. Reading goes on.
"""

from __future__ import annotations

import logging
import random
import threading
from bisect import bisect_right
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self, TypeVar

from stratalog.errors import CorruptError, LogOfflineError, SegmentGoneError
from stratalog.format.names import FileKind
from stratalog.log.log_state import IndexSizes
from stratalog.log.reader import CorruptionPolicy, LogReader
from stratalog.log.segments import SegmentList
from stratalog.log.transactions import AbortedLookup
from stratalog.storage.forking import detach_in_children, inherited_reason
from stratalog.storage.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stratalog.format.txn_index import AbortedTxn
    from stratalog.log.epochs import EpochEndOffset, LeaderEpochCache
    from stratalog.log.log_state import LogState
    from stratalog.log.producer_state import ProducerStateManager
    from stratalog.log.reader import Skipped
    from stratalog.storage.disk import Disk

_log = logging.getLogger(__name__)

T = TypeVar("T")


class SegmentedLog(LogReader):
    """Segments with an end that moves: what appending and cutting are made of."""

    def __init__(self, state: LogState) -> None:
        self.path = state.path
        self.topic_partition = state.topic_partition
        self.config = state.config
        self._disk = state.disk
        self._now_ms = state.now_ms
        self._segments = state.segments
        self._producers = state.producers
        self._epochs = state.epochs
        self._snapshots = state.snapshots
        self._log_start_offset = state.log_start_offset
        self._recovery_point = state.recovery_point
        self._lock = threading.RLock()
        self._failure: BaseException | None = None
        self._is_closed = False
        self._are_names_synced = False
        self._leader_epoch = state.leader_epoch
        self._unflushed_messages = 0
        self._last_flush_ms = state.now_ms()
        self._unsynced_from = state.unsynced_from  # what the recovery point is, for indexes too
        self._is_touched = False  # since it was opened
        self.last_index_sizes: IndexSizes | None = None
        """How large the indexes of the last segment may be when the log is closed, if that is
        limited: with larger ones, the log gets a new, empty last segment."""
        self._first_written_base = state.segments[-1].base_offset  # older segments were found
        self._cuts = 0  # begun and ended; odd while one is going on
        self._generation = 0  # of the list of segments; it grows after the list has changed
        self._readable: tuple[int, int, list[Segment], SegmentList] | None = None
        self._end = self._high_watermark = self._last_stable_offset = 0
        self._draw_jitter(self._segments[-1])
        self._publish(self._segments[-1].next_offset)
        detach_in_children(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r})"

    # -- what the log is

    @property
    def segments(self) -> SegmentList:
        """As readers see them now."""
        readable, now = self._readable, (self._generation, self._end)
        if readable is not None and readable[:2] == now:
            return readable[3]
        segments = self._segments
        if readable is None:
            views = SegmentList([segment.view() for segment in segments])
        elif readable[2] is segments:  # only the end has moved, as after every append
            views = readable[3].with_last(segments[-1].view())
        else:
            views = readable[3].updated([segment.view() for segment in segments])
        self._readable = (*now, segments, views)
        return views

    @property
    def log_start_offset(self) -> int:
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._end

    @property
    def high_watermark(self) -> int:
        """The log end: with one replica, what is written is replicated."""
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self._last_stable_offset

    @property
    def recovery_point(self) -> int:
        """Everything below is durable."""
        return self._recovery_point

    @property
    def leader_epoch(self) -> int:
        """Stamped on the batches that this leader appends."""
        return self._leader_epoch

    @property
    def epochs(self) -> LeaderEpochCache:
        """Leader epochs, to be looked at."""
        return self._epochs

    @property
    def producers(self) -> ProducerStateManager:
        """Producer state, to be looked at."""
        return self._producers

    @property
    def disk(self) -> Disk:
        """For maintenance, which writes files beside the log's."""
        return self._disk

    @property
    def writable_segments(self) -> Sequence[Segment]:
        """For maintenance, which holds the log's lock (see `changing`)."""
        return tuple(self._segments)

    def aborted_transactions(self, start: int = 0, end: int | None = None) -> list[AbortedTxn]:
        stop = self._end if end is None else end
        return self.looking_again(lambda: self._aborted_lookup().find(start, stop))

    def _aborted_lookup(self) -> AbortedLookup:
        return AbortedLookup(
            self.segments, self._snapshots.listed, sound_from=self._first_written_base
        )

    # -- reading while it is cut

    def look_again(self) -> None:
        """The next look at `segments` lists them anew.

        Waits for a change that is under way: until it is done, files may have names that the list
        does not tell.
        """
        with self._lock:
            self._readable = None

    def looking_again(self, ask: Callable[[], T]) -> T:
        """Damage is none where the log is being cut: then, too, a fresh answer."""

        def ask_once() -> T:
            is_cut = self.cut_detector()
            try:
                return ask()
            except CorruptError:
                if is_cut():
                    raise SegmentGoneError(self.path) from None
                raise

        return super().looking_again(ask_once)

    def damage_policy(self, on_skip: Callable[[Skipped], None] | None) -> CorruptionPolicy:
        return CorruptionPolicy(on_skip, self.cut_detector())

    def cut_detector(self) -> Callable[[], bool]:
        """Whether bytes that could be read a moment ago have been cut off since."""
        before = self._cuts
        return lambda: bool(before % 2) or self._cuts != before

    @contextmanager
    def _cutting(self) -> Iterator[None]:
        self._cuts += 1
        try:
            yield
        finally:
            self._cuts += 1

    def end_offset_for_epoch(self, epoch: int) -> EpochEndOffset:
        """Where the records of this leader epoch end: what a follower truncates to."""
        return self._epochs.end_offset_for(epoch, self._end)

    # -- publishing

    def _wrote(self, next_offset: int, records: int) -> None:
        """Publish, then flush if the topic's settings ask for it."""
        self._producers.map_end_offset = next_offset
        self._is_touched = True
        self._publish(next_offset)
        self._unflushed_messages += records
        if self._unflushed_messages >= self.config.flush_messages:
            self.flush()

    def _publish(self, end: int) -> None:
        """What readers go by. With a single replica the high watermark is the log end."""
        producers = self._producers
        self._end = self._high_watermark = end
        producers.on_high_watermark_updated(end)
        self._last_stable_offset = producers.last_stable_offset(end, self._log_start_offset)

    # -- segments

    def roll(self) -> None:
        """Begin a new segment at the log end, unless the active one is empty."""
        with self._changing():
            if self._segments[-1].size_bytes:
                self._roll(self._end, self._now_ms())

    def _roll(self, first_offset: int, now_ms: int) -> None:
        """Seal the active segment, then begin another.

        Without space for another the log stays as it is, sealed; the next append tries again.
        """
        base_offset = max(first_offset, self._end)
        active = self._segments[-1]
        if active.base_offset == base_offset:
            self._replace_empty(active, now_ms)
            return
        with self._fatal():
            self._seal(active)
            self._flush_below(base_offset)
        self._producers.map_end_offset = base_offset
        self._snapshots.take(self._producers, is_synced=False)
        segment = self._new_segment(base_offset, now_ms)
        self._use([*self._segments, segment])
        with self._fatal():
            self._sync_names()

    def _replace_empty(self, active: Segment, now_ms: int) -> None:
        """Its indexes have no room, so a fresh one takes its place."""
        with self._fatal():
            active.delete()
            segment = self._new_segment(active.base_offset, now_ms)
            self._use([*self._segments[:-1], segment])

    def _seal(self, active: Segment) -> None:
        if active.is_active:
            active.become_inactive()
            self._unsynced_from = min(self._unsynced_from, active.base_offset)

    def _new_segment(self, base_offset: int, now_ms: int) -> Segment:
        segment = Segment.create(self._disk, self.path, base_offset, self.config, now_ms=now_ms)
        self._are_names_synced = False
        self._draw_jitter(segment)
        return segment

    def _draw_jitter(self, segment: Segment) -> None:
        """So that not all partitions of a topic roll at the same time."""
        jitter_ms = self.config.effective_segment_jitter_ms
        segment.configure(
            self.config, roll_jitter_ms=random.randrange(jitter_ms) if jitter_ms else 0
        )

    def _use(self, segments: list[Segment]) -> None:
        """From now on the log has these. Readers that list them meanwhile list them again."""
        self._segments = segments
        self._generation += 1
        self._is_touched = True

    # -- durability

    def flush(self) -> None:
        """Make everything appended so far survive a crash of the machine."""
        with self._changing(), self._fatal():
            self._flush_below(self._end)

    def flush_if_due(self, now_ms: int) -> bool:
        """Flush when the topic's `flush.ms` has passed since the last time."""
        if now_ms - self._last_flush_ms < self.config.flush_ms:
            return False
        self.flush()
        return True

    def _flush_below(self, offset: int) -> None:
        """Files first, then their names, then the claim that they are durable."""
        if offset > self._unsynced_from:
            for segment in self._segments[self._slot_of(self._unsynced_from) :]:
                if segment.base_offset < offset:
                    segment.flush()
                    self._snapshots.sync(segment.base_offset)
        self._sync_names()
        self._unsynced_from = max(self._unsynced_from, offset)
        self._recovery_point = max(self._recovery_point, offset)
        self._unflushed_messages = 0
        self._last_flush_ms = self._now_ms()

    def _slot_of(self, offset: int) -> int:
        bases = [segment.base_offset for segment in self._segments]
        return max(0, bisect_right(bases, offset) - 1)

    def _sync_names(self) -> None:
        if not self._are_names_synced:
            self._disk.fsync_dir(self.path)
            self._are_names_synced = True

    def close(self) -> None:
        """Flush, leave a producer snapshot, trim what was preallocated. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if self._failure is None:
                self._close_cleanly()
            else:
                self._abandon()

    def _close_cleanly(self) -> None:
        """What was opened and never written needs no fsync: its indexes are merely trimmed."""
        with self._fatal():
            self._epochs.flush()
            self._limit_last_indexes()
            if self._is_touched:
                self._seal(self._segments[-1])
            self._flush_below(self._end)
            self._snapshots.take(self._producers)
            for segment in self._segments:
                segment.close()
            if self._is_touched:
                self._disk.fsync_dir(self.path)

    def _limit_last_indexes(self) -> None:
        limit, last = self.last_index_sizes, self._segments[-1]
        if limit is None:
            return
        self._seal(last)
        sizes = IndexSizes(
            self._disk.size_of(last.sibling(FileKind.OFFSET_INDEX)) or 0,
            self._disk.size_of(last.sibling(FileKind.TIME_INDEX)) or 0,
        )
        if sizes.exceed(limit):
            _log.warning(
                "%s: segment.index.bytes is unknown, and assumed to be no more than "
                "%d; the index files of the last segment have up to %d bytes, which its broker "
                "might not be able to open, so a new segment is created after it",
                self.topic_partition,
                max(limit),
                max(sizes),
            )
            self._roll(self._end, self._now_ms())

    def _abandon(self) -> None:
        """A failed log leaves its files as they are; the next opening recovers them."""
        for segment in self._segments:
            segment.release()

    @property
    def is_usable(self) -> bool:
        """Open, and no write has failed in a way that only opening it again can mend."""
        return not self._is_closed and self._failure is None

    @property
    def has_failed(self) -> bool:
        """A write has failed so, before or while it was closed: the files await recovery."""
        return self._failure is not None

    def take_offline(self, reason: str) -> None:
        """Refuse every change from now on; closing writes nothing any more. Waits for nobody."""
        self._failure = LogOfflineError(self.path, reason)

    def detach(self) -> None:
        """In a forked child: the log is the parent's. Reading goes on."""
        self._lock = threading.RLock()  # a thread that does not exist here may have the other
        self.take_offline(inherited_reason())

    def remove_expired_producers(self, now_ms: int) -> None:
        """Forget producers that were idle for longer than `producer.id.expiration.ms`."""
        with self._lock:
            self._producers.remove_expired(now_ms)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            if self._is_closed:
                raise LogOfflineError(self.path, "it is closed")
            failure = self._failure
            if isinstance(failure, LogOfflineError):
                raise LogOfflineError(self.path, failure.reason)
            if failure is not None:
                raise LogOfflineError(self.path, f"an earlier write failed ({failure})")
            yield

    @contextmanager
    def _fatal(self) -> Iterator[None]:
        """An error in here leaves the files in a state that only recovery understands."""
        try:
            yield
        except BaseException as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        """Refuse to be written until the log is opened again. The first reason counts."""
        if self._failure is None:
            self._failure = error
