"""A tour of the command line, on files that a real Kafka wrote. No broker is needed.

    python examples/tour.py

Every step prints the command that it runs, so you can repeat and change it.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = Path("tests/golden")

STEPS = [
    (
        "What is in a log directory?",
        "Topics, partitions, sizes, offsets and times, from names and indexes: no log is scanned.",
        f"ls {GOLDEN / 'multiseg'} {GOLDEN / 'txn'}",
    ),
    (
        "And in one partition?",
        "Segments, the state of their indexes, leader epochs, producers, aborted transactions.",
        f"ls {GOLDEN / 'txn' / 'txn-0'} --all",
    ),
    (
        "Read from an offset",
        "The indexes show the segment and the position; nothing before it is read.",
        f"read {GOLDEN / 'multiseg' / 'multiseg-0'} --from 1000 -n 3",
    ),
    (
        "Read from a point in time",
        "The first record at or after the time, found through the time index.",
        f"read {GOLDEN / 'multiseg' / 'multiseg-0'} --from-time 2023-11-14T22:13:30Z -n 3",
    ),
    (
        "Only what was committed",
        "Aborted transactions are left out, and reading stops at the last stable offset.",
        f"read {GOLDEN / 'txn' / 'txn-0'} --isolation-level read_committed -n 3",
    ),
    (
        "Where is offset 1000, exactly?",
        "The file, the position of the batch, its header, and the record.",
        f"find {GOLDEN / 'multiseg' / 'multiseg-0'} --offset 1000",
    ),
    (
        "How does Kafka find it?",
        "The same lookup, with every comparison.",
        f"explain {GOLDEN / 'multiseg' / 'multiseg-0'} --offset 1000",
    ),
    (
        "What kafka-dump-log prints",
        "The same options, and the same output, byte for byte.",
        f"dump --files {GOLDEN / 'txn-simple/txn-simple-0/00000000000000000000.log'} "
        "--print-data-log",
    ),
    (
        "What it does not print",
        "One JSON object per line, with the values of headers. Filters are options.",
        f"dump {GOLDEN / 'rdk-none/rdk-none-0'} --json --print-data-log --limit 2",
    ),
    (
        "A log after the kill of a broker, with one byte flipped",
        "Corruption is an error with path, position and offsets; --skip-corrupt lists it.",
        f"read {GOLDEN / 'u-badcrc/before/u-badcrc-0'} --from 247 --skip-corrupt",
    ),
]


def main() -> int:
    """Run the steps; the exit status is 0 if all succeeded."""
    console = Console(highlight=False)
    figures = Table(title="What it took", title_justify="left")
    figures.add_column("step")
    figures.add_column("seconds", justify="right")
    failures = 0
    for title, why, command in STEPS:
        console.rule(f"[bold]{title}", align="left")
        console.print(f"[dim]{why}[/]")
        console.print(f"[green]$ stratalog {command}[/]\n", soft_wrap=True)
        seconds, code = run(command)
        figures.add_row(title, f"{seconds:.2f}")
        failures += code not in expected_codes(command)
        console.print()
    console.print(figures)
    console.print(
        f"\nThe data is in [bold]{GOLDEN}[/], written by Apache Kafka. Try next:\n"
        "  .venv/bin/stratalog --help\n"
        f"  .venv/bin/stratalog explain {GOLDEN}/ooo-createtime/ooo-createtime-0"
        " --time 1700000100000\n"
        f"  .venv/bin/stratalog dump {GOLDEN}/compact/compact-0 --deep-iteration | head\n"
        f"  .venv/bin/stratalog ls {GOLDEN}/_logdir-run1 --json\n",
        soft_wrap=True,
    )
    return 1 if failures else 0


def expected_codes(command: str) -> set[int]:
    """If something corrupt was skipped, the status is 1, so that scripts notice it."""
    return {0, 1} if "--skip-corrupt" in command else {0}


def run(command: str) -> tuple[float, int]:
    """Run one `stratalog` command; it prints to the same terminal."""
    sys.stdout.flush()
    started = time.perf_counter()
    arguments = [sys.executable, "-m", "stratalog", *shlex.split(command)]
    code = subprocess.run(arguments, cwd=ROOT, check=False).returncode
    return time.perf_counter() - started, code


if __name__ == "__main__":
    sys.exit(main())
