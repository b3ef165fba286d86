"""Who works on which partition, and how each stands with the cleaner.

A partition is claimed by one thread at a time. Pausing waits until who works there has stopped;
one that is paused, failed or gone cannot be claimed. All state is changed under one lock.
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
from stratalog.maintenance.cleaning.plan import Throttle, cleaner_log, plan_cleaning
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
    from stratalog.partitions.root import LogContext, PartitionSlot
    from stratalog.service.health import Health


class CleaningStatus(enum.StrEnum):
    """What a partition's cleaning is doing."""

    IDLE = "idle"
    BUSY = "busy"
    """Being cleaned, or its old segments deleted."""
    PAUSED = "paused"
    FAILED = "failed"
    """Not to be cleaned until the directory is opened again."""


class PartitionCleaning(NamedTuple):
    """How a partition stands with the cleaner."""

    topic_partition: TopicPartition
    status: CleaningStatus
    rounds: int
    """Done since the directory was opened."""
    last_selection: CleaningPlan | None
    """Of the last look at it."""
    last_round_ms: int | None
    """When the last round ended."""
    error: Exception | None
    """What the last round failed with."""


@dataclass
class CleaningTask:
    """State of one partition. Changed by the `CleanerLocks` only."""

    slot: PartitionSlot
    is_busy: bool = False
    truncation_epoch: int = 0
    """Of the slot, when the work was begun: the log may have been truncated since."""
    pauses: int = 0
    is_failed: bool = False
    rounds: int = 0
    last_selection: CleaningPlan | None = None
    last_round_ms: int | None = None
    error: Exception | None = None
    stops: threading.Event = field(default_factory=threading.Event)
    """Whoever works on it is to end."""

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
    """The partitions that were looked at. Thread-safe."""

    def __init__(self, is_there: Callable[[PartitionSlot], bool]) -> None:
        """`is_there` tells partitions from those that were deleted since."""
        self._is_there = is_there
        self._released = threading.Condition()
        self._works: dict[TopicPartition, CleaningTask] = {}
        self._is_closed = False

    def states(self) -> list[PartitionCleaning]:
        """Of every partition, by name."""
        with self._released:
            return [
                PartitionCleaning(
                    topic_partition,
                    work.status,
                    work.rounds,
                    work.last_selection,
                    work.last_round_ms,
                    work.error,
                )
                for topic_partition, work in sorted(self._works.items())
            ]

    # -- working

    def free_work(self, slot: PartitionSlot) -> CleaningTask | None:
        """To look at, not to work on; None if somebody is at it, or nobody is to be."""
        with self._released:
            work = self._work_of(slot)
            return work if work.is_free else None

    @contextmanager
    def claimed(self, slot: PartitionSlot) -> Iterator[CleaningTask | None]:
        """The partition's state, nobody else working on it; None if it is not free."""
        with self._released:
            of_slot = self._work_of(slot)
            is_free = of_slot.is_free and not self._is_closed and self._is_there(slot)
            work = of_slot if is_free else None
            if work is not None:
                work.is_busy = True
                work.truncation_epoch = slot.truncation_epoch
        try:
            yield work
        finally:
            if work is not None:
                with self._released:
                    work.is_busy = False
                    self._released.notify_all()

    def note_selection(self, work: CleaningTask, selection: CleaningPlan) -> None:
        with self._released:
            work.last_selection = selection

    def note_round(self, work: CleaningTask, ended_ms: int) -> None:
        with self._released:
            work.rounds += 1
            work.last_round_ms = ended_ms
            work.error = None

    def note_error(self, work: CleaningTask, error: Exception, *, is_failed: bool) -> None:
        """With `is_failed`, the partition is left alone from now on."""
        with self._released:
            work.error = error
            work.is_failed = work.is_failed or is_failed

    def forget_others(self, slots: Iterable[PartitionSlot]) -> None:
        """Of partitions that are gone, or not compacted any more."""
        present = {slot.topic_partition for slot in slots}
        with self._released:
            for topic_partition, work in list(self._works.items()):
                if topic_partition not in present and not (work.is_busy or work.pauses):
                    del self._works[topic_partition]

    # -- stopping

    @contextmanager
    def paused(self, slots: Iterable[PartitionSlot]) -> Iterator[None]:
        """Nobody works on these partitions in here. Who does is stopped first."""
        with self._released:
            works = [self._work_of(slot) for slot in slots]
            for work in works:
                work.pauses += 1
                work.stops.set()
            self._wait_for(works)
        try:
            yield
        finally:
            with self._released:
                for work in works:
                    work.pauses -= 1
                    if not work.pauses:
                        work.stops.clear()

    def interrupt(self) -> None:
        """Stop whoever works; returns once they have ended."""
        with self._released:
            busy = [work for work in self._works.values() if work.is_busy]
            for work in busy:
                work.stops.set()
            self._wait_for(busy)
            for work in busy:
                if not work.pauses:
                    work.stops.clear()

    def close(self) -> None:
        """Stop whoever works, and let nobody begin any more."""
        with self._released:
            self._is_closed = True
        self.interrupt()

    # -- inside, under the lock

    def _wait_for(self, works: Iterable[CleaningTask]) -> None:
        while any(work.is_busy for work in works):
            self._released.wait()

    def _work_of(self, slot: PartitionSlot) -> CleaningTask:
        """A topic that was deleted and made again starts afresh."""
        work = self._works.get(slot.topic_partition)
        if work is None or work.slot is not slot:
            work = self._works[slot.topic_partition] = CleaningTask(slot)
        return work


