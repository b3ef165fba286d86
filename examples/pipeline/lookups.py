"""Step 3: look up one record by offset and one by time, and show every step of the search."""

from __future__ import annotations

import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import stratalog
from pipeline.shop_log import ORDERS
from stratalog.spark import plan_read

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from pipeline.events import Shop
    from pipeline.narration import Narrator
    from pipeline.shop_log import ShopLog

HOUR_MS = 3600 * 1000


def look_up(tell: Narrator, spark: SparkSession, log: ShopLog, shop: Shop) -> None:
    """By offset, by time, and an hour of orders through Spark."""
    tell.section(
        "3. Look up by offset and by time",
        "No log is scanned. File names show the segment. A binary search in a sparse index finds a "
        "position, and a few batch headers lead from there to the batch. A broker does the same.",
    )
    path = log.partition(ORDERS, 1)
    _by_offset(tell, path)
    _by_time(tell, path, shop.start_ms + 60 * HOUR_MS)
    _hour_in_spark(tell, spark, log, shop)


def _by_offset(tell: Narrator, path: Path) -> None:
    with stratalog.open_partition(path) as view:
        offset = view.log_end_offset // 2
        with tell.step("look up an offset"):
            run(tell, f"explain {path} --offset {offset}")
        record = next(view.read(offset))
    tell.check(f"offset {offset} is there: {_text(record.key)}", record.offset == offset)


def _by_time(tell: Narrator, path: Path, time_ms: int) -> None:
    with tell.step("look up a time"):
        run(tell, f"explain {path} --time {time_ms}")
    with stratalog.open_partition(path) as view:
        found = view.find_time(time_ms)
        if found is None:
            tell.check(f"there is a record at {time_ms} or later", False)
            return
        before, at = view.read(found.offset - 1, max_records=2)
    tell.check(
        f"{_text(before.key)} is earlier than that, {_text(at.key)} is not",
        before.timestamp < time_ms <= at.timestamp,
    )


def _hour_in_spark(tell: Narrator, spark: SparkSession, log: ShopLog, shop: Shop) -> None:
    """The same indexes show which bytes Spark does not have to read."""
    time_ms = shop.start_ms + 60 * HOUR_MS
    options = {
        "subscribe": ORDERS,
        "startingTimestamp": str(time_ms),
        "endingTimestamp": str(time_ms + HOUR_MS),
    }
    with tell.step("an hour of orders in Spark", spark) as figure:
        plan = plan_read({**options, "path": str(log.path)}).summary
        hour = spark.read.format("stratalog").schema("timestamp timestamp").options(**options)
        figure.records = hour.load(str(log.path)).count()
        figure.size_bytes = plan.bytes_read
    share = 100 * plan.bytes_read / plan.bytes_total
    expected = shop.orders_before(time_ms + HOUR_MS) - shop.orders_before(time_ms)
    tell.check(
        f"all {expected:,} orders of that hour; {share:.1f} % of the bytes of the topic were read",
        figure.records == expected,
        f"({figure.records:,} found)",
    )


def run(tell: Narrator, command: str) -> None:
    """Run a `stratalog` command; it prints to the same terminal."""
    tell.command(f"stratalog {command}")
    tell.console.print()
    tell.console.file.flush()
    arguments = [sys.executable, "-m", "stratalog", *shlex.split(command)]
    code = subprocess.run(arguments, check=False).returncode
    tell.console.print()
    if code != 0:
        tell.check(f"stratalog {command} succeeds", False, f"(status {code})")


def _text(raw: bytes | None) -> str:
    return "no key" if raw is None else raw.decode()
