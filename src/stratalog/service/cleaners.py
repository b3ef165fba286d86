"""Compaction of open logs: which log is cleaned next, by which thread, and the state of each.

Any number of threads may clean (`CleanerManager.clean_dirtiest`); each brings its own cleaner,
because a cleaner owns the memory of its offset map. `CleanerLocks` lets only one of them work on a
partition at a time. `CleaningWorker` is what each thread of the maintenance service runs.

Invariants:

* the cleaner checkpoint advances after the cleaned segments are in place, so a crash costs a pass
  that is repeated, never a record that wrongly counts as clean;
* a partition whose cleaning failed is not cleaned again until the directory is opened again: a
  pass that fails once most likely fails always, and the other logs must still be cleaned. Its error
  is kept in its state;
* what is appended after a truncation is dirty, whatever the cleaner had done there before;
* a partition that is paused or deleted, or has an unfinished bulk commit, is not cleaned. A pass in
  progress stops at its next check and leaves the log unchanged.
"""

from __future__ import annotations

import enum
import logging
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.config.topic import CleanupPolicy
from stratalog.errors import (
    CleaningAbortedError,
    LogOfflineError,
    StratalogError,
    UnknownSettingsError,
)
from stratalog.maintenance.cleaning.plan import (
    UNCONTROLLED,
    PassControl,
    Throttle,
    cleaner_log,
    plan_cleaning,
)
from stratalog.maintenance.retention import retain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from stratalog.config import BrokerConfig, LogConfig
    from stratalog.format.names import TopicPartition
    from stratalog.log.partition_log import PartitionLog
    from stratalog.maintenance.cleaning.cleaner import Cleaner
    from stratalog.maintenance.cleaning.plan import CleaningPlan, CleaningResult, LogCleaner
    from stratalog.partitions.catalog import TopicCatalog
    from stratalog.partitions.partition_table import PartitionSlot
    from stratalog.partitions.root import LogContext
    from stratalog.service.health import Health

CLEANING: Final = "cleaning"

_log = logging.getLogger(__name__)


class CleaningStatus(enum.StrEnum):
    """Whether a partition is being cleaned, or can be."""

    IDLE = "idle"
    BUSY = "busy"
    """Being cleaned, or its old segments deleted."""
    PAUSED = "paused"
    FAILED = "failed"
    """Not cleaned again until the directory is opened again."""


class PartitionCleaning(NamedTuple):
    """The cleaning state of a partition."""

    topic_partition: TopicPartition
    status: CleaningStatus
    passes: int
    """Completed since the directory was opened."""
    last_plan: CleaningPlan | None
    """The last plan that was made for it."""
    last_pass_ms: int | None
    """When the last pass ended."""
    error: Exception | None
    """The error of the last pass, if it failed."""


@dataclass
class CleaningTask:
    """The cleaning state of one partition. Only `CleanerLocks` changes it."""

    slot: PartitionSlot
    is_busy: bool = False
    truncation_epoch: int = 0
    """The truncation epoch of the slot when the task was locked. The log may have been truncated
    since."""
    pauses: int = 0
    is_failed: bool = False
    passes: int = 0
    last_plan: CleaningPlan | None = None
    last_pass_ms: int | None = None
    error: Exception | None = None
    stop_requested: threading.Event = field(default_factory=threading.Event)

    @property
    def is_free(self) -> bool:
        return not (self.is_busy or self.pauses or self.is_failed)

    @property
    def status(self) -> CleaningStatus:
        if self.is_failed:
            return CleaningStatus.FAILED
        if self.is_busy:
            return CleaningStatus.BUSY
        return CleaningStatus.PAUSED if self.pauses else CleaningStatus.IDLE


