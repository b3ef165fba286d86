"""The maintenance service: retention and compaction of all logs, in the background.

    with LogDir.open("data") as logs:
        logs.maintenance.start()
        ...
        for partition in logs.maintenance.state().partitions:
            print(partition.topic_partition, partition.failures)

It deletes records, so it runs only when it is started; opening a log directory does not start it.
Topics whose settings are unknown (`TopicInfo.unknown`) are left alone, with a warning.

As in Kafka, the retention check is for logs that are not compacted. The cleaner's threads delete
old segments of those that are, between two rounds, so that both never meet in one log.
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
    from stratalog.partitions.catalog import TopicCatalog
    from stratalog.partitions.root import LogContext, PartitionSlot
    from stratalog.partitions.topics import TopicInfo
    from stratalog.service.cleaners import PartitionCleaning
    from stratalog.service.health import Failure, Health

RETENTION: Final = "retention"

_log = logging.getLogger(__name__)


class Cleaning(Protocol):
    """Compaction, as the service sees it (see `cleaner_work`)."""

    def worker(self) -> Callable[[], bool]:
        """For one thread: each call does a piece of work, and says whether there was any."""

    def interrupt(self) -> None:
        """Let what is being cleaned right now be stopped and left as it was; return then."""

    def states(self) -> Sequence[PartitionCleaning]:
        """How partitions stand with the cleaner."""


@dataclass(frozen=True)
class PartitionState:
    """How the maintenance of one partition goes."""

    topic_partition: TopicPartition
    path: Path
    checked_ms: int | None
    """When retention last looked at it."""
    deleted_segments: int
    """By retention, since the directory was opened."""
    deleted_bytes: int
    cleaning: PartitionCleaning | None
    """How it stands with the cleaner, if it is compacted."""
    failures: tuple[Failure, ...]
    """The last one of each task, oldest first; some may be over."""

    @property
    def is_failing(self) -> bool:
        """Whether something failed here the last time that it was tried."""
        return any(not failure.is_over for failure in self.failures)


@dataclass(frozen=True)
class MaintenanceState:
    """How the maintenance of all log directories goes."""

    is_running: bool
    checked_ms: int | None
    """When the last retention check ended."""
    partitions: tuple[PartitionState, ...]
    directories: tuple[tuple[Path, tuple[Failure, ...]], ...]
    """What failed for a directory as a whole, such as writing its checkpoints."""

    @property
    def failing(self) -> tuple[PartitionState, ...]:
        """The partitions where something failed the last time that it was tried."""
        return tuple(partition for partition in self.partitions if partition.is_failing)


class _Retained(NamedTuple):
    checked_ms: int
    deleted_segments: int = 0
    deleted_bytes: int = 0

    def after(self, plan: RetentionPlan) -> _Retained:
        segments = self.deleted_segments + len(plan.deleted)
        return _Retained(plan.now_ms, segments, self.deleted_bytes + plan.deleted_bytes)


class Maintenance:
    """Starts, stops and tells how it goes. Thread-safe."""

    def __init__(
        self,
        catalog: TopicCatalog,
        engine: LogContext,
        health: Health,
        cleaning: Cleaning | None = None,
    ) -> None:
        """Without `cleaning` nothing is compacted."""
        self.has_threads = True
        """Otherwise what is due is done by `run_due`."""
        self._catalog = catalog
        self._engine = engine
        self._health = health
        self._cleaning = cleaning if engine.config.log_cleaner_enable else None
        self._lock = threading.Lock()  # over starting and stopping
        self._schedule: Schedule | None = None
        self._cleaners: list[_CleanerThread] = []
        self._is_closed = False
        self._checked_ms: int | None = None
        self._retained: dict[PartitionSlot, _Retained] = {}
        self._left_alone: set[str] = set()

    # -- starting and stopping

    @property
    def is_running(self) -> bool:
        return self._schedule is not None

    def start(self) -> None:
        """Check retention and compact from now on, at the intervals of the broker's config.

        Does nothing if it runs already.
        """
        with self._lock:
            if self._is_closed:
                raise LogOfflineError(self._catalog.roots[0].path, "the LogDir is closed")
            if self._schedule is not None:
                return
            config = self._engine.config
            schedule = Schedule(self._engine.now_ms)
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
        cleaning, config = self._cleaning, self._engine.config
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
        """A cleaner tells of partitions itself. What fails beside them is no reason to end."""

        def guarded() -> bool:
            is_done = False
            with self._health.guarded(CLEANING, self._catalog.roots[0].path):
                is_done = work()
            return is_done

        return guarded

    def stop(self) -> None:
        """Begin nothing more. Returns when what is being done is done, or left as it was."""
        with self._lock:
            schedule, self._schedule = self._schedule, None
            cleaners, self._cleaners = self._cleaners, []
            for cleaner in cleaners:
                cleaner.tell_to_stop()
            if cleaners and self._cleaning is not None:
                self._cleaning.interrupt()
            for cleaner in cleaners:
                cleaner.join()
            if schedule is not None:
                schedule.stop()

    def close(self) -> None:
        """Stop, for good."""
        self.stop()
        with self._lock:
            self._is_closed = True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run_due(self) -> int:
        """Do what is due by now, if it was started; how many tasks that were."""
        schedule = self._schedule
        return 0 if schedule is None else schedule.run_due()

    def run_once(self) -> None:
        """All of it once, now and on this thread: retention, then compaction until nothing is due.

        Failures are told by `state`.
        """
        self.check_retention()
        if self._cleaning is not None:
            work = self._guarded_work(self._cleaning.worker())
            while work():
                pass

    # -- retention

    def check_retention(self) -> None:
        """Look at every log that is not compacted, and delete what its settings let go."""
        for slot in self._catalog.slots():
            info = self._catalog.topics.get(slot.topic_partition.topic)
            if info is None or info.config.is_compacted or self._is_left_alone(info):
                continue
            is_here = partial(self._catalog.has, slot)
            with self._health.guarded(RETENTION, slot.topic_partition, matters=is_here):
                plan = self._retain(slot)
                if plan is not None:
                    before = self._retained.get(slot, _Retained(plan.now_ms))
                    self._retained[slot] = before.after(plan)
        self._checked_ms = self._engine.now_ms()

    def _is_left_alone(self, info: TopicInfo) -> bool:
        """Whether the topic's settings are unknown; a warning says so once."""
        if info.unknown is not None and info.name not in self._left_alone:
            self._left_alone.add(info.name)
            _log.warning("%s", UnknownSettingsError(info.name, info.unknown))
        return info.unknown is not None

    def _retain(self, slot: PartitionSlot) -> RetentionPlan | None:
        """A log that nobody has opened is opened only if there is something to delete."""
        now_ms = self._engine.now_ms()
        if slot.loaded is None:
            start = slot.root.load_point(slot.topic_partition).log_start_offset
            config = self._catalog.topic(slot.topic_partition.topic).config
            try:
                with PartitionView(slot.path, log_start_offset=start) as view:
                    plan = plan_retention(retention_log_of_view(view, now_ms), config, now_ms)
            except NotALogDirError:
                return None  # it has no segment yet
            if not plan.deleted:
                return plan
        return retain(slot.log(), now_ms)

    # -- telling

    def state(self) -> MaintenanceState:
        """How it goes, as of now."""
        cleaning: dict[TopicPartition, PartitionCleaning] = {}
        if self._cleaning is not None:
            cleaning = {state.topic_partition: state for state in self._cleaning.states()}
        slots = sorted(self._catalog.slots(), key=lambda slot: slot.topic_partition)
        present = set(slots)
        for slot in [slot for slot in list(self._retained) if slot not in present]:
            self._retained.pop(slot, None)
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
    """Asks for work, and sleeps when there is none."""

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
        """On the caller's thread."""
        while not self._stopping.is_set() and self._work():
            pass

    def tell_to_stop(self) -> None:
        self._stopping.set()
