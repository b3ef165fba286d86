"""The facts of logs on disk, and what applying a plan does to them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.config import LogConfig
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log.partition_view import PartitionView
from stratalog.maintenance.recovery import LoadPoint, open_log
from stratalog.maintenance.retention import (
    apply,
    plan_retention,
    retain,
    retention_log,
    retention_log_of_view,
)
from stratalog.storage.disk import Disk
from tests.log.building import log_name
from tests.maintenance.retention_cases import COMPACTED, HOUR_MS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

    from stratalog.log.partition_log import PartitionLog

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
    return [segment.base_offset for segment in log.maintenance.segments]


def test_the_facts_of_a_log_and_of_a_view_are_the_same(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    with opened(path) as log:
        fill(log, [[900, 1000], [500], [-HOUR_MS, 400], [300]])
        of_log = retention_log(log, LOG_NOW_MS)
        with PartitionView(path) as view:
            assert retention_log_of_view(view, LOG_NOW_MS) == of_log
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
        assert retention_log_of_view(view, LOG_NOW_MS)._replace(segments=()) == of_log._replace(
            segments=()
        )


def test_a_future_timestamp_is_told_with_its_very_record(tmp_path: Path) -> None:
    with opened(tmp_path / "t-0") as log:
        times = [0, 5, 99, 7, 99, 1]
        records = [Record(n, LOG_NOW_MS + t, None, b"v") for n, t in enumerate(times)]
        log.append(encode_batch(records, BatchFields()))
        (segment,) = retention_log(log, LOG_NOW_MS).segments
        assert (segment.largest_timestamp, segment.timestamp_offset) == (LOG_NOW_MS + 99, 2)
        (segment,) = retention_log(log, LOG_NOW_MS + 99).segments
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
        plan = plan_retention(retention_log(log, LOG_NOW_MS), config, LOG_NOW_MS)
        assert plan.rolls
        log.append(record)
        assert apply(log, plan) == 1
        assert (bases(log), log.log_start_offset) == ([1], 1)

    with opened(tmp_path / "rolled-0", config) as log:
        fill(log, [[900], [500]])
        plan = plan_retention(retention_log(log, LOG_NOW_MS), config, LOG_NOW_MS)
        log.roll()
        log.append(record)
        assert apply(log, plan) == 2
        assert (bases(log), log.log_start_offset) == ([2], 2)

    with opened(tmp_path / "cut-0", config) as log:
        fill(log, [[900, 800], [500]])
        plan = plan_retention(retention_log(log, LOG_NOW_MS), config, LOG_NOW_MS)
        log.truncate_to(1)
        assert apply(log, plan) == 0
        assert bases(log) == [0]
        assert retain(log, LOG_NOW_MS).rolls

    with opened(tmp_path / "gone-0", config) as log:
        fill(log, [[900], [500], [0]])
        plan = plan_retention(retention_log(log, LOG_NOW_MS), config, LOG_NOW_MS)
        assert apply(log, plan) == 2
        assert apply(log, plan) == 0
        assert bases(log) == [2]


def test_a_plan_of_a_view_can_be_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(SMALL, retention_ms=100)
    with opened(tmp_path / "t-0", config) as log:
        fill(log, [[900], [0]])
    monkeypatch.chdir(tmp_path)
    with PartitionView(Path("t-0")) as view:
        plan = plan_retention(retention_log_of_view(view, LOG_NOW_MS), config, LOG_NOW_MS)
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
