"""Transactions: all or nothing, fencing, what a crash leaves, and Kafka's own record of it."""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import stratalog
from stratalog.errors import (
    InvalidNameError,
    InvalidProducerEpochError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    MessageTooLargeError,
    ProducerFencedError,
    StorageError,
)
from stratalog.format.messages.transaction_records import (
    TransactionStatus,
    read_transaction_state,
    read_transactional_id,
)
from stratalog.format.names import TopicPartition
from stratalog.log.isolation import IsolationLevel
from stratalog.log_dir.kept_state import FIRST_PRODUCER_ID
from stratalog.log_dir.transaction_log import java_abs, java_hash
from stratalog.log_dir.transaction_steps import ProducerIdentity
from tests.disks import FaultyDisk
from tests.log.building import batches_of
from tests.log_dir.opening import NOW_MS, Clock, kill, open_logs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stratalog.log_dir.manager import LogDir
    from tests.golden.cases import GoldenCase


def committed(logs: LogDir, topic: str = "orders", partition: int = 0) -> list[bytes | None]:
    log = logs.partition(topic, partition)
    return [record.value for record in log.read(isolation=IsolationLevel.READ_COMMITTED)]


def history(logs: LogDir) -> list[tuple[str, int, int, str, object]]:
    """What the coordinator wrote: id, producer id, epoch, status, partitions."""
    steps: list[tuple[str, int, int, str, object]] = []
    for record in logs.partition("__transaction_state", 0).read():
        state = read_transaction_state(record.value or b"")
        steps.append(
            (
                read_transactional_id(record.key or b""),
                state.producer_id,
                state.producer_epoch,
                state.status.name,
                state.partitions,
            )
        )
    return steps


# -- all or nothing


def test_a_commit_shows_all(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 2)
        with logs.transaction("shop") as txn:
            txn.append("orders", b"0", partition=0)
            second = txn.append("orders", b"1", partition=1, key=b"k", headers={"h": b"x"})
            txn.append("stock", b"-1")
            assert second.result().offset == 0
            assert committed(logs, partition=1) == []
        assert committed(logs) == [b"0"]
        assert committed(logs, partition=1) == [b"1"]
        assert committed(logs, "stock") == [b"-1"]
        assert logs.partition("orders", 0).log_end_offset == 2  # the marker has an offset, too
        assert logs.open_transactions() == []


