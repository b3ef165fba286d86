"""Drivers and workers that die while they write: every row is in the log once."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from stratalog import LogDir
from stratalog.commits.journal import JOURNAL_FILE
from tests.spark import write_program

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, write_program.__file__, *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, capture_output=True, text=True, env=env, timeout=300, check=False
    )


def make(path: Path) -> None:
    with LogDir.open(path, background=False) as logs:
        logs.create_topic("orders", 3, config={"segment.bytes": 20_000})


def values_in(path: Path) -> list[list[int]]:
    """By partition; offsets without gaps."""
    with LogDir.open(path, background=False) as logs:
        found = []
        for log in logs.partitions_of("orders"):
            records = list(log.read())
            assert [r.offset for r in records] == list(range(log.log_end_offset))
            found.append([int(record.value or b"") for record in records])
    return found


def test_tasks_that_fail_and_workers_that_are_killed(tmp_path: Path) -> None:
    make(tmp_path / "logs")
    done = run("retry", tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    check_rows(tmp_path / "logs")
    assert not list(tmp_path.rglob("*.staged"))


def check_rows(path: Path) -> None:
    """Every row once, those of one task in order."""
    found = values_in(path)
    count = write_program.TASKS * write_program.ROWS
    assert sorted(value for part in found for value in part) == list(range(count))
    for part in found:
        for task in range(write_program.TASKS):
            of_task = [value for value in part if value // write_program.ROWS == task]
            assert of_task == sorted(of_task)


@contextmanager
def cluster(home: Path) -> Iterator[str]:
    """The address of a master with two workers, on two hosts as far as they can tell: Spark does
    not run a copy of a task on the host of the first."""
    spark_home = Path(pyspark.__file__).parent
    processes = []

    def start(main: str, host: str, *args: str) -> Path:
        log = home / f"{host}-{main}.log"
        with log.open("wb") as out:
            command = [str(spark_home / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}"]
            where = ("--host", host, "--port", "0", "--webui-port", "0")
            process = subprocess.Popen(
                [*command, *where, *args],
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, "SPARK_LOCAL_IP": host, "SPARK_HOME": str(spark_home)},
                start_new_session=True,
            )
        processes.append(process)
        return log

    try:
        url = wait_for(start("master.Master", "127.0.0.1"), r"Spark master at (spark://\S+)")
        for host in ("127.0.0.2", "127.0.0.3"):
            work = ("--cores", "1", "--memory", "1g", "--work-dir", str(home / host))
            wait_for(start("worker.Worker", host, *work, url), r"(Successfully registered)")
        yield url
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found is not None:
            return found[1]
        time.sleep(0.2)
    raise TimeoutError(log.read_text(errors="replace")[-3000:])


def test_copies_of_a_slow_task(tmp_path: Path) -> None:
    """Two attempts of one task stage the same rows; one of them counts."""
    make(tmp_path / "logs")
    (tmp_path / "attempts").mkdir()
    with cluster(tmp_path) as master:
        done = run("speculate", tmp_path, master)
    assert done.returncode == 0, done.stderr[-3000:]
    attempts = {path.name for path in (tmp_path / "attempts").iterdir()}
    assert {"0 0", "0 1"} <= attempts
    check_rows(tmp_path / "logs")


def test_a_driver_that_is_killed_while_it_commits(tmp_path: Path) -> None:
    """Before the journal is there, right after it is, and while runs are installed."""
    logs = tmp_path / "logs"
    make(logs)
    (tmp_path / "in").mkdir()
    files, rows = 5, 100
    for number in range(files):
        path = tmp_path / "in" / f"{number}.json"
        path.write_text("".join(f'{{"value": "{number * rows + row}"}}\n' for row in range(rows)))
        os.utime(path, (1_700_000_000 + number,) * 2)
    for kill_at, is_decided in ((6, False), (-2, True), (-5, True)):
        done = run("stream", tmp_path, kill_at)
        assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
        assert (logs / JOURNAL_FILE).exists() == is_decided
    done = run("stream", tmp_path, 0)
    assert done.returncode == 0, done.stderr[-3000:]
    found = values_in(logs)
    assert sorted(value for part in found for value in part) == list(range(files * rows))
    for part in found:
        assert part == sorted(part)
    assert not list(tmp_path.rglob("*.staged"))
    assert not (logs / JOURNAL_FILE).exists()
