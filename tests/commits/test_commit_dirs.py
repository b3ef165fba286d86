"""Log directories opened for commits only: what is recovered, and what is left to `LogDir.open`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from stratalog.commits.committer import CommitDirs
from stratalog.config import BrokerConfig
from stratalog.errors import LogDirLockedError
from stratalog.partitions.opening import OpenOptions
from tests.opening import SMALL, kill, open_logs

if TYPE_CHECKING:
    from pathlib import Path

CLEAN = ".kafka_cleanshutdown"


def open_for_commits(path: Path) -> CommitDirs:
    return CommitDirs([path], BrokerConfig.parse(SMALL), OpenOptions(create=False))


def test_logs_are_recovered_after_an_unclean_shutdown(tmp_path: Path) -> None:
    logs = open_logs(tmp_path)
    logs.append("orders", b"1")
    logs.flush()
    kill(logs)
    (segment,) = (tmp_path / "orders-0").glob("*.log")
    end = segment.stat().st_size
    with segment.open("ab") as file:
        file.write(b"torn")
    with open_for_commits(tmp_path) as dirs:
        assert [each.path for each in dirs.catalog.truncations]
    assert segment.stat().st_size == end
    assert (tmp_path / CLEAN).exists()


def test_a_lost_transaction_is_left_to_the_next_log_dir(tmp_path: Path) -> None:
    """The state that names it is lost; only an unclean shutdown makes `LogDir.open` look for it."""
    logs = open_logs(tmp_path)
    logs.create_topic("orders", 1)
    logs.transaction("a").append("orders", b"1").result()
    kill(logs)
    for file in tmp_path.glob("__transaction_state-*/*.log"):
        os.truncate(file, 0)
    with open_for_commits(tmp_path):
        pass
    assert not (tmp_path / CLEAN).exists()
    with open_logs(tmp_path) as logs:
        log = logs.partition("orders", 0)
        assert (log.last_stable_offset, log.log_end_offset) == (2, 2)
    assert (tmp_path / CLEAN).exists()


def test_the_lock_is_released_if_opening_fails(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.append("orders", b"1")
        with pytest.raises(LogDirLockedError):
            open_for_commits(tmp_path)
    (tmp_path / "stratalog-commit.json").write_bytes(b"{}")
    with open_for_commits(tmp_path) as dirs:  # a journal that cannot be read does not prevent it
        assert "orders" in dirs.catalog.topics
    open_for_commits(tmp_path).close()
