"""Topics of a failed job go, unless anybody has begun to use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog import open_dirs
from stratalog.bulk.target import NewTopics, Target, TopicFinder, roll_back_topics
from stratalog.log_dir import LogDir
from stratalog.storage.staged_names import StagedName
from tests.commits.staging import JOB, open_logs

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.commits.staged import StagedTopic


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target((tmp_path,), NewTopics(2))


@pytest.fixture
def made(target: Target) -> tuple[StagedTopic, ...]:
    finder = TopicFinder(target)
    finder.find("new")
    return finder.created()


def test_only_what_was_made_is_told(target: Target, made: tuple[StagedTopic, ...]) -> None:
    assert [topic.name for topic in made] == ["new"]
    again = TopicFinder(target)
    again.find("new")
    assert again.created() == ()


def test_an_empty_topic_goes_with_its_files(
    tmp_path: Path, target: Target, made: tuple[StagedTopic, ...]
) -> None:
    assert roll_back_topics(target, made) == ()
    assert list(tmp_path.glob("new-*")) == []
    assert open_dirs(tmp_path).topics == {}
    assert roll_back_topics(target, made) == ("new",)  # it is somebody else's, if there is one


def test_a_topic_with_records_stays(
    tmp_path: Path, target: Target, made: tuple[StagedTopic, ...]
) -> None:
    with open_logs(tmp_path) as logs:
        logs.append("new", b"x", partition=1)
    assert roll_back_topics(target, made) == ("new",)
    assert open_dirs(tmp_path).partition_numbers == {"new": [0, 1]}


def test_a_topic_that_another_job_stages_for_stays(
    tmp_path: Path, target: Target, made: tuple[StagedTopic, ...]
) -> None:
    name = str(StagedName(JOB, 0, 0, "0" * 16))
    for path in (tmp_path / "new-1" / name, tmp_path / "new-0" / name):
        path.touch()
        assert roll_back_topics(target, made) == ("new",)
        path.unlink()
    assert roll_back_topics(target, made) == ()


def test_a_topic_that_was_made_again_stays(
    tmp_path: Path, target: Target, made: tuple[StagedTopic, ...]
) -> None:
    with open_logs(tmp_path) as logs:
        logs.delete_topic("new")
        logs.create_topic("new", 2)
    assert roll_back_topics(target, made) == ("new",)
    assert list(open_dirs(tmp_path).topics) == ["new"]


def test_deleted_files_of_others_wait_as_long_as_before(
    tmp_path: Path, target: Target, made: tuple[StagedTopic, ...]
) -> None:
    with LogDir.open(tmp_path, background=False) as logs:  # by the same clock
        logs.create_topic("old")
        logs.delete_topic("old")
    waiting = list(tmp_path.glob("old-0.*-delete"))
    assert len(waiting) == 1
    assert roll_back_topics(target, made) == ()
    assert waiting[0].is_dir()
    assert "new" not in open_dirs(tmp_path).topics
