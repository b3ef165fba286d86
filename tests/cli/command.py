"""Run the real command, in a process of its own or, where many runs are needed, in this one."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from stratalog.format import kernels
from tests.cli.forking import Forks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

COMMAND = [sys.executable, "-W", "error", "-m", "stratalog"]


class Result(NamedTuple):
    """What a run printed and how it ended."""

    stdout: bytes
    stderr: str
    status: int

    @property
    def lines(self) -> list[str]:
        return self.stdout.decode().splitlines()

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Output of `--json`."""
        return [json.loads(line) for line in self.stdout.split(b"\n")[:-1]]


@cache
def compile_kernels() -> None:
    """Before a command runs, so that it does not report that it has to, after a change of them."""
    package = Path(kernels.__path__[0])
    sources = [*package.glob("*.py"), *(package.parents[1] / "dump").glob("*.py")]
    stamp = package / "__pycache__" / f"compiled-for-tests.{sys.implementation.cache_tag}"
    newest = max(source.stat().st_mtime for source in sources)
    if not stamp.exists() or stamp.stat().st_mtime < newest:
        subprocess.run([*COMMAND, "compile-kernels"], check=True, capture_output=True)
        stamp.touch()


@cache
def _forks(*prefix: str) -> Forks:
    return Forks(*prefix)


def stratalog(*args: str | Path, cwd: Path | None = None, given: bytes = b"") -> Result:
    """All streams are pipes; `given` is on standard input."""
    compile_kernels()
    done = _forks().run(*args, cwd=cwd, given=given)
    return Result(done.stdout, done.stderr.decode(), done.status)


def program(code: str, *args: str | Path, cwd: Path | None = None) -> Result:
    """What somebody has written, where Stratalog and all that it needs are imported already."""
    compile_kernels()
    done = _forks().run(*args, code=code, cwd=cwd)
    return Result(done.stdout, done.stderr.decode(), done.status)


def start(
    *args: str, streams: tuple[int, int, int], cwd: Path, env: Mapping[str, str]
) -> Callable[[], int]:
    """With the caller's descriptors as streams; what is returned waits for the end."""
    compile_kernels()
    _forks().start(*args, streams=streams, cwd=cwd, env=env)
    return _forks().wait


def without_privileges(*args: str | Path) -> Result:
    """As a user whom the modes of files bind, even where the tests run as root."""
    compile_kernels()
    bound = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    done = _forks(*(bound if os.geteuid() == 0 else [])).run(*args)
    return Result(done.stdout, done.stderr.decode(), done.status)


def on_terminal(*args: str | Path, columns: int = 80) -> str:
    """What a terminal of this width shows, escape sequences included."""
    compile_kernels()
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "LINES": "50", "TERM": "xterm"}
    environment.pop("NO_COLOR", None)
    _forks().start(*args, streams=(theirs, theirs, theirs), env=environment)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # Linux's way to say that the other side is closed
        while chunk := os.read(ours, 65536):
            shown += chunk
    os.close(ours)
    assert _forks().wait() == 0
    return shown.decode().replace("\r\n", "\n")


def inside(*args: str | Path) -> Result:
    """The same without the cost of a process. Errors that `main` would report are raised."""
    from stratalog.cli.main import app  # noqa: PLC0415  # not all tests here need it

    raw = io.BytesIO()
    stdout = io.TextIOWrapper(raw, encoding="utf-8", newline="\n")
    stderr = io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        status = app([*map(str, args)], prog_name="stratalog", standalone_mode=False)
    stdout.flush()
    return Result(raw.getvalue(), stderr.getvalue(), status or 0)
