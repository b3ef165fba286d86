"""A scan of a log in an S3 server, with and without 50 ms of latency before each answer.

Beside it: the same rows as Parquet from the same server by `pyarrow.dataset`, and the bytes of the
log read in order with `open_input_stream`. A proxy in this process adds the latency, also where it
is 0, so all take the same way.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pyarrow.parquet as pq

from benchmarks.partitions import write_partition
from benchmarks.report import Work
from stratalog import open_partition
from tests.stores import BUCKET, Answer, FaultyProxy, seaweed_server

if TYPE_CHECKING:
    from benchmarks.partitions import BenchPartition
    from benchmarks.report import Report
    from tests.stores import Request, S3Server

LATENCY_S = 0.05


def run(report: Report) -> None:
    size_bytes = (256 << 20) if report.is_quick else (1 << 30) - 1
    with tempfile.TemporaryDirectory(prefix="stratalog-bench-") as scratch, seaweed_server() as s3:
        bench = write_partition(Path(scratch), size_bytes=size_bytes)
        _upload(bench, s3)
        proxy = FaultyProxy(s3)
        try:
            _measure(report, bench, proxy)
        finally:
            proxy.close()


def _upload(bench: BenchPartition, s3: S3Server) -> None:
    s3.upload(bench.path, f"bench/{bench.path.name}")
    with open_partition(bench.path) as view:
        reader = view.read_columns()
        stream = s3.filesystem.open_output_stream(f"{BUCKET}/bench/rows.parquet")
        with stream, pq.ParquetWriter(stream, reader.schema, compression="none") as writer:
            for batch in reader:
                writer.write_batch(batch)


def _measure(report: Report, bench: BenchPartition, proxy: FaultyProxy) -> None:
    works = {
        "stratalog": partial(_scan, bench, proxy.server),
        "pyarrow.dataset, Parquet": partial(_scan_parquet, proxy.server),
        "open_input_stream, in order": partial(_read_in_order, bench, proxy.server),
    }
    seconds = {}
    for latency_s in (0.0, LATENCY_S):
        proxy.fault = partial(_late, latency_s)
        timings = report.race(
            f"scan of {bench.size_bytes >> 20} MiB, {latency_s * 1000:.0f} ms",
            {
                name: Work(work, bench.records, bench.records, bench.size_bytes)
                for name, work in works.items()
            },
        )
        seconds[latency_s] = timings["stratalog"].seconds
    share = seconds[0.0] / seconds[LATENCY_S]
    report.require("scan with 50 ms of latency, of one without", share, at_least=0.7)


def _late(latency_s: float, _: Request) -> Answer:
    return Answer(delay_s=latency_s)


def _scan(bench: BenchPartition, server: S3Server) -> int:
    uri = server.uri(f"bench/{bench.path.name}")
    with open_partition(uri, storage_options=server.options) as view:
        return sum(batch.num_rows for batch in view.read_columns())


def _scan_parquet(server: S3Server) -> int:
    found = ds.dataset(f"{BUCKET}/bench/rows.parquet", filesystem=server.filesystem)
    return sum(batch.num_rows for batch in found.to_batches())


def _read_in_order(bench: BenchPartition, server: S3Server) -> int:
    (log,) = bench.path.glob("*.log")
    key = f"{BUCKET}/bench/{bench.path.name}/{log.name}"
    total = 0
    with server.filesystem.open_input_stream(key) as stream:
        while data := stream.read(8 << 20):
            total += len(data)
    return bench.records if total == log.stat().st_size else 0
