from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stratalog.cli.targets import (
    LazyTargets,
    TopicSpec,
    lazy_targets,
    open_targets,
    targets_of,
)
from stratalog.errors import NotALogDirError, StratalogError, UnknownTopicOrPartitionError
from tests.golden.cases import GoldenCase

if TYPE_CHECKING:
    from stratalog.log.partition_view import PartitionView

MULTISEG = GoldenCase("multiseg").partition_dir


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Topics `multiseg` with partitions 0, 2 and 10, and `multiseg-2`, which looks like one."""
    for name in ("multiseg-0", "multiseg-2", "multiseg-10", "multiseg-2-0", "other-7"):
        shutil.copytree(MULTISEG, tmp_path / name)
    return tmp_path


def _names(views: list[PartitionView]) -> list[str]:
    return [str(view.topic_partition) for view in views]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("orders", TopicSpec("orders", None)),
        ("orders:3", TopicSpec("orders", 3)),
        ("or:ders:3", TopicSpec("or:ders", 3)),
        ("orders:", TopicSpec("orders:", None)),
        (":3", TopicSpec(":3", None)),
        ("orders:x", TopicSpec("orders:x", None)),
    ],
)
def test_topic_spec(text: str, expected: TopicSpec) -> None:
    assert TopicSpec.parse(text) == expected


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("multiseg", ["multiseg-0", "multiseg-2", "multiseg-10"]),
        ("multiseg:10", ["multiseg-10"]),
        ("multiseg-2", ["multiseg-2-0"]),  # a topic of that name goes before a partition
        ("multiseg-10", ["multiseg-10"]),
        ("other-7", ["other-7"]),
    ],
)
def test_topics_of_a_log_dir(log_dir: Path, target: str, expected: list[str]) -> None:
    assert _names(open_targets([target], [log_dir])) == expected


def test_one_word_for_directory_and_topic(log_dir: Path) -> None:
    assert _names(open_targets([f"{log_dir}/multiseg:2"], [])) == ["multiseg-2"]
    assert _names(open_targets([f"{log_dir}/other"], [])) == ["other-7"]


def test_topics_below_the_current_directory(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(log_dir)
    assert _names(open_targets(["other"], [])) == ["other-7"]
    monkeypatch.chdir(log_dir / "other-7")
    assert _names(open_targets(["."], [])) == ["other-7"]


def test_several_log_dirs_are_one(tmp_path: Path) -> None:
    for place, name in (("a", "orders-1"), ("b", "orders-0"), ("b", "orders-2")):
        shutil.copytree(MULTISEG, tmp_path / place / name)
    views = open_targets(["orders"], [tmp_path / "a", tmp_path / "b"])
    assert _names(views) == ["orders-0", "orders-1", "orders-2"]


def test_a_partition_in_two_places_is_an_error(tmp_path: Path) -> None:
    for place in ("a", "b"):
        shutil.copytree(MULTISEG, tmp_path / place / "orders-0")
    with pytest.raises(StratalogError, match="two places"):
        open_targets(["orders"], [tmp_path / "a", tmp_path / "b"])


def test_partitions_are_listed_once(log_dir: Path) -> None:
    (log_dir / "new-0").mkdir()  # a broker will go on with it
    where = [str(log_dir / "other-7"), str(log_dir), f"{log_dir}/../{log_dir.name}/multiseg-0"]
    found = targets_of(where, None).all_partitions()
    names = ["multiseg-0", "multiseg-10", "multiseg-2", "multiseg-2-0", "other-7"]
    assert sorted(path.name for path in found) == names


def test_a_segment_is_that_part_of_the_log_alone() -> None:
    (view,) = open_targets([str(MULTISEG / "00000000000000000156.log")], [])
    assert (view.log_start_offset, view.log_end_offset) == (156, 312)
    assert [record.offset for record in view.read()] == list(range(156, 312))
    view.refresh()
    assert len(view.segments) == 1


def test_a_copy_under_any_name(tmp_path: Path) -> None:
    shutil.copytree(MULTISEG, tmp_path / "before the crash")
    (view,) = open_targets([str(tmp_path / "before the crash")], [])
    assert view.topic_partition == ("before the crash", -1)
    assert view.log_end_offset == 1500
    shutil.copy(MULTISEG / "00000000000000000156.log", tmp_path)
    (view,) = open_targets([str(tmp_path / "00000000000000000156.log")], [])
    assert sum(1 for _ in view.read()) == 156


@pytest.mark.parametrize(
    ("target", "has_log_dir", "error", "text"),
    [
        ("nope", True, UnknownTopicOrPartitionError, "no topic 'nope'; topics here: multiseg, "),
        ("multiseg:5", True, UnknownTopicOrPartitionError, r"has partitions \[0, 2, 10\], not 5"),
        ("/does/not/exist", False, NotALogDirError, "/does/not/exist: no such file or directory$"),
        ("{log_dir}", False, UnknownTopicOrPartitionError, "is a log directory: name a topic"),
        ("{log_dir}/empty", False, NotALogDirError, "neither a partition directory"),
        ("{log_dir}/multiseg-0/partition.metadata", False, NotALogDirError, "not a segment"),
        ("{log_dir}/multiseg-0/leader-epoch-checkpoint", False, NotALogDirError, "not a segment"),
    ],
)
def test_what_is_not_there(
    log_dir: Path, target: str, has_log_dir: bool, error: type[StratalogError], text: str
) -> None:
    (log_dir / "empty").mkdir()
    (log_dir / "multiseg-0" / "partition.metadata").touch()
    with pytest.raises(error, match=text):
        open_targets([target.format(log_dir=log_dir)], [log_dir] if has_log_dir else [])


def test_with_log_dir_a_name_is_a_topic_even_if_a_path_has_that_name(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the directory would stand for all its partitions: `repair other-7 -d .` for all."""
    monkeypatch.chdir(log_dir)
    here = [Path()]
    assert _names(open_targets(["other-7"], here)) == ["other-7"]
    assert [path.name for path in targets_of(["other-7"], here).all_partitions()] == ["other-7"]
    assert _opened(lazy_targets(["other-7"], here)) == ["other-7"]
    assert len(_opened(lazy_targets([], here))) == 5
    with pytest.raises(StratalogError):
        targets_of([str(log_dir / "other-7")], here)


def _opened(targets: LazyTargets) -> list[str]:
    return [view.path.name for opener in targets.openers() for view in opener()]
