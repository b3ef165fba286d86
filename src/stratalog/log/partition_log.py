"""One partition that is being written: append, roll, truncate, flush, close.

`maintenance.recovery.open_log` makes one, from clean state. One thread at a time changes a log (a
lock sees to that); any number may read meanwhile, without it.

Order of an append, as in Kafka: validate and assign offsets, note a new leader epoch, roll if need
be, check producers, write, update producers, note aborted transactions, publish. So whatever is
refused has written nothing, and whatever readers see is whole.

Invariants:

* log start offset <= last stable offset <= high watermark <= log end offset;
* everything below `recovery_point` is durable;
* after a failed write the log either is as before, or refuses to be written until it is opened
  again. Reading goes on.
"""

from __future__ import annotations

import random
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from stratalog.errors import AppendError, LogOfflineError, OffsetOutOfRangeError, StorageError
from stratalog.format.batch import MAGIC_2, NO_TIMESTAMP, BatchHeader
from stratalog.format.control import ControlType, EndMarker, encode_end_marker
from stratalog.log.appends import NO_OFFSET, AppendRules, Assignment
from stratalog.log.log_reader import LogReader
from stratalog.log.log_state import AppendInfo
from stratalog.log.origin import AppendOrigin
from stratalog.log.producers import markers_in
from stratalog.log.replay import ProducerReload
from stratalog.log.segments import SegmentList
from stratalog.log.transactions import aborted_transactions
from stratalog.log.validation import LeaderValidator, validate_follower
from stratalog.storage.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stratalog.config import LogConfig
    from stratalog.format.buffers import Buffer
    from stratalog.format.txn_index import AbortedTxn
    from stratalog.log.appends import GroupAppend, ValidatedAppend
    from stratalog.log.epochs import EpochEndOffset, LeaderEpochCache
    from stratalog.log.log_state import LogState
    from stratalog.log.producer_state import ProducerStateManager
    from stratalog.log.producers import CachedBatch

DELETE_UP_TO_HIGH_WATERMARK: Final = -1


