"""Export beside Spark writing the same rows to Parquet; verify beside a bare read of the files.

Spark's side is given its rows in memory, so that only writing is measured; export reads the log,
checks it and writes. Both run on two cores and compress alike. Verify runs on one core, by
the CPU time it takes. Lines of JSON that export wrote are ingested again on two cores.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.partitions import write_partition
from benchmarks.report import Work
from benchmarks.spark_read import _read
from benchmarks.spark_session import all_cores, session
from stratalog.bulk.export import FileSpec, export
from stratalog.bulk.ingest import ingest as ingest_files
from stratalog.bulk.input_files import FileSource
from stratalog.bulk.options import ReadOptions, WriteOptions
from stratalog.bulk.target import NewTopics, Target
from stratalog.maintenance.verify.directory import verify_partition
from stratalog.spark import jobs as spark_jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from benchmarks.partitions import BenchPartition
    from benchmarks.report import Report

_MEGABYTE = 1e6
_READ_BYTES = 4 << 20
OVER_SPARK = {("100 B", "snappy"): 2, ("1 KiB", "snappy"): 1.3, ("1 KiB", "none"): 2}
"""Of 1 KiB records two thirds of an export's time is snappy's own, which both sides have to pay."""


def run(report: Report) -> None:
    with tempfile.TemporaryDirectory(prefix="stratalog-bench-") as scratch:
        for value_bytes, name in ((100, "100 B"), (1024, "1 KiB")):
            parent = Path(scratch) / f"verify-{value_bytes}"
            parent.mkdir()
            size_bytes = (64 << 20) if report.is_quick else (512 << 20)
            bench = write_partition(parent, size_bytes=size_bytes, value_bytes=value_bytes)
            _verify(report, bench, name)
            shutil.rmtree(parent)
        with all_cores(), session(Path(scratch)) as spark:
            for value_bytes, name in ((100, "100 B"), (1024, "1 KiB")):
                parent = Path(scratch) / f"export-{value_bytes}"
                parent.mkdir()
                size_bytes = (128 if report.is_quick else 384) << 20
                bench = write_partition(parent, size_bytes=size_bytes, value_bytes=value_bytes)
                _export(report, spark, bench, name)
                if value_bytes == 100:
                    _ingest(report, bench, name)
                shutil.rmtree(parent)


def _verify(report: Report, bench: BenchPartition, name: str) -> None:
    size = {"records": bench.records, "size_bytes": bench.size_bytes}
    found = report.race(
        f"verify {bench.size_bytes >> 20} MiB of {name}",
        {
            "bare read": Work(lambda: _read_all(bench.path), bench.size_bytes, **size),
            "verify": Work(lambda: _verified(bench.path), (bench.records, 0), **size),
        },
        clock=time.process_time,
    )
    report.require(
        f"verify of {name}, one core",
        found["verify"].megabytes_per_second,
        at_least=1000,
        unit=" MB/s",
    )


def _read_all(path: Path) -> int:
    buffer = bytearray(_READ_BYTES)
    size = 0
    for log in sorted(path.glob("*.log")):
        descriptor = os.open(log, os.O_RDONLY)
        try:
            while count := os.readv(descriptor, [buffer]):
                size += count
        finally:
            os.close(descriptor)
    return size


def _verified(path: Path) -> tuple[int, int]:
    report = verify_partition(path, threads=1)
    return report.counts.records, len([f for f in report.findings if f.severity != "note"])


def _ingest(report: Report, bench: BenchPartition, name: str) -> None:
    """The way back of `export --format jsonl`: every record as it was, in its partition."""
    logs = bench.path.parent
    lines, target = logs.parent / "lines", logs.parent / "back"
    export(ReadOptions((logs,)), lines, FileSpec("jsonl"))

    def ingest() -> int:
        shutil.rmtree(target, ignore_errors=True)
        options = WriteOptions(Target((target,), NewTopics(1)))
        return ingest_files(FileSource([lines]), options).records

    work = Work(ingest, bench.records, records=bench.records, size_bytes=bench.size_bytes)
    found = report.race(
        f"ingest {bench.size_bytes >> 20} MiB of {name} from JSON lines", {"ingest": work}
    )
    report.require(
        f"ingest of exported JSON lines of {name}, two cores",
        bench.records / found["ingest"].seconds / _MEGABYTE,
        at_least=1,
        unit=" M records/s",
    )
    for path in (lines, target):
        shutil.rmtree(path)


def _export(report: Report, spark: SparkSession, bench: BenchPartition, name: str) -> None:
    logs, target = bench.path.parent, bench.path.parent.parent / "out"
    rows = _read(spark, logs).repartition(4).cache()
    rows.count()

    def write(codec: str) -> int:
        rows.write.mode("overwrite").option("compression", codec).parquet(str(target))
        return bench.records

    def export_on_spark(codec: str) -> int:
        shutil.rmtree(target, ignore_errors=True)
        return spark_jobs.export(spark, ReadOptions((logs,)), target, FileSpec(codec=codec)).records

    def export_on_threads(codec: str) -> int:
        shutil.rmtree(target, ignore_errors=True)
        return export(ReadOptions((logs,)), target, FileSpec(codec=codec)).records

    sides = {
        "Spark from memory": write,
        "export on Spark": export_on_spark,
        "export on threads": export_on_threads,
    }
    size = {"records": bench.records, "size_bytes": bench.size_bytes}
    for codec in ("snappy", "none"):
        works = {
            who: Work(partial(side, codec), bench.records, **size) for who, side in sides.items()
        }
        case = f"export {bench.size_bytes >> 20} MiB of {name} to Parquet, {codec}"
        found = report.race(case, works)
        if (name, codec) in OVER_SPARK:
            report.require(
                f"export of {name} over Spark's Parquet write, {codec}, speed",
                found["Spark from memory"].seconds / found["export on Spark"].seconds,
                at_least=OVER_SPARK[name, codec],
                aim=2,
            )
    rows.unpersist()
    shutil.rmtree(target, ignore_errors=True)