# Which log of a log directory is cleaned next, by whom, and what came of it.
#
# Any number of threads may ask for work (`clean_dirtiest`); each brings a cleaner of its own,
# because a cleaner owns the memory of its offset map. A partition is worked on by one of them at a
# time.
#
# Invariants:
#
# * the cleaner's checkpoint moves after the cleaned segments are in place, so a crash costs a
#   round
#   that is done again, never a record that is believed to be clean;
# * a partition whose cleaning failed is left alone until the directory is opened again: a round
#   that
#   fails once most likely fails always, and the others have to be cleaned. The error is kept to be
#   looked at;
# * what is appended after a truncation is dirty, whatever the cleaner had done there before;
# * a partition that is paused or gone, or has a part of an unfinished bulk commit, is not cleaned;
#   a
#   round that is under way when that happens ends at its next look and leaves the log as it was.

_log = logging.getLogger(__name__)


class PassReport(NamedTuple):
    """One round: done or failed."""

    topic_partition: TopicPartition
    selection: CleaningPlan
    result: CleaningResult | None
    error: Exception | None


def _ignore(_bytes_done: int) -> None:
    pass


class CleanerManager:
    """The compacted logs of a log directory, and who works on which. Thread-safe."""

    def __init__(self, catalog: TopicCatalog, engine: LogContext) -> None:
        self._catalog = catalog
        self._engine = engine
        self._claims = CleanerLocks(catalog.has)

    # -- looking

    def selection(self, log: PartitionLog) -> CleaningPlan:
        """What a round of this log would do now. Changes nothing."""
        slot = self._catalog.slot(log.topic_partition)
        checkpoint = slot.root.cleaned().get(log.topic_partition)
        return plan_cleaning(cleaner_log(log, checkpoint), log.config, self._engine.now_ms())

    def states(self) -> list[PartitionCleaning]:
        """Every compacted partition that was looked at, by name."""
        return self._claims.states()

    # -- working

    def clean_dirtiest(
        self, cleaner: LogCleaner, *, on_progress: Callable[[int], None] = _ignore
    ) -> PassReport | None:
        """Clean the log that needs it most; None when none does now."""
        for slot in self._candidates():
            with self._claims.claimed(slot) as work:
                if work is None:
                    continue
                selection = self._look(slot, work)  # another thread may just have cleaned it
                if selection is not None and selection.is_selected:
                    return self._clean(slot, work, selection, cleaner, on_progress)
        return None

    def clean(
        self,
        topic_partition: TopicPartition,
        cleaner: LogCleaner,
        *,
        is_forced: bool = False,
        on_progress: Callable[[int], None] = _ignore,
    ) -> PassReport | None:
        """Clean one log now, if a round is due or, forced, if there is anything to clean.

        None when there is not, or the partition is busy, paused, has failed before or waits for a
        bulk commit to be finished. Raises UnknownSettingsError if nobody says that the topic is
        compacted.
        """
        slot = self._catalog.slot(topic_partition)
        info = self._catalog.topic(topic_partition.topic)
        if info.unknown is not None:
            raise UnknownSettingsError(info.name, info.unknown)
        with self._claims.claimed(slot) as work:
            if work is None or slot.has_pending_commit:
                return None
            selection = self.selection(slot.log())
            if selection.is_selected or (is_forced and selection.cleanable_bytes):
                return self._clean(slot, work, selection, cleaner, on_progress)
            return None

    def delete_old(self) -> int:
        """Retention of compacted logs: those whose policy is `compact,delete`, and what lies below
        the log start of the others. How many logs lost segments.

        It is the cleaner's job, not that of the retention check, so that both do not meet in one
        log.
        """
        count = 0
        for slot in self._compacted_slots():
            with self._claims.claimed(slot) as work:
                if work is None:
                    continue
                try:
                    plan = retain(slot.log(), self._engine.now_ms())
                    count += bool(plan.deleted)
                except StratalogError as error:
                    _log.exception("%s: retention failed", slot.topic_partition)
                    self._claims.note_error(work, error, is_failed=False)
        return count

    def paused(self, topic_partitions: Iterable[TopicPartition]) -> AbstractContextManager[None]:
        """Nobody cleans these partitions in here. Rounds that are under way are stopped first."""
        found = (self._catalog.find(topic_partition) for topic_partition in topic_partitions)
        return self._claims.paused(slot for slot in found if slot is not None)

    def interrupt(self) -> None:
        """Stop the rounds that are under way; returns once they have ended."""
        self._claims.interrupt()

    def close(self) -> None:
        """Stop what is under way, and begin nothing any more."""
        self._claims.close()

    # -- inside

    def _compacted_slots(self) -> list[PartitionSlot]:
        topics = self._catalog.topics
        return [
            slot
            for slot in self._catalog.slots()
            if (info := topics.get(slot.topic_partition.topic)) is not None
            and CleanupPolicy.COMPACT in info.config.cleanup_policy
            and info.unknown is None
        ]

    def _candidates(self) -> list[PartitionSlot]:
        """Those that are due, the dirtiest first."""
        due = []
        slots = self._compacted_slots()
        self._claims.forget_others(slots)
        for slot in slots:
            work = self._claims.free_work(slot)
            if work is None or slot.has_pending_commit:
                continue
            selection = self._look(slot, work)
            if selection is not None and selection.is_selected:
                due.append((selection.ratio, slot))
        due.sort(key=lambda pair: pair[0], reverse=True)
        return [slot for _, slot in due]

    def _look(self, slot: PartitionSlot, work: CleaningTask) -> CleaningPlan | None:
        """None when it cannot be looked at. A checkpoint that is not in the log is set right."""
        try:
            log = slot.log()
            selection = self.selection(log)
            if selection.checkpoint_reset is not None:
                self._report_reset(selection, log.config)
                slot.root.set_cleaned(slot, selection.first_dirty_offset)
        except Exception as error:
            if self._catalog.has(slot):
                _log.exception("%s: cannot tell whether it is to be cleaned", slot.topic_partition)
                self._claims.note_error(
                    work, error, is_failed=not isinstance(error, LogOfflineError)
                )
            return None
        self._claims.note_selection(work, selection)
        return selection

    def _report_reset(self, selection: CleaningPlan, config: LogConfig) -> None:
        """Retention moves the log start above the checkpoint as a matter of course."""
        level = logging.WARNING
        if CleanupPolicy.DELETE in config.cleanup_policy:
            level = logging.DEBUG
        _log.log(
            level,
            "%s: the cleaner's checkpoint is %s; it begins at %d again",
            selection.topic_partition,
            selection.checkpoint_reset,
            selection.first_dirty_offset,
        )

    def _clean(
        self,
        slot: PartitionSlot,
        work: CleaningTask,
        selection: CleaningPlan,
        cleaner: LogCleaner,
        on_progress: Callable[[int], None],
    ) -> PassReport | None:
        topic_partition = slot.topic_partition

        def may_go_on() -> bool:
            is_stopped = work.stops.is_set() or slot.truncation_epoch != work.truncation_epoch
            return not (is_stopped or slot.has_pending_commit) and self._catalog.has(slot)

        try:
            result = cleaner.clean(
                slot.log(), selection, on_progress=on_progress, may_go_on=may_go_on
            )
            epoch = work.truncation_epoch
            slot.root.set_cleaned(slot, result.end_offset, truncation_epoch=epoch)
        except CleaningAbortedError as error:
            _log.info("%s: %s", topic_partition, error)
            return None
        except Exception as error:  # whatever it is, the other logs still have to be cleaned
            if not self._catalog.has(slot):
                return None
            _log.exception("%s: cleaning failed; it is left alone from now on", topic_partition)
            self._claims.note_error(work, error, is_failed=True)
            return PassReport(topic_partition, selection, None, error)
        self._claims.note_round(work, self._engine.now_ms())
        return PassReport(topic_partition, selection, result, None)


