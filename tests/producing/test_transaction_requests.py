"""Requests of a broker's clients to the transaction coordinator: what Kafka answers to each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    ProducerFencedError,
    StratalogError,
)
from stratalog.format.messages.transaction_records import TransactionStatus
from stratalog.format.names import TopicPartition
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.partitions.saved_state import FIRST_PRODUCER_ID
from stratalog.producing.transaction_log import ProducerIdentity
from tests.opening import Clock, kill, open_logs
from tests.producing.transaction_history import committed, history

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.log_dir import LogDir
    from stratalog.producing.coordinator import TransactionCoordinator

ORDERS = TopicPartition("orders", 0)
STOCK = TopicPartition("stock", 0)
PRODUCER_ID = FIRST_PRODUCER_ID


def identity(epoch: int, producer_id: int = PRODUCER_ID) -> ProducerIdentity:
    return ProducerIdentity(producer_id, epoch)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def logs(tmp_path: Path, clock: Clock) -> Iterator[LogDir]:
    with open_logs(tmp_path, clock=clock) as logs:
        for topic in ("orders", "stock"):
            logs.create_topic(topic)
        yield logs


@pytest.fixture
def coordinator(logs: LogDir) -> TransactionCoordinator:
    return logs.coordinator


def produce(logs: LogDir, value: bytes, producer: ProducerIdentity, sequence: int = 0) -> None:
    """What a client's Produce appends."""
    fields = BatchFields(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=sequence,
        is_transactional=True,
    )
    logs.partition(*ORDERS).append(encode_batch([Record(0, 1, key=None, value=value)], fields))


def status(coordinator: TransactionCoordinator) -> TransactionStatus:
    state = coordinator.find("shop")
    assert state is not None
    return state.status


class TestInitProducerId:
    def test_each_start_has_the_next_epoch(self, coordinator: TransactionCoordinator) -> None:
        started = [coordinator.init_producer_id("shop", 1000) for _ in range(3)]
        assert started == [identity(0), identity(1), identity(2)]

    @pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
    def test_a_timeout_has_limits(
        self, coordinator: TransactionCoordinator, timeout_ms: int
    ) -> None:
        with pytest.raises(InvalidTransactionTimeoutError):
            coordinator.init_producer_id("shop", timeout_ms)

    def test_an_open_transaction_is_aborted_first(
        self, coordinator: TransactionCoordinator, logs: LogDir
    ) -> None:
        first = coordinator.init_producer_id("shop", 1000)
        coordinator.add_partitions("shop", first, [ORDERS])
        produce(logs, b"open", first)
        with pytest.raises(ConcurrentTransactionsError):
            coordinator.init_producer_id("shop", 1000)
        assert status(coordinator) is TransactionStatus.COMPLETE_ABORT
        assert coordinator.init_producer_id("shop", 1000) == identity(2)  # as captured: 0, then 2
        with pytest.raises(ProducerFencedError):
            coordinator.add_partitions("shop", first, [ORDERS])
        assert committed(logs) == []

    def test_the_current_producer_gets_its_next_epoch(
        self, coordinator: TransactionCoordinator
    ) -> None:
        first = coordinator.init_producer_id("shop", 1000)
        assert coordinator.init_producer_id("shop", 1000, first) == identity(1)

    def test_a_repeated_request_gets_the_same_answer(
        self, coordinator: TransactionCoordinator
    ) -> None:
        first = coordinator.init_producer_id("shop", 1000)
        for _ in range(3):  # the answers are lost
            assert coordinator.init_producer_id("shop", 1000, first) == identity(1)
        assert coordinator.init_producer_id("shop", 1000, identity(1)) == identity(2)
        with pytest.raises(ProducerFencedError):
            coordinator.init_producer_id("shop", 1000, first)

    def test_it_gets_it_also_if_a_transaction_had_to_be_aborted(
        self, coordinator: TransactionCoordinator
    ) -> None:
        first = coordinator.init_producer_id("shop", 1000)
        coordinator.add_partitions("shop", first, [ORDERS])
        with pytest.raises(ConcurrentTransactionsError):
            coordinator.init_producer_id("shop", 1000, first)
        assert coordinator.init_producer_id("shop", 1000, first) == identity(1)

    def test_a_zombie_cannot_take_the_id_back(self, coordinator: TransactionCoordinator) -> None:
        zombie = coordinator.init_producer_id("shop", 1000)
        coordinator.init_producer_id("shop", 1000)
        for claimed in (zombie, identity(0, PRODUCER_ID + 500)):
            with pytest.raises(ProducerFencedError) as fenced:
                coordinator.init_producer_id("shop", 1000, claimed)
            assert fenced.value.code == 90

    def test_a_zombie_does_not_abort_the_transaction_of_its_successor(
        self, coordinator: TransactionCoordinator
    ) -> None:
        zombie = coordinator.init_producer_id("shop", 1000)
        successor = coordinator.init_producer_id("shop", 1000)
        coordinator.add_partitions("shop", successor, [ORDERS])
        with pytest.raises(ProducerFencedError):
            coordinator.init_producer_id("shop", 1000, zombie)
        assert status(coordinator) is TransactionStatus.ONGOING

    def test_an_unknown_id_starts_whatever_the_client_expects(
        self, coordinator: TransactionCoordinator
    ) -> None:
        assert coordinator.init_producer_id("shop", 1000, identity(7, 3)) == identity(0)

    def test_after_the_last_epoch_comes_another_producer_id(
        self, coordinator: TransactionCoordinator
    ) -> None:
        coordinator.init_producer_id("shop", 1000)
        set_epoch(coordinator, 32766)
        last, successor = identity(32766), identity(0, PRODUCER_ID + 1)
        for _ in range(2):
            assert coordinator.init_producer_id("shop", 1000, last) == successor
        assert coordinator.init_producer_id("shop", 1000, successor) == identity(1, PRODUCER_ID + 1)

    def test_after_a_crash_the_id_continues_with_another_producer_id(self, tmp_path: Path) -> None:
        logs = open_logs(tmp_path)
        first = logs.coordinator.init_producer_id("shop", 1000)
        logs.coordinator.add_partitions("shop", first, [TopicPartition("orders", 0)])
        kill(logs)
        with open_logs(tmp_path) as logs:
            logs.coordinator.add_partitions("shop", first, [TopicPartition("stock", 0)])
            with pytest.raises(ConcurrentTransactionsError):
                logs.coordinator.init_producer_id("shop", 1000)
            assert logs.coordinator.init_producer_id("shop", 1000).producer_id > PRODUCER_ID


