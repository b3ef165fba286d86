"""The maintenance service: when it works, on what, and what happens when a part of it fails."""

from __future__ import annotations

import errno
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.errors import LogOfflineError
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log_dir import LogDir
from stratalog.service.health import ServedDirs
from stratalog.service.maintenance import Maintenance
from stratalog.storage.disk import Disk, SystemCalls
from tests.opening import NOW_MS, SMALL, UNSYNCED, Clock, open_logs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from stratalog.service.cleaners import PartitionCleaning
    from stratalog.service.maintenance import MaintenanceState, PartitionState

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
OLD_MS = NOW_MS - 30 * DAY_MS


def fill(logs: LogDir, topic: str, *timestamps: int, partition: int = 0) -> None:
    """A segment for each."""
    log = logs.partition(topic, partition)
    for timestamp in timestamps:
        log.roll()
        log.append(encode_batch([Record(0, timestamp, b"k", b"v")], BatchFields()))


def bases(logs: LogDir, topic: str, partition: int = 0) -> list[int]:
    return [s.base_offset for s in logs.partition(topic, partition).maintenance.segments]


def state_of(logs: LogDir, topic: str, partition: int = 0) -> PartitionState:
    for state in logs.maintenance.state().partitions:
        if state.topic_partition == (topic, partition):
            return state
    raise AssertionError(f"no {topic}-{partition}")


def deleted_in(path: Path) -> list[Path]:
    return [*path.rglob("*.deleted")]


# -- when


def test_nothing_is_deleted_before_it_is_started(tmp_path: Path) -> None:
    clock = Clock()
    with open_logs(tmp_path, clock=clock, disk=Disk(UNSYNCED)) as logs:
        logs.create_topic("orders", 1)
        fill(logs, "orders", OLD_MS, NOW_MS)
        clock.advance(DAY_MS)
        logs.run_pending_tasks()
        assert bases(logs, "orders") == [0, 1]
        assert not logs.maintenance.is_running
        assert state_of(logs, "orders").checked_ms is None


def test_retention_is_checked_after_a_delay_and_then_at_intervals(tmp_path: Path) -> None:
    clock = Clock()
    with open_logs(tmp_path, clock=clock, disk=Disk(UNSYNCED)) as logs:
        logs.create_topic("orders", 1)
        fill(logs, "orders", OLD_MS, NOW_MS)
        logs.maintenance.start()
        clock.advance(29_999)
        logs.run_pending_tasks()
        assert bases(logs, "orders") == [0, 1]
        clock.advance(1)
        logs.run_pending_tasks()
        assert bases(logs, "orders") == [1]
        state = state_of(logs, "orders")
        assert (state.checked_ms, state.deleted_segments) == (NOW_MS + 30_000, 1)
        assert state.deleted_bytes > 60
        assert not state.is_failing

        fill(logs, "orders", OLD_MS, NOW_MS)  # behind one that stays
        clock.advance(5 * MINUTE_MS - 1)
        logs.run_pending_tasks()
        assert state_of(logs, "orders").checked_ms == NOW_MS + 30_000
        clock.advance(1)
        logs.run_pending_tasks()
        assert state_of(logs, "orders").checked_ms == NOW_MS + 30_000 + 5 * MINUTE_MS
        assert bases(logs, "orders") == [1, 2, 3]
        assert logs.maintenance.state().checked_ms == NOW_MS + 30_000 + 5 * MINUTE_MS

        logs.maintenance.stop()
        assert not logs.maintenance.is_running
        clock.advance(30 * DAY_MS)
        logs.run_pending_tasks()
        assert bases(logs, "orders") == [1, 2, 3]
        logs.maintenance.start()
        clock.advance(30_000)
        logs.run_pending_tasks()
        assert bases(logs, "orders") == [4]


