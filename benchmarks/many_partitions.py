"""Commands over directories of 100, 1,000 and 5,000 partitions of ten small segments.

Each command runs in a process of its own; its time is that of the processor, user and system, which
other work on the machine does not change. What a command costs per segment is the growth from the
smallest directory to the largest, so that its start does not count.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.report import Timing
from stratalog.log_dir import LogDir

if TYPE_CHECKING:
    from benchmarks.report import Report

PARTITIONS = (100, 1_000, 5_000)
SEGMENTS = 10
_STRATALOG = (sys.executable, "-m", "stratalog")
_COMMANDS = {
    "ls": (*_STRATALOG, "ls"),
    "verify": (*_STRATALOG, "verify", "--threads", "1"),
    "stats": (*_STRATALOG, "stats"),
    "retain --explain": (*_STRATALOG, "retain", "--explain", "--defaults"),
    "open after a kill": (
        sys.executable,
        "-c",
        "import sys; from stratalog.log_dir import LogDir; "
        "LogDir.open(sys.argv[1], create=False, background=False).close()",
    ),
}
_CHANGING = "open after a kill"
FILES_OPEN = 4
"""Files of each partition that a writer has open after it has recovered it."""


class Cost(NamedTuple):
    """What a process took."""

    cpu_s: float
    memory_bytes: int


def run(report: Report) -> None:
    counts = (10, 50) if report.is_quick else PARTITIONS
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    costs: dict[str, list[tuple[int, Cost]]] = {name: [] for name in _COMMANDS}
    with tempfile.TemporaryDirectory(prefix="stratalog-bench-") as scratch:
        one = _write_one(Path(scratch) / "one")
        for count in counts:
            directory = _write_many(Path(scratch) / "many", one, count)
            for name, command in _COMMANDS.items():
                here = count
                if name == _CHANGING:  # the others see the same files
                    here = min(count, files_max // FILES_OPEN - 100)
                    _kill(directory, here, count)
                cost = _run((*command, str(directory)))
                costs[name].append((here, cost))
                case = f"{here:,} partitions, {here * SEGMENTS:,} segments"
                report.timings.append(Timing(report.benchmark, case, name, cost.cpu_s, 1))
            shutil.rmtree(directory)
    for name, found in costs.items():
        (first, little), (last, much) = found[0], found[-1]
        bound = 1 if name in {"verify", "stats"} else 5
        per_segment_ms = (much.cpu_s - little.cpu_s) / (last - first) / SEGMENTS * 1e3
        report.require(f"{name}, per segment", per_segment_ms, at_most=bound, unit=" ms")
        more = (much.memory_bytes - little.memory_bytes) / (last - first) / 1024
        report.require(f"{name}, memory per partition", more, at_most=64, unit=" KiB")


def _write_one(root: Path) -> Path:
    """A partition of ten segments of 1 KiB."""
    with LogDir.open(root, background=False) as logs:
        logs.create_topic("t", config={"segment.bytes": 1 << 20})
        for segment in range(SEGMENTS):
            if segment:
                logs.partition("t", 0).roll()
            for number in range(10):
                logs.append("t", bytes(80), key=b"%d" % number)
    return root / "t-0"


def _write_many(directory: Path, one: Path, count: int) -> Path:
    directory.mkdir()
    for number in range(count):
        shutil.copytree(one, directory / f"t-{number}")
    _write_checkpoint(directory, count)
    (directory / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')
    return directory


def _write_checkpoint(directory: Path, count: int) -> None:
    lines = "".join(f"t {number} 0\n" for number in range(count))
    (directory / "recovery-point-offset-checkpoint").write_text(f"0\n{count}\n{lines}")


def _kill(directory: Path, kept: int, count: int) -> None:
    """Leave the directory as a writer that was killed would, with so many of its partitions."""
    (directory / ".kafka_cleanshutdown").unlink()
    for number in range(kept, count):
        shutil.rmtree(directory / f"t-{number}")
    _write_checkpoint(directory, kept)


_LAUNCHER = """
import os, sys
to_null = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=to_null)
_, status, used = os.wait4(child, 0)
print(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)
sys.exit(os.waitstatus_to_exitcode(status))
"""
"""Linux counts the memory of the process that starts another as that of the other one, so a small
process has to start it."""


def _run(command: tuple[str, ...]) -> Cost:
    """Output goes nowhere. Raises if the command fails."""
    launcher = (sys.executable, "-S", "-E", "-c", _LAUNCHER, *command)
    done = subprocess.run(launcher, stdout=subprocess.PIPE, text=True, check=True)
    cpu_s, memory_bytes = done.stdout.split()
    return Cost(float(cpu_s), int(memory_bytes))