# Compaction as the work of threads: what each does again and again, and what came of it.

CLEANING: Final = "cleaning"


class CleaningWorker:
    """What the maintenance service asks of compaction. Thread-safe."""

    def __init__(self, manager: CleanerManager, config: BrokerConfig, health: Health) -> None:
        self._manager = manager
        self._config = config
        self._health = health
        self._noted: dict[TopicPartition, Exception | None] = {}

    def worker(self) -> Callable[[], bool]:
        """For one thread: clean the dirtiest log, then delete old segments of compacted ones."""
        cleaner: Cleaner | None = None

        def work() -> bool:
            nonlocal cleaner
            if cleaner is None:
                cleaner = self._new_cleaner()
            try:
                report = self._manager.clean_dirtiest(cleaner)
                self._manager.delete_old()
            finally:
                self._note_errors()
            return report is not None

        return work

    def _new_cleaner(self) -> Cleaner:
        """With a thread's share of the memory and of the rate."""
        from stratalog.maintenance.cleaning.cleaner import Cleaner  # noqa: PLC0415 loads kernels

        config = self._config
        threads = max(1, config.log_cleaner_threads)
        share_bytes = config.log_cleaner_dedupe_buffer_size // threads
        return Cleaner(
            share_bytes,
            load_factor=config.log_cleaner_io_buffer_load_factor,
            throttle=Throttle(config.log_cleaner_io_max_bytes_per_second / threads),
        )

    def interrupt(self) -> None:
        """Stop rounds that are under way, and wait until they are."""
        self._manager.interrupt()

    def states(self) -> Sequence[PartitionCleaning]:
        """How partitions stand with the cleaner."""
        return self._manager.states()

    def _note_errors(self) -> None:
        """Each once, with the time at which it was met."""
        for state in self._manager.states():
            before = self._noted.get(state.topic_partition)
            if state.error is before:
                continue
            self._noted[state.topic_partition] = state.error
            if state.error is None:
                self._health.note_success(CLEANING, state.topic_partition)
            else:
                self._health.note(CLEANING, state.topic_partition, state.error)
