"""Random appends, markers, restarts and truncations against a model that only keeps history.

The model derives every answer from the list of all batches in the log, over and over. What it must
remember beside them is what a real log forgets: expired producers, and that after a reload only the
newest batch of each producer is known.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stratalog.errors import (
    AppendError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from stratalog.format.control import ControlType, EndMarker
from stratalog.format.txn_index import AbortedTxn
from stratalog.log.offset_assignment import AppendOrigin
from stratalog.log.producer_state_manager import ProducerStateConfig, ProducerStateManager
from stratalog.log.producer_transitions import CachedBatch, ProducerState
from stratalog.log.snapshot_files import snapshots_out_of_range
from tests.effort import scaled
from tests.log.producer_batches import control, data, plain

if TYPE_CHECKING:
    from stratalog.format.batch import BatchHeader

EXPIRATION_MS = 1000
LAST_SEQUENCE = 2_147_483_647


class Event(NamedTuple):
    """One batch of the log."""

    header: BatchHeader
    marker: EndMarker | None = None

    @property
    def offset(self) -> int:
        return self.header.base_offset


class Txn(NamedTuple):
    first_offset: int
    marker_offset: int | None


@dataclass
class Model:
    """History, and what was forgotten of it."""

    events: list[Event] = field(default_factory=list)
    known_from: dict[int, int] = field(default_factory=dict)
    """Producer id to the offset from which the log remembers it."""
    cached_from: dict[int, int] = field(default_factory=dict)
    """Producer id to the offset from which its batches are cached."""
    reloaded_timestamps: dict[int, int] = field(default_factory=dict)
    """Offset of a batch to the timestamp that it has after a reload: the snapshot keeps only the
    producer's newest one, which may be a marker's."""
    replicated_below: int = 0
    """Transactions that ended below are known to be replicated."""

    @property
    def end_offset(self) -> int:
        return self.events[-1].header.next_offset if self.events else 0

    def of(self, producer_id: int) -> list[Event]:
        known_from = self.known_from.get(producer_id, 0)
        return [
            event
            for event in self.events
            if event.header.producer_id == producer_id and event.offset >= known_from
        ]

    def producer_ids(self) -> set[int]:
        ids = {event.header.producer_id for event in self.events} - {-1}
        return {producer_id for producer_id in ids if self.of(producer_id)}

    def epoch(self, producer_id: int) -> int:
        events = self.of(producer_id)
        return events[-1].header.producer_epoch if events else -1

    def cached(self, producer_id: int) -> list[BatchHeader]:
        """The data batches since the producer's epoch last changed, five at most."""
        found: list[BatchHeader] = []
        for event in reversed(self.of(producer_id)):
            if event.header.producer_epoch != self.epoch(producer_id):
                break
            is_cached = event.offset >= self.cached_from.get(producer_id, 0)
            if event.marker is None and is_cached:
                found.append(event.header)
        return found[:5][::-1]

    def next_sequence(self, producer_id: int) -> int:
        cached = self.cached(producer_id)
        if not cached:
            return 0
        newest = cached[-1]
        after = newest.base_sequence + newest.record_count
        return after if after <= LAST_SEQUENCE else after - LAST_SEQUENCE - 1

    def coordinator_epoch(self, producer_id: int) -> int:
        markers = [event.marker for event in self.of(producer_id) if event.marker]
        return markers[-1].coordinator_epoch if markers else -1

    def transactions(self, producer_id: int) -> list[Txn]:
        found: list[Txn] = []
        first_offset: int | None = None
        for event in self.of(producer_id):
            if event.marker is None:
                if first_offset is None and event.header.is_transactional:
                    first_offset = event.offset
            elif first_offset is not None:
                found.append(Txn(first_offset, event.offset))
                first_offset = None
        if first_offset is not None:
            found.append(Txn(first_offset, None))
        return found

    def open_offset(self, producer_id: int) -> int:
        transactions = self.transactions(producer_id)
        is_open = bool(transactions) and transactions[-1].marker_offset is None
        return transactions[-1].first_offset if is_open else -1

    def state(self, producer_id: int) -> ProducerState:
        cached = []
        for header in self.cached(producer_id):
            last = (header.base_sequence + header.record_count - 1) % (LAST_SEQUENCE + 1)
            delta = header.record_count - 1
            timestamp = self.timestamp(header)
            cached.append(CachedBatch(last, header.base_offset + delta, delta, timestamp))
        return ProducerState(
            producer_id,
            self.epoch(producer_id),
            self.coordinator_epoch(producer_id),
            self.of(producer_id)[-1].header.max_timestamp,
            self.open_offset(producer_id),
            tuple(cached),
        )

    def timestamp(self, header: BatchHeader) -> int:
        """As a retry of the batch is answered with."""
        return self.reloaded_timestamps.get(header.base_offset, header.max_timestamp)

    def last_stable_offset(self, high_watermark: int) -> int:
        unstable = [
            txn.first_offset
            for producer_id in self.producer_ids()
            for txn in self.transactions(producer_id)
            if txn.marker_offset is None
            or txn.marker_offset >= max(high_watermark, self.replicated_below)
        ]
        return min([*unstable, high_watermark])

    def refusal(self, event: Event, origin: AppendOrigin) -> type[AppendError] | None:
        """Row by row, in the order in which Kafka looks."""
        header = event.header
        producer_id, epoch = header.producer_id, self.epoch(header.producer_id)
        is_trusted = origin is AppendOrigin.REPLICATION
        if header.producer_epoch < epoch and not is_trusted:
            return InvalidProducerEpochError
        if event.marker is not None:
            is_old = event.marker.coordinator_epoch < self.coordinator_epoch(producer_id)
            return TransactionCoordinatorFencedError if is_old and not is_trusted else None
        if origin is AppendOrigin.CLIENT and epoch != -1:
            is_new_epoch = header.producer_epoch > epoch
            expected = 0 if is_new_epoch else self.next_sequence(producer_id)
            if header.base_sequence != expected:
                return OutOfOrderSequenceError
        if self.open_offset(producer_id) != -1 and not header.is_transactional:
            return InvalidTxnStateError
        return None

    def duplicate(self, header: BatchHeader) -> BatchHeader | None:
        if header.producer_epoch != self.epoch(header.producer_id):
            return None
        for cached in self.cached(header.producer_id):
            if (cached.base_sequence, cached.record_count) == (
                header.base_sequence,
                header.record_count,
            ):
                return cached
        return None

    def forget_all_but_newest(self, offset: int) -> None:
        """State was loaded from a snapshot at `offset`."""
        before = deepcopy(self)
        before.events = [event for event in self.events if event.offset < offset]
        for producer_id in before.producer_ids():
            cached = before.cached(producer_id)
            self.cached_from[producer_id] = cached[-1].base_offset if cached else offset
            if cached:
                newest = before.of(producer_id)[-1].header.max_timestamp
                self.reloaded_timestamps[cached[-1].base_offset] = newest
        self.replicated_below = offset


