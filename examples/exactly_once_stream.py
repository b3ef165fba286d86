"""A streaming aggregation that writes to another topic, exactly once, across restarts.

    python examples/exactly_once_stream.py [DIRECTORY]

Each micro-batch is one commit, which the query's checkpoint and the number of the batch identify.
If a query dies after a commit but before Spark has recorded it, Spark runs the batch again, and the
sink skips it. Here, the query is stopped twice in the middle of a batch.

A window is written when it is closed (output mode append): Spark has no update mode for sinks that
are written in Python. To write every change of a window, use foreachBatch with the options txnAppId
and txnVersion, with which a repeated batch write is skipped, too.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from stratalog import LogDir, open_dirs
from stratalog.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

READINGS = 12_000
SPARK = {"spark.sql.shuffle.partitions": "2"}
START_MS = 1_700_000_000_000 // 60_000 * 60_000
SECOND_MS = 1_000
BATCHES = 6


def produce(data: Path) -> None:
    """Three sensors, each with one reading per second."""
    with LogDir.open(data) as logs:
        logs.create_topic("readings", 3)
        with logs.producer(compression="lz4") as producer:
            for number in range(READINGS):
                sensor = number % 3
                at_ms = START_MS + number // 3 * SECOND_MS
                value = json.dumps({"sensor": sensor, "degrees": number % 40}).encode()
                producer.append("readings", value, partition=sensor, timestamp=at_ms)


def start(spark: SparkSession, data: Path, checkpoint: Path) -> StreamingQuery:
    """Count and average by sensor and minute. The same for the first start and for a restart."""
    readings = (
        spark.readStream.format("stratalog")
        .option("subscribe", "readings")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", READINGS // BATCHES)
        .load(str(data))
    )
    reading = F.from_json(F.col("value").cast("string"), "sensor int, degrees int").alias("reading")
    by_minute = (
        readings.select("timestamp", reading)
        .withWatermark("timestamp", "30 seconds")
        .groupBy(F.window("timestamp", "1 minute"), "reading.sensor")
        .agg(F.count("*").alias("readings"), F.avg("reading.degrees").alias("degrees"))
    )
    records = by_minute.select(
        F.col("sensor").cast("string").alias("key"),
        F.to_json(F.struct("window.start", "sensor", "readings", "degrees")).alias("value"),
    )
    return (
        records.writeStream.format("stratalog")
        .option("topic", "by-minute")
        .option("topicPartitions", 2)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start(str(data))
    )


def stop_soon(query: StreamingQuery) -> None:
    """Stop the query after its first batch, in the middle of the next one."""
    while query.isActive and not query.recentProgress:
        time.sleep(0.02)
    query.stop()


def written(data: Path) -> list[dict[str, Any]]:
    """Every record of the topic, as a consumer would see it."""
    partitions = open_dirs(data).partitions_of("by-minute")
    return [
        json.loads(record.value or b"") for log in partitions for record in log.read("earliest")
    ]


def run(spark: SparkSession, directory: Path) -> None:
    """Stop the query twice, then let it run to its end, and count the windows."""
    data, checkpoint = directory / "kafka", directory / "checkpoint"
    produce(data)
    for _ in range(2):
        stop_soon(start(spark, data, checkpoint))
        print(f"stopped; windows so far: {len(written(data))}")
    query = start(spark, data, checkpoint)
    query.awaitTermination()

    windows = written(data)
    names = {(window["start"], window["sensor"]) for window in windows}
    print(f"done; windows: {len(windows)}, each of them once: {len(names) == len(windows)}")
    print(f"readings in each: {sorted({window['readings'] for window in windows})}")
    # All minutes except those that the watermark (30 seconds) has not passed yet.
    closed = (READINGS // 3 - 1 - 30) // 60 * 3
    assert len(names) == len(windows) == closed, (len(names), len(windows), closed)
    assert all(window["readings"] == 60 for window in windows)


def main() -> None:
    """Run in the directory given, or in a temporary one."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        with open_session("exactly once", master="local[2]", conf=SPARK) as spark:  # quiet, in UTC
            run(spark, directory)


if __name__ == "__main__":
    main()
