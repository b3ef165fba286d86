"""Verifying a log directory: its partitions, and its root files against them.

`run_plan` runs the tasks on threads: kernels and reads do not hold the interpreter lock.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from stratalog.errors import CorruptError, StratalogError
from stratalog.format.checkpoint import decode_offsets
from stratalog.format.directory_metadata import decode_meta_properties
from stratalog.format.names import CLUSTER_METADATA_TOPIC, DirState, RootFile
from stratalog.maintenance.verify.findings import (
    Fault,
    Findings,
    Severity,
    VerifyCounts,
    VerifyReport,
)
from stratalog.maintenance.verify.partition import combine_segment_reports, plan_partition
from stratalog.maintenance.verify.segment import verify_segment
from stratalog.storage.log_dir_scan import scan_log_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from stratalog.format.names import TopicPartition
    from stratalog.maintenance.verify.findings import Finding
    from stratalog.maintenance.verify.partition import PartitionPlan, PartitionReport
    from stratalog.maintenance.verify.segment import SegmentReport, VerifyTask
    from stratalog.storage.log_dir_scan import ListedPartition

T = TypeVar("T")

_CHECKPOINTS: Final = (
    RootFile.RECOVERY_POINTS,
    RootFile.LOG_START_OFFSETS,
    RootFile.HIGH_WATERMARKS,
    RootFile.CLEANER_OFFSETS,
)


@dataclass(frozen=True)
class VerifyPlan:
    """Everything to verify, as values: tasks may run anywhere, in any order."""

    partitions: tuple[PartitionPlan, ...] = ()
    directories: tuple[DirectoryPlan, ...] = ()

    @property
    def tasks(self) -> tuple[VerifyTask, ...]:
        """Large ones first, so that no long task starts last."""
        tasks = (task for partition in self.partitions for task in partition.tasks)
        return tuple(sorted(tasks, key=lambda task: -task.size_bytes))

    @property
    def size_bytes(self) -> int:
        return sum(partition.size_bytes for partition in self.partitions)

    def plus(self, other: VerifyPlan) -> VerifyPlan:
        return VerifyPlan(self.partitions + other.partitions, self.directories + other.directories)


@dataclass(frozen=True)
class DirectoryPlan:
    """The root files of a log directory."""

    path: Path
    offsets: Mapping[RootFile, Mapping[TopicPartition, int]]
    findings: tuple[Finding, ...]
    files: int


def plan_directory(
    path: Path, has_compacted_topic: Callable[[Path], bool] = lambda _partition: False
) -> VerifyPlan:
    """Everything in a log directory. Raises NotALogDirError if `path` is not one.

    `has_compacted_topic` returns whether the topic of a partition is known to be compacted. It is
    in any case if the cleaner has a checkpoint for it."""
    findings = Findings()
    listing = scan_log_dir(path)
    files = listing.root_files
    for invalid in listing.invalid:
        findings.add(Fault.BAD_NAME, invalid.path, invalid.reason)
    partitions = [listed for listed in listing.partitions if _is_live(listed, findings)]
    offsets = {
        file: _decoded(path / file.value, decode_offsets, Fault.BAD_CHECKPOINT, findings) or {}
        for file in _CHECKPOINTS
    }
    meta_path = path / RootFile.META_PROPERTIES.value
    _decoded(meta_path, decode_meta_properties, Fault.BAD_METADATA, findings)
    was_clean = RootFile.CLEAN_SHUTDOWN in files
    cleaned, recovery_points = offsets[RootFile.CLEANER_OFFSETS], offsets[RootFile.RECOVERY_POINTS]
    plans = []
    for partition, directory in partitions:
        name = directory.topic_partition
        plans.append(
            plan_partition(
                partition,
                was_clean=was_clean,
                recovery_point=None if was_clean else recovery_points.get(name, 0),
                is_compacted=has_compacted_topic(partition) or name in cleaned,
            )
        )
    root = DirectoryPlan(path, offsets, findings.close(), len(files))
    return VerifyPlan(tuple(plans), (root,))


def combine_reports(plan: VerifyPlan, segments: Iterable[SegmentReport]) -> VerifyReport:
    """All findings of the plan, from the reports of its tasks."""
    by_directory: dict[Path, list[SegmentReport]] = {}
    for segment in segments:
        by_directory.setdefault(segment.path.parent, []).append(segment)
    partitions = [
        combine_segment_reports(partition, by_directory.get(partition.path, []))
        for partition in plan.partitions
    ]
    roots = [_check_root_files(root, partitions) for root in plan.directories]
    return VerifyReport.sum([*roots, *(partition.report for partition in partitions)])


def _is_live(listed: ListedPartition, findings: Findings) -> bool:
    state = listed.directory.state
    if state is not DirState.LIVE:
        what = f"a partition being moved or deleted ({state.value[1:]}); not verified"
        findings.add(Fault.MOVED_DIRECTORY, listed.path, what)
    return state is DirState.LIVE


def _decoded(
    path: Path, decode: Callable[[bytes], T], fault: Fault, findings: Findings
) -> T | None:
    """The decoded root file; None if it is missing or corrupt."""
    try:
        return decode(path.read_bytes())
    except FileNotFoundError:
        pass
    except CorruptError as error:
        findings.add(fault, path, error.reason, position=error.position)
    except OSError as error:
        findings.add_os_error(error, path)
    except StratalogError as error:
        findings.add(fault, path, str(error))
    return None


def _check_root_files(root: DirectoryPlan, partitions: Sequence[PartitionReport]) -> VerifyReport:
    findings = Findings()
    inside = [partition for partition in partitions if partition.path.parent == root.path]
    ends = {partition.topic_partition: partition.log_end_offset for partition in inside}
    for file, offsets in root.offsets.items():
        for topic_partition, offset in offsets.items():
            end = ends.get(topic_partition)
            if end is None and topic_partition in ends:
                continue  # it could not be read, so its offsets are not known
            _check_checkpoint(root.path / file.value, topic_partition, offset, end, findings)
    return VerifyReport((*root.findings, *findings.close()), VerifyCounts(files=root.files))


def _check_checkpoint(
    path: Path, topic_partition: TopicPartition, offset: int, end: int | None, findings: Findings
) -> None:
    """One line of an offset checkpoint. `end` is the log end; None without such a partition."""
    if end is None:
        if topic_partition.topic != CLUSTER_METADATA_TOPIC:
            what = f"{topic_partition} is not in this directory"
            findings.add(Fault.CHECKPOINT_UNKNOWN_PARTITION, path, what)
    elif offset < 0:
        findings.add(
            Fault.BAD_CHECKPOINT, path, f"{topic_partition} has the negative offset {offset}"
        )
    elif offset > end:
        what = f"{topic_partition}: offset {offset} is past the log end offset {end}"
        _report_past_end(RootFile(path.name), path, what, findings)


def _report_past_end(file: RootFile, path: Path, what: str, findings: Findings) -> None:
    if file is RootFile.CLEANER_OFFSETS:
        findings.add(Fault.CHECKPOINT_STALE, path, what)
    elif file is RootFile.LOG_START_OFFSETS:
        findings.add(Fault.LOG_START_PAST_END, path, what)
    else:
        # The high watermark of a follower may be ahead of what it has flushed.
        is_flushed = file is RootFile.RECOVERY_POINTS
        severity = None if is_flushed else Severity.WARNING
        findings.add(Fault.CHECKPOINT_PAST_END, path, what, severity=severity)


def run_plan(
    plan: VerifyPlan, *, threads: int | None = None, on_bytes: Callable[[int], None] | None = None
) -> VerifyReport:
    """Run all tasks of `plan`. `on_bytes` is called from any thread with bytes as they are done."""
    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        segments = list(pool.map(lambda task: verify_segment(task, on_bytes), plan.tasks))
    return combine_reports(plan, segments)


def verify_partition(path: Path, *, threads: int | None = None) -> VerifyReport:
    """All findings about one partition directory."""
    return run_plan(VerifyPlan((plan_partition(path),)), threads=threads)


def verify_directory(path: Path, *, threads: int | None = None) -> VerifyReport:
    """All findings about a log directory: root files, partitions, every record."""
    return run_plan(plan_directory(path), threads=threads)
