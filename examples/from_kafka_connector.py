"""Move a job from format("kafka") to format("stratalog"): two lines change.

    python examples/from_kafka_connector.py [DIRECTORY]

Columns, options and their defaults are those of Spark's Kafka connector, so the query itself does
not change. Instead of brokers (kafka.bootstrap.servers), it names the path of their files.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from stratalog import LogDir, open_dirs
from stratalog.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SPARK = {"spark.sql.shuffle.partitions": "2"}


def clicks(spark: SparkSession, data: Path) -> DataFrame:
    """A batch read."""
    return (
        spark.read
        .format("stratalog")  # was: .format("kafka")
        .option("subscribe", "clicks")
        .option("startingOffsets", '{"clicks": {"0": 100, "1": -2}}')
        .option("endingOffsets", "latest")
        .option("includeHeaders", "true")
        .load(str(data))  # was: .option("kafka.bootstrap.servers", "broker:9092").load()
    )  # fmt: skip


def stream_of_clicks(spark: SparkSession, data: Path) -> DataFrame:
    """A stream. A checkpoint keeps offsets in the connector's own JSON."""
    return (
        spark.readStream
        .format("stratalog")  # was: .format("kafka")
        .option("subscribe", "clicks")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 500)
        .load(str(data))  # was: .option("kafka.bootstrap.servers", "broker:9092").load()
    )  # fmt: skip


def by_page(records: DataFrame) -> DataFrame:
    """The job: nothing changes here."""
    page = F.col("value").cast("string").alias("page")
    return records.select("partition", page).groupBy("page").agg(F.count("*").alias("clicks"))


def write_counts(counts: DataFrame, data: Path) -> None:
    """A batch write: key and value, as the connector takes them."""
    (
        counts.selectExpr("page AS key", "CAST(clicks AS STRING) AS value")
        .write
        .format("stratalog")  # was: .format("kafka")
        .option("topic", "clicks-by-page")
        .option("topicPartitions", 1)  # new: creates the topic, as a broker would
        .mode("append")
        .save(str(data))  # was: .option("kafka.bootstrap.servers", "broker:9092").save()
    )  # fmt: skip


def run(spark: SparkSession, data: Path) -> None:
    """Run the batch job, print its result, then run the same job as a stream."""
    with LogDir.open(data) as logs:  # in place of a broker that wrote the topic
        logs.create_topic("clicks", 2)
        with logs.producer() as producer:
            for number in range(2_000):
                page = b"/%s" % (b"home", b"cart", b"help")[number % 3]
                producer.append("clicks", page, partition=number % 2, headers={"n": b"%d" % number})

    records = clicks(spark, data)
    print("columns:", ", ".join(records.columns))
    write_counts(by_page(records), data)
    for record in open_dirs(data).partition("clicks-by-page", 0).read("earliest"):
        print(f"batch: {record.key!r} {record.value!r}")

    stream = by_page(stream_of_clicks(spark, data))
    query = stream.writeStream.format("memory").queryName("pages").outputMode("complete")
    query.trigger(availableNow=True).start().awaitTermination()
    for row in spark.table("pages").orderBy("page").collect():
        print(f"stream: {row.page} {row.clicks}")


def main() -> None:
    """Run in the directory given, or in a temporary one."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        with open_session("from kafka", master="local[2]", conf=SPARK) as spark:  # quiet, in UTC
            run(spark, directory)


if __name__ == "__main__":
    main()
