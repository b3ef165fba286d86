from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import NotALogDirError
from stratalog.spark.failures import SourceError, iterate_told, told_in_one_line

if TYPE_CHECKING:
    from collections.abc import Iterator


@told_in_one_line
def _fail(error: Exception) -> None:
    raise error


def test_a_missing_permission_names_the_path() -> None:
    with pytest.raises(SourceError, match=r"^/data/kafka: no permission to read it$") as caught:
        _fail(PermissionError(errno.EACCES, "Permission denied", "/data/kafka"))
    assert caught.value.__suppress_context__


def test_errors_on_purpose_stay_what_they_are() -> None:
    error = NotALogDirError("/x: no such directory")
    with pytest.raises(NotALogDirError) as caught:
        list(iterate_told(_raising(error)))
    assert caught.value is error


def test_tracebacks_are_hidden_in_workers_only() -> None:
    """What the user's own process shows is not ours to change."""
    with pytest.raises(SourceError):
        _fail(SourceError("x"))
    assert "SPARK_HIDE_TRACEBACK" not in os.environ


def test_mistakes_of_ours_keep_their_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        _fail(ZeroDivisionError())


def _raising(error: Exception) -> Iterator[int]:
    yield from ()
    raise error
