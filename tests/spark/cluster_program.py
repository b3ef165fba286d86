"""A driver for a cluster: `python cluster_program.py MASTER ROOT`.

Runs copies of a slow task and tests of reads on two executors; then ingests, reads, streams and
compacts, through executors of another machine, as far as they can tell. One driver does it all: it
and its executors take long to start. Prints a line when each step begins, and the facts at the end
as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from stratalog.log.reader import IsolationLevel
from stratalog.spark.accelerator import SETTING, accelerator_jar
from stratalog.spark.jobs import compact, verify
from tests.opening import open_logs
from tests.spark import test_read_golden, test_read_stream, test_recreated_topics
from tests.spark.conftest import arrow_bytes_of_executors
from tests.spark.write_program import speculate

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

ROWS, TASKS, KEYS, PARTITIONS = 60_000, 12, 1_000, 3


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """So that tasks are under way when a worker dies."""
    for batch in batches:
        time.sleep(0.2)
        yield batch


def main(master: str, root: Path) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master(master)
        .config("spark.jars", accelerator_jar())
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executor.memory", "512m")
        .config("spark.executor.cores", "1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "2000")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.quantile", "0.5")
        .config("spark.speculation.minTaskRuntime", "1s")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    say("speculate")
    speculate(spark, root / "speculated")
    say("tests of reads")
    run_tests_of_reads(spark, root / "reads")
    run_pipeline(spark, root)
    spark.stop()


def run_tests_of_reads(spark: SparkSession, root: Path) -> None:
    """Many splits of records of every kind, a stream that is restarted, and errors of tasks.
    `make test-long` runs all of them (test_executors.py)."""
    golden, streams, recreated = (root / name for name in ("golden", "streams", "recreated"))
    for path in (golden, streams, recreated):
        path.mkdir(parents=True)
    test_read_golden.test_what_the_consumer_read(
        spark, golden, "8k", 100, IsolationLevel.READ_COMMITTED
    )
    test_read_stream.test_restarts_go_on_where_the_checkpoint_says(spark, streams)
    with open_logs(recreated / "logs") as logs:
        test_recreated_topics.fill(logs, "old", 20)
        test_recreated_topics.test_a_batch_query_that_was_planned_before(
            spark, logs, recreated, "recreated"
        )
    assert arrow_bytes_of_executors(spark) == 0


def run_pipeline(spark: SparkSession, root: Path) -> None:
    facts: dict[str, Any] = {}
    logs = str(root / "logs")

    say("ingest")
    rows = spark.range(0, ROWS, numPartitions=TASKS).select(
        f.concat(f.lit("key "), f.col("id") % KEYS).cast("binary").alias("key"),
        f.col("id").cast("string").cast("binary").alias("value"),
    )
    slow = rows.mapInArrow(slowly, rows.schema)
    sink = slow.write.format("stratalog").option("topic", "orders").mode("append")
    sink = sink.option("topicConfig.cleanup.policy", "compact")
    sink = sink.option("topicConfig.segment.bytes", 80_000)
    sink.option("topicPartitions", PARTITIONS).save(logs)

    say("read")
    read = spark.read.format("stratalog").option("subscribe", "orders")
    read = read.option("kafka.bootstrap.servers", "unused:9092").option("groupIdPrefix", "mine")
    for name, is_columnar in (("rows", "false"), ("columns", "true")):
        spark.conf.set(SETTING, is_columnar)
        table = read.option("maxRecordsPerPartition", 10_000).load(logs)
        numbers = table.select(f.col("value").cast("string").cast("long").alias("n"), "partition")
        facts[name] = numbers.agg(
            f.count("*"), f.sum("n"), f.countDistinct("n"), f.countDistinct("partition")
        ).collect()[0][:]

    say("stream")
    stream = spark.readStream.format("stratalog").option("subscribe", "orders")
    counted = (
        stream.option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 24_000)
        .load(logs)
        .select("key", "value")
    )
    query = (
        counted.writeStream.format("stratalog")
        .option("topic", "copy")
        .option("topicPartitions", PARTITIONS)
        .option("checkpointLocation", str(root / "checkpoint"))
        .trigger(availableNow=True)
        .start(logs)
    )
    query.awaitTermination(300)
    facts["batches"] = len(query.recentProgress)
    copied = spark.read.format("stratalog").option("subscribe", "copy").load(logs)
    facts["copy"] = copied.agg(f.count("*"), f.countDistinct("value")).collect()[0][:]

    say("compact")
    result = compact(spark, logs, topics=["orders"])
    facts["rounds"] = len(result.passes)
    facts["failed"] = [str(each.error) for each in result.failed]
    facts["is_smaller"] = result.bytes_written < result.size_bytes // 2
    facts["errors"] = [
        str(each) for each in verify(spark, [logs]).findings if each.severity == "error"
    ]
    tell(json.dumps(facts))


def say(step: str) -> None:
    tell(f"step: {step}")


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
