"""Staged files that no commit will use: which go, which stay, and when."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from stratalog.bulk.target import Target, abandon_job, abandon_runs
from stratalog.commits.committer import remove_staged_files
from stratalog.commits.journal import JournalFile, plan_commit
from stratalog.commits.staged import STALE_MS, StagedCommit
from stratalog.errors import CommitError
from stratalog.storage.disk import Disk
from tests.commits.staging import JOB, open_logs, rows, stage, stage_tasks, values_in
from tests.opening import NOW_MS, Clock, kill

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stratalog.commits.staged import StagedRun


@pytest.fixture
def logs_dir(tmp_path: Path) -> Path:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 2)
    return tmp_path


def set_age(path: Path, runs: Sequence[StagedRun], age_ms: int) -> None:
    for run in runs:
        at_ns = (NOW_MS - age_ms) * 1_000_000
        os.utime(path / str(run.topic_partition) / run.name, ns=(at_ns, at_ns))


def staged_in(path: Path) -> int:
    return len(list(path.rglob("*.staged")))


def test_only_old_files_are_swept(logs_dir: Path) -> None:
    set_age(logs_dir, stage([logs_dir], [rows(0, 10)], task=1), STALE_MS)
    set_age(logs_dir, stage([logs_dir], [rows(0, 10)], task=2), STALE_MS - 1)
    assert staged_in(logs_dir) == 4
    with open_logs(logs_dir) as logs:
        assert logs.commits.sweep() == 2
        assert staged_in(logs_dir) == 2
        assert logs.commits.sweep(stale_ms=0) == 2
    assert staged_in(logs_dir) == 0


def test_swept_when_the_last_stop_was_unclean(logs_dir: Path) -> None:
    set_age(logs_dir, stage([logs_dir], [rows(0, 10)]), STALE_MS)
    kill(open_logs(logs_dir))
    with open_logs(logs_dir):
        assert staged_in(logs_dir) == 0


def test_swept_from_time_to_time(logs_dir: Path) -> None:
    set_age(logs_dir, stage([logs_dir], [rows(0, 10)]), 0)
    clock = Clock()
    with open_logs(logs_dir, clock=clock) as logs:
        clock.advance(STALE_MS - 1)
        logs.run_pending_tasks()
        assert staged_in(logs_dir) == 2
        clock.advance(3_600_000)
        logs.run_pending_tasks()
        assert staged_in(logs_dir) == 0


def test_a_commit_sweeps_its_own_and_what_is_old(logs_dir: Path) -> None:
    stage([logs_dir], [rows(0, 10)], task=5, number=0)  # of an earlier micro-batch of the query
    commit = stage_tasks([logs_dir], number=1)
    later = stage([logs_dir], [rows(0, 10)], task=7, number=2)  # not its business
    set_age(logs_dir, later, 0)
    with open_logs(logs_dir) as logs:
        logs.commits.commit(commit)
    assert staged_in(logs_dir) == 2


def test_a_job_that_is_swept_while_it_runs_is_refused(logs_dir: Path) -> None:
    commit = StagedCommit(stage([logs_dir], [rows(0, 10)]), JOB)
    with open_logs(logs_dir) as logs:
        logs.commits.sweep(stale_ms=-(10**15))
        with pytest.raises(CommitError, match="staged file is missing"):
            logs.commits.commit(commit)


def test_an_abort_removes_what_is_not_decided(logs_dir: Path) -> None:
    stage([logs_dir], [rows(0, 10)])
    directories = [logs_dir / "orders-0", logs_dir / "orders-1", logs_dir / "gone-0"]
    assert remove_staged_files(Disk(), [logs_dir], directories, job="f" * 32) == 0
    assert remove_staged_files(Disk(), [logs_dir], directories, job=JOB) == 2
    assert staged_in(logs_dir) == 0


def test_what_is_decided_is_neither_aborted_nor_swept(logs_dir: Path) -> None:
    """However old: the journal says that it belongs to the log."""
    commit = StagedCommit(stage([logs_dir], [rows(0, 10)]), JOB)
    set_age(logs_dir, commit.runs, 10 * STALE_MS)
    with open_logs(logs_dir) as logs:
        ends = {run.topic_partition: 0 for run in commit.runs}
        JournalFile(Disk(), [logs_dir]).write(plan_commit(commit, ends, 1))
        assert remove_staged_files(Disk(), [logs_dir], [logs_dir / "orders-0"], job=JOB) == 0
        assert logs.commits.sweep() == 0
    assert sum(map(len, values_in([logs_dir]).values())) == 10
    assert staged_in(logs_dir) == 0


def test_an_abort_of_runs_leaves_those_of_another_driver(logs_dir: Path) -> None:
    """Both write the same micro-batch of the same query."""
    mine = stage([logs_dir], [rows(0, 10)], number=3)
    other = StagedCommit(stage([logs_dir], [rows(0, 10)], number=3), JOB, 3)
    target = Target((logs_dir,), lock_wait_ms=0)
    abandon_runs(target, mine)
    assert staged_in(logs_dir) == len(other.runs) == 2
    with open_logs(logs_dir) as logs:
        assert logs.commits.commit(other).record_count == 10


def test_an_abort_waits_for_the_lock(logs_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever has it may be about to decide on these files."""
    mine = stage([logs_dir], [rows(0, 10)])
    target = Target((logs_dir,), lock_wait_ms=0)
    with open_logs(logs_dir):
        abandon_runs(target, mine)
        abandon_job(target, JOB)
        assert staged_in(logs_dir) == 2
    assert "a later job removes them" in caplog.text
    abandon_runs(target, mine)
    assert staged_in(logs_dir) == 0
