"""Deleting topics: gone at once, removed after the delay, whoever is there to do it."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import stratalog
from stratalog.errors import (
    InvalidTopicError,
    LogOfflineError,
    StorageError,
    StratalogError,
    TopicDeletionDisabledError,
    UnknownTopicOrPartitionError,
)
from stratalog.format.checkpoint import decode_offsets, encode_offsets
from stratalog.format.names import TopicPartition
from tests.disks import FaultyDisk
from tests.opening import Clock, kill, open_logs

if TYPE_CHECKING:
    from pathlib import Path

DELAY_MS = 60_000


def dirs_in(path: Path) -> list[str]:
    return sorted(child.name for child in path.iterdir() if child.is_dir())


def test_a_deleted_topic_is_renamed_and_later_removed(tmp_path: Path) -> None:
    clock = Clock()
    with open_logs(tmp_path, clock=clock) as logs:
        logs.create_topic("orders", 2)
        logs.create_topic("others")
        logs.delete_topic("orders")
        assert list(logs.topics) == ["others"]
        names = dirs_in(tmp_path)
        assert len(names) == 3
        for name, number in zip(names, (0, 1), strict=False):
            assert re.fullmatch(rf"orders-{number}\.[0-9a-f]{{32}}-delete", name)
        clock.advance(DELAY_MS - 1)
        logs.run_pending_tasks()
        assert len(dirs_in(tmp_path)) == 3
        clock.advance(DELAY_MS)
        logs.run_pending_tasks()
        assert dirs_in(tmp_path) == ["others-0"]


def test_readers_may_finish(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.append("orders", b"0")
        with stratalog.open_dirs(tmp_path).partition("orders", 0) as view:
            records = view.read()
            assert next(records).value == b"0"
            logs.delete_topic("orders")
            assert list(records) == []


def test_a_deleted_log_takes_no_more(tmp_path: Path) -> None:
    with open_logs(tmp_path, auto_create_topics_enable=False) as logs:
        logs.create_topic("orders")
        log = logs.partition("orders", 0)
        logs.delete_topic("orders")
        with pytest.raises(LogOfflineError):
            log.roll()
        with pytest.raises(UnknownTopicOrPartitionError):
            logs.append("orders", b"x")
        with pytest.raises(UnknownTopicOrPartitionError):
            logs.delete_topic("orders")


def test_the_delay_goes_on_while_nobody_is_there(tmp_path: Path) -> None:
    clock = Clock()
    with open_logs(tmp_path, clock=clock) as logs:
        logs.create_topic("orders")
        logs.delete_topic("orders")
    clock.advance(DELAY_MS // 2)
    with open_logs(tmp_path, clock=clock) as logs:
        logs.run_pending_tasks()
    assert len(dirs_in(tmp_path)) == 1
    clock.advance(DELAY_MS // 2)
    with open_logs(tmp_path, clock=clock) as logs:
        assert not logs.topics
    assert dirs_in(tmp_path) == []


def test_the_delay_is_configured(tmp_path: Path) -> None:
    clock = Clock()
    with open_logs(tmp_path, clock=clock, log_segment_delete_delay_ms=0) as logs:
        logs.create_topic("orders")
        logs.delete_topic("orders")
        clock.advance(1000)
        logs.run_pending_tasks()
        assert dirs_in(tmp_path) == []


def test_what_a_broker_has_marked_is_removed(tmp_path: Path) -> None:
    clock = Clock()
    name = "orders-0.0123456789abcdef0123456789abcdef-delete"
    (tmp_path / name).mkdir()
    (tmp_path / name / "00000000000000000000.log").write_bytes(b"x")
    with open_logs(tmp_path, clock=clock) as logs:
        clock.advance(DELAY_MS)
        logs.run_pending_tasks()
        assert dirs_in(tmp_path) == []


def test_a_topic_can_be_made_again(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        old = logs.create_topic("orders", config={"retention.ms": 1})
        for number in range(5):
            logs.append("orders", b"%d" % number)
        logs.delete_records("orders", 0, 3)
        logs.checkpoint()
        (tmp_path / "cleaner-offset-checkpoint").write_bytes(
            encode_offsets({TopicPartition("orders", 0): 4, TopicPartition("others", 0): 1})
        )
        logs.delete_topic("orders")
        new = logs.create_topic("orders")
        assert new.topic_id != old.topic_id
        assert new.overrides == {}
        assert logs.append("orders", b"new").offset == 0
        kill(logs)
    with open_logs(tmp_path) as logs:
        log = logs.partition("orders", 0)
        assert [record.value for record in log.read()] == [b"new"]
        assert logs.topic("orders") == new
    cleaned = decode_offsets((tmp_path / "cleaner-offset-checkpoint").read_bytes())
    assert cleaned == {TopicPartition("others", 0): 1}


def test_deletion_may_be_forbidden(tmp_path: Path) -> None:
    with open_logs(tmp_path, delete_topic_enable="false") as logs:
        logs.create_topic("orders")
        with pytest.raises(TopicDeletionDisabledError) as refusal:
            logs.delete_topic("orders")
        assert refusal.value.code == 73


def test_internal_topics_stay(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        with logs.transaction("x") as txn:
            txn.append("orders", b"x")
        with pytest.raises(InvalidTopicError):
            logs.delete_topic("__transaction_state")
        with pytest.raises(InvalidTopicError):
            logs.append("__transaction_state", b"x")


def test_a_deletion_that_failed_can_be_tried_again(tmp_path: Path) -> None:
    faulty = FaultyDisk()
    with open_logs(tmp_path, disk=faulty.disk) as logs:
        for name in ("probe", "orders"):
            logs.create_topic(name, 3)
        start = len(faulty.history)
        logs.delete_topic("probe")
        calls = faulty.history[start:]
        # The note, then a partition each: the second partition cannot be renamed.
        second = [index for index, name in enumerate(calls) if name == "rename"][2]
        faulty.fail_next(skip=second)
        with pytest.raises(StorageError):
            logs.delete_topic("orders")
        assert "orders" in logs.topics
        logs.delete_topic("orders")
        assert "orders" not in logs.topics
        assert [name for name in dirs_in(tmp_path) if not name.endswith("-delete")] == []


@pytest.mark.slow
def test_what_is_acknowledged_after_a_deletion_that_failed_survives(tmp_path: Path) -> None:
    """Once the deletion is on disk the next writer completes it: nothing may be appended then."""
    calls = _calls_of_a_deletion(tmp_path / "probe")
    refused = 0
    for at in range(calls):
        dirs = [tmp_path / f"{at}-{name}" for name in "ab"]
        faulty = FaultyDisk()
        logs = open_logs(*dirs, disk=faulty.disk)
        logs.create_topic("orders", 3)
        faulty.fail_next(skip=at)
        with suppress(StratalogError):
            logs.delete_topic("orders")
        acknowledged = set()
        for partition in range(3):
            with suppress(StratalogError):
                logs.append("orders", b"after", partition=partition)
                acknowledged.add(partition)
        refused += "orders" in logs.topics and not acknowledged
        kill(logs)
        with open_logs(*dirs) as again:
            for partition in acknowledged:
                (record,) = again.partition("orders", partition).read()
                assert record.value == b"after"
    assert refused


def _calls_of_a_deletion(path: Path) -> int:
    faulty = FaultyDisk()
    with open_logs(path / "a", path / "b", disk=faulty.disk) as logs:
        logs.create_topic("orders", 3)
        start = len(faulty.history)
        logs.delete_topic("orders")
        return len(faulty.history) - start
