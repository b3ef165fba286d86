"""The maintenance service: retention and compaction of all logs, in the background.

    with LogDir.open("data") as logs:
        logs.maintenance.start()
        ...
        for partition in logs.maintenance.state().partitions:
            print(partition.topic_partition, partition.failures)

It deletes records, so it has to be started explicitly; opening a log directory does not start it.
Topics whose settings are unknown (`TopicInfo.unknown`) are skipped, with a warning.

As in Kafka, the retention check is for logs that are not compacted. The cleaner threads delete old
segments of compacted logs between two passes, so that the two never change the same log.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from stratalog.errors import LogOfflineError, NotALogDirError, UnknownSettingsError
from stratalog.log.partition_view import PartitionView
from stratalog.maintenance.retention import plan_retention, retain, retention_log_of_view
from stratalog.partitions.schedule import Schedule
from stratalog.service.cleaners import CLEANING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from stratalog.format.names import TopicPartition
    from stratalog.maintenance.retention import RetentionPlan
    from stratalog.partitions.partition_table import PartitionSlot
    from stratalog.partitions.topics import TopicInfo
    from stratalog.service.cleaners import PartitionCleaning
    from stratalog.service.health import Failure, ServedDirs

RETENTION: Final = "retention"

_log = logging.getLogger(__name__)


class Cleaning(Protocol):
    """Compaction as the service uses it, see `CleaningWorker`."""

    def worker(self) -> Callable[[], bool]:
        """For one thread: each call cleans one log, and returns whether there was one."""

    def interrupt(self) -> None:
        """Stop all passes in progress; returns once they have ended."""

    def states(self) -> Sequence[PartitionCleaning]:
        """The cleaning state of partitions."""


@dataclass(frozen=True)
class PartitionState:
    """The maintenance of one partition."""

    topic_partition: TopicPartition
    path: Path
    checked_ms: int | None
    """When its retention was last checked."""
    deleted_segments: int
    """By retention, since the directory was opened."""
    deleted_bytes: int
    cleaning: PartitionCleaning | None
    """Its cleaning state, if it is compacted."""
    failures: tuple[Failure, ...]
    """The last one of each task, oldest first; some may be resolved."""

    @property
    def is_failing(self) -> bool:
        """Whether a task failed here the last time it ran."""
        return any(not failure.is_resolved for failure in self.failures)


@dataclass(frozen=True)
class MaintenanceState:
    """The maintenance of all log directories."""

    is_running: bool
    checked_ms: int | None
    """When the last retention check ended."""
    partitions: tuple[PartitionState, ...]
    directories: tuple[tuple[Path, tuple[Failure, ...]], ...]
    """Failures of tasks that concern a directory as a whole, such as writing its checkpoints."""

    @property
    def failing(self) -> tuple[PartitionState, ...]:
        """The partitions where a task failed the last time it ran."""
        return tuple(partition for partition in self.partitions if partition.is_failing)


class _RetentionCounts(NamedTuple):
    checked_ms: int
    deleted_segments: int = 0
    deleted_bytes: int = 0

    def after(self, plan: RetentionPlan) -> _RetentionCounts:
        segments = self.deleted_segments + len(plan.deleted)
        return _RetentionCounts(plan.now_ms, segments, self.deleted_bytes + plan.deleted_bytes)


class Maintenance:
    """The maintenance service: start it, stop it, query its state. Thread-safe."""

    def __init__(self, served: ServedDirs, cleaning: Cleaning | None = None) -> None:
        """Without `cleaning` nothing is compacted."""
        self.has_threads = True
        """Without threads, `run_pending` runs the tasks."""
        self._catalog, self._context, self._health = served
        self._cleaning = cleaning if served.context.config.log_cleaner_enable else None
        self._lock = threading.Lock()  # held while starting and stopping
        self._schedule: Schedule | None = None
        self._cleaners: list[_CleanerThread] = []
        self._is_closed = False
        self._checked_ms: int | None = None
        self._retained: dict[PartitionSlot, _RetentionCounts] = {}
        self._skipped: set[str] = set()

    # -- starting and stopping

    @property
    def is_running(self) -> bool:
        return self._schedule is not None

    def start(self) -> None:
        """Start checking retention and compacting, at the intervals of the broker's config.
        Idempotent."""
        with self._lock:
            if self._is_closed:
                raise LogOfflineError(self._catalog.roots[0].path, "the LogDir is closed")
            if self._schedule is not None:
                return
            config = self._context.config
            schedule = Schedule(self._context.now_ms)
            schedule.every(
                config.log_retention_check_interval_ms,
                "retention check",
                self.check_retention,
                delay_ms=config.log_initial_task_delay_ms,
            )
            self._schedule = schedule
            self._start_cleaners(schedule)
            if self.has_threads:
                schedule.start("stratalog-retention")

    def _start_cleaners(self, schedule: Schedule) -> None:
        cleaning, config = self._cleaning, self._context.config
        if cleaning is None:
            return
        for number in range(config.log_cleaner_threads if self.has_threads else 1):
            work = self._guarded_work(cleaning.worker())
            cleaner = _CleanerThread(number, work, config.log_cleaner_backoff_ms)
            if self.has_threads:
                self._cleaners.append(cleaner)
                cleaner.start()
            else:
                period_ms = max(1, config.log_cleaner_backoff_ms)
                schedule.every(period_ms, CLEANING, cleaner.work_until_idle)

    def _guarded_work(self, work: Callable[[], bool]) -> Callable[[], bool]:
        """`work`, with its errors recorded, so that they do not end the thread. The cleaner itself
        records failures of partitions."""

        def guarded() -> bool:
            has_cleaned = False
            with self._health.guarded(CLEANING, self._catalog.roots[0].path):
                has_cleaned = work()
            return has_cleaned

        return guarded

    def stop(self) -> None:
        """Stop the service. Returns when running tasks have ended; cleaning passes are aborted."""
        with self._lock:
            schedule, self._schedule = self._schedule, None
            cleaners, self._cleaners = self._cleaners, []
            for cleaner in cleaners:
                cleaner.request_stop()
            if cleaners and self._cleaning is not None:
                self._cleaning.interrupt()
            for cleaner in cleaners:
                cleaner.join()
            if schedule is not None:
                schedule.stop()

    def close(self) -> None:
        """Stop the service for good."""
        self.stop()
        with self._lock:
            self._is_closed = True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run_pending(self) -> int:
        """Run overdue tasks, if the service was started. Returns how many there were."""
        schedule = self._schedule
        return 0 if schedule is None else schedule.run_pending()

    def run_once(self) -> None:
        """Run everything once, now and on this thread: the retention check, then compaction until
        no log is eligible. See `state` for failures."""
        self.check_retention()
        if self._cleaning is not None:
            work = self._guarded_work(self._cleaning.worker())
            while work():
                pass

    # -- retention

    def check_retention(self) -> None:
        """Delete expired segments of every log that is not compacted."""
        for slot in self._catalog.slots():
            info = self._catalog.topics.get(slot.topic_partition.topic)
            if info is None or info.config.is_compacted or self._is_skipped(info):
                continue
            is_here = partial(self._catalog.has, slot)
            with self._health.guarded(RETENTION, slot.topic_partition, matters=is_here):
                plan = self._retain(slot)
                if plan is not None:
                    before = self._retained.get(slot, _RetentionCounts(plan.now_ms))
                    self._retained[slot] = before.after(plan)
        self._checked_ms = self._context.now_ms()

    def _is_skipped(self, info: TopicInfo) -> bool:
        """Whether the topic's settings are unknown. Logs a warning once."""
        if info.unknown is not None and info.name not in self._skipped:
            self._skipped.add(info.name)
            _log.warning("%s", UnknownSettingsError(info.name, info.unknown))
        return info.unknown is not None

    def _retain(self, slot: PartitionSlot) -> RetentionPlan | None:
        """Apply retention to one log; None if it has no segment yet. A log that is not open is
        opened only if there is something to delete."""
        now_ms = self._context.now_ms()
        if slot.loaded is None:
            start = slot.root.load_point(slot.topic_partition).log_start_offset
            config = self._catalog.topic(slot.topic_partition.topic).config
            try:
                with PartitionView(slot.path, log_start_offset=start) as view:
                    plan = plan_retention(retention_log_of_view(view, now_ms), config, now_ms)
            except NotALogDirError:
                return None  # no segment yet
            if not plan.deleted:
                return plan
        return retain(slot.log(), now_ms)

    # -- state

    def state(self) -> MaintenanceState:
        """The current state of everything."""
        cleaning: dict[TopicPartition, PartitionCleaning] = {}
        if self._cleaning is not None:
            cleaning = {state.topic_partition: state for state in self._cleaning.states()}
        slots = sorted(self._catalog.slots(), key=lambda slot: slot.topic_partition)
        for gone in set(self._retained).difference(slots):
            self._retained.pop(gone, None)
        return MaintenanceState(
            is_running=self.is_running,
            checked_ms=self._checked_ms,
            partitions=tuple(
                self._state_of(slot, cleaning.get(slot.topic_partition)) for slot in slots
            ),
            directories=tuple(
                (root.path, self._health.failures_of(root.path)) for root in self._catalog.roots
            ),
        )

    def _state_of(self, slot: PartitionSlot, cleaning: PartitionCleaning | None) -> PartitionState:
        retained = self._retained.get(slot)
        return PartitionState(
            topic_partition=slot.topic_partition,
            path=slot.path,
            checked_ms=None if retained is None else retained.checked_ms,
            deleted_segments=0 if retained is None else retained.deleted_segments,
            deleted_bytes=0 if retained is None else retained.deleted_bytes,
            cleaning=cleaning,
            failures=self._health.failures_of(slot.topic_partition),
        )


class _CleanerThread(threading.Thread):
    """Cleans until no log is eligible, then sleeps for the backoff."""

    def __init__(self, number: int, work: Callable[[], bool], backoff_ms: int) -> None:
        super().__init__(name=f"stratalog-cleaner-{number}", daemon=True)
        self._work = work
        self._backoff_s = backoff_ms / 1000
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.is_set():
            self.work_until_idle()
            self._stopping.wait(self._backoff_s)

    def work_until_idle(self) -> None:
        """Clean until no log is eligible, on the caller's thread."""
        while not self._stopping.is_set() and self._work():
            pass

    def request_stop(self) -> None:
        self._stopping.set()
