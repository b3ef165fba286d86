"""What Kafka wrote is in order, oddities included; where golden data is damaged, that is said."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from stratalog.maintenance.verify.directory import (
    VerifyPlan,
    combine_reports,
    verify_directory,
    verify_partition,
)
from stratalog.maintenance.verify.findings import Fault, Severity, VerifyCounts
from stratalog.maintenance.verify.partition import plan_partition
from stratalog.maintenance.verify.segment import verify_segment
from tests.golden.cases import (
    CompactionCase,
    GoldenCase,
    all_cases,
    compaction_cases,
    log_dir_case,
)
from tests.looping import for_each

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.maintenance.verify.findings import VerifyReport

DAMAGED = {
    "u-badcrc": Fault.BAD_BATCH,
    "u-badindex": Fault.INDEX_OUT_OF_ORDER,
    "u-garbage": Fault.BAD_BATCH,
}
TORN = {"u-torn", "u-header", "u-lz4"}


def codes(report: VerifyReport, severity: Severity) -> set[str]:
    return {finding.code for finding in report.findings if finding.severity is severity}


@pytest.mark.slow
@for_each("case", [case for case in all_cases() if not case.is_unclean])
def test_a_directory_that_kafka_closed_has_no_error(case: GoldenCase) -> None:
    report = verify_partition(case.partition_dir, threads=1)
    assert report.at_least(Severity.WARNING) == ()


@pytest.mark.slow
@for_each("case", [case for case in all_cases() if not case.is_unclean])
def test_every_record_of_kafkas_own_loader_was_looked_at(case: GoldenCase) -> None:
    loaded = case.loaddir
    counts = verify_partition(case.partition_dir, threads=1).counts
    assert counts.segments == len(loaded["segments"])
    logs = case.partition_dir.glob("*.log")
    assert counts.size_bytes == sum(log.stat().st_size for log in logs)


@for_each("case", [case for case in all_cases() if case.is_unclean])
def test_a_killed_brokers_directory_is_damaged_where_it_was_damaged(case: GoldenCase) -> None:
    before, after = (verify_partition(path, threads=1) for path in case.partition_dirs())
    expected = {DAMAGED[case.name].code} if case.name in DAMAGED else set()
    assert codes(before, Severity.ERROR) == expected
    torn = {Fault.TORN_TAIL.code} & codes(before, Severity.WARNING)
    assert bool(torn) == (case.name in TORN)
    assert after.at_least(Severity.WARNING) == ()


@pytest.mark.slow
@for_each("case", compaction_cases())
def test_what_kafkas_cleaner_leaves_is_no_error(case: CompactionCase, tmp_path: Path) -> None:
    root = case.unpack(tmp_path)
    name = f"{case.case['topic']}-{case.case['partition']}"
    for partition in sorted(root.glob(f"*/{name}")):
        report = verify_partition(partition, threads=1)
        assert codes(report, Severity.ERROR) == set(), partition
        allowed = {Fault.OFFSET_GAP.code, Fault.SNAPSHOT_AHEAD.code}  # nothing tells it is cleaned
        assert codes(report, Severity.WARNING) <= allowed, partition


def test_a_whole_log_directory() -> None:
    report = verify_directory(log_dir_case().root)
    assert report.at_least(Severity.WARNING) == ()
    assert codes(report, Severity.NOTE) >= {Fault.CHECKPOINT_UNKNOWN_PARTITION.code}
    assert report.counts.partitions == 3


def test_tasks_and_reports_may_travel_and_come_back_in_any_order() -> None:
    path = GoldenCase("txn").partition_dir
    plan = VerifyPlan((plan_partition(path),))
    reports = [verify_segment(pickle.loads(pickle.dumps(task))) for task in plan.tasks]
    there_and_back = pickle.loads(pickle.dumps(reports[::-1]))
    assert combine_reports(plan, there_and_back) == verify_partition(path)


def test_counts_are_those_of_the_files() -> None:
    counts = verify_partition(GoldenCase("multiseg").partition_dir).counts
    assert counts == VerifyCounts(
        partitions=1,
        segments=10,
        files=10 * 3 + 10 + 2,  # with snapshots, leader epochs and topic id
        size_bytes=147_513,
        batches=633,
        records=1500,
        index_entries=771,
    )


def test_nothing_is_written(tmp_path: Path) -> None:
    root = GoldenCase("txn").copy_to(tmp_path)
    before = _state(root)
    verify_directory(root)
    assert _state(root) == before


def _state(root: Path) -> Counter[tuple[str, int, int]]:
    return Counter(
        (str(path), path.stat().st_mtime_ns, path.stat().st_size if path.is_file() else 0)
        for path in root.rglob("*")
    )


def test_a_segment_that_goes_away_meanwhile_is_a_note(tmp_path: Path) -> None:
    partition = GoldenCase("multiseg").copy_to(tmp_path) / "multiseg-0"
    plan = plan_partition(partition)
    os.unlink(partition / "00000000000000000000.log")  # noqa: PTH108 - as a broker does
    task = min(plan.tasks, key=lambda task: task.base_offset)
    report = verify_segment(task)
    assert [finding.code for finding in report.findings] == [Fault.GONE.code]
