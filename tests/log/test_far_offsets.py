"""Segments whose offsets outgrow the 31 bits of their indexes, as old cleaners wrote them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.log.partition_view import PartitionView
from tests.handmade import plain, write_segment

if TYPE_CHECKING:
    from pathlib import Path

FAR = (1 << 31) + 5


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    path = tmp_path / "far-0"
    batches = (plain(0), plain(FAR, timestamp=3000), plain(FAR + 100, timestamp=2000))
    write_segment(path, 0, *batches)
    write_segment(path, FAR + 200, plain(FAR + 200, timestamp=5000))
    return path


@pytest.mark.parametrize(
    ("timestamp", "offset"),
    [(1001, 1), (1500, FAR), (3001, FAR + 1), (3002, FAR + 200), (5001, FAR + 201)],
)
def test_times_out_of_reach_of_the_index_are_found(
    partition: Path, timestamp: int, offset: int
) -> None:
    with PartitionView(partition, log_start_offset=0) as view:
        found = view.find_time(timestamp)
    assert found is not None
    assert found.offset == offset


def test_a_last_segment_tells_its_newest_time(tmp_path: Path) -> None:
    path = tmp_path / "far-0"
    write_segment(path, 0, plain(0), plain(FAR, timestamp=3000))
    with PartitionView(path, log_start_offset=0) as view:
        assert view.segments.largest_timestamp(0) == (3001, FAR + 1)


def test_offsets_left_out_by_compaction_are_no_overflow(tmp_path: Path) -> None:
    path = tmp_path / "far-0"
    write_segment(path, 0, plain(0))
    write_segment(path, FAR, plain(FAR, timestamp=500))
    with PartitionView(path, log_start_offset=0) as view:
        assert view.segments.largest_timestamp(0) == (1001, 1)
        found = view.find_time(1001)
    assert found is not None
    assert found.offset == 1
