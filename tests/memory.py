"""How much memory a program takes, measured in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent


def peak_bytes() -> int:
    """The most memory that this process has had since it began, or since `restart_peak`.

    Not `ru_maxrss`: Linux counts the memory of the process that starts another as that of the
    other one, so a large process would hide what its programs allocate.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def restart_peak() -> int:
    """Let `peak_bytes` count from now on. Returns how much memory the process has now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak_bytes()


def output_of(program: str, *arguments: object) -> list[str]:
    """The words that a Python program prints; it may import `tests`. Raises if it fails."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
