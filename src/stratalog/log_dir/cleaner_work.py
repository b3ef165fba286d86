"""Compaction as the work of threads: what each does again and again, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stratalog.maintenance.cleaning.throttle import Throttle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stratalog.config import BrokerConfig
    from stratalog.format.names import TopicPartition
    from stratalog.log_dir.cleaner_claims import PartitionCleaning
    from stratalog.log_dir.cleaning import CleanerManager
    from stratalog.log_dir.health import Health
    from stratalog.maintenance.cleaning.cleaner import Cleaner

CLEANING: Final = "cleaning"


class CleanerWork:
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
