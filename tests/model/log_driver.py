"""Does everything twice, to a real log on a disk that forgets and to the model, and compares.

Every operation may be interrupted: give the disk a fault, and lose power afterwards. What must then
be there is bounded from below by what was flushed and from above by what was written.
"""

from __future__ import annotations

import enum
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import (
    LogOfflineError,
    OutOfOrderSequenceError,
    StorageError,
    StratalogError,
)
from stratalog.maintenance.recovery import LoadPoint
from tests.disks import Fault, FaultyDisk
from tests.model.driven_log import Draft
from tests.model.log_checks import CheckedLog
from tests.model.log_model import Marker, ModelBatch, Sent

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from stratalog.config import LogConfig


class Outcome(enum.Enum):
    """How an operation ended that met an error, or met none."""

    DONE = "done"
    UNCHANGED = "the log is as it was"
    REOPENED = "the log had to be opened again"


class LogDriver(CheckedLog):
    """Whatever can be done to a partition, done to both."""

    # -- appending

    def append(self, draft: Draft) -> None:
        self._append_as_leader(self._batch(draft))

    def append_many(self, drafts: Sequence[Draft]) -> None:
        """Those that meet an error are sent again, if the log can still be used."""
        batches = [self._batch(draft._replace(producer_id=-1)) for draft in drafts]
        infos = self.log.append_many([self._raw(batch, base_offset=0) for batch in batches])
        failed: list[ModelBatch] = []
        for info, batch in zip(infos, batches, strict=True):
            moved = batch.moved_to(self.model.end, self.log.leader_epoch)
            if isinstance(info, StorageError) and not self.log.is_usable:
                with self._writing([moved]):  # it may be there, once the log is opened again
                    raise info
            if isinstance(info, StorageError):
                failed.append(batch)
                continue
            assert not isinstance(info, StratalogError)
            assert (info.first_offset, info.last_offset) == (moved.first_offset, moved.last_offset)
            self.model.append(moved)
        for batch in failed:
            self._append_as_leader(batch)

    def append_as_follower(self, drafts: Sequence[Draft], gap: int = 0) -> None:
        """All of them in one call, after a hole in the offsets such as compaction leaves."""
        batches = self._in_a_row(drafts, gap)
        with self._writing(batches):
            self.log.append_as_follower(b"".join(self._raw(batch) for batch in batches))

    def send_again(self, producer_id: int) -> None:
        """The producer's newest batch: it is known, and nothing is written."""
        newest = self._newest(producer_id)
        if newest is not None:
            info = self.log.append(self._raw(newest, base_offset=0))
            assert info.is_duplicate
            assert (info.first_offset, info.last_offset) == (
                newest.first_offset,
                newest.last_offset,
            )

    def skip_a_sequence(self, producer_id: int) -> None:
        """A batch is missing before this one, so it is refused."""
        newest = self._newest(producer_id)
        if newest is None:
            return
        sent = newest.sent._replace(base_sequence=self._next_sequence(producer_id) + 1)
        try:
            self.log.append(self._raw(replace(newest, sent=sent), base_offset=0))
        except OutOfOrderSequenceError:
            return
        raise AssertionError("a gap in the sequence was not noticed")

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        producer = self.model.producers().get(producer_id)
        if producer is None or producer.open_txn_first_offset < 0:
            return
        self.now_ms += 1
        marker = Marker(producer_id, producer.producer_epoch, commit)
        batch = ModelBatch(
            self.model.end,
            self.model.end,
            self.log.leader_epoch,
            marker=marker,
            timestamps=(self.now_ms,),
        )
        with self._writing([batch]):
            self.log.end_transaction(producer_id, producer.producer_epoch, commit=commit)

    def bump_epoch(self, producer_id: int) -> None:
        """A new instance of the producer, with its first batch."""
        producer = self.model.producers().get(producer_id)
        if producer is None or producer.open_txn_first_offset >= 0:
            return
        batch = self._batch(Draft())
        sent = Sent(producer_id, producer.producer_epoch + 1, 0)
        self._append_as_leader(replace(batch, sent=sent))

    # -- everything else

    def roll(self) -> None:
        self.log.roll()

    def flush(self) -> None:
        self.log.flush()
        assert self.log.recovery_point == self.model.end
        self.durable = len(self.model.batches)

    def truncate_to(self, offset: int) -> None:
        self._before_cut(offset)
        starts_over = offset < self._first_base()
        if starts_over:
            self.durable = 0
        self.log.truncate_to(offset)
        self.known_from = min(self.known_from, offset, self.log.log_end_offset)
        self.deleted_below = min(self.deleted_below, offset)
        if starts_over:
            self.model.start_over_at(offset)
        elif offset < self.model.end:
            self.model.truncate_to(offset)
            # Inside a batch, which goes as a whole, or in a hole: the log may go on from there.
            assert self.model.batches_end() <= self.log.log_end_offset <= offset
            self.model.end = self.log.log_end_offset
            self.model.log_start_offset = min(self.model.log_start_offset, self.model.end)

    def start_over_at(self, offset: int) -> None:
        self._before_cut(0)
        self.log.truncate_fully_and_start_at(offset)
        self.known_from = min(self.known_from, offset)
        self.deleted_below = min(self.deleted_below, offset)
        self.model.start_over_at(offset)

    def _before_cut(self, offset: int) -> None:
        """Whoever lowers the log start writes that down, or a crash would hide new records."""
        durable = self.model.batches[: self.durable]
        self.durable = sum(batch.last_offset < offset for batch in durable)
        start = min(self.point.log_start_offset, offset)
        self.point = self.point._replace(log_start_offset=start)

    def delete_records(self, offset: int) -> None:
        self.known_from = max(self.known_from, offset)
        start = self.log.delete_records(offset)
        self.model.log_start_offset = max(self.model.log_start_offset, offset)
        assert start == self.model.log_start_offset

    def delete_oldest(self, part: float) -> None:
        """Some of the segments, or all of them if there is anything to delete in the last."""
        segments = self.log.maintenance.segments
        whole = len(segments) if segments[-1].size_bytes else len(segments) - 1
        count = round(whole * part)
        if not count:
            return
        bases = [*(segment.base_offset for segment in segments), self.model.end]
        self.deleted_below = self.known_from = max(self.known_from, bases[count])
        start = self.log.maintenance.delete_oldest(count)
        self.model.log_start_offset = max(self.model.log_start_offset, bases[count])
        assert start == self.model.log_start_offset
        assert self._first_base() == bases[count]

    def remove_discarded(self) -> None:
        count = len(self.log.maintenance.discarded)
        assert self.log.maintenance.remove_discarded(self.now_ms, at_once=True) == count
        assert not [*self.path.glob("*.deleted")]

    def become_leader(self) -> None:
        self.log.become_leader(self.log.leader_epoch + 1)

    def configure(self, config: LogConfig) -> None:
        self.config = config
        self.log.update_config(config)

    def pass_time(self, by_ms: int) -> None:
        self.now_ms += by_ms

    def checkpoint(self) -> None:
        """What a log directory writes down now and then, durably."""
        self.point = LoadPoint(self.log.log_start_offset, self.log.recovery_point)

    # -- stopping and starting

    def reopen_cleanly(self) -> None:
        self.log.close()
        self.durable = len(self.model.batches)
        self.point = LoadPoint(self.log.log_start_offset, self.log.recovery_point, was_clean=True)
        self.log = self._open()
        self._settle_end()
        self._unclean_again()

    def crash(self, rng: random.Random) -> None:
        """Lose power and come up again."""
        self.faulty.fault = None
        self.sim.crash(rng)
        self.faulty = FaultyDisk(self.sim.calls)
        self.log = self._open()
        self._adopt_what_survived()
        self._unclean_again()

    def interrupt(self, do: Callable[[], None], after_calls: int, rng: random.Random) -> None:
        """Lose power in the middle of an operation, if it makes that many calls to the system."""
        at = len(self.faulty.history) + 1 + after_calls
        self.faulty.fault = Fault(at, is_lasting=True, written=rng.choice([0, 0.5, 1]))
        before = (list(self.model.batches), self.model.end, self.model.log_start_offset)
        try:
            do()
        except StorageError:
            assert self.faulty.has_failed
            self._keep_all_that_may_be(before)
            self.crash(rng)
        finally:
            self.faulty.fault = None

    def survive(self, do: Callable[[], None]) -> Outcome:
        """Do something that may meet an error. Without a loss of power nothing acknowledged may go,
        and a log that stays usable must be as it was."""
        before = (list(self.model.batches), self.model.end, self.model.log_start_offset)
        self.durable = len(self.model.batches)
        try:
            do()
        except StorageError:
            if self.log.is_usable:
                self.model.batches, self.model.end, self.model.log_start_offset = before
                self.check()
                return Outcome.UNCHANGED
            self._keep_all_that_may_be(before)
            self._reopen_after_failure()
            return Outcome.REOPENED
        return Outcome.DONE

    def _reopen_after_failure(self) -> None:
        """As a log directory does, with what the failed log knew."""
        with pytest.raises(LogOfflineError):
            self.log.roll()
        self.log.close()
        self.point = LoadPoint(self.log.log_start_offset, self.log.recovery_point)
        self.log = self._open()
        self._adopt_what_survived()

    def fail_loading(self, fault: Fault) -> bool:
        """Open the log again, as after a kill; once more if that raises. Whether the fault came to
        pass: not every one is in the way, such as one of space that is taken in advance."""
        self.durable = len(self.model.batches)
        self.point = LoadPoint(self.point.log_start_offset)
        self.faulty.fault = fault
        try:
            self.log = self._open()
        except StorageError:
            assert self.faulty.has_failed
            self.log = self._open()
        has_failed, self.faulty.fault = self.faulty.has_failed, None
        self._adopt_what_survived()
        return has_failed

    def interrupt_loading(self, after_calls: int, rng: random.Random) -> None:
        """Lose power, and once more while recovering from it."""
        self.sim.crash(rng)
        self.faulty = FaultyDisk(self.sim.calls, Fault(1 + after_calls, is_lasting=True))
        try:
            self._open()
        except StorageError:
            assert self.faulty.has_failed
        self.crash(rng)

    def _keep_all_that_may_be(self, before: tuple[list[ModelBatch], int, int]) -> None:
        """An interrupted cut may have happened or not: then whatever was there may still be."""
        batches, end, start = before
        if len(batches) > len(self.model.batches):
            self.model.batches, self.model.end = batches, end
        self.model.log_start_offset = min(start, self.model.log_start_offset)

    def _unclean_again(self) -> None:
        self.checkpoint()

    def _adopt_what_survived(self) -> None:
        """A prefix of what was written, at least as long as what was durable."""
        end = self.log.log_end_offset
        kept = [batch for batch in self.model.batches if batch.next_offset <= end]
        assert len(kept) >= self.durable, f"lost {self.model.batches[len(kept)]}"
        self.model.batches = kept
        self.durable = len(kept)
        self._settle_end()

    def _settle_end(self) -> None:
        """What only memory knew: where the log would go on, and where it began."""
        model, log = self.model, self.log
        first_base = self._first_base()
        model.batches = [
            batch
            for batch in model.batches
            if batch.first_offset >= first_base or batch.next_offset <= self.deleted_below
        ]
        self.durable = min(self.durable, len(model.batches))
        model.end = max(model.batches_end(), log.maintenance.segments[-1].base_offset)
        model.log_start_offset = max(self.point.log_start_offset, first_base)
        self.known_from = min(self.known_from, model.end)
