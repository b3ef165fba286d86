"""Times that Spark's microseconds cannot count do not turn into others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from stratalog.bulk.predicates import ALL, LONG_MAX, Interval
from stratalog.bulk.read_task import ReadTask
from stratalog.spark.options import plan_read
from tests.handmade import plain, write_segment

if TYPE_CHECKING:
    from pathlib import Path

LAST_US = LONG_MAX // 1000 * 1000
SCHEMA = pa.schema({"timestamp": pa.timestamp("us", tz="UTC")})
TIMES_MS = (1_700_000_000_000, -1, LONG_MAX // 1000, LONG_MAX // 1000 + 1, LONG_MAX)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        (ALL, [1_700_000_000_000_000, -1000, LAST_US, LAST_US, LAST_US]),
        (Interval(0, LONG_MAX), [1_700_000_000_000_000, LAST_US, LAST_US, LAST_US]),
        (Interval(LAST_US, LONG_MAX), [LAST_US, LAST_US, LAST_US]),
        (Interval(LAST_US + 1, LONG_MAX), []),
        (Interval(-LONG_MAX, LAST_US), [1_700_000_000_000_000, -1000, LAST_US, LAST_US, LAST_US]),
        (Interval(-LONG_MAX, LAST_US - 1), [1_700_000_000_000_000, -1000]),
        (Interval(-LONG_MAX, -1001), []),
        (Interval(-LONG_MAX, -LONG_MAX), []),
        (Interval(-999, 1_699_999_999_999_999), []),
    ],
)
def test_times_of_the_far_future(tmp_path: Path, times: Interval, expected: list[int]) -> None:
    batches = [plain(offset, 1, time) for offset, time in enumerate(TIMES_MS)]
    write_segment(tmp_path / "far-0", 0, *batches)
    plan = plan_read({"path": str(tmp_path), "subscribe": "far"})
    read = ReadTask(SCHEMA, times_us=times).read
    found = [each for split in plan.splits for each in read(split)]
    assert (
        pa.Table.from_batches(found, SCHEMA)["timestamp"].cast(pa.int64()).to_pylist() == expected
    )
