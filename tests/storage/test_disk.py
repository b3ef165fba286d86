from __future__ import annotations

import errno
import fcntl
import os
import pickle
import random
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import DiskFullError, FsyncError, LockedError, StorageError
from stratalog.storage.disk import Disk, SystemCalls
from tests.disks import Fault, FaultyDisk, SimulatedDisk
from tests.effort import scaled

if TYPE_CHECKING:
    from pathlib import Path

SEEDS = range(scaled(30))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000000.log"


# -- appending


def test_appends_follow_each_other(path: Path) -> None:
    with Disk().open_append(path) as file:
        file.write(b"one")
        file.write(memoryview(bytearray(b"two")))
        assert file.size_bytes == 6
    with Disk().open_append(path) as file:
        file.write(b"three")
    assert path.read_bytes() == b"onetwothree"


def test_appends_begin_behind_the_bytes_that_count(path: Path) -> None:
    path.write_bytes(b"good+torn")
    with Disk().open_append(path, size_bytes=4) as file:
        file.write(b" and more")
    assert path.read_bytes() == b"good and more"


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(3, errno.ENOSPC), id="nothing written"),
        pytest.param(Fault(3, errno.ENOSPC, written=0.5), id="half written"),
        pytest.param(Fault(3, errno.ENOSPC, written=0.5, is_short=True), id="short, then full"),
    ],
)
@pytest.mark.parametrize("preallocated", [0, 64])
def test_a_failed_write_leaves_the_file_as_it_was(
    path: Path, fault: Fault, preallocated: int
) -> None:
    faulty = FaultyDisk()
    with faulty.disk.open_append(path) as file:
        if preallocated:
            file.preallocate(preallocated)
        file.write(b"kept")
        faulty.history[:] = ["open", "pwrite"]
        faulty.fault = fault
        with pytest.raises(DiskFullError) as caught:
            file.write(b"x" * 40)
        assert (caught.value.path, caught.value.operation) == (path, "write")
        assert caught.value.errno == errno.ENOSPC
        assert file.size_bytes == 4
        assert path.read_bytes() == b"kept".ljust(preallocated, b"\0")
        file.write(b" and more")
    assert path.read_bytes() == b"kept and more".ljust(preallocated, b"\0")


