"""Verification spread over a cluster: the tasks of `maintenance.verify`, one report for all."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.maintenance.verify.directory import VerifyPlan, conclude, plan_directory
from stratalog.maintenance.verify.findings import Finding, VerifyReport
from stratalog.maintenance.verify.partition import plan_partition
from stratalog.maintenance.verify.segment import verify_segment
from stratalog.spark.jobs.running import Clock, JobResult, SparkWorkers, pack

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

    from stratalog.spark.jobs.running import OnProgress

SCHEMA = "severity string, code string, path string, position long, what string, advice string"


@dataclass(frozen=True)
class VerifyResult(JobResult):
    """Findings, and how fast they were found."""

    report: VerifyReport = field(default_factory=VerifyReport)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.report.findings

    def to_df(self, spark: SparkSession) -> DataFrame:
        """The findings as a DataFrame: severity, code, path, position, what, advice."""
        rows = [(*map(str, finding[:3]), *finding[3:]) for finding in self.findings]
        return spark.createDataFrame(rows, SCHEMA)


def verify(
    spark: SparkSession,
    directories: Iterable[Path | str] = (),
    *,
    partitions: Iterable[Path | str] = (),
    on_progress: OnProgress | None = None,
) -> VerifyResult:
    """Verify whole log directories, and single partition directories.

    Every worker must see the files under the same paths.
    """
    plan = plan_verify(directories, partitions)
    return verify_plan(spark, plan, on_progress=on_progress)


def plan_verify(
    directories: Iterable[Path | str] = (), partitions: Iterable[Path | str] = ()
) -> VerifyPlan:
    """All of them together."""
    plan = VerifyPlan(tuple(plan_partition(Path(path).absolute()) for path in partitions))
    for path in directories:
        plan = plan.plus(plan_directory(Path(path).absolute()))
    return plan


def verify_plan(
    spark: SparkSession, plan: VerifyPlan, *, on_progress: OnProgress | None = None
) -> VerifyResult:
    """Do what was planned."""
    clock = Clock()
    workers = SparkWorkers(spark, on_progress)
    groups = pack(plan.tasks, lambda task: task.size_bytes, slots=workers.slots)
    title = f"stratalog verify: {len(plan.tasks)} segments"
    segments = workers.run(verify_segment, groups, title=title)
    report = conclude(plan, segments)
    counts = report.counts
    return VerifyResult(
        "verify", counts.records, counts.size_bytes, clock.seconds, len(groups), report
    )
