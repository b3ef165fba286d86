"""A process that has a log directory open forks: the child gets neither the lock nor the pen."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from stratalog.commits.staged import StagedCommit
from stratalog.config import LogConfig
from stratalog.errors import LogDirLockedError
from stratalog.log_dir import LogDir
from stratalog.maintenance.recovery import open_log
from stratalog.storage.disk import Disk
from tests.cli.command import program
from tests.opening import open_logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CLEAN = ".kafka_cleanshutdown"
CHILD_SECONDS = 30

PARENT = """
import os, sys, time
from stratalog.log_dir import LogDir
logs = LogDir.open(sys.argv[1])
logs.append("orders", b"from the parent")
if os.fork() == 0:
    print(os.getpid(), flush=True)
    time.sleep(600)
time.sleep(600)
"""

DROPPING = """
import gc, multiprocessing, os, sys
from stratalog.errors import LogDirLockedError
from stratalog.log_dir import LogDir

def drop():
    global logs
    logs = None
    gc.collect()

logs = LogDir.open(sys.argv[1])
logs.append("orders", b"x")
process = multiprocessing.get_context("fork").Process(target=drop)
process.start()
process.join()
print("child", process.exitcode)
try:
    LogDir.open(sys.argv[1])
except LogDirLockedError:
    print("refused")
print("marker" if os.path.exists(sys.argv[1] + "/.kafka_cleanshutdown") else "no marker")
logs.close()
"""

OTHER_WRITER = """
import sys
from stratalog.errors import LogDirLockedError
from stratalog.log_dir import LogDir
try:
    LogDir.open(sys.argv[1]).close()
    print("opened")
except LogDirLockedError:
    print("refused")
