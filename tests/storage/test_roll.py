from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.config import LogConfig
from stratalog.format.batch import BatchSpan
from stratalog.storage.disk import Disk
from stratalog.storage.roll import (
    ActiveSegment,
    IncomingAppend,
    RollLimits,
    RollReason,
    roll_reason,
)
from stratalog.storage.segment import Segment

if TYPE_CHECKING:
    from pathlib import Path

SEGMENT = ActiveSegment(
    base_offset=1000,
    size_bytes=900,
    first_timestamp=5_000,
    created_ms=70_000,
    is_offset_index_full=False,
    is_time_index_full=False,
)
INCOMING = IncomingAppend(size_bytes=100, last_offset=1099, max_timestamp=6_000, now_ms=71_000)
LIMITS = RollLimits(segment_bytes=1000, segment_ms=1_000)


def test_what_fits_exactly_does_not_roll() -> None:
    assert roll_reason(SEGMENT, INCOMING, LIMITS) is None


@pytest.mark.parametrize(
    ("segment", "incoming", "reason"),
    [
        pytest.param({}, {"size_bytes": 101}, RollReason.SIZE, id="a byte too many"),
        pytest.param(
            {"size_bytes": 0}, {"size_bytes": 1001}, RollReason.SIZE, id="larger than any"
        ),
        pytest.param({}, {"max_timestamp": 6_001}, RollReason.TIME, id="a millisecond too late"),
        pytest.param({}, {"max_timestamp": -1, "now_ms": 1 << 50}, None, id="no wall clock"),
        pytest.param({"size_bytes": 0}, {"max_timestamp": 9_000}, None, id="empty: no time roll"),
        pytest.param({"first_timestamp": 0}, {"max_timestamp": 1_001}, RollReason.TIME, id="1970"),
        pytest.param(
            {"first_timestamp": -1}, {"now_ms": 71_001}, RollReason.TIME, id="wall clock instead"
        ),
        pytest.param(
            {"first_timestamp": -1}, {"max_timestamp": 1 << 50}, None, id="only the wall clock"
        ),
        pytest.param(
            {"is_offset_index_full": True}, {}, RollReason.OFFSET_INDEX_FULL, id="offset index"
        ),
        pytest.param({"is_time_index_full": True}, {}, RollReason.TIME_INDEX_FULL, id="time index"),
        pytest.param({}, {"last_offset": 1000 + (1 << 31) - 1}, None, id="last offset that fits"),
        pytest.param(
            {}, {"last_offset": 1000 + (1 << 31)}, RollReason.OFFSET_OVERFLOW, id="one too far"
        ),
        pytest.param({}, {"last_offset": 999}, RollReason.OFFSET_OVERFLOW, id="below the base"),
    ],
)
def test_reasons(
    segment: dict[str, Any], incoming: dict[str, Any], reason: RollReason | None
) -> None:
    facts = SEGMENT._replace(**segment)
    assert roll_reason(facts, INCOMING._replace(**incoming), LIMITS) is reason


near = st.integers(-3, 3)


@given(st.data())
def test_the_writer_decides_as_the_rule_does(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """The writer has a shortcut for the common answer; it must never differ."""
    slots = data.draw(st.integers(0, 4), label="slots")
    batches = data.draw(st.integers(0, 4), label="batches")
    timestamp = data.draw(st.sampled_from([-1, 0, 50, 1_700_000_000_000]), label="timestamp")
    config = LogConfig(
        segment_bytes=500,
        segment_ms=1000,
        segment_index_bytes=12 * slots + 4,
        index_interval_bytes=0,
    )
    directory = tmp_path_factory.mktemp("roll")
    segment = Segment.create(Disk(), directory, 1000, config, now_ms=70_000)
    segment.configure(config, roll_jitter_ms=data.draw(st.integers(0, 3), label="jitter"))
    for number in range(batches):
        span = BatchSpan(0, 100, 1000 + number, 1000 + number, timestamp + number)
        segment.append(bytes(100), [span])
    incoming = IncomingAppend(
        size_bytes=500 - 100 * batches + data.draw(near, label="size"),
        last_offset=data.draw(st.sampled_from([1100, 1000 + (1 << 31)]), label="offset")
        + data.draw(near, label="and"),
        max_timestamp=max(timestamp, 0) + 1000 + data.draw(near, label="time"),
        now_ms=71_000 + data.draw(near, label="now"),
    )
    writer = segment.writer
    facts = ActiveSegment(
        base_offset=1000,
        size_bytes=100 * batches,
        first_timestamp=timestamp if batches else -1,
        created_ms=70_000,
        is_offset_index_full=writer.offset_index.is_full,
        is_time_index_full=writer.time_index.is_full,
    )
    assert segment.roll_reason(*incoming) is roll_reason(facts, incoming, writer.limits)
    segment.delete()


def test_jitter_is_taken_off_and_compaction_lag_bounds_the_time(tmp_path: Path) -> None:
    config = LogConfig(segment_ms=10_000)
    segment = Segment.create(Disk(), tmp_path, 0, config, now_ms=0)
    segment.append(bytes(100), [BatchSpan(0, 100, 0, 0, 1_000)])
    assert segment.roll_reason(100, 1, 11_000, 0) is None
    segment.configure(config, roll_jitter_ms=1)
    assert segment.roll_reason(100, 1, 11_000, 0) is RollReason.TIME
    lagging = LogConfig.parse({"cleanup.policy": "compact", "max.compaction.lag.ms": "500"}, config)
    segment.configure(lagging)
    assert segment.roll_reason(100, 1, 1_499, 0) is None
    assert segment.roll_reason(100, 1, 1_500, 0) is RollReason.TIME
