"""A SparkSession for the command line: quiet, embedded unless a master is given, and with the
accelerator if there is one for this Spark.

The JVM's log is written to a file instead of the terminal; if Spark does not start, the error is
the line of it that says why. The JVM has a process group of its own, which the terminal's interrupt
does not reach. On Ctrl-C it is ended first, with its workers, so that nothing is still being
written when staged files are removed.

Workers on this machine import PySpark from where it is installed. Spark puts its archive
`$SPARK_HOME/python/lib/pyspark.zip` first, some 1,500 modules without bytecode; every worker
compiles those it needs, which takes half a second, and a first query starts four workers one after
the other. So the JVM gets a Spark home of links that lacks the archive.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from stratalog.bulk.workers import interrupts_deferred
from stratalog.errors import ConfigError, SparkStartError
from stratalog.spark.accelerator import with_accelerator
from stratalog.spark.failures import plain_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

_VARIABLE: Final = "SPARK_HOME"
_OTHERS: Final = ("spark.pyspark.python", "spark.pyspark.driver.python")


@contextmanager
def home_without_archive(master: str, conf: Mapping[str, str]) -> Iterator[Path | None]:
    """A JVM that is started in this block gets a Spark home without the archive, if possible."""
    home = _create_home(master, conf)
    if home is None:
        yield None
        return
    os.environ[_VARIABLE] = str(home)
    try:
        yield home
    finally:
        del os.environ[_VARIABLE]


def _create_home(master: str, conf: Mapping[str, str]) -> Path | None:
    is_here = master == "local" or master.startswith("local[")
    python = os.environ.get("PYSPARK_PYTHON", sys.executable)
    if not is_here or _VARIABLE in os.environ or python != sys.executable:
        return None
    if any(name in conf for name in _OTHERS):
        return None
    package = _package()
    if package is None:
        return None
    home = Path(tempfile.mkdtemp(prefix="stratalog-spark-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)  # the JVM lives as long
    try:
        for entry in package.iterdir():
            if entry.name not in {"python", "__pycache__"}:
                (home / entry.name).symlink_to(entry)
    except OSError:
        return None
    return home


def _package() -> Path | None:
    """The directory of PySpark, if it was installed as a package that contains Spark."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None or find_spec("py4j") is None:
        return None
    package = Path(spec.origin).parent
    is_whole = (package / "jars").is_dir() and (package / "bin" / "spark-submit").is_file()
    return package if is_whole else None


# -- the session

LOCAL: Final = "local[*]"
_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}
_EMBEDDED: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
SOCKETS_DIR_MAX: Final = 60
"""Characters: the path of a Unix domain socket has at most 107, of which Spark's name takes 43."""
_END_S: Final = 5.0
"""For a JVM to remove its temporary files."""
_GROUP_END_S: Final = 1.0
"""Longer is useless: if nobody reaps them, exited processes stay in their group."""
_LOGGED: Final = re.compile(
    r"^[0-9/]+ [0-9:]+ ERROR \w+: (?!Error initializing SparkContext)(.+)$", re.MULTILINE
)
_JAVA_ERROR: Final = re.compile(r"^: ([\w.$]+(?:Exception|Error): .+)$", re.MULTILINE)
_LAUNCHER: Final = re.compile(
    r"^(?:Exception in thread .*(?:Exception|Error): )?"
    r"(Invalid .*|.*(?:Error|JAVA_HOME|java: |must ).*)$",
    re.MULTILINE,
)
_SECRET: Final = re.compile(r"secret|password|token|key|credential", re.IGNORECASE)
_MASTER: Final = re.compile(r"local(\[.*\])?|yarn|[A-Za-z][A-Za-z0-9+.-]*://.+")


