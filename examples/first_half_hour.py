"""The first half hour with Stratalog: write from several sources, move a job, export and query.

    python examples/first_half_hour.py [DIRECTORY]

Five days of orders come from JSON lines, CSV, Parquet, a pandas DataFrame and a Spark DataFrame,
and are written to one topic. A streaming job that was written for Spark's Kafka connector reads
them; it keeps its options. SQL reads and writes the topic as a table. An export writes Parquet, and
the next one adds only what is new. DuckDB queries the exported files, and polars the topic itself.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa

from stratalog import LogDir, open_dirs
from stratalog.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime(2026, 5, 4, tzinfo=UTC)
ORDERS_A_DAY = 200
PRODUCTS = ("apple", "pear", "melon")
SCHEMA = "id STRING, at STRING, product STRING, pieces INT, price DOUBLE"
TYPE = pa.struct([("product", pa.string()), ("pieces", pa.int64()), ("price", pa.float64())])
CONNECTOR_OPTIONS = {
    "kafka.bootstrap.servers": "broker-1:9092,broker-2:9092",
    "kafka.security.protocol": "SASL_SSL",
    "kafka.group.id": "revenue",
    "subscribe": "orders",
    "startingOffsets": "earliest",
    "maxOffsetsPerTrigger": "400",
}


def orders_of(day: int) -> list[dict[str, Any]]:
    """The orders of a day."""
    start = START + timedelta(days=day)
    return [
        {
            "id": f"{day}-{number}",
            "at": (start + timedelta(minutes=number)).isoformat(),
            "product": PRODUCTS[number % 3],
            "pieces": number % 5 + 1,
            "price": 1.25 * (number % 3 + 1),
        }
        for number in range(ORDERS_A_DAY)
    ]


def stratalog(*arguments: object) -> list[str]:
    """Print a command, and run it."""
    words = [str(each) for each in arguments]
    print("$ stratalog " + " ".join(word.rpartition("/")[2] for word in words))
    command = [sys.executable, "-m", "stratalog", *words]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


# -- write to the topic


def from_files(directory: Path, data: Path) -> None:
    """JSON lines, CSV, and Parquet written by pandas. In each of them, numbers stay numbers."""
    names = ("monday.jsonl", "tuesday.csv", "wednesday.parquet")
    lines, table, parquet = (directory / name for name in names)
    lines.write_text("".join(json.dumps(order) + "\n" for order in orders_of(0)))
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, orders_of(1)[0])
        writer.writeheader()
        writer.writerows(orders_of(1))
    frame = pd.DataFrame(orders_of(2))
    frame.assign(at=pd.to_datetime(frame["at"])).to_parquet(parquet)  # times in nanoseconds
    for path in (lines, table, parquet):
        stratalog("ingest", path, "--to", data, "-t", "orders", "--key", "id", "--timestamp", "at")


def from_pandas(data: Path) -> None:
    """A DataFrame with the columns of records."""
    orders = orders_of(3)
    frame = pd.DataFrame(
        {
            "key": [order["id"] for order in orders],
            "value": [json.dumps(order) for order in orders],
            "timestamp": pd.to_datetime([order["at"] for order in orders]),
        }
    )
    with LogDir.open(data) as logs:
        stored = logs.append_columns("orders", frame)
    print(f"pandas: {sum(each.record_count for each in stored)} orders appended")


def from_spark(spark: SparkSession, data: Path) -> None:
    """A Spark DataFrame, written as to Kafka."""
    frame = spark.createDataFrame(orders_of(4), SCHEMA)
    records = frame.selectExpr("id AS key", "to_json(struct(*)) AS value")
    records.write.format("stratalog").option("topic", "orders").mode("append").save(str(data))


# -- a job that was written for Kafka


def revenue(spark: SparkSession, data: Path) -> float:
    """The job now reads files. Options that only concern brokers are ignored."""
    records = spark.readStream.format("stratalog").options(**CONNECTOR_OPTIONS).load(str(data))
    orders = records.selectExpr(f"from_json(CAST(value AS STRING), '{SCHEMA}') AS o").select("o.*")
    totals = orders.groupBy("product").agg({"pieces": "sum", "*": "count"})
    query = totals.writeStream.format("memory").queryName("totals").outputMode("complete")
    query.trigger(availableNow=True).start().awaitTermination()
    for row in spark.table("totals").orderBy("product").collect():
        print(f"stream: {row['count(1)']} orders of {row['product']}, {row['sum(pieces)']} pieces")
    return float(spark.table("totals").selectExpr("sum(`count(1)`)").first()[0])  # type: ignore[index]


# -- SQL


def query_with_sql(spark: SparkSession, data: Path) -> None:
    """Read and write the topic as a table."""
    spark.sql(f"CREATE TABLE orders USING stratalog OPTIONS (topic 'orders') LOCATION '{data}'")
    query = """
        SELECT o.product, round(sum(o.pieces * o.price), 2) AS revenue
        FROM (SELECT from_json(CAST(value AS STRING), '{schema}') AS o FROM orders)
        GROUP BY o.product ORDER BY o.product
    """
    for row in spark.sql(query.format(schema=SCHEMA)).collect():
        print(f"SQL: {row['product']} {row['revenue']:.2f}")
    late = {**orders_of(4)[0], "id": "late"}
    spark.sql(f"""
        INSERT INTO orders (key, value)
        VALUES (CAST('late' AS BINARY), CAST('{json.dumps(late)}' AS BINARY))
    """)


# -- export and query


def export(data: Path, lake: Path) -> None:
    """Export what is new since the last export, as Parquet."""
    (line,) = stratalog("export", "orders", "-d", data, "--to", lake, "--text", "--incremental")
    print(f"  {line.partition(', ')[0]}")


def query_with_duckdb(lake: Path) -> int:
    """Count the orders in the exported files, by day."""
    files = f"read_parquet('{lake}/topic=orders/*/*.parquet', hive_partitioning=true)"
    with duckdb.connect() as connection:
        rows = connection.sql(
            f"SELECT date, count(*), sum((value::JSON->>'pieces')::INT) FROM {files} "
            "WHERE date < '2026-05-08' GROUP BY ALL ORDER BY ALL"
        ).fetchall()
        total = connection.sql(f"SELECT count(*) FROM {files}").fetchall()[0][0]
    for date, count, pieces in rows:
        print(f"DuckDB: {date} {count} orders, {pieces} pieces")
    return int(total)


def query_with_polars(data: Path) -> int:
    """Read the topic itself, as columns."""
    with open_dirs(data) as logs:
        reader = logs.read_columns("orders", columns=["partition", "key", "value"], values=TYPE)
        orders = pl.DataFrame(reader).unnest("value")
    best = orders.group_by("product").agg(pl.len(), pl.col("pieces").sum()).sort("product")
    for product, count, pieces in best.iter_rows():
        print(f"polars: {count} orders of {product}, {pieces} pieces")
    return orders.height


def run(spark: SparkSession, directory: Path) -> None:
    """Run all steps."""
    data, lake = directory / "kafka", directory / "lake"
    expected = 5 * ORDERS_A_DAY
    stratalog("topic", "create", "orders", "-d", data, "--partitions", 3)
    from_files(directory, data)
    from_pandas(data)
    from_spark(spark, data)
    assert revenue(spark, data) == expected
    export(data, lake)
    query_with_sql(spark, data)  # adds one order
    export(data, lake)
    assert query_with_duckdb(lake) == expected + 1
    assert query_with_polars(data) == expected + 1


def main() -> None:
    """Run in the directory given, or in a temporary one."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(sys.argv[1] if len(sys.argv) > 1 else temporary).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        conf = {
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
        }
        with open_session("first half hour", master="local[2]", conf=conf) as spark:
            run(spark, directory)


if __name__ == "__main__":
    main()
