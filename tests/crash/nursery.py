"""The other end of `forking.py`: starts processes there, follows what they report, kills them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

PATIENCE_S = 120.0


class Nursery:
    """Starts writers, and kills them."""

    def __init__(self, program: str) -> None:
        self._pipe, report = os.pipe()
        os.set_blocking(self._pipe, False)
        path = os.pathsep.join(filter(None, sys.path))
        self._process = subprocess.Popen(
            [sys.executable, program, str(report)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[report],
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        os.close(report)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=PATIENCE_S)
        self._process.stdout.close()
        os.close(self._pipe)

    def kill_after(
        self, events: int, delay_s: float, request: dict[str, object]
    ) -> tuple[int, str]:
        """Let a writer live until it has reported so much, and a moment longer.

        Counting events, not time: how far a writer gets in a time hangs on the machine's load.
        """
        pid = self._ask(json.dumps(request) + "\n")
        lines = b""
        end = time.monotonic() + PATIENCE_S
        while lines.count(b"\n") < events and b"\nX" not in lines:
            assert time.monotonic() < end, f"the writer hangs after {lines[-200:]!r}"
            time.sleep(0.0005)
            lines += self._drain()
        time.sleep(delay_s)
        os.kill(pid, signal.SIGKILL)
        status = self._ask("")
        return status, (lines + self._drain()).decode()

    def run(self, request: dict[str, object]) -> tuple[int, str]:
        """Let a process run to its end: its exit status, and what it has reported."""
        self._ask(json.dumps(request) + "\n")
        status = self._ask("")
        return status, self._drain().decode()

    def _ask(self, line: str) -> int:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(line)
        stdin.flush()
        return int(stdout.readline())

    def _drain(self) -> bytes:
        found = b""
        while True:
            try:
                found += os.read(self._pipe, 1 << 16)
            except BlockingIOError:
                return found
