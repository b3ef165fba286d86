"""Batch writes: tasks stage Arrow batches, the driver commits them once. An adapter, no more.

The protocol is `stratalog.log_dir.commits`. The lock of the log directory is held while the driver
commits, not while tasks stage; it is tried at the start, so that a running broker is met then and
not after hours of work.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from stratalog.commits.staged import StagedCommit
from stratalog.errors import WriteSchemaError
from stratalog.spark.failures import told_in_one_line
from stratalog.spark.staged_writes import abandon_job, commit_staged, stage_rows
from stratalog.spark.write_schema import check_write_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from stratalog.commits.staged import StagedRun
    from stratalog.spark.write_options import WriteOptions


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
        return StagedMessage(stage_rows(iterator, self._options, self._job, 0, task_number()))

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


def runs_of(messages: Sequence[WriterCommitMessage | None]) -> tuple[StagedRun, ...]:
    """The runs of all tasks."""
    return tuple(
        run for message in messages if isinstance(message, StagedMessage) for run in message.runs
    )


def task_number() -> int:
    """Of the task of Spark's that runs here."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()
