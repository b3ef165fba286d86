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
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stratalog.log_dir import LogDir
from tests.spark.cluster_program import KEYS, PARTITIONS, ROWS
from tests.spark.test_write_faults import check_rows, make, run

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.spark, pytest.mark.slow]

HERE = Path(__file__).parent
WORKERS = {"one": "127.0.0.2", "two": "127.0.0.3"}
STARTED_S, FINISHED_S = 600, 1200


class Cluster:
    """Processes that log to files of a directory."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.url = ""

    def start(self) -> None:
        """What is not running."""
        if "master" not in self._processes:
            self._run("master", "127.0.0.1", "org.apache.spark.deploy.master.Master")
            self.url = self._wait_for("master", r"Starting Spark master at (spark://\S+)")
        missing = {name: host for name, host in WORKERS.items() if name not in self._processes}
        for name, host in missing.items():
            work = str(self._home / f"work-{name}")
            args = ("--cores", "1", "--memory", "1g", "--work-dir", work, self.url)
            self._run(name, host, "org.apache.spark.deploy.worker.Worker", *args)
        for name in missing:
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
        yield started
    finally:
        started.stop()


@pytest.fixture
def running(cluster: Cluster) -> Cluster:
    """With both workers, whichever a test before has killed."""
    cluster.start()
    return cluster


def test_copies_of_a_slow_task(running: Cluster, tmp_path: Path) -> None:
    """Two attempts of one task stage the same rows; one of them counts."""
    make(tmp_path / "logs")
    (tmp_path / "attempts").mkdir()
    done = run("speculate", tmp_path, running.url)
    assert done.returncode == 0, done.stderr[-3000:]
    attempts = {path.name for path in (tmp_path / "attempts").iterdir()}
    assert {"0 0", "0 1"} <= attempts
    check_rows(tmp_path / "logs")


def test_whole_pipeline_while_a_worker_dies(running: Cluster, tmp_path: Path) -> None:
    lines = []
    log = tmp_path / "driver.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "tests.spark.cluster_program", running.url, str(tmp_path)],
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
                    wait_for_staged(tmp_path / "logs")
                    running.kill("two")
            driver.wait(FINISHED_S)
        finally:
            driver.kill()
    assert lines[:4] == ["step: ingest", "step: read", "step: stream", "step: compact"]
    facts = json.loads(lines[-1])
    assert facts["rows"] == [ROWS, ROWS * (ROWS - 1) // 2, ROWS, PARTITIONS]
    assert facts["columns"] == facts["rows"]
    assert facts["copy"] == [ROWS, ROWS]
    assert facts["batches"] >= 3
    assert facts["rounds"] == PARTITIONS
    assert facts["is_smaller"]
    assert facts["failed"] == facts["errors"] == []
    check_log(tmp_path / "logs")
    check_messages(log.read_text().splitlines(), tmp_path / "logs")


def check_messages(log: list[str], logs: Path) -> None:
    """What users see on the driver's standard error: a line for each scan, in rows and then in
    columns, and one for what an option of the first is ignored for."""
    pattern = re.compile(r"[\d/]+ [\d:]+ (\w+ stratalog\.spark\.\w+): (.+)")
    ours = [found.groups() for line in log if (found := pattern.fullmatch(line))]
    kinds = [kind for kind, _ in ours]
    ignored = "WARNING stratalog.spark.options"
    in_rows, in_columns = "INFO stratalog.spark.reader", "INFO stratalog.spark.columnar"
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