@contextmanager
def open_session(
    title: str, *, master: str = LOCAL, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session that is stopped at the end."""
    with tempfile.TemporaryFile() as log, _sigpipe_ignored():
        jvm = _Jvm()
        given = dict(conf or {})
        if not _MASTER.fullmatch(master):
            raise ConfigError(
                "master",
                f"{master!r} is not a Spark master; use local[*], spark://HOST:PORT, yarn or k8s://…",
            )
        try:
            with home_without_archive(master, given):
                session = _start(_builder(title, master, given), _shown(master, given), log, jvm)
            try:
                with jvm.ended_by_interrupts():
                    yield session
            finally:
                if not jvm.is_ended:
                    with suppress(Exception):  # the work is done, or has failed with its own error
                        session.stop()
        except KeyboardInterrupt:  # at any moment, also between the blocks above
            jvm.end()
            raise


def _shown(master: str, conf: Mapping[str, str]) -> str:
    """The settings that the user gave, without secrets."""
    settings = [f"{name}={value}" for name, value in conf.items() if not _SECRET.search(name)]
    return f"{master} with {', '.join(settings)}" if settings else master


def _builder(title: str, master: str, conf: dict[str, str]) -> Any:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    embedded = _EMBEDDED | unix_sockets() if master.startswith("local") else {}
    settings = {**_QUIET, **embedded, **with_accelerator(conf)}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about Spark's own modules
            from pyspark.sql import SparkSession  # noqa: PLC0415 - loads seconds' worth of modules
    except ImportError:
        raise SparkStartError(
            "Spark is not installed; run pip install 'stratalog[spark]', and install Java 17 or "
            "later"
        ) from None
    builder: Any = SparkSession.builder.appName(title).master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder


def unix_sockets() -> dict[str, str]:
    """Between Spark and Python: they take a fifth less CPU in a scan than TCP does. Spark leaves
    some of them behind, so they are in a directory that is removed at the end."""
    if len(tempfile.gettempdir()) > SOCKETS_DIR_MAX - len("/stratalog-12345678"):
        return {}
    directory = tempfile.mkdtemp(prefix="stratalog-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    prefix = "spark.python.unix.domain.socket"
    return {f"{prefix}.enabled": "true", f"{prefix}.dir": directory}


def _start(builder: Any, where: str, log: IO[bytes], jvm: _Jvm) -> SparkSession:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with _stderr_to(log), jvm.being_started():
                session: SparkSession = builder.getOrCreate()
        except Exception as error:
            reason = _reason(error, log)
        else:
            return session
        jvm.end()
        gc.collect()  # Spark's launcher leaves a pipe to the garbage collector
    raise SparkStartError(f"Spark does not start on {where}: {reason}")


class _Jvm:
    """The process that PySpark starts, if it has none yet."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.is_ended = False

    @contextmanager
    def being_started(self) -> Iterator[None]:
        """PySpark does not return the process until it responds, so it is intercepted here."""
        gateways: Any = import_module("pyspark.java_gateway")

        def popen(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
            with interrupts_deferred():  # else it could be running, and unknown here
                self._process = subprocess.Popen(*args, **options, process_group=0)
            return self._process

        gateways.Popen = popen
        try:
            yield
        finally:
            gateways.Popen = subprocess.Popen

    @contextmanager
    def ended_by_interrupts(self) -> Iterator[None]:
        """If the JVM was started here. PySpark's handler would call it in the middle of a call."""
        is_ours = self._process is not None
        if not is_ours or threading.current_thread() is not threading.main_thread():
            yield
            return

        def interrupted(*_: object) -> None:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # one is enough, while we wait for the end
            logging.disable(logging.CRITICAL)  # PySpark logs pages about the lost JVM
            self.end()
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, interrupted)
        try:
            yield
        except Exception:
            if self.is_ended:
                raise KeyboardInterrupt from None
            raise
        finally:
            logging.disable(logging.NOTSET)
            signal.signal(signal.SIGINT, before)

    def end(self) -> None:
        """End it, and wait until it has exited. Its Python workers exit with it."""
        process, self._process, self.is_ended = self._process, None, True
        if process is None:
            return
        accumulators: Any = import_module("pyspark.accumulators")
        for server in (accumulators.AccumulatorTCPServer, accumulators.AccumulatorUnixServer):
            server.handle_error = lambda *_: None  # it prints a traceback about the lost JVM
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            if _exits(process):
                break
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()


def _exits(process: subprocess.Popen[bytes]) -> bool:
    """Wait for a process, and for the others of its group: Spark's script starts a JVM of its own
    to find out how to start Spark."""
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        return False
    deadline = time.monotonic() + _GROUP_END_S
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.005)
    return False


@contextmanager
def _sigpipe_ignored() -> Iterator[None]:
    """Ignore SIGPIPE in this block. Otherwise a JVM that has died would silently end this
    process."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGPIPE"):
        yield
        return
    before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGPIPE, before)


@contextmanager
def _stderr_to(log: IO[bytes]) -> Iterator[None]:
    """A JVM that is started in here writes to `log` for as long as it lives."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _reason(error: Exception, log: IO[bytes]) -> str:
    """The line of the JVM's log, or of the error, that says why."""
    log.seek(0)
    text_log = log.read()[-100_000:].decode(errors="replace")
    for pattern, text in ((_LOGGED, text_log), (_JAVA_ERROR, str(error)), (_LAUNCHER, text_log)):
        found = pattern.search(text)
        if found is not None:
            return plain_line(found[1]).removeprefix("Application has been killed. Reason: ")
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
