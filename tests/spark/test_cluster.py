"""A real standalone cluster: a master and two workers, each a process of its own on loopback.

The workers are on two hosts as far as they can tell: Spark does not run a copy of a task on the
host of the first.

Executors get the package as they would on any cluster whose machines have it installed: through the
Python that `PYSPARK_PYTHON` names. What they share is the file system.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stratalog.log_dir import LogDir
from tests.spark.cluster_program import KEYS, PARTITIONS, ROWS
from tests.spark.test_write_faults import check_rows, make

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.spark, pytest.mark.slow]

HERE = Path(__file__).parent
WORKERS = {"one": "127.0.0.2", "two": "127.0.0.3"}
STARTED_S, FINISHED_S = 600, 1200


@dataclass(frozen=True)
class Done:
    """What the driver did, said and logged."""

    root: Path
    lines: list[str]
    log: str


class Cluster:
    """Processes that log to files of a directory."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.url = ""

    def start(self) -> None:
        self._run("master", "127.0.0.1", "org.apache.spark.deploy.master.Master")
        self.url = self._wait_for("master", r"Starting Spark master at (spark://\S+)")
        for name, host in WORKERS.items():
            work = str(self._home / f"work-{name}")
            args = ("--cores", "1", "--memory", "1g", "--work-dir", work, self.url)
            self._run(name, host, "org.apache.spark.deploy.worker.Worker", *args)
        for name in WORKERS:
            self._wait_for(name, r"(Successfully registered with master)")

    def _run(self, name: str, host: str, main: str, *args: str) -> None:
        home = Path(os.environ["SPARK_HOME"])
        ports = ("--host", host, "--port", "0", "--webui-port", "0")
        with (self._home / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [str(home / "bin" / "spark-class"), main, *ports, *args],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "SPARK_LOCAL_IP": host},
                start_new_session=True,  # executors are killed with their worker
            )

    def _wait_for(self, name: str, pattern: str) -> str:
        deadline = time.monotonic() + STARTED_S
        while time.monotonic() < deadline:
            text = (self._home / f"{name}.log").read_text(errors="replace")
            if (match := re.search(pattern, text)) is not None:
                return match[1]
            time.sleep(0.2)
        raise TimeoutError(f"{name} did not start:\n{text[-3000:]}")

    def kill(self, name: str) -> None:
        process = self._processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        for name in list(self._processes):
            self.kill(name)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    started = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        started.start()
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def done(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Done:
    """One of the workers dies while the pipeline begins."""
    root = tmp_path_factory.mktemp("driver")
    make(root / "speculated" / "logs")
    (root / "speculated" / "attempts").mkdir()
    lines = []
    log = root / "driver.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "tests.spark.cluster_program", cluster.url, str(root)],
            cwd=HERE.parent.parent,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as driver,
    ):
        try:
            assert driver.stdout is not None
            for line in driver.stdout:
                lines.append(line.strip())
                if lines[-1] == "step: ingest":
                    wait_for_staged(root / "logs")
                    cluster.kill("two")
            driver.wait(FINISHED_S)
        finally:
            driver.kill()
    return Done(root, lines, log.read_text())


def test_copies_of_a_slow_task(done: Done) -> None:
    """Two attempts of one task stage the same rows; one of them counts."""
    assert "step: tests of reads" in done.lines, done.log[-3000:]
    attempts = {path.name for path in (done.root / "speculated" / "attempts").iterdir()}
    assert {"0 0", "0 1"} <= attempts
    check_rows(done.root / "speculated" / "logs")


def test_reads_on_two_executors(done: Done) -> None:
    """The program runs tests of reads, and goes on if they pass."""
    assert "step: ingest" in done.lines, done.log[-5000:]


def test_whole_pipeline_while_a_worker_dies(done: Done) -> None:
    lines = done.lines[2:]
    steps = ["step: ingest", "step: read", "step: stream", "step: compact"]
    assert lines[:4] == steps, done.log[-5000:]
    facts = json.loads(lines[-1])
    assert facts["rows"] == [ROWS, ROWS * (ROWS - 1) // 2, ROWS, PARTITIONS]
    assert facts["columns"] == facts["rows"]
    assert facts["copy"] == [ROWS, ROWS]
    assert facts["batches"] >= 3
    assert facts["rounds"] == PARTITIONS
    assert facts["is_smaller"]
    assert facts["failed"] == facts["errors"] == []
    check_log(done.root / "logs")
    check_messages(done.log.splitlines(), done.root / "logs")


def check_messages(log: list[str], logs: Path) -> None:
    """What users see on the driver's standard error: a line for each scan of the pipeline, in rows
    and then in columns, and one for what an option of the first is ignored for."""
    pattern = re.compile(r"[\d/]+ [\d:]+ (\w+ stratalog\.spark\.\w+): (.+)")
    ours = [found.groups() for line in log if (found := pattern.fullmatch(line))]
    ours = [(kind, text) for kind, text in ours if f"scan of {logs}:" in text or "WARN" in kind]
    kinds = [kind for kind, _ in ours]
    ignored = "WARNING stratalog.spark.options"
    in_rows, in_columns = "INFO stratalog.spark.reader", "INFO stratalog.spark.accelerator_planner"
    assert kinds == [ignored, in_rows, ignored, in_columns, in_columns]
    warning, first, again, third, second = (text for _, text in ours)
    assert warning.endswith(": groupIdPrefix, kafka.bootstrap.servers")
    assert again == warning
    assert first.split(";")[:2] == third.split(";")[:2]
    assert first.startswith(f"scan of {logs}: ")
    assert f"{PARTITIONS} of {PARTITIONS} partitions; offsets orders-0 0.." in first
    assert "offsets copy-0 0.." in second


def wait_for_staged(logs: Path) -> None:
    """Until tasks have rows on disk, and others are still to come."""
    deadline = time.monotonic() + STARTED_S
    while not list(logs.glob("*/*.staged")):
        assert time.monotonic() < deadline, "no task staged anything"
        time.sleep(0.05)


def check_log(path: Path) -> None:
    """Offsets are contiguous, rows of one task in order, and nothing of the job is left over."""
    assert not list(path.glob("*/*.staged"))
    seen = 0
    with LogDir.open(path, create=False, background=False) as logs:
        for log in logs.partitions_of("copy"):
            offsets = [record.offset for record in log.read()]
            assert offsets == list(range(len(offsets)))
            seen += len(offsets)
        keys = {record.key for log in logs.partitions_of("orders") for record in log.read()}
    assert seen == ROWS
    assert len(keys) == KEYS
