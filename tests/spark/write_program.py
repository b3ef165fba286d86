"""A driver of its own: `python write_program.py ROOT KILL_AT`.

Runs a query over files; with KILL_AT the whole driver dies in the middle of a commit. If it is 0,
the driver lives, and goes on: it writes rows whose tasks fail, or whose Python workers are killed,
at their first attempt, and ingests files in such tasks (ingest_program.py).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql import SparkSession

from stratalog.spark.session import home_without_archive
from tests.spark.ingest_program import ingest
from tests.spark.killing import KillingSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

TASKS, ROWS = 4, 5000
HANGS_S = 60


def session(master: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
        .config("spark.ui.showConsoleProgress", "false")
    )
    with home_without_archive(master, {}):
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def sabotage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Let the first attempt of each task come to a bad end after some rows."""
    context = TaskContext.get()
    assert context is not None
    task, is_first = context.partitionId(), context.attemptNumber() == 0
    for number, batch in enumerate(batches):
        yield batch
        if is_first and number == 4:
            time.sleep(0.5)  # what was handed on is on its way into a staged file
            if task == 0:
                raise ValueError("a task that fails")
            if task == 1:
                os._exit(1)
            if task == 2:
                kill_siblings()


def kill_siblings() -> None:
    """All Python workers of this executor: the one that stages rows is among them."""
    parent = os.getppid()
    for process in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            status = (process / "stat").read_text().rpartition(")")[2].split()
            if int(status[1]) == parent:
                os.kill(int(process.name), signal.SIGKILL)


def retry(spark: SparkSession, root: Path) -> None:
    df = spark.range(0, TASKS * ROWS, 1, TASKS).selectExpr("cast(id as string) value")
    bad = df.mapInArrow(sabotage, df.schema)
    writer = bad.write.format("stratalog").mode("append").option("topic", "orders")
    writer.save(str(root / "logs"))


def speculate(spark: SparkSession, root: Path) -> None:
    """Write rows on a cluster; the first attempt of one task hangs while a copy of it runs.

    Each attempt leaves a file, so that a test can tell that there were two.
    """
    attempts = root / "attempts"

    def hang(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        task, attempt = context.partitionId(), context.attemptNumber()
        for batch in batches:
            yield batch
            (attempts / f"{task} {attempt}").touch()
        deadline = time.monotonic() + HANGS_S
        while task == 0 and attempt == 0 and time.monotonic() < deadline:
            time.sleep(0.1)

    df = spark.range(0, TASKS * ROWS, 1, TASKS).selectExpr("cast(id as string) value")
    writer = df.mapInArrow(hang, df.schema).write.format("stratalog").mode("append")
    writer.option("topic", "orders").save(str(root / "logs"))


def stream(spark: SparkSession, root: Path, kill_at: int) -> None:
    spark.dataSource.register(KillingSource)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    pids = f"{os.getpid()},{gateway.proc.pid}"
    reader = spark.readStream.schema("value string").option("maxFilesPerTrigger", 1)
    query = (
        reader.json(str(root / "in"))
        .writeStream.format("killing")
        .option("topic", "orders")
        .option("killAt", kill_at)
        .option("killPids", pids)
        .option("checkpointLocation", str(root / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(root / "logs"))
    )
    query.awaitTermination()


def main(root: Path, kill_at: int) -> None:
    spark = session(f"local[2,{TASKS}]")
    stream(spark, root / "stream", kill_at)
    retry(spark, root / "retry")
    ingest(spark, root / "ingest")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
