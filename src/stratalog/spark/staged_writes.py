"""The steps of every write, with Spark or without: tasks stage, the driver commits or abandons."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from stratalog.commits.committer import abandon
from stratalog.errors import StratalogError
from stratalog.spark.worker_process import spare_imports_collection
from stratalog.storage.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    import pyarrow as pa

    from stratalog.bulk.topics import Target
    from stratalog.commits.committer import CommitResult
    from stratalog.commits.staged import StagedCommit, StagedRun
    from stratalog.spark.write_options import WriteOptions

_log = logging.getLogger(__name__)


def stage_rows(
    iterator: Iterator[pa.RecordBatch],
    options: WriteOptions,
    job: str,
    number: int,
    task: int,
    *,
    is_stream: bool = False,
) -> tuple[StagedRun, ...]:
    """Stage the rows of one task. `job`, `number` and `task` are those of `StagedName`."""
    from stratalog.bulk.row_staging import RowStager, RowTerms  # noqa: PLC0415 - kernels
    from stratalog.commits.staging import RunStager  # noqa: PLC0415

    spare_imports_collection()
    may_come_again = is_stream or options.identity is not None
    terms = RowTerms(
        options.topic,
        options.codec,
        options.level,
        options.batch_bytes,
        has_checksums=may_come_again and options.compares_content,
    )
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
    except StratalogError:
        with suppress(StratalogError):
            logs.close()
        raise
    try:
        logs.close()
    except StratalogError as error:  # the rows are durable; the next writer recovers the rest
        _log.warning("%s", error)
    return result


def abandon_job(target: Target, job: str) -> None:
    """Remove what a failed job has staged, wherever that is. The job is nobody else's."""
    roots = [root for root in target.paths if root.is_dir()]
    directories = [path for root in roots for path in root.iterdir() if path.is_dir()]
    _abandon(target, directories, job=job)


def abandon_runs(target: Target, runs: Sequence[StagedRun]) -> None:
    """Remove these staged files and no others: another driver may write for the same query."""
    directories = {path for run in runs for _, path in run.topic.dirs}
    _abandon(target, directories, names={run.name for run in runs})


def _abandon(
    target: Target,
    directories: Iterable[Path],
    *,
    job: str | None = None,
    names: AbstractSet[str] = frozenset(),
) -> None:
    """If the lock is not to be had, the files stay, and are swept once they are a day old."""
    try:
        with target.lock():
            abandon(Disk(), target.paths, directories, job=job, names=names)
    except StratalogError as error:
        _log.warning("staged files of a failed job are left for a later sweep: %s", error)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