def test_dropped_files_are_removed_after_the_delay(tmp_path: Path) -> None:
    clock = Clock()
    with open_logs(tmp_path, clock=clock, disk=Disk(UNSYNCED)) as logs:
        logs.create_topic("orders", 1, config={"file.delete.delay.ms": 5 * MINUTE_MS})
        fill(logs, "orders", OLD_MS, NOW_MS)
        logs.maintenance.check_retention()
        assert len(deleted_in(tmp_path)) == 3
        clock.advance(5 * MINUTE_MS - 1)
        logs.run_pending_tasks()
        assert len(deleted_in(tmp_path)) == 3
        clock.advance(15_000)
        logs.run_pending_tasks()
        assert not deleted_in(tmp_path)
        fill(logs, "orders", NOW_MS - 8 * DAY_MS)
        clock.advance(8 * DAY_MS)
        logs.maintenance.check_retention()
    assert deleted_in(tmp_path)
    with open_logs(tmp_path, clock=clock, disk=Disk(UNSYNCED)) as logs:
        logs.partition("orders", 0)
        assert not deleted_in(tmp_path)


# -- on what


def test_each_topic_by_its_own_settings(tmp_path: Path) -> None:
    with open_logs(tmp_path, disk=Disk(UNSYNCED), log_retention_hours=1) as logs:
        settings: dict[str, dict[str, object]] = {
            "default": {},
            "forever": {"retention.ms": -1},
            "small": {"retention.ms": -1, "retention.bytes": 1},
            "compacted": {"cleanup.policy": "compact"},
            "both": {"cleanup.policy": "compact,delete"},
        }
        for topic, config in settings.items():
            logs.create_topic(topic, 1, config=config)
            fill(logs, topic, OLD_MS, NOW_MS - 2 * HOUR_MS, NOW_MS)
        logs.maintenance.check_retention()
        assert {topic: bases(logs, topic) for topic in settings} == {
            "default": [2],
            "forever": [0, 1, 2],
            "small": [2],
            "compacted": [0, 1, 2],
            "both": [0, 1, 2],  # the cleaner's
        }


def test_a_broker_s_own_topics_are_compacted_unless_told_otherwise(tmp_path: Path) -> None:
    with open_logs(tmp_path, disk=Disk(UNSYNCED)) as logs:
        logs.create_topic("__consumer_offsets", 1)
        logs.create_topic("__share_group_state", 1, config={"cleanup.policy": "delete"})
        for topic in ("__consumer_offsets", "__share_group_state"):
            fill(logs, topic, OLD_MS, NOW_MS)
        assert logs.topic("__consumer_offsets").config.is_compacted
        assert logs.topic("__consumer_offsets").overrides == {}
        logs.maintenance.check_retention()
        assert bases(logs, "__consumer_offsets") == [0, 1]
        assert bases(logs, "__share_group_state") == [1]


def test_a_log_that_nobody_has_opened_is_opened_only_if_there_is_something_to_delete(
    tmp_path: Path,
) -> None:
    with open_logs(tmp_path, disk=Disk(UNSYNCED)) as logs:
        for topic in ("old", "young", "hidden"):
            logs.create_topic(topic, 1)
        fill(logs, "old", OLD_MS, NOW_MS)
        fill(logs, "young", NOW_MS, NOW_MS)
        fill(logs, "hidden", NOW_MS, NOW_MS, NOW_MS)
        logs.delete_records("hidden", 0, 2)
    with open_logs(tmp_path, disk=Disk(UNSYNCED)) as logs:
        slots = {slot.topic_partition.topic: slot for slot in logs._catalog.slots()}
        assert not any(slot.loaded for slot in slots.values())
        logs.maintenance.check_retention()
        assert {topic for topic, slot in slots.items() if slot.loaded} == {"old", "hidden"}
        assert state_of(logs, "young").checked_ms == NOW_MS
        assert bases(logs, "old") == [1]
        assert bases(logs, "hidden") == [2]
        assert state_of(logs, "hidden").deleted_segments == 2


# -- failures


class Trouble:
    """A disk that cannot rename in some directories, nor sync if `with_fsync`."""

    def __init__(self, *, with_fsync: bool = False) -> None:
        self.where: set[str] = set()
        fsync = self._fsync if with_fsync else lambda _fd: None
        self.disk = Disk(SystemCalls(rename=self._rename, fsync=fsync))

    def _check(self, path: str) -> None:
        if any(name in path for name in self.where):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _rename(self, source: Path, target: Path) -> None:
        self._check(str(source))
        os.replace(source, target)  # noqa: PTH105

    def _fsync(self, fd: int) -> None:
        self._check(os.readlink(f"/proc/self/fd/{fd}"))  # noqa: PTH115


