"""How a failure reaches the user: as one line where it is the user's to mend.

Spark runs a data source in Python processes of its own and shows what they raise as text, with the
traceback, inside an exception of its own. A traceback through Spark's worker says nothing to who
wrote a wrong option, so for errors raised on purpose it is left out, by the switch that Spark
itself has for that. The process ends with the error, so nothing else is hidden.

On the driver, what Spark raises is pages of both languages; `told` finds the line that matters.
"""

from __future__ import annotations

import functools
import os
import re
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from stratalog.errors import DataLossError, SourceError, StratalogError
from stratalog.format.metadata import encode_id
from stratalog.spark.worker_process import is_spark_worker

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterable, Iterator

P = ParamSpec("P")
T = TypeVar("T")

_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
_OUR_ERROR: Final = re.compile(r"\bstratalog\.[\w.]+Error: (.+)")
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


def lost(what: str) -> DataLossError:
    """The error for records that should be there, and the way around it."""
    return DataLossError(
        f"Some data may have been lost because they are not available any more: {what}. Set the "
        "option failOnDataLoss to false to go on with what is there."
    )


def recreated(topic: str, before: uuid.UUID, now: uuid.UUID) -> str:
    """What happened to a topic whose name another one has now."""
    return (
        f"topic {topic} was deleted and created again: its id was {encode_id(before)}, now it is "
        f"{encode_id(now)}"
    )


def told_in_one_line(function: Callable[P, T]) -> Callable[P, T]:
    """Let what the user can mend through without a traceback, when a Spark worker runs this."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except (StratalogError, PermissionError) as error:
            hide_traceback()
            raise _plain(error) from None

    return wrapper


def iterate_told(items: Iterable[T]) -> Iterator[T]:
    """The same items; what goes wrong on the way is told in one line."""
    try:
        yield from items
    except (StratalogError, PermissionError) as error:
        hide_traceback()
        raise _plain(error) from None


def hide_traceback() -> None:
    """Of the error that is about to end this process, if it is a worker of Spark's."""
    if is_spark_worker():
        os.environ[_HIDE_TRACEBACK] = "1"


def _plain(error: StratalogError | PermissionError) -> StratalogError:
    if isinstance(error, StratalogError):
        return error
    return SourceError(f"{error.filename}: no permission to read it")


def told(error: BaseException) -> str:
    """The one line of an error of Spark's that says what happened."""
    text = str(error)
    ours = _OUR_ERROR.search(text) or _RAISED.search(text)
    if ours is not None:
        return ours[1].strip()
    unreadable = _UNREADABLE.search(text)
    if unreadable is not None:
        causes = _CAUSE.findall(text)
        path = unreadable[1] if ":" in unreadable[1] else f"/{unreadable[1]}"
        return f"{path}: cannot be read: {causes[-1] if causes else 'it is damaged'}"
    if _WORKER_DIED.search(text):
        return (
            "a Python worker of Spark's ended in the midst of a task: killed, maybe for want of "
            "memory, or crashed"
        )
    return _line_of(text) or type(error).__name__


def plain_line(line: str) -> str:
    """Without Java's classes and Spark's codes around it."""
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
