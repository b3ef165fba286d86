"""Who may write under a transactional id: epochs, fencing, timeouts and expiry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.errors import (
    InvalidNameError,
    InvalidProducerEpochError,
    InvalidTransactionTimeoutError,
    ProducerFencedError,
)
from stratalog.partitions.saved_state import FIRST_PRODUCER_ID
from stratalog.producing.transaction_log import ProducerIdentity
from tests.opening import Clock, kill, open_logs
from tests.producing.transaction_history import committed, history

if TYPE_CHECKING:
    from pathlib import Path


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
        logs.run_pending_tasks()
        assert len(logs.open_transactions()) == 1
        clock.advance(10_000)
        logs.run_pending_tasks()
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
        logs._coordinator.expire_transactional_ids()
        assert logs._coordinator._states.find("shop") is None
        assert logs._coordinator._states.find("open") is not None
        kill(logs)
    with open_logs(tmp_path, clock=clock) as logs:
        assert logs.transactional_producer("shop").identity.producer_epoch == 0
