"""Retention plans of any log: what always holds, and Kafka's own loops beside them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.config import LogConfig
from stratalog.config.topic import CleanupPolicy
from stratalog.format.names import TopicPartition
from stratalog.maintenance.retention import RetentionLog, RetentionSegment, plan_retention
from tests.log.building import log_name
from tests.maintenance.retention_cases import BOTH, COMPACTED


@st.composite
def logs(draw: st.DrawFn) -> RetentionLog:
    steps = draw(st.lists(st.integers(1, 20), min_size=1, max_size=8))
    sizes = draw(st.lists(st.integers(0, 50), min_size=len(steps), max_size=len(steps)))
    bases = [draw(st.integers(0, 30))]
    for step in steps:
        bases.append(bases[-1] + step)
    if not sizes[-1]:
        bases[-1] = bases[-2]
    times = st.integers(-1, 300)
    segments = tuple(
        RetentionSegment(
            path=Path(log_name(base)),
            base_offset=base,
            end_offset=bases[slot + 1],
            size_bytes=size,
            largest_timestamp=draw(times),
            timestamp_offset=base,
            mtime_ms=draw(times),
            is_active=slot == len(sizes) - 1,
        )
        for slot, (base, size) in enumerate(zip(bases, sizes, strict=False))
    )
    high_watermark = draw(st.integers(bases[0], bases[-1]))
    start = draw(st.integers(bases[0], high_watermark))
    return RetentionLog(TopicPartition("t", 0), Path(), start, high_watermark, bases[-1], segments)


configs = st.builds(
    LogConfig,
    retention_ms=st.integers(-1, 300),
    retention_bytes=st.integers(-1, 300),
    cleanup_policy=st.sampled_from([frozenset({CleanupPolicy.DELETE}), COMPACTED, BOTH]),
)


@given(logs(), configs, st.integers(0, 400))
def test_what_goes_is_a_prefix_below_the_high_watermark(
    log: RetentionLog, config: LogConfig, now_ms: int
) -> None:
    plan = plan_retention(log, config, now_ms)
    assert tuple(decision.segment for decision in plan.decisions) == log.segments
    assert plan.deleted + plan.kept == log.segments
    assert log.log_start_offset <= plan.new_log_start_offset <= log.high_watermark
    if plan.kept:
        assert plan.kept[0].base_offset <= plan.new_log_start_offset or not plan.deleted
    else:
        assert plan.new_log_start_offset == log.log_end_offset
    for segment in plan.deleted:
        assert segment.end_offset <= log.high_watermark
    for decision in plan.decisions:
        assert len(decision.results) == (1 if decision.is_deleted else 3)
        assert all(f.is_deletion == decision.is_deleted for f in decision.results)
    assert pickle.loads(pickle.dumps(plan)) == plan


@given(logs(), configs, st.integers(0, 400))
def test_a_second_plan_finds_nothing_and_a_later_one_no_less(
    log: RetentionLog, config: LogConfig, now_ms: int
) -> None:
    plan = plan_retention(log, config, now_ms)
    if plan.rolls:
        return
    left = log._replace(log_start_offset=plan.new_log_start_offset, segments=plan.kept)
    again = plan_retention(left, config, now_ms)
    assert not again.deleted
    assert again.decisions == plan.decisions[len(plan.deleted) :]
    for decision in plan.decisions:
        if decision.expires_ms is not None:
            at = log.segments.index(decision.segment)
            assert at < len(plan_retention(log, config, decision.expires_ms).deleted)
            if config.retention_bytes < 0:
                early = plan_retention(log, config, decision.expires_ms - 1)
                assert at >= len(early.deleted)


@pytest.mark.slow
@given(logs(), configs, st.integers(0, 400))
def test_as_kafka_s_loops_decide(log: RetentionLog, config: LogConfig, now_ms: int) -> None:
    """The rules once more, in the way that a broker runs them: pass by pass over what is left."""
    left, start = list(log.segments), log.log_start_offset

    def take(is_wanted: list[bool]) -> None:
        nonlocal start
        for segment, wanted in zip(list(left), is_wanted, strict=True):
            is_last = segment is log.segments[-1]
            if not wanted or log.high_watermark < segment.end_offset:
                return
            if is_last and not segment.size_bytes:
                return
            left.remove(segment)
            start = max(start, segment.end_offset)

    take([s is not log.segments[-1] and s.end_offset <= start for s in left])
    if CleanupPolicy.DELETE in config.cleanup_policy:
        total = sum(s.size_bytes for s in left)
        if 0 <= config.retention_bytes <= total:
            diff, fits = total - config.retention_bytes, []
            for segment in left:
                fits.append(diff - segment.size_bytes >= 0)
                diff -= segment.size_bytes
            take(fits)
        if config.retention_ms >= 0:
            ages = [
                now_ms - (s.largest_timestamp if s.largest_timestamp >= 0 else s.mtime_ms)
                for s in left
            ]
            take([age > config.retention_ms for age in ages])
    plan = plan_retention(log, config, now_ms)
    assert (list(plan.kept), plan.new_log_start_offset) == (left, start)
