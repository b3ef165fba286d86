from __future__ import annotations

import pytest

from stratalog.log.snapshot_files import (
    snapshots_of_segments,
    snapshots_out_of_range,
    snapshots_to_take,
    stray_snapshots,
)


@pytest.mark.parametrize(
    ("snapshots", "bases", "deleted"),
    [
        pytest.param([], [0, 100], [], id="none"),
        pytest.param([100, 200], [0, 100, 200], [], id="each has its segment"),
        pytest.param([100, 250], [0, 100, 200], [], id="clean shutdown left one at the end"),
        pytest.param([100, 210, 250], [0, 100, 200], [210], id="only the newest at the end"),
        pytest.param([50, 100], [0, 100, 200], [50], id="between segments"),
        pytest.param([50, 60, 100], [0, 100], [50, 60], id="several"),
        pytest.param([50, 100, 250], [0, 100, 200], [50], id="between and at the end"),
        pytest.param([250, 50, 230], [200, 0], [50, 230], id="in any order"),
        pytest.param([10, 20], [], [10], id="no segments"),
    ],
)
def test_stray(snapshots: list[int], bases: list[int], deleted: list[int]) -> None:
    assert stray_snapshots(snapshots, bases) == deleted


def test_out_of_range() -> None:
    """None at or below the log start, none above the log end."""
    snapshots = [300, 10, 50, 51, 200, 201]
    assert snapshots_out_of_range(snapshots, 50, 200) == [10, 50, 201, 300]


def test_log_that_was_deleted_to_its_end_keeps_none() -> None:
    assert snapshots_out_of_range([60, 100], 100, 100) == [60, 100]


def test_snapshots_leave_with_their_segments() -> None:
    assert snapshots_of_segments([100, 200, 300, 350], [0, 100, 200]) == [100, 200]


def test_compacted_segment_keeps_the_snapshot_at_its_base() -> None:
    """Segments 100 to 300 became one at 100."""
    snapshots = [100, 200, 300, 400]
    assert snapshots_of_segments(snapshots, [100, 200, 300], kept_bases=[100]) == [200, 300]


@pytest.mark.parametrize(
    ("bases", "expected"),
    [
        ([], [500]),
        ([0], [0, 500]),
        ([0, 100], [0, 100, 500]),
        ([0, 100, 300, 200], [200, 300, 500]),
        ([0, 500], [0, 500]),
    ],
)
def test_rebuild_takes_snapshots_at_the_last_two_segments_and_the_end(
    bases: list[int], expected: list[int]
) -> None:
    assert snapshots_to_take(bases, 500) == expected
