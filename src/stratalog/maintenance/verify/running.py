"""Verifying here and now, on threads: kernels and reads run without the interpreter lock."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from stratalog.maintenance.verify.directory import Plan, conclude, plan_directory
from stratalog.maintenance.verify.partition import plan_partition
from stratalog.maintenance.verify.segment import verify_segment

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stratalog.maintenance.verify.findings import Report


def run_plan(
    plan: Plan, *, threads: int | None = None, on_bytes: Callable[[int], None] | None = None
) -> Report:
    """Do all tasks of `plan`. `on_bytes` is called from any thread with bytes that are done."""
    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        segments = list(pool.map(lambda task: verify_segment(task, on_bytes), plan.tasks))
    return conclude(plan, segments)


def verify_partition(path: Path, *, threads: int | None = None) -> Report:
    """All findings about one partition directory."""
    return run_plan(Plan((plan_partition(path),)), threads=threads)


def verify_directory(path: Path, *, threads: int | None = None) -> Report:
    """All findings about a log directory: root files, partitions, every record."""
    return run_plan(plan_directory(path), threads=threads)
