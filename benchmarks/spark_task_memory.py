"""The peak memory of a process that reads a segment as one task of Spark would: all of its columns,
batch by batch. It must not depend on how large the segment is.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.partitions import write_partition

if TYPE_CHECKING:
    from benchmarks.report import Report

_SMALL_BYTES = 64 << 20
_LARGE_BYTES = (1 << 30) - 1


def run(report: Report) -> None:
    peaks = {size: _peak_bytes(size) for size in (_SMALL_BYTES, _LARGE_BYTES)}
    report.require(
        "peak memory of a task over 1 GiB, over one over 64 MiB",
        peaks[_LARGE_BYTES] / peaks[_SMALL_BYTES],
        at_most=1.1,
    )
    report.require(
        "peak memory of a task over 1 GiB", peaks[_LARGE_BYTES] / 1e6, at_most=400, unit=" MB"
    )


def _peak_bytes(size_bytes: int) -> int:
    with tempfile.TemporaryDirectory(prefix="stratalog-bench-") as scratch:
        bench = write_partition(Path(scratch), size_bytes=size_bytes)
        done = subprocess.run(
            [sys.executable, "-m", __name__, scratch, str(bench.records)],
            check=True,
            capture_output=True,
            text=True,
        )
    return int(json.loads(done.stdout))


def read_as_one_task(path: str, records: int) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

    from stratalog.bulk.read_task import ReadTask  # noqa: PLC0415
    from stratalog.spark.options import plan_read  # noqa: PLC0415
    from stratalog.spark.schema import full_schema  # noqa: PLC0415

    plan = plan_read({"path": path, "subscribe": "bench", "splitBytes": "2g"})
    (split,) = plan.splits
    task = ReadTask(to_arrow_schema(full_schema(includes_headers=False), timezone="UTC"))
    read = sum(batch.num_rows for batch in task.read(split))
    if read != records:
        raise AssertionError(f"read {read} records, not {records}")


if __name__ == "__main__":
    read_as_one_task(sys.argv[1], int(sys.argv[2]))
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    print(int(status.partition("VmHWM:")[2].split()[0]) * 1024)
