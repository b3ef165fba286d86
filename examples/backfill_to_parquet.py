"""Backfill: write a topic to Parquet, and later only what is new.

    python examples/backfill_to_parquet.py [DIRECTORY]

A copy or a snapshot of a broker's disk is enough; no broker is needed. For whole topics, the
command `stratalog export orders -d DATA --to OUT --incremental` does the same, without rows in the
JVM.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from stratalog import LogDir
from stratalog.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPARK = {"spark.sql.shuffle.partitions": "2"}
START_MS = 1_700_000_000_000
MINUTE_MS = 60_000


def produce(data: Path, first: int, end: int) -> None:
    """Write the topic as a broker would: one order per minute."""
    with LogDir.open(data) as logs:
        if "orders" not in logs.topics:
            logs.create_topic("orders", 3)
        with logs.producer(compression="zstd") as producer:
            for number in range(first, end):
                value = json.dumps({"order": number, "cents": 100 + number % 900}).encode()
                at_ms = START_MS + number * MINUTE_MS
                producer.append("orders", value, key=b"order-%d" % number, timestamp=at_ms)


def read(spark: SparkSession, data: Path, starting: str) -> DataFrame:
    """All records from the starting offsets up to the current ends of the partitions."""
    reader = spark.read.format("stratalog").option("subscribe", "orders")
    return reader.option("startingOffsets", starting).load(str(data))


def backfill(spark: SparkSession, data: Path, lake: Path, starting: str = "earliest") -> str:
    """Append to the Parquet files of each day. Returns the offsets to continue from, as JSON."""
    records = read(spark, data, starting).cache()  # one snapshot, for the rows and their offsets
    order = F.from_json(F.col("value").cast("string"), "order long, cents long").alias("order")
    rows = records.select(
        "partition", "offset", "timestamp", order, F.to_date("timestamp").alias("date")
    ).select("partition", "offset", "timestamp", "order.*", "date")
    rows.write.partitionBy("date").mode("append").parquet(str(lake))
    ends = records.groupBy("partition").agg((F.max("offset") + 1).alias("end")).collect()
    records.unpersist()
    before = {} if starting == "earliest" else json.loads(starting)["orders"]
    return json.dumps({"orders": before | {str(row["partition"]): row["end"] for row in ends}})


def show_counts(spark: SparkSession, lake: Path) -> None:
    """Print how many orders the files have, by day."""
    table = spark.read.parquet(str(lake))
    days = table.groupBy("date").count().orderBy("date").collect()
    print(f"{table.count()} orders: {', '.join(f'{day.date} {day[1]}' for day in days)}")
    assert table.select("order").distinct().count() == table.count(), "an order was written twice"


def run(spark: SparkSession, directory: Path) -> None:
    """Write everything, then only what is new."""
    data, lake = directory / "kafka", directory / "lake"
    produce(data, 0, 3_000)
    offsets = backfill(spark, data, lake)
    show_counts(spark, lake)

    produce(data, 3_000, 4_000)
    offsets = backfill(spark, data, lake, offsets)
    show_counts(spark, lake)
    print("the next run starts at", offsets)


def main() -> None:
    """Run in the directory given, or in a temporary one."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        with open_session("backfill", master="local[2]", conf=SPARK) as spark:  # quiet, in UTC
            run(spark, directory)


if __name__ == "__main__":
    main()
