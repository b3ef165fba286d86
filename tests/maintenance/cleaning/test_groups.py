"""Which segments are rewritten together: Kafka's groups, and each limit by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.config import LogConfig
from stratalog.maintenance.cleaning.plan import (
    CleanerSegment,
    group_segments,
    legacy_delete_horizon_ms,
)
from tests.maintenance.cleaning.cleaning_cases import over_cases, rounds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.golden.cases import CompactionCase

RELATIVE_MAX = 2_147_483_647


@over_cases
def test_kafkas_groups(case: CompactionCase, compaction_dir: Callable[[str], Path]) -> None:
    for golden in rounds_of(case, compaction_dir(case.name)):
        if not golden.was_cleaned:
            continue
        plan, told = golden.plan(), golden.told
        end, bound = told["end_dirty_offset"], plan.first_uncleanable_offset
        groups = group_segments(plan.segments, end, bound, golden.config)
        assert [[s.base_offset for s in group] for group in groups] == told["groups"]
        horizon = legacy_delete_horizon_ms(
            plan.segments, plan.first_dirty_offset, golden.config.delete_retention_ms
        )
        assert horizon == told["legacy_delete_horizon_ms"]


def segment(
    base_offset: int, size_bytes: int = 100, index_bytes: int = 8, time_index_bytes: int = 12
) -> CleanerSegment:
    return CleanerSegment(
        base_offset=base_offset,
        size_bytes=size_bytes,
        offset_index_bytes=index_bytes,
        time_index_bytes=time_index_bytes,
        mtime_ms=1000 + base_offset,
        is_active=False,
    )


def bases(
    segments: Sequence[CleanerSegment], end: int, bound: int, **settings: int
) -> list[list[int]]:
    config = LogConfig.parse({name.replace("_", "."): value for name, value in settings.items()})
    return [[s.base_offset for s in g] for g in group_segments(segments, end, bound, config)]


def test_no_segment_no_group() -> None:
    assert bases([], 0, 0) == []


def test_limits_are_inclusive() -> None:
    three = [segment(0), segment(10), segment(20)]
    assert bases(three, 30, 30, segment_bytes=200) == [[0, 10], [20]]
    assert bases(three, 30, 30, segment_bytes=199) == [[0], [10], [20]]
    assert bases(three, 30, 30, segment_index_bytes=24) == [[0, 10], [20]]
    assert bases(three, 30, 30, segment_index_bytes=23) == [[0], [10], [20]]
    by_offset_index = [segment(0, index_bytes=20), segment(10, index_bytes=20)]
    assert bases(by_offset_index, 20, 20, segment_index_bytes=40) == [[0, 10]]
    assert bases(by_offset_index, 20, 20, segment_index_bytes=39) == [[0], [10]]


def test_first_of_a_group_may_exceed_every_limit() -> None:
    assert bases([segment(0, 500), segment(10, 0)], 20, 20, segment_bytes=100) == [[0], [10]]
    assert bases([segment(0, 500), segment(10, 0)], 20, 20, segment_bytes=500) == [[0, 10]]


def test_segments_at_or_above_the_end_are_left_alone() -> None:
    three = [segment(0), segment(10), segment(20)]
    assert bases(three, 20, 30) == [[0, 10]]
    assert bases(three, 21, 30) == [[0, 10, 20]]


def test_offsets_must_fit_beside_the_first_base() -> None:
    """The last offset of a segment is below the next base, of the last one below the bound."""
    two = [segment(5), segment(10)]
    assert bases(two, 20, 5 + RELATIVE_MAX + 1) == [[5, 10]]
    assert bases(two, 20, 5 + RELATIVE_MAX + 2) == [[5], [10]]
    three = [*two, segment(5 + RELATIVE_MAX + 1)]
    assert bases(three, RELATIVE_MAX * 2, RELATIVE_MAX + 9) == [[5, 10], [5 + RELATIVE_MAX + 1]]


def test_a_hole_behind_a_segment_counts_as_its_own() -> None:
    far = 5 + RELATIVE_MAX + 2
    three = [segment(5), segment(10), segment(far)]
    assert bases(three, far + 1, far + 1) == [[5], [10, far]]
    assert bases(three, 20, far + 1) == [[5], [10]]


def test_empty_segment_fits_at_any_distance() -> None:
    far = 3 * RELATIVE_MAX
    assert bases([segment(0), segment(far, size_bytes=0)], far + 1, far + 1) == [[0, far]]


def test_legacy_horizon_is_that_of_the_last_clean_segment() -> None:
    three = [segment(0), segment(10), segment(20)]
    assert legacy_delete_horizon_ms(three, 0, 100) == 0
    assert legacy_delete_horizon_ms(three, 1, 100) == 900
    assert legacy_delete_horizon_ms(three, 20, 100) == 910
    assert legacy_delete_horizon_ms(three, 21, 100) == 920