class CleanerLocks:
    """Locks a partition for one thread at a time, and keeps its cleaning state. Thread-safe.

    Pausing waits until the thread that holds the lock has stopped. A partition that is paused,
    failed or deleted cannot be locked.
    """

    def __init__(self, exists: Callable[[PartitionSlot], bool]) -> None:
        """`exists` is false for partitions that were deleted."""
        self._exists = exists
        self._released = threading.Condition()
        self._tasks: dict[TopicPartition, CleaningTask] = {}
        self._is_closed = False

    def states(self) -> list[PartitionCleaning]:
        """The state of every partition that was ever planned, by name."""
        with self._released:
            return [
                PartitionCleaning(
                    topic_partition,
                    task.status,
                    task.passes,
                    task.last_plan,
                    task.last_pass_ms,
                    task.error,
                )
                for topic_partition, task in sorted(self._tasks.items())
            ]

    # -- locking

    def unlocked_task(self, slot: PartitionSlot) -> CleaningTask | None:
        """The partition's task, to plan it; None if it cannot be locked."""
        with self._released:
            task = self._task_of(slot)
            return task if task.is_free else None

    @contextmanager
    def locked(self, slot: PartitionSlot) -> Iterator[CleaningTask | None]:
        """The partition's task, locked for this thread; None if it cannot be locked."""
        with self._released:
            task = self._task_of(slot)
            is_locked = task.is_free and not self._is_closed and self._exists(slot)
            if is_locked:
                task.is_busy = True
                task.truncation_epoch = slot.truncation_epoch
        try:
            yield task if is_locked else None
        finally:
            if is_locked:
                with self._released:
                    task.is_busy = False
                    self._released.notify_all()

    def record_plan(self, task: CleaningTask, plan: CleaningPlan) -> None:
        with self._released:
            task.last_plan = plan

    def record_pass(self, task: CleaningTask, ended_ms: int) -> None:
        with self._released:
            task.passes += 1
            task.last_pass_ms = ended_ms
            task.error = None

    def record_error(self, task: CleaningTask, error: Exception, *, is_failed: bool) -> None:
        """With `is_failed`, the partition is not cleaned again."""
        with self._released:
            task.error = error
            task.is_failed = task.is_failed or is_failed

    def keep_only(self, slots: Iterable[PartitionSlot]) -> None:
        """Drop the state of partitions that were deleted, or are no longer compacted."""
        present = {slot.topic_partition for slot in slots}
        with self._released:
            for topic_partition, task in list(self._tasks.items()):
                if topic_partition not in present and not (task.is_busy or task.pauses):
                    del self._tasks[topic_partition]

    # -- stopping

    @contextmanager
    def paused(self, slots: Iterable[PartitionSlot]) -> Iterator[None]:
        """Nobody works on these partitions in this block. Passes in progress are stopped first."""
        with self._released:
            tasks = [self._task_of(slot) for slot in slots]
            for task in tasks:
                task.pauses += 1
                task.stop_requested.set()
            self._wait_for(tasks)
        try:
            yield
        finally:
            with self._released:
                for task in tasks:
                    task.pauses -= 1
                    if not task.pauses:
                        task.stop_requested.clear()

    def interrupt(self) -> None:
        """Stop all passes in progress; returns once they have ended."""
        with self._released:
            busy = [task for task in self._tasks.values() if task.is_busy]
            for task in busy:
                task.stop_requested.set()
            self._wait_for(busy)
            for task in busy:
                if not task.pauses:
                    task.stop_requested.clear()

    def close(self) -> None:
        """Stop all passes in progress, and start no more."""
        with self._released:
            self._is_closed = True
        self.interrupt()

    def _wait_for(self, tasks: Iterable[CleaningTask]) -> None:
        while any(task.is_busy for task in tasks):
            self._released.wait()

    def _task_of(self, slot: PartitionSlot) -> CleaningTask:
        """A partition that was deleted and created again has a new task."""
        task = self._tasks.get(slot.topic_partition)
        if task is None or task.slot is not slot:
            task = self._tasks[slot.topic_partition] = CleaningTask(slot)
        return task


class PassReport(NamedTuple):
    """One cleaning pass: completed or failed."""

    topic_partition: TopicPartition
    plan: CleaningPlan
    result: CleaningResult | None
    error: Exception | None


def _ignore(_bytes_done: int) -> None:
    pass


