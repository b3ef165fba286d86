"""Ctrl-C at a terminal while Spark starts, and while a job runs: one line, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import java_gateway

from stratalog.spark import session
from tests.cli.command import COMMAND

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.spark, pytest.mark.slow]
INTERRUPTED = "stratalog: interrupted"


def interrupted(*args: str | Path, when: Callable[[], bool], mark: Path) -> list[str]:
    """What a process says that is interrupted as by a terminal: with all of its group.

    `mark` is a directory that its JVM, and nobody else's, is told to use.
    """
    conf = ("--conf", f"spark.local.dir={mark}", "--conf", "spark.driver.memory=512m")
    with subprocess.Popen(
        [*COMMAND, *map(str, args), *conf], stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        deadline = time.monotonic() + 200
        while not when() and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.02)
        assert process.poll() is None, "it was over before"
        assert running(mark)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr is not None
        said = process.stderr.read().decode().splitlines()
    assert not running(mark)
    return said


def running(mark: Path, program: str = "org.apache.spark") -> list[int]:
    """The processes of a program, and what starts them, with `mark` on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if str(mark).encode() in words and program.encode() in words:
            found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize(
    "begun",
    [
        pytest.param(running, id="script"),
        pytest.param(lambda mark: any(mark.glob("blockmgr-*")), id="context"),
    ],
)
def test_while_spark_starts(begun: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    logs, mark = tmp_path / "logs", tmp_path / "local"
    args = ("ingest", tmp_path / "a.csv", "--to", logs, "-t", "t", "-p", "1", "--master", "local")
    said = interrupted(*args, when=lambda: bool(begun(mark)), mark=mark)
    assert said == [INTERRUPTED]
    assert not logs.exists()


def test_between_the_start_of_the_jvm_and_its_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    class InterruptedPopen(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", InterruptedPopen)
    jvm = session._Jvm()
    with pytest.raises(KeyboardInterrupt), jvm.being_started():
        java_gateway.Popen(["sleep", "60"])  # type: ignore[attr-defined]  # as PySpark does
    jvm.end()
    assert [process.poll() for process in started] == [-signal.SIGTERM]


def test_the_end_of_the_jvm_waits_for_what_its_script_has_started(tmp_path: Path) -> None:
    mark = tmp_path / "started"
    slow = f"trap 'sleep 0.3; exit' TERM; touch {mark}; sleep 9 & wait"
    jvm = session._Jvm()
    with jvm.being_started():
        process = java_gateway.Popen(  # type: ignore[attr-defined]
            ["bash", "-c", f'bash -c "{slow}" & wait']
        )
    while not mark.exists():
        time.sleep(0.01)
    assert len(running(mark, "bash")) == 2
    jvm.end()
    assert process.returncode == -signal.SIGTERM
    assert not running(mark, "bash")


def test_while_workers_read(tmp_path: Path) -> None:
    with (tmp_path / "a.jsonl").open("w") as file:
        file.writelines(f'{{"id": {number}, "x": "{"x" * 100}"}}\n' for number in range(300_000))
    logs, mark = tmp_path / "logs", tmp_path / "local"
    args = ("ingest", tmp_path / "a.jsonl", "--to", logs, "-t", "t", "-p", "1", "--key", "id")
    staged = lambda: bool(list(logs.rglob("*.staged")))  # noqa: E731
    said = interrupted(*args, "--master", "local", when=staged, mark=mark)
    assert said == [f"{INTERRUPTED}; nothing was written"]
    assert list(logs.glob("t-*")) == []


def test_again_and_again_while_threads_read(tmp_path: Path) -> None:
    with (tmp_path / "a.jsonl").open("w") as file:
        file.writelines(f'{{"id": {number}, "x": "{"x" * 100}"}}\n' for number in range(600_000))
    logs = tmp_path / "logs"
    args = ("ingest", tmp_path / "a.jsonl", "--to", logs, "-t", "t", "-p", "2", "--key", "id")
    with subprocess.Popen([*COMMAND, *map(str, args)], stderr=subprocess.PIPE) as process:
        while not list(logs.rglob("*.staged")) and process.poll() is None:
            time.sleep(0.01)
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.05)
        assert process.stderr is not None
        said = process.stderr.read().decode().splitlines()
    assert said == [f"{INTERRUPTED}; nothing was written"]
    assert process.returncode in {130, -signal.SIGINT}
    assert list(logs.glob("t-*")) == []
