"""Steps 1 and 2: a week of events through the sink, and every byte of the result verified."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline import events
from pipeline.shop_log import CUSTOMERS, DAY_MS, ORDERS
from stratalog.spark.jobs import verify

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pipeline.events import Shop
    from pipeline.narration import Narrator
    from pipeline.shop_log import ShopLog

TASKS = 4
SINK = {
    ORDERS: {
        "topicPartitions": "4",
        "topicConfig.segment.ms": str(DAY_MS),
        "kafka.compression.type": "lz4",
    },
    CUSTOMERS: {
        "topicPartitions": "3",
        "topicConfig.segment.ms": str(DAY_MS),
        "topicConfig.cleanup.policy": "compact",
    },
}


def ingest(tell: Narrator, spark: SparkSession, log: ShopLog, shop: Shop) -> None:
    """Write both topics. The sink creates them with their settings."""
    tell.section(
        "1. Ingest a week of a shop",
        "Spark generates orders and changes of customers. The sink stages batches in all tasks in "
        "parallel, and commits them with one journal: every row is in the log once, or none is.",
    )
    _write(tell, spark, log, ORDERS, events.orders(spark, shop, TASKS))
    _write(tell, spark, log, CUSTOMERS, events.customers(spark, shop, TASKS))
    for topic, expected in ((ORDERS, shop.orders), (CUSTOMERS, shop.changes)):
        found = log.size(topic)
        tell.check(
            f"{topic}: {found.offsets:,} records in {found.segments} segments, one for each row",
            found.offsets == expected,
            f"({expected:,} rows)",
        )


def _write(tell: Narrator, spark: SparkSession, log: ShopLog, topic: str, rows: DataFrame) -> None:
    with tell.step(f"ingest {topic}", spark) as figure:
        sink = rows.write.format("stratalog").mode("append").options(**SINK[topic])
        sink.option("topic", topic).save(str(log.path))
        size = log.size(topic)
        figure.records, figure.size_bytes = size.offsets, size.size_bytes


def verify_all(tell: Narrator, spark: SparkSession, log: ShopLog) -> None:
    """Verify the directory. There must be no finding."""
    tell.section(
        "2. Verify every byte",
        "Each segment is a task: CRCs, every record of every batch, offsets, index entries, "
        "producer snapshots, checkpoints.",
    )
    with tell.step("verify", spark) as figure:
        result = verify(spark, [log.path])
        figure.records, figure.size_bytes = result.records, result.size_bytes
    counts = result.report.counts
    tell.check(
        f"no findings in {counts.batches:,} batches, {counts.index_entries:,} index entries "
        f"and {counts.files} files",
        not result.findings,
        result.findings[:3],
    )
