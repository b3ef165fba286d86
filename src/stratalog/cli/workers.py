"""Where a job runs: on the threads of this process, or on Spark with `--master`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from stratalog.cli.arguments import key_values, option, repeatable
from stratalog.cli.output import summary_row
from stratalog.cli.tables import rate_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from stratalog.bulk.workers import JobResult, Workers
    from stratalog.cli.output import JobProgress

MasterOption = Annotated[
    str | None,
    option(
        "--master",
        "URL",
        "Run on Spark instead of threads: local[*], spark://HOST:PORT, yarn, k8s://…",
    ),
]
ConfOption = Annotated[
    list[str] | None,
    repeatable(
        "--conf",
        "KEY=VALUE",
        "A Spark setting, for example spark.executor.memory=4g. Requires --master.",
    ),
]


class SparkOptions(NamedTuple):
    """Where a job runs."""

    master: MasterOption = None
    conf: ConfOption = None

    def check(self) -> None:
        """Raise if there are Spark settings, but Spark is not used."""
        if self.conf and self.master is None:
            raise typer.BadParameter("--conf requires --master")

    @contextmanager
    def session(self, title: str) -> Iterator[SparkSession]:
        """A Spark session on `master`, which must be given."""
        from stratalog.spark.session import open_session  # noqa: PLC0415 - heavy

        assert self.master is not None
        settings = key_values("--conf", self.conf or [])
        with open_session(title, master=self.master, conf=settings) as session:
            yield session

    @contextmanager
    def workers(self, title: str, progress: JobProgress) -> Iterator[Workers]:
        """Spark's executors on `master`, or threads of this process."""
        if self.master is None:
            from stratalog.bulk.workers import ThreadWorkers  # noqa: PLC0415 - heavy

            yield ThreadWorkers(on_progress=progress.groups_done)
            return
        from stratalog.spark.workers import SparkWorkers  # noqa: PLC0415 - loads Spark

        with self.session(title) as spark:
            yield SparkWorkers(spark, progress.groups_done)


def result_row(result: JobResult, **more: Any) -> dict[str, Any]:
    """The last object of a job with `--json`."""
    return summary_row(result.records, result.size_bytes, result.seconds, **more)


def result_text(result: JobResult) -> str:
    return rate_text(result.records, result.size_bytes, result.seconds)
