"""Transactions: all or nothing, and Kafka's own record of them."""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import stratalog
from stratalog.errors import (
    InvalidTxnStateError,
    MessageTooLargeError,
    ProducerFencedError,
)
from stratalog.format.messages.transaction_records import (
    TransactionStatus,
    read_transaction_state,
    read_transactional_id,
)
from stratalog.format.names import TopicPartition
from stratalog.partitions.saved_state import FIRST_PRODUCER_ID
from stratalog.producing.transaction_log import ProducerIdentity, java_abs, java_hash
from tests.opening import open_logs
from tests.producing.transaction_history import committed, history

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.golden.cases import GoldenCase

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
        with pytest.raises(stratalog.errors.InvalidRecordError):
            txn.commit()
        assert committed(logs) == []
        assert logs.open_transactions() == []


def test_after_a_failed_batch_a_transaction_can_only_be_aborted(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("small", config={"cleanup.policy": "compact"})
        txn = logs.transaction("shop")
        with pytest.raises(stratalog.errors.AppendError):
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
            with pytest.raises(InvalidTxnStateError, match="already has an open"):
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
    meta = "version=1\ncluster.id=c\nnode.id=1\n"  # without it, an overdue transaction is aborted
    (tmp_path / "data" / "meta.properties").write_text(meta)
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


def test_status_names_are_those_of_kafka() -> None:
    assert TransactionStatus.PREPARE_COMMIT.kafka_name == "PrepareCommit"
