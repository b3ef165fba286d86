"""Compacting a log beside decoding the same bytes once, and the memory that takes.

1.1 GB of records with 100-byte values, nine for each of a million keys; fewer, larger ones; and
the same compressed. Both sides read from the page cache. The cleaner goes through the log twice,
writes what stays and makes it durable; reading ahead and writing go on in threads beside it, so
this benchmark uses all cores. Memory is the peak of a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks.logs import TIMESTAMP_MS
from benchmarks.report import Work
from stratalog.config import LogConfig
from stratalog.format.batch import Codec
from stratalog.format.encode_columns import encode_columns
from stratalog.format.record import BatchFields
from stratalog.log.partition_view import PartitionView
from stratalog.maintenance.cleaning.cleaner import Cleaner
from stratalog.maintenance.cleaning.plan import cleaner_log, plan_cleaning
from stratalog.maintenance.recovery import LoadPoint, open_log
from stratalog.storage.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.report import Report
    from stratalog.log.partition_log import PartitionLog

DEDUPE_BUFFER_BYTES = 128 << 20
RECORDS_PER_KEY = 9
PART_RECORDS = 100_000
CONFIG = LogConfig.parse({"cleanup.policy": "compact", "segment.bytes": str((1 << 31) - 1)})

# (values in bytes, codec, records)
CASES = (
    (100, Codec.NONE, 9_000_000),
    (1024, Codec.NONE, 1_000_000),
    (100, Codec.LZ4, 9_000_000),
)


class DirtyLog(NamedTuple):
    """A partition directory that was never cleaned: one full segment, one empty one."""

    path: Path
    records: int
    keys: int
    size_bytes: int


def run(report: Report) -> None:
    for value_bytes, codec, count in CASES:
        records = count // 20 if report.is_quick else count
        with tempfile.TemporaryDirectory() as home, _all_cores():
            dirty = write_dirty_log(Path(home) / "dirty-0", value_bytes, codec, records)
            name = f"compact, {value_bytes} B values, {codec.name.lower()}"
            sides = {
                "cleaner": Work(partial(clean_copy, dirty), dirty.keys, records, dirty.size_bytes),
                "decode once": Work(
                    partial(decode_once, dirty), records, records, dirty.size_bytes
                ),
            }
            found = report.race(name, sides)
            ratio = found["cleaner"].seconds / found["decode once"].seconds
            if not report.is_quick:  # a small log does not earn back what a round costs once
                report.require(f"{name}: over decoding once", ratio, at_most=3.0)
            peak = _peak_bytes(dirty) / 1e6
            limit = (1.5 * DEDUPE_BUFFER_BYTES + 200e6) / 1e6
            report.require(f"{name}: peak memory", peak, at_most=limit, unit=" MB")


def write_dirty_log(path: Path, value_bytes: int, codec: Codec, records: int) -> DirtyLog:
    """Keys at random; values that differ, and shrink to about a half when compressed."""
    path.mkdir()
    rng = np.random.default_rng(records)
    keys = records // RECORDS_PER_KEY
    seen = np.zeros(keys, np.bool_)
    values = _values(rng, value_bytes)
    with (path / f"{0:020d}.log").open("wb") as log:
        for first in range(0, records, PART_RECORDS):
            count = min(PART_RECORDS, records - first)
            chosen = rng.integers(0, keys, count)
            seen[chosen] = True
            part = pa.record_batch(
                {
                    "key": pa.array([b"key-%07d" % key for key in chosen.tolist()], pa.binary()),
                    "value": values.take(pa.array(rng.integers(0, len(values), count))),
                    "timestamp": pa.array(TIMESTAMP_MS + first + np.arange(count)),
                }
            )
            for batches in encode_columns(part, BatchFields(base_offset=first, codec=codec)):
                log.write(batches.data)
        size_bytes = log.tell()
    (path / f"{records:020d}.log").touch()
    with _opened(path, records) as opened:  # makes the indexes
        opened.flush()
    return DirtyLog(path, records, int(seen.sum()), size_bytes)


def _values(rng: np.random.Generator, value_bytes: int) -> pa.Array:
    half = value_bytes // 2
    return pa.array([rng.bytes(half) + b"." * (value_bytes - half) for _ in range(1000)])


def clean_copy(dirty: DirtyLog) -> int:
    """Clean a copy that shares the log's bytes; how many records stay."""
    copy = dirty.path.with_name("copy-0")
    copy.mkdir()
    try:
        for file in dirty.path.iterdir():
            os.link(file, copy / file.name)
        with _opened(copy, dirty.records) as log:
            plan = plan_cleaning(cleaner_log(log, None), CONFIG, int(time.time() * 1000))
            result = Cleaner(DEDUPE_BUFFER_BYTES).clean(log, plan)
        return result.records_kept
    finally:
        Disk().remove_tree(copy)


def _opened(path: Path, end_offset: int) -> PartitionLog:
    return open_log(
        path,
        CONFIG,
        disk=Disk(),
        now_ms=lambda: int(time.time() * 1000),
        point=LoadPoint(0, end_offset, was_clean=True),
    )


def decode_once(dirty: DirtyLog) -> int:
    """Every record into columns, from the files; how many there are."""
    with PartitionView(dirty.path) as view:
        return sum(batch.num_rows for batch in view.read_columns())


def _peak_bytes(dirty: DirtyLog) -> int:
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(dirty.path), str(dirty.records)],
        check=True,
        capture_output=True,
        text=True,
    )
    return int(json.loads(done.stdout))


@contextmanager
def _all_cores() -> Iterator[None]:
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    pinned = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    try:
        yield
    finally:
        os.sched_setaffinity(0, pinned)


if __name__ == "__main__":
    clean_copy(DirtyLog(Path(sys.argv[1]), int(sys.argv[2]), 0, 0))
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    print(int(status.partition("VmHWM:")[2].split()[0]) * 1024)
