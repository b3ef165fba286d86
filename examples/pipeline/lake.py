"""Step 7: export the topics to Parquet, and join them in SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.shop_log import CUSTOMERS, ORDERS
from stratalog.bulk.export import FileSpec
from stratalog.bulk.options import ReadOptions, Subscription
from stratalog.spark.jobs import export

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipeline.narration import Narrator
    from pipeline.shop_log import ShopLog

LAST_STATE = """
    SELECT key, max_by(from_json(value, 'tier string'), offset).tier AS tier
    FROM customers GROUP BY key
"""
REVENUE_BY_TIER = f"""
    WITH bought AS (
        SELECT from_json(value, 'customer string, cents long') AS bought FROM orders
    ), customer AS ({LAST_STATE})
    SELECT coalesce(customer.tier, 'gone or unknown') AS tier,
           count(*) AS orders, sum(bought.cents) / 100 AS revenue
    FROM bought LEFT JOIN customer ON customer.key = bought.customer
    GROUP BY 1 ORDER BY revenue DESC
"""


def export_and_ask(tell: Narrator, spark: SparkSession, log: ShopLog) -> None:
    """Export files that any engine reads, in directories by topic and day."""
    tell.section(
        "7. Export to Parquet, and query",
        "Workers write the files themselves, so no row passes through the JVM.",
    )
    target = log.directory / "parquet"
    with tell.step("export to Parquet", spark) as figure:
        wanted = ReadOptions((log.path,), Subscription(topics=(ORDERS, CUSTOMERS)))
        result = export(spark, wanted, target, FileSpec(is_text=True))
        figure.records, figure.size_bytes = result.records, result.size_bytes
    files, size_bytes = len(result.files), result.output_bytes
    tell.say(f"  {files} files, {size_bytes / 1e6:,.1f} MB, in {target}")
    for topic in (ORDERS, CUSTOMERS):
        spark.read.parquet(str(target / f"topic={topic}")).createOrReplaceTempView(topic)
    with tell.step("a join in SQL", spark) as figure:
        rows = spark.sql(REVENUE_BY_TIER).collect()
        figure.records = result.records
    cells = [(row.tier, f"{row.orders:,}", f"{row.revenue:,.2f}") for row in rows]
    tell.table(("tier", "orders", "revenue"), cells, "Revenue of the days that are left")
    in_log = log.read(spark, ORDERS, "timestamp timestamp").count()
    tell.check(
        f"{in_log:,} orders in the log, in the files and in the result",
        in_log == spark.table(ORDERS).count() == sum(row.orders for row in rows),
    )
