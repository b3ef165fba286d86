"""Who works on which partition, and how each stands with the cleaner.

A partition is claimed by one thread at a time. Pausing waits until who works there has stopped;
one that is paused, failed or gone cannot be claimed. All state is changed under one lock.
"""

from __future__ import annotations

import enum
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from stratalog.format.names import TopicPartition
    from stratalog.log_dir.root import PartitionSlot
    from stratalog.maintenance.cleaning.selection import Selection


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
    last_selection: Selection | None
    """Of the last look at it."""
    last_round_ms: int | None
    """When the last round ended."""
    error: Exception | None
    """What the last round failed with."""


@dataclass
class Work:
    """State of one partition. Changed by the `Claims` only."""

    slot: PartitionSlot
    is_busy: bool = False
    cuts: int = 0
    """Of the slot, when the work was begun: the log may have been truncated since."""
    pauses: int = 0
    is_failed: bool = False
    rounds: int = 0
    last_selection: Selection | None = None
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


class Claims:
    """The partitions that were looked at. Thread-safe."""

    def __init__(self, is_there: Callable[[PartitionSlot], bool]) -> None:
        """`is_there` tells partitions from those that were deleted since."""
        self._is_there = is_there
        self._released = threading.Condition()
        self._works: dict[TopicPartition, Work] = {}
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

    def free_work(self, slot: PartitionSlot) -> Work | None:
        """To look at, not to work on; None if somebody is at it, or nobody is to be."""
        with self._released:
            work = self._work_of(slot)
            return work if work.is_free else None

    @contextmanager
    def claimed(self, slot: PartitionSlot) -> Iterator[Work | None]:
        """The partition's state, nobody else working on it; None if it is not free."""
        with self._released:
            of_slot = self._work_of(slot)
            is_free = of_slot.is_free and not self._is_closed and self._is_there(slot)
            work = of_slot if is_free else None
            if work is not None:
                work.is_busy = True
                work.cuts = slot.cuts
        try:
            yield work
        finally:
            if work is not None:
                with self._released:
                    work.is_busy = False
                    self._released.notify_all()

    def note_selection(self, work: Work, selection: Selection) -> None:
        with self._released:
            work.last_selection = selection

    def note_round(self, work: Work, ended_ms: int) -> None:
        with self._released:
            work.rounds += 1
            work.last_round_ms = ended_ms
            work.error = None

    def note_error(self, work: Work, error: Exception, *, is_failed: bool) -> None:
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

    def _wait_for(self, works: Iterable[Work]) -> None:
        while any(work.is_busy for work in works):
            self._released.wait()

    def _work_of(self, slot: PartitionSlot) -> Work:
        """A topic that was deleted and made again starts afresh."""
        work = self._works.get(slot.topic_partition)
        if work is None or work.slot is not slot:
            work = self._works[slot.topic_partition] = Work(slot)
        return work