def test_a_short_write_is_carried_on(path: Path) -> None:
    def one_byte(fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        return os.pwrite(fd, data[:1], position)

    with Disk(SystemCalls(pwrite=one_byte)).open_append(path) as file:
        file.write(b"byte by byte")
    assert path.read_bytes() == b"byte by byte"


def test_what_a_failed_write_left_is_cleared_later_if_not_at_once(path: Path) -> None:
    faulty = FaultyDisk()
    with faulty.disk.open_append(path) as file:
        file.write(b"kept")
        faulty.fault = Fault(len(faulty.history) + 1, is_lasting=True, written=0.9)
        with pytest.raises(StorageError):
            file.write(b"0123456789")
        assert path.read_bytes() == b"kept012345678"  # ftruncate failed as well
        with pytest.raises(StorageError):
            file.write(b"again")
        faulty.fault = None
        file.write(b"!")
    assert path.read_bytes() == b"kept!"


def test_the_disk_may_begin_to_write_before_an_fsync(path: Path) -> None:
    begun: list[tuple[int, int]] = []

    def start_writing(_fd: int, position: int, count: int) -> None:
        begun.append((position, count))
        raise OSError(errno.EIO, "a hint that fails is none")

    for calls in (SystemCalls(), SystemCalls(start_writing=start_writing)):
        with Disk(calls).open_append(path) as file:
            at = file.size_bytes
            file.write(b"some bytes")
            file.start_writing(at)
            assert file.fsync()
    assert begun == [(10, 10)]
    assert path.read_bytes() == b"some bytes" * 2


def test_an_fsync_that_failed_is_final(path: Path) -> None:
    faulty = FaultyDisk()
    with faulty.disk.open_append(path) as file:
        file.write(b"maybe lost")
        faulty.fail_next()
        with pytest.raises(StorageError, match="cannot fsync"):
            file.fsync()
        with pytest.raises(StorageError, match="opened again"):
            file.write(b"more")
    assert path.read_bytes() == b"maybe lost"


def test_a_closed_file_says_so_when_it_is_to_be_synced(path: Path) -> None:
    file = Disk().open_append(path)
    assert file.fsync()
    file.close()
    assert not file.fsync()


def test_a_file_is_not_closed_in_the_middle_of_an_fsync(path: Path) -> None:
    entered, proceed = threading.Event(), threading.Event()

    def slow_fsync(fd: int) -> None:
        entered.set()
        assert proceed.wait(60)
        os.fsync(fd)  # fails if the number was given away

    file = Disk(SystemCalls(fsync=slow_fsync)).open_append(path)
    syncing = threading.Thread(target=file.fsync)
    closing = threading.Thread(target=file.close)
    syncing.start()
    assert entered.wait(60)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    proceed.set()
    syncing.join(10)
    closing.join(10)
    assert not file.fsync()


def test_preallocated_zeros_are_trimmed(path: Path) -> None:
    with Disk().open_append(path) as file:
        file.preallocate(1000)
        file.write(b"batch")
        assert path.stat().st_size == 1000
        file.trim()
        assert path.read_bytes() == b"batch"


def test_trimming_finds_what_an_interrupted_write_left(path: Path) -> None:
    with Disk().open_append(path) as file:
        file.write(b"whole")
        with path.open("ab") as other:
            other.write(b"unnoticed")
        file.trim()
    assert path.read_bytes() == b"whole"


def test_truncating_never_extends(path: Path) -> None:
    with Disk().open_append(path) as file:
        file.write(b"0123456789")
        file.truncate(4)
        file.truncate(8)
        assert file.size_bytes == 4
    assert path.read_bytes() == b"0123"


# -- errors


def test_an_error_tells_file_operation_and_number_and_survives_pickling(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "file"
    with pytest.raises(StorageError) as caught:
        Disk().open_append(missing)
    error = pickle.loads(pickle.dumps(caught.value))
    assert type(error) is StorageError
    assert (error.path, error.operation, error.errno) == (missing, "open", errno.ENOENT)
    assert str(error) == f"{missing}: cannot open: No such file or directory"
    assert (error.code, error.kafka_name) == (56, "KAFKA_STORAGE_ERROR")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_space_and_no_quota_are_a_full_disk(path: Path, number: int) -> None:
    faulty = FaultyDisk(fault=Fault(2, number))
    with faulty.disk.open_append(path) as file, pytest.raises(DiskFullError):
        file.write(b"x")


def test_every_call_may_fail_and_tells_it(tmp_path: Path) -> None:
    """One pass over everything that changes a disk, with each call failing once."""

    def change_everything(disk: Disk, root: Path) -> None:
        disk.mkdir(root)
        with disk.open_append(root / "log") as file:
            file.preallocate(100)
            file.write(b"batch")
            file.fsync()
            file.trim()
        disk.map_file(root / "index", 4096)[0] = 1
        disk.reserve(root / "index", 0, 4096)
        disk.truncate(root / "index", 8)
        disk.fsync(root / "index")
        disk.write_atomically(root / "checkpoint", b"0\n0\n")
        disk.set_mtime_ms(root / "log", 1_700_000_000_123)
        disk.fsync_dir(root)
        disk.rename(root / "log", root / "log.deleted")
        disk.unlink(root / "log.deleted")
        disk.remove_tree(root)

    healthy = FaultyDisk()
    change_everything(healthy.disk, tmp_path / "healthy")
    assert len(healthy.history) > 20
    for at in range(1, len(healthy.history) + 1):
        faulty = FaultyDisk(fault=Fault(at))
        with pytest.raises(StorageError):
            change_everything(faulty.disk, tmp_path / f"fault-{at}")
        assert faulty.has_failed


# -- whole files


def test_replacing_a_file_is_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    healthy = FaultyDisk()
    healthy.disk.write_atomically(path, b"old")
    assert healthy.history == ["open", "pwrite", "fsync", "rename", "fsync"]
    for at in range(1, len(healthy.history) + 1):
        path.write_bytes(b"old")
        faulty = FaultyDisk(fault=Fault(at, errno.ENOSPC, written=0.5))
        is_fsync = healthy.history[at - 1] == "fsync"
        with pytest.raises(FsyncError if is_fsync else DiskFullError):
            faulty.disk.write_atomically(path, b"new")
        assert path.read_bytes() == (b"old" if at < 5 else b"new")
        assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("seed", SEEDS)
def test_replacing_a_file_survives_a_power_loss(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    (tmp_path / "checkpoint").write_bytes(b"old")
    simulated = SimulatedDisk(tmp_path)
    faulty = FaultyDisk(simulated.calls, Fault(rng.randint(1, 6), is_lasting=True))
    try:
        faulty.disk.write_atomically(tmp_path / "checkpoint", b"new" * 1000)
    except StorageError:
        expected = [b"old", b"new" * 1000]
    else:
        expected = [b"new" * 1000]
    simulated.crash(rng)
    assert (tmp_path / "checkpoint").read_bytes() in expected, f"seed {seed}"


def test_large_files_are_written_whole(tmp_path: Path) -> None:
    def at_most_1000(fd: int, data: bytes | bytearray | memoryview, position: int) -> int:
        return os.pwrite(fd, data[:1000], position)

    content = random.Random(1).randbytes(12_345)
    Disk(SystemCalls(pwrite=at_most_1000)).write_file(tmp_path / "file", content)
    assert (tmp_path / "file").read_bytes() == content


def test_a_mapping_writes_through_and_survives_a_cut_of_what_it_does_not_use(
    tmp_path: Path,
) -> None:
    path = tmp_path / "index"
    memory = Disk().map_file(path, 10_000)
    assert (path.stat().st_size, path.stat().st_blocks) == (10_000, 0)
    Disk().reserve(path, 0, 4096)
    assert path.stat().st_blocks * 512 >= 4096
    memory[0:4] = b"used"
    Disk().truncate(path, 4)
    assert bytes(memory[0:4]) == path.read_bytes() == b"used"
    assert bytes(Disk().map_file(path, 6)) == b"used\0\0"
    assert len(Disk().map_file(path, 0)) == 0
    assert path.stat().st_size == 0


def test_a_disk_that_cannot_reserve_is_used_all_the_same(tmp_path: Path) -> None:
    def unsupported(fd: int, start: int, size_bytes: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    (tmp_path / "index").write_bytes(b"")
    Disk(SystemCalls(posix_fallocate=unsupported)).reserve(tmp_path / "index", 0, 8)


def test_names_sizes_and_times(tmp_path: Path) -> None:
    disk = Disk()
    disk.mkdir(tmp_path / "dir")
    disk.mkdir(tmp_path / "dir", exist_ok=True)
    with pytest.raises(StorageError):
        disk.mkdir(tmp_path / "dir")
    disk.write_file(tmp_path / "dir" / "file", b"12345", is_synced=False)
    with pytest.raises(StorageError):
        disk.mkdir(tmp_path / "dir" / "file", exist_ok=True)
    disk.set_mtime_ms(tmp_path / "dir" / "file", 1_700_000_000_123)
    assert disk.mtime_ms(tmp_path / "dir" / "file") == 1_700_000_000_123
    assert disk.size_of(tmp_path / "dir" / "file") == 5
    assert disk.size_of(tmp_path / "dir" / "none") is None
    assert not disk.exists(tmp_path / "dir" / "none")
    assert disk.list_names(tmp_path) == ["dir"]
    assert not disk.unlink(tmp_path / "none", missing_ok=True)
    with pytest.raises(StorageError):
        disk.unlink(tmp_path / "none")
    disk.mkdir(tmp_path / "dir" / "deeper")
    disk.remove_tree(tmp_path / "dir")
    disk.remove_tree(tmp_path / "dir")
    assert disk.list_names(tmp_path) == []


# -- the lock


def test_the_lock_excludes_a_second_writer_in_the_same_process(tmp_path: Path) -> None:
    with Disk().lock(tmp_path / ".lock"):
        with pytest.raises(LockedError, match=r"\.lock is locked"):
            Disk().lock(tmp_path / ".lock")
        (tmp_path / ".lock").open().close()  # drops a lock of Java's kind, not this one
        with pytest.raises(LockedError):
            Disk().lock(tmp_path / ".lock")
    Disk().lock(tmp_path / ".lock").release()


_LOCK_LIKE_JAVA = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("refused", flush=True)
else:
    print("locked", flush=True)
    sys.stdin.readline()
"""


def test_the_lock_excludes_java_and_java_excludes_it(tmp_path: Path) -> None:
    lock = Disk().lock(tmp_path / ".lock")
    command = [sys.executable, "-c", _LOCK_LIKE_JAVA, str(tmp_path / ".lock")]
    assert subprocess.run(command, check=True, capture_output=True).stdout == b"refused\n"
    lock.release()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as java:
        assert java.stdout is not None
        assert java.stdout.readline() == b"locked\n"
        with pytest.raises(LockedError):
            Disk().lock(tmp_path / ".lock")
        java.communicate(b"\n")
    Disk().lock(tmp_path / ".lock").release()


def test_a_file_that_cannot_be_locked_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    with pytest.raises(StorageError, match="cannot lock"):
        Disk().lock(tmp_path / ".lock")


# -- the simulated disk itself


def test_a_crash_keeps_what_was_synced(tmp_path: Path) -> None:
    for seed in SEEDS:
        simulated = SimulatedDisk(tmp_path)
        disk = simulated.disk
        with disk.open_append(tmp_path / f"{seed}") as file:
            file.write(b"synced" * 200)
            file.fsync()
            disk.fsync_dir(tmp_path)
            file.write(b"not synced" * 200)
        simulated.crash(random.Random(seed))
        content = (tmp_path / f"{seed}").read_bytes()
        assert content[:1200] == b"synced" * 200, f"seed {seed}"


def test_a_crash_may_do_anything_to_what_was_not_synced(tmp_path: Path) -> None:
    """Every outcome that recovery must cope with comes up: gone, whole, cut, holes of zeros."""
    outcomes = set()
    new = random.Random(0).randbytes(4096)
    for seed in range(300):
        root = tmp_path / str(seed)
        root.mkdir()
        simulated = SimulatedDisk(root)
        with simulated.disk.open_append(root / "log") as file:
            file.fsync()
            simulated.disk.fsync_dir(root)
            file.write(new)
            simulated.disk.write_file(root / "created", b"synced, but its name was not")
        simulated.crash(random.Random(seed))
        content = (root / "log").read_bytes()
        if (root / "created").exists():
            outcomes.add("name kept")
        else:
            outcomes.add("name lost")
        if content in (b"", new):
            outcomes.add("all" if content else "nothing")
        else:
            outcomes.add("prefix" if new.startswith(content) else "holes")
    assert outcomes == {"name kept", "name lost", "all", "nothing", "prefix", "holes"}


def test_a_crash_may_undo_renames_and_removals_that_were_not_synced(tmp_path: Path) -> None:
    outcomes = set()
    for seed in range(100):
        root = tmp_path / str(seed)
        root.mkdir()
        (root / "old").write_bytes(b"old")
        (root / "removed").write_bytes(b"removed")
        simulated = SimulatedDisk(root)
        simulated.disk.write_file(root / "new", b"new")
        simulated.disk.fsync_dir(root)
        simulated.disk.rename(root / "new", root / "old")
        simulated.disk.unlink(root / "removed")
        if seed % 2:
            simulated.disk.fsync_dir(root)
        simulated.crash(random.Random(seed))
        found = {file.name: file.read_bytes() for file in root.iterdir()}
        outcomes.add((seed % 2, tuple(sorted(found.items()))))
    kept, undone = ("removed", b"removed"), (("new", b"new"), ("old", b"old"))
    assert outcomes == {
        (1, (("old", b"new"),)),
        (0, (("old", b"new"),)),
        (0, (("old", b"new"), kept)),
        (0, undone),
        (0, (*undone, kept)),
    }


def test_a_crash_follows_directories_that_were_renamed(tmp_path: Path) -> None:
    simulated = SimulatedDisk(tmp_path)
    disk = simulated.disk
    disk.mkdir(tmp_path / "topic-0")
    disk.write_file(tmp_path / "topic-0" / "log", b"data")
    disk.fsync_dir(tmp_path / "topic-0")
    disk.fsync_dir(tmp_path)
    disk.rename(tmp_path / "topic-0", tmp_path / "topic-0.x-delete")
    with disk.open_append(tmp_path / "topic-0.x-delete" / "log") as file:
        file.write(b" and more")
    disk.fsync_dir(tmp_path)
    simulated.crash(random.Random(3))
    assert disk.list_names(tmp_path) == ["topic-0.x-delete"]
    assert (tmp_path / "topic-0.x-delete" / "log").read_bytes().startswith(b"data")
