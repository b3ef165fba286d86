from __future__ import annotations

import errno
import io
import os
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import ConfigError, NotALogDirError, SourceError
from stratalog.spark.failures import iterate_with_one_line_errors, message_of, one_line_errors
from stratalog.spark.session import _reason, _shown, open_session

if TYPE_CHECKING:
    from collections.abc import Iterator


@one_line_errors
def _fail(error: Exception) -> None:
    raise error


def test_a_missing_permission_names_the_path() -> None:
    with pytest.raises(SourceError, match=r"^/data/kafka: no permission to read it$") as caught:
        _fail(PermissionError(errno.EACCES, "Permission denied", "/data/kafka"))
    assert caught.value.__suppress_context__


def test_errors_on_purpose_stay_what_they_are() -> None:
    error = NotALogDirError("/x: no such directory")
    with pytest.raises(NotALogDirError) as caught:
        list(iterate_with_one_line_errors(_raising(error)))
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


AT = "\n\tat org.apache.spark.Some.method(Some.scala:478)\n"
CALL = "An error occurred while calling o66.save.\n: org.apache.spark.SparkException: "
LOST = (
    "Job aborted due to stage failure: Task 0 in stage 4.0 failed 1 times, most recent failure: "
    + ("Lost task 0.0 in stage 4.0 (TID 4) (192.0.2.2 executor driver): org.apache.spark.")
)
READ = (
    "[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file:///in/a.gz.  SQLSTATE: K"
)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            f"{CALL}{READ}{AT}Caused by: java.util.zip.ZipException: invalid block type{AT}",
            "/in/a.gz: cannot be read: invalid block type",
        ),
        (f"{CALL}{READ}{AT}", "/in/a.gz: cannot be read: it is corrupt"),
        (
            f"{CALL}{LOST}SparkException: Python worker exited unexpectedly (crashed).{AT}",
            "a Python worker of Spark died during a task; it crashed or was killed, "
            "possibly because it ran out of memory",
        ),
        (
            f"{CALL}{LOST}SparkRuntimeException: [USER_RAISED_EXCEPTION] /a: x SQLSTATE: P01{AT}",
            "/a: x",
        ),
        (f"{CALL}[SOME.CODE] What it is. SQLSTATE: 42{AT}", "What it is."),
        (f"{CALL}{LOST}SparkException: [A] What it is. SQLSTATE: 42{AT}", "What it is."),
        ("stratalog.errors.NotALogDirError: /x: no such directory", "/x: no such directory"),
        ("", "RuntimeError"),
    ],
)
def test_the_line_that_matters(text: str, line: str) -> None:
    assert message_of(RuntimeError(text)) == line


NEW = "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n: "
GONE = "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number."
BEGUN = "26/11/16 07:30:20 ERROR SparkContext: Error initializing SparkContext.\n"


@pytest.mark.parametrize(
    ("error", "log", "line"),
    [
        (
            f"{NEW}org.apache.spark.SparkException: Could not parse Master URL: 'local[x]'{AT}",
            BEGUN,
            "Could not parse Master URL: 'local[x]'",
        ),
        (
            f"{NEW}org.apache.spark.SparkIllegalArgumentException: [INVALID.X] Insufficient memory."
            f"\nPlease increase it. SQLSTATE: F0000{AT}",
            BEGUN,
            "Insufficient memory.",
        ),
        (
            GONE,
            "Invalid maximum heap size: -Xmx5x\nError: Could not create it.\n",
            "Invalid maximum heap size: -Xmx5x",
        ),
        (
            GONE,
            'Exception in thread "main" org.apache.spark.SparkException: Memory must be positive\n',
            "Memory must be positive",
        ),
        (
            f"{NEW}java.lang.NullPointerException: x",
            "26/11/16 07:30:20 ERROR S: Application has been killed. Reason: All masters are "
            "unresponsive! Giving up.\n",
            "All masters are unresponsive! Giving up.",
        ),
        (GONE, "", GONE),
    ],
)
def test_why_spark_does_not_start(error: str, log: str, line: str) -> None:
    assert _reason(RuntimeError(error), io.BytesIO(log.encode())) == line


def test_what_was_given_is_told_but_for_secrets() -> None:
    conf = {"spark.driver.memory": "1m", "spark.hadoop.fs.s3a.secret.key": "hush"}
    assert _shown("local", conf) == "local with spark.driver.memory=1m"
    assert _shown("local", {}) == "local"


def test_what_is_no_master_is_told_at_once() -> None:
    with (
        pytest.raises(ConfigError, match="'spark' is not a Spark master; use local"),
        open_session("x", master="spark"),
    ):
        pass
