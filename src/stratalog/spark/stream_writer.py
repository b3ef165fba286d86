"""Streaming writes: every micro-batch is one commit, known by the query's id and its number.

The id is kept in the query's checkpoint and the number of its last commit in the log directory. So
a micro-batch that Spark runs again after a crash, whole or in part, is in the log once.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter

from stratalog.commits.journal import CommitIdentity
from stratalog.commits.staged import StagedCommit
from stratalog.errors import SourceError
from stratalog.spark.failures import told_in_one_line
from stratalog.spark.staged_writes import abandon_runs, commit_staged, stage_rows
from stratalog.spark.writer import StagedMessage, check_write, runs_of, task_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

    from stratalog.spark.write_options import WriteOptions

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


class StratalogStreamWriter(DataSourceStreamArrowWriter):
    """Appends the micro-batches of a streaming query. Spark makes a new one for each."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        check_write(options, schema, overwrite=overwrite)
        self._options = options

    @told_in_one_line
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        """Stage the rows of one task of a micro-batch."""
        query_id, batch_id = _task_property(QUERY_ID), _task_property(BATCH_ID)
        job = uuid.UUID(query_id).hex
        runs = stage_rows(
            iterator, self._options, job, int(batch_id), task_number(), is_stream=True
        )
        return StagedMessage(runs, query_id)

    @told_in_one_line
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Append what all tasks have staged, unless that was done before."""
        query_id = _query_of(messages)
        if query_id is None:
            return  # not one task: not one row
        identity = CommitIdentity(query_id, batchId)
        commit = StagedCommit(runs_of(messages), uuid.UUID(query_id).hex, batchId, identity)
        commit_staged(self._options.target, commit)

    @told_in_one_line
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Remove what these tasks have staged, unless the commit is decided already.

        What lost tasks have left goes with the query's next commit.
        """
        abandon_runs(self._options.target, runs_of(messages))


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
