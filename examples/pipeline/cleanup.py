"""Steps 5 and 6: compaction of the customers and retention of the orders, before and after."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from pipeline.shop_log import CUSTOMERS, DAY_MS, ORDERS
from stratalog import LogDir
from stratalog.spark.jobs import compact

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from pipeline.narration import Narrator
    from pipeline.shop_log import ShopLog, Size

KEPT_DAYS = 3


def compact_customers(tell: Narrator, spark: SparkSession, log: ShopLog) -> None:
    """Compaction drops records, but the last state of each customer stays the same."""
    tell.section(
        "5. Compact the customers",
        "The last record of each key stays. A record without a value deletes its key; it stays "
        "for delete.retention.ms, so that readers see it. The active segment is never cleaned.",
    )
    before, before_keys = log.size(CUSTOMERS), _keys(spark, log)
    with tell.step("compact customers", spark) as figure:
        result = compact(spark, log.path, topics=[CUSTOMERS])
        figure.records, figure.size_bytes = result.records, result.size_bytes
    tell.check(
        "every partition was eligible, and is compacted",
        len(result.passes) == 3 and not result.failed,
    )
    after, after_keys = log.size(CUSTOMERS), _keys(spark, log)
    rows = [
        _row("segments", before.segments, after.segments),
        _row("bytes", before.size_bytes, after.size_bytes),
        _row("records", before_keys.records, after_keys.records),
        ("records per key", _per_key(before_keys), _per_key(after_keys)),
        _row("keys", before_keys.keys, after_keys.keys),
        _row("of them deleted", before_keys.deleted, after_keys.deleted),
    ]
    tell.table((CUSTOMERS, "before", "after"), rows)
    tell.check("fewer records", after_keys.records < before_keys.records)
    tell.check(
        f"the last record of each of {after_keys.keys:,} keys is the same as before",
        (after_keys.keys, after_keys.deleted, after_keys.print)
        == (before_keys.keys, before_keys.deleted, before_keys.print),
    )


def _keys(spark: SparkSession, log: ShopLog) -> Row:
    """Records, keys, how many are deleted, and a fingerprint of the last record of every key."""
    columns = "key binary, value binary, partition int, offset long"
    state = F.max(F.struct("offset", "partition", "value")).alias("last")
    by_key = log.read(spark, CUSTOMERS, columns).groupBy("key").agg(F.count("*").alias("n"), state)
    is_deleted = F.col("last.value").isNull().cast("int")
    row = by_key.agg(
        F.sum("n").alias("records"),
        F.count("*").alias("keys"),
        F.sum(is_deleted).alias("deleted"),
        F.bit_xor(F.xxhash64("key", "last")).alias("print"),
    ).first()
    assert row is not None
    return row


def retain_orders(tell: Narrator, log: ShopLog) -> None:
    """Retention deletes whole segments, the oldest first."""
    tell.section(
        f"6. Keep {KEPT_DAYS} days of orders",
        "retention.ms is a setting of the topic. A segment is deleted as a whole when its newest "
        "record is too old; the next segment stays until its own newest record is.",
    )
    before = log.size(ORDERS)
    with tell.step("retain orders") as figure, LogDir.open(log.path, background=False) as logs:
        changes = {"retention.ms": KEPT_DAYS * DAY_MS, "file.delete.delay.ms": 0}
        logs.alter_config(ORDERS, changes)
        logs.maintenance.check_retention()
        states = logs.maintenance.state().partitions
    after = log.size(ORDERS)
    figure.records = before.offsets - after.offsets
    deleted = sum(state.deleted_segments for state in states)
    _tell_retention(tell, before, after)
    tell.check(
        f"{deleted} segments deleted, {after.segments} kept",
        0 < deleted == before.segments - after.segments,
    )


def _tell_retention(tell: Narrator, before: Size, after: Size) -> None:
    rows = [
        _row("segments", before.segments, after.segments),
        _row("bytes", before.size_bytes, after.size_bytes),
        _row("records", before.offsets, after.offsets),
    ]
    tell.table((ORDERS, "before", "after"), rows)


def _row(name: str, before: int, after: int) -> tuple[str, str, str]:
    return name, f"{before:,}", f"{after:,}"


def _per_key(keys: Row) -> str:
    return f"{keys.records / keys.keys:.2f}"
