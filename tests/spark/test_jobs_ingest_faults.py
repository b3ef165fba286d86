"""A job that fails while it ingests files leaves nothing; for tasks that are tried again, and for
workers that die, see test_write_faults.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest

from stratalog.bulk.ingest import plan_ingest, run_ingest
from stratalog.bulk.input_files import FileSource
from stratalog.bulk.workers import ThreadWorkers
from stratalog.errors import JobError
from tests.bulk.options import writing
from tests.spark.test_write_faults import write_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

T = TypeVar("T")
R = TypeVar("R")


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
