"""Drivers and workers that die while they write or ingest: every row is in the log once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stratalog import LogDir
from stratalog.commits.journal import JOURNAL_FILE
from tests.effort import IS_LONG
from tests.spark import write_program

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
FILES, ROWS = 5, 100
"""Of the stream."""
INGESTED = 20_000
KILLS = ((6, False), (-2, True), (-5, True))
"""The change of the disk before which the driver dies, and whether the commit is decided then."""


def run(root: Path, kill_at: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, write_program.__file__, str(root), str(kill_at)]
    # A driver that is killed leaves temporary files.
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(root)}
    return subprocess.run(
        command, capture_output=True, text=True, env=env, timeout=1200, check=False
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


def write_rows(path: Path) -> None:
    """In two files, to be cut into four."""
    path.mkdir()
    for number, rows in enumerate((range(15_000), range(15_000, INGESTED))):
        (path / f"{number}.txt").write_text("".join(f"{row:09}\n" for row in rows))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What drivers leave that are killed while they commit, and one more that goes on. It does all
    the rest as well: a JVM takes long to start."""
    root = tmp_path_factory.mktemp("faults")
    for name in ("stream", "retry", "ingest"):
        make(root / name / "logs")
    (root / "stream" / "in").mkdir()
    for number in range(FILES):
        path = root / "stream" / "in" / f"{number}.json"
        path.write_text("".join(f'{{"value": "{number * ROWS + row}"}}\n' for row in range(ROWS)))
        os.utime(path, (1_700_000_000 + number,) * 2)
    write_rows(root / "ingest" / "in")
    for kill_at, is_decided in KILLS if IS_LONG else KILLS[-1:]:
        done = run(root, kill_at)
        assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
        assert (root / "stream" / "logs" / JOURNAL_FILE).exists() == is_decided
    done = run(root, 0)
    assert done.returncode == 0, done.stderr[-3000:]
    return root


def test_tasks_that_fail_and_workers_that_are_killed(root: Path) -> None:
    check_rows(root / "retry" / "logs")
    assert not list((root / "retry").rglob("*.staged"))


def check_rows(path: Path) -> None:
    """Every row once, those of one task in order."""
    found = values_in(path)
    count = write_program.TASKS * write_program.ROWS
    assert sorted(value for part in found for value in part) == list(range(count))
    for part in found:
        for task in range(write_program.TASKS):
            of_task = [value for value in part if value // write_program.ROWS == task]
            assert of_task == sorted(of_task)


def test_a_driver_that_is_killed_while_it_commits(root: Path) -> None:
    """While runs are installed; in a long run also before and right after the journal is there.

    At every other step it is only the process that commits that dies (test_write_stream.py).
    """
    logs = root / "stream" / "logs"
    found = values_in(logs)
    assert sorted(value for part in found for value in part) == list(range(FILES * ROWS))
    for part in found:
        assert part == sorted(part)
    assert not list(logs.rglob("*.staged"))
    assert not (logs / JOURNAL_FILE).exists()


def test_tasks_that_ingest_and_come_to_bad_ends(root: Path) -> None:
    found = root / "ingest"
    assert (found / "attempt 0 0").exists()
    assert all((found / f"bad end {number}").exists() for number in (1, 2, 3))
    parts = values_in(found / "logs")
    for part in parts:
        assert part == sorted(part)
    assert sorted(row for part in parts for row in part) == list(range(INGESTED))
    assert not list(found.rglob("*.staged"))
