"""A SparkSession for the command line: quiet, embedded unless told otherwise.

The JVM's log goes to a file instead of the terminal; when Spark does not start, the line of it that
says why is the error.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import tempfile
import warnings
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING, Any, Final

from stratalog.errors import StratalogError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

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
_LOGGED: Final = re.compile(r"^[0-9/]+ [0-9:]+ ERROR \w+: (.+)$", re.MULTILINE)
_JAVA_ERROR: Final = re.compile(r"^: [\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
_LAUNCHER: Final = re.compile(
    r"^(?:Exception in thread .*(?:Exception|Error): )?(.*(?:Error|JAVA_HOME|java: |must ).*)$",
    re.MULTILINE,
)


class SparkStartError(StratalogError):
    """Spark is not installed, or does not start."""


@contextmanager
def open_session(
    title: str, *, master: str = LOCAL, conf: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A session that is stopped at the end."""
    with tempfile.TemporaryFile() as log:
        session = _start(title, master, dict(conf or {}), log)
        try:
            yield session
        finally:
            with suppress(Exception):  # the work is done, or has failed with its own error
                session.stop()


def _start(title: str, master: str, conf: dict[str, str], log: IO[bytes]) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {**_QUIET, **(_EMBEDDED if master.startswith("local") else {}), **conf}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Spark's own modules warn of is theirs to mend
            from pyspark.sql import SparkSession  # noqa: PLC0415 - loads seconds' worth of modules
    except ImportError:
        raise SparkStartError(
            "Spark is not installed; pip install 'stratalog[spark]' and have Java 17 or newer"
        ) from None
    builder: Any = SparkSession.builder.appName(title).master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with _stderr_to(log):
                session: SparkSession = builder.getOrCreate()
        except Exception as error:
            reason = _reason(error, log)
        else:
            return session
        gc.collect()  # Spark's launcher leaves a pipe to whoever collects it
    raise SparkStartError(f"Spark does not start on {master}: {reason}")


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
    """The line of the JVM's log, or of the error, that tells."""
    log.seek(0)
    told = log.read()[-100_000:].decode(errors="replace")
    for pattern, text in ((_LOGGED, told), (_JAVA_ERROR, str(error)), (_LAUNCHER, told)):
        found = pattern.search(text)
        if found is not None:
            return found[1].strip().removeprefix("Application has been killed. Reason: ")
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
