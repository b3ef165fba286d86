"""Commits that come again: skipped if they are the same, refused if they are not, per topic."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest

from stratalog.bulk.row_staging import StagingOptions
from stratalog.commits.journal import CommitIdentity
from stratalog.commits.replays import HISTORY
from stratalog.commits.staged import StagedCommit
from stratalog.errors import CommitReplayError
from stratalog.partitions.saved_state import STATE_FILE
from tests.commits.staging import JOB, QUERY, open_logs, rows, stage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stratalog.commits.committer import CommitResult
    from stratalog.commits.staged import StagedRun


@pytest.fixture
def logs_dir(tmp_path: Path) -> Path:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 2)
        logs.create_topic("audit", 1)
    return tmp_path


def write(
    path: Path,
    number: int,
    first: int,
    count: int,
    *,
    topics: Sequence[str] = ("orders",),
    tasks: int = 1,
    has_checksums: bool = True,
) -> CommitResult:
    """One micro-batch of one query, written to the topics."""
    runs: list[StagedRun] = []
    for topic in topics:
        terms = StagingOptions(topic, batch_bytes=300, has_checksums=has_checksums)
        for task in range(tasks):
            share = range(first, first + count)[task::tasks]
            batches = [rows(row, 1) for row in share]
            runs += stage([path], batches, task=task, number=number, terms=terms)
    commit = StagedCommit(tuple(runs), JOB, number, CommitIdentity(QUERY, number))
    with open_logs(path) as logs:
        return logs.commits.commit(commit)


def count_in(path: Path, topic: str) -> int:
    with open_logs(path) as logs:
        return sum(log.log_end_offset for log in logs.partitions_of(topic))


def test_one_number_for_two_topics(logs_dir: Path) -> None:
    """Two writes in one foreachBatch: both count, and both are known when they come again."""
    assert not write(logs_dir, 5, 0, 10, topics=["orders"]).is_replay
    assert not write(logs_dir, 5, 0, 10, topics=["audit"]).is_replay
    assert (count_in(logs_dir, "orders"), count_in(logs_dir, "audit")) == (10, 10)
    assert write(logs_dir, 5, 0, 10, topics=["orders"]).is_replay
    assert write(logs_dir, 5, 0, 10, topics=["audit"]).is_replay
    assert (count_in(logs_dir, "orders"), count_in(logs_dir, "audit")) == (10, 10)
    with open_logs(logs_dir) as logs:
        assert logs.commits.is_committed(CommitIdentity(QUERY, 5), "audit")
        assert not logs.commits.is_committed(CommitIdentity(QUERY, 5), "other")
        assert logs.commits.last_number(QUERY, "orders") == 5


def test_a_replay_with_one_more_topic(logs_dir: Path) -> None:
    """Only what is new is written."""
    write(logs_dir, 5, 0, 10, topics=["orders"])
    result = write(logs_dir, 5, 0, 10, topics=["orders", "audit"])
    assert (result.record_count, result.skipped_records, result.is_replay) == (10, 10, False)
    assert (count_in(logs_dir, "orders"), count_in(logs_dir, "audit")) == (10, 10)
    assert not list(logs_dir.rglob("*.staged"))


def test_a_replay_is_logged(logs_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(logs_dir, 5, 0, 10)
    with caplog.at_level(logging.WARNING):
        result = write(logs_dir, 5, 0, 10)
    assert (result.record_count, result.skipped_records) == (0, 10)
    assert f"{QUERY}: skipped commit 5 to topic orders: its 10 rows were" in caplog.text


def test_the_same_rows_in_other_tasks_and_another_order(logs_dir: Path) -> None:
    write(logs_dir, 5, 0, 10, tasks=1)
    assert write(logs_dir, 5, 0, 10, tasks=3).is_replay


@pytest.mark.parametrize(("first", "count"), [(0, 11), (0, 9), (10, 10)])
def test_other_rows_under_a_known_number(logs_dir: Path, first: int, count: int) -> None:
    """More, fewer, or as many others: a query that was started from an older checkpoint."""
    write(logs_dir, 5, 0, 10)
    with pytest.raises(CommitReplayError, match=f"other rows: {count} rows .* but 10 rows"):
        write(logs_dir, 5, first, count)
    assert count_in(logs_dir, "orders") == 10


def test_only_counts_are_compared_on_request(logs_dir: Path) -> None:
    """For a query whose rows are others each time it runs."""
    write(logs_dir, 5, 0, 10)
    assert write(logs_dir, 5, 10, 10, has_checksums=False).is_replay
    with pytest.raises(CommitReplayError, match="11 rows, but 10 rows"):
        write(logs_dir, 5, 0, 11, has_checksums=False)


@pytest.mark.slow
def test_earlier_numbers(logs_dir: Path) -> None:
    """As long as they can be compared they are skipped; what cannot be compared is refused."""
    for number in range(HISTORY + 1):
        write(logs_dir, 2 * number, 10 * number, 10)
    assert write(logs_dir, 2, 10, 10).is_replay
    with pytest.raises(CommitReplayError, match="other rows"):
        write(logs_dir, 2, 11, 10)
    for number in (0, 3):  # forgotten; never seen
        with pytest.raises(CommitReplayError, match=f"commit {number} .* comes after commit 20"):
            write(logs_dir, number, 0, 10)
    assert count_in(logs_dir, "orders") == 10 * (HISTORY + 1)


def test_a_topic_that_was_created_again(logs_dir: Path) -> None:
    """What the old one had is gone with it."""
    write(logs_dir, 5, 0, 10)
    with open_logs(logs_dir) as logs:
        logs.delete_topic("orders")
        logs.create_topic("orders", 2)
    assert not write(logs_dir, 5, 0, 10).is_replay
    assert count_in(logs_dir, "orders") == 10


def test_what_earlier_versions_recorded(logs_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Only a number for all topics: the same one again is skipped, with a warning."""
    path = logs_dir / STATE_FILE
    content = json.loads(path.read_text())
    content["commits"] = {QUERY: 5}
    path.write_text(json.dumps(content))
    with caplog.at_level(logging.WARNING):
        assert write(logs_dir, 5, 0, 10).is_replay
    assert "did not record row counts" in caplog.text
    with pytest.raises(CommitReplayError, match="comes after commit 5"):
        write(logs_dir, 4, 0, 10)
    assert not write(logs_dir, 6, 0, 10).is_replay
    assert write(logs_dir, 6, 0, 10).is_replay
