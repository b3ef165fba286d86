"""Writing through Spark: rows in memory into a topic, beside Spark's own Parquet write of them.

The sink does more than Spark's file writer: it places rows by key, makes every byte durable and
commits once. Both get the same cached rows, and both run on two cores.
"""

from __future__ import annotations

import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import Work
from benchmarks.spark_session import all_cores, session
from stratalog.log_dir.view import open_dirs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.report import Report

PARTITIONS = 4
_KEY = "cast(concat('user-', lpad(cast(id * 7919 % 50000 as string), 5, '0')) as binary) key"


def run(report: Report) -> None:
    with (
        all_cores(),
        tempfile.TemporaryDirectory(prefix="stratalog-bench-") as scratch,
        session(Path(scratch)) as spark,
    ):
        for value_bytes, name in ((100, "100 B"), (1024, "1 KiB")):
            size_bytes = (32 << 20) if report.is_quick else (400 << 20)
            _write(report, spark, Path(scratch), size_bytes // value_bytes, value_bytes, name)


def _write(
    report: Report, spark: SparkSession, scratch: Path, count: int, value_bytes: int, name: str
) -> None:
    value = f"cast(rpad(sha2(cast(id as string), 512), {value_bytes}, 'abcdefgh ') as binary) value"
    rows = spark.range(0, count, 1, 4).selectExpr(_KEY, value).cache()
    assert rows.count() == count
    size = {"records": count, "size_bytes": count * (value_bytes + 10)}
    logs, parquet = scratch / "logs", scratch / "parquet"
    found = report.race(
        f"write {count} records of {name}",
        {
            "Parquet, uncompressed": Work(partial(_parquet, rows, parquet, "none"), True, **size),
            "Parquet, snappy": Work(partial(_parquet, rows, parquet, "snappy"), True, **size),
            "stratalog": Work(partial(_ours, rows, logs, count, "none"), True, **size),
            "stratalog, lz4": Work(partial(_ours, rows, logs, count, "lz4"), True, **size),
        },
    )
    rows.unpersist()
    shutil.rmtree(logs)
    report.require(
        f"Spark write of {name}: Parquet's time over ours",
        found["Parquet, uncompressed"].seconds / found["stratalog"].seconds,
        at_least=1,
    )


def _parquet(rows: DataFrame, path: Path, codec: str) -> bool:
    rows.write.mode("overwrite").option("compression", codec).parquet(str(path))
    return True


def _ours(rows: DataFrame, path: Path, count: int, codec: str) -> bool:
    """Onto what the rounds before have left: making a topic is not what is measured."""
    before = _records_in(path)
    writer = rows.write.format("stratalog").mode("append").option("topic", "bench")
    writer = writer.option("topicPartitions", PARTITIONS).option("kafka.compression.type", codec)
    writer.save(str(path))
    return _records_in(path) - before == count


def _records_in(path: Path) -> int:
    if not path.exists():
        return 0
    return sum(partition.log_end_offset for partition in open_dirs(path).partitions_of("bench"))
