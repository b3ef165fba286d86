"""Opening a partition of 1,000 segments that was closed cleanly, and what it takes of memory."""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.logs import build_log
from benchmarks.report import Work
from stratalog import LogConfig
from stratalog.format.batch import next_entry
from stratalog.maintenance.recovery import LoadPoint, open_log
from stratalog.storage.disk import Disk

if TYPE_CHECKING:
    from benchmarks.report import Report

SEGMENTS = 1_000


def run(report: Report) -> None:
    segments = 100 if report.is_quick else SEGMENTS
    with tempfile.TemporaryDirectory(prefix="stratalog-bench-") as scratch:
        path = Path(scratch) / "bench-0"
        end = _write(path, segments)
        case = f"open and close {segments} segments"
        timing = report.time(case, "stratalog", Work(partial(_open, path, end), end))
        small, large = (_of_size(Path(scratch), batches) for batches in (10, 160))
        for path in (small, large):
            _memory(path)  # what is imported at the first use of something does not count
        growth = _memory(large) / _memory(small)
    report.require(
        "opening a clean log, per segment", timing.seconds / segments * 1e3, at_most=1, unit=" ms"
    )
    report.require("memory of an open log 16 times the size", growth, at_most=1.2)


def _write(path: Path, segments: int, batches: int = 1) -> int:
    """So many segments of so many batches each; answers the log end offset."""
    log = build_log(bytes_min=1 << 20, value_bytes=100)
    entry = next_entry(log.data, 0)
    assert entry is not None
    batch = log.data[: entry.end]
    with open_log(path, LogConfig(), disk=Disk(), now_ms=_now_ms) as partition:
        for _ in range(segments):
            partition.append_many([batch] * batches)
            partition.roll()
        return partition.log_end_offset


def _of_size(scratch: Path, batches: int) -> Path:
    path = scratch / f"with{batches}-0"
    _write(path, 100, batches)
    return path


def _open(path: Path, end: int) -> int:
    point = LoadPoint(recovery_point=end, was_clean=True)
    with open_log(path, LogConfig(), disk=Disk(), now_ms=_now_ms, point=point) as partition:
        return partition.log_end_offset


def _memory(path: Path) -> int:
    """What opening and one lookup keep in memory."""
    point = LoadPoint(recovery_point=1 << 62, was_clean=True)
    tracemalloc.start()
    with open_log(path, LogConfig(), disk=Disk(), now_ms=_now_ms, point=point) as partition:
        partition.locate(partition.log_end_offset // 2)
        used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used


def _now_ms() -> int:
    return int(time.time() * 1000)
