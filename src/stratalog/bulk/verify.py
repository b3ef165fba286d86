"""Verification of log directories, spread over workers: the tasks of `maintenance.verify`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stratalog.bulk.workers import Clock, JobResult, ThreadWorkers, pack
from stratalog.maintenance.verify.directory import VerifyPlan, combine_reports, plan_directory
from stratalog.maintenance.verify.findings import Finding, VerifyReport
from stratalog.maintenance.verify.partition import plan_partition
from stratalog.maintenance.verify.segment import verify_segment
from stratalog.storage.remote_path import location

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from stratalog.bulk.workers import Workers


@dataclass(frozen=True)
class VerifyResult(JobResult):
    """The findings, and how long it took."""

    report: VerifyReport = field(default_factory=VerifyReport)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.report.findings


def verify(
    directories: Iterable[Path | str] = (),
    *,
    partitions: Iterable[Path | str] = (),
    workers: Workers | None = None,
) -> VerifyResult:
    """Verify log directories, and single partition directories.

    Every worker must see the files under the same paths.
    """
    plan = VerifyPlan(tuple(plan_partition(location(path).absolute()) for path in partitions))
    for path in directories:
        plan = plan.plus(plan_directory(location(path).absolute()))
    return verify_plan(plan, workers)


def verify_plan(plan: VerifyPlan, workers: Workers | None = None) -> VerifyResult:
    """Verify what was planned."""
    clock = Clock()
    workers = workers or ThreadWorkers()
    groups = pack(plan.tasks, lambda task: task.size_bytes, slots=workers.slots)
    title = f"stratalog verify: {len(plan.tasks)} segments"
    report = combine_reports(plan, workers.run(verify_segment, groups, title=title))
    counts = report.counts
    return VerifyResult(
        "verify", counts.records, counts.size_bytes, clock.seconds, len(groups), report
    )