class PartitionLog(LogReader):
    """A partition directory opened for writing. Use it as a context manager, or `close` it."""

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
        self._failure: StorageError | None = None
        self._is_closed = False
        self._are_names_synced = False
        self._validator = LeaderValidator()
        self._rules = AppendRules.of(state.config)
        self._leader_epoch = max(0, state.epochs.latest_epoch or 0)
        self._unflushed_messages = 0
        self._last_flush_ms = state.now_ms()
        self._readable: tuple[int, SegmentList] | None = None
        self._end = self._high_watermark = self._last_stable_offset = 0
        self._publish(self._segments[-1].next_offset)

    def __enter__(self) -> PartitionLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"PartitionLog({str(self.path)!r})"

    # -- what the log is

    @property
    def segments(self) -> SegmentList:
        """As readers see them now."""
        readable = self._readable
        end = self._end
        if readable is None or readable[0] != end:
            views = [segment.view() for segment in list(self._segments)]
            readable = self._readable = (end, SegmentList(views))
        return readable[1]

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
    def writable_segments(self) -> Sequence[Segment]:
        """For maintenance, which holds the log's lock (see `changing`)."""
        return tuple(self._segments)

    def aborted_transactions(self, start: int = 0, end: int | None = None) -> list[AbortedTxn]:
        end = self._end if end is None else end
        return aborted_transactions(self.segments, (), start, end)

    def end_offset_for_epoch(self, epoch: int) -> EpochEndOffset:
        """Where the records of this leader epoch end: what a follower truncates to."""
        return self._epochs.end_offset_for(epoch, self._end)

    def update_config(self, config: LogConfig) -> None:
        """Use other settings from now on; the indexes of the active segment keep their size."""
        with self._lock:
            self.config = config
            self._rules = AppendRules.of(config)
            self._segments[-1].configure(config)

    # -- appending

    def append(self, data: Buffer, *, origin: AppendOrigin = AppendOrigin.CLIENT) -> AppendInfo:
        """Append ready batches as the leader: check them, give them offsets, write them.

        Raises an AppendError (with Kafka's error code) if they are refused, StorageError if they
        could not be written. Either way nothing of them is in the log.
        """
        with self._changing():
            now_ms = self._now_ms()
            assign = Assignment(self._end, self._leader_epoch, now_ms, origin)
            return self._take(self._validator.validate(data, self._rules, assign), origin, now_ms)

    def append_many(self, requests: Sequence[Buffer]) -> list[AppendInfo | AppendError]:
        """Append several producers' requests at once: each stands or falls on its own.

        One write serves all of them, unless a producer has to be asked or a segment is full.
        """
        with self._changing():
            now_ms = self._now_ms()
            assign = Assignment(self._end, self._leader_epoch, now_ms, AppendOrigin.CLIENT)
            group = self._validator.validate_group(requests, self._rules, assign)
            if self._can_write_at_once(group, now_ms):
                return self._take_group(group)
            return [self._append_or_error(data) for data in requests]

    def append_as_follower(self, data: Buffer) -> AppendInfo:
        """Append batches that a leader has placed, with the offsets and epochs they bring."""
        with self._changing():
            append = validate_follower(data, log_end_offset=self._end)
            return self._take(append, AppendOrigin.REPLICATION, self._now_ms())

    def end_transaction(
        self, producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int = 0
    ) -> AppendInfo:
        """Write the marker that ends the producer's transaction, as its coordinator."""
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        marker = encode_end_marker(
            EndMarker(kind, coordinator_epoch),
            offset=0,
            timestamp=self._now_ms(),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partition_leader_epoch=self._leader_epoch,
        )
        return self.append(marker, origin=AppendOrigin.COORDINATOR)

    def become_leader(self, epoch: int) -> None:
        """Stamp batches with `epoch` from now on; it begins at the log end."""
        with self._changing():
            self._epochs.assign(epoch, self._end)
            self._leader_epoch = epoch

    def _take(self, append: ValidatedAppend, origin: AppendOrigin, now_ms: int) -> AppendInfo:
        if not append.spans:
            return AppendInfo(NO_OFFSET, NO_OFFSET)
        self._note_epochs(append)
        self._make_room(append, now_ms)
        headers = [header for header in append.headers if isinstance(header, BatchHeader)]
        markers = None
        if any(header.is_control for header in headers):
            markers = _markers_of(append)
        checked = self._producers.check(headers, origin, markers=markers)
        if checked.duplicate is not None:
            return _duplicate(checked.duplicate, append)
        segment = self._segments[-1]
        segment.append(append.data, append.spans)
        with self._fatal():
            for txn in self._producers.update(checked):
                if txn.is_aborted:
                    segment.append_aborted(txn.index_entry())
            self._wrote(append.next_offset, append.record_count)
        return _info_of(append)

    def _wrote(self, next_offset: int, records: int) -> None:
        """Publish, then flush if the topic's settings ask for it."""
        self._producers.map_end_offset = next_offset
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

    def _note_epochs(self, append: ValidatedAppend) -> None:
        """A batch of a new epoch is noted before it is written, so that no epoch is ever missing;
        messages of the old formats have none, and their epochs cannot be known any more."""
        latest = self._epochs.latest_epoch
        for header in append.headers:
            if not isinstance(header, BatchHeader):
                self._epochs.clear()
                latest = None
            elif header.partition_leader_epoch != latest and header.partition_leader_epoch >= 0:
                self._epochs.assign(header.partition_leader_epoch, header.base_offset)
                latest = self._epochs.latest_epoch

    def _make_room(self, append: ValidatedAppend, now_ms: int) -> None:
        size_bytes, last_offset = len(append.data), append.last_offset
        reason = self._segments[-1].roll_reason(
            size_bytes, last_offset, append.max_timestamp, now_ms
        )
        if reason is not None:
            self._roll(append.first_offset, now_ms)

    def _can_write_at_once(self, group: GroupAppend, now_ms: int) -> bool:
        accepted = group.accepted
        headers = [header for append in accepted for header in append.headers]
        if any(header.has_producer or header.magic != MAGIC_2 for header in headers):
            return False
        writer = self._segments[-1].writer
        reason = writer.roll_reason(
            len(group.data),
            group.next_offset - 1,
            max((append.max_timestamp for append in accepted), default=NO_TIMESTAMP),
            now_ms,
        )
        return reason is None and writer.has_index_room(len(headers))

    def _take_group(self, group: GroupAppend) -> list[AppendInfo | AppendError]:
        accepted = group.accepted
        for append in accepted:
            self._note_epochs(append)
        if group.data:
            self._segments[-1].append(group.data, group.spans)
            with self._fatal():
                self._wrote(group.next_offset, sum(append.record_count for append in accepted))
        return [
            result if isinstance(result, AppendError) else _info_of(result)
            for result in group.results
        ]

    def _append_or_error(self, data: Buffer) -> AppendInfo | AppendError:
        try:
            return self.append(data)
        except AppendError as error:
            return error

    # -- segments

    def roll(self) -> None:
        """Begin a new segment at the log end, unless the active one is empty."""
        with self._changing():
            if self._segments[-1].size_bytes:
                self._roll(self._end, self._now_ms())

    def _roll(self, first_offset: int, now_ms: int) -> None:
        base_offset = max(first_offset, self._end)
        with self._fatal():
            active = self._segments[-1]
            sealed = self._segments
            if active.base_offset == base_offset:
                active.delete()  # empty, but its indexes have no room: a fresh one takes its place
                sealed = sealed[:-1]
            else:
                active.become_inactive()
                self._producers.map_end_offset = base_offset
                self._snapshots.take(self._producers, is_synced=False)
            segment = self._new_segment(base_offset, now_ms)
            self._segments = [*sealed, segment]
            self._readable = None
            self._flush_below(base_offset)

    def _new_segment(self, base_offset: int, now_ms: int) -> Segment:
        segment = Segment.create(self._disk, self.path, base_offset, self.config, now_ms=now_ms)
        jitter_ms = self.config.effective_segment_jitter_ms
        segment.configure(
            self.config, roll_jitter_ms=random.randrange(jitter_ms) if jitter_ms else 0
        )
        self._are_names_synced = False
        return segment

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
        if offset > self._recovery_point:
            for segment in self._segments:
                if segment.base_offset < offset and segment.next_offset > self._recovery_point:
                    segment.flush()
                    self._snapshots.sync(segment.base_offset)
        if not self._are_names_synced:
            self._disk.fsync_dir(self.path)
            self._are_names_synced = True
        self._recovery_point = max(self._recovery_point, offset)
        self._unflushed_messages = 0
        self._last_flush_ms = self._now_ms()

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
        with self._fatal():
            self._epochs.flush()
            self._flush_below(self._end)
            self._snapshots.take(self._producers)
            for segment in self._segments:
                segment.close()
            self._disk.fsync_dir(self.path)

    def _abandon(self) -> None:
        """A failed log leaves its files as they are; the next opening recovers them."""
        for segment in self._segments:
            segment.release()

    @property
    def is_usable(self) -> bool:
        """Open, and no write has failed in a way that only opening it again can mend."""
        return not self._is_closed and self._failure is None

    @contextmanager
    def _changing(self) -> Iterator[None]:
        with self._lock:
            if self._is_closed:
                raise LogOfflineError(self.path, "it is closed")
            if self._failure is not None:
                raise LogOfflineError(self.path, f"an earlier write failed ({self._failure})")
            yield

    @contextmanager
    def _fatal(self) -> Iterator[None]:
        """An error in here leaves the files in a state that only recovery understands."""
        try:
            yield
        except StorageError as error:
            self._failure = error
            raise

    # -- cutting

    def truncate_to(self, offset: int) -> None:
        """Drop every record at or above `offset`, as a follower does whose leader has other ones.

        Batches go as a whole. Does nothing to a log that ends at or below `offset`.
        """
        with self._changing(), self._fatal():
            if offset >= self._end:
                self._epochs.truncate_from_end(offset)
                self._epochs.flush()
                return
            if offset < self._segments[0].base_offset:
                self._start_over_at(offset)
                return
            now_ms = self._now_ms()
            self._recovery_point = min(self._recovery_point, offset)
            kept = [segment for segment in self._segments if segment.base_offset <= offset]
            self._drop(self._segments[len(kept) :])
            kept[-1].truncate_to(offset, now_ms=now_ms)
            self._segments = kept
            self._log_start_offset = min(self._log_start_offset, offset)
            self._epochs.truncate_from_end(offset)
            self._epochs.flush()
            self._after_cut(kept[-1].next_offset, now_ms)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop every record; the next one gets `offset`."""
        with self._changing(), self._fatal():
            self._start_over_at(offset)

    def _start_over_at(self, offset: int) -> None:
        now_ms = self._now_ms()
        self._recovery_point = min(self._recovery_point, offset)
        self._drop(self._segments)
        self._snapshots.delete(self._snapshots.offsets)
        self._segments = [self._new_segment(offset, now_ms)]
        self._log_start_offset = self._recovery_point = offset
        self._epochs.clear()
        self._epochs.flush()
        self._producers.truncate_fully_and_start_at(offset)
        self._readable = None
        self._publish(offset)

    def _drop(self, segments: Sequence[Segment]) -> None:
        """From the last one down, so that a crash in between leaves a log without holes."""
        for segment in reversed(segments):
            segment.delete()
            self._snapshots.delete([segment.base_offset])
        self._are_names_synced = False

    def _after_cut(self, end: int, now_ms: int) -> None:
        reload = ProducerReload(
            self._producers, self._snapshots, self._segments, self._log_start_offset
        )
        self._readable = None
        self._end = end
        reload.run(end, now_ms)
        self._publish(end)

    def delete_records(self, offset: int) -> int:
        """Let the log start at `offset` (-1: at the high watermark); answers the new log start.

        Records below are hidden at once; their segments go with the next retention pass.
        """
        with self._changing(), self._fatal():
            target = self._high_watermark if offset == DELETE_UP_TO_HIGH_WATERMARK else offset
            if not 0 <= target <= self._high_watermark:
                raise OffsetOutOfRangeError(
                    target,
                    log_start_offset=self._log_start_offset,
                    log_end_offset=self._high_watermark,
                )
            if target > self._log_start_offset:
                self._log_start_offset = target
                self._epochs.truncate_from_start(target)
                self._epochs.flush()
                self._producers.on_log_start_offset_incremented(target, self._snapshots.latest)
                self._publish(self._end)
            return self._log_start_offset


def _info_of(append: ValidatedAppend) -> AppendInfo:
    return AppendInfo(append.first_offset, append.last_offset, append.log_append_time_ms)


def _duplicate(batch: CachedBatch, append: ValidatedAppend) -> AppendInfo:
    is_append_time = append.log_append_time_ms != NO_TIMESTAMP
    append_time_ms = batch.timestamp if is_append_time else NO_TIMESTAMP
    return AppendInfo(batch.first_offset, batch.last_offset, append_time_ms, is_duplicate=True)


def _markers_of(append: ValidatedAppend) -> dict[int, EndMarker]:
    batches = [
        (span.position, header)
        for span, header in zip(append.spans, append.headers, strict=True)
        if isinstance(header, BatchHeader)
    ]
    return markers_in(append.data, batches)
