"""Opening and closing log directories: markers, checkpoints, recovery, and what is refused."""

from __future__ import annotations

import shutil
import threading
import time
from typing import TYPE_CHECKING

import pytest

import stratalog
from stratalog.config import BrokerConfig
from stratalog.errors import (
    ConfigError,
    CorruptCheckpointError,
    InconsistentLogDirsError,
    InvalidNameError,
    LogOfflineError,
    NotALogDirError,
    StorageError,
)
from stratalog.format.checkpoint import decode_offsets
from stratalog.log_dir import LogDir
from tests.disks import FaultyDisk
from tests.opening import Clock, kill, open_logs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.golden.cases import GoldenCase

MARKER = ".kafka_cleanshutdown"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANED = "cleaner-offset-checkpoint"
SMALL_SEGMENTS = {"segment.bytes": 200}


def offsets_in(path: Path) -> dict[str, int]:
    return {str(tp): offset for tp, offset in decode_offsets(path.read_bytes()).items()}


def values_of(logs: LogDir, topic: str = "orders", partition: int = 0) -> list[bytes | None]:
    return [record.value for record in logs.partition(topic, partition).read()]


# -- which directories


def test_directories_are_made(tmp_path: Path) -> None:
    with open_logs(tmp_path / "not" / "there" / "yet") as logs:
        logs.append("orders", b"x")
    assert (tmp_path / "not" / "there" / "yet" / "orders-0").is_dir()
    with pytest.raises(NotALogDirError, match="no such directory"):
        LogDir.open(tmp_path / "other", create=False)
    assert not (tmp_path / "other").exists()


def test_directories_from_the_config(tmp_path: Path) -> None:
    properties = tmp_path / "server.properties"
    properties.write_text(f"log.dirs={tmp_path}/1,{tmp_path}/2\nnum.partitions=2\nprocess.roles=x")
    with LogDir.open(config=properties) as logs:
        assert logs.paths == [tmp_path / "1", tmp_path / "2"]
        assert logs.create_topic("orders").partition_count == 2
    with LogDir.open(tmp_path / "3", config=BrokerConfig(num_partitions=5)) as logs:
        assert logs.paths == [tmp_path / "3"]
        assert logs.config.num_partitions == 5
    with pytest.raises(ConfigError, match=r"num\.partition"):
        LogDir.open(tmp_path / "3", config={"num.partition": 1})


def test_some_directory_has_to_be_given(tmp_path: Path) -> None:
    with pytest.raises(NotALogDirError, match="no log directory given"):
        LogDir.open()
    with pytest.raises(InconsistentLogDirsError, match="twice"):
        LogDir.open(tmp_path, tmp_path / "x" / "..")


@pytest.mark.parametrize("name", ["stranger", "a-b", "orders-1.x-delete-", "bad name-0"])
def test_strangers_stop_a_writer_and_nothing_changes(tmp_path: Path, name: str) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders")
    (tmp_path / name).mkdir()
    with pytest.raises(InvalidNameError, match=f"not in the form topic-partition: '{name}'"):
        open_logs(tmp_path)
    assert (tmp_path / MARKER).exists()
    (tmp_path / name).rmdir()
    open_logs(tmp_path).close()


def test_other_files_and_kafkas_own_directories_are_left_alone(tmp_path: Path) -> None:
    for name in ("remote-log-index-cache", "__cluster_metadata-0", "orders-0.a-stray"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "bootstrap.checkpoint").write_bytes(b"x")
    before = sorted(tmp_path.iterdir())
    with open_logs(tmp_path) as logs:
        assert not logs.topics
    assert set(before) <= set(tmp_path.iterdir())


