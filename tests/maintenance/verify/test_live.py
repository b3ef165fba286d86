"""A log that is written to while it is verified: whatever moves meanwhile is no fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.config import LogConfig
from stratalog.format.control import ControlType, EndMarker, encode_end_marker
from stratalog.format.record import BatchFields, encode_batch
from stratalog.maintenance.recovery import LoadPoint, open_log
from stratalog.maintenance.verify.directory import VerifyPlan, combine_reports, verify_partition
from stratalog.maintenance.verify.findings import Severity
from stratalog.maintenance.verify.partition import plan_partition
from stratalog.maintenance.verify.segment import verify_segment
from stratalog.storage.disk import Disk
from tests.log.building import plain_records

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=4000, index_interval_bytes=100)


def opened(path: Path) -> PartitionLog:
    point = LoadPoint(was_clean=True)
    return open_log(path, CONFIG, disk=Disk(), now_ms=lambda: NOW_MS, point=point)


def append_some(log: PartitionLog, turns: int) -> None:
    """Plain batches, and an aborted transaction of producer 7 in each turn."""
    for _ in range(turns):
        start = log.log_end_offset
        log.append_as_follower(encode_batch(plain_records(start, 3), BatchFields()))
        fields = BatchFields(
            producer_id=7, producer_epoch=0, base_sequence=-1, is_transactional=True
        )
        log.append_as_follower(encode_batch(plain_records(start + 3, 2), fields))
        marker = encode_end_marker(
            EndMarker(ControlType.ABORT, 0),
            offset=start + 5,
            timestamp=NOW_MS + start,
            producer_id=7,
            producer_epoch=0,
            partition_leader_epoch=-1,
        )
        log.append_as_follower(marker)


def test_what_is_appended_after_the_plan(tmp_path: Path) -> None:
    with opened(tmp_path / "t-0") as log:
        append_some(log, 3)
        plan = VerifyPlan((plan_partition(tmp_path / "t-0"),))
        append_some(log, 2)
        report = combine_reports(plan, map(verify_segment, plan.tasks))
    assert report.at_least(Severity.WARNING) == ()
    assert report.counts.records == 5 * 6


def test_a_log_that_rolls_meanwhile(tmp_path: Path) -> None:
    with opened(tmp_path / "t-0") as log:
        append_some(log, 3)
        plan = VerifyPlan((plan_partition(tmp_path / "t-0"),))
        append_some(log, 20)
        assert len(log.segments) > len(plan.tasks)
        report = combine_reports(plan, map(verify_segment, plan.tasks))
    assert report.at_least(Severity.WARNING) == ()


def test_a_log_of_ours_is_sound_open_and_closed(tmp_path: Path) -> None:
    with opened(tmp_path / "t-0") as log:
        append_some(log, 30)
        assert verify_partition(tmp_path / "t-0").at_least(Severity.WARNING) == ()
    assert verify_partition(tmp_path / "t-0").at_least(Severity.WARNING) == ()


def test_transactions_that_are_aborted_while_the_log_is_read(tmp_path: Path) -> None:
    """The index is read before the log and again after it."""
    with opened(tmp_path / "t-0") as log:
        append_some(log, 2)
        plan = VerifyPlan((plan_partition(tmp_path / "t-0"),))
        told: list[int] = []

        def append_more(count: int) -> None:
            if not told:
                append_some(log, 1)
            told.append(count)

        reports = [verify_segment(task, append_more) for task in plan.tasks]
    assert combine_reports(plan, reports).at_least(Severity.WARNING) == ()
