"""Step 4: aggregate orders in windows, into another topic; stop halfway, and resume."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from pipeline.shop_log import ORDERS, REVENUE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pipeline.events import Shop
    from pipeline.narration import Narrator
    from pipeline.shop_log import ShopLog

TRIGGERS = 4
"""How many micro-batches the orders make."""
HOUR_MS = 3600 * 1000
ORDER = "country string, cents long"
WINDOW = "start timestamp, country string, orders long, cents long"


def stream(tell: Narrator, spark: SparkSession, log: ShopLog, shop: Shop) -> None:
    """Run the query, stop and restart it, and compare the result with that of a batch query."""
    tell.section(
        "4. Stream: revenue by country in windows of six hours, back into the log",
        f"Trigger.AvailableNow with maxOffsetsPerTrigger: about {TRIGGERS} micro-batches. The "
        "query is stopped in the middle of one and restarted from its checkpoint.",
    )
    with tell.step("stream orders", spark) as figure:
        _run_and_stop(tell, spark, log, shop)
        batches = _run_to_end(tell, spark, log, shop)
        figure.records, figure.size_bytes = shop.orders, log.size(ORDERS).size_bytes
    with tell.step("the same as a batch", spark) as figure:
        expected = _closed(log.read(spark, ORDERS, "value binary, timestamp timestamp"), shop)
        figure.records, figure.size_bytes = shop.orders, log.size(ORDERS).size_bytes
    written = _as_rows(_written(spark, log))
    tell.check(
        f"{batches} micro-batches have written {len(written)} windows, each of them once",
        len(written) == len({row[:2] for row in written}) > 0,
    )
    tell.check(
        f"{sum(row[2] for row in written):,} orders are counted in them, as in a batch query: "
        "none twice, and none is missing",
        written == expected,
    )


def revenue(orders: DataFrame) -> DataFrame:
    """Of a stream or of a batch, in the same words."""
    order = F.from_json(F.col("value").cast("string"), ORDER).alias("order")
    return (
        orders.select("timestamp", order)
        .withWatermark("timestamp", "1 hour")
        .groupBy(F.window("timestamp", "6 hours"), "order.country")
        .agg(F.count("*").alias("orders"), F.sum("order.cents").alias("cents"))
        .select(F.col("window.start").alias("start"), "country", "orders", "cents")
    )


def _start(spark: SparkSession, log: ShopLog, shop: Shop) -> StreamingQuery:
    orders = (
        spark.readStream.format("stratalog")
        .schema("value binary, timestamp timestamp")
        .option("subscribe", ORDERS)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", max(1, shop.orders // TRIGGERS))
        .load(str(log.path))
    )
    windows = revenue(orders)
    records = windows.select(
        F.col("country").alias("key"), F.to_json(F.struct(*windows.columns)).alias("value")
    )
    return (
        records.writeStream.format("stratalog")
        .queryName(REVENUE)
        .outputMode("append")  # a window is written once: when it is too late for it to change
        .option("topic", REVENUE)
        .option("topicPartitions", 1)
        .option("checkpointLocation", str(log.directory / "checkpoints" / REVENUE))
        .trigger(availableNow=True)
        .start(str(log.path))
    )


def _run_and_stop(tell: Narrator, spark: SparkSession, log: ShopLog, shop: Shop) -> None:
    query = _start(spark, log, shop)
    while query.isActive and query.lastProgress is None:  # no micro-batch is done yet
        time.sleep(0.05)
    was_active = query.isActive
    query.stop()
    _raise_failure(query)
    done = sum(progress["numInputRows"] for progress in query.recentProgress)
    tell.check(f"stopped with {done:,} of {shop.orders:,} orders read", was_active)


def _run_to_end(tell: Narrator, spark: SparkSession, log: ShopLog, shop: Shop) -> int:
    query = _start(spark, log, shop)
    query.awaitTermination()
    _raise_failure(query)
    first = min(progress["batchId"] for progress in query.recentProgress)
    last: int = max(progress["batchId"] for progress in query.recentProgress)
    tell.check(f"restarted at micro-batch {first}, not at the first", first > 0)
    return last + 1


def _raise_failure(query: StreamingQuery) -> None:
    failure = query.exception()
    if failure is not None:
        raise failure


def _written(spark: SparkSession, log: ShopLog) -> DataFrame:
    """What the query has written to the log."""
    value = F.from_json(F.col("value").cast("string"), WINDOW).alias("value")
    return log.read(spark, REVENUE, "value binary").select(value).select("value.*")


def _closed(orders: DataFrame, shop: Shop) -> list[Row]:
    """The windows that a stream has closed: no order can be that late."""
    newest_ms = shop.time_of(shop.orders - 1, shop.orders)
    over = F.timestamp_millis(F.lit(newest_ms - 7 * HOUR_MS))
    return _as_rows(revenue(orders).where(F.col("start") <= over))


def _as_rows(windows: DataFrame) -> list[Row]:
    return sorted(windows.select("start", "country", "orders", "cents").collect())
