"""A broker makes a partition's directory before its first segment: until then it is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.bulk.read_planning import open_partitions, subscribed_partitions
from stratalog.errors import NotALogDirError
from stratalog.partitions.view import LogDirsView
from stratalog.spark.options import parse_read_options, plan_read
from tests.bulk.reading import read_plan
from tests.handmade import plain, write_segment

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    write_segment(tmp_path / "orders-0", 0, plain(0))
    (tmp_path / "orders-1").mkdir()
    (tmp_path / "new-0").mkdir()
    (tmp_path / "new-0" / "partition.metadata").touch()
    return tmp_path


@pytest.mark.parametrize("wanted", [{"subscribe": "orders"}, {"subscribePattern": ".*"}], ids=str)
def test_what_has_segments_is_read(log_dir: Path, wanted: dict[str, str]) -> None:
    found = read_plan(plan_read({"path": str(log_dir), **wanted}))
    assert {number: len(records) for number, records in found.items()} == {0: 2}


def test_a_topic_that_is_being_made_has_no_rows(log_dir: Path) -> None:
    assert plan_read({"path": str(log_dir), "subscribe": "new"}).splits == ()


@pytest.mark.parametrize("left", ["00000000000000000000.index", "00000000000000000007.snapshot"])
def test_a_partition_that_has_lost_its_segments_is_an_error(log_dir: Path, left: str) -> None:
    (log_dir / "orders-1" / left).touch()
    with pytest.raises(NotALogDirError, match=left):
        plan_read({"path": str(log_dir), "subscribe": "orders"})


def test_a_partition_is_there_with_its_first_segment(log_dir: Path) -> None:
    options = parse_read_options({"path": str(log_dir), "subscribe": "orders"})

    def present() -> list[int]:
        logs = LogDirsView(options.paths)
        return [
            each.partition
            for each in open_partitions(logs, subscribed_partitions(logs, options), options)
        ]

    assert present() == [0]
    write_segment(log_dir / "orders-1", 0)
    assert present() == [0, 1]
