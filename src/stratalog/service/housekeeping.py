"""Tasks that every open log directory runs periodically, at the intervals of the broker's config.

None of them deletes records: `maintenance` does, and has to be started. A failure for one partition
or directory is recorded in `Health`, and the task continues with the others.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from stratalog.format.names import RootFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from stratalog.log.partition_log import PartitionLog
    from stratalog.partitions.partition_table import PartitionSlot
    from stratalog.partitions.schedule import Schedule
    from stratalog.producing.coordinator import TransactionCoordinator
    from stratalog.service.health import ServedDirs

_REMOVAL_INTERVAL_MS_MIN = 1000


class Housekeeping:
    """Checkpoints, flushes, removal of deleted files, and expiry of transactions and producers."""

    def __init__(self, served: ServedDirs, coordinator: TransactionCoordinator) -> None:
        self._catalog, self._context, self._health = served
        self._coordinator = coordinator

    def schedule_all(self, schedule: Schedule) -> None:
        """Put all tasks on the schedule."""
        config = self._context.config
        self._schedule_checkpoints(schedule)
        schedule.every(
            config.log_flush_scheduler_interval_ms, "flush of dirty logs", self.flush_dirty
        )
        # Often enough that no file stays for much longer than the delay.
        removal_ms = max(config.log_config.file_delete_delay_ms // 4, _REMOVAL_INTERVAL_MS_MIN)
        schedule.every(removal_ms, "removal of deleted files", self.remove_deleted)
        schedule.every(
            config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            "abort of timed-out transactions",
            self._coordinator.abort_timed_out,
        )
        schedule.every(
            config.transaction_remove_expired_transaction_cleanup_interval_ms,
            "expiry of transactional ids",
            self._coordinator.expire_transactional_ids,
        )
        schedule.every(
            config.producer_id_expiration_check_interval_ms,
            "expiry of producers",
            self.expire_producers,
        )

    def _schedule_checkpoints(self, schedule: Schedule) -> None:
        config = self._context.config
        first_ms = config.log_initial_task_delay_ms
        schedule.every(
            config.log_flush_offset_checkpoint_interval_ms,
            "recovery point checkpoint",
            lambda: self.checkpoint(RootFile.RECOVERY_POINTS),
            delay_ms=first_ms,
        )
        schedule.every(
            config.log_flush_start_offset_checkpoint_interval_ms,
            "log start offset checkpoint",
            lambda: self.checkpoint(RootFile.LOG_START_OFFSETS),
            delay_ms=first_ms,
        )
        schedule.every(
            config.replica_high_watermark_checkpoint_interval_ms,
            "high watermark checkpoint",
            lambda: self.checkpoint(RootFile.HIGH_WATERMARKS),
        )

    def checkpoint(self, file: RootFile) -> None:
        """Write one of the checkpoints in each directory where it has changed."""
        for root in self._catalog.roots:
            with self._health.guarded(f"checkpoint {file.value}", root.path):
                root.checkpoint([file])

    def remove_deleted(self) -> None:
        """Remove deleted partitions and segments whose delay is over."""
        now_ms = self._context.now_ms()
        for root in self._catalog.roots:
            with self._health.guarded("removal of deleted partitions", root.path):
                root.pending_deletes.remove_expired(now_ms)
        for slot, log in self._loaded():
            with self._guarded("removal of deleted segments", slot):
                log.maintenance.remove_discarded(now_ms)

    def flush_dirty(self) -> None:
        """Flush logs whose `flush.ms` is over."""
        now_ms = self._context.now_ms()
        for slot, log in self._loaded():
            if log.is_usable:
                with self._guarded("flush", slot):
                    log.flush_if_due(now_ms)

    def expire_producers(self) -> None:
        """Expire idle producers in all open logs."""
        now_ms = self._context.now_ms()
        for slot, log in self._loaded():
            with self._guarded("expiry of producers", slot):
                log.remove_expired_producers(now_ms)

    def _loaded(self) -> Iterator[tuple[PartitionSlot, PartitionLog]]:
        for slot in self._catalog.slots():
            if slot.loaded is not None:
                yield slot, slot.loaded

    def _guarded(self, task: str, slot: PartitionSlot) -> AbstractContextManager[None]:
        """Failures of a partition that is being deleted are ignored."""
        is_here = partial(self._catalog.has, slot)
        return self._health.guarded(task, slot.topic_partition, matters=is_here)
