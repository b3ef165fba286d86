"""How transactions end that nobody has ended: after a crash, on demand, at closing."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import CorruptError, StorageError
from stratalog.format.names import TopicPartition
from stratalog.producing import transaction_log
from tests.disks import FaultyDisk
from tests.log.building import batches_of
from tests.opening import NOW_MS, Clock, kill, open_logs
from tests.producing.transaction_history import committed

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.golden.cases import GoldenCase


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
        logs._coordinator.abort_timed_out()
        assert logs.open_transactions() == []
        assert committed(logs, partition=0) == [b"x"]


def test_closing_aborts_what_is_open(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.transaction("shop").append("orders", b"0").result()
    with open_logs(tmp_path) as logs:
        assert logs.open_transactions() == []
        assert committed(logs) == []
        assert logs.partition("orders", 0).last_stable_offset == 2


HOURS_MS = 5 * 60 * 60 * 1000


def leave_open(path: Path, clock: Clock, *, partitions: int = 1) -> None:
    """A process dies in the middle of a transaction that may take a minute."""
    logs = open_logs(path, clock=clock, transaction_state_log_num_partitions=partitions)
    logs.transaction("shop", timeout_ms=60_000).append("orders", b"lost").result()
    logs.append("orders", b"later")
    kill(logs)


def test_the_transaction_of_a_dead_process_is_aborted_when_it_is_overdue(tmp_path: Path) -> None:
    clock = Clock()
    leave_open(tmp_path, clock)
    with open_logs(tmp_path, clock=clock) as logs:  # recovers, and closes cleanly
        assert len(logs.open_transactions()) == 1
        assert committed(logs) == []
    clock.advance(HOURS_MS)
    with open_logs(tmp_path, clock=clock) as logs:
        log = logs.partition("orders", 0)
        assert log.last_stable_offset == log.log_end_offset == 3
        assert committed(logs) == [b"later"]
        assert logs.open_transactions() == []


def test_timers_look_at_transactions_that_nobody_asked_about(tmp_path: Path) -> None:
    clock = Clock()
    leave_open(tmp_path, clock)
    open_logs(tmp_path, clock=clock).close()
    with open_logs(tmp_path, clock=clock) as logs:
        log = logs.partition("orders", 0)
        assert log.last_stable_offset == 0
        clock.advance(61_000)
        logs.run_pending_tasks()
        assert log.last_stable_offset == log.log_end_offset == 3


def test_an_overdue_transaction_whose_topic_is_gone(tmp_path: Path) -> None:
    clock = Clock()
    leave_open(tmp_path, clock)
    open_logs(tmp_path, clock=clock).close()
    shutil.rmtree(tmp_path / "orders-0")
    clock.advance(HOURS_MS)
    with open_logs(tmp_path, clock=clock) as logs:
        assert logs.open_transactions() == []
        with logs.transaction("shop") as txn:
            txn.append("orders", b"new")
        assert committed(logs) == [b"new"]


def test_a_transaction_of_a_cluster_is_left_to_its_coordinator(tmp_path: Path) -> None:
    """The directory may hold one of several replicas: an abort marker would make them differ."""
    clock = Clock()
    leave_open(tmp_path, clock)
    state_log = tmp_path / "__transaction_state-0" / "00000000000000000000.log"
    with open_logs(tmp_path, clock=clock) as logs:
        coordinator = logs._coordinator
        state = coordinator._states.find("shop")
        assert state is not None
        coordinator._states.write("shop", state._replace(producer_id=9))
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    clock.advance(HOURS_MS)
    content = state_log.read_bytes()
    with open_logs(tmp_path, clock=clock) as logs:
        assert [left.producer_id for left in logs.open_transactions()] == [9]
        logs.run_pending_tasks()
    assert state_log.read_bytes() == content


def test_empty_partitions_of_the_coordinators_topic_are_not_opened(tmp_path: Path) -> None:
    clock = Clock()
    leave_open(tmp_path, clock, partitions=20)
    open_logs(tmp_path, clock=clock).close()
    with open_logs(tmp_path, clock=clock) as logs:
        opened = [slot for slot in logs._catalog.slots() if slot.loaded is not None]
        assert [slot.topic_partition.topic for slot in opened] == ["__transaction_state"]


def test_a_corrupt_partition_of_the_coordinators_topic_does_not_stop_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    with open_logs(tmp_path, clock=clock, transaction_state_log_num_partitions=2) as logs:
        for transactional_id in ("a", "b"):  # one in each
            with logs.transaction(transactional_id) as txn:
                txn.append("orders", b"x")
    log = tmp_path / "__transaction_state-1" / "00000000000000000000.log"
    log.write_bytes(log.read_bytes()[:20] + b"?" + log.read_bytes()[21:])
    with open_logs(tmp_path, clock=clock) as logs:
        assert "cannot read the transactions of this partition" in caplog.text
        logs.append("orders", b"y")
        with pytest.raises(CorruptError):
            logs.transaction("a")
        with logs.transaction("b") as txn:
            txn.append("orders", b"z")


def test_many_states_are_read_by_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_logs(tmp_path) as logs:
        for name in ("a", "b", "c"):
            with logs.transaction(name) as txn:
                txn.append("orders", b"x")
        logs._coordinator._states.write("b", None)
        log = logs.partition("__transaction_state", 0)
        one_by_one = transaction_log.read_states(log)
        assert sorted(one_by_one) == ["a", "c"]
        monkeypatch.setattr(transaction_log, "_COLUMNS_FROM_BYTES", 0)
        assert transaction_log.read_states(log) == one_by_one
