"""Which part of a log is cleaned when: Kafka's own decisions, and each limit by itself."""

from __future__ import annotations

import dataclasses
import pickle
from typing import TYPE_CHECKING

import pytest

from stratalog.config import LogConfig
from stratalog.format.names import TopicPartition
from stratalog.maintenance.cleaning.plan import (
    BoundKind,
    CheckpointReset,
    CleanerLog,
    CleanerSegment,
    plan_cleaning,
)
from tests.maintenance.cleaning.cleaning_cases import over_cases, rounds_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stratalog.maintenance.cleaning.plan import CleaningPlan
    from tests.golden.cases import CompactionCase

NOW_MS = 1_000_000


@over_cases
def test_kafkas_decisions(case: CompactionCase, compaction_dir: Callable[[str], Path]) -> None:
    for golden in rounds_of(case, compaction_dir(case.name)):
        told, plan = golden.told, golden.plan()
        assert plan.first_dirty_offset == told["first_dirty_offset"]
        assert plan.bound.raw_offset == told["uncleanable_offset_raw"]
        assert plan.first_uncleanable_offset == told["first_uncleanable_offset"]
        decision = told["decision"]
        assert plan.clean_bytes == decision["clean_bytes"]
        assert plan.cleanable_bytes == decision["cleanable_bytes"]
        assert plan.total_bytes == decision["total_bytes"]
        assert plan.ratio == decision["cleanable_ratio"]
        assert (plan.max_lag_exceeded_ms > 0) == decision["need_compaction_now"]
        assert plan.max_lag_exceeded_ms == decision["max_compaction_delay_ms"]
        assert plan.is_selected == decision["selected_by_manager"]


@over_cases
def test_facts(case: CompactionCase, compaction_dir: Callable[[str], Path]) -> None:
    for golden in rounds_of(case, compaction_dir(case.name)):
        facts, told = golden.facts(), golden.told
        assert facts.log_end_offset == told["log_end_offset"]
        assert facts.last_stable_offset == told["last_stable_offset"]
        for segment, of_segment in zip(facts.segments, told["segments_before"], strict=True):
            assert segment.base_offset == of_segment["base_offset"]
            assert segment.size_bytes == of_segment["size"]
            assert segment.mtime_ms == of_segment["mtime_ms"]
            assert segment.is_active == of_segment["active"]
            if not segment.is_active:
                assert segment.offset_index_bytes == of_segment["index_bytes"]
                assert segment.time_index_bytes == of_segment["timeindex_bytes"]
            if segment.largest_timestamp >= 0:
                assert segment.largest_timestamp == of_segment["largest_timestamp"]


# -- by hand: three sealed segments of 100 bytes and an active one


def sealed(base_offset: int, **changes: int) -> CleanerSegment:
    plain = CleanerSegment(
        base_offset=base_offset,
        size_bytes=100,
        offset_index_bytes=0,
        time_index_bytes=12,
        mtime_ms=500,
        is_active=False,
        largest_timestamp=1000 + base_offset,
        first_batch_timestamp=1000 + base_offset,
    )
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]  # no bool among them


def log_of(*segments: CleanerSegment, **changes: int | None) -> CleanerLog:
    active = dataclasses.replace(sealed(30), is_active=True)
    facts = CleanerLog(
        topic_partition=TopicPartition("orders", 0),
        log_start_offset=0,
        log_end_offset=40,
        last_stable_offset=40,
        high_watermark=40,
        segments=(*(segments or (sealed(0), sealed(10), sealed(20))), active),
        checkpoint=None,
    )
    return dataclasses.replace(facts, **changes)  # type: ignore[arg-type]  # one field at a time


def decide(facts: CleanerLog, **settings: object) -> CleaningPlan:
    names = {name.replace("_", "."): value for name, value in settings.items()}
    config = LogConfig.parse({"cleanup.policy": "compact", **names})
    return plan_cleaning(facts, config, NOW_MS)


def test_all_is_dirty_without_a_checkpoint() -> None:
    plan = decide(log_of())
    assert plan.is_selected
    assert (plan.first_dirty_offset, plan.first_uncleanable_offset) == (0, 30)
    assert (plan.clean_bytes, plan.cleanable_bytes, plan.ratio) == (0, 300, 1.0)
    assert plan.bound.kind is BoundKind.ACTIVE_SEGMENT
    assert [segment.base_offset for segment in plan.segments] == [0, 10, 20]
    assert plan.dirty_segments == plan.segments
    assert "above" in plan.reasons[0]


@pytest.mark.parametrize(
    ("checkpoint", "reset"),
    [
        (4, CheckpointReset.BELOW_LOG_START),
        (41, CheckpointReset.BEYOND_LOG_END),
    ],
)
def test_checkpoint_outside_the_log(checkpoint: int, reset: CheckpointReset) -> None:
    plan = decide(log_of(checkpoint=checkpoint, log_start_offset=5))
    assert plan.first_dirty_offset == 5
    assert plan.checkpoint_reset is reset


@pytest.mark.parametrize("checkpoint", [5, 40])
def test_checkpoint_at_the_edges_of_the_log_counts(checkpoint: int) -> None:
    plan = decide(log_of(checkpoint=checkpoint, log_start_offset=5))
    assert plan.first_dirty_offset == checkpoint
    assert plan.checkpoint_reset is None


