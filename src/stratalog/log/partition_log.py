"""One partition that is being written: appending as leader or follower, truncating.

`maintenance.recovery.open_log` makes one, from clean state.

Order of an append, as in Kafka: validate and assign offsets, note a new leader epoch, roll if need
be, check producers, write, update producers, note aborted transactions, publish. So whatever is
refused has written nothing, and whatever readers see is whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.errors import (
    AppendError,
    LogOfflineError,
    OffsetOutOfRangeError,
    StorageError,
    StratalogError,
)
from stratalog.format.batch import NO_LEADER_EPOCH, NO_TIMESTAMP, BatchHeader
from stratalog.format.control import ControlType, EndMarker, encode_end_marker
from stratalog.format.names import FileKind, segment_file_name
from stratalog.log.appends import NO_OFFSET, AppendOrigin, AppendRules, Assignment, place
from stratalog.log.log_state import AppendInfo
from stratalog.log.maintained_log import MaintainedLog
from stratalog.log.producers import markers_in
from stratalog.log.snapshots import ProducerReload
from stratalog.log.validation import LeaderValidator, validate_follower
from stratalog.storage.segment import Segment
from stratalog.storage.segment_view import SegmentEnd
from stratalog.storage.staged_names import second_staged_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from stratalog.config import LogConfig
    from stratalog.format.buffers import Buffer
    from stratalog.format.entry import EntryHeader
    from stratalog.log.appends import FileBatches, GroupAppend, SegmentPlan, ValidatedAppend
    from stratalog.log.log_state import LogState
    from stratalog.log.producer_state import CheckedAppend
    from stratalog.log.producers import CachedBatch


class PartitionLog(MaintainedLog):
    """A partition directory opened for writing. Use it as a context manager, or `close` it."""

    def __init__(self, state: LogState) -> None:
        super().__init__(state)
        self._validator = LeaderValidator()
        self._rules = AppendRules.of(state.config)
        self.before_cut: Callable[[int], None] = lambda _offset: None
        """Told before a truncation: from this offset on, nothing is as it was. What it raises
        prevents the truncation."""

    @property
    def size_bytes(self) -> int:
        """Of the batches in the `.log` files; what is only preallocated does not count."""
        return sum(segment.size_bytes for segment in self._segments)

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

    def append_many(self, requests: Sequence[Buffer]) -> list[AppendInfo | StratalogError]:
        """Append several producers' requests at once: each stands or falls on its own.

        The answer to each is what `append` would return or raise.
        One write serves all of them, unless a producer sent one twice or out of order, or the
        segment is full; then they are taken one by one.
        """
        with self._changing():
            now_ms = self._now_ms()
            assign = Assignment(self._end, self._leader_epoch, now_ms, AppendOrigin.CLIENT)
            group = self._validator.validate_group(requests, self._rules, assign)
            checked = self._check_at_once(group, now_ms)
            if checked is None:
                return [self._append_or_error(data) for data in requests]
            try:
                return self._take_group(group, checked)
            except StorageError as error:
                return [error if isinstance(answer, tuple) else answer for answer in group.offsets]

    def append_as_follower(self, data: Buffer) -> AppendInfo:
        """Append batches that a leader has placed, with the offsets and epochs they bring."""
        with self._changing():
            append = validate_follower(data, log_end_offset=self._end)
            return self._take(append, AppendOrigin.REPLICATION, self._now_ms())

    def install(self, data: Buffer) -> None:
        """Append batches that are ready, as if they came one by one, with as few writes as can be.

        Offsets and leader epoch are patched into `data`, which may be used again afterwards.
        Raises CorruptBatchError if it is damaged; StorageError if it could not be written, and then
        a part of the batches may be in the log.
        """
        with self._changing():
            now_ms = self._now_ms()
            group = place(data, self._end, self._leader_epoch)
            checked = self._check_at_once(group, now_ms)
            if checked is not None:
                self._take_group(group, checked)
                return
            for append in group.accepted:
                self._take(append, AppendOrigin.CLIENT, now_ms)

    def place_file(self, path: Path, batches: FileBatches, base_offset: int) -> SegmentPlan | None:
        """Write offsets from `base_offset` on, and the leader epoch, into a file of checked batches
        that is to become a segment. Not durable yet; `install_file` waits for that.

        No CRC covers those bytes, and whoever appends the batches elsewhere overwrites them: a file
        that was placed in vain is as good as before. None if the file cannot become a segment,
        because of the topic's limits or another owner; it is unchanged then.
        """
        with self._changing():
            plan = batches.plan(base_offset, self._leader_epoch, self.config)
            if plan is None or not self._disk.can_stand_for(path, self._segments[-1].path):
                return None
            self._disk.patch(path, plan.patches())
            return plan

    def install_file(self, path: Path, placed: SegmentPlan) -> bool:
        """Make a file of ready, checked batches in the log's directory a segment of its own.

        `placed` is what `place_file` has returned. If the log has grown since, the file is placed
        again. It gets a second name; the first stays, and is the caller's to remove. The active
        segment is sealed before it, so it may roll earlier than single appends would have let it.
        Durable. False if that cannot be done, because of the topic's limits, another owner, or a
        file system without links: nothing is appended then.
        """
        with self._changing():
            plan: SegmentPlan | None = placed
            if not placed.fits(self._end, self._leader_epoch, self.config):
                plan = self.place_file(path, placed.batches, self._end)
            if plan is None:
                return False
            self._disk.fsync(path)
            second_name = second_staged_name(path)
            try:
                self._disk.link(path, second_name)
            except StorageError:
                return False
            with self._fatal():
                self._adopt(second_name, plan)
            return True

    def _adopt(self, path: Path, plan: SegmentPlan) -> None:
        """All that belongs to the segment is durable before its log gets its name."""
        base_offset, active = self._end, self._segments[-1]
        if self._leader_epoch not in (self._epochs.latest_epoch, NO_LEADER_EPOCH):
            self._epochs.assign(self._leader_epoch, base_offset)
        self._seal(active)
        self._flush_below(base_offset)
        self._producers.map_end_offset = base_offset
        self._snapshots.take(self._producers)
        log_path = self.path / segment_file_name(base_offset, FileKind.LOG)
        end = SegmentEnd(plan.batches.size_bytes, plan.next_offset)
        segment = Segment.around(self._disk, log_path, end, plan.indexes, self.config)
        self._disk.rename(path, log_path)
        self._disk.fsync_dir(self.path)
        kept = self._segments
        if active.base_offset == base_offset:  # it was empty, and its files are replaced
            active.release()
            kept = kept[:-1]
        self._use([*kept, segment])
        self._producers.map_end_offset = plan.next_offset
        self._publish(plan.next_offset)
        self._recovery_point = self._unsynced_from = plan.next_offset

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
        self._note_epochs(append.headers)
        self._make_room(append, now_ms)
        headers = [header for header in append.headers if isinstance(header, BatchHeader)]
        markers = None
        if any(header.is_control for header in headers):
            markers = _markers_of(append)
        checked = self._producers.check(headers, origin, markers=markers)
        if checked.duplicate is not None:
            return _duplicate(checked.duplicate, append)
        segment = self._segments[-1]
        try:
            segment.append(append.data, append.spans)
            for txn in self._producers.update(checked):
                if txn.is_aborted:
                    segment.append_aborted(txn.index_entry())
            self._wrote(append.next_offset, append.record_count)
        except BaseException as error:
            self._fail_unless_accounted(segment, error)
            raise
        return _info_of(append)

    def _fail_unless_accounted(self, segment: Segment, error: BaseException) -> None:
        """A write that changed nothing leaves the log usable. One that is in the segment, but that
        producers and readers were not told of, is for recovery to sort out."""
        if segment.next_offset != self._end:
            self._fail(error)

    def _note_epochs(self, headers: Sequence[EntryHeader]) -> None:
        """A batch of a new epoch is noted before it is written, so that no epoch is ever missing;
        messages of the old formats have none, and their epochs cannot be known any more."""
        latest = self._epochs.latest_epoch
        for header in headers:
            if not isinstance(header, BatchHeader):
                self._epochs.clear()
                latest = None
            elif header.partition_leader_epoch != latest and header.partition_leader_epoch >= 0:
                self._epochs.assign(header.partition_leader_epoch, header.base_offset)
                latest = self._epochs.latest_epoch

    def _make_room(self, append: ValidatedAppend, now_ms: int) -> None:
        segment = self._segments[-1]
        if not segment.is_active or segment.roll_reason(
            len(append.data), append.last_offset, append.max_timestamp, now_ms
        ):
            self._roll(append.first_offset, now_ms)

    def _check_at_once(self, group: GroupAppend, now_ms: int) -> CheckedAppend | None:
        """What the group will change of its producers; None if it cannot be written at once."""
        segment, spans = self._segments[-1], group.spans
        if not segment.is_active or not segment.size_bytes:
            return None  # the roll clock begins with the first batch, and the next may exceed it
        writer = segment.writer
        newest = max([span.max_timestamp for span in spans], default=NO_TIMESTAMP)
        if writer.roll_reason(len(group.data), group.next_offset - 1, newest, now_ms):
            return None
        headers = [header for header in group.headers if isinstance(header, BatchHeader)]
        if len(headers) < len(spans) or not writer.has_index_room(len(spans)):
            return None
        try:
            checked = self._producers.check(headers, AppendOrigin.CLIENT)
        except AppendError:
            return None
        return checked if checked.duplicate is None else None

    def _take_group(
        self, group: GroupAppend, checked: CheckedAppend
    ) -> list[AppendInfo | StratalogError]:
        self._note_epochs(group.headers)
        if group.spans:
            segment = self._segments[-1]
            try:
                segment.append(group.data, group.spans)
                self._producers.update(checked)
                self._wrote(group.next_offset, group.next_offset - self._end)
            except BaseException as error:
                self._fail_unless_accounted(segment, error)
                raise
        append_time_ms = group.log_append_time_ms
        return [
            AppendInfo(*answer, append_time_ms) if isinstance(answer, tuple) else answer
            for answer in group.offsets
        ]

    def _append_or_error(self, data: Buffer) -> AppendInfo | StratalogError:
        try:
            return self.append(data)
        except (AppendError, StorageError, LogOfflineError) as error:
            return error

    # -- cutting

    def truncate_to(self, offset: int) -> None:
        """Drop every record at or above `offset`, as a follower does whose leader has other ones.

        Batches go as a whole. Does nothing to a log that ends at or below `offset`.
        """
        self._check_offset(offset)
        with self._changing():
            if offset < self._end:
                self._announce_cut(offset)
            with self._fatal(), self._cutting():
                if offset >= self._end:
                    self._epochs.truncate_from_end(offset)
                    self._epochs.flush()
                elif offset < self._segments[0].base_offset:
                    self._start_over_at(offset)
                else:
                    self._cut_to(offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop every record; the next one gets `offset`."""
        self._check_offset(offset)
        with self._changing():
            self._announce_cut(offset)
            with self._fatal(), self._cutting():
                self._start_over_at(offset)

    def _announce_cut(self, offset: int) -> None:
        """Batches go as a whole, so a cut may reach below `offset`, but not below its segment."""
        self.before_cut(min(offset, self._segments[self._slot_of(offset)].base_offset))

    def _check_offset(self, offset: int) -> None:
        if offset < 0:
            raise OffsetOutOfRangeError(
                offset, log_start_offset=self._log_start_offset, log_end_offset=self._end
            )

    def _cut_to(self, offset: int) -> None:
        now_ms = self._now_ms()
        last = self._slot_of(offset)
        dropped, kept = self._segments[last + 1 :], self._segments[: last + 1]
        self._lower_ends(offset)
        self._use(kept)
        self._drop(dropped)
        kept[-1].truncate_to(offset, now_ms=now_ms)
        kept[-1].flush()  # else bytes that were cut might come back behind those to come
        self._generation += 1
        self._epochs.truncate_from_end(offset)
        self._epochs.flush()
        end = kept[-1].next_offset
        self._lower_ends(end)  # it may lie in a hole between two segments
        reload = ProducerReload(self._producers, self._snapshots, kept, self._log_start_offset)
        reload.run(end, now_ms)
        self._publish(end)

    def _start_over_at(self, offset: int) -> None:
        now_ms = self._now_ms()
        dropped = self._segments
        self._lower_ends(offset)
        self._log_start_offset = offset
        self._drop(dropped)
        self._snapshots.delete(self._snapshots.offsets)
        self._use([self._new_segment(offset, now_ms)])
        self._recovery_point = self._unsynced_from = offset
        self._epochs.clear()
        self._epochs.flush()
        self._producers.truncate_fully_and_start_at(offset)
        self._publish(offset)

    def _lower_ends(self, offset: int) -> None:
        """Readers, too, are told before the bytes are gone."""
        self._last_stable_offset = min(self._last_stable_offset, offset)
        self._high_watermark = min(self._high_watermark, offset)
        self._end = min(self._end, offset)
        self._log_start_offset = min(self._log_start_offset, offset)
        self._recovery_point = min(self._recovery_point, offset)
        self._unsynced_from = min(self._unsynced_from, offset)

    def _drop(self, segments: Sequence[Segment]) -> None:
        """From the last one down and each for good, so that no crash leaves a hole."""
        for segment in reversed(segments):
            segment.delete()
            self._snapshots.delete([segment.base_offset])
            self._disk.fsync_dir(self.path)


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