"""


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LogDir]:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 1)
        logs.append("orders", b"first")
        yield logs


def in_child(work: Callable[[], object]) -> str:
    """What `work` returns or raises in a forked child, which then exits without further ado."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            result = repr(work())
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        os.write(writing, result.encode())
        os._exit(0)
    os.close(writing)
    answer = select.poll()  # `select` takes no descriptor above 1023
    answer.register(reading, select.POLLIN)
    try:
        assert answer.poll(CHILD_SECONDS * 1000), "the child hangs"
        return os.read(reading, 65536).decode()
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def contents(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def check_untouched(path: Path, before: dict[str, bytes], logs: LogDir) -> None:
    """The parent is still the only writer, and goes on."""
    assert contents(path) == before
    with pytest.raises(LogDirLockedError):
        open_logs(path)
    assert program(OTHER_WRITER, path).lines == ["refused"]
    assert logs.append("orders", b"second").offset == 1


@pytest.mark.slow
def test_a_child_that_exits_leaves_lock_and_files_alone(logs: LogDir, tmp_path: Path) -> None:
    def leave() -> None:
        with contextlib.suppress(SystemExit), logs, logs.partition("orders", 0):
            sys.exit(0)

    before = contents(tmp_path)
    in_child(leave)
    assert CLEAN not in contents(tmp_path)
    check_untouched(tmp_path, before, logs)


def test_a_child_leaves_the_blocks_of_its_parent_quietly(logs: LogDir, tmp_path: Path) -> None:
    """A producer with waiting records, a transaction, the directory: nothing is written."""
    producer = logs.producer(linger_ms=60_000)
    waiting = producer.append("orders", b"waits")
    transactional = logs.transactional_producer("t")
    transaction = transactional.transaction()
    transaction.append("orders", b"in a transaction").result()

    def leave() -> str:
        with contextlib.suppress(SystemExit), logs, producer, transaction:
            sys.exit(0)
        return "left"

    before = contents(tmp_path)
    assert in_child(leave) == "'left'"
    assert contents(tmp_path) == before
    transaction.commit()
    producer.close()
    assert waiting.result().offset == 3


@pytest.mark.slow
def test_a_process_of_multiprocessing_that_drops_its_reference(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", DROPPING, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == ["child", "0", "refused", "no", "marker"]


USES: dict[str, Callable[[LogDir], object]] = {
    "append": lambda logs: logs.append("orders", b"x"),
    "producer": lambda logs: logs.producer(idempotent=True),
    "flush": lambda logs: logs.flush(),
    "checkpoint": lambda logs: logs.checkpoint(),
    "partition": lambda logs: logs.partition("orders", 0),
    "create": lambda logs: logs.create_topic("other", 1),
    "delete": lambda logs: logs.delete_topic("orders"),
    "delete records": lambda logs: logs.delete_records("orders", 0, 1),
    "transaction": lambda logs: logs.transaction("t"),
    "abort": lambda logs: logs.abort_transaction("t"),
    "tasks": lambda logs: logs.run_pending_tasks(),
    "commit": lambda logs: logs.commits.commit(StagedCommit(())),
    "finish commits": lambda logs: logs.commits.finish(),
    "sweep": lambda logs: logs.commits.sweep(),
}


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
def test_a_child_cannot_use_the_directory(use: str, logs: LogDir, tmp_path: Path) -> None:
    before = contents(tmp_path)
    assert in_child(lambda: USES[use](logs)).startswith("LogOfflineError: ")
    check_untouched(tmp_path, before, logs)


@pytest.mark.slow
def test_a_child_cannot_use_what_its_parent_took_from_the_directory(
    logs: LogDir, tmp_path: Path
) -> None:
    log = logs.partition("orders", 0)
    producer = logs.producer(linger_ms=60_000)
    waiting = producer.append("orders", b"waits")
    transaction = logs.transaction("t")
    before = contents(tmp_path)
    for use in (
        log.flush,
        log.roll,
        lambda: log.delete_records(1),
        lambda: log.truncate_to(0),
        producer.flush,
        waiting.result,
        lambda: producer.append("orders", b"x"),
        lambda: transaction.append("orders", b"x"),
        transaction.commit,
    ):
        told = in_child(use)
        assert told.startswith("LogOfflineError: "), told
        assert f"opened by the parent process {os.getpid()}" in told
    assert in_child(log.close) == "None"
    assert contents(tmp_path) == before
    transaction.abort()
    assert waiting.result().offset == 1


@pytest.mark.slow
def test_locks_that_other_threads_held_do_not_stop_a_child(logs: LogDir, tmp_path: Path) -> None:
    """Those threads do not exist there, so nobody would ever give them back."""
    log = logs.partition("orders", 0)
    producer = logs.producer()
    before = contents(tmp_path)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        locks = (producer._lock, logs._catalog._lock, logs._coordinator._lock, logs.commits._lock)
        with log._guard.lock, locks[0], locks[1], locks[2], locks[3]:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        for use in (
            log.flush,
            producer.flush,
            lambda: logs.create_topic("other", 1),
            lambda: logs.transaction("t"),
            logs.commits.finish,
        ):
            assert in_child(use).startswith("LogOfflineError: ")
        assert in_child(log.close) == in_child(producer.close) == in_child(logs.close) == "None"
    finally:
        done.set()
        thread.join()
    check_untouched(tmp_path, before, logs)


def test_a_child_may_open_another_directory(logs: LogDir, tmp_path: Path) -> None:
    def write() -> int:
        with open_logs(tmp_path / "other") as other:
            return other.append("orders", b"x").offset

    assert in_child(write) == "0"
    assert in_child(lambda: open_logs(tmp_path)).startswith("LogDirLockedError: ")


@pytest.mark.slow
def test_a_child_does_not_hold_the_lock_when_its_parent_is_killed(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        with pytest.raises(LogDirLockedError):
            LogDir.open(tmp_path, background=False)
        parent.kill()
        parent.wait()  # its output stays open: the child has it
        with LogDir.open(tmp_path, background=False) as logs:
            assert logs.append("orders", b"after").offset == 1
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


def test_a_log_without_a_log_directory(tmp_path: Path) -> None:
    with open_log(tmp_path / "t-0", LogConfig(), disk=Disk(), now_ms=lambda: 0) as log:
        before = contents(tmp_path)
        assert in_child(log.flush).startswith("LogOfflineError: ")
        assert in_child(log.close) == "None"
        assert contents(tmp_path) == before
