"""A commit of staged runs: what is in the logs afterwards, and when it is refused."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from stratalog.bulk.row_staging import StagingOptions
from stratalog.commits.journal import JOURNAL_FILE, CommitIdentity
from stratalog.commits.staged import StagedCommit
from stratalog.errors import CommitError
from stratalog.maintenance.verify.directory import verify_partition
from tests.commits.staging import (
    JOB,
    QUERY,
    append_one_by_one,
    as_producers_send,
    check_once,
    contents,
    open_logs,
    rows,
    stage,
    stage_tasks,
    values_in,
)

if TYPE_CHECKING:
    from pathlib import Path

CONFIGS = {
    "one segment": {},
    "rolls by size": {"segment.bytes": 1000},
    "rolls by full index": {"segment.index.bytes": 40, "index.interval.bytes": 100},
    "rolls at every batch": {"segment.bytes": 330},
    "dense index": {"index.interval.bytes": 1},
    "lz4": {"compression.type": "lz4"},
    "append time": {"message.timestamp.type": "LogAppendTime"},
    "flushes": {"flush.messages": 1},
    "preallocated": {"preallocate": "true", "segment.bytes": 2000},
}


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
def test_files_are_those_of_single_appends(tmp_path: Path, config: dict[str, object]) -> None:
    """Byte for byte, all files, after two commits on top of records that were there."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    with open_logs(ours) as logs:
        logs.create_topic("orders", 3, config=config)
        for number in range(5):
            logs.append("orders", b"before %d" % number, partition=number % 2)
    shutil.copytree(ours, theirs)
    for number in range(2):
        commit = stage_tasks([ours], number=number)
        staged = {path: data for path, data in contents(ours).items() if path.endswith(".staged")}
        assert len(staged) == 9
        if "message.timestamp.type" in config:
            staged = as_producers_send(staged)
        with open_logs(ours) as logs:
            result = logs.commits.commit(commit)
        assert (result.record_count, result.is_replay) == (120, False)
        with open_logs(theirs) as logs:
            append_one_by_one(logs, commit, staged)
    mine, expected = contents(ours), contents(theirs)
    mine.pop("stratalog-state.json")  # knows the commits
    expected.pop("stratalog-state.json")
    assert mine.keys() == expected.keys()
    assert [name for name in mine if mine[name] != expected[name]] == []
    if "segment.bytes" in config or "segment.index.bytes" in config:
        assert sum(name.endswith(".log") for name in mine) > 3


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS.values(), ids=list(CONFIGS))
def test_nothing_is_found_wrong(tmp_path: Path, config: dict[str, object]) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 3, config=config)
    for number in range(2):
        commit = stage_tasks([tmp_path], number=number)
        with open_logs(tmp_path) as logs:
            logs.commits.commit(commit)
    reports = [verify_partition(tmp_path / f"orders-{number}") for number in range(3)]
    assert sum(report.counts.records for report in reports) == 240
    found = [finding for report in reports for finding in report.findings]
    assert not found


