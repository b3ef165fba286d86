"""What the bulk verbs share: what they work on, Spark's options, progress and the closing line."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from stratalog.cli.output import Progress, report_line
from stratalog.cli.tables import counted, human_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from stratalog.bulk.workers import JobResult, Workers

WhereArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="WHERE",
        help="Log directories (default: the current one), TOPIC or TOPIC:PARTITION in them, or "
        "partition directories.",
        show_default=False,
    ),
]
MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="Run on Spark: local[*], spark://HOST:PORT, yarn, k8s://…",
        show_default=False,
    ),
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark's. Repeatable."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON, one object a line.")]


class BulkProgress:
    """Bytes that any thread has done, or groups that Spark has, as one percentage."""

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = total_bytes
        self._done = 0
        self._lock = threading.Lock()
        self._bar = Progress(total_bytes, is_output_last=True)

    def __enter__(self) -> BulkProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, _: object) -> None:
        """An interrupt is told in a line; the status, 130, is Typer's. All is cleaned up by now, so
        another one ends the process at once, without a word, whatever threads still do."""
        self._bar.clear()
        if kind is KeyboardInterrupt:
            what = str(error)
            report_line(f"stratalog: interrupted{what and f'; {what}'}")
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    def add_bytes(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._bar.update(self._done)

    def groups_done(self, done: int, total: int) -> None:
        with self._lock:
            self._bar.update(self._total_bytes * done // max(1, total))


@contextmanager
def spark_session(
    title: str, master: str | None, conf: Sequence[str] | None
) -> Iterator[SparkSession]:
    """A session on `master`, embedded without one."""
    from stratalog.spark.session import LOCAL, open_session  # noqa: PLC0415 - heavy

    settings = key_values("--conf", conf or [])
    with open_session(title, master=master or LOCAL, conf=settings) as session:
        yield session


@contextmanager
def workers_of(
    title: str, master: str | None, conf: Sequence[str] | None, progress: BulkProgress
) -> Iterator[Workers]:
    """Spark's on `master`, the threads of this process without one."""
    from stratalog.bulk.workers import ThreadWorkers  # noqa: PLC0415 - as needed

    if master is None:
        yield ThreadWorkers(on_progress=progress.groups_done)
        return
    from stratalog.spark.workers import SparkWorkers  # noqa: PLC0415 - as needed

    with spark_session(title, master, conf) as spark:
        yield SparkWorkers(spark, progress.groups_done)


def key_values(flag: str, given: Sequence[str]) -> dict[str, str]:
    """`KEY=VALUE` as given with a flag."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise typer.BadParameter(f"{flag}: {text!r} is not in the form KEY=VALUE")
        found[name.strip()] = value.strip()
    return found


def rate_text(records: int, size_bytes: int, seconds: float) -> str:
    """`1,500 records, 144.1 KiB in 0.3 s (5,000 records/s, 480.2 KiB/s)`."""
    parts = [counted(records, "record")] if records else []
    parts.append(human_size(size_bytes))
    rates = [f"{records / seconds:,.0f} records/s"] if records and seconds else []
    if seconds:
        rates.append(f"{human_size(round(size_bytes / seconds))}/s")
    return f"{', '.join(parts)} in {seconds:.1f} s ({', '.join(rates)})"


def result_text(result: JobResult) -> str:
    return rate_text(result.records, result.size_bytes, result.seconds)
