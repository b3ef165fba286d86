"""`PartitionLog`: one partition that is open for writing.

`maintenance.recovery.open_log` creates one, from files in a consistent state. A log is made of
parts, one per idea: `LogSegments` (the files), `LogOffsets` (what readers may see), `Appender` (how
a batch gets into the log), `ProducerStateManager`, `LeaderEpochCache`, and `SegmentChanges` (what
retention and the cleaner may do). `LogReader` does the reading. This module has the methods that
clients call, and truncation, which affects every part.

One thread at a time changes a log (`WriteGuard`); any number may read meanwhile, without a lock.
After a failed write, the log is either as before, or rejects writes until it is opened again. It
can still be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stratalog.errors import OffsetOutOfRangeError
from stratalog.format.arguments import choice_of
from stratalog.format.control import ControlType, EndMarker, encode_end_marker
from stratalog.log.aborted_transactions import AbortedLookup
from stratalog.log.appender import Appender
from stratalog.log.log_state import LogOffsets, LogSegments, WriteGuard
from stratalog.log.offset_assignment import AppendOrigin, BatchFacts
from stratalog.log.reader import LogReader
from stratalog.log.segment_changes import SegmentChanges, TruncationEpoch
from stratalog.log.snapshot_files import ProducerReload
from stratalog.storage.locks import detach_in_children

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stratalog.config import LogConfig
    from stratalog.errors import StratalogError
    from stratalog.format.buffers import Buffer
    from stratalog.format.txn_index import AbortedTxn
    from stratalog.log.epochs import EpochEndOffset
    from stratalog.log.log_state import AppendInfo, LogState
    from stratalog.log.offset_assignment import FileBatches
    from stratalog.log.segment_list import SegmentList


class PartitionLog(LogReader):
    """A partition directory opened for writing. Use it as a context manager, or `close` it."""

    def __init__(self, state: LogState) -> None:
        self.path = state.path
        self.topic_partition = state.topic_partition
        self._now_ms = state.now_ms
        self.producers: Final = state.producers
        """Producer state. Do not change it."""
        self.epochs: Final = state.epochs
        """Leader epochs. Do not change them."""
        self._guard = WriteGuard(state.path)
        self._segments = LogSegments(state, self._guard)
        self._offsets = LogOffsets(
            state.producers,
            log_start=state.log_start_offset,
            end=self._segments.active.next_offset,
        )
        self._truncations = TruncationEpoch()
        self._appender = Appender(state, self._guard, self._segments, self._offsets)
        self.maintenance = SegmentChanges(
            state, self._guard, self._segments, self._offsets, self._truncations
        )
        """For retention and the cleaner."""
        detach_in_children(self)

    def __repr__(self) -> str:
        return f"PartitionLog({str(self.path)!r})"

    # -- what the log is

    @property
    def config(self) -> LogConfig:
        """The topic's settings."""
        return self._segments.config

    def update_config(self, config: LogConfig) -> None:
        """Use other settings from now on; the indexes of the active segment keep their size."""
        with self._guard.lock:
            self._appender.update_config(config)

    @property
    def size_bytes(self) -> int:
        """Size of the batches in the `.log` files, not counting preallocated space."""
        return self._segments.size_bytes

    @property
    def segments(self) -> SegmentList:
        """The segments as readers see them now."""
        return self._segments.published(self._offsets.end)

    def refresh_segments(self) -> None:
        """List the segments anew. Waits for a change in progress, during which files have other
        names."""
        with self._guard.lock:
            self._segments.forget_published()

    @property
    def log_start_offset(self) -> int:
        return self._offsets.log_start

    @property
    def log_end_offset(self) -> int:
        return self._offsets.end

    @property
    def high_watermark(self) -> int:
        """The log end: with one replica, what is written is replicated."""
        return self._offsets.high_watermark

    def end_offset_for_epoch(self, epoch: int) -> EpochEndOffset:
        """Where the records of this leader epoch end: what a follower truncates to."""
        return self.epochs.end_offset_for(epoch, self._offsets.end)

    @property
    def last_stable_offset(self) -> int:
        return self._offsets.last_stable

    def aborted_transactions(self, start: int = 0, end: int | None = None) -> list[AbortedTxn]:
        stop = self._offsets.end if end is None else end
        return self.retry_if_gone(lambda: self._aborted_lookup().find(start, stop))

    def _aborted_lookup(self) -> AbortedLookup:
        segments = self._segments
        return AbortedLookup(
            self.segments, segments.snapshots.listed, written_from=segments.first_written_base
        )

    # -- appending

    def append(
        self,
        data: Buffer,
        *,
        origin: AppendOrigin | str = AppendOrigin.CLIENT,
        facts: BatchFacts | None = None,
    ) -> AppendInfo:
        """Append encoded batches as the leader: check them, assign their offsets, write them.

        With `facts`, `data` is one batch that this process has just encoded: the topic's rules
        apply to it, but it is trusted, not decoded to be checked.

        Raises an AppendError (with Kafka's error code) if they are rejected; nothing was written
        then. Raises StorageError if the disk failed; usually nothing was written then, but if the
        log is offline afterwards, it may have the batches.
        """
        if not isinstance(origin, AppendOrigin):
            origin = choice_of(AppendOrigin, origin, "origin")
        guard = self._guard
        with guard.lock:  # `with guard`, faster
            if guard.is_closed or guard.failure is not None:
                guard.check()
            return self._appender.append(data, origin, facts)

    def append_by_header(self, data: Buffer, transaction_version: int = 0) -> AppendInfo:
        """Append one batch of a client, as a broker does: its header and CRC are checked, its
        records only if the topic is compacted or limits the age of records.

        `transaction_version` is 2 if each transaction of the client has its own epoch. Raises as
        `append` does.
        """
        with self._guard:
            return self._appender.append_by_header(data, transaction_version)

    def append_own(self, data: Buffer, facts: BatchFacts) -> AppendInfo:
        """Append several batches that this process has just encoded, with as few writes as
        possible, and return the offsets of the first and last record.

        `facts` are those of all records. Offsets and leader epoch may be patched into `data`: do
        not use it afterwards. Raises as `append` does; a part of the batches may be in the log
        then.
        """
        with self._guard:
            return self._appender.append_own(data, facts)

    def append_many(self, requests: Sequence[Buffer]) -> list[AppendInfo | StratalogError]:
        """Append several producers' requests at once: each succeeds or fails on its own.

        The result of each is what `append` would return or raise. One write serves all of them,
        unless a producer sent one twice or out of order, or the segment is full; then they are
        appended one by one.
        """
        with self._guard:
            return self._appender.append_many(requests)

    def append_as_follower(self, data: Buffer) -> AppendInfo:
        """Append batches of the leader, with the offsets and epochs that it has assigned."""
        with self._guard:
            return self._appender.append_as_follower(data)

    def install(self, data: Buffer) -> None:
        """Append batches that lack only their offsets, as if they came one by one, with as few
        writes as possible.

        Offsets and leader epoch are patched into `data`, which may be used again afterwards.
        Raises CorruptBatchError if `data` is corrupt. Raises StorageError if it could not be
        written; a part of the batches may be in the log then.
        """
        with self._guard:
            self._appender.install(data)

    def stamp_file(self, path: Path, batches: FileBatches, base_offset: int) -> bool:
        """Write the offsets from `base_offset` on, and the leader epoch, into the batches of a file
        that will be installed there, and make it durable. The log does not change.

        False if `install_file` would refuse the file: it is not changed then. If the log end has
        moved when the file is installed, the file is stamped again.
        """
        return self._appender.stamp_file(path, batches, base_offset)

    def install_file(self, path: Path, batches: FileBatches) -> bool:
        """Make a file of checked batches in the log's directory a segment of its own.

        The file gets a second name; the caller removes the first one. The active segment is sealed,
        so the log may roll earlier than with single appends. Durable. Returns False, and appends
        nothing, if the topic's limits, another owner of the file, or a file system without hard
        links prevent it.
        """
        with self._guard:
            return self._appender.install_file(path, batches)

    def end_transaction(
        self, producer_id: int, producer_epoch: int, *, commit: bool, coordinator_epoch: int = 0
    ) -> AppendInfo:
        """Write the marker that ends the producer's transaction, as its coordinator."""
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        now_ms = self._now_ms()
        marker = encode_end_marker(
            EndMarker(kind, coordinator_epoch),
            offset=0,
            timestamp=now_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partition_leader_epoch=self.leader_epoch,
        )
        facts = BatchFacts(now_ms, has_all_keys=True)
        return self.append(marker, origin=AppendOrigin.COORDINATOR, facts=facts)

    @property
    def leader_epoch(self) -> int:
        """The leader epoch of the batches that are appended."""
        return self._appender.leader_epoch

    def become_leader(self, epoch: int) -> None:
        """Stamp batches with `epoch` from now on; it begins at the log end."""
        with self._guard:
            self.epochs.assign(epoch, self._offsets.end)
            self._appender.leader_epoch = epoch

    def remove_expired_producers(self, now_ms: int) -> None:
        """Forget producers that were idle for longer than `producer.id.expiration.ms`."""
        with self._guard.lock:
            self.producers.remove_expired(now_ms)

    # -- segments and durability

    def roll(self) -> None:
        """Begin a new segment at the log end, unless the active one is empty."""
        with self._guard:
            if self._segments.active.size_bytes:
                self._segments.roll(self._offsets.end)

    @property
    def recovery_point(self) -> int:
        """Everything below is durable."""
        return self._segments.recovery_point

    def flush(self) -> None:
        """Make everything appended so far survive a crash of the machine."""
        with self._guard, self._guard.fatal():
            self._segments.flush_below(self._offsets.end)

    def flush_if_due(self, now_ms: int) -> bool:
        """Flush when the topic's `flush.ms` has passed since the last time."""
        if now_ms - self._segments.last_flush_ms < self.config.flush_ms:
            return False
        self.flush()
        return True

    def delete_records(self, offset: int) -> int:
        """Move the log start to `offset` (-1: the high watermark); returns the new log start.

        Records below are hidden at once; the next retention pass deletes their segments.
        """
        return self.maintenance.delete_records(offset)

    # -- truncating

    @property
    def truncation_epoch(self) -> int:
        """Grows with every truncation, see `truncated_since`."""
        return self._truncations.value

    def truncated_since(self, epoch: int) -> bool:
        return self._truncations.truncated_since(epoch)

    def truncate_to(self, offset: int) -> None:
        """Drop every record at or above `offset`, as a follower that has diverged from its leader
        does.

        Batches are dropped as a whole. Does nothing to a log that ends at or below `offset`.
        """
        self._check_offset(offset)
        with self._guard, self._truncations:
            if offset < self._offsets.end:
                self._announce_truncation(offset)
            with self._guard.fatal():
                if offset >= self._offsets.end:
                    self.epochs.truncate_from_end(offset)
                    self.epochs.flush()
                elif offset < self._segments.all[0].base_offset:
                    self._start_at(offset)
                else:
                    self._truncate_to(offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop every record; the next one gets `offset`."""
        self._check_offset(offset)
        with self._guard, self._truncations:
            self._announce_truncation(offset)
            with self._guard.fatal():
                self._start_at(offset)

    def _announce_truncation(self, offset: int) -> None:
        """Prepare for a truncation to `offset`. Batches are dropped as a whole, so it may reach
        below `offset`, but not below its segment."""
        segment = self._segments.all[self._segments.slot_of(offset)]
        self.maintenance.before_truncation(min(offset, segment.base_offset))

    def _check_offset(self, offset: int) -> None:
        if offset < 0:
            raise OffsetOutOfRangeError(
                offset, log_start_offset=self.log_start_offset, log_end_offset=self.log_end_offset
            )

    def _truncate_to(self, offset: int) -> None:
        now_ms, segments = self._now_ms(), self._segments
        last = segments.slot_of(offset)
        kept, dropped = list(segments.all[: last + 1]), segments.all[last + 1 :]
        self._lower_to(offset)
        segments.use(kept)
        segments.delete(dropped)
        kept[-1].truncate_to(offset, now_ms=now_ms)
        kept[-1].flush()  # else a crash could bring dropped bytes back after new ones
        segments.note_change()
        self.epochs.truncate_from_end(offset)
        self.epochs.flush()
        end = kept[-1].next_offset
        self._lower_to(end)  # `offset` may be in a gap between two segments
        reload = ProducerReload(self.producers, segments.snapshots, kept, self.log_start_offset)
        reload.run(end, now_ms)
        self._offsets.publish(end)

    def _start_at(self, offset: int) -> None:
        segments = self._segments
        dropped = segments.all
        self._lower_to(offset)
        self._offsets.log_start = offset
        segments.delete(dropped)
        segments.snapshots.delete(segments.snapshots.offsets)
        segments.use([segments.create(offset, self._now_ms())])
        segments.set_durable(offset)
        self.epochs.clear()
        self.epochs.flush()
        self.producers.truncate_fully_and_start_at(offset)
        self._offsets.publish(offset)

    def _lower_to(self, offset: int) -> None:
        """Lower the offsets for readers before the bytes are gone."""
        self._offsets.lower_to(offset)
        self._segments.lower_durable_to(offset)

    # -- the end

    def close(self) -> None:
        """Flush, write a producer snapshot, trim what was preallocated. Idempotent.

        A failed log leaves its files as they are; the next opening recovers them.
        """
        guard = self._guard
        with guard.lock:
            self.maintenance.forget_discarded()
            if guard.is_closed:
                return
            guard.is_closed = True
            if guard.failure is not None:
                self._segments.release()
                return
            with guard.fatal():
                self._close_cleanly()

    def _close_cleanly(self) -> None:
        segments = self._segments
        self.epochs.flush()
        self.maintenance.limit_last_indexes()
        if segments.is_changed:
            segments.seal_active()
        segments.flush_below(self._offsets.end)
        segments.snapshots.take(self.producers)
        segments.close()

    @property
    def is_usable(self) -> bool:
        """The log is open, and no write has failed in a way that only opening it again can
        repair."""
        return self._guard.is_usable

    @property
    def has_failed(self) -> bool:
        """A write has failed in a way that only recovery can repair, before or during `close`."""
        return self._guard.failure is not None

    def take_offline(self, reason: str) -> None:
        """Reject every change from now on; closing writes nothing. Does not wait for other
        threads."""
        self._guard.take_offline(reason)

    def detach(self) -> None:
        """Reject all changes in a forked child: the log belongs to the parent, but can be read."""
        self.maintenance.forget_discarded()
        self._guard.detach()
