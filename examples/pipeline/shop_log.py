"""The log directory of the shop, and sizes of its topics before and after each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import stratalog

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

ORDERS = "orders"
CUSTOMERS = "customers"
REVENUE = "revenue"
DAY_MS = 24 * 3600 * 1000


class Size(NamedTuple):
    """The size of a topic."""

    segments: int
    size_bytes: int
    """Of its `.log` files."""
    offsets: int
    """From the start to the end of each partition, added up."""


@dataclass(frozen=True)
class ShopLog:
    """Where it is, and how it is read."""

    directory: Path
    """The demo's. The log directory and what else the demo leaves are below it."""

    @property
    def path(self) -> Path:
        return self.directory / "kafka"

    def partition(self, topic: str, number: int) -> Path:
        return self.path / f"{topic}-{number}"

    def size(self, topic: str) -> Size:
        """From the names and sizes of files; no log is read."""
        views = list(stratalog.open_dirs(self.path).partitions_of(topic))
        return Size(
            sum(len(view.segments) for view in views),
            sum(view.size_bytes for view in views),
            sum(view.log_end_offset - view.log_start_offset for view in views),
        )

    def read(self, spark: SparkSession, topic: str, schema: str) -> DataFrame:
        """A topic as a DataFrame with the columns that `schema` names: no other is decoded."""
        reader = spark.read.format("stratalog").schema(schema).option("subscribe", topic)
        return reader.load(str(self.path))