def test_a_partition_that_fails_is_told_and_stops_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, trouble = Clock(), Trouble()
    with open_logs(tmp_path, clock=clock, disk=trouble.disk) as logs:
        logs.create_topic("orders", 3)
        for partition in range(3):
            fill(logs, "orders", OLD_MS, NOW_MS, partition=partition)
        trouble.where = {"orders-1"}
        logs.maintenance.check_retention()
        assert [bases(logs, "orders", 0), bases(logs, "orders", 2)] == [[1], [1]]
        (failing,) = logs.maintenance.state().failing
        assert failing.topic_partition == ("orders", 1)
        (failure,) = failing.failures
        assert (failure.task, failure.at_ms, failure.count) == ("retention", NOW_MS, 1)
        assert "orders-1" in failure.message
        assert "Input/output error" in failure.message
        assert failure.traceback.startswith("Traceback")
        assert "delete_oldest" in failure.traceback
        assert not failure.is_resolved
        (line,) = caplog.records  # the disk failed, not the program: no traceback
        assert "orders-1: retention failed" in line.getMessage()
        assert "Input/output error" in line.getMessage()
        assert line.exc_info is None

        clock.advance(MINUTE_MS)
        logs.maintenance.check_retention()
        (failure,) = state_of(logs, "orders", 1).failures
        assert (failure.at_ms, failure.count) == (NOW_MS + MINUTE_MS, 2)

        trouble.where = set()
        clock.advance(MINUTE_MS)
        logs.maintenance.check_retention()
        state = state_of(logs, "orders", 1)
        assert bases(logs, "orders", 1) == [1]
        assert not state.is_failing
        (failure,) = state.failures
        assert (failure.at_ms, failure.count, failure.is_resolved) == (NOW_MS + MINUTE_MS, 2, True)
        assert not logs.maintenance.state().failing


def test_checkpoints_go_on_where_one_fails(tmp_path: Path) -> None:
    clock, trouble = Clock(), Trouble()
    one, two = tmp_path / "one", tmp_path / "two"
    with open_logs(one, two, clock=clock, disk=trouble.disk) as logs:
        logs.create_topic("orders", 2)
        for partition in range(2):
            fill(logs, "orders", NOW_MS, partition=partition)
        logs.flush()
        trouble.where = {"one/recovery-point"}
        clock.advance(DAY_MS)
        logs.run_pending_tasks()
        directories = dict(logs.maintenance.state().directories)
        (failure,) = directories[one]
        assert failure.task == "checkpoint recovery-point-offset-checkpoint"
        assert not directories[two]
        assert (two / "recovery-point-offset-checkpoint").exists()
        trouble.where = set()
        clock.advance(DAY_MS)
        logs.run_pending_tasks()
        assert [f.is_resolved for f in dict(logs.maintenance.state().directories)[one]] == [True]


def test_flushing_goes_on_in_other_directories(tmp_path: Path) -> None:
    clock, trouble = Clock(), Trouble(with_fsync=True)
    one, two = tmp_path / "one", tmp_path / "two"
    for path in (one, two):
        path.mkdir()
    logs = open_logs(one, two, clock=clock, disk=trouble.disk)
    logs.create_topic("orders", 2, config={"flush.ms": 1000})
    for partition in range(2):
        fill(logs, "orders", NOW_MS, partition=partition)
    clock.advance(1000)
    trouble.where = {"orders-0"}
    both = [logs.partition("orders", n) for n in range(2)]
    logs._housekeeping.flush_dirty()
    assert [log.recovery_point for log in both] == [0, 1]
    assert [f.task for f in state_of(logs, "orders", 0).failures] == ["flush"]
    assert not state_of(logs, "orders", 1).failures
    trouble.where = set()
    clock.advance(DAY_MS)
    logs.run_pending_tasks()
    assert [log.recovery_point for log in both] == [0, 1]
    assert "orders 1 1" in (two / "recovery-point-offset-checkpoint").read_text()
    assert not (one / "recovery-point-offset-checkpoint").exists()
    with pytest.raises(LogOfflineError, match="offline"):
        logs.close()