def test_a_partition_is_no_log_directory(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders")
    with pytest.raises(NotALogDirError, match="use its parent directory"):
        open_logs(tmp_path / "orders-0")


def test_a_partition_has_one_place(tmp_path: Path) -> None:
    with open_logs(tmp_path / "1") as logs:
        logs.create_topic("orders")
    shutil.copytree(tmp_path / "1", tmp_path / "2")
    with pytest.raises(InconsistentLogDirsError, match="orders-0 is in both"):
        open_logs(tmp_path / "1", tmp_path / "2")
    assert (tmp_path / "1" / MARKER).exists()


def test_directories_of_two_clusters(tmp_path: Path) -> None:
    for name, cluster in (("1", "a"), ("2", "b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "meta.properties").write_text(
            f"version=1\nnode.id=1\ncluster.id={cluster}\n"
        )
    with pytest.raises(InconsistentLogDirsError, match=r"cluster a, .* cluster b"):
        open_logs(tmp_path / "1", tmp_path / "2")
    (tmp_path / "2" / "meta.properties").write_text("version=1\n")
    with pytest.raises(CorruptCheckpointError) as damage:
        open_logs(tmp_path / "2")
    assert damage.value.path == tmp_path / "2" / "meta.properties"


def test_no_meta_properties_are_made_up(tmp_path: Path) -> None:
    """A broker refuses a directory of another cluster, and formats one that belongs to none."""
    with open_logs(tmp_path) as logs:
        logs.append("orders", b"x")
    assert not (tmp_path / "meta.properties").exists()


# -- a clean stop


def test_files_after_a_clean_stop(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 2)
        for number in range(5):
            logs.append("orders", b"%d" % number, partition=1)
        logs.delete_records("orders", 1, 2)
        assert not (tmp_path / MARKER).exists()
    assert (tmp_path / MARKER).read_bytes() == b'{"version":0,"brokerEpoch":-1}'
    assert offsets_in(tmp_path / RECOVERY_POINTS) == {"orders-0": 0, "orders-1": 5}
    assert offsets_in(tmp_path / HIGH_WATERMARKS) == {"orders-0": 0, "orders-1": 5}
    assert offsets_in(tmp_path / LOG_STARTS) == {"orders-1": 2}
    assert (tmp_path / "orders-1" / "00000000000000000005.snapshot").exists()
    with open_logs(tmp_path) as logs:
        assert values_of(logs, partition=1) == [b"2", b"3", b"4"]


def test_partitions_that_nobody_used_keep_their_checkpoints(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.append("orders", b"x")
        logs.append("others", b"x")
    with open_logs(tmp_path) as logs:
        logs.append("orders", b"x")
        assert logs._catalog.slots()[1].loaded is None
    assert offsets_in(tmp_path / RECOVERY_POINTS) == {"orders-0": 2, "others-0": 1}
    assert (tmp_path / MARKER).exists()


def test_a_brokers_epoch_is_handed_on(tmp_path: Path) -> None:
    (tmp_path / MARKER).write_bytes(b'{"version":0,"brokerEpoch":41}')
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders")
        assert not (tmp_path / MARKER).exists()
    assert (tmp_path / MARKER).read_bytes() == b'{"version":0,"brokerEpoch":41}'
    (tmp_path / MARKER).write_bytes(b"nonsense")
    with open_logs(tmp_path) as logs:
        assert logs._catalog.roots[0].last_shutdown.was_clean
    (tmp_path / MARKER).unlink()
    open_logs(tmp_path).close()
    assert (tmp_path / MARKER).read_bytes() == b'{"version":0,"brokerEpoch":-1}'


def test_closing_twice_is_fine_and_nothing_works_afterwards(tmp_path: Path) -> None:
    logs = open_logs(tmp_path)
    logs.create_topic("orders")
    log = logs.partition("orders", 0)
    logs.close()
    logs.close()
    with pytest.raises(LogOfflineError):
        log.flush()
    for action in (
        lambda: logs.append("orders", b"x"),
        lambda: logs.partition("orders", 0),
        lambda: logs.create_topic("more"),
        lambda: logs.delete_topic("orders"),
        lambda: logs.alter_config("orders", {}),
    ):
        with pytest.raises(LogOfflineError):
            action()


def test_what_a_kafka_broker_left_can_be_written(
    tmp_path: Path, golden: Callable[[str], GoldenCase]
) -> None:
    """A directory of a real broker, with its checkpoints and its internal topics."""
    case = golden("_logdir-run1")
    shutil.copytree(
        case.root, tmp_path / "data", ignore=shutil.ignore_patterns("*.dumps", "*.json")
    )
    for path in (tmp_path / "data").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    before = (tmp_path / "data" / "meta.properties").read_bytes()
    with open_logs(tmp_path / "data") as logs:
        assert set(logs.topics) == {"__consumer_offsets", "__transaction_state"}
        assert logs.topic("__transaction_state").is_internal
        assert logs.partition("__transaction_state", 0).log_end_offset == 103
        logs.create_topic("orders", 1, create_in_broker_dir=True)
        logs.append("orders", b"x")
    assert (tmp_path / "data" / "meta.properties").read_bytes() == before
    assert offsets_in(tmp_path / "data" / RECOVERY_POINTS) == {
        "__consumer_offsets-0": 0,
        "__transaction_state-0": 103,
        "orders-0": 1,
    }


# -- an unclean one


def test_records_survive_a_kill(tmp_path: Path) -> None:
    logs = open_logs(tmp_path)
    logs.create_topic("orders", 1, config=SMALL_SEGMENTS, create_in_broker_dir=True)
    written = [b"%d" % number for number in range(20)]
    for value in written:
        logs.append("orders", value)
    kill(logs)
    with open_logs(tmp_path) as logs:
        assert values_of(logs) == written
        assert logs.append("orders", b"more").offset == 20


def test_a_torn_tail_is_cut(tmp_path: Path) -> None:
    logs = open_logs(tmp_path)
    logs.append("orders", b"whole")
    kill(logs)
    with (tmp_path / "orders-0" / "00000000000000000000.log").open("ab") as file:
        file.write(b"\0\0\0\0\0\0\0\1\0\0")
    with open_logs(tmp_path) as logs:
        assert values_of(logs) == [b"whole"]
        assert logs.append("orders", b"next").offset == 1


def test_after_an_unclean_stop_all_partitions_are_recovered(tmp_path: Path) -> None:
    logs = open_logs(tmp_path / "1", tmp_path / "2", num_recovery_threads_per_data_dir=2)
    logs.create_topic("orders", 8)
    kill(logs)
    with open_logs(tmp_path / "1", tmp_path / "2") as logs:
        assert all(slot.loaded is not None for slot in logs._catalog.slots())
    with open_logs(tmp_path / "1", tmp_path / "2") as logs:
        assert all(slot.loaded is None for slot in logs._catalog.slots())


def test_one_directory_may_be_clean_and_the_other_not(tmp_path: Path) -> None:
    with open_logs(tmp_path / "1", tmp_path / "2") as logs:
        logs.create_topic("orders", 2)
    (tmp_path / "2" / MARKER).unlink()
    with open_logs(tmp_path / "1", tmp_path / "2") as logs:
        loaded = {
            str(slot.topic_partition): slot.loaded is not None for slot in logs._catalog.slots()
        }
        assert loaded == {"orders-0": False, "orders-1": True}
    assert (tmp_path / "2" / MARKER).exists()


@pytest.mark.parametrize("damage", [b"", b"0\n9\n", b"x", b"\xff" * 9])
def test_unreadable_checkpoints_are_as_good_as_none(tmp_path: Path, damage: bytes) -> None:
    logs = open_logs(tmp_path)
    logs.create_topic("orders", config=SMALL_SEGMENTS)
    for number in range(9):
        logs.append("orders", b"%d" % number)
    logs.checkpoint()
    kill(logs)
    for name in (RECOVERY_POINTS, LOG_STARTS, HIGH_WATERMARKS):
        (tmp_path / name).write_bytes(damage)
    with open_logs(tmp_path) as logs:
        assert len(values_of(logs)) == 9


# -- checkpoints


def test_checkpoints_come_by_the_clock(tmp_path: Path) -> None:
    clock = Clock()
    with open_logs(tmp_path, clock=clock) as logs:
        logs.append("orders", b"x")
        logs.append("orders", b"y")
        logs.delete_records("orders", 0, 1)
        logs.flush()
        clock.advance(5_000)
        assert logs.run_pending_tasks() > 0
        assert offsets_in(tmp_path / HIGH_WATERMARKS) == {"orders-0": 2}
        assert not (tmp_path / RECOVERY_POINTS).exists()
        clock.advance(25_000)
        logs.run_pending_tasks()
        assert offsets_in(tmp_path / RECOVERY_POINTS) == {"orders-0": 2}
        assert offsets_in(tmp_path / LOG_STARTS) == {"orders-0": 1}
        kill(logs)


def test_checkpoints_on_demand_and_by_a_thread(tmp_path: Path) -> None:
    properties = {
        "log.initial.task.delay.ms": 0,
        "log.flush.offset.checkpoint.interval.ms": 20,
        "replica.high.watermark.checkpoint.interval.ms": 20,
    }
    with LogDir.open(tmp_path, config=properties) as logs:
        logs.append("orders", b"x")
        logs.flush()
        logs.checkpoint()
        assert offsets_in(tmp_path / RECOVERY_POINTS) == {"orders-0": 1}
        logs.append("orders", b"y")
        logs.flush()
        deadline = time.monotonic() + 60
        while offsets_in(tmp_path / RECOVERY_POINTS) != {"orders-0": 2}:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_flush_by_the_clock(tmp_path: Path) -> None:
    clock = Clock()
    with open_logs(tmp_path, clock=clock, log_flush_scheduler_interval_ms=1000) as logs:
        logs.create_topic("orders", config={"flush.ms": 2000})
        logs.append("orders", b"x")
        log = logs.partition("orders", 0)
        clock.advance(1000)
        logs.run_pending_tasks()
        assert log.recovery_point == 0
        clock.advance(1000)
        logs.run_pending_tasks()
        assert log.recovery_point == 1


def test_a_topic_does_not_inherit_the_checkpoints_of_its_namesake(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        for number in range(9):
            logs.append("orders", b"%d" % number)
        logs.delete_records("orders", 0, 5)
    # Gone without our knowing, by a broker's hand.
    shutil.rmtree(tmp_path / "orders-0")
    logs = open_logs(tmp_path)
    for number in range(3):
        logs.append("orders", b"%d" % number)
    kill(logs)
    with open_logs(tmp_path) as logs:
        log = logs.partition("orders", 0)
        assert (log.log_start_offset, log.log_end_offset) == (0, 3)


# -- failures


def test_a_log_that_failed_is_opened_again_by_its_next_use(tmp_path: Path) -> None:
    faulty = FaultyDisk()
    with open_logs(tmp_path, disk=faulty.disk) as logs:
        logs.append("orders", b"0")
        log = logs.partition("orders", 0)
        faulty.fail_next()
        with pytest.raises(StorageError, match="cannot truncate"):
            log.roll()
        with pytest.raises(LogOfflineError):
            log.flush()
        assert logs.append("orders", b"1").offset == 1
        assert values_of(logs) == [b"0", b"1"]
    assert (tmp_path / MARKER).exists()


def test_a_log_closed_by_hand_is_opened_again_by_its_next_use(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.append("orders", b"0")
        with logs.partition("orders", 0) as log:
            assert [record.value for record in log.read()] == [b"0"]
        assert logs.append("orders", b"1").offset == 1
        logs.partition("orders", 0).close()
    assert (tmp_path / MARKER).exists()


def test_a_stop_is_clean_only_if_all_could_be_written(tmp_path: Path) -> None:
    faulty = FaultyDisk()
    logs = open_logs(tmp_path, disk=faulty.disk)
    logs.append("orders", b"0")
    faulty.fail_next()
    with pytest.raises(StorageError):
        logs.close()
    assert not (tmp_path / MARKER).exists()
    with open_logs(tmp_path) as logs:  # and the lock is free
        assert values_of(logs) == [b"0"]


def test_a_log_that_failed_before_the_end_leaves_no_marker(tmp_path: Path) -> None:
    faulty = FaultyDisk()
    logs = open_logs(tmp_path, disk=faulty.disk)
    logs.append("orders", b"0")
    faulty.fail_next()
    with pytest.raises(StorageError):
        logs.partition("orders", 0).flush()
    with pytest.raises(LogOfflineError, match="offline"):
        logs.close()
    assert not (tmp_path / MARKER).exists()


def test_views_and_writers_see_the_same(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 2)
        logs.append("orders", b"x", key=b"k", headers=[("h", None)], timestamp=1_799_999_999_999)
        written = [list(log.read()) for log in logs.partitions_of("orders")]
    viewed = [list(view.read()) for view in stratalog.open_dirs(tmp_path).partitions_of("orders")]
    assert viewed == written
    assert sum(map(len, written)) == 1


@pytest.mark.usefixtures("impatient")
def test_producers_are_created_while_others_flush(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        kept: list[object] = []

        def create() -> None:
            kept.extend(logs.producer() for _ in range(1000))

        thread = threading.Thread(target=create)
        thread.start()
        while thread.is_alive():
            logs.flush()
        thread.join()
        assert len(kept) == 1000