class CleanerManager:
    """Cleans the compacted logs of the log directories. Thread-safe."""

    def __init__(self, catalog: TopicCatalog, context: LogContext) -> None:
        self._catalog = catalog
        self._now_ms = context.now_ms
        self._locks = CleanerLocks(catalog.has)

    def plan(self, log: PartitionLog) -> CleaningPlan:
        """What a pass over this log would do now. Changes nothing."""
        slot = self._catalog.slot(log.topic_partition)
        checkpoint = slot.root.cleaner_offsets().get(log.topic_partition)
        return plan_cleaning(cleaner_log(log, checkpoint), log.config, self._now_ms())

    def states(self) -> list[PartitionCleaning]:
        """The state of every compacted partition that was planned, by name."""
        return self._locks.states()

    def clean_dirtiest(
        self, cleaner: LogCleaner, *, on_progress: Callable[[int], None] = _ignore
    ) -> PassReport | None:
        """Clean the log with the highest dirty ratio; None if no log is eligible."""
        for slot in self._eligible_slots():
            with self._locks.locked(slot) as task:
                if task is None:
                    continue
                plan = self._plan_slot(slot, task)  # another thread may just have cleaned it
                if plan is not None and plan.is_selected:
                    return self._clean(slot, task, plan, cleaner, on_progress)
        return None

    def clean(
        self,
        topic_partition: TopicPartition,
        cleaner: LogCleaner,
        *,
        is_forced: bool = False,
        on_progress: Callable[[int], None] = _ignore,
    ) -> PassReport | None:
        """Clean one log now if it is eligible or, with `is_forced`, if it has anything to clean.

        Returns None if it has not, or if the partition is busy, paused, failed before, or has an
        unfinished bulk commit. Raises UnknownSettingsError if the topic's settings are unknown.
        """
        slot = self._catalog.slot(topic_partition)
        info = self._catalog.topic(topic_partition.topic)
        if info.unknown is not None:
            raise UnknownSettingsError(info.name, info.unknown)
        with self._locks.locked(slot) as task:
            if task is None or slot.has_pending_commit:
                return None
            plan = self.plan(slot.log())
            if plan.is_selected or (is_forced and plan.cleanable_bytes):
                return self._clean(slot, task, plan, cleaner, on_progress)
            return None

    def delete_old(self) -> int:
        """Retention of compacted logs: by `compact,delete`, and of segments before the log start
        offset. Returns how many logs lost segments.

        As in Kafka this is done by the cleaner, not by the retention check, so that the two never
        change the same log.
        """
        count = 0
        for slot in self._compacted_slots():
            with self._locks.locked(slot) as task:
                if task is None:
                    continue
                try:
                    plan = retain(slot.log(), self._now_ms())
                    count += bool(plan.deleted)
                except StratalogError as error:
                    _log.exception("%s: retention failed", slot.topic_partition)
                    self._locks.record_error(task, error, is_failed=False)
        return count

    def paused(self, topic_partitions: Iterable[TopicPartition]) -> AbstractContextManager[None]:
        """Nobody cleans these partitions in this block. Passes in progress are stopped first."""
        found = (self._catalog.find(topic_partition) for topic_partition in topic_partitions)
        return self._locks.paused(slot for slot in found if slot is not None)

    def interrupt(self) -> None:
        """Stop all passes in progress; returns once they have ended."""
        self._locks.interrupt()

    def close(self) -> None:
        """Stop all passes in progress, and start no more."""
        self._locks.close()

    def _compacted_slots(self) -> list[PartitionSlot]:
        topics = self._catalog.topics
        return [
            slot
            for slot in self._catalog.slots()
            if (info := topics.get(slot.topic_partition.topic)) is not None
            and CleanupPolicy.COMPACT in info.config.cleanup_policy
            and info.unknown is None
        ]

    def _eligible_slots(self) -> list[PartitionSlot]:
        """Partitions to clean, the highest dirty ratio first."""
        eligible = []
        slots = self._compacted_slots()
        self._locks.keep_only(slots)
        for slot in slots:
            task = self._locks.unlocked_task(slot)
            if task is None or slot.has_pending_commit:
                continue
            plan = self._plan_slot(slot, task)
            if plan is not None and plan.is_selected:
                eligible.append((plan.ratio, slot))
        eligible.sort(key=lambda pair: pair[0], reverse=True)
        return [slot for _, slot in eligible]

    def _plan_slot(self, slot: PartitionSlot, task: CleaningTask) -> CleaningPlan | None:
        """Plan a pass, and reset a checkpoint that is outside the log. None if that failed."""
        try:
            log = slot.log()
            plan = self.plan(log)
            if plan.checkpoint_reset is not None:
                self._log_reset(plan, log.config)
                slot.root.set_cleaner_offset(slot, plan.first_dirty_offset)
        except Exception as error:
            if self._catalog.has(slot):
                _log.exception(
                    "%s: cannot plan the cleaning of this partition", slot.topic_partition
                )
                is_failed = not isinstance(error, LogOfflineError)
                self._locks.record_error(task, error, is_failed=is_failed)
            return None
        self._locks.record_plan(task, plan)
        return plan

    def _log_reset(self, plan: CleaningPlan, config: LogConfig) -> None:
        """Log the reset of a checkpoint. If retention applies, a log start after the checkpoint is
        normal."""
        level = logging.WARNING
        if CleanupPolicy.DELETE in config.cleanup_policy:
            level = logging.DEBUG
        _log.log(
            level,
            "%s: the cleaner checkpoint is %s; cleaning starts at offset %d again",
            plan.topic_partition,
            plan.checkpoint_reset,
            plan.first_dirty_offset,
        )

    def _clean(
        self,
        slot: PartitionSlot,
        task: CleaningTask,
        plan: CleaningPlan,
        cleaner: LogCleaner,
        on_progress: Callable[[int], None],
    ) -> PassReport | None:
        topic_partition, truncation_epoch = slot.topic_partition, task.truncation_epoch

        def may_continue() -> bool:
            is_truncated = slot.truncation_epoch != truncation_epoch
            is_stopped = task.stop_requested.is_set() or is_truncated or slot.has_pending_commit
            return not is_stopped and self._catalog.has(slot)

        try:
            control = PassControl(on_progress, may_continue)
            result = cleaner.clean(slot.log(), plan, control)
            slot.root.set_cleaner_offset(slot, result.end_offset, truncation_epoch=truncation_epoch)
        except CleaningAbortedError as error:
            _log.info("%s: %s", topic_partition, error)
            return None
        except Exception as error:  # the other logs must still be cleaned
            if not self._catalog.has(slot):
                return None
            _log.exception(
                "%s: cleaning failed; the partition is not cleaned again until its "
                "directory is reopened",
                topic_partition,
            )
            self._locks.record_error(task, error, is_failed=True)
            return PassReport(topic_partition, plan, None, error)
        self._locks.record_pass(task, self._now_ms())
        return PassReport(topic_partition, plan, result, None)


