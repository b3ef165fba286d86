"""An fsync fails, as Linux lets it: what was not written is dropped, reads still show it, and the
next fsync succeeds. Nothing of it may count as durable from then on."""

from __future__ import annotations

import errno
import os
import random
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import DiskFullError, FsyncError, LogOfflineError
from stratalog.format.names import RootFile
from tests.disks import FaultyDisk, SimulatedDisk
from tests.opening import kill, open_logs

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.log_dir import LogDir

LOG = "00000000000000000000.log"
FILES = ["orders-0/" + LOG, "orders-0/" + LOG.replace(".log", ".index"), "orders-0"]


def values(logs: LogDir, topic: str = "orders") -> list[bytes | None]:
    return [record.value for record in logs.partition(topic, 0).read()]


def recovery_points(path: Path) -> str:
    file = path / RootFile.RECOVERY_POINTS.value
    return file.read_text() if file.exists() else ""


def lose_power(disk: SimulatedDisk, seed: int) -> None:
    disk.crash(random.Random(seed))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("file", FILES)
def test_after_a_failed_fsync_the_directory_is_offline_and_recovered_by_reading(
    file: str, seed: int, tmp_path: Path
) -> None:
    disk = SimulatedDisk(tmp_path)
    logs = open_logs(tmp_path, disk=disk.disk)
    logs.create_topic("orders", 1)
    logs.append("orders", b"durable" * 100)
    logs.flush()
    logs.checkpoint()
    points = recovery_points(tmp_path)
    logs.append("orders", b"lost" * 200)
    log = logs.partition("orders", 0)
    log._segments._are_names_synced = False  # as after a roll
    disk.fail_fsync_of = file
    with pytest.raises(FsyncError, match="cannot fsync: Input/output error"):
        logs.flush()
    for _ in range(2):
        for use in (
            logs.flush,
            log.flush,
            lambda: logs.append("orders", b"x"),
            lambda: log.delete_records(1),
            lambda: logs.partition("orders", 0),
        ):
            with pytest.raises(LogOfflineError, match="offline"):
                use()
        logs.checkpoint()
    assert log.recovery_point == 1
    assert recovery_points(tmp_path) == points
    with pytest.raises(LogOfflineError, match="offline"):
        logs.close()
    assert not (tmp_path / RootFile.CLEAN_SHUTDOWN.value).exists()
    assert recovery_points(tmp_path) == points
    with open_logs(tmp_path, disk=disk.disk) as logs:
        survivors = values(logs)
        assert survivors[0] == b"durable" * 100
        if file.endswith(".log"):
            assert len(survivors) == 1
        logs.append("orders", b"after")
        logs.flush()
        survivors = values(logs)
    assert survivors[-1] == b"after"
    lose_power(disk, seed)
    with open_logs(tmp_path, disk=disk.disk) as logs:
        assert values(logs) == survivors


def test_what_looks_written_and_is_not_is_not_believed_by_the_next_process(tmp_path: Path) -> None:
    """The one whose fsync failed is killed. The cache outlives it, and shows a whole log."""
    disk = SimulatedDisk(tmp_path)
    logs = open_logs(tmp_path, disk=disk.disk)
    logs.append("orders", b"durable" * 100)
    logs.flush()
    logs.append("orders", b"lost" * 200)
    disk.fail_fsync_of = LOG
    with pytest.raises(FsyncError):
        logs.flush()
    logs._dirs._locks.close()
    logs._is_closed = True
    with open_logs(tmp_path, disk=disk.disk) as logs:
        assert values(logs) == [b"durable" * 100]


def test_other_log_directories_go_on(tmp_path: Path) -> None:
    disk = SimulatedDisk(tmp_path)
    one, two = tmp_path / "one", tmp_path / "two"
    logs = open_logs(one, two, disk=disk.disk)
    logs.create_topic("orders", 2)
    failing, good = (logs.partition("orders", number) for number in range(2))
    assert (failing.path.parent, good.path.parent) == (one, two)
    for number in range(2):
        logs.append("orders", b"x", partition=number)
    disk.fail_fsync_of = "orders-0/" + LOG
    with pytest.raises(FsyncError):
        logs.flush()
    assert good.recovery_point == 1  # it was flushed all the same
    assert logs.append("orders", b"y", partition=1).offset == 1
    logs.create_topic("more", 3)
    assert {log.path.parent for log in logs.partitions_of("more")} == {two}
    with pytest.raises(LogOfflineError, match=str(one)):
        logs.close()
    assert not (one / RootFile.CLEAN_SHUTDOWN.value).exists()
    assert (two / RootFile.CLEAN_SHUTDOWN.value).exists()
    with open_logs(one, two, disk=disk.disk) as logs:
        assert [len(list(log.read())) for log in logs.partitions_of("orders")] == [0, 2]


