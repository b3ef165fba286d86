"""Drivers and workers that die while they write: every row is in the log once."""

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
KILLS = ((6, False), (-2, True), (-5, True))
"""The change of the disk before which the driver dies, and whether the commit is decided then."""


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, write_program.__file__, *map(str, arguments)]
    _, root, *_ = arguments  # where a driver that is killed leaves its temporary files
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


def test_a_driver_that_is_killed_while_it_commits(tmp_path: Path) -> None:
    """While runs are installed; in a long run also before and right after the journal is there.

    At every other step it is only the process that commits that dies (test_write_stream.py).
    """
    logs = tmp_path / "logs"
    make(logs)
    (tmp_path / "in").mkdir()
    files, rows = 5, 100
    for number in range(files):
        path = tmp_path / "in" / f"{number}.json"
        path.write_text("".join(f'{{"value": "{number * rows + row}"}}\n' for row in range(rows)))
        os.utime(path, (1_700_000_000 + number,) * 2)
    for kill_at, is_decided in KILLS if IS_LONG else KILLS[-1:]:
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
