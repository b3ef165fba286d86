"""Parquet without a JVM: the JSON that Spark makes of the same file, nested types included."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stratalog import open_dirs
from stratalog.bulk.ingest import ingest
from stratalog.bulk.input_files import FileSource
from tests.bulk.options import writing

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COLUMNS = {
    "i": pa.array([1, None, -(2**63)]),
    "u": pa.array([2**32 - 1, None, 0], pa.uint32()),
    "d": pa.array([Decimal("12345678901234567890.12"), None, Decimal("-0.50")]),
    "f": pa.array([1.5, None, 1e300]),
    "g": pa.array([0.1, None, 1e-20], pa.float32()),
    "b": pa.array([True, None, False]),
    "s": pa.array(['"ü\\\n', None, ""]),
    "c": pa.array(["x", None, "y"]).dictionary_encode(),
    "day": pa.array([date(2026, 11, 16), None, date(1970, 1, 1)]),
    "l": pa.array([[1, None], None, []]),
    "ll": pa.array([[["a"], None, []], None, []]),
    "st": pa.array([{"x": 1, "y": {"z": [1.5]}}, None, {"x": None, "y": None}]),
    "m": pa.array([[("k", 1), ("j", None)], None, []], pa.map_(pa.string(), pa.int64())),
    "ls": pa.array([[{"a": 1}, None], None, [{"a": None}]]),
}
US = pa.timestamp("us", "UTC")
TIMES = pa.array([datetime(2026, 11, 16, 1, 2, 3, 456000), None, datetime(1970, 1, 1)], US)


def by_spark(spark: SparkSession, path: Path) -> list[dict[str, Any]]:
    frame = spark.read.parquet(str(path))
    columns = ", ".join(f"`{name}`" for name in frame.columns)
    texts = frame.selectExpr(f"to_json(struct({columns}), map('ignoreNullFields', 'false')) AS v")
    return [json.loads(row.v) for row in texts.collect()]


def by_ingest(path: Path, logs: Path) -> list[dict[str, Any]]:
    ingest(FileSource([path]), writing(logs, topic="t", options={"topicPartitions": "1"}))
    with open_dirs(logs) as opened:
        return [json.loads(record.value or b"") for record in opened.partition("t", 0).read()]


def test_values_are_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({**COLUMNS, "t": TIMES}), path)
    expected, found = by_spark(spark, path), by_ingest(path, tmp_path / "logs")
    for theirs, ours in zip(expected, found, strict=True):
        for row in (theirs, ours):
            row["t"] = row["t"] and datetime.fromisoformat(row["t"])
        assert ours == theirs
        assert list(ours) == list(theirs)
