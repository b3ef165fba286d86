"""Reading through Spark, beside Spark reading the same rows from uncompressed Parquet.

Scans aggregate 100-byte and 1 KiB records, in columns with the accelerator and in rows without it;
ranges of time and single offsets are asked for by option and by `where`. Every query is checked.
Two cores: what is measured is Spark's engine with tasks, not one loop.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.partitions import write_partition
from benchmarks.report import Work
from benchmarks.spark_limits import OPTIONS, ReadyRows
from benchmarks.spark_session import all_cores, session
from stratalog.bulk.predicates import Interval, Predicate
from stratalog.spark.accelerator import SETTING
from stratalog.spark.options import plan_read

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.partitions import BenchPartition
    from benchmarks.report import Report, Timing

TOPIC_PARTITIONS = 10
PRUNED = "value binary, offset long"
READY_TASKS = 4
TWO_COLUMNS = ("sum(length(value))", "max(offset)")
ALL_COLUMNS = (
    "sum(length(value))",
    "sum(length(key))",
    "max(topic)",
    "max(partition)",
    "max(offset)",
    "max(timestamp)",
    "max(timestampType)",
)
COUNT = ("count(*)",)
IN_COLUMNS: dict[str, dict[str, float]] = {
    # Half of it is copies from Python to the JVM, whose speed differs from that of Parquet's code
    # from machine to machine: 1.7 to 2.5 times were seen (decision 0051).
    "100 B": {"two columns": 3, "all columns": 1.5},
    "1 KiB": {"two columns": 1.5, "all columns": 1.5},
}
"""Times of Parquet's time, with the accelerator and without a schema."""
IN_COLUMNS_AIMS: dict[str, dict[str, float | None]] = {
    "100 B": {"two columns": 2, "all columns": None},
    "1 KiB": {"two columns": 1, "all columns": 1},
}
AIMS = {"two columns": 2, "all columns": 4}
OVER_PARQUET: dict[str, dict[str, float]] = {
    # Of small records Spark's own work in any Python source is 2.5 times Parquet's (decision 0014).
    "100 B": {"two columns": 3.5, "all columns": 4},
    "1 KiB": {"two columns": 2, "all columns": 4},
}


def run(report: Report) -> None:
    with (
        all_cores(),
        tempfile.TemporaryDirectory(prefix="stratalog-bench-") as scratch,
        session(Path(scratch)) as spark,
    ):
        spark.dataSource.register(ReadyRows)
        for value_bytes, name in ((100, "100 B"), (1024, "1 KiB")):
            parent = Path(scratch) / f"logs-{value_bytes}"
            parent.mkdir()
            size_bytes = (64 << 20) if report.is_quick else (500 << 20)
            bench = write_partition(parent, size_bytes=size_bytes, value_bytes=value_bytes)
            parquet = parent / "parquet"
            _read(spark, parent).write.option("compression", "none").parquet(str(parquet))
            _scan(report, spark, bench, name)
            if value_bytes == 100:
                _time_range(report, spark, bench)
        _points(report, spark, Path(scratch))


def _columns(spark: SparkSession, path: Path, **options: object) -> DataFrame:
    """With the accelerator: no schema, no setting and no option."""
    spark.conf.set(SETTING, "true")
    reader = spark.read.format("stratalog").option("subscribe", "bench")
    return reader.options(**{name: str(value) for name, value in options.items()}).load(str(path))


def _read(
    spark: SparkSession, path: Path, schema: str | None = None, **options: object
) -> DataFrame:
    """Without it."""
    spark.conf.set(SETTING, "false")
    reader = spark.read.format("stratalog").option("subscribe", "bench")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    reader = reader.option("filterPushdown", "true")
    return (reader.schema(schema) if schema else reader).load(str(path))


def _parquet(spark: SparkSession, bench: BenchPartition) -> DataFrame:
    return spark.read.parquet(str(bench.path.parent / "parquet"))


def _answer(frame: DataFrame, aggregates: tuple[str, ...] = TWO_COLUMNS) -> tuple[Any, ...]:
    (row,) = frame.selectExpr(*aggregates).collect()
    return tuple(row)


def _scan(report: Report, spark: SparkSession, bench: BenchPartition, name: str) -> None:
    """Both sides read what the query asks for. A Python source is told by a schema, since Spark
    does not tell it which columns a query needs. Without one, two columns cost what all do."""
    logs = bench.path.parent
    size = {"records": bench.records, "size_bytes": bench.size_bytes}
    queries = {
        "two columns": (TWO_COLUMNS, PRUNED),
        "all columns": (ALL_COLUMNS, None),
        "no column": (COUNT, "partition int"),
    }
    for columns, (aggregates, schema) in queries.items():
        answer = _answer(_parquet(spark, bench), aggregates)
        frames = {
            "Parquet": partial(_parquet, spark, bench),
            "in columns": partial(_columns, spark, logs),
            "in rows": partial(_read, spark, logs, schema),
        }
        if schema == PRUNED:
            frames["in rows, no schema"] = partial(_read, spark, logs)
        works = {
            who: Work(partial(_asked, frame, aggregates), answer, **size)
            for who, frame in frames.items()
        }
        if aggregates != COUNT:
            ready = partial(_ready, spark, bench, answer[0], schema)
            works["ready rows"] = Work(partial(_bytes_of, ready, aggregates), answer[0], **size)
        found = report.race(f"aggregate {columns} of {bench.size_bytes >> 20} MiB of {name}", works)
        if aggregates != COUNT:
            _require_scan(report, found, name, columns)


