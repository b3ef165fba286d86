"""Staged runs for tests of commits, and what the storage engine makes of the same batches."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from stratalog.bulk.row_staging import RowStager, StagingOptions
from stratalog.bulk.target import Target
from stratalog.commits.journal import CommitIdentity
from stratalog.commits.staged import RunStager, StagedCommit
from stratalog.format.batch import HEADER_BYTES, BatchHeader
from stratalog.format.record import seal_batch
from stratalog.storage.disk import Disk
from tests import opening
from tests.opening import NOW_MS, UNSYNCED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from stratalog.commits.staged import StagedRun
    from stratalog.log_dir import LogDir

JOB = "0123456789abcdef" * 2
QUERY = "7d8f2a3e-query"


def open_logs(*paths: Path, disk: Disk | None = None, **properties: Any) -> LogDir:
    """As `opening.open_logs`, without waiting for the disk."""
    return opening.open_logs(*paths, disk=disk or Disk(UNSYNCED), **properties)


def rows(first: int, count: int, **columns: Any) -> pa.RecordBatch:
    """Rows with consecutive values, so that each can be found again."""
    return pa.record_batch(
        {
            "value": pa.array([b"%06d" % number for number in range(first, first + count)]),
            "key": pa.array([b"key-%d" % (number % 7) for number in range(first, first + count)]),
            **columns,
        }
    )


def stage(
    paths: Sequence[Path],
    batches: Sequence[pa.RecordBatch],
    *,
    task: int = 0,
    number: int = 0,
    job: str = JOB,
    terms: StagingOptions | None = None,
    disk: Disk | None = None,
    syncs: bool = True,
) -> tuple[StagedRun, ...]:
    """What one task stages."""
    with RunStager(disk or Disk(UNSYNCED), job, number, task, syncs=syncs) as stager:
        target = Target(tuple(paths))
        terms = terms or StagingOptions("orders", batch_bytes=300)
        row_stager = RowStager(stager, target, terms, task=task, now_ms=lambda: NOW_MS)
        for batch in batches:
            row_stager.add(batch)
        return row_stager.finish()


def stage_tasks(
    paths: Sequence[Path], tasks: int = 3, count: int = 40, *, number: int = 0, **options: Any
) -> StagedCommit:
    """A commit of several tasks with distinct values; it is part of a streaming query."""
    runs: list[StagedRun] = []
    for task in range(tasks):
        first = (number * tasks + task) * count
        runs += stage(paths, [rows(first, count)], task=task, number=number, **options)
    return StagedCommit(tuple(runs), JOB, number, CommitIdentity(QUERY, number))


def batches_of(data: bytes) -> Iterator[bytes]:
    """Each batch of a run as a producer would send it: its offsets count from zero."""
    at = 0
    while at < len(data):
        size = BatchHeader.unpack(data, at).size_bytes
        yield struct.pack(">q", 0) + data[at + 8 : at + size]
        at += size


def as_producers_send(runs: dict[str, bytes]) -> dict[str, bytes]:
    """Batches that were staged with append time, as they are before a leader stamps them."""
    plain: dict[str, bytes] = {}
    for path, data in runs.items():
        plain[path] = b""
        for batch in batches_of(data):
            header = BatchHeader.unpack(batch)._replace(attributes=0, max_timestamp=NOW_MS - 7)
            plain[path] += seal_batch(header, batch[HEADER_BYTES:])
    return plain


def append_one_by_one(logs: LogDir, commit: StagedCommit, runs: dict[str, bytes]) -> None:
    """What a commit has to be equal to."""
    for run in sorted(commit.runs, key=lambda run: run.task):
        log = logs.partition(*run.topic_partition)
        for batch in batches_of(runs[f"{run.topic_partition}/{run.name}"]):
            log.append(batch)


def contents(root: Path) -> dict[str, bytes]:
    """Every file below, by its path."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def values_in(paths: Sequence[Path]) -> dict[int, list[bytes | None]]:
    """All values by partition, and offsets without gaps."""
    found: dict[int, list[bytes | None]] = {}
    with open_logs(*paths) as logs:
        for log in logs.partitions_of("orders"):
            records = list(log.read())
            offsets = [record.offset for record in records]
            assert offsets == list(range(log.log_start_offset, log.log_end_offset))
            found[log.topic_partition.partition] = [record.value for record in records]
    return found


def check_once(values: dict[int, list[bytes | None]], expected: int, tasks: int = 3) -> None:
    """Every row is there once, those of one task in their order within each partition."""
    everything = [value for part in values.values() for value in part]
    assert sorted(map(int_of, everything)) == list(range(expected))
    per_task = expected // tasks
    for part in values.values():
        for task in range(tasks):
            of_task = [n for n in map(int_of, part) if n // per_task == task]
            assert of_task == sorted(of_task)


def int_of(value: bytes | None) -> int:
    assert value is not None
    return int(value)
