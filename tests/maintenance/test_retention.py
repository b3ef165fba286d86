"""Retention plans, worked out by hand from Kafka's rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stratalog.config import LogConfig
from stratalog.config.topic import CleanupPolicy
from stratalog.maintenance.retention import (
    RetentionReason,
    RetentionRule,
    RuleResult,
    SegmentDecision,
    plan_retention,
)
from tests.maintenance.retention_cases import (
    BOTH,
    COMPACTED,
    HOUR_MS,
    NOW_MS,
    UNLIMITED,
    facts,
    outcome,
    reasons,
)

# -- by time


def result_of(decision: SegmentDecision, by: RetentionRule) -> RuleResult | None:
    return next((found for found in decision.results if found.by is by), None)


@pytest.mark.parametrize(
    ("timestamp", "result"),
    [
        (NOW_MS - 501, RuleResult(RetentionRule.TIME, RetentionReason.EXPIRED, 1)),
        (
            NOW_MS - 500,
            RuleResult(RetentionRule.TIME, RetentionReason.NOT_EXPIRED, 1),
        ),  # equal is not older
        (NOW_MS - 499, RuleResult(RetentionRule.TIME, RetentionReason.NOT_EXPIRED, 2)),
        (NOW_MS, RuleResult(RetentionRule.TIME, RetentionReason.NOT_EXPIRED, 501)),
        (NOW_MS + 1, RuleResult(RetentionRule.TIME, RetentionReason.FUTURE_TIMESTAMP, 1)),
        (0, RuleResult(RetentionRule.TIME, RetentionReason.EXPIRED, NOW_MS - 500)),
    ],
)
def test_a_segment_goes_once_its_newest_record_is_older_than_the_limit(
    timestamp: int, result: RuleResult
) -> None:
    plan = plan_retention(
        facts((100, timestamp), (100, NOW_MS)), LogConfig(retention_ms=500), NOW_MS
    )
    assert result_of(plan.decisions[0], RetentionRule.TIME) == result
    assert plan.decisions[0].is_deleted == (result.reason is RetentionReason.EXPIRED)


def test_no_time_is_no_limit_and_zero_keeps_what_is_not_older_than_now() -> None:
    log = facts((100, NOW_MS - 1), (100, NOW_MS), (100, NOW_MS))
    assert outcome(plan_retention(log, UNLIMITED, NOW_MS)) == ["keep"] * 3
    plan = plan_retention(log, LogConfig(retention_ms=0), NOW_MS)
    assert outcome(plan) == ["time", "keep", "keep"]


def test_the_first_segment_that_stays_keeps_those_behind_it() -> None:
    log = facts((100, 0), (100, NOW_MS - 400), (100, 0), (100, NOW_MS))
    plan = plan_retention(log, LogConfig(retention_ms=500), NOW_MS)
    assert outcome(plan) == ["time", "keep", "keep", "keep"]
    assert reasons(plan, 1) == [
        ("start-offset", "above-log-start", 10),
        ("size", "no-limit", 0),
        ("time", "not-expired", 101),
    ]
    assert reasons(plan, 2) == [
        ("start-offset", "after-kept", 10),
        ("size", "after-kept", 10),
        ("time", "after-kept", 10),
    ]
    assert [decision.expires_ms for decision in plan.decisions] == [
        None,
        NOW_MS + 101,
        NOW_MS + 101,
        NOW_MS + 501,
    ]
    assert plan_retention(log, plan.config, NOW_MS + 100).deleted == plan.deleted
    assert outcome(plan_retention(log, plan.config, NOW_MS + 101)) == ["time"] * 3 + ["keep"]


def test_a_timestamp_in_the_future_pins_its_segment_and_all_behind_it() -> None:
    log = facts((100, NOW_MS + HOUR_MS), (100, 0), (100, 0))
    plan = plan_retention(log, LogConfig(retention_ms=500), NOW_MS)
    assert outcome(plan) == ["keep"] * 3
    assert result_of(plan.decisions[0], RetentionRule.TIME) == (
        RetentionRule.TIME,
        RetentionReason.FUTURE_TIMESTAMP,
        HOUR_MS,
    )
    assert [decision.expires_ms for decision in plan.decisions] == [NOW_MS + HOUR_MS + 501] * 3
    later = plan_retention(log, plan.config, NOW_MS + HOUR_MS + 501)
    assert outcome(later) == ["time"] * 3
    assert later.rolls


def test_the_file_time_counts_only_where_no_record_has_a_timestamp() -> None:
    log = facts((100, -1), (100, 0), (100, NOW_MS))
    old, *others = log.segments
    log = log._replace(segments=(old._replace(mtime_ms=NOW_MS - 501), *others))
    config = LogConfig(retention_ms=500)
    plan = plan_retention(log, config, NOW_MS)
    assert outcome(plan) == ["time", "time", "keep"]
    young = log._replace(segments=(old._replace(mtime_ms=NOW_MS - 500), *others))
    plan = plan_retention(young, config, NOW_MS)
    assert outcome(plan) == ["keep"] * 3
    assert plan.decisions[0].segment.uses_mtime
    assert result_of(plan.decisions[0], RetentionRule.TIME) == (
        RetentionRule.TIME,
        RetentionReason.NOT_EXPIRED,
        1,
    )


def test_all_expired_rolls_and_the_log_goes_on_at_its_end() -> None:
    plan = plan_retention(facts((100, 0), (70, 0), end=17), LogConfig(retention_ms=500), NOW_MS)
    assert outcome(plan) == ["time", "time"]
    assert plan.rolls
    assert (plan.new_log_start_offset, plan.deleted_bytes, plan.kept_bytes) == (17, 170, 0)


def test_an_empty_active_segment_is_what_the_log_goes_on_with() -> None:
    log = facts((100, 0), (0, -1), end=10)
    plan = plan_retention(log, LogConfig(retention_ms=500, retention_bytes=0), NOW_MS)
    assert outcome(plan) == ["size", "keep"]
    assert plan.decisions[1].results == tuple(
        RuleResult(by, RetentionReason.EMPTY_ACTIVE) for by in RetentionRule
    )
    assert plan.decisions[1].expires_ms is None
    assert not plan.rolls
    assert plan.new_log_start_offset == 10


# -- by size


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (-1, ["keep"] * 3),
        (301, ["keep"] * 3),
        (300, ["keep"] * 3),
        (201, ["keep"] * 3),  # 99 too many: less than the first segment
        (200, ["size", "keep", "keep"]),
        (101, ["size", "keep", "keep"]),
        (100, ["size", "size", "keep"]),
        (1, ["size", "size", "keep"]),
        (0, ["size"] * 3),
    ],
)
def test_a_log_keeps_at_least_the_bytes_it_may_have(limit: int, expected: list[str]) -> None:
    config = replace(UNLIMITED, retention_bytes=limit)
    assert outcome(plan_retention(facts(*[(100, 0)] * 3), config, NOW_MS)) == expected


def test_the_figures_of_the_size_pass() -> None:
    config = replace(UNLIMITED, retention_bytes=150)
    plan = plan_retention(facts((100, 0), (60, 0), (50, 0), (20, 0)), config, NOW_MS)
    assert outcome(plan) == ["keep"] * 4  # 230 bytes: 80 too many, the first has 100
    assert result_of(plan.decisions[0], RetentionRule.SIZE) == (
        RetentionRule.SIZE,
        RetentionReason.WITHIN_SIZE,
        20,
    )
    plan = plan_retention(facts((60, 0), (100, 0), (50, 0), (20, 0)), config, NOW_MS)
    assert outcome(plan) == ["size", "keep", "keep", "keep"]
    assert plan.decisions[0].results == (
        RuleResult(RetentionRule.SIZE, RetentionReason.OVER_SIZE, 80),
    )
    assert result_of(plan.decisions[1], RetentionRule.SIZE) == (
        RetentionRule.SIZE,
        RetentionReason.WITHIN_SIZE,
        80,
    )


def test_an_empty_segment_goes_with_a_log_that_is_exactly_full() -> None:
    config = replace(UNLIMITED, retention_bytes=100)
    assert outcome(plan_retention(facts((0, 0), (100, 0)), config, NOW_MS)) == ["size", "keep"]
    config = replace(UNLIMITED, retention_bytes=101)
    assert outcome(plan_retention(facts((0, 0), (100, 0)), config, NOW_MS)) == ["keep", "keep"]


# -- by log start offset, and all together


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (9, ["keep"] * 3),
        (10, ["start-offset", "keep", "keep"]),
        (19, ["start-offset", "keep", "keep"]),
        (20, ["start-offset", "start-offset", "keep"]),
        (30, ["start-offset", "start-offset", "keep"]),  # nothing follows the last
    ],
)
def test_segments_below_the_log_start_go_whatever_the_policy(
    start: int, expected: list[str]
) -> None:
    log = facts(*[(100, 0)] * 3, start=start)
    for policy in (frozenset({CleanupPolicy.DELETE}), COMPACTED, BOTH, frozenset[CleanupPolicy]()):
        config = replace(UNLIMITED, cleanup_policy=policy)
        plan = plan_retention(log, config, NOW_MS)
        assert outcome(plan) == expected
        assert plan.new_log_start_offset == start


def test_only_the_delete_policy_looks_at_size_and_time() -> None:
    log = facts((100, 0), (100, 0), start=3)
    config = LogConfig(retention_ms=1, retention_bytes=0, cleanup_policy=COMPACTED)
    plan = plan_retention(log, config, NOW_MS)
    assert outcome(plan) == ["keep", "keep"]
    assert reasons(plan, 0) == [
        ("start-offset", "above-log-start", 7),
        ("size", "no-delete-policy", 0),
        ("time", "no-delete-policy", 0),
    ]
    assert plan.decisions[0].expires_ms is None
    assert outcome(plan_retention(log, replace(config, cleanup_policy=BOTH), NOW_MS)) == [
        "size",
        "size",
    ]


def test_what_only_kafka_knows_to_be_copied_elsewhere_stays() -> None:
    config = LogConfig(retention_ms=1, retention_bytes=0, remote_storage_enable=True)
    plan = plan_retention(facts((100, 0), (100, 0), (100, 0), start=10), config, NOW_MS)
    assert outcome(plan) == ["start-offset", "keep", "keep"]
    assert result_of(plan.decisions[1], RetentionRule.TIME) == (
        RetentionRule.TIME,
        RetentionReason.REMOTE_STORAGE,
        0,
    )


def test_each_pass_goes_on_where_the_one_before_stopped() -> None:
    log = facts((10, NOW_MS), (100, NOW_MS), (100, 0), (100, NOW_MS), (100, 0), start=10)
    config = LogConfig(retention_ms=500, retention_bytes=300)
    plan = plan_retention(log, config, NOW_MS)
    # 410 bytes, but 10 are gone before the size pass: 100 too many.
    assert outcome(plan) == ["start-offset", "size", "time", "keep", "keep"]
    assert plan.decisions[0].results == (
        RuleResult(RetentionRule.START_OFFSET, RetentionReason.BELOW_LOG_START, 0),
    )
    assert plan.decisions[1].results == (
        RuleResult(RetentionRule.SIZE, RetentionReason.OVER_SIZE, 100),
    )
    assert plan.new_log_start_offset == 30
    # Of the log as it is left: 200 bytes, 100 fewer than it may have.
    assert reasons(plan, 3) == [
        ("start-offset", "above-log-start", 10),
        ("size", "within-size", 200),
        ("time", "not-expired", 501),
    ]


# -- high watermark


@pytest.mark.parametrize(
    ("high_watermark", "expected"),
    [(9, ["keep"] * 3), (10, ["time", "keep", "keep"]), (29, ["time", "time", "keep"])],
)
def test_nothing_above_the_high_watermark_goes(high_watermark: int, expected: list[str]) -> None:
    log = facts(*[(100, 0)] * 3, high_watermark=high_watermark)
    plan = plan_retention(log, LogConfig(retention_ms=500), NOW_MS)
    assert outcome(plan) == expected
    first_kept = expected.index("keep")
    beyond = min(10 * first_kept + 10, 30) - high_watermark
    assert plan.decisions[first_kept].results == tuple(
        RuleResult(by, RetentionReason.ABOVE_HIGH_WATERMARK, beyond) for by in RetentionRule
    )