def test_checkpoint_inside_the_active_segment() -> None:
    plan = decide(log_of(checkpoint=33))
    assert plan.first_uncleanable_offset == 30
    assert plan.cleanable_bytes == 0
    assert not plan.is_selected
    assert plan.dirty_segments == ()


def test_segment_with_the_checkpoint_inside_counts_as_clean_and_dirty() -> None:
    plan = decide(log_of(checkpoint=15))
    assert (plan.clean_bytes, plan.cleanable_bytes) == (200, 200)
    assert [segment.base_offset for segment in plan.dirty_segments] == [10, 20]


def test_ratio_must_be_exceeded() -> None:
    half = log_of(sealed(0), sealed(10), checkpoint=10)
    assert not decide(half).is_selected
    assert decide(half, min_cleanable_dirty_ratio="0.49").is_selected
    assert "1 more dirty bytes" in decide(half).reasons[1]
    one_byte_more = log_of(sealed(0), sealed(10, size_bytes=101), checkpoint=10)
    assert decide(one_byte_more).is_selected


def test_nothing_dirty_is_never_selected() -> None:
    plan = decide(log_of(checkpoint=30), min_cleanable_dirty_ratio="0")
    assert not plan.is_selected
    assert plan.ratio == 0


def test_empty_log() -> None:
    facts = log_of()
    facts = dataclasses.replace(facts, segments=facts.segments[-1:], log_start_offset=30)
    plan = decide(facts)
    assert not plan.is_selected
    assert plan.total_bytes == 0
    assert plan.ratio == 0


def test_log_that_is_not_compacted() -> None:
    plan = plan_cleaning(log_of(), LogConfig(), NOW_MS)
    assert not plan.is_selected
    assert plan.reasons == ("cleanup.policy is delete, so the log is not compacted",)


def test_open_transaction_protects_its_whole_segment() -> None:
    plan = decide(log_of(last_stable_offset=15))
    assert (plan.bound.raw_offset, plan.bound.offset) == (15, 10)
    assert plan.bound.kind is BoundKind.OPEN_TRANSACTION
    assert "began at 15" in str(plan.bound)


def test_open_transaction_in_the_active_segment_takes_nothing_away() -> None:
    plan = decide(log_of(last_stable_offset=35))
    assert plan.bound.kind is BoundKind.ACTIVE_SEGMENT
    assert plan.bound.offset == 30


def test_high_watermark_bounds_too() -> None:
    plan = decide(log_of(last_stable_offset=12, high_watermark=12))
    assert plan.bound.kind is BoundKind.HIGH_WATERMARK
    assert plan.bound.offset == 10


def test_young_segment_holds_back_older_ones_behind_it() -> None:
    facts = log_of(sealed(0), sealed(10, largest_timestamp=NOW_MS - 99), sealed(20))
    plan = decide(facts, min_compaction_lag_ms=100)
    assert plan.bound.kind is BoundKind.MIN_LAG
    assert plan.bound.offset == 10
    assert plan.bound.timestamp == NOW_MS - 99
    assert plan.bound.cleanable_from_ms == NOW_MS + 1
    assert str(NOW_MS + 1) in str(plan.bound)


def test_segment_of_exactly_the_lag_is_old_enough() -> None:
    facts = log_of(sealed(0), sealed(10, largest_timestamp=NOW_MS - 100), sealed(20))
    assert decide(facts, min_compaction_lag_ms=100).bound.kind is BoundKind.ACTIVE_SEGMENT


def test_clean_segment_is_never_too_young() -> None:
    facts = log_of(sealed(0, largest_timestamp=NOW_MS), sealed(10), checkpoint=10)
    assert decide(facts, min_compaction_lag_ms=100).bound.kind is BoundKind.ACTIVE_SEGMENT


def test_lag_forces_a_round_whatever_the_ratio() -> None:
    facts = log_of(sealed(0, size_bytes=10_000), sealed(10), checkpoint=10)
    waited = NOW_MS - 1010
    assert not decide(facts, max_compaction_lag_ms=waited).is_selected
    plan = decide(facts, max_compaction_lag_ms=waited - 1)
    assert plan.is_selected
    assert plan.max_lag_exceeded_ms == 1
    assert "max.compaction.lag.ms" in plan.reasons[-1]


def test_lag_forces_nothing_without_bytes_to_clean() -> None:
    facts = log_of(last_stable_offset=5, checkpoint=0)
    plan = decide(facts, max_compaction_lag_ms=1)
    assert plan.max_lag_exceeded_ms > 0
    assert not plan.is_selected


@pytest.mark.parametrize("timestamp", [0, -1])
def test_batches_without_a_time_start_no_lag(timestamp: int) -> None:
    facts = log_of(sealed(0, first_batch_timestamp=timestamp))
    assert not decide(facts, max_compaction_lag_ms=1).max_lag_exceeded_ms


def test_a_selection_can_be_sent_elsewhere() -> None:
    plan = decide(log_of(last_stable_offset=15))
    assert pickle.loads(pickle.dumps(plan)) == plan