def test_an_exception_shows_nothing(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        with suppress(ZeroDivisionError), logs.transaction("shop") as txn:
            txn.append("orders", b"gone").result()
            waiting = txn.append("orders", b"never written")
            raise ZeroDivisionError
        assert committed(logs) == []
        log = logs.partition("orders", 0)
        assert [record.value for record in log.read()] == [b"gone"]
        assert log.last_stable_offset == log.log_end_offset == 2
        with pytest.raises(InvalidTxnStateError, match="aborted before"):
            waiting.result()
        [aborted] = log.aborted_transactions()
        assert (aborted.first_offset, aborted.last_offset) == (0, 1)


def test_by_hand(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        txn = logs.transaction("shop")
        txn.append("orders", b"0")
        txn.commit()
        with pytest.raises(InvalidTxnStateError, match="has ended"):
            txn.append("orders", b"1")
        with pytest.raises(InvalidTxnStateError, match="has ended"):
            txn.abort()
        with logs.transaction("shop") as txn:
            txn.append("orders", b"2")
            txn.abort()
        assert committed(logs) == [b"0"]


def test_an_empty_transaction_writes_no_marker(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        with logs.transaction("shop"):
            pass
        assert [step[3] for step in history(logs)] == ["EMPTY"]


def test_readers_without_transactions_see_everything_at_once(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs, logs.transaction("shop") as txn:
        txn.append("orders", b"early").result()
        logs.append("orders", b"plain")
        log = logs.partition("orders", 0)
        assert [record.value for record in log.read()] == [b"early", b"plain"]
        assert committed(logs) == []
        assert log.last_stable_offset == 0


def test_a_refused_record_aborts_all(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("small", config={"cleanup.policy": "compact"})
        txn = logs.transaction("shop")
        txn.append("orders", b"0").result()
        txn.append("small", b"no key, which compaction needs")
        with pytest.raises(stratalog.InvalidRecordError):
            txn.commit()
        assert committed(logs) == []
        assert logs.open_transactions() == []


def test_after_a_failed_batch_a_transaction_can_only_be_aborted(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("small", config={"cleanup.policy": "compact"})
        txn = logs.transaction("shop")
        with pytest.raises(stratalog.AppendError):
            txn.append("small", b"no key").result()
        with pytest.raises(InvalidTxnStateError, match="can only be aborted"):
            txn.append("orders", b"x")
        txn.abort()
        with logs.transaction("shop") as txn:
            with pytest.raises(MessageTooLargeError):  # told before it is part of anything
                txn.append("orders", bytes(2_000_000))
            txn.append("orders", b"fine")
        assert committed(logs) == [b"fine"]


def test_several_transactions_of_one_producer(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        producer = logs.transactional_producer("shop", compression="zstd")
        for number in range(4):
            txn = producer.transaction()
            txn.append("orders", b"%d" % number)
            with pytest.raises(InvalidTxnStateError, match="open already"):
                producer.transaction()
            if number == 2:
                txn.abort()
            else:
                txn.commit()
        assert committed(logs) == [b"0", b"1", b"3"]
        assert producer.identity == ProducerIdentity(FIRST_PRODUCER_ID, 3)


def test_a_producer_that_was_replaced_does_not_come_back(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        first = logs.transactional_producer("shop")
        with first.transaction() as txn:
            txn.append("orders", b"0")
        second = logs.transactional_producer("shop")
        with pytest.raises(ProducerFencedError):
            first.transaction()
        with second.transaction() as txn:
            txn.append("orders", b"1")
        assert committed(logs) == [b"0", b"1"]


def test_a_durable_commit_is_flushed(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        with logs.transaction("shop", flush=True) as txn:
            txn.append("orders", b"0")
        log = logs.partition("orders", 0)
        assert log.recovery_point == log.log_end_offset == 2
        assert logs.partition("__transaction_state", 0).recovery_point >= 3  # up to the decision


# -- the coordinator's record


def test_steps_are_those_of_a_real_broker(
    tmp_path: Path, golden: Callable[[str], GoldenCase]
) -> None:
    """`tx-f` of the golden broker: begin, be fenced by another instance, commit."""
    with open_logs(tmp_path) as logs:
        logs.create_topic("txn-fenced")
        first = logs.transaction("tx-f")
        first.append("txn-fenced", b"0").result()
        with logs.transaction("tx-f") as second:
            second.append("txn-fenced", b"1")
        ours = [step[2:] for step in history(logs)]
    view = stratalog.open_dirs(golden("_logdir-run1").root).partition("__transaction_state", 0)
    theirs = [
        (state.producer_epoch, state.status.name, state.partitions)
        for record in view.read()
        if read_transactional_id(record.key or b"") == "tx-f"
        for state in [read_transaction_state(record.value or b"")]
    ]
    assert ours == theirs
    assert [step[:2] for step in ours] == [
        (0, "EMPTY"),
        (0, "ONGOING"),
        (1, "PREPARE_ABORT"),
        (1, "COMPLETE_ABORT"),
        (2, "EMPTY"),
        (2, "ONGOING"),
        (2, "PREPARE_COMMIT"),
        (2, "COMPLETE_COMMIT"),
    ]


def test_ids_of_a_real_broker_go_on(tmp_path: Path, golden: Callable[[str], GoldenCase]) -> None:
    source = golden("_logdir-run1").root / "__transaction_state-0"
    shutil.copytree(source, tmp_path / "data" / "__transaction_state-0")
    for path in (tmp_path / "data").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (tmp_path / "data" / ".kafka_cleanshutdown").touch()
    with open_logs(tmp_path / "data", transaction_state_log_num_partitions=50) as logs:
        [left_open] = logs.open_transactions()
        assert left_open.transactional_id == "tx-a"
        assert left_open.partitions == (TopicPartition("txn", 0),)
        producer = logs.transactional_producer("tx-f")
        assert producer.identity == ProducerIdentity(9, 3)
        assert logs.transactional_producer("new").identity.producer_id == FIRST_PRODUCER_ID
        assert logs.abort_transaction("tx-a")  # of a topic that is not here
        assert logs.open_transactions() == []


def test_the_topic_is_kafkas(tmp_path: Path) -> None:
    with open_logs(tmp_path, transaction_state_log_num_partitions=50) as logs:
        with logs.transaction("shop") as txn:
            txn.append("orders", b"0")
        topic = logs.topic("__transaction_state")
        assert topic.is_internal
        assert topic.partition_count == 50
        assert topic.config.is_compacted
        assert topic.config.segment_bytes == 104_857_600
        used = [
            log.topic_partition.partition
            for log in logs.partitions_of(topic.name)
            if log.log_end_offset
        ]
        assert used == [java_abs(java_hash("shop")) % 50]


@pytest.mark.parametrize(
    ("text", "hashed"),
    [
        ("", 0),
        ("abc", 96354),
        ("polygenelubricants", -2147483648),
        ("ä😀", (0xE4 * 31 + 0xD83D) * 31 + 0xDE00),  # two units for the second character
    ],
)
def test_java_hash(text: str, hashed: int) -> None:
    assert java_hash(text) == hashed


def test_java_abs() -> None:
    assert [java_abs(value) for value in (-(1 << 31), -5, 5)] == [0, 5, 5]


# -- fencing


def test_a_second_producer_fences_the_first(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        first = logs.transaction("shop")
        first.append("orders", b"first").result()
        with logs.transaction("shop") as second:
            second.append("orders", b"second")
        with pytest.raises(InvalidProducerEpochError):
            first.append("orders", b"late").result()
        with pytest.raises(ProducerFencedError):
            first.abort()
        assert committed(logs) == [b"second"]


def test_a_fenced_producer_gets_into_no_other_partition(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        first = logs.transaction("shop")
        first.append("orders", b"first").result()
        logs.transactional_producer("shop")
        with pytest.raises(ProducerFencedError) as fenced:
            first.append("stock", b"late").result()
        assert fenced.value.code == 90
        assert logs.partition("stock", 0).log_end_offset == 0


def test_epochs_go_on_after_a_restart(tmp_path: Path) -> None:
    identities = []
    for _ in range(3):
        with open_logs(tmp_path) as logs:
            identities.append(logs.transactional_producer("shop").identity)
    assert identities == [ProducerIdentity(FIRST_PRODUCER_ID, epoch) for epoch in range(3)]


def test_other_ids_are_not_concerned(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        with logs.transaction("a") as one, logs.transaction("b") as other:
            one.append("orders", b"a")
            other.append("orders", b"b")
        assert sorted(filter(None, committed(logs))) == [b"a", b"b"]


def test_when_epochs_are_used_up_the_producer_id_changes(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.transactional_producer("shop")
        states = logs._coordinator._states
        state = states.find("shop")
        assert state is not None
        states.write("shop", state._replace(producer_epoch=32766))
        producer = logs.transactional_producer("shop")
        assert producer.identity == ProducerIdentity(FIRST_PRODUCER_ID + 1, 0)
        states.write("shop", state._replace(producer_epoch=32765))
        txn = logs.transactional_producer("shop").transaction()
        txn.append("orders", b"x").result()
        assert logs.abort_transaction("shop")  # with the epoch that is kept for it, 32767
        assert [step[2] for step in history(logs)][-1] == 32767


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeouts_that_kafka_refuses(tmp_path: Path, timeout_ms: int) -> None:
    with open_logs(tmp_path) as logs:
        with pytest.raises(InvalidTransactionTimeoutError) as refusal:
            logs.transaction("shop", timeout_ms=timeout_ms)
        assert refusal.value.code == 50
        with pytest.raises(InvalidNameError):
            logs.transaction("")


def test_a_transaction_that_takes_too_long_is_aborted(tmp_path: Path) -> None:
    clock = Clock()
    with open_logs(tmp_path, clock=clock) as logs:
        txn = logs.transaction("shop", timeout_ms=30_000)
        txn.append("orders", b"slow").result()
        clock.advance(30_000)
        logs.run_due_tasks()
        assert len(logs.open_transactions()) == 1
        clock.advance(10_000)
        logs.run_due_tasks()
        assert logs.open_transactions() == []
        assert logs.partition("orders", 0).last_stable_offset == 2
        with pytest.raises(ProducerFencedError):
            txn.commit()


def test_ids_that_nobody_uses_are_forgotten(tmp_path: Path) -> None:
    clock = Clock()
    with open_logs(tmp_path, clock=clock, transactional_id_expiration_ms=7_200_000) as logs:
        with logs.transaction("shop") as txn:
            txn.append("orders", b"x")
        open_one = logs.transaction("open")
        open_one.append("orders", b"x").result()
        clock.advance(7_200_000)
        logs._coordinator.forget_idle()
        assert logs._coordinator._states.find("shop") is None
        assert logs._coordinator._states.find("open") is not None
        kill(logs)
    with open_logs(tmp_path, clock=clock) as logs:
        assert logs.transactional_producer("shop").identity.producer_epoch == 0


# -- what a crash leaves


def test_an_open_transaction_is_aborted_by_the_next_of_its_id(tmp_path: Path) -> None:
    logs = open_logs(tmp_path)
    logs.create_topic("orders", 2)
    txn = logs.transaction("shop")
    txn.append("orders", b"0", partition=0).result()
    txn.append("orders", b"1", partition=1).result()
    kill(logs)
    with open_logs(tmp_path) as logs:
        [left] = logs.open_transactions()
        assert left.transactional_id == "shop"
        assert left.partitions == (TopicPartition("orders", 0), TopicPartition("orders", 1))
        assert (left.since_ms, left.is_decided) == (NOW_MS, False)
        assert logs.partition("orders", 0).last_stable_offset == 0
        with logs.transaction("shop") as txn:
            txn.append("orders", b"2", partition=1)
        assert committed(logs, partition=0) == []
        assert committed(logs, partition=1) == [b"2"]
        assert logs.partition("orders", 0).last_stable_offset == 2


def test_an_open_transaction_is_aborted_on_demand(tmp_path: Path) -> None:
    logs = open_logs(tmp_path)
    logs.transaction("shop").append("orders", b"0").result()
    kill(logs)
    with open_logs(tmp_path) as logs:
        assert logs.abort_transaction("shop")
        assert not logs.abort_transaction("shop")
        assert not logs.abort_transaction("nobody")
        log = logs.partition("orders", 0)
        assert log.last_stable_offset == log.log_end_offset == 2


@pytest.mark.parametrize("commit", [True, False])
def test_a_decided_transaction_is_finished_by_the_next_open(tmp_path: Path, commit: bool) -> None:
    """The decision is written, and one of two markers; then the process dies."""
    logs = open_logs(tmp_path)
    logs.create_topic("orders", 2)
    txn = logs.transaction("shop")
    for partition in range(2):
        txn.append("orders", b"x", partition=partition).result()
    coordinator = logs._coordinator
    state = coordinator._states.find("shop")
    assert state is not None
    decided = coordinator._decide("shop", state, commit=commit)
    logs.partition("orders", 0).end_transaction(
        decided.producer_id, decided.producer_epoch, commit=commit
    )
    kill(logs)
    with open_logs(tmp_path) as logs:
        assert logs.open_transactions() == []
        for partition in range(2):
            assert committed(logs, partition=partition) == ([b"x"] if commit else [])
            log = logs.partition("orders", partition)
            assert log.last_stable_offset == log.log_end_offset


def test_a_transaction_whose_state_was_lost_is_aborted(tmp_path: Path) -> None:
    """Power fails: the data reached the disk, the coordinator's record of it did not."""
    logs = open_logs(tmp_path)
    with logs.transaction("shop") as txn:
        txn.append("orders", b"whole")
    logs.transaction("shop").append("orders", b"half").result()
    kill(logs)
    path = tmp_path / "__transaction_state-0" / "00000000000000000000.log"
    batches = batches_of(path.read_bytes())
    path.write_bytes(path.read_bytes()[: batches[-2].position])  # without its begin
    with open_logs(tmp_path) as logs:
        log = logs.partition("orders", 0)
        assert log.last_stable_offset == log.log_end_offset == 4
        assert committed(logs) == [b"whole"]
        with logs.transaction("shop") as txn:
            txn.append("orders", b"next")
        assert committed(logs) == [b"whole", b"next"]


def test_transactions_of_others_are_left_alone(
    tmp_path: Path, golden: Callable[[str], GoldenCase]
) -> None:
    """A real broker's partition with a transaction open, and no coordinator's topic beside it."""
    shutil.copytree(golden("txn").partition_dir, tmp_path / "data" / "txn-0")
    for path in (tmp_path / "data").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    with open_logs(tmp_path / "data") as logs:
        log = logs.partition("txn", 0)
        assert log.log_end_offset == 137
        assert log.last_stable_offset < 137


def test_a_marker_that_fails_is_written_later(tmp_path: Path) -> None:
    faulty = FaultyDisk()
    with open_logs(tmp_path, disk=faulty.disk) as logs:
        logs.create_topic("orders", 2)
        txn = logs.transaction("shop")
        for partition in range(2):
            txn.append("orders", b"x", partition=partition).result()
        faulty.fail_next(skip=1)  # the decision, then the first marker
        with pytest.raises(StorageError):
            txn.commit()
        [left] = logs.open_transactions()
        assert left.is_decided
        assert committed(logs, partition=1) == [b"x"]  # the other marker is there
        logs._coordinator.end_overdue()
        assert logs.open_transactions() == []
        assert committed(logs, partition=0) == [b"x"]


def test_closing_aborts_what_is_open(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.transaction("shop").append("orders", b"0").result()
    with open_logs(tmp_path) as logs:
        assert logs.open_transactions() == []
        assert committed(logs) == []
        assert logs.partition("orders", 0).last_stable_offset == 2


def test_status_names_are_those_of_kafka() -> None:
    assert TransactionStatus.PREPARE_COMMIT.kafka_name == "PrepareCommit"
