"""A part of a driver of its own, write_program.py: ingests `ROOT/in` into `ROOT/logs`.

Every task comes to a bad end at its first attempt: one when all is staged and before it answers,
one by an error and two by sudden death in the middle, one of them at the hands of another.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from stratalog.bulk import ingest as ingest_files
from stratalog.bulk import ingest as ingest_plan
from stratalog.bulk import row_staging as row_stager
from stratalog.bulk.input_files import FileSource
from stratalog.bulk.line_rows import read_lines
from stratalog.spark.workers import SparkWorkers
from tests.bulk.options import writing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession

TASKS = 4


class Sabotage:
    """Runs in the workers, around what a task does there."""

    def __init__(self, function: Callable[[Any], Any], root: Path) -> None:
        self._function = function
        self._root = root

    def __call__(self, task: ingest_plan.IngestTask) -> Any:
        context = TaskContext.get()
        assert context is not None
        is_first = context.attemptNumber() == 0
        row_stager.GATHER_BYTES = 1000  # type: ignore[misc] # so that it stages as it goes
        ingest_files.read_lines = partial(read_lines, chunk_bytes=1000)  # type: ignore[attr-defined]
        ingest_files._read = self._reader(task.number) if is_first else READ
        answer = self._function(task)
        (self._root / f"attempt {task.number} {context.attemptNumber()}").touch()
        if is_first and task.number == 0:
            raise ValueError("a task that fails after all")
        return answer

    def _reader(self, number: int) -> Callable[..., Iterator[pa.RecordBatch]]:
        def read(*args: Any) -> Iterator[pa.RecordBatch]:
            for count, batch in enumerate(READ(*args)):
                yield batch
                if count == 10 and number:
                    assert list(self._root.rglob(f"*-{number}-*.staged"))
                    (self._root / f"bad end {number}").touch()
                    bad_end(number)

        return read


READ = ingest_files._read


def bad_end(number: int) -> None:
    if number == 1:
        raise ValueError("a task that fails")
    if number == 2:
        os._exit(1)
    os.kill(os.getpid(), signal.SIGKILL)


class BadWorkers(SparkWorkers):
    """As many tasks as there are bad ends."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        super().__init__(spark)
        self._root = root

    @property
    def slots(self) -> int:
        return TASKS

    def run(
        self, function: Callable[[Any], Any], groups: Sequence[Sequence[Any]], *, title: str
    ) -> list[Any]:
        return super().run(Sabotage(function, self._root), groups, title=title)


def ingest(spark: SparkSession, root: Path) -> None:
    ingest_plan.TASK_BYTES_MIN = 1000  # type: ignore[misc] # small files will do
    ingest_plan.FILE_COST_BYTES = 0  # type: ignore[misc]
    plan = ingest_files.plan_ingest(FileSource([root / "in"]))
    done = ingest_files.run_ingest(
        plan, writing(root / "logs", topic="orders"), BadWorkers(spark, root)
    )
    assert done.tasks == TASKS
