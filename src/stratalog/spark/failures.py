"""How failures are reported: as one line, if the user can fix the cause.

Spark runs a data source in Python processes of its own, and shows what they raise as text, with the
traceback, inside an exception of its own. A traceback through Spark's worker does not help somebody
who gave a wrong option, so it is left out for errors that are raised on purpose, with the setting
that Spark has for that. The process ends with the error, so nothing else is hidden.

On the driver, Spark raises pages of Python and Java; `message_of` finds the line that matters.

What is logged in a process of Spark goes to its standard error, where Spark's own log is: in the
driver's terminal, or in the log of an executor.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import sys
from typing import TYPE_CHECKING, Final, ParamSpec, TextIO, TypeVar

from stratalog.errors import SourceError, StratalogError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

P = ParamSpec("P")
T = TypeVar("T")

_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
_SPARK_TIME: Final = "%y/%m/%d %H:%M:%S"
"""As in Spark's log."""
_IN_PYTHON: Final = "create_in_broker_dir=True"
_IN_SPARK: Final = "the option createInBrokerDir"
_STRATALOG_ERROR: Final = re.compile(r"\bstratalog\.[\w.]+Error: (.+)")
_RAISED: Final = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?) SQLSTATE: ")
_UNREADABLE: Final = re.compile(r"\[FAILED_READ_FILE\b.*? reading file (?:file:/+)?(\S+?)\.?\s")
_CAUSE: Final = re.compile(r"^Caused by: [\w.$]+: (.+)$", re.MULTILINE)
_WORKER_DIED: Final = re.compile(r"Python worker exited unexpectedly")
_ERROR_LINE: Final = re.compile(r"[A-Za-z_.]*(Error|Exception): (?!An error occurred)[^{]+$")
_JAVA_ERROR: Final = re.compile(r"^: (?:[\w.$]+(?:Exception|Error): )+(.+)$", re.MULTILINE)
_WRAPPED: Final = re.compile(
    r"(?:Job aborted due to stage failure: Task .*?most recent failure: .*?\): )?"
    r"(?:[\w.$]+(?:Exception|Error): )*(?:\[[A-Z_.0-9]+\] )?(.+?)(?: SQLSTATE: \w+)?"
)


def is_spark_worker() -> bool:
    """Whether this process was started by Spark to run Python for it."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.startswith(("pyspark.", "pyspark_stratalog."))


def one_line_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Errors that the user can fix leave a worker of Spark without a traceback."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        show_log()
        try:
            return function(*args, **kwargs)
        except (StratalogError, PermissionError) as error:
            hide_traceback()
            raise _plain(error) from None

    return wrapper


def iterate_with_one_line_errors(items: Iterable[T]) -> Iterator[T]:
    """The same items, with errors as for `one_line_errors`."""
    show_log()
    try:
        yield from items
    except (StratalogError, PermissionError) as error:
        hide_traceback()
        raise _plain(error) from None


@functools.cache
def show_log() -> None:
    """In a worker of Spark, write what Stratalog logs to standard error, from INFO on.

    With `spark.sql.pyspark.worker.logging.enabled` Spark has a handler of its own for a while,
    which gets it instead.
    """
    if is_spark_worker():
        handler = _StandardError()
        handler.setFormatter(
            logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s", _SPARK_TIME)
        )
        logger = logging.getLogger("stratalog")
        logger.addHandler(handler)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes to what is standard error at the time, unless there is another handler."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self.setStream(sys.stderr)
            super().emit(record)


def hide_traceback() -> None:
    """Hide that of the error about to end this process, if it is a worker of Spark."""
    if is_spark_worker():
        os.environ[_HIDE_TRACEBACK] = "1"


def _plain(error: StratalogError | PermissionError) -> StratalogError:
    if isinstance(error, StratalogError):
        text = str(error)
        if _IN_PYTHON in text:
            error.args = (text.replace(_IN_PYTHON, _IN_SPARK),)
        return error
    return SourceError(f"{error.filename}: no permission to read it")


def message_of(error: BaseException) -> str:
    """The one line of an error of Spark that says what happened."""
    text = str(error)
    own = _STRATALOG_ERROR.search(text) or _RAISED.search(text)
    if own is not None:
        return own[1].strip()
    unreadable = _UNREADABLE.search(text)
    if unreadable is not None:
        causes = _CAUSE.findall(text)
        path = unreadable[1] if ":" in unreadable[1] else f"/{unreadable[1]}"
        return f"{path}: cannot be read: {causes[-1] if causes else 'it is corrupt'}"
    if _WORKER_DIED.search(text):
        return (
            "a Python worker of Spark died during a task; it crashed or was killed, possibly "
            "because it ran out of memory"
        )
    return _line_of(text) or type(error).__name__


def plain_line(line: str) -> str:
    """The line without Java's class names and Spark's error codes."""
    found = _WRAPPED.fullmatch(line.strip())
    return found[1].strip() if found else line.strip()


def _line_of(text: str) -> str:
    lines = [line.strip() for line in text.splitlines()]
    for line in lines:
        if _ERROR_LINE.match(line):
            return line
    java = _JAVA_ERROR.search(text)
    if java is not None:
        return plain_line(java[1])
    meaningful = [line for line in lines if line and not line.startswith("at ")]
    return meaningful[0] if meaningful else ""