class TestAddPartitions:
    def test_what_is_refused(self, coordinator: TransactionCoordinator) -> None:
        first = coordinator.init_producer_id("shop", 1000)
        wrong: list[tuple[str, ProducerIdentity, type[StratalogError], int]] = [
            ("other", first, InvalidProducerIdMappingError, 49),
            ("shop", identity(0, PRODUCER_ID + 100), InvalidProducerIdMappingError, 49),
            ("shop", identity(9), ProducerFencedError, 90),
        ]
        for transactional_id, producer, kind, code in wrong:
            with pytest.raises(kind) as refused:
                coordinator.add_partitions(transactional_id, producer, [ORDERS])
            assert getattr(refused.value, "code", None) == code
            with pytest.raises(kind):
                coordinator.verify_partitions(transactional_id, producer, [ORDERS])

    def test_partitions_are_collected(
        self, coordinator: TransactionCoordinator, logs: LogDir
    ) -> None:
        first = coordinator.init_producer_id("shop", 1000)
        assert coordinator.verify_partitions("shop", first, [ORDERS]) == {ORDERS: False}
        coordinator.add_partitions("shop", first, [ORDERS])
        coordinator.add_partitions("shop", first, [STOCK, ORDERS])
        written = len(history(logs))
        coordinator.add_partitions("shop", first, [ORDERS])
        assert len(history(logs)) == written
        verified = coordinator.verify_partitions(
            "shop", first, [ORDERS, STOCK, TopicPartition("orders", 1)]
        )
        assert list(verified.values()) == [True, True, False]

    def test_nothing_is_added_while_a_marker_is_missing(
        self, coordinator: TransactionCoordinator
    ) -> None:
        first = coordinator.init_producer_id("shop", 1000)
        coordinator.add_partitions("shop", first, [ORDERS])
        stop_before_markers(coordinator, first)
        with pytest.raises(ConcurrentTransactionsError):
            coordinator.add_partitions("shop", first, [STOCK])
        with pytest.raises(ConcurrentTransactionsError):
            coordinator.verify_partitions("shop", first, [ORDERS])


