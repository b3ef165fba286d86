"""Lookups in one 1 GiB segment, beside a single 4 KiB `pread` of the same file.

By offset: from an offset to the batch that holds it. By time: from a timestamp to the first record
at or after it. Targets are random; the file is in the page cache.
"""

from __future__ import annotations

import os
import random
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.partitions import write_partition
from benchmarks.report import Work
from stratalog import open_partition
from stratalog.format.kernels import record_search  # noqa: F401  # loaded, as in any long-lived reader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.partitions import BenchPartition
    from benchmarks.report import Report
    from stratalog import PartitionView

LOOKUPS = 5_000
PAGE_BYTES = 4096


def run(report: Report) -> None:
    size_bytes = (64 << 20) if report.is_quick else (1 << 30) - 1
    with tempfile.TemporaryDirectory(prefix="stratalog-bench-") as scratch:
        _measure(report, write_partition(Path(scratch), size_bytes=size_bytes))


def _measure(report: Report, bench: BenchPartition) -> None:
    rng = random.Random(1)
    positions = [rng.randrange(bench.size_bytes - PAGE_BYTES) for _ in range(LOOKUPS)]
    offsets = [rng.randrange(bench.records) for _ in range(LOOKUPS)]
    times = [rng.randrange(bench.first_timestamp, bench.last_timestamp) for _ in range(LOOKUPS)]
    log = os.open(next(bench.path.glob("*.log")), os.O_RDONLY)
    with open_partition(bench.path) as view:
        timings = report.race(
            f"{LOOKUPS} lookups, {bench.size_bytes >> 20} MiB segment",
            {
                "one pread of 4 KiB": Work(partial(_read_pages, log, positions), LOOKUPS),
                "by offset": Work(partial(_find_offsets, view, offsets), LOOKUPS),
                "by time": Work(partial(_find_times, view, times), LOOKUPS),
            },
        )
    os.close(log)
    pread = timings["one pread of 4 KiB"].seconds
    report.require("lookup by offset over a pread", timings["by offset"].seconds / pread, at_most=8)
    report.require("lookup by time over a pread", timings["by time"].seconds / pread, at_most=20)


def _read_pages(fd: int, positions: Sequence[int]) -> int:
    return sum(len(os.pread(fd, PAGE_BYTES, position)) == PAGE_BYTES for position in positions)


def _find_offsets(view: PartitionView, offsets: Sequence[int]) -> int:
    """How many of them are in the batch that was found."""
    right = 0
    for offset in offsets:
        batch = view.segments[view.segments.slot_of(offset)].seek(offset).batch
        right += batch is not None and batch.base_offset <= offset <= batch.last_offset
    return right


def _find_times(view: PartitionView, times: Sequence[int]) -> int:
    """How many of them have a record at or after them, at most a batch away."""
    right = 0
    for timestamp in times:
        found = view.find_time(timestamp)
        right += found is not None and 0 <= found.timestamp - timestamp < 1000
    return right
