"""Read orders from a log into a table, aggregate them, and write the large ones to the log."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()
DATA = spark.conf.get("shop.data")


@dp.table
def orders() -> DataFrame:
    """A streaming table: every run adds the records that are new in the topic."""
    records = (
        spark.readStream.format("stratalog")
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .load(DATA)
    )
    order = F.from_json(F.col("value").cast("string"), "country string, cents long")
    key = F.col("key").cast("string").alias("number")
    return records.select(key, "timestamp", order.alias("order")).select(
        "number", "timestamp", "order.*"
    )


@dp.materialized_view
def revenue_by_country() -> DataFrame:
    """Computed again from the table on every run."""
    return spark.read.table("orders").groupBy("country").agg(F.sum("cents").alias("cents"))


dp.create_sink(
    "large_orders",
    "stratalog",
    {"path": DATA, "topic": "large-orders", "topicPartitions": "1"},
)


@dp.append_flow(target="large_orders")
def large() -> DataFrame:
    """Write large orders to the log, each of them once."""
    rows = spark.readStream.table("orders").where("cents >= 900")
    return rows.select(F.col("number").alias("key"), F.to_json(F.struct("*")).alias("value"))
