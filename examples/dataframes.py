"""Read a topic into DuckDB, polars, pandas and Parquet, as columns, without copies in between.

    python examples/dataframes.py [DIRECTORY]

`read_columns` returns a `pyarrow.RecordBatchReader`. It is lazy: the consumer decides how much is
read. A log of any size takes the memory of a few batches, unless the consumer keeps them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pyarrow.dataset

from stratalog import LogDir, LogDirsView, open_dirs

START = datetime(2026, 5, 1, tzinfo=UTC)
ORDER = pa.struct([("product", pa.string()), ("amount", pa.int64())])


def write(directory: Path) -> None:
    """Write one order per minute for a day, to three partitions."""
    with LogDir.open(directory) as logs:
        logs.create_topic("orders", partitions=3)
        with logs.producer(compression="lz4") as producer:
            for minute in range(1440):
                order = {"product": ("apple", "pear", "melon")[minute % 3], "amount": minute % 7}
                time_ms = int((START + timedelta(minutes=minute)).timestamp() * 1000)
                key = b"customer-%d" % (minute % 50)
                producer.append("orders", json.dumps(order).encode(), key=key, timestamp=time_ms)


def query_with_duckdb(logs: LogDirsView) -> None:
    """SQL over a stream of batches. JSON is parsed as the type that is passed."""
    orders = logs.read_columns("orders", columns=["partition", "value"], values=ORDER)
    with duckdb.connect() as connection:
        connection.register("orders", orders)
        rows = connection.sql(
            "select value.product, count(*), sum(value.amount) from orders group by 1 order by 1"
        ).fetchall()
    for product, count, amount in rows:
        print(f"DuckDB: {count} orders of {product}, {amount} pieces")


def query_with_polars(logs: LogDirsView) -> None:
    """Read one hour. The time index shows where it begins."""
    noon = START + timedelta(hours=12)
    orders = logs.read_columns(
        "orders",
        since=noon,
        until=noon + timedelta(hours=1),
        timestamp_disorder_ms=0,  # nothing is out of order, so reading stops at the hour's end
        columns=["partition", "timestamp", "key"],
        keys="text",
    )
    frame = polars.DataFrame(orders)
    busiest = frame.group_by("key").len().sort("len", "key", descending=[True, False])
    print(f"polars: {frame.height} orders at noon, most of them by {busiest['key'][0]}")


def query_with_pandas(logs: LogDirsView) -> None:
    """Read the last two records of each partition."""
    ends = {partition: logs.partition("orders", partition).log_end_offset for partition in range(3)}
    start = {partition: end - 2 for partition, end in ends.items()}
    frame = logs.read_columns("orders", start=start, values="json").read_pandas()
    for row in frame.itertuples():
        print(f"pandas: {row.topic}-{row.partition}, offset {row.offset}: {row.value}")


def write_parquet(logs: LogDirsView, target: Path) -> None:
    """Dataset writers accept the reader directly."""
    orders = logs.read_columns("orders", values=ORDER)
    pa.dataset.write_dataset(orders, target, format="parquet", partitioning=["partition"])
    found = pa.dataset.dataset(target, partitioning=["partition"])
    print(f"Parquet: {found.count_rows()} rows in {len(found.files)} files")


def main(directory: Path) -> None:
    """Write, then query."""
    write(directory / "logs")
    with open_dirs(directory / "logs") as logs:
        query_with_duckdb(logs)
        query_with_polars(logs)
        query_with_pandas(logs)
        write_parquet(logs, directory / "parquet")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
