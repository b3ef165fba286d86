"""Replaying the headers of a log under other settings: how much log a core gets through."""

from __future__ import annotations

import struct
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.report import Work
from stratalog import LogConfig
from stratalog.bulk.survey import SurveyTask, survey_partition
from stratalog.format.record import Record, encode_batch
from stratalog.maintenance.recovery import open_log
from stratalog.storage.disk import Disk

if TYPE_CHECKING:
    from benchmarks.report import Report

_BASE_OFFSET: Final = struct.Struct(">q")
APPENDED: Final = 256
"""Batches a call."""
CONFIGS: Final = (
    LogConfig.parse({"segment.bytes": str(16 << 20)}),
    LogConfig.parse({"segment.bytes": str(64 << 20), "index.interval.bytes": "1024"}),
)


def run(report: Report) -> None:
    size = (64 if report.is_quick else 256) << 20
    with tempfile.TemporaryDirectory(prefix="stratalog-bench-") as scratch:
        for batch_bytes in (1024, 16_384):
            path = Path(scratch) / f"of{batch_bytes}-0"
            size_bytes, batches = _write(path, size, batch_bytes)
            case = f"headers, batches of {batch_bytes} B"
            for count, who in ((0, "counted only"), (1, "one config"), (2, "two configs")):
                task = SurveyTask(path, size_bytes, CONFIGS[:count], 1 << 42)
                work = Work(partial(_survey, task), batches, size_bytes=size_bytes)
                timing = report.time(case, who, work)
            report.require(
                f"{case}: two configs",
                size_bytes / timing.seconds / 1e9,
                at_least=1,
                unit=" GB/s",
            )


def _survey(task: SurveyTask) -> int:
    return survey_partition(task).facts.batches


def _write(path: Path, size: int, batch_bytes: int) -> tuple[int, int]:
    """A segment of equal batches of this size; returns its size and how many they are."""
    record = Record(0, 1_700_000_000_000, b"key", b"v" * (batch_bytes - 80))
    batch = encode_batch([record])
    count = size // len(batch)
    with open_log(path, LogConfig(), disk=Disk(), now_ms=lambda: 1 << 42) as log:
        for first in range(0, count, APPENDED):
            numbers = range(first, min(first + APPENDED, count))
            placed = (_BASE_OFFSET.pack(number) + batch[_BASE_OFFSET.size :] for number in numbers)
            log.append_as_follower(b"".join(placed))
    return count * len(batch), count