class TestEndTxn:
    def test_only_an_open_transaction_ends(self, coordinator: TransactionCoordinator) -> None:
        first = coordinator.init_producer_id("shop", 1000)
        for commit in (True, False):
            with pytest.raises(InvalidTxnStateError):
                coordinator.end_transaction("shop", first, commit=commit)
        with pytest.raises(InvalidProducerIdMappingError):
            coordinator.end_transaction("other", first, commit=True)
        with pytest.raises(ProducerFencedError):
            coordinator.end_transaction("shop", identity(1), commit=True)

    @pytest.mark.parametrize("commit", [True, False])
    def test_an_end_may_be_repeated_but_not_changed(
        self, coordinator: TransactionCoordinator, logs: LogDir, *, commit: bool
    ) -> None:
        first = coordinator.init_producer_id("shop", 1000)
        coordinator.add_partitions("shop", first, [ORDERS])
        produce(logs, b"1", first)
        for _ in range(2):
            assert coordinator.end_transaction("shop", first, commit=commit) == first
        with pytest.raises(InvalidTxnStateError):
            coordinator.end_transaction("shop", first, commit=not commit)
        assert committed(logs) == ([b"1"] if commit else [])
        assert logs.partition(*ORDERS).log_end_offset == 2  # one marker

    def test_a_missing_marker_is_written_by_the_next_request(
        self, coordinator: TransactionCoordinator, logs: LogDir
    ) -> None:
        first = coordinator.init_producer_id("shop", 1000)
        coordinator.add_partitions("shop", first, [ORDERS])
        produce(logs, b"1", first)
        stop_before_markers(coordinator, first)
        with pytest.raises(InvalidTxnStateError):
            coordinator.end_transaction("shop", first, commit=False)
        assert coordinator.end_transaction("shop", first, commit=True) == first
        assert committed(logs) == [b"1"]

    def test_a_transaction_that_takes_too_long_is_aborted(
        self, coordinator: TransactionCoordinator, clock: Clock, logs: LogDir
    ) -> None:
        first = coordinator.init_producer_id("shop", 1500)
        coordinator.add_partitions("shop", first, [ORDERS])
        clock.advance(1501)
        coordinator.abort_timed_out()
        assert history(logs)[-1][2:4] == (1, "COMPLETE_ABORT")  # the marker has the next epoch
        with pytest.raises(ProducerFencedError):
            coordinator.end_transaction("shop", first, commit=True)
        with pytest.raises(ProducerFencedError):
            coordinator.init_producer_id("shop", 1500, first)

    def test_closing_leaves_the_transactions_of_clients_open(self, tmp_path: Path) -> None:
        with open_logs(tmp_path) as logs:
            first = logs.coordinator.init_producer_id("shop", 1000)
            logs.create_topic("orders")
            logs.coordinator.add_partitions("shop", first, [ORDERS])
            produce(logs, b"1", first)
        with open_logs(tmp_path) as logs:
            assert logs.coordinator.end_transaction("shop", first, commit=True) == first
            assert committed(logs) == [b"1"]

    def test_listeners_hear_of_each_marker(
        self, coordinator: TransactionCoordinator, logs: LogDir
    ) -> None:
        heard: list[tuple[TopicPartition, ProducerIdentity, bool]] = []
        coordinator.marker_listeners.append(lambda *marker: heard.append(marker))
        first = coordinator.init_producer_id("shop", 1000)
        coordinator.add_partitions("shop", first, [ORDERS, STOCK])
        coordinator.end_transaction("shop", first, commit=True)
        coordinator.write_marker(ORDERS, identity(3, 9), commit=False, coordinator_epoch=0)
        assert heard == [(ORDERS, first, True), (STOCK, first, True), (ORDERS, (9, 3), False)]
        assert logs.partition(*ORDERS).log_end_offset == 2


