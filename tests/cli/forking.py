"""A process that has imported all that commands need, and forks for each command that tests run.

Such a command is a process of its own, with its own streams, directory and environment, which ends
as any interpreter does. It takes milliseconds to start, where `python -m stratalog` imports for
half a second and more. How it starts for a user, other tests show: test_main.py, test_imports.py,
and those that talk to a command while it runs.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import multiprocessing
import os
import pkgutil
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT: Final = Path(__file__).resolve().parents[2]
MESSAGE_BYTES: Final = 1 << 17
PIPE_BYTES: Final = 1 << 16
"""That fit into a pipe while nobody reads."""
PATIENCE_S: Final = 300
LEFT_OUT: Final = ("stratalog.__main__", "stratalog.spark")
LATE: Final = ("crc32c", "pandas", "pyarrow.pandas_compat", "rich.table", "typer._adapters")
"""What other packages import only when they are used: pyarrow looks for pandas with the first array
that it makes, Typer needs pydantic for the first argument that is no text. Each command would."""


class Ended(NamedTuple):
    """What a command printed and how it ended."""

    stdout: bytes
    stderr: bytes
    status: int


class Forks:
    """Starts that process, which ends with this one."""

    def __init__(self, *prefix: str, prelude: str = "") -> None:
        """`prefix` is a command that runs another; `prelude` is code before all imports."""
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = f"{prelude}\nfrom tests.cli.forking import serve\nserve({theirs.fileno()})"
        with theirs:
            self._server = subprocess.Popen(
                [*prefix, sys.executable, "-W", "error", "-c", code],
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
            )
        atexit.register(self._close)

    def _close(self) -> None:
        self._channel.close()
        self._server.wait()

    def run(
        self, *args: str | Path, cwd: Path | None = None, given: bytes = b"", code: str = ""
    ) -> Ended:
        """With pipes for all streams; what it is given has to fit into one. `code` is a program to
        run instead of the command."""
        assert len(given) <= PIPE_BYTES
        pipes = [os.pipe() for _ in range(3)]
        (stdin, to_stdin), (from_stdout, stdout), (from_stderr, stderr) = pipes
        os.write(to_stdin, given)
        os.close(to_stdin)
        self.start(*args, cwd=cwd, streams=(stdin, stdout, stderr), code=code)
        for descriptor in (stdin, stdout, stderr):
            os.close(descriptor)
        with (
            os.fdopen(from_stdout, "rb") as printed,
            os.fdopen(from_stderr, "rb") as told,
            ThreadPoolExecutor(1) as pool,
        ):
            errors = pool.submit(told.read)
            return Ended(printed.read(), errors.result(), self.wait())

    def start(
        self,
        *args: str | Path,
        streams: tuple[int, int, int],
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        code: str = "",
    ) -> None:
        """With descriptors for its streams, which are the caller's to close."""
        request = {
            "args": [*map(str, args)],
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
            "code": code,
        }
        message = json.dumps(request).encode()
        assert len(message) <= MESSAGE_BYTES
        socket.send_fds(self._channel, [message], streams)

    def wait(self) -> int:
        """The status of the command that was started last."""
        return int(self._channel.recv(64))


# -- in the other process


def serve(descriptor: int) -> None:
    """Run commands until the other end is closed."""
    _import_all()
    gc.freeze()
    fork = multiprocessing.get_context("fork")
    with socket.socket(fileno=descriptor) as channel:
        while True:
            message, streams, _, _ = socket.recv_fds(channel, MESSAGE_BYTES, 3)
            if not message:
                return
            command = fork.Process(target=_run, args=(json.loads(message), streams, channel))
            command.start()
            for stream in streams:
                os.close(stream)
            command.join()
            channel.send(str(command.exitcode).encode())


def _run(request: dict[str, Any], streams: list[int], channel: socket.socket) -> None:
    from stratalog.cli.main import main  # noqa: PLC0415 - not in the process of the tests

    channel.close()
    signal.alarm(PATIENCE_S)
    _take(streams)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = ["stratalog", *request["args"]]
    if request["code"]:
        exec(request["code"], {"__name__": "__main__"})
    else:
        main()


def _import_all() -> None:
    """What commands import when they need it, but for Spark."""
    package = import_module("stratalog")
    for module in pkgutil.walk_packages(package.__path__, "stratalog."):
        if not module.name.startswith(LEFT_OUT):
            import_module(module.name)
    for name in LATE:
        with suppress(ImportError):  # as if it was not installed
            import_module(name)
    main = import_module("stratalog.cli.main")
    for command in main.COMMANDS:
        main.command_of(command)


def _take(streams: list[int]) -> None:
    """As an interpreter that starts takes its own."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    is_terminal = os.isatty(1)
    out = io.BufferedWriter(io.FileIO(1, "w", closefd=False))
    sys.stdout = io.TextIOWrapper(out, line_buffering=is_terminal)
    err = io.BufferedWriter(io.FileIO(2, "w", closefd=False))
    sys.stderr = io.TextIOWrapper(err, errors="backslashreplace", line_buffering=True)