def test_a_topic_that_is_deleted_meanwhile_is_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_logs(tmp_path, disk=Disk(UNSYNCED)) as logs:
        logs.create_topic("orders", 1)
        fill(logs, "orders", OLD_MS, NOW_MS)
        slots = logs._catalog.slots()
        logs.maintenance.check_retention()
        assert logs.maintenance._retained
        logs.delete_topic("orders")
        logs.maintenance._catalog = _Stale(logs._catalog, slots)  # type: ignore[assignment]
        logs.maintenance.check_retention()
        assert not caplog.records
        logs.maintenance._catalog = logs._catalog
        assert logs.maintenance.state().partitions == ()
        assert not logs.maintenance._retained


def test_a_topic_that_is_just_being_deleted_is_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its directory has not been renamed yet."""
    with open_logs(tmp_path, disk=Disk(UNSYNCED)) as logs:
        logs.create_topic("orders", 1)
        fill(logs, "orders", OLD_MS, NOW_MS)
        (slot,) = logs._catalog.slots()
        log = slot.retire()
        assert log is not None
        log.close()
        logs.maintenance.check_retention()
        assert not caplog.records


class _Stale:
    """Still lists what another thread deletes while the list is gone through."""

    def __init__(self, catalog: Any, slots: Sequence[Any]) -> None:
        self._catalog = catalog
        self._slots = slots
        self.topics = {slot.topic_partition.topic: _Info() for slot in slots}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def slots(self) -> Sequence[Any]:
        return self._slots


class _Info:
    class config:
        is_compacted = False

    unknown = None


# -- threads


@pytest.mark.slow
def test_a_thread_of_its_own(tmp_path: Path) -> None:
    """With the machine's clock, and intervals of milliseconds."""
    config = {
        **SMALL,
        "log.initial.task.delay.ms": 0,
        "log.retention.check.interval.ms": 10,
        "log.segment.delete.delay.ms": 0,
    }
    with LogDir.open(tmp_path, config=config) as logs:
        logs.create_topic("orders", 1)
        before = set(threading.enumerate())
        with logs.maintenance:
            names = {t.name for t in set(threading.enumerate()) - before}
            assert names == {"stratalog-retention", "stratalog-cleaner-0"}
            fill(logs, "orders", 0, time.time_ns() // 1_000_000)
            wait_until(lambda: bases(logs, "orders") == [1])
            wait_until(lambda: state_of(logs, "orders").deleted_segments == 1)
            wait_until(lambda: not deleted_in(tmp_path))
            logs.maintenance.start()  # does no harm
        assert set(threading.enumerate()) <= before
        fill(logs, "orders", 0)
        logs.maintenance.start()
    assert not [t for t in threading.enumerate() if t.name == "stratalog-retention"]
    with pytest.raises(LogOfflineError):
        logs.maintenance.start()


class FakeCleaning:
    """So many pieces of work; some of them fail."""

    def __init__(self, pieces: Sequence[bool | Exception]) -> None:
        self.pieces = list(pieces)
        self.lock = threading.Lock()
        self.threads: set[str] = set()
        self.workers = 0
        self.interrupts = 0

    def worker(self) -> Callable[[], bool]:
        self.workers += 1

        def work() -> bool:
            self.threads.add(threading.current_thread().name)
            with self.lock:
                piece = self.pieces.pop(0) if self.pieces else False
            if isinstance(piece, Exception):
                raise piece
            return piece

        return work

    def interrupt(self) -> None:
        self.interrupts += 1

    def states(self) -> Sequence[PartitionCleaning]:
        return ()


def service(logs: LogDir, cleaning: FakeCleaning, *, has_threads: bool) -> Maintenance:
    made = Maintenance(ServedDirs(logs._catalog, logs._context, logs._health), cleaning)
    made.has_threads = has_threads
    return made


def test_the_cleaner_s_threads(tmp_path: Path) -> None:
    cleaning = FakeCleaning([True, True, OSError("no such luck"), True, False, True])
    others = set(threading.enumerate())  # of brokers that tests in this process share

    def cleaners() -> set[str]:
        ours = set(threading.enumerate()) - others
        return {thread.name for thread in ours if "cleaner" in thread.name}

    with open_logs(tmp_path, log_cleaner_threads=2, log_cleaner_backoff_ms=1) as logs:
        maintenance = service(logs, cleaning, has_threads=True)
        with maintenance:
            wait_until(lambda: not cleaning.pieces)
            names = cleaners()
            assert names == {"stratalog-cleaner-0", "stratalog-cleaner-1"}
            assert cleaning.threads <= names
            wait_until(lambda: directory_failures(maintenance.state()) == [("cleaning", True)])
        assert cleaning.interrupts == 1
        assert cleaning.workers == 2
        assert not cleaners()


def directory_failures(state: MaintenanceState) -> list[tuple[str, bool]]:
    return [(f.task, f.is_resolved) for _, failures in state.directories for f in failures]


def test_cleaning_without_threads(tmp_path: Path) -> None:
    cleaning = FakeCleaning([True, True, False, True])
    clock = Clock()
    with open_logs(tmp_path, clock=clock) as logs:
        maintenance = service(logs, cleaning, has_threads=False)
        maintenance.start()
        clock.advance(14_999)
        maintenance.run_pending()
        assert len(cleaning.pieces) == 4
        clock.advance(1)
        maintenance.run_pending()
        assert len(cleaning.pieces) == 1
        clock.advance(15_000)
        maintenance.run_pending()
        assert not cleaning.pieces
        maintenance.stop()
        maintenance.stop()
        assert maintenance.run_pending() == 0


def test_a_cleaner_that_is_switched_off(tmp_path: Path) -> None:
    cleaning = FakeCleaning([True])
    clock = Clock()
    with open_logs(tmp_path, clock=clock, log_cleaner_enable=False) as logs:
        maintenance = service(logs, cleaning, has_threads=False)
        with maintenance:
            clock.advance(DAY_MS)
            maintenance.run_pending()
    assert not cleaning.workers


def test_a_compacted_log_is_cleaned_and_its_old_segments_go(tmp_path: Path) -> None:
    clock = Clock()
    buffers = {"log.cleaner.dedupe.buffer.size": 2_000_000, "log.cleaner.io.buffer.size": 100_000}
    config = {**SMALL, **buffers, "log.cleaner.min.cleanable.ratio": 0.1}
    disk = Disk(UNSYNCED)
    with LogDir.open(tmp_path, config=config, background=False, disk=disk, now_ms=clock) as logs:
        logs.create_topic("keyed", 1, config={"cleanup.policy": "compact"})
        logs.create_topic("both", 1, config={"cleanup.policy": "compact,delete"})
        fill(logs, "keyed", NOW_MS - 3, NOW_MS - 2, NOW_MS - 1, NOW_MS)
        fill(logs, "both", OLD_MS, OLD_MS, NOW_MS)
        logs.maintenance.start()
        clock.advance(15_000)
        logs.run_pending_tasks()
        assert [record.offset for record in logs.partition("keyed", 0).read()] == [2, 3]
        assert bases(logs, "both") == [2]
        keyed = state_of(logs, "keyed")
        assert keyed.cleaning is not None
        assert (keyed.cleaning.passes, keyed.cleaning.error) == (1, None)
        assert not logs.maintenance.state().failing


def test_a_log_that_cannot_be_cleaned_is_told(tmp_path: Path) -> None:
    clock = Clock()
    config: dict[str, Any] = {
        "log_cleaner_dedupe_buffer_size": 2_000_000,
        "log_cleaner_io_buffer_size": 100_000,
    }
    with open_logs(tmp_path, clock=clock, disk=Disk(UNSYNCED), **config) as logs:
        for topic in ("damaged", "sound"):
            logs.create_topic(topic, 1, config={"cleanup.policy": "compact"})
            fill(logs, topic, NOW_MS - 2, NOW_MS - 1, NOW_MS)
        path = logs.partition("damaged", 0).maintenance.segments[0].path
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
        logs.maintenance.start()
        clock.advance(15_000)
        logs.run_pending_tasks()
        assert [record.offset for record in logs.partition("sound", 0).read()] == [1, 2]
        (failing,) = logs.maintenance.state().failing
        assert failing.topic_partition == ("damaged", 0)
        (failure,) = failing.failures
        assert (failure.task, failure.at_ms, failure.count) == ("cleaning", NOW_MS + 15_000, 1)
        assert str(path) in failure.message
        assert "cleaner.py" in failure.traceback
        clock.advance(15_000)
        logs.run_pending_tasks()
        (failure,) = state_of(logs, "damaged").failures
        assert failure.count == 1, "it is left alone"


def wait_until(is_so: Callable[[], bool]) -> None:
    for _ in range(1000):
        if is_so():
            return
        time.sleep(0.01)
    raise AssertionError("it never came to pass")