class TestVersion2:
    """EndTxn v5: each transaction has its own epoch, and the answer names the next one."""

    def test_the_conversation_that_was_captured(
        self, coordinator: TransactionCoordinator, logs: LogDir
    ) -> None:
        producer = coordinator.init_producer_id("shop", 1000)
        for number, commit in enumerate((True, False, True)):
            coordinator.add_partitions("shop", producer, [ORDERS])
            produce(logs, b"%d" % number, producer)
            for _ in range(2):  # the second time with the old epoch
                after = coordinator.end_transaction(
                    "shop", producer, commit=commit, client_version=2
                )
                assert after == identity(number + 1)
            with pytest.raises(InvalidTxnStateError):
                coordinator.end_transaction("shop", producer, commit=not commit, client_version=2)
            producer = after
        assert committed(logs) == [b"0", b"2"]
        markers = [step[2] for step in history(logs) if step[3].startswith("PREPARE")]
        assert markers == [1, 2, 3]
        with pytest.raises(InvalidTxnStateError):
            coordinator.end_transaction("shop", producer, commit=True, client_version=2)

    def test_a_transaction_without_partitions_may_be_aborted(
        self, coordinator: TransactionCoordinator
    ) -> None:
        first = coordinator.init_producer_id("shop", 1000)
        for _ in range(2):
            after = coordinator.end_transaction("shop", first, commit=False, client_version=2)
            assert after == identity(1)
        with pytest.raises(InvalidTxnStateError):
            coordinator.end_transaction("shop", after, commit=True, client_version=2)

    def test_a_late_repetition_does_not_end_the_next_transaction(
        self, coordinator: TransactionCoordinator
    ) -> None:
        first = coordinator.init_producer_id("shop", 1000)
        coordinator.add_partitions("shop", first, [ORDERS], client_version=2)
        second = coordinator.end_transaction("shop", first, commit=True, client_version=2)
        coordinator.add_partitions("shop", second, [ORDERS], client_version=2)
        with pytest.raises(ProducerFencedError):
            coordinator.end_transaction("shop", first, commit=True, client_version=2)
        assert status(coordinator) is TransactionStatus.ONGOING

    def test_after_the_last_epoch_comes_another_producer_id(
        self, coordinator: TransactionCoordinator, logs: LogDir
    ) -> None:
        coordinator.init_producer_id("shop", 1000)
        set_epoch(coordinator, 32766)
        last, successor = identity(32766), identity(0, PRODUCER_ID + 1)
        coordinator.add_partitions("shop", last, [ORDERS], client_version=2)
        produce(logs, b"1", last)
        for _ in range(2):
            after = coordinator.end_transaction("shop", last, commit=True, client_version=2)
            assert after == successor
        coordinator.add_partitions("shop", successor, [ORDERS], client_version=2)
        assert committed(logs) == [b"1"]

    def test_the_next_epoch_survives_a_restart(self, tmp_path: Path) -> None:
        with open_logs(tmp_path) as logs:
            logs.create_topic("orders")
            first = logs.coordinator.init_producer_id("shop", 1000)
            logs.coordinator.add_partitions("shop", first, [ORDERS])
            logs.coordinator.end_transaction("shop", first, commit=True, client_version=2)
        with open_logs(tmp_path) as logs:
            after = logs.coordinator.end_transaction("shop", first, commit=True, client_version=2)
            assert after == identity(1)

    def test_one_whose_transaction_timed_out_is_fenced(
        self, coordinator: TransactionCoordinator, clock: Clock
    ) -> None:
        first = coordinator.init_producer_id("shop", 1000)
        coordinator.add_partitions("shop", first, [ORDERS], client_version=2)
        clock.advance(1001)
        coordinator.abort_timed_out()
        for commit in (True, False):
            with pytest.raises(ProducerFencedError):
                coordinator.end_transaction("shop", first, commit=commit, client_version=2)


def set_epoch(coordinator: TransactionCoordinator, epoch: int) -> None:
    state = coordinator.find("shop")
    assert state is not None
    coordinator._states.write("shop", state._replace(producer_epoch=epoch))


def stop_before_markers(coordinator: TransactionCoordinator, producer: ProducerIdentity) -> None:
    """As if the disk had been full after the decision to commit."""
    state = coordinator.find("shop")
    assert state is not None
    assert (state.producer_id, state.producer_epoch) == producer
    coordinator._decide("shop", state, commit=True)
