"""Appending to a log: validate, assign offsets, roll, check producers, write, publish.

As in Kafka, a rejected append has written no record, but it may have recorded a leader epoch or
rolled the log. Readers see only complete appends. A new leader epoch is recorded before its first
batch is written, so the checkpoint never lacks one. The caller of a method holds the log's
`WriteGuard`, except for `stamp_file`, which does not change the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.errors import AppendError, LogOfflineError, StorageError
from stratalog.format.batch import (
    ATTRIBUTES_AT,
    BATCH_FACTS,
    CONTROL_BIT,
    LOG_APPEND_TIME_BIT,
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    BatchHeader,
)
from stratalog.format.names import FileKind, segment_file_name
from stratalog.log.log_state import AppendInfo
from stratalog.log.offset_assignment import (
    NO_OFFSET,
    AppendOrigin,
    AppendRules,
    Assignment,
    assign_offsets,
    one_batch,
    split_batches,
)
from stratalog.log.producer_state_manager import NOTHING_TO_UPDATE
from stratalog.log.producer_transitions import markers_in
from stratalog.log.validation import (
    LeaderValidator,
    assign_by_header,
    assign_own,
    assign_own_group,
    validate_follower,
)
from stratalog.storage.segment import Segment
from stratalog.storage.segment_view import SegmentEnd
from stratalog.storage.staged_names import second_staged_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stratalog.config import LogConfig
    from stratalog.errors import StratalogError
    from stratalog.format.buffers import Buffer
    from stratalog.format.control import EndMarker
    from stratalog.format.log_entry import EntryHeader
    from stratalog.log.compiled_validation import CompiledValidation
    from stratalog.log.log_state import LogOffsets, LogSegments, LogState, WriteGuard
    from stratalog.log.offset_assignment import (
        BatchFacts,
        FileBatches,
        GroupAppend,
        SegmentPlan,
        ValidatedAppend,
    )
    from stratalog.log.producer_state_manager import CheckedAppend
    from stratalog.log.producer_transitions import CachedBatch


class Appender:
    """Writes batches to the end of a log."""

    def __init__(
        self, state: LogState, guard: WriteGuard, segments: LogSegments, offsets: LogOffsets
    ) -> None:
        self.leader_epoch = state.leader_epoch
        self._producers = state.producers
        self._epochs = state.epochs
        self._guard = guard
        self._segments = segments
        self._offsets = offsets
        self._validator = LeaderValidator()
        self._rules = AppendRules.of(state.config)
        self._compiled: CompiledValidation | None = None  # for clients, once it is loaded

    def update_config(self, config: LogConfig) -> None:
        self._rules = AppendRules.of(config)
        self._compiled = None
        self._segments.config = config
        self._segments.active.configure(config)

    # -- single requests

    def append(
        self,
        data: Buffer,
        origin: AppendOrigin,
        facts: BatchFacts | None = None,
        transaction_version: int = 0,
    ) -> AppendInfo:
        """Append as the leader. With `facts`, `data` is one batch that this process has encoded."""
        now_ms = self._segments.now_ms()
        compiled = self._compiled
        if compiled is not None and facts is None and origin is AppendOrigin.CLIENT:
            accepted = compiled.accept(data, self._offsets.end, self.leader_epoch, now_ms)
            if accepted is not None:
                return self._write_batch(accepted, origin, now_ms, transaction_version)
        assign = Assignment(self._offsets.end, self.leader_epoch, now_ms, origin)
        if facts is not None:
            own = assign_own(data, facts, self._rules, assign)
            if own is not None:
                return self._write_batch(own, origin, now_ms)
        append = self._validator.validate(data, self._rules, assign)
        if origin is AppendOrigin.CLIENT:
            self._compiled = self._validator.compiled
        return self._write(append, origin, now_ms, transaction_version)

    def append_by_header(self, data: Buffer, transaction_version: int = 0) -> AppendInfo:
        """Append a client's batch. Its records are decoded only if the topic's rules require it."""
        now_ms = self._segments.now_ms()
        assign = Assignment(self._offsets.end, self.leader_epoch, now_ms)
        checked = assign_by_header(data, self._rules, assign)
        if checked is None:
            return self.append(data, AppendOrigin.CLIENT, transaction_version=transaction_version)
        return self._write_batch(checked, AppendOrigin.CLIENT, now_ms, transaction_version)

    def append_own(self, data: Buffer, facts: BatchFacts) -> AppendInfo:
        """Append batches that this process has encoded. Their offsets are patched into `data`."""
        now_ms = self._segments.now_ms()
        assign = Assignment(self._offsets.end, self.leader_epoch, now_ms)
        group = assign_own_group(data, facts, self._rules, assign)
        if group is None:
            infos = [
                self.append(batch, AppendOrigin.CLIENT, facts) for batch in split_batches(data)
            ]
        else:
            infos = self._write_assigned(group, now_ms)
        first, last = infos[0], infos[-1]
        return AppendInfo(first.first_offset, last.last_offset, last.log_append_time_ms)

    def append_as_follower(self, data: Buffer) -> AppendInfo:
        """Append batches to which the leader has assigned offsets."""
        append = validate_follower(data, log_end_offset=self._offsets.end)
        return self._write(append, AppendOrigin.REPLICATION, self._segments.now_ms())

    def _write_batch(
        self, data: Buffer, origin: AppendOrigin, now_ms: int, transaction_version: int = 0
    ) -> AppendInfo:
        """A faster `_write` for a single batch, which is what producers send."""
        first_offset, leader_epoch = self._offsets.end, self.leader_epoch
        attributes, delta, _, max_timestamp, producer_id = BATCH_FACTS.unpack_from(
            data, ATTRIBUTES_AT
        )
        last_offset = first_offset + delta
        append_time_ms = now_ms if attributes & LOG_APPEND_TIME_BIT else NO_TIMESTAMP
        segment = self._segments.active
        writer = segment.writer_if_active
        if (
            writer is None
            or attributes & CONTROL_BIT
            or (leader_epoch >= 0 and leader_epoch != self._epochs.latest_epoch)
            or writer.roll_reason(len(data), last_offset, max_timestamp, now_ms) is not None
        ):
            append = one_batch(data, BatchHeader.unpack(data), append_time_ms)
            return self._write(append, origin, now_ms, transaction_version)
        checked = NOTHING_TO_UPDATE
        if producer_id >= 0:
            headers = (BatchHeader.unpack(data),)
            checked = self._producers.check(
                headers, origin, transaction_version=transaction_version
            )
            if checked.duplicate is not None:
                return _duplicate(checked.duplicate, append_time_ms)
        try:
            writer.append_batch(data, first_offset, last_offset, max_timestamp)
            if checked is not NOTHING_TO_UPDATE:
                self._producers.update(checked)
            self._publish(last_offset + 1, delta + 1)
        except BaseException as error:
            self._fail_unless_published(segment, error)
            raise
        return AppendInfo(first_offset, last_offset, append_time_ms)

    def _write(
        self,
        append: ValidatedAppend,
        origin: AppendOrigin,
        now_ms: int,
        transaction_version: int = 0,
    ) -> AppendInfo:
        if not append.spans:
            return AppendInfo(NO_OFFSET, NO_OFFSET)
        self._record_epochs(append.headers)
        segment = self._segments.active
        if not segment.is_active or segment.roll_reason(
            len(append.data), append.last_offset, append.max_timestamp, now_ms
        ):
            self._segments.roll(max(append.first_offset, self._offsets.end))
            segment = self._segments.active
        headers = [header for header in append.headers if isinstance(header, BatchHeader)]
        markers = None
        if any(header.is_control for header in headers):
            markers = _markers_of(append)
        checked = self._producers.check(
            headers, origin, markers=markers, transaction_version=transaction_version
        )
        if checked.duplicate is not None:
            return _duplicate(checked.duplicate, append.log_append_time_ms)
        try:
            segment.append(append.data, append.spans)
            for txn in self._producers.update(checked):
                if txn.is_aborted:
                    segment.append_aborted(txn.index_entry())
            self._publish(append.next_offset, append.record_count)
        except BaseException as error:
            self._fail_unless_published(segment, error)
            raise
        return AppendInfo(append.first_offset, append.last_offset, append.log_append_time_ms)

    def _publish(self, next_offset: int, records: int) -> None:
        """Make the append visible to readers, then flush if the topic's `flush.messages` is
        reached."""
        segments = self._segments
        self._producers.map_end_offset = next_offset
        segments.is_changed = True
        self._offsets.publish(next_offset)
        segments.unflushed_messages += records
        if segments.unflushed_messages >= segments.config.flush_messages:
            with self._guard.fatal():
                segments.flush_below(next_offset)

    def _fail_unless_published(self, segment: Segment, error: BaseException) -> None:
        """Take the log offline if the segment has a batch that was not published: producer state
        may lack it, so only recovery can restore a consistent state. A write that changed nothing
        leaves the log usable."""
        if segment.next_offset != self._offsets.end:
            self._guard.fail(error)

    def _record_epochs(self, headers: Sequence[EntryHeader]) -> None:
        """Record the leader epochs of these batches. Messages of the old formats have none and, as
        in Kafka, clear all entries."""
        latest = self._epochs.latest_epoch
        for header in headers:
            if not isinstance(header, BatchHeader):
                self._epochs.clear()
                latest = None
            elif header.partition_leader_epoch != latest and header.partition_leader_epoch >= 0:
                self._epochs.assign(header.partition_leader_epoch, header.base_offset)
                latest = self._epochs.latest_epoch

    # -- several requests with one write

    def append_many(self, requests: Sequence[Buffer]) -> list[AppendInfo | StratalogError]:
        """Each request succeeds or fails on its own."""
        now_ms = self._segments.now_ms()
        assign = Assignment(self._offsets.end, self.leader_epoch, now_ms, AppendOrigin.CLIENT)
        group = self._validator.validate_group(requests, self._rules, assign)
        checked = self._check_group(group, now_ms)
        if checked is None:
            return [self._append_or_error(data) for data in requests]
        try:
            self._write_group(group, checked)
        except StorageError as error:
            return [error if isinstance(result, tuple) else result for result in group.offsets]
        append_time_ms = group.log_append_time_ms
        return [
            AppendInfo(*result, append_time_ms) if isinstance(result, tuple) else result
            for result in group.offsets
        ]

    def _append_or_error(self, data: Buffer) -> AppendInfo | StratalogError:
        try:
            with self._guard:  # an earlier request may have failed for good
                return self.append(data, AppendOrigin.CLIENT)
        except (AppendError, StorageError, LogOfflineError) as error:
            return error

    def install(self, data: Buffer) -> None:
        """Append batches that only lack offsets, which are patched into `data`."""
        group = assign_offsets(data, self._offsets.end, self.leader_epoch)
        self._write_assigned(group, self._segments.now_ms())

    def _write_assigned(self, group: GroupAppend, now_ms: int) -> list[AppendInfo]:
        """Write all batches at once, or one by one if a single write is impossible."""
        if not group.spans:
            return []
        checked = self._check_group(group, now_ms)
        if checked is None:
            return [self._write(append, AppendOrigin.CLIENT, now_ms) for append in group.accepted]
        self._write_group(group, checked)
        return [AppendInfo(group.spans[0].base_offset, group.spans[-1].last_offset)]

    def _check_group(self, group: GroupAppend, now_ms: int) -> CheckedAppend | None:
        """The changes of producer state; None if a single write cannot append the group."""
        segment, spans = self._segments.active, group.spans
        if not segment.is_active or not segment.size_bytes:
            # The first batch starts the roll clock, and the next one may exceed the limit.
            return None
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

    def _write_group(self, group: GroupAppend, checked: CheckedAppend) -> None:
        self._record_epochs(group.headers)
        if not group.spans:
            return
        segment = self._segments.active
        try:
            segment.append(group.data, group.spans)
            self._producers.update(checked)
            self._publish(group.next_offset, group.next_offset - self._offsets.end)
        except BaseException as error:
            self._fail_unless_published(segment, error)
            raise

    # -- a file that becomes a segment

    def stamp_file(self, path: Path, batches: FileBatches, base_offset: int) -> bool:
        """Return False, and leave the file as it is, if it cannot become a segment at this
        offset."""
        return self._stamped(path, batches, base_offset) is not None

    def _stamped(self, path: Path, batches: FileBatches, base_offset: int) -> SegmentPlan | None:
        segments, disk = self._segments, self._segments.disk
        plan = batches.plan(base_offset, self.leader_epoch, segments.config)
        if plan is None or not disk.can_stand_for(path, segments.active.path):
            return None
        if batches.stamped != (base_offset, self.leader_epoch):
            batches.stamped = None
            disk.patch(path, plan.patches())
            disk.fsync(path)
            batches.stamped = (base_offset, self.leader_epoch)
        return plan

    def install_file(self, path: Path, batches: FileBatches) -> bool:
        """Return False, and append nothing, if the file cannot become a segment."""
        disk = self._segments.disk
        plan = self._stamped(path, batches, self._offsets.end)
        if plan is None:
            return False
        second_name = second_staged_name(path)
        try:
            disk.link(path, second_name)
        except StorageError:
            return False
        with self._guard.fatal():
            self._add_as_segment(second_name, plan)
        return True

    def _add_as_segment(self, path: Path, plan: SegmentPlan) -> None:
        """Make the file the last segment. Its indexes and the snapshot are written before its log
        gets its name."""
        segments, base_offset = self._segments, self._offsets.end
        active = segments.active
        if self.leader_epoch not in (self._epochs.latest_epoch, NO_LEADER_EPOCH):
            self._epochs.assign(self.leader_epoch, base_offset)
        segments.end_active(base_offset, is_snapshot_synced=True)
        log_path = self._segments.path / segment_file_name(base_offset, FileKind.LOG)
        end = SegmentEnd(plan.batches.size_bytes, plan.next_offset)
        segment = Segment.adopt(segments.disk, log_path, end, plan.indexes, segments.config)
        segments.disk.rename(path, log_path)
        segments.disk.fsync_dir(self._segments.path)
        kept = list(segments.all)
        if active.base_offset == base_offset:  # it was empty, and its files are replaced
            active.release()
            kept.pop()
        segments.use([*kept, segment])
        self._producers.map_end_offset = plan.next_offset
        self._offsets.publish(plan.next_offset)
        segments.set_durable(plan.next_offset)


def _duplicate(batch: CachedBatch, append_time_ms: int) -> AppendInfo:
    """The result for a batch that the log already has. `append_time_ms` is the time of this append
    if the topic uses LogAppendTime, else -1."""
    if append_time_ms != NO_TIMESTAMP:
        append_time_ms = batch.timestamp
    return AppendInfo(batch.first_offset, batch.last_offset, append_time_ms, is_duplicate=True)


def _markers_of(append: ValidatedAppend) -> dict[int, EndMarker]:
    batches = [
        (span.position, header)
        for span, header in zip(append.spans, append.headers, strict=True)
        if isinstance(header, BatchHeader)
    ]
    return markers_in(append.data, batches)