def test_time_rolls_are_those_of_single_appends(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    with open_logs(ours) as logs:
        logs.create_topic("orders", 1, config={"segment.ms": 1000})
    shutil.copytree(ours, theirs)
    times = pa.array([1_700_000_000_000 + 40 * number for number in range(200)], pa.timestamp("ms"))
    commit = StagedCommit(stage([ours], [rows(0, 200, timestamp=times)]), JOB)
    staged = contents(ours)
    with open_logs(ours) as logs:
        logs.commits.commit(commit)
    with open_logs(theirs) as logs:
        append_one_by_one(logs, commit, staged)
    assert contents(ours) == contents(theirs)
    assert sum(name.endswith(".log") for name in contents(ours)) == 6


def test_nothing_is_left_over(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 3)
    lost = stage([tmp_path], [rows(0, 10)], task=1)  # an attempt that no message tells of
    assert lost
    commit = stage_tasks([tmp_path])
    with open_logs(tmp_path) as logs:
        logs.commits.commit(commit)
    names = [path.name for path in tmp_path.rglob("*")]
    assert not any(name.endswith(".staged") for name in names)
    assert JOURNAL_FILE not in names
    check_once(values_in([tmp_path]), 120)


def test_a_commit_that_comes_again_changes_nothing(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 3)
    for number in (0, 1):
        commit = stage_tasks([tmp_path], number=number)
        with open_logs(tmp_path) as logs:
            assert not logs.commits.commit(commit).is_replay
    before = values_in([tmp_path])
    for number in (0, 1):
        commit = stage_tasks([tmp_path], number=number)
        with open_logs(tmp_path) as logs:
            assert logs.commits.commit(commit).is_replay
            assert logs.commits.last_number(QUERY) == 1
    assert values_in([tmp_path]) == before
    assert not list(tmp_path.rglob("*.staged"))


def test_an_empty_commit_changes_nothing(tmp_path: Path) -> None:
    """There is no topic to remember it for, and no row to lose."""
    with open_logs(tmp_path) as logs:
        commit = StagedCommit((), JOB, 3, CommitIdentity(QUERY, 3))
        result = logs.commits.commit(commit)
        assert (result.record_count, result.is_replay) == (0, False)
        assert logs.commits.last_number(QUERY) is None
        assert not logs.commits.is_committed(CommitIdentity(QUERY, 3))
        assert not logs.commits.is_committed(None)


def test_several_directories(tmp_path: Path) -> None:
    dirs = [tmp_path / "1", tmp_path / "2"]
    with open_logs(*dirs) as logs:
        logs.create_topic("orders", 4)
    commit = stage_tasks(dirs)
    with open_logs(*dirs) as logs:
        logs.commits.commit(commit)
    check_once(values_in(dirs), 120)


@pytest.mark.slow
def test_others_append_meanwhile(tmp_path: Path) -> None:
    """Producers of the same process: the commit goes in between their records."""
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 2, config={"segment.bytes": 3000})
        is_over = threading.Event()
        appended: list[int] = []

        def append() -> None:
            while not is_over.is_set():
                logs.append("orders", b"other", partition=len(appended) % 2)
                appended.append(1)

        thread = threading.Thread(target=append)
        thread.start()
        try:
            for number in range(12):
                logs.commits.commit(stage_tasks([tmp_path], number=number))
        finally:
            is_over.set()
            thread.join()
    values = [value for part in values_in([tmp_path]).values() for value in part]
    assert values.count(b"other") == len(appended) > 12
    numbers = sorted(int(value) for value in values if value not in (None, b"other"))
    assert numbers == list(range(12 * 120))


# -- refusals


def refused(path: Path, commit: StagedCommit, match: str) -> None:
    before = {name: data for name, data in contents(path).items() if name.endswith(".log")}
    with open_logs(path) as logs:
        with pytest.raises(CommitError, match=match):
            logs.commits.commit(commit)
        assert not logs.commits.is_pending(commit.job)
    after = {name: data for name, data in contents(path).items() if name.endswith(".log")}
    assert after == before


def test_a_run_that_is_gone_or_cut(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 1)
    commit = StagedCommit(stage([tmp_path], [rows(0, 10)]), JOB)
    path = tmp_path / "orders-0" / commit.runs[0].name
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    refused(tmp_path, commit, "bytes, but")
    path.unlink()
    refused(tmp_path, commit, "staged file is missing")


def test_a_topic_that_is_another_by_now(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 1)
    commit = StagedCommit(stage([tmp_path], [rows(0, 10)]), JOB)
    with open_logs(tmp_path) as logs:
        logs.alter_config("orders", {"compression.type": "zstd"})
    refused(tmp_path, commit, "settings of topic 'orders' were changed")
    with open_logs(tmp_path) as logs:
        logs.alter_config("orders", {"compression.type": None})
        logs.delete_topic("orders")
        logs.create_topic("orders", 1)
    refused(tmp_path, commit, "deleted after")
    with open_logs(tmp_path) as logs:
        logs.delete_topic("orders")
    refused(tmp_path, commit, "deleted after")


def test_a_topic_that_has_more_partitions_by_now(tmp_path: Path) -> None:
    """Keys would be in partitions where no producer puts them."""
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 2)
    commit = StagedCommit(stage([tmp_path], [rows(0, 10)]), JOB)
    with open_logs(tmp_path) as logs:
        logs.add_partitions("orders", 3)
    refused(tmp_path, commit, "has 3 partitions, but had 2 when")


def test_runs_of_another_commit(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 1)
    runs = stage([tmp_path], [rows(0, 10)])
    refused(tmp_path, StagedCommit((*runs, *runs), JOB), "or named twice")
    refused(tmp_path, StagedCommit(runs, "f" * 32), "not a staged file of this commit")


def test_a_corrupt_run_is_refused(tmp_path: Path) -> None:
    """Every byte is checked before anything is decided."""
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 1)
    terms = StagingOptions("orders", batch_bytes=100)
    commit = StagedCommit(stage([tmp_path], [rows(0, 10)], terms=terms), JOB)
    path = tmp_path / "orders-0" / commit.runs[0].name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    refused(tmp_path, commit, "CRC mismatch. Nothing was written")
    fewer = replace(commit.runs[0], record_count=9)
    data[-1] ^= 1
    path.write_bytes(data)
    refused(tmp_path, replace(commit, runs=(fewer,)), "10 records, but 9 were staged")
