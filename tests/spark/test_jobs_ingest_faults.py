"""Tasks that fail and workers that die while they ingest files: every row is in the log once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

from stratalog import LogDir, open_dirs
from stratalog.bulk.ingest import plan_ingest, run_ingest
from stratalog.bulk.input_files import FileSource
from stratalog.bulk.workers import ThreadWorkers
from stratalog.errors import JobError
from tests.bulk.options import writing
from tests.spark import ingest_program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")
R = TypeVar("R")

ROOT = Path(__file__).resolve().parents[2]
ROWS = 20_000


def write_rows(path: Path) -> None:
    """In two files, to be cut into four."""
    path.mkdir()
    for number, rows in enumerate((range(15_000), range(15_000, ROWS))):
        (path / f"{number}.txt").write_text("".join(f"{row:09}\n" for row in rows))


@pytest.mark.spark
@pytest.mark.slow
def test_tasks_that_fail_and_workers_that_are_killed(tmp_path: Path) -> None:
    write_rows(tmp_path / "in")
    with LogDir.open(tmp_path / "logs", background=False) as logs:
        logs.create_topic("orders", 3, config={"segment.bytes": 20_000})
    done = subprocess.run(
        [sys.executable, ingest_program.__file__, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "attempt 0 0").exists()
    assert all((tmp_path / f"bad end {number}").exists() for number in (1, 2, 3))
    found = []
    for view in open_dirs(tmp_path / "logs").partitions_of("orders"):
        rows = [int(record.value or b"") for record in view.read()]
        assert rows == sorted(rows)
        found += rows
    assert sorted(found) == list(range(ROWS))
    assert not list(tmp_path.rglob("*.staged"))


def test_a_job_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even of the tasks that were done."""
    monkeypatch.setattr("stratalog.bulk.ingest.TASK_BYTES_MIN", 1000)
    monkeypatch.setattr("stratalog.bulk.ingest.FILE_COST_BYTES", 0)
    write_rows(tmp_path / "in")
    (tmp_path / "in" / "2.txt").write_bytes(b"x" * 2000)
    plan = plan_ingest(FileSource([tmp_path / "in"]))
    options = {"topicPartitions": "2", "topicConfig.max.message.bytes": "1000"}
    staged: list[Path] = []

    class Watched(ThreadWorkers):
        def run(
            self, function: Callable[[T], R], groups: Sequence[Sequence[T]], *, title: str
        ) -> list[R]:
            try:
                return super().run(function, groups, title=title)
            finally:
                staged.extend(tmp_path.rglob("*.staged"))

    with pytest.raises(JobError, match=r"max\.message\.bytes"):
        run_ingest(plan, writing(tmp_path / "logs", topic="t", options=options), Watched(3))
    assert staged
    assert not list(tmp_path.rglob("*.staged"))
    assert not list((tmp_path / "logs").glob("t-*"))
