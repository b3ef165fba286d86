"""How transactions end that nobody has ended: after a crash, on demand, at closing."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import (
    StorageError,
)
from stratalog.format.names import TopicPartition
from tests.disks import FaultyDisk
from tests.log.building import batches_of
from tests.log_dir.opening import NOW_MS, kill, open_logs
from tests.log_dir.transaction_history import committed

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
