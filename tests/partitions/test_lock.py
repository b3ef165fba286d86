"""One writer at a time: within a process, between processes, and beside Java."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import stratalog
from stratalog.errors import LockedError, LogDirLockedError
from stratalog.partitions.lock import find_holder, lock_dirs
from stratalog.storage.disk import Disk
from tests.opening import open_logs

if TYPE_CHECKING:
    from pathlib import Path

OTHER_WRITER = """
import sys
from pathlib import Path
from stratalog.log_dir import LogDir
with LogDir.open(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.readline()
"""

# What kafka.utils.FileLock does to a log directory's .lock.
JAVA_LOCKER = """
import java.io.File;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.file.StandardOpenOption;

public class Locker {
    public static void main(String[] args) throws Exception {
        FileChannel channel = FileChannel.open(new File(args[0]).toPath(),
            StandardOpenOption.CREATE, StandardOpenOption.READ, StandardOpenOption.WRITE);
        FileLock lock = channel.tryLock();
        System.out.println(lock == null ? "refused" : "locked");
        System.out.flush();
        if (lock != null) System.in.read();
    }
}
"""


def _started(command: list[str]) -> tuple[subprocess.Popen[str], str]:
    """A process and the first line that it prints."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def _end(process: subprocess.Popen[str]) -> None:
    process.communicate("\n", timeout=60)
    assert process.returncode == 0


@pytest.fixture(scope="module")
def java_locker(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    if shutil.which("javac") is None or shutil.which("java") is None:
        pytest.skip("needs a Java compiler")
    directory = tmp_path_factory.mktemp("java")
    (directory / "Locker.java").write_text(JAVA_LOCKER)
    subprocess.run(["javac", "Locker.java"], cwd=directory, check=True)
    return ["java", "-Xshare:auto", "-cp", str(directory), "Locker"]


def test_second_open_in_the_same_process_is_refused(tmp_path: Path) -> None:
    with open_logs(tmp_path), pytest.raises(LogDirLockedError) as refusal:
        open_logs(tmp_path)
    assert refusal.value.path == tmp_path
    assert refusal.value.holder == "another LogDir in this process"
    assert str(tmp_path) in str(refusal.value)


def test_closing_gives_the_lock_back(tmp_path: Path) -> None:
    open_logs(tmp_path).close()
    open_logs(tmp_path).close()


@pytest.mark.slow
def test_another_process_is_named(tmp_path: Path) -> None:
    other, line = _started([sys.executable, "-c", OTHER_WRITER, str(tmp_path)])
    assert line == "locked"
    with pytest.raises(LockedError, match=rf"locked by process {other.pid} \(.+\)"):
        open_logs(tmp_path)
    _end(other)
    open_logs(tmp_path).close()


@pytest.mark.slow
def test_a_killed_writer_holds_nothing(tmp_path: Path) -> None:
    other, _ = _started([sys.executable, "-c", OTHER_WRITER, str(tmp_path)])
    other.kill()
    other.communicate()
    open_logs(tmp_path).close()


def test_readers_need_no_lock(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.append("orders", b"x")
        with stratalog.open_dirs(tmp_path).partition("orders", 0) as view:
            assert [record.value for record in view.read()] == [b"x"]


def test_all_directories_or_none(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    with open_logs(second), pytest.raises(LogDirLockedError) as refusal:
        open_logs(first, second)
    assert refusal.value.path == second
    open_logs(first).close()


@pytest.mark.slow
def test_java_is_refused_while_we_write(tmp_path: Path, java_locker: list[str]) -> None:
    with open_logs(tmp_path):
        process, line = _started([*java_locker, str(tmp_path / ".lock")])
        _end(process)
        assert line == "refused"
    process, line = _started([*java_locker, str(tmp_path / ".lock")])
    _end(process)
    assert line == "locked"


@pytest.mark.slow
def test_we_are_refused_while_java_writes(tmp_path: Path, java_locker: list[str]) -> None:
    process, line = _started([*java_locker, str(tmp_path / ".lock")])
    assert line == "locked"
    with pytest.raises(LogDirLockedError) as refusal:
        open_logs(tmp_path)
    assert refusal.value.holder == f"process {process.pid} (java)"
    _end(process)
    open_logs(tmp_path).close()


def test_holder_of_a_free_lock_is_unknown(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    assert find_holder(tmp_path / ".lock") is None
    assert find_holder(tmp_path / "missing") is None


def test_a_refusal_can_be_pickled(tmp_path: Path) -> None:
    import pickle  # noqa: PLC0415

    error = LogDirLockedError(tmp_path, f"process {os.getpid()} (x)")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@pytest.mark.slow
def test_a_long_wait_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other, _ = _started([sys.executable, "-c", OTHER_WRITER, str(tmp_path)])
    with pytest.raises(LogDirLockedError):
        lock_dirs(Disk(), [tmp_path], wait_ms=300)
    assert caplog.messages == []
    with pytest.raises(LogDirLockedError):
        lock_dirs(Disk(), [tmp_path], wait_ms=1400)
    (message,) = caplog.messages
    assert re.fullmatch(
        rf"{tmp_path}: waiting up to 0 s until process {other.pid} \(.+\) releases the lock",
        message,
    )
    _end(other)
    lock_dirs(Disk(), [tmp_path], wait_ms=0).close()
