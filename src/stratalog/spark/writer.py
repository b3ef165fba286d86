"""The sink: tasks stage Arrow batches, the driver commits them once.

The protocol is `stratalog.commits`. The lock of the log directory is held while the driver commits,
not while tasks stage. It is tried at the start, so that writing to the directory of a running
broker fails then and not after hours of work.

In a stream every micro-batch is one commit, identified by the id of the query, which is in the
query's checkpoint, and its number. The log directory keeps the number of the last commit, so a
micro-batch that Spark runs again after a crash is in the log once.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from stratalog.bulk.target import abandon_job, abandon_runs, commit_staged
from stratalog.commits.journal import CommitIdentity
from stratalog.commits.staged import RunStager, StagedCommit
from stratalog.errors import SourceError, WriteSchemaError
from stratalog.spark.catalog_tables import check_inserted
from stratalog.spark.failures import one_line_errors
from stratalog.spark.schema import check_write_schema
from stratalog.spark.workers import freeze_imported_modules
from stratalog.storage.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from stratalog.bulk.options import WriteOptions
    from stratalog.bulk.target import Target
    from stratalog.commits.staged import StagedRun


@dataclass(frozen=True)
class StagedMessage(WriterCommitMessage):
    """What a task reports to the driver."""

    runs: tuple[StagedRun, ...]
    query_id: str | None = None
    """Query id of the streaming query that the task belongs to."""


class StratalogWriter(DataSourceArrowWriter):
    """Appends the rows of one batch query."""

    def __init__(
        self, options: WriteOptions, schema: StructType, *, overwrite: bool, is_table: bool = False
    ) -> None:
        """Raises here, before a task runs, whatever can be known to fail."""
        check_write(options, schema, overwrite=overwrite)
        options.target.check_lock()
        self._options = options
        self._job = uuid.uuid4().hex
        self._is_table = is_table
        self._driver_machine = options.target.kernel_and_devices()

    @one_line_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of one task."""
        rows = check_inserted(iterator) if self._is_table else iterator
        return StagedMessage(_stage(rows, self._options, self._driver_machine, self._job, 0))

    @one_line_errors
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Append what all tasks have staged."""
        commit = StagedCommit(_runs_of(messages), self._job, 0, self._options.identity)
        _commit(self._options.target, commit)

    @one_line_errors
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what tasks have staged, unless the commit is decided already."""
        abandon_job(self._options.target, self._job)


def check_write(options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
    """What the driver checks of every write."""
    if overwrite:
        raise WriteSchemaError(
            "Save mode overwrite is not allowed: logs are append-only. Use mode('append'), or "
            "INSERT INTO."
        )
    check_write_schema(schema, options.topic)
    if options.topic is not None:
        options.target.find(options.topic)
    else:
        options.target.check()


def _runs_of(messages: Sequence[WriterCommitMessage | None]) -> tuple[StagedRun, ...]:
    """The runs of all tasks."""
    return tuple(
        run for message in messages if isinstance(message, StagedMessage) for run in message.runs
    )


def _stage(
    batches: Iterator[pa.RecordBatch],
    options: WriteOptions,
    driver_machine: tuple[str, ...] | None,
    job: str,
    number: int,
    *,
    is_stream: bool = False,
) -> tuple[StagedRun, ...]:
    """Stage the rows of the task of Spark that runs here, for this commit. If this is the
    driver's machine, the driver syncs the files, together with what it changes in them."""
    from stratalog.bulk.row_staging import stage_rows  # noqa: PLC0415 - loads kernels

    freeze_imported_modules()
    context = TaskContext.get()
    task = 0 if context is None else context.partitionId()
    is_here = driver_machine is not None and options.target.kernel_and_devices() == driver_machine
    stager = RunStager(Disk(), job, number, task, syncs=not is_here)
    return stage_rows(batches, options, stager, is_stream=is_stream)


def _commit(target: Target, commit: StagedCommit) -> None:
    freeze_imported_modules()
    commit_staged(target, commit)


QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


class StratalogStreamWriter(DataSourceStreamArrowWriter):
    """Appends the micro-batches of a streaming query. Spark creates a new one for each."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        check_write(options, schema, overwrite=overwrite)
        self._options = options
        self._driver_machine = options.target.kernel_and_devices()

    @one_line_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of one task of a micro-batch."""
        query_id, batch_id = _task_property(QUERY_ID), _task_property(BATCH_ID)
        job, number = uuid.UUID(query_id).hex, int(batch_id)
        runs = _stage(iterator, self._options, self._driver_machine, job, number, is_stream=True)
        return StagedMessage(runs, query_id)

    @one_line_errors
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Append what all tasks have staged, unless that was done before."""
        query_id = _query_of(messages)
        if query_id is None:
            return  # there was no task, so no row
        identity = CommitIdentity(query_id, batchId)
        commit = StagedCommit(_runs_of(messages), uuid.UUID(query_id).hex, batchId, identity)
        _commit(self._options.target, commit)

    @one_line_errors
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Remove what these tasks have staged, unless the commit is decided already.

        The query's next commit removes what lost tasks have left.
        """
        abandon_runs(self._options.target, _runs_of(messages))


def _query_of(messages: Sequence[WriterCommitMessage | None]) -> str | None:
    for message in messages:
        if isinstance(message, StagedMessage):
            return message.query_id
    return None


def _task_property(name: str) -> str:
    context = TaskContext.get()
    value = None if context is None else context.getLocalProperty(name)
    if value is None:
        raise SourceError(f"the task has no {name}: it belongs to no streaming query")
    return value
