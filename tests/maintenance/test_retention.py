"""Retention plans, worked out by hand from Kafka's rules, and what applying them does."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.config import LogConfig
from stratalog.config.choices import CleanupPolicy
from stratalog.format.names import TopicPartition
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log.partition_view import PartitionView
from stratalog.maintenance.recovery import LoadPoint, open_log
from stratalog.maintenance.retention import (
    Finding,
    Pass,
    Reason,
    RetentionPlan,
    apply,
    plan_retention,
    retain,
)
from stratalog.maintenance.retention_facts import (
    LogFacts,
    SegmentFacts,
    facts_of_log,
    facts_of_view,
)
from stratalog.storage.disk import Disk
from tests.log.building import log_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.log.partition_log import PartitionLog

NOW_MS = 1_000_000
HOUR_MS = 3_600_000
UNLIMITED = LogConfig(retention_ms=-1)
COMPACTED = frozenset({CleanupPolicy.COMPACT})
BOTH = frozenset({CleanupPolicy.COMPACT, CleanupPolicy.DELETE})


def facts(
    *segments: tuple[int, int],
    start: int = 0,
    high_watermark: int | None = None,
    end: int | None = None,
) -> LogFacts:
    """Segments as (bytes, largest timestamp), ten offsets each; the last one is active."""
    end_offset = 10 * len(segments) if end is None else end
    return LogFacts(
        topic_partition=TopicPartition("t", 0),
        path=Path("t-0"),
        log_start_offset=start,
        high_watermark=end_offset if high_watermark is None else high_watermark,
        log_end_offset=end_offset,
        segments=tuple(
            SegmentFacts(
                path=Path("t-0", log_name(10 * slot)),
                base_offset=10 * slot,
                end_offset=end_offset if slot == len(segments) - 1 else 10 * slot + 10,
                size_bytes=size_bytes,
                largest_timestamp=timestamp,
                timestamp_offset=10 * slot + 9,
                mtime_ms=NOW_MS,
                is_active=slot == len(segments) - 1,
            )
            for slot, (size_bytes, timestamp) in enumerate(segments)
        ),
    )


def outcome(plan: RetentionPlan) -> list[str]:
    """For each segment, which pass takes it; `keep` if none does."""
    return [verdict.deleted_by or "keep" for verdict in plan.verdicts]


def reasons(plan: RetentionPlan, slot: int) -> list[tuple[str, str, int]]:
    return [tuple(finding) for finding in plan.verdicts[slot].findings]  # type: ignore[misc]


# -- by time


@pytest.mark.parametrize(
    ("timestamp", "finding"),
    [
        (NOW_MS - 501, Finding(Pass.TIME, Reason.EXPIRED, 1)),
        (NOW_MS - 500, Finding(Pass.TIME, Reason.NOT_EXPIRED, 1)),  # equal is not older
        (NOW_MS - 499, Finding(Pass.TIME, Reason.NOT_EXPIRED, 2)),
        (NOW_MS, Finding(Pass.TIME, Reason.NOT_EXPIRED, 501)),
        (NOW_MS + 1, Finding(Pass.TIME, Reason.FUTURE_TIMESTAMP, 1)),
        (0, Finding(Pass.TIME, Reason.EXPIRED, NOW_MS - 500)),
    ],
)
def test_a_segment_goes_once_its_newest_record_is_older_than_the_limit(
    timestamp: int, finding: Finding
) -> None:
    plan = plan_retention(
        facts((100, timestamp), (100, NOW_MS)), LogConfig(retention_ms=500), NOW_MS
    )
    assert plan.verdicts[0].finding(Pass.TIME) == finding
    assert plan.verdicts[0].is_deleted == (finding.reason is Reason.EXPIRED)


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
        ("start-offset", "behind-kept", 10),
        ("size", "behind-kept", 10),
        ("time", "behind-kept", 10),
    ]
    assert [verdict.leaves_ms for verdict in plan.verdicts] == [
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
    assert plan.verdicts[0].finding(Pass.TIME) == (Pass.TIME, Reason.FUTURE_TIMESTAMP, HOUR_MS)
    assert [segment.timestamp_offset for segment in plan.future] == [9]
    assert [verdict.leaves_ms for verdict in plan.verdicts] == [NOW_MS + HOUR_MS + 501] * 3
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
    assert plan.verdicts[0].segment.uses_mtime
    assert plan.verdicts[0].finding(Pass.TIME) == (Pass.TIME, Reason.NOT_EXPIRED, 1)


def test_all_expired_rolls_and_the_log_goes_on_at_its_end() -> None:
    plan = plan_retention(facts((100, 0), (70, 0), end=17), LogConfig(retention_ms=500), NOW_MS)
    assert outcome(plan) == ["time", "time"]
    assert plan.rolls
    assert (plan.new_log_start_offset, plan.deleted_bytes, plan.kept_bytes) == (17, 170, 0)


def test_an_empty_active_segment_is_what_the_log_goes_on_with() -> None:
    log = facts((100, 0), (0, -1), end=10)
    plan = plan_retention(log, LogConfig(retention_ms=500, retention_bytes=0), NOW_MS)
    assert outcome(plan) == ["size", "keep"]
    assert plan.verdicts[1].findings == tuple(Finding(by, Reason.EMPTY_ACTIVE) for by in Pass)
    assert plan.verdicts[1].leaves_ms is None
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
    assert plan.verdicts[0].finding(Pass.SIZE) == (Pass.SIZE, Reason.WITHIN_SIZE, 20)
    plan = plan_retention(facts((60, 0), (100, 0), (50, 0), (20, 0)), config, NOW_MS)
    assert outcome(plan) == ["size", "keep", "keep", "keep"]
    assert plan.verdicts[0].findings == (Finding(Pass.SIZE, Reason.OVER_SIZE, 80),)
    assert plan.verdicts[1].finding(Pass.SIZE) == (Pass.SIZE, Reason.WITHIN_SIZE, 80)


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
    assert plan.verdicts[0].leaves_ms is None
    assert outcome(plan_retention(log, replace(config, cleanup_policy=BOTH), NOW_MS)) == [
        "size",
        "size",
    ]


def test_what_only_kafka_knows_to_be_copied_elsewhere_stays() -> None:
    config = LogConfig(retention_ms=1, retention_bytes=0, remote_storage_enable=True)
    plan = plan_retention(facts((100, 0), (100, 0), (100, 0), start=10), config, NOW_MS)
    assert outcome(plan) == ["start-offset", "keep", "keep"]
    assert plan.verdicts[1].finding(Pass.TIME) == (Pass.TIME, Reason.REMOTE_STORAGE, 0)


def test_each_pass_goes_on_where_the_one_before_stopped() -> None:
    log = facts((10, NOW_MS), (100, NOW_MS), (100, 0), (100, NOW_MS), (100, 0), start=10)
    config = LogConfig(retention_ms=500, retention_bytes=300)
    plan = plan_retention(log, config, NOW_MS)
    # 410 bytes, but 10 are gone before the size pass: 100 too many.
    assert outcome(plan) == ["start-offset", "size", "time", "keep", "keep"]
    assert plan.verdicts[0].findings == (Finding(Pass.START_OFFSET, Reason.BELOW_LOG_START, 0),)
    assert plan.verdicts[1].findings == (Finding(Pass.SIZE, Reason.OVER_SIZE, 100),)
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
    assert plan.verdicts[first_kept].findings == tuple(
        Finding(by, Reason.ABOVE_HIGH_WATERMARK, beyond) for by in Pass
    )


# -- any log


@st.composite
def logs(draw: st.DrawFn) -> LogFacts:
    steps = draw(st.lists(st.integers(1, 20), min_size=1, max_size=8))
    sizes = draw(st.lists(st.integers(0, 50), min_size=len(steps), max_size=len(steps)))
    bases = [draw(st.integers(0, 30))]
    for step in steps:
        bases.append(bases[-1] + step)
    if not sizes[-1]:
        bases[-1] = bases[-2]
    times = st.integers(-1, 300)
    segments = tuple(
        SegmentFacts(
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
    return LogFacts(TopicPartition("t", 0), Path(), start, high_watermark, bases[-1], segments)


configs = st.builds(
    LogConfig,
    retention_ms=st.integers(-1, 300),
    retention_bytes=st.integers(-1, 300),
    cleanup_policy=st.sampled_from([frozenset({CleanupPolicy.DELETE}), COMPACTED, BOTH]),
)


@given(logs(), configs, st.integers(0, 400))
def test_what_goes_is_a_prefix_below_the_high_watermark(
    log: LogFacts, config: LogConfig, now_ms: int
) -> None:
    plan = plan_retention(log, config, now_ms)
    assert tuple(verdict.segment for verdict in plan.verdicts) == log.segments
    assert plan.deleted + plan.kept == log.segments
    assert log.log_start_offset <= plan.new_log_start_offset <= log.high_watermark
    if plan.kept:
        assert plan.kept[0].base_offset <= plan.new_log_start_offset or not plan.deleted
    else:
        assert plan.new_log_start_offset == log.log_end_offset
    for segment in plan.deleted:
        assert segment.end_offset <= log.high_watermark
    for verdict in plan.verdicts:
        assert len(verdict.findings) == (1 if verdict.is_deleted else 3)
        assert all(f.is_deletion == verdict.is_deleted for f in verdict.findings)
    assert pickle.loads(pickle.dumps(plan)) == plan


@given(logs(), configs, st.integers(0, 400))
def test_a_second_plan_finds_nothing_and_a_later_one_no_less(
    log: LogFacts, config: LogConfig, now_ms: int
) -> None:
    plan = plan_retention(log, config, now_ms)
    if plan.rolls:
        return
    left = log._replace(log_start_offset=plan.new_log_start_offset, segments=plan.kept)
    again = plan_retention(left, config, now_ms)
    assert not again.deleted
    assert again.verdicts == plan.verdicts[len(plan.deleted) :]
    for verdict in plan.verdicts:
        if verdict.leaves_ms is not None:
            at = log.segments.index(verdict.segment)
            assert at < len(plan_retention(log, config, verdict.leaves_ms).deleted)
            if config.retention_bytes < 0:
                early = plan_retention(log, config, verdict.leaves_ms - 1)
                assert at >= len(early.deleted)


@given(logs(), configs, st.integers(0, 400))
def test_as_kafka_s_loops_decide(log: LogFacts, config: LogConfig, now_ms: int) -> None:
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


# -- on logs


LOG_NOW_MS = 1_700_000_000_000
SMALL = LogConfig(segment_bytes=1000, segment_index_bytes=240, index_interval_bytes=150)


def opened(path: Path, config: LogConfig = SMALL) -> PartitionLog:
    return open_log(path, config, disk=Disk(), now_ms=lambda: LOG_NOW_MS, point=LoadPoint())


def fill(log: PartitionLog, timestamps: Sequence[Sequence[int]]) -> None:
    """A segment for each list, a record for each timestamp (behind the clock)."""
    for slot, times in enumerate(timestamps):
        if slot:
            log.roll()
        for time in times:
            record = Record(0, LOG_NOW_MS - time, b"k", b"v" * 20)
            log.append(encode_batch([record], BatchFields()))


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.writable_segments]


def test_the_facts_of_a_log_and_of_a_view_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    with opened(path) as log:
        fill(log, [[900, 1000], [500], [-HOUR_MS, 400], [300]])
        of_log = facts_of_log(log, LOG_NOW_MS)
        with PartitionView(path) as view:
            assert facts_of_view(view, LOG_NOW_MS) == of_log
    assert [s.base_offset for s in of_log.segments] == [0, 2, 3, 5]
    assert [s.end_offset for s in of_log.segments] == [2, 3, 5, 6]
    assert [s.largest_timestamp - LOG_NOW_MS for s in of_log.segments] == [
        -900,
        -500,
        HOUR_MS,
        -300,
    ]
    assert [s.timestamp_offset for s in of_log.segments] == [0, 2, 3, 5]
    assert [s.size_bytes for s in of_log.segments] == [2 * 89, 89, 2 * 89, 89]
    assert [s.is_active for s in of_log.segments] == [False] * 3 + [True]
    with PartitionView(path) as view:  # closed in between
        assert facts_of_view(view, LOG_NOW_MS)._replace(segments=()) == of_log._replace(segments=())


def test_a_future_timestamp_is_told_with_its_very_record(tmp_path: Path) -> None:
    with opened(tmp_path / "t-0") as log:
        times = [0, 5, 99, 7, 99, 1]
        records = [Record(n, LOG_NOW_MS + t, None, b"v") for n, t in enumerate(times)]
        log.append(encode_batch(records, BatchFields()))
        (segment,) = facts_of_log(log, LOG_NOW_MS).segments
        assert (segment.largest_timestamp, segment.timestamp_offset) == (LOG_NOW_MS + 99, 2)
        (segment,) = facts_of_log(log, LOG_NOW_MS + 99).segments
        assert (segment.largest_timestamp, segment.timestamp_offset) == (LOG_NOW_MS + 99, 5)


def test_applying_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    with opened(path, replace(SMALL, retention_ms=450)) as log:
        fill(log, [[900, 1000], [500], [400], [300]])
        plan = retain(log, LOG_NOW_MS)
        assert [segment.base_offset for segment in plan.deleted] == [0, 2]
        assert bases(log) == [3, 4]
        assert log.log_start_offset == plan.new_log_start_offset == 3
        assert [record.offset for record in log.read()] == [3, 4]
        assert not retain(log, LOG_NOW_MS).deleted
    left = {file.name for file in path.iterdir()}
    for base, snapshot in ((0, False), (2, True)):
        for extension in (".log", ".index", ".timeindex", *([".snapshot"] if snapshot else [])):
            assert log_name(base, extension) not in left
            assert log_name(base, extension) + ".deleted" in left


def test_all_of_a_log_expires(tmp_path: Path) -> None:
    with opened(tmp_path / "t-0", replace(SMALL, retention_ms=100)) as log:
        fill(log, [[900], [500, 400]])
        plan = retain(log, LOG_NOW_MS)
        assert plan.rolls
        assert (bases(log), log.log_start_offset, log.log_end_offset) == ([3], 3, 3)
        assert list(log.read()) == []
        assert log.append(encode_batch([Record(0, 1, None, b"v")], BatchFields())).first_offset == 3
        assert [record.offset for record in log.read()] == [3]


def test_a_plan_that_is_old_deletes_only_what_is_as_it_was(tmp_path: Path) -> None:
    config = replace(SMALL, retention_ms=100)
    record = encode_batch([Record(0, LOG_NOW_MS, None, b"v")], BatchFields())

    with opened(tmp_path / "grown-0", config) as log:
        fill(log, [[900], [500]])
        plan = plan_retention(facts_of_log(log, LOG_NOW_MS), config, LOG_NOW_MS)
        assert plan.rolls
        log.append(record)
        assert apply(log, plan) == 1
        assert (bases(log), log.log_start_offset) == ([1], 1)

    with opened(tmp_path / "rolled-0", config) as log:
        fill(log, [[900], [500]])
        plan = plan_retention(facts_of_log(log, LOG_NOW_MS), config, LOG_NOW_MS)
        log.roll()
        log.append(record)
        assert apply(log, plan) == 2
        assert (bases(log), log.log_start_offset) == ([2], 2)

    with opened(tmp_path / "cut-0", config) as log:
        fill(log, [[900, 800], [500]])
        plan = plan_retention(facts_of_log(log, LOG_NOW_MS), config, LOG_NOW_MS)
        log.truncate_to(1)
        assert apply(log, plan) == 0
        assert bases(log) == [0]
        assert retain(log, LOG_NOW_MS).rolls

    with opened(tmp_path / "gone-0", config) as log:
        fill(log, [[900], [500], [0]])
        plan = plan_retention(facts_of_log(log, LOG_NOW_MS), config, LOG_NOW_MS)
        assert apply(log, plan) == 2
        assert apply(log, plan) == 0
        assert bases(log) == [2]


def test_a_plan_of_a_view_can_be_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(SMALL, retention_ms=100)
    with opened(tmp_path / "t-0", config) as log:
        fill(log, [[900], [0]])
    monkeypatch.chdir(tmp_path)
    with PartitionView(Path("t-0")) as view:
        plan = plan_retention(facts_of_view(view, LOG_NOW_MS), config, LOG_NOW_MS)
    with opened(tmp_path / "t-0", config) as log:
        assert apply(log, plan) == 1
        assert bases(log) == [1]


def test_deleted_records_take_their_segments_with_them(tmp_path: Path) -> None:
    with opened(tmp_path / "t-0", replace(SMALL, cleanup_policy=COMPACTED)) as log:
        fill(log, [[0, 0], [0, 0], [0, 0]])
        log.delete_records(3)
        assert [s.base_offset for s in retain(log, LOG_NOW_MS).deleted] == [0]
        assert (bases(log), log.log_start_offset) == ([2, 4], 3)
        log.delete_records(-1)
        assert [s.base_offset for s in retain(log, LOG_NOW_MS).deleted] == [2]
        assert (bases(log), log.log_start_offset) == ([4], 6)
