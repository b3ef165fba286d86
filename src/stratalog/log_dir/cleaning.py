"""Which log of a log directory is cleaned next, by whom, and what came of it.

Any number of threads may ask for work (`clean_dirtiest`); each brings a cleaner of its own, because
a cleaner owns the memory of its offset map. A partition is worked on by one of them at a time.

Invariants:

* the cleaner's checkpoint moves after the cleaned segments are in place, so a crash costs a round
  that is done again, never a record that is believed to be clean;
* a partition whose cleaning failed is left alone until the directory is opened again: a round that
  fails once most likely fails always, and the others have to be cleaned. The error is kept to be
  looked at;
* what is appended after a truncation is dirty, whatever the cleaner had done there before;
* a partition that is paused or gone, or has a part of an unfinished bulk commit, is not cleaned; a
  round that is under way when that happens ends at its next look and leaves the log as it was.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from stratalog.config.choices import CleanupPolicy
from stratalog.errors import (
    CleaningAbortedError,
    LogOfflineError,
    StratalogError,
    UnknownSettingsError,
)
from stratalog.log_dir.cleaner_claims import Claims
from stratalog.maintenance.cleaning.log_facts import facts_of
from stratalog.maintenance.cleaning.selection import select
from stratalog.maintenance.retention import retain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from stratalog.config import LogConfig
    from stratalog.format.names import TopicPartition
    from stratalog.log.partition_log import PartitionLog
    from stratalog.log_dir.catalog import TopicCatalog
    from stratalog.log_dir.cleaner_claims import PartitionCleaning, Work
    from stratalog.log_dir.root import Engine, PartitionSlot
    from stratalog.maintenance.cleaning.rounds import CleaningResult, RoundCleaner
    from stratalog.maintenance.cleaning.selection import Selection

_log = logging.getLogger(__name__)


class RoundReport(NamedTuple):
    """One round: done or failed."""

    topic_partition: TopicPartition
    selection: Selection
    result: CleaningResult | None
    error: Exception | None


def _ignore(_bytes_done: int) -> None:
    pass


class CleanerManager:
    """The compacted logs of a log directory, and who works on which. Thread-safe."""

    def __init__(self, catalog: TopicCatalog, engine: Engine) -> None:
        self._catalog = catalog
        self._engine = engine
        self._claims = Claims(catalog.has)

    # -- looking

    def selection(self, log: PartitionLog) -> Selection:
        """What a round of this log would do now. Changes nothing."""
        slot = self._catalog.slot(log.topic_partition)
        checkpoint = slot.root.cleaned().get(log.topic_partition)
        return select(facts_of(log, checkpoint), log.config, self._engine.now_ms())

    def states(self) -> list[PartitionCleaning]:
        """Every compacted partition that was looked at, by name."""
        return self._claims.states()

    # -- working

    def clean_dirtiest(
        self, cleaner: RoundCleaner, *, on_progress: Callable[[int], None] = _ignore
    ) -> RoundReport | None:
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
        cleaner: RoundCleaner,
        *,
        is_forced: bool = False,
        on_progress: Callable[[int], None] = _ignore,
    ) -> RoundReport | None:
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

    def _look(self, slot: PartitionSlot, work: Work) -> Selection | None:
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

    def _report_reset(self, selection: Selection, config: LogConfig) -> None:
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
        work: Work,
        selection: Selection,
        cleaner: RoundCleaner,
        on_progress: Callable[[int], None],
    ) -> RoundReport | None:
        topic_partition = slot.topic_partition

        def may_go_on() -> bool:
            is_stopped = work.stops.is_set() or slot.cuts != work.cuts
            return not (is_stopped or slot.has_pending_commit) and self._catalog.has(slot)

        try:
            result = cleaner.clean(
                slot.log(), selection, on_progress=on_progress, may_go_on=may_go_on
            )
            slot.root.set_cleaned(slot, result.end_offset, cuts=work.cuts)
        except CleaningAbortedError as error:
            _log.info("%s: %s", topic_partition, error)
            return None
        except Exception as error:  # whatever it is, the other logs still have to be cleaned
            if not self._catalog.has(slot):
                return None
            _log.exception("%s: cleaning failed; it is left alone from now on", topic_partition)
            self._claims.note_error(work, error, is_failed=True)
            return RoundReport(topic_partition, selection, None, error)
        self._claims.note_round(work, self._engine.now_ms())
        return RoundReport(topic_partition, selection, result, None)
