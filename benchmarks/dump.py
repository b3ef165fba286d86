"""Dumping a 512 MB log of 100-byte values, and how fast commands start. Whole processes are timed.

Kafka's own tool, on a machine like the one these promises were made for, took 2.2 s for the headers
and 19 s for every record with its data.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.partitions import write_partition
from benchmarks.report import Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.report import Report

SIZE_BYTES = 512_000_000
SMALL = Path("tests/golden/txn-simple/txn-simple-0/00000000000000000000.log")


def run(report: Report) -> None:
    size_bytes = 32_000_000 if report.is_quick else SIZE_BYTES
    with tempfile.TemporaryDirectory(prefix="stratalog-bench-") as scratch:
        bench = write_partition(Path(scratch), size_bytes=size_bytes)
        log = str(next(bench.path.glob("*.log")))
        _measure(report, log, bench.size_bytes, bench.records)


def _measure(report: Report, log: str, size_bytes: int, records: int) -> None:
    name = f"dump of {size_bytes / 1e6:.0f} MB"
    deep = ("dump", "--files", log, "--print-data-log")
    sides = {
        "headers": Work(partial(_run, ("dump", "--files", log)), 0, size_bytes=size_bytes),
        "deep, with data": Work(partial(_run, deep), 0, records=records, size_bytes=size_bytes),
    }
    timings = report.race(name, sides)
    started = report.race(
        "start of a command",
        {
            "--help": Work(partial(_run, ("--help",)), 0),
            "dump of a small file": Work(partial(_run, ("dump", "--files", str(SMALL))), 0),
        },
    )
    if not report.is_quick:
        report.require(f"{name}, headers", timings["headers"].seconds, at_most=1, unit=" s")
        report.require(f"{name}, deep", timings["deep, with data"].seconds, at_most=8, unit=" s")
    report.require("stratalog --help", started["--help"].seconds, at_most=0.3, unit=" s")
    small = started["dump of a small file"].seconds
    report.require("stratalog dump of a small file", small, at_most=0.5, unit=" s")


def _run(arguments: Sequence[str]) -> int:
    """The exit code; what is printed goes nowhere, as into a pipe that nobody slows down."""
    command = [sys.executable, "-m", "stratalog", *arguments]
    return subprocess.run(command, check=False, stdout=subprocess.DEVNULL).returncode
