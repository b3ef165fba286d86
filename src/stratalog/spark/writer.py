"""Batch writes: tasks stage Arrow batches, the driver commits them once. An adapter, no more.

The protocol is `stratalog.log_dir.commits`. The lock of the log directory is held while the driver
commits, not while tasks stage; it is tried at the start, so that a running broker is met then and
not after hours of work.
"""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from stratalog.errors import CommitError, StratalogError
from stratalog.log_dir.commits.committer import abandon
from stratalog.log_dir.commits.staged import StagedCommit
from stratalog.spark.failures import told_in_one_line
from stratalog.spark.worker_process import spare_imports_collection
from stratalog.spark.write_schema import WriteSchemaError, check_write_schema
from stratalog.storage.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from stratalog.log_dir.commits.committer import CommitResult
    from stratalog.log_dir.commits.finding import Target
    from stratalog.log_dir.commits.staged import StagedRun
    from stratalog.spark.write_options import WriteOptions

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """What a task tells the driver."""

    runs: tuple[StagedRun, ...]
    query_id: str | None = None
    """Of the streaming query that the task belongs to."""


class StratalogWriter(DataSourceArrowWriter):
    """Appends the rows of one batch query."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        """Whatever can be known to go wrong goes wrong here, before a task runs."""
        check_write(options, schema, overwrite=overwrite)
        options.target.check_lock()
        self._options = options
        self._job = uuid.uuid4().hex

    @told_in_one_line
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of one task."""
        return StagedMessage(stage_rows(iterator, self._options, self._job, 0))

    @told_in_one_line
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Append what all tasks have staged."""
        commit = StagedCommit(runs_of(messages), self._job, 0, self._options.identity)
        commit_staged(self._options.target, commit)

    @told_in_one_line
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what tasks have staged, unless the commit is decided already."""
        abandon_job(self._options.target, self._job)


def check_write(options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
    """What the driver checks of every write."""
    if overwrite:
        raise WriteSchemaError(
            "Save mode overwrite is not allowed: a log is only appended to. Use mode('append')."
        )
    check_write_schema(schema, options.topic)
    if options.topic is not None:
        options.target.find(options.topic)
    else:
        options.target.check()


def stage_rows(
    iterator: Iterator[pa.RecordBatch],
    options: WriteOptions,
    job: str,
    number: int,
    task: int | None = None,
) -> tuple[StagedRun, ...]:
    """Stage the rows of a task: by default that of Spark's which runs here."""
    from stratalog.log_dir.commits.row_stager import RowStager, RowTerms  # noqa: PLC0415 - kernels
    from stratalog.log_dir.commits.staging import RunStager  # noqa: PLC0415

    spare_imports_collection()
    if task is None:
        context = TaskContext.get()
        task = 0 if context is None else context.partitionId()
    terms = RowTerms(options.topic, options.codec, options.level, options.batch_bytes)
    with RunStager(Disk(), job, number, task) as stager:
        rows = RowStager(stager, options.target, terms, task=task, now_ms=_now_ms)
        for batch in iterator:
            rows.add(batch)
        return rows.finish()


def runs_of(messages: Sequence[WriterCommitMessage | None]) -> tuple[StagedRun, ...]:
    """The runs of all tasks."""
    return tuple(
        run for message in messages if isinstance(message, StagedMessage) for run in message.runs
    )


def commit_staged(target: Target, commit: StagedCommit) -> CommitResult:
    """Take the lock, commit, and give it back."""
    spare_imports_collection()
    logs = target.open()
    try:
        result = logs.commits.commit(commit)
    except StratalogError as error:
        is_decided = logs.commits.is_pending(commit.job, commit.number)
        logs.close()
        if is_decided:
            raise CommitError(
                f"{error}; the commit is decided and is finished when the directory is opened "
                "next: do not write these rows again"
            ) from error
        raise
    try:
        logs.close()
    except StratalogError as error:  # the rows are durable; the next writer recovers the rest
        _log.warning("%s", error)
    return result


def abandon_job(target: Target, job: str) -> None:
    """Remove what a failed job has staged, wherever that is."""
    roots = [root for root in target.paths if root.is_dir()]
    directories = [path for root in roots for path in root.iterdir() if path.is_dir()]
    abandon(Disk(), target.paths, directories, job)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
