"""Verifying a partition: the tasks of its segments, its other files, and the combined findings."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import CorruptError, InvalidNameError, StratalogError
from stratalog.format.checkpoint import decode_leader_epochs
from stratalog.format.counts import added
from stratalog.format.directory_metadata import decode_partition_metadata
from stratalog.format.names import (
    CLUSTER_METADATA_TOPIC,
    INTERNAL_TOPICS,
    FileKind,
    FileState,
    TopicPartition,
    parse_partition_file,
)
from stratalog.format.producer_snapshot import decode_snapshot
from stratalog.log.partition_listing import list_partition
from stratalog.log.partition_view import identity_of
from stratalog.maintenance.verify.findings import (
    EXPLAINED_BY_COMPACTION,
    Fault,
    Findings,
    VerifyCounts,
    VerifyReport,
    downgraded,
    downgraded_after_crash,
)
from stratalog.maintenance.verify.segment import VerifyTask
from stratalog.storage.log_file import list_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from stratalog.format.checkpoint import EpochEntry
    from stratalog.log.partition_listing import Listing
    from stratalog.maintenance.verify.findings import Finding
    from stratalog.maintenance.verify.segment import SegmentReport

_INDEX_KINDS: Final = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX)


@dataclass(frozen=True)
class PartitionPlan:
    """The tasks that verify a partition, and what its listing showed already."""

    path: Path
    topic_partition: TopicPartition
    tasks: tuple[VerifyTask, ...]
    epochs: tuple[EpochEntry, ...]
    findings: tuple[Finding, ...]
    files: int
    """Beside those of segments."""
    is_compacted: bool = False
    """Known from its topic or a checkpoint."""
    is_unreadable: bool = False
    """The directory could not be listed."""
    recovery_point: int | None = None
    """The offset from which opening recovers the log, because its last writer did not close it;
    None if it did, or if that is not known."""

    @property
    def size_bytes(self) -> int:
        return sum(task.size_bytes for task in self.tasks)


class PartitionReport(NamedTuple):
    """A partition after verification."""

    path: Path
    topic_partition: TopicPartition
    log_end_offset: int | None
    """None if the end of the log could not be read."""
    report: VerifyReport


def plan_partition(
    path: Path,
    *,
    was_clean: bool = False,
    recovery_point: int | None = None,
    is_compacted: bool = False,
) -> PartitionPlan:
    """List the directory and check its small files. Raises NotALogDirError if it does not exist.

    `recovery_point` is the checkpointed one if the last writer did not close the log.
    """
    findings = Findings()
    topic_partition, _ = identity_of(path)
    try:
        listing = list_partition(path)
        _check_names(path, findings)
    except PermissionError as error:
        findings.add_os_error(error, path)
        found = findings.close()
        return PartitionPlan(path, topic_partition, (), (), found, 0, is_unreadable=True)
    _check_files(listing, findings)
    epochs = _check_epochs(path, findings)
    _check_metadata(path, topic_partition, findings)
    if not listing.segments:
        findings.add(Fault.NO_SEGMENT, path, "no segment (*.log) in this directory")
    return PartitionPlan(
        path,
        topic_partition,
        _tasks(listing, epochs, findings, was_clean=was_clean),
        epochs,
        findings.close(),
        sum(1 for listed in listing.files if listed.file.kind not in (*_INDEX_KINDS, FileKind.LOG)),
        is_compacted or topic_partition.topic in INTERNAL_TOPICS,
        recovery_point=recovery_point,
    )


def combine_segment_reports(
    plan: PartitionPlan, segments: Sequence[SegmentReport]
) -> PartitionReport:
    """Combine the reports of the segments, in any order."""
    findings = Findings()
    in_order = sorted(segments, key=lambda segment: segment.base_offset)
    is_compacted = plan.is_compacted or any(segment.is_compacted for segment in in_order)
    is_after_fault = False
    for before, after in pairwise(in_order):
        if before.is_unreadable:
            continue
        # Only cleaners leave a sealed segment empty. The indexes of one that was truncated are not,
        # and one with a wrong name makes the segment before it look faulty.
        is_empty = before.base_offset == before.next_offset
        is_compacted |= is_empty and not (before.is_faulty or is_after_fault)
        is_after_fault = before.is_faulty
        if before.next_offset < after.base_offset:
            what = f"offsets {before.next_offset} to {after.base_offset - 1} are missing: "
            what += "the end of this segment, or a whole segment after it, is gone"
            findings.add(Fault.OFFSET_GAP, before.path, what, position=-1)
    end = _log_end(plan, in_order)
    if end is not None and plan.epochs and plan.epochs[-1].start_offset > end:
        last = plan.epochs[-1]
        what = f"epoch {last.epoch} starts at offset {last.start_offset}, but the log ends at {end}"
        where = f"{plan.path}/{FileKind.LEADER_EPOCHS.value}"
        findings.add(Fault.EPOCHS_PAST_END, where, what)
    found = [*plan.findings, *_segment_findings(plan, in_order), *findings.close()]
    counts = VerifyCounts(partitions=1, files=plan.files)
    counts = added(counts, *(segment.counts for segment in in_order))
    codes = EXPLAINED_BY_COMPACTION if is_compacted else frozenset()
    report = VerifyReport(downgraded(found, codes=codes), counts)
    return PartitionReport(plan.path, plan.topic_partition, end, report)


def _segment_findings(plan: PartitionPlan, in_order: Sequence[SegmentReport]) -> Iterator[Finding]:
    recovered = len(in_order)
    if plan.recovery_point is not None:
        bases = [segment.base_offset for segment in in_order]
        recovered = max(0, bisect_right(bases, plan.recovery_point) - 1)
    for slot, segment in enumerate(in_order):
        yield from (
            downgraded_after_crash(segment.findings) if slot >= recovered else segment.findings
        )


def _log_end(plan: PartitionPlan, in_order: Sequence[SegmentReport]) -> int | None:
    if plan.is_unreadable or (in_order and in_order[-1].is_unreadable):
        return None
    return in_order[-1].next_offset if in_order else 0


def _tasks(
    listing: Listing, epochs: tuple[EpochEntry, ...], findings: Findings, *, was_clean: bool
) -> tuple[VerifyTask, ...]:
    segments = listing.segments
    bases = [segment.base_offset for segment in segments]
    paths = dict(listing.snapshots)
    offsets = sorted(paths)
    if bases:
        _check_early_snapshots([o for o in offsets if o <= bases[0]], paths, findings)
    for offset in stray_snapshots(offsets, bases):
        what = "of a deleted segment" if offset < bases[0] else "of no existing segment"
        findings.add(Fault.STRAY_SNAPSHOT, paths[offset], what)
    swapped = _swapped_side_files(listing)
    tasks = []
    for slot, segment in enumerate(segments):
        next_base = bases[slot + 1] if slot + 1 < len(bases) else None
        low = bisect_left(offsets, segment.base_offset + 1)
        high = len(offsets) if next_base is None else bisect_left(offsets, next_base + 1)
        above = offsets[low:high]
        tasks.append(
            VerifyTask(
                segment.path,
                segment.base_offset,
                segment.size_bytes,
                segment.identity,
                next_base,
                is_first=slot == 0 and segment.base_offset == 0,
                was_clean=was_clean,
                epochs=epochs,
                snapshot_before=paths.get(segment.base_offset),
                snapshots=tuple((offset, paths[offset]) for offset in above),
                swapped=swapped.get(segment.base_offset, ()),
            )
        )
    return tuple(tasks)


def _swapped_side_files(listing: Listing) -> dict[int, tuple[str, ...]]:
    """Side files whose log has its final name already, by base offset. Next to unfinished files
    they are of a replacement that will be undone."""
    files = [(each.file.base_offset, each.file.kind, each.file.state) for each in listing.files]
    if any(state is FileState.CLEANED for _, _, state in files):
        return {}
    found: dict[int, tuple[str, ...]] = {}
    logs = {base for base, kind, state in files if (kind, state) == (FileKind.LOG, FileState.LIVE)}
    for base, kind, state in files:
        is_replaced = (base, FileKind.LOG, FileState.SWAP) in files
        if state is FileState.SWAP and base in logs and base is not None and not is_replaced:
            found[base] = (*found.get(base, ()), kind.value)
    return found


def _check_early_snapshots(
    offsets: Sequence[int], paths: dict[int, Path], findings: Findings
) -> None:
    """Snapshots from before the log. Without batches to compare with, only their format is
    checked."""
    for offset in offsets:
        try:
            decode_snapshot(paths[offset].read_bytes())
        except FileNotFoundError:
            continue
        except OSError as error:
            findings.add_os_error(error, paths[offset])
        except CorruptError as error:
            findings.add(Fault.BAD_SNAPSHOT, paths[offset], error.reason, position=error.position)
        except StratalogError as error:
            findings.add(Fault.BAD_SNAPSHOT, paths[offset], str(error))


def stray_snapshots(offsets: Sequence[int], bases: Sequence[int]) -> list[int]:
    """Snapshots that nothing in the normal life of a log explains; both lists are sorted.

    A snapshot is taken where a segment begins, and at the end of the log when it is closed. Kafka
    keeps the one of the last close when it opens the log, and takes it away only when it opens the
    log once more. So the newest that is of no segment is that of the last close if it lies in the
    active segment, and the one before it is what the log was opened with.
    """
    if not bases:
        return []
    of_closes = sorted(set(offsets).difference(bases))
    is_closed = bool(of_closes) and of_closes[-1] > bases[-1]
    return of_closes[: -2 if is_closed else -1]


def _check_names(path: Path, findings: Findings) -> None:
    for name in list_names(path):
        try:
            parse_partition_file(name)
        except InvalidNameError as error:
            findings.add(Fault.BAD_NAME, path / name, str(error))


def _check_files(listing: Listing, findings: Findings) -> None:
    logs = {segment.base_offset for segment in listing.segments}
    for listed in listing.files:
        kind, base, state, _ = listed.file
        if state is FileState.DELETED:
            findings.add(Fault.DELETED_FILE, listed.path, "waiting to be deleted")
        elif state is not FileState.LIVE:
            what = "left by an unfinished compaction, split or write"
            findings.add(Fault.UNFINISHED_FILE, listed.path, what)
        elif kind in _INDEX_KINDS and base not in logs:
            findings.add(Fault.ORPHAN_INDEX, listed.path, "an index without its log")


def _check_epochs(path: Path, findings: Findings) -> tuple[EpochEntry, ...]:
    file = path / FileKind.LEADER_EPOCHS.value
    try:
        entries = decode_leader_epochs(file.read_bytes())
    except FileNotFoundError:
        findings.add(Fault.MISSING_EPOCHS, file, "no leader epochs: older brokers write none")
        return ()
    except CorruptError as error:
        findings.add(Fault.BAD_EPOCHS, file, error.reason, position=error.position)
        return ()
    except OSError as error:
        findings.add_os_error(error, file)
        return ()
    except StratalogError as error:
        findings.add(Fault.BAD_EPOCHS, file, str(error))
        return ()
    for before, after in pairwise(entries):
        if after.epoch <= before.epoch or after.start_offset <= before.start_offset:
            what = f"epoch {after.epoch} from {after.start_offset} follows epoch {before.epoch} "
            what += f"from {before.start_offset}"
            findings.add(Fault.BAD_EPOCHS, file, what)
            return ()
    return entries


def _check_metadata(path: Path, topic_partition: TopicPartition, findings: Findings) -> None:
    file = path / FileKind.PARTITION_METADATA.value
    try:
        decode_partition_metadata(file.read_bytes())
    except FileNotFoundError:
        if topic_partition.topic != CLUSTER_METADATA_TOPIC:
            findings.add(Fault.MISSING_METADATA, file, "no topic id")
    except CorruptError as error:
        findings.add(Fault.BAD_METADATA, file, error.reason, position=error.position)
    except OSError as error:
        findings.add_os_error(error, file)
    except StratalogError as error:
        findings.add(Fault.BAD_METADATA, file, str(error))
