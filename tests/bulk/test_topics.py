"""Topics are found whole, whoever is making them meanwhile."""

from __future__ import annotations

import shutil
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from stratalog.bulk.target import NewTopics, Target, TopicFinder
from stratalog.errors import UnknownTopicOrPartitionError
from stratalog.partitions.saved_state import PendingCreate, StateStore
from stratalog.partitions.view import LogDirView
from stratalog.storage.disk import Disk
from tests.commits.staging import open_logs
from tests.opening import UNSYNCED

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.commits.staged import StagedTopic


def test_a_missing_topic(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("other", 1)
    with pytest.raises(UnknownTopicOrPartitionError, match="topicPartitions"):
        Target((tmp_path,)).find("orders")
    made = Target((tmp_path,), NewTopics(3)).find("orders")
    assert (made.partition_count, len(made.dirs)) == (3, 3)
    assert made == Target((tmp_path,)).find("orders")


@pytest.mark.parametrize("new_topics", [None, NewTopics(4)], ids=["given", "to be made"])
def test_a_topic_that_a_crash_left_half_made(tmp_path: Path, new_topics: NewTopics | None) -> None:
    with open_logs(tmp_path) as logs:
        topic_id = logs.create_topic("orders", 4).topic_id
    assert topic_id is not None
    shutil.rmtree(tmp_path / "orders-3")
    store = StateStore(Disk(UNSYNCED), [tmp_path])
    store.update(creates=(PendingCreate("orders", topic_id, 0, 4),))
    found = Target((tmp_path,), new_topics).find("orders")
    assert (found.topic_id, found.partition_count) == (topic_id, 4)
    assert StateStore(Disk(UNSYNCED), [tmp_path]).state.creates == ()


def test_looking_again_while_topics_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look falls between two partitions of a topic."""
    logs_dir, hidden = tmp_path / "logs", tmp_path / "hidden"
    logs_dir.mkdir()
    with open_logs(logs_dir) as logs:
        logs.create_topic("orders", 2)
    store = StateStore(Disk(UNSYNCED), [logs_dir])
    really, reads = LogDirView.__init__, []

    def read(view: LogDirView, path: Path, *, may_be_new: bool) -> None:
        reads.append(path)
        if len(reads) > 1:
            really(view, path, may_be_new=may_be_new)
            return
        (logs_dir / "orders-1").rename(hidden)
        really(view, path, may_be_new=may_be_new)
        hidden.rename(logs_dir / "orders-1")
        store.update()

    monkeypatch.setattr(LogDirView, "__init__", read)
    assert Target((logs_dir,)).find("orders").partition_count == 2
    assert len(reads) == 2


@pytest.mark.slow
def test_many_tasks_make_the_same_topics(tmp_path: Path) -> None:
    names = [f"topic-{number}" for number in range(6)]
    with open_logs(tmp_path) as logs:
        logs.create_topic("other", 1)
    target = Target((tmp_path,), NewTopics(5), lock_wait_ms=60_000)

    def find_all(_: int) -> list[StagedTopic]:
        finder = TopicFinder(target)
        return [finder.find(name) for name in names]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(find_all, range(4)))
    for topics in zip(*found, strict=True):
        assert {topic.partition_count for topic in topics} == {5}
        assert len({topic.topic_id for topic in topics}) == 1
        assert isinstance(topics[0].topic_id, uuid.UUID)