def _asked(make: Callable[[], DataFrame], aggregates: tuple[str, ...]) -> tuple[Any, ...]:
    """Planning is timed too."""
    return _answer(make(), aggregates)


def _bytes_of(make: Callable[[], DataFrame], aggregates: tuple[str, ...]) -> int:
    """Ready rows are as many and as long as the topic's, but not the same."""
    return int(_asked(make, aggregates)[0])


def _require_scan(report: Report, found: dict[str, Timing], name: str, columns: str) -> None:
    """Beside Parquet, and in rows beside the limit of any Python source."""
    report.require(
        f"Spark scan of {name}, {columns}, in columns, over Parquet's time",
        found["in columns"].seconds / found["Parquet"].seconds,
        at_most=IN_COLUMNS[name][columns],
        aim=IN_COLUMNS_AIMS[name][columns],
    )
    ours = found["in rows"].seconds
    what = f"Spark scan of {name}, {columns}, in rows"
    report.require(
        f"{what}, over ready rows' time", ours / found["ready rows"].seconds, at_most=1.5
    )
    report.require(
        f"{what}, over Parquet's time",
        ours / found["Parquet"].seconds,
        at_most=OVER_PARQUET[name][columns],
        aim=AIMS[columns],
    )


def _ready(
    spark: SparkSession, bench: BenchPartition, total_bytes: int, schema: str | None = None
) -> DataFrame:
    settings = (bench.records, total_bytes // bench.records, READY_TASKS)
    reader = spark.read.format("ready").options(**dict(zip(OPTIONS, settings, strict=True)))
    return (reader.schema(schema) if schema else reader).load()


def _time_range(report: Report, spark: SparkSession, bench: BenchPartition) -> None:
    """One per cent of the records, from the middle."""
    span = bench.last_timestamp - bench.first_timestamp
    start = bench.first_timestamp + span // 2
    end = start + span // 100
    condition = f"timestamp >= timestamp_millis({start}) and timestamp < timestamp_millis({end})"
    options = {"startingTimestamp": start, "endingTimestamp": end}
    logs = bench.path.parent
    answer = _answer(_parquet(spark, bench).where(condition))
    found = report.race(
        "1 % of the time",
        {
            "Parquet": Work(lambda: _answer(_parquet(spark, bench).where(condition)), answer),
            "by option": Work(lambda: _answer(_read(spark, logs, **options)), answer),
            "by where": Work(lambda: _answer(_read(spark, logs).where(condition)), answer),
            "by where, in columns": Work(
                lambda: _answer(_columns(spark, logs).where(condition)), answer
            ),
        },
    )
    for who in ("by option", "by where", "by where, in columns"):
        ratio = found[who].seconds / found["Parquet"].seconds
        report.require(f"1 % of the time {who} over Parquet's time", ratio, at_most=1.2)


def _points(report: Report, spark: SparkSession, scratch: Path) -> None:
    """One record of a topic of 10 GiB: ten partitions that share the files of one."""
    size_bytes = (64 << 20) if report.is_quick else (1 << 30) - 1
    first, topic = scratch / "one", scratch / "topic"
    first.mkdir()
    topic.mkdir()
    bench = write_partition(first, size_bytes=size_bytes)
    for number in range(TOPIC_PARTITIONS):
        (topic / f"bench-{number}").symlink_to(bench.path)
    offset = bench.records * 3 // 4
    moment = (bench.first_timestamp + bench.last_timestamp) // 2
    times = {"startingTimestamp": moment, "endingTimestamp": moment + 1}
    in_one = f"partition = 7 and offset = {offset}"
    found = report.race(
        f"one offset of a topic of {TOPIC_PARTITIONS * bench.size_bytes >> 20} MiB",
        {
            "by offset, where": Work(lambda: _read(spark, topic).where(in_one).count(), 1),
            "by offset, where, in columns": Work(
                lambda: _columns(spark, topic).where(in_one).count(), 1
            ),
            "by time, options": Work(
                lambda: _read(spark, topic, **times).select("partition").distinct().count(),
                TOPIC_PARTITIONS,
            ),
        },
    )
    for who, timing in found.items():
        report.require(f"point query {who}", timing.seconds, at_most=2, unit=" s")
    options = {"path": str(topic), "subscribe": "bench"}
    plans = {
        "offset": plan_read(options, Predicate(offsets=Interval(offset, offset))),
        "time": plan_read(options | {name: str(value) for name, value in times.items()}),
    }
    for name, plan in plans.items():
        share = 100 * plan.summary.bytes_read / plan.summary.bytes_total
        report.require(f"bytes read for a point by {name}", share, at_most=1, unit=" %")