class CleaningWorker:
    """Compaction for the maintenance service. Thread-safe."""

    def __init__(self, manager: CleanerManager, config: BrokerConfig, health: Health) -> None:
        self._manager = manager
        self._config = config
        self._health = health
        self._reported: dict[TopicPartition, Exception | None] = {}

    def worker(self) -> Callable[[], bool]:
        """For one thread. Each call cleans the dirtiest log, then deletes old segments of compacted
        logs, and returns whether a log was cleaned."""
        cleaner = _CleanerOnDemand(self._config)

        def work() -> bool:
            try:
                report = self._manager.clean_dirtiest(cleaner)
                self._manager.delete_old()
            finally:
                self._report_errors()
            return report is not None

        return work

    def interrupt(self) -> None:
        """Stop all passes in progress; returns once they have ended."""
        self._manager.interrupt()

    def states(self) -> Sequence[PartitionCleaning]:
        """The cleaning state of partitions."""
        return self._manager.states()

    def _report_errors(self) -> None:
        """Report each error once to `Health`, soon after it occurred."""
        for state in self._manager.states():
            before = self._reported.get(state.topic_partition)
            if state.error is before:
                continue
            self._reported[state.topic_partition] = state.error
            if state.error is None:
                self._health.record_success(CLEANING, state.topic_partition)
            else:
                self._health.record(CLEANING, state.topic_partition, state.error)


class _CleanerOnDemand:
    """A cleaner with one thread's share of the memory and of the I/O rate. Its kernels, and that
    memory, are loaded once there is something to clean: a service may never need them."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._loaded: Cleaner | None = None

    def clean(
        self, log: PartitionLog, plan: CleaningPlan, control: PassControl = UNCONTROLLED
    ) -> CleaningResult:
        if self._loaded is None:
            self._loaded = self._load()
        return self._loaded.clean(log, plan, control)

    def _load(self) -> Cleaner:
        from stratalog.maintenance.cleaning.cleaner import Cleaner  # noqa: PLC0415 loads kernels

        config = self._config
        threads = max(1, config.log_cleaner_threads)
        share_bytes = config.log_cleaner_dedupe_buffer_size // threads
        return Cleaner(
            share_bytes,
            load_factor=config.log_cleaner_io_buffer_load_factor,
            throttle=Throttle(config.log_cleaner_io_max_bytes_per_second / threads),
        )
