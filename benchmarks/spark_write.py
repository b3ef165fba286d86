"""Writing through Spark: rows into a topic, beside Spark's own Parquet write of them.

The sink does more than Spark's file writer: it places rows by key, makes every byte durable and
commits once. Both get the same rows, from memory and from Parquet files, and run on two cores.

All start each round alike: what they wrote in the round before is removed, the topic is created
again, and everything that anybody wrote is on the disk (`os.sync`); none of that is timed. Else a
log that grows from round to round would take fresh memory for its pages, where files that replace
their predecessors get recycled pages, and one side's bytes would be written to the disk in the
other's time. Parquet's files are not synced; what syncing them costs is shown as a side of its own.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import Work
from benchmarks.spark_limits import DroppedRows
from benchmarks.spark_session import all_cores, session
from stratalog.bulk.input_files import FileSource
from stratalog.bulk.options import WriteOptions
from stratalog.bulk.target import NewTopics, Target
from stratalog.partitions.view import open_dirs
from stratalog.spark.jobs import ingest_files

if TYPE_CHECKING:
    from collections.abc import Callable

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
        spark.dataSource.register(DroppedRows)
        for value_bytes, name in ((100, "100 B"), (1024, "1 KiB")):
            size_bytes = (32 << 20) if report.is_quick else (400 << 20)
            count = size_bytes // value_bytes
            _write(report, spark, Path(scratch), count, value_bytes, name)
            _ingest(report, spark, Path(scratch), count, value_bytes, name)


def _rows(spark: SparkSession, count: int, value_bytes: int) -> DataFrame:
    value = f"cast(rpad(sha2(cast(id as string), 512), {value_bytes}, 'abcdefgh ') as binary) value"
    return spark.range(0, count, 1, 4).selectExpr(_KEY, value)


def _write(
    report: Report, spark: SparkSession, scratch: Path, count: int, value_bytes: int, name: str
) -> None:
    rows = _rows(spark, count, value_bytes).cache()
    assert rows.count() == count
    size = {"records": count, "size_bytes": count * (value_bytes + 10)}
    logs, parquet = scratch / "logs", scratch / "parquet"

    def side(function: Callable[[], bool], prepare: Callable[[], None]) -> Work:
        return Work(function, True, prepare=prepare, **size)

    no_files, new_log = partial(_cleared, parquet), partial(_new_log, logs)
    found = report.race(
        f"write {count} records of {name}",
        {
            "Parquet, uncompressed": side(partial(_parquet, rows, parquet, "none"), no_files),
            "Parquet, synced": side(partial(_synced_parquet, rows, parquet), no_files),
            "Parquet, snappy": side(partial(_parquet, rows, parquet, "snappy"), no_files),
            "stratalog": side(partial(_ours, rows, logs, count, "none"), new_log),
            "stratalog, lz4": side(partial(_ours, rows, logs, count, "lz4"), new_log),
            "dropped rows": side(partial(_dropped, rows), os.sync),
        },
    )
    rows.unpersist()
    shutil.rmtree(logs)
    report.require(
        f"Spark write of {name}: Parquet's time over ours",
        found["Parquet, uncompressed"].seconds / found["stratalog"].seconds,
        at_least=0.7,
        aim=0.8,
    )
    report.require(
        f"Spark write of {name}, over the time of a sink that drops its rows",
        found["stratalog"].seconds / found["dropped rows"].seconds,
        at_most=3,
    )


def _ingest(
    report: Report, spark: SparkSession, scratch: Path, count: int, value_bytes: int, name: str
) -> None:
    """The same rows, lying in files."""
    files, logs, parquet = scratch / "files", scratch / "logs", scratch / "parquet"
    assert _parquet(_rows(spark, count, value_bytes), files, "none")
    size = {"records": count, "size_bytes": count * (value_bytes + 10)}
    found = report.race(
        f"copy {count} records of {name} from Parquet",
        {
            "Parquet, uncompressed": Work(
                partial(_copied, spark, files, parquet),
                True,
                prepare=partial(_cleared, parquet),
                **size,
            ),
            "stratalog": Work(
                partial(_ingested, spark, files, logs, count),
                True,
                prepare=partial(_new_log, logs),
                **size,
            ),
        },
    )
    for path in (files, logs, parquet):
        shutil.rmtree(path)
    report.require(
        f"Spark ingest of {name} from Parquet: a copy's time over ours",
        found["Parquet, uncompressed"].seconds / found["stratalog"].seconds,
        at_least=1,
    )


def _copied(spark: SparkSession, files: Path, path: Path) -> bool:
    return _parquet(spark.read.parquet(str(files)), path, "none")


def _ingested(spark: SparkSession, files: Path, path: Path, count: int) -> bool:
    options = WriteOptions(Target((path,), NewTopics(PARTITIONS)), "bench")
    done = ingest_files(spark, FileSource([files]), options)
    return done.records == count


def _parquet(rows: DataFrame, path: Path, codec: str) -> bool:
    rows.write.mode("overwrite").option("compression", codec).parquet(str(path))
    return True


def _synced_parquet(rows: DataFrame, path: Path) -> bool:
    """As durable as the log is: its files, and their names."""
    _parquet(rows, path, "none")
    for written in [*path.iterdir(), path]:
        fd = os.open(written, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
    return True


def _ours(rows: DataFrame, path: Path, count: int, codec: str) -> bool:
    writer = rows.write.format("stratalog").mode("append").option("topic", "bench")
    writer = writer.option("topicPartitions", PARTITIONS).option("kafka.compression.type", codec)
    writer.save(str(path))
    return _records_in(path) == count


def _dropped(rows: DataFrame) -> bool:
    """What Spark alone needs to hand rows to Python."""
    rows.write.format("dropped").mode("append").save()
    return True


def _cleared(path: Path) -> None:
    """Nothing is left of the round before, nor to be written to the disk."""
    shutil.rmtree(path, ignore_errors=True)
    os.sync()


def _new_log(path: Path) -> None:
    """An empty topic: creating it is not what is measured."""
    shutil.rmtree(path, ignore_errors=True)
    Target((path,), NewTopics(PARTITIONS)).find("bench")
    os.sync()


def _records_in(path: Path) -> int:
    return sum(partition.log_end_offset for partition in open_dirs(path).partitions_of("bench"))
