"""How a failure reaches the user: as one line where it is the user's to mend.

Spark runs a data source in Python processes of its own and shows what they raise as text, with the
traceback, inside an exception of its own. A traceback through Spark's worker says nothing to who
wrote a wrong option, so for errors raised on purpose it is left out, by the switch that Spark
itself has for that. The process ends with the error, so nothing else is hidden.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from stratalog.errors import StratalogError
from stratalog.spark.worker_process import is_spark_worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

P = ParamSpec("P")
T = TypeVar("T")

_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"


class SourceError(StratalogError):
    """A query that cannot be answered from the directory as it is."""


class DataLossError(SourceError):
    """Records that the query is to read are not in the log."""


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