producer_ids = st.integers(1, 3)
epochs = st.sampled_from([0, 0, 0, 1, 1, 2])
counts = st.integers(1, 4)


class ProducerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.config = ProducerStateConfig(producer_id_expiration_ms=EXPIRATION_MS)
        self.manager = ProducerStateManager(self.config)
        self.model = Model()
        self.high_watermark = 0
        self.now_ms = 10_000
        self.snapshots: dict[int, tuple[bytes, Model]] = {}

    @rule(
        producer_id=producer_ids,
        epoch=epochs,
        sequence=st.sampled_from(["next", "next", "next", "zero", "skip", "last", "resend"]),
        count=counts,
        is_transactional=st.booleans(),
        origin=st.sampled_from([AppendOrigin.CLIENT] * 4 + list(AppendOrigin)),
    )
    def append_data(
        self,
        producer_id: int,
        epoch: int,
        sequence: str,
        count: int,
        is_transactional: bool,
        origin: AppendOrigin,
    ) -> None:
        following = self.model.next_sequence(producer_id)
        cached = self.model.cached(producer_id)
        if sequence == "resend" and cached:
            again = cached[0] if count % 2 else cached[-1]
            base_sequence, count, epoch = (
                again.base_sequence,
                again.record_count,
                again.producer_epoch,
            )
        else:
            skipped = (following + 7) % (LAST_SEQUENCE + 1)
            chosen = {"zero": 0, "skip": skipped, "last": LAST_SEQUENCE - 1}
            base_sequence = chosen.get(sequence, following)
        header = data(
            self.model.end_offset,
            base_sequence,
            count,
            producer_id=producer_id,
            epoch=epoch,
            is_transactional=is_transactional,
            timestamp=self.now_ms,
        )
        if origin is AppendOrigin.CLIENT:
            duplicate = self.model.duplicate(header)
            if duplicate is not None:
                answer = self.manager.check([header], origin).duplicate
                assert answer is not None
                assert answer.first_offset == duplicate.base_offset
                assert answer.timestamp == self.model.timestamp(duplicate)
                return
        self._append(Event(header), origin)

    @rule(
        producer_id=producer_ids,
        epoch=epochs,
        kind=st.sampled_from([ControlType.COMMIT, ControlType.ABORT]),
        coordinator_epoch=st.integers(0, 2),
        origin=st.sampled_from([AppendOrigin.COORDINATOR, AppendOrigin.REPLICATION]),
    )
    def append_marker(
        self,
        producer_id: int,
        epoch: int,
        kind: ControlType,
        coordinator_epoch: int,
        origin: AppendOrigin,
    ) -> None:
        header = control(
            self.model.end_offset, producer_id=producer_id, epoch=epoch, timestamp=self.now_ms
        )
        self._append(Event(header, EndMarker(kind, coordinator_epoch)), origin)

    def _append(self, event: Event, origin: AppendOrigin) -> None:
        header = event.header
        markers = {event.offset: event.marker} if event.marker else None
        refusal = self.model.refusal(event, origin)
        before = dict(self.manager.producers)
        if refusal is not None:
            with pytest.raises(refusal):
                self.manager.check([header], origin, markers=markers)
            assert self.manager.producers == before
            return
        checked = self.manager.check([header], origin, markers=markers)
        assert checked.duplicate is None
        first_offset = self.model.open_offset(header.producer_id)
        completed = self.manager.update(checked)
        self.model.events.append(event)
        self.manager.map_end_offset = header.next_offset
        if event.marker is None or first_offset == -1:
            assert completed == ()
            return
        others = [self.model.open_offset(other) for other in self.model.producer_ids()]
        stable = min([offset for offset in others if offset != -1], default=event.offset + 1)
        expected = AbortedTxn(0, header.producer_id, first_offset, event.offset, stable)
        assert [txn.index_entry() for txn in completed] == [expected]
        assert completed[0].is_aborted == (event.marker.type is ControlType.ABORT)

    @rule(count=counts)
    def append_without_producer(self, count: int) -> None:
        header = plain(self.model.end_offset, count)
        assert self.manager.check([header], AppendOrigin.CLIENT).changes == ()
        self.model.events.append(Event(header))
        self.manager.map_end_offset = header.next_offset

    @rule(step=st.integers(0, 10))
    def move_high_watermark(self, step: int) -> None:
        self.high_watermark = min(self.high_watermark + step, self.model.end_offset)
        self.manager.on_high_watermark_updated(self.high_watermark)

    @rule(passed_ms=st.sampled_from([1, 400, EXPIRATION_MS]))
    def expire(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        expired = set()
        for producer_id in self.model.producer_ids():
            newest = self.model.of(producer_id)[-1].header
            is_idle = self.now_ms - newest.max_timestamp >= EXPIRATION_MS
            if is_idle and self.model.open_offset(producer_id) == -1:
                expired.add(producer_id)
        for producer_id in expired:
            self._keep_its_transactions(producer_id)
        assert set(self.manager.remove_expired(self.now_ms)) == expired

    def _keep_its_transactions(self, producer_id: int) -> None:
        """Forget the producer; but a marker that is not replicated still holds readers back."""
        for txn in self.model.transactions(producer_id):
            if txn.marker_offset is not None and txn.marker_offset >= self.high_watermark:
                self.high_watermark = self.model.end_offset
                self.manager.on_high_watermark_updated(self.high_watermark)
        self.model.known_from[producer_id] = self.model.end_offset

    @rule()
    def take_snapshot(self) -> None:
        if self.manager.needs_snapshot:
            snapshot = (self.manager.snapshot(), deepcopy(self.model))
            self.snapshots[self.manager.map_end_offset] = snapshot
            self.manager.on_snapshot_written()

    @precondition(lambda self: self.snapshots)
    @rule(back=st.integers(0, 30))
    def truncate(self, back: int) -> None:
        """Cut at a batch near the end, reload the newest snapshot below, replay what follows."""
        ends = [0, *(event.header.next_offset for event in self.model.events)]
        end_offset = ends[-1 - min(back, len(ends) - 1)]
        for gone in snapshots_out_of_range(self.snapshots, 0, end_offset):
            del self.snapshots[gone]
        newest_first = sorted(self.snapshots, reverse=True)
        offered = ((offset, self.snapshots[offset][0]) for offset in newest_first)
        was_at_end = end_offset == self.manager.map_end_offset
        clock_ms = 10_000  # nothing has expired yet
        assert self.manager.truncate_and_reload(0, end_offset, offered, clock_ms) == []
        if was_at_end:
            return
        kept = [event for event in self.model.events if event.header.next_offset <= end_offset]
        loaded_at = newest_first[0] if newest_first else 0
        self.model = deepcopy(self.snapshots[loaded_at][1]) if newest_first else Model()
        self.model.events = kept
        self.model.forget_all_but_newest(loaded_at)
        assert self.manager.map_end_offset == loaded_at
        for event in kept:
            if event.offset >= loaded_at:
                self.manager.replay(event.header, event.marker)
        self.manager.map_end_offset = end_offset
        self.high_watermark = min(self.high_watermark, end_offset)

    @rule()
    def restart(self) -> None:
        end_offset, raw = self.model.end_offset, self.manager.snapshot()
        self.manager = ProducerStateManager(self.config)
        self.manager.restore(raw, end_offset, now_ms=10_000)
        self.model.forget_all_but_newest(end_offset)
        self.snapshots[end_offset] = (raw, deepcopy(self.model))

    @invariant()
    def producers_are_what_history_tells(self) -> None:
        expected = {pid: self.model.state(pid) for pid in self.model.producer_ids()}
        assert self.manager.producers == expected

    @invariant()
    def readers_stop_at_the_first_undecided_record(self) -> None:
        for high_watermark in (self.high_watermark, self.model.end_offset):
            expected = self.model.last_stable_offset(high_watermark)
            assert self.manager.last_stable_offset(high_watermark) == expected

    @invariant()
    def snapshot_tells_all_but_older_batches(self) -> None:
        restored = ProducerStateManager(self.config)
        restored.restore(self.manager.snapshot(), self.manager.map_end_offset, now_ms=10_000)
        assert restored.snapshot() == self.manager.snapshot()


TestProducerMachine = pytest.mark.slow(ProducerMachine.TestCase)
TestProducerMachine.settings = settings(
    max_examples=scaled(50), stateful_step_count=40, deadline=None
)
