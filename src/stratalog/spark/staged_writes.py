"""The steps of every write, with Spark or without: tasks stage, the driver commits or abandons."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from stratalog.errors import CommitError, StratalogError
from stratalog.log_dir.commits.committer import abandon
from stratalog.spark.worker_process import spare_imports_collection
from stratalog.storage.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from stratalog.log_dir.commits.committer import CommitResult
    from stratalog.log_dir.commits.finding import Target
    from stratalog.log_dir.commits.staged import StagedCommit, StagedRun
    from stratalog.spark.write_options import WriteOptions

_log = logging.getLogger(__name__)


def stage_rows(
    iterator: Iterator[pa.RecordBatch],
    options: WriteOptions,
    job: str,
    number: int,
    task: int,
) -> tuple[StagedRun, ...]:
    """Stage the rows of one task. `job`, `number` and `task` are those of `StagedName`."""
    from stratalog.log_dir.commits.row_stager import RowStager, RowTerms  # noqa: PLC0415 - kernels
    from stratalog.log_dir.commits.staging import RunStager  # noqa: PLC0415

    spare_imports_collection()
    terms = RowTerms(options.topic, options.codec, options.level, options.batch_bytes)
    with RunStager(Disk(), job, number, task) as stager:
        rows = RowStager(stager, options.target, terms, task=task, now_ms=_now_ms)
        for batch in iterator:
            rows.add(batch)
        return rows.finish()


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