@pytest.mark.parametrize(
    "name", ["recovery-point-offset-checkpoint.tmp", "stratalog-state.json.tmp"]
)
def test_any_file_of_the_directory_may_be_the_one(name: str, tmp_path: Path) -> None:
    disk = SimulatedDisk(tmp_path)
    logs = open_logs(tmp_path, disk=disk.disk)
    logs.append("orders", b"x")
    logs.flush()
    disk.fail_fsync_of = name
    use = logs.checkpoint if "checkpoint" in name else partial(logs.producer, idempotent=True)
    with pytest.raises(FsyncError):
        use()
    with pytest.raises(LogOfflineError, match="offline"):
        logs.append("orders", b"y")
    with pytest.raises(LogOfflineError, match="offline"):
        logs.close()


def test_a_full_disk_at_an_fsync_is_no_full_disk_at_a_write(tmp_path: Path) -> None:
    """The write went well: trying again would succeed, and mean nothing."""
    faulty = FaultyDisk()
    path = tmp_path / "file"
    with faulty.disk.open_append(path) as file:
        file.write(b"x")
        faulty.fail_next(errno.ENOSPC)
        with pytest.raises(FsyncError, match=os.strerror(errno.ENOSPC)) as error:
            file.fsync()
    assert not isinstance(error.value, DiskFullError)


class Life:
    """Appends, flushes and rolls on a disk whose fsyncs fail now and then, and its power too."""

    def __init__(self, root: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = SimulatedDisk(root)
        self.root = root
        self.logs = self._open()
        self.logs.create_topic("orders", 1)
        self.logs.flush()
        self.logs.checkpoint()
        self.written: list[bytes | None] = []
        self.flushed = 0
        """So many of them must never be lost."""
        self.failures = 0

    def _open(self) -> LogDir:
        return open_logs(self.root, disk=self.disk.disk, log_segment_bytes=4000)

    def step(self) -> None:
        if self.rng.random() < 0.15:
            kinds = [".log", ".index", ".timeindex", ".snapshot", "orders-0", "checkpoint.tmp"]
            self.disk.fail_fsync_of = self.rng.choice(kinds)
        try:
            self._act()
        except (FsyncError, LogOfflineError):
            self.failures += 1
            self._end()
            self._check()

    def _act(self) -> None:
        action = self.rng.choice(["append", "append", "append", "flush", "roll", "checkpoint"])
        log = self.logs.partition("orders", 0)
        if action == "append":
            value = b"%d " % len(self.written) * self.rng.randint(1, 300)
            self.logs.append("orders", value)
            self.written.append(value)
        elif action == "flush":
            self.logs.flush()
            self.flushed = len(self.written)
        elif action == "roll":
            log.roll()
            self.flushed = max(self.flushed, log.recovery_point)
        else:
            self.logs.checkpoint()

    def _end(self) -> None:
        """Closed, or killed; perhaps with a loss of power, before it is opened again."""
        if self.rng.random() < 0.5:
            with suppress(FsyncError, LogOfflineError):
                self.logs.close()
        kill(self.logs)
        self.disk.fail_fsync_of = ""
        if self.rng.random() < 0.3:
            self.disk.crash(self.rng)
        self.logs = self._open()

    def _check(self) -> None:
        found = values(self.logs)
        assert found == self.written[: len(found)]
        assert len(found) >= self.flushed
        self.written = found

    def finish(self) -> None:
        self.disk.fail_fsync_of = ""
        self.logs.close()
        self.flushed = len(self.written)
        self.disk.crash(self.rng)
        self.logs = self._open()
        self._check()
        self.logs.close()


@pytest.mark.parametrize("seed", range(6))
def test_no_flushed_record_is_ever_lost(seed: int, tmp_path: Path) -> None:
    life = Life(tmp_path, seed)
    for _ in range(60):
        life.step()
    life.finish()
    assert life.failures
