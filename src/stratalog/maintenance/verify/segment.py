"""Verifying one segment: its log, its indexes, and its batches against snapshots and epochs.

A `VerifyTask` has everything that must be known beforehand, so that it can be sent to another
process or machine that sees the same files; a `SegmentReport` has what the partition needs
afterwards. Nothing is written and no lock is taken: a segment that a broker removes meanwhile
becomes a note.

`SegmentScan` reads every byte of the log: valid batches in chunks, and the corrupt ranges between
them. It resumes after corruption as readers do: at the length that the corrupt batch declares if a
valid batch follows there, else at the next valid batch that a search finds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from stratalog.errors import SegmentGoneError
from stratalog.format.batch import DELETE_HORIZON_BIT, MAGIC_2, NO_LEADER_EPOCH, PEEK_BYTES, peek
from stratalog.format.batch_check import BatchChecker, BatchStatus, reason_of
from stratalog.format.batch_table import BatchTable, Stop, first_offsets, scan_batches
from stratalog.format.index_search import RELATIVE_OFFSET_MAX
from stratalog.format.names import FileKind, FileState
from stratalog.log.aborted_transactions import has_data
from stratalog.log.partition_listing import list_partition
from stratalog.log.segment_list import SegmentList
from stratalog.maintenance.verify.findings import Fault, Finding, Findings, Severity, VerifyCounts
from stratalog.maintenance.verify.index_checks import (
    OffsetIndexCheck,
    TimeIndexCheck,
    TxnIndexBytes,
    check_txn_index,
)
from stratalog.maintenance.verify.producer_checks import LogEvidence, ProducerCheck
from stratalog.storage.segment_view import SegmentView

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from stratalog.format.batch import Peek
    from stratalog.format.buffers import Buffer
    from stratalog.format.checkpoint import EpochEntry
    from stratalog.storage.log_file import FileIdentity

GAPS_MAX: Final = 20
"""Listed for one run of batches; more are counted."""


class Disorder(NamedTuple):
    """A batch whose offsets do not fit between its neighbours'."""

    position: int
    first_offset: int
    expected_offset: int


class Gap(NamedTuple):
    """Offsets that no batch has."""

    position: int
    """Position of the batch after it."""
    first_offset: int
    next_offset: int


class OffsetOrder:
    """Checks that the offsets of batches increase; add them in file order.

    No CRC covers a base offset, so a corrupt one can only be recognized by its order. Of two
    batches that contradict each other, the one that does not directly follow its predecessor is
    blamed, if the other fits without it.
    """

    def __init__(self, base_offset: int) -> None:
        self.last_offset = base_offset - 1
        """Last offset of the last batch that was in order."""
        self._before = base_offset - 1
        """Last offset of the batch before that one."""
        self._position = -1
        self._is_adjoining = True
        """It directly followed the batch before it, so it is not to blame."""
        self.unlisted_gaps = 0
        """Compaction leaves many."""

    def add(self, rows: NDArray[Any]) -> Iterator[Disorder | Gap]:
        """What is wrong with these batches."""
        if not len(rows):
            return
        first, last = first_offsets(rows), rows["last_offset"]
        ends = np.concatenate(([self.last_offset], last[:-1]))
        if not (first <= ends).any():
            gaps = np.flatnonzero((first > ends + 1) & (rows["base_offset"] >= 0))
            self.unlisted_gaps += max(0, len(gaps) - GAPS_MAX)
            for at in gaps[:GAPS_MAX].tolist():
                yield Gap(int(rows["position"][at]), int(ends[at]) + 1, int(first[at]))
            self._before = int(ends[-1])
            self._is_adjoining = bool(first[-1] == ends[-1] + 1)
            self.last_offset = int(last[-1])
            self._position = int(rows["position"][-1])
            return
        columns = (rows["position"].tolist(), first.tolist(), last.tolist())
        for position, first_offset, last_offset in zip(*columns, strict=True):
            yield from self._add_one(position, first_offset, last_offset)

    def skip_to(self, next_offset: int) -> None:
        """Corruption was skipped: the next batch may begin anywhere above."""
        self._before = self.last_offset
        self.last_offset = max(self.last_offset, next_offset - 1)
        self._is_adjoining = True

    def _add_one(self, position: int, first: int, last: int) -> Iterator[Disorder | Gap]:
        if first <= self.last_offset:
            if self._is_adjoining or first <= self._before or self._position < 0:
                yield Disorder(position, first, self.last_offset + 1)
                return
            yield Disorder(self._position, self.last_offset, first)
            self.last_offset = self._before
        self._is_adjoining = first == self.last_offset + 1
        if not self._is_adjoining:
            yield Gap(position, self.last_offset + 1, first)
        self._before, self.last_offset = self.last_offset, last
        self._position = position


class MissingOffsets:
    """The offsets of a segment that no valid batch has: removed, corrupt or lost."""

    def __init__(self, base_offset: int) -> None:
        self._next_offset = base_offset
        self._ranges: list[NDArray[Any]] = []

    def add(self, rows: NDArray[Any]) -> None:
        """The next batches, in file order."""
        first, following = first_offsets(rows), rows["last_offset"] + 1
        expected = np.maximum.accumulate(np.concatenate(([self._next_offset], following)))
        is_after_gap = first > expected[:-1]
        if is_after_gap.any():
            self._ranges.append(np.stack((expected[:-1][is_after_gap], first[is_after_gap])))
        self._next_offset = int(expected[-1])

    def end_at(self, next_offset: int) -> None:
        """The segment has no batches after those that were added."""
        if next_offset > self._next_offset:
            self._ranges.append(np.array([[self._next_offset], [next_offset]]))

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def has_any(self, first_offset: int, next_offset: int) -> bool:
        """Whether any offset from `first_offset` up to (excluding) `next_offset` is missing."""
        return any(
            bool(((start < next_offset) & (end > first_offset)).any())
            for start, end in self._ranges
        )


CHUNK_BYTES: Final = 4 << 20


class Chunk(NamedTuple):
    """Valid batches. Only usable until the next step of the scan."""

    buf: Buffer
    position: int
    """Position of `buf` in the file."""
    rows: NDArray[Any]
    """Their positions are those in the file."""
    found: NDArray[Any]
    """The result of the check of each batch."""

    def in_buf(self, row: Any) -> Any:
        """The same row with its position in `buf`."""
        copy = row.copy()
        copy["position"] -= self.position
        return copy


class CorruptRange(NamedTuple):
    """Bytes without a valid batch."""

    position: int
    end: int
    reason: str
    is_tail: bool
    """No valid batch follows in the file."""
    is_torn: bool
    """It looks like the beginning of a batch whose end is missing."""
    is_zero: bool


Step: TypeAlias = Chunk | CorruptRange


class SegmentScan:
    """Reads a segment once, from start to end."""

    def __init__(self, segment: SegmentView) -> None:
        self._segment = segment
        self._end = segment.size_bytes
        self._checker = BatchChecker()

    def __iter__(self) -> Iterator[Step]:
        position = 0
        self._segment.file.expect(0, self._end)
        while position < self._end:
            buf, table = self._load(position)
            if not buf:
                return  # the file was truncated
            found = self._checker.check(buf, table)
            is_bad = found["status"] == BatchStatus.BAD_BATCH
            good = int(np.argmax(is_bad)) if is_bad.any() else len(table)
            if good:
                rows = table.rows[:good].copy()
                rows["position"] += position
                yield Chunk(buf, position, rows, found[:good])
            reason = ""
            if good < len(table):
                reason = reason_of(buf, table.rows[good]) or "the bytes changed while being read"
                position += int(table.rows["position"][good])
            else:
                position += table.end
                if not (table.stop is Stop.CORRUPT or (table.stop is Stop.PARTIAL and not good)):
                    continue  # complete, or to be read again from its start
                reason = table.reason
            corrupt = self._corrupt_range(position, reason)
            yield corrupt
            position = corrupt.end

    def _load(self, position: int) -> tuple[bytes, BatchTable]:
        """A chunk, large enough for its first batch."""
        file, left = self._segment.file, self._end - position
        buf = file.read(position, min(CHUNK_BYTES, left))
        table = scan_batches(buf)
        if not len(table) and table.stop is Stop.PARTIAL:
            batch = peek(buf)
            if batch is not None and len(buf) < batch.size_bytes <= left:
                buf = file.read(position, batch.size_bytes)
                table = scan_batches(buf)
        return buf, table

    def _corrupt_range(self, position: int, reason: str) -> CorruptRange:
        segment, end = self._segment, self._end
        batch = peek(segment.file.read(position, PEEK_BYTES))
        declared = position + batch.size_bytes if batch is not None else -1
        resume: int | None = None
        if position < declared < end and segment.is_valid(declared):
            resume = declared
        else:
            resume = segment.next_valid_batch(position + 1, offset_min=segment.base_offset)
        is_tail = resume is None
        stop = end if resume is None else resume
        is_whole = position < declared <= end
        is_torn = is_tail and not reason and not is_whole and self._may_be_batch(batch)
        if not reason:
            reason = f"{end - position} bytes that are not a complete batch"
        is_zero = is_tail and segment.file.is_zero(position, end)
        return CorruptRange(position, stop, reason, is_tail, is_torn, is_zero)

    def _may_be_batch(self, batch: Peek | None) -> bool:
        """Whether these may be the first bytes of a batch; also if there are too few to know."""
        if batch is None:
            return True
        return batch.is_plausible(self._segment.base_offset, batch.size_bytes)


_FAULTS: Final = {
    BatchStatus.BAD_RECORDS: Fault.BAD_RECORDS,
    BatchStatus.BAD_OFFSETS: Fault.BAD_RECORD_OFFSETS,
    BatchStatus.BAD_TIMESTAMP: Fault.BAD_MAX_TIMESTAMP,
}


@dataclass(frozen=True)
class VerifyTask:
    """A segment to verify."""

    path: Path
    """Of the `.log` file."""
    base_offset: int
    size_bytes: int
    identity: FileIdentity | None
    next_base: int | None
    """Base offset of the segment after it; None for the last."""
    is_first: bool
    """Nothing was ever written before it."""
    was_clean: bool
    """The last writer closed the log directory cleanly."""
    epochs: tuple[EpochEntry, ...]
    """Leader epochs of the partition; empty if they are not known."""
    snapshot_before: Path | None
    """The producer snapshot at the base offset, if there is one."""
    snapshots: tuple[tuple[int, Path], ...]
    """Snapshots above the base offset and up to that of the next segment, by offset."""
    swapped: tuple[str, ...]
    """Extensions of side files that still end in `.swap`: compaction was interrupted after it had
    renamed the log, and the next writer renames them."""


class SegmentReport(NamedTuple):
    """The result for one segment."""

    path: Path
    base_offset: int
    next_offset: int
    """After the last valid batch."""
    is_compacted: bool
    """It has gaps inside batches, or other traces that only compaction leaves."""
    findings: tuple[Finding, ...]
    counts: VerifyCounts
    is_unreadable: bool = False
    """It could not be read to its end, so its end is not known."""

    @property
    def is_faulty(self) -> bool:
        """Whether the log or an index of it is not as a broker or a cleaner leaves it."""
        return any(
            each.severity is Severity.ERROR
            or (each.severity is Severity.WARNING and each.path == str(self.path))
            for each in self.findings
        )


def verify_segment(
    task: VerifyTask, on_bytes: Callable[[int], None] | None = None
) -> SegmentReport:
    """Verify one segment. `on_bytes` is called with the size of each part of the log when it is
    done."""
    return _SegmentCheck(task, on_bytes).run()


class _SegmentCheck:
    def __init__(self, task: VerifyTask, on_bytes: Callable[[int], None] | None) -> None:
        self._task = task
        self._on_bytes = on_bytes
        self._path = task.path
        self._segment = SegmentView(self._path, task.base_offset, task.size_bytes, task.identity)
        self._findings = Findings()
        self._order = OffsetOrder(task.base_offset)
        self._missing = MissingOffsets(task.base_offset)
        self._epochs = np.array(task.epochs, np.int64).reshape(-1, 2)
        self._offset_index: OffsetIndexCheck | None = None
        self._time_index: TimeIndexCheck | None = None
        self._producers: ProducerCheck
        self._counts = VerifyCounts(segments=1, files=1, size_bytes=task.size_bytes)
        self._is_compacted = False
        self._is_unreadable = False
        self._after_corruption = False
        self._end_position = 0
        self._first_magic = -1
        self._aborted_before: bytes | None = None

    def run(self) -> SegmentReport:
        try:
            _ = self._segment.file
            self._check()
        except SegmentGoneError as error:
            self._findings.add(Fault.GONE, error.path, "removed since the directory was listed")
        except OSError as error:
            self._is_unreadable = True
            self._findings.add_os_error(error, self._path)
        finally:
            self._segment.release()
        return SegmentReport(
            self._task.path,
            self._task.base_offset,
            self._order.last_offset + 1,
            self._is_compacted,
            self._findings.close(),
            self._counts,
            is_unreadable=self._is_unreadable,
        )

    def _check(self) -> None:
        task = self._task
        self._load_indexes()
        self._aborted_before = self._read(FileKind.TXN_INDEX)
        self._choose_size(self._segment.file.size_bytes)
        self._producers = ProducerCheck(
            self._path,
            task.snapshot_before,
            task.snapshots,
            self._findings,
            self._evidence,
            is_first=task.is_first,
        )
        for step in SegmentScan(self._segment):
            if isinstance(step, Chunk):
                self._take(step)
            else:
                self._report_corruption(step)
        self._segment.check_unchanged()
        self._finish()

    def _choose_size(self, size_bytes: int) -> None:
        """Choose how much of the log to read. A broker may have truncated it or appended to it
        since the directory was listed; then the indexes, which were read just now, are newer than
        the list."""
        listed = self._task.size_bytes
        if size_bytes < listed:
            what = f"truncated from {listed} to {size_bytes} bytes since the directory was listed"
            self._findings.add(Fault.GONE, self._path, what)
        elif self._task.next_base is not None:
            size_bytes = listed
        self._segment.size_bytes = size_bytes
        self._counts = self._counts._replace(size_bytes=size_bytes)

    def _load_indexes(self) -> None:
        findings, base = self._findings, self._task.base_offset
        data = self._read(FileKind.OFFSET_INDEX)
        if data is not None:
            path = self._side_file(FileKind.OFFSET_INDEX)
            self._offset_index = OffsetIndexCheck(path, data, base, findings)
        data = self._read(FileKind.TIME_INDEX)
        if data is not None:
            path = self._side_file(FileKind.TIME_INDEX)
            self._time_index = TimeIndexCheck(path, data, base, findings)

    def _side_file(self, kind: FileKind) -> Path:
        stem, _, state = self._path.name.rpartition(FileKind.LOG.value)
        is_swapped = kind.value in self._task.swapped
        suffix = FileState.SWAP.value if is_swapped else state
        return self._path.with_name(f"{stem}{kind.value}{suffix}")

    def _read(self, kind: FileKind) -> bytes | None:
        try:
            data = self._side_file(kind).read_bytes()
        except FileNotFoundError:
            return None
        self._counts = self._counts._replace(files=self._counts.files + 1)
        return data

    # -- batches

    def _take(self, chunk: Chunk) -> None:
        rows = chunk.rows
        last = rows[-1]
        self._missing.add(rows)
        self._end_position = int(last["position"]) + int(last["size_bytes"])
        if self._first_magic < 0:
            self._first_magic = int(rows["magic"][0])
        if self._after_corruption:
            self._after_corruption = False
            resumed = int(first_offsets(rows[:1])[0])
            self._order.skip_to(resumed)
            if self._time_index is not None:
                self._time_index.skip_corrupt(resumed)
        self._check_statuses(chunk)
        self._check_offsets(rows)
        self._check_epochs(rows)
        if self._offset_index is not None:
            self._offset_index.add(rows, chunk.found["last_record_offset"])
        if self._time_index is not None:
            self._time_index.add(rows)
        self._producers.add(chunk)
        self._count(rows)
        if self._on_bytes is not None:
            self._on_bytes(int(rows["size_bytes"].sum(dtype=np.int64)))

    def _count(self, rows: NDArray[Any]) -> None:
        counts = self._counts
        records = int(np.maximum(rows["record_count"], 0).sum(dtype=np.int64))
        self._counts = counts._replace(
            batches=counts.batches + len(rows), records=counts.records + records
        )

    def _check_statuses(self, chunk: Chunk) -> None:
        for at in np.flatnonzero(chunk.found["status"] != BatchStatus.GOOD).tolist():
            row, status = chunk.rows[at], BatchStatus(int(chunk.found["status"][at]))
            where = f"batch {row['base_offset']} to {row['last_offset']}"
            if status is BatchStatus.BAD_TIMESTAMP:
                found = int(chunk.found["max_timestamp"][at])
                reason = (
                    f"largest timestamp is {row['max_timestamp']}, but that of the records "
                    f"is {found}"
                )
            elif status is BatchStatus.BAD_OFFSETS:
                reason = "the offsets of the records do not increase, or are outside the batch"
            else:
                reason = reason_of(chunk.buf, chunk.in_buf(row)) or (
                    "the records cannot be decoded"
                )
            self._add(_FAULTS[status], f"{where}: {reason}", int(row["position"]))

    def _check_offsets(self, rows: NDArray[Any]) -> None:
        task = self._task
        first, last = first_offsets(rows), rows["last_offset"]
        is_outside = (first < task.base_offset) | (last - task.base_offset > RELATIVE_OFFSET_MAX)
        if task.next_base is not None:
            is_outside |= last >= task.next_base
        outside = np.flatnonzero(is_outside)
        for at in self._findings.take_listed(Fault.OFFSET_OUTSIDE_SEGMENT, self._path, outside):
            highest = task.base_offset + RELATIVE_OFFSET_MAX
            if task.next_base is not None:
                highest = min(highest, task.next_base - 1)
            what = (
                f"offsets {first[at]} to {last[at]} are outside the segment, which can have "
                f"offsets {task.base_offset} to {highest}"
            )
            self._add(Fault.OFFSET_OUTSIDE_SEGMENT, what, int(rows["position"][at]))
        inside = rows[~is_outside] if is_outside.any() else rows
        for step in self._order.add(inside):
            if isinstance(step, Disorder):
                what = (
                    f"batch at offset {step.first_offset} is out of order (expected offset "
                    f"{step.expected_offset})"
                )
                self._add(Fault.OFFSETS_OUT_OF_ORDER, what, step.position)
            else:
                what = f"offsets {step.first_offset} to {step.next_offset - 1} are missing"
                self._add(Fault.OFFSET_GAP, what, step.position)
        spans = rows["last_offset"] - rows["base_offset"] + 1
        has_holes = (rows["magic"] == MAGIC_2) & (
            (rows["record_count"] < spans) | (rows["attributes"] & DELETE_HORIZON_BIT != 0)
        )
        self._is_compacted |= bool(has_holes.any())

    def _check_epochs(self, rows: NDArray[Any]) -> None:
        """Each batch must carry the epoch that the checkpoint has for its offset."""
        if not len(self._epochs):
            return
        has_epoch = (rows["magic"] == MAGIC_2) & (rows["partition_leader_epoch"] != NO_LEADER_EPOCH)
        rows = rows[has_epoch]
        at = np.searchsorted(self._epochs[:, 1], rows["base_offset"], "right") - 1
        expected = self._epochs[np.maximum(at, 0), 0]
        is_bad = (at >= 0) & (rows["partition_leader_epoch"] != expected)
        bad = np.flatnonzero(is_bad)
        for n in self._findings.take_listed(Fault.EPOCH_MISMATCH, self._path, bad):
            what = (
                f"batch at offset {rows['base_offset'][n]} has leader epoch "
                f"{rows['partition_leader_epoch'][n]}, the checkpoint has {expected[n]}"
            )
            self._add(Fault.EPOCH_MISMATCH, what, int(rows["position"][n]))

    # -- corruption

    def _report_corruption(self, corrupt: CorruptRange) -> None:
        if corrupt.is_tail:
            fault, severity = self._tail_fault(corrupt)
        else:
            fault, severity = Fault.BAD_BATCH, None
        size = corrupt.end - corrupt.position
        what = f"{corrupt.reason} ({size} bytes without a valid batch)"
        if corrupt.is_zero:
            what = f"{size} bytes of zeros at the end"
        self._findings.add(fault, self._path, what, position=corrupt.position, severity=severity)
        if self._offset_index is not None and not corrupt.is_zero:
            self._offset_index.skip_corrupt(corrupt.position, corrupt.end)
        self._after_corruption = True
        if self._on_bytes is not None:
            self._on_bytes(size)

    def _tail_fault(self, corrupt: CorruptRange) -> tuple[Fault, Severity | None]:
        """The end of the last segment may be missing after a crash, or not written yet."""
        is_sealed = self._task.next_base is not None
        if corrupt.is_zero:
            is_odd = is_sealed or self._task.was_clean
            return Fault.ZERO_TAIL, Severity.WARNING if is_odd else None
        if not corrupt.is_torn:
            return (Fault.GARBAGE_TAIL if is_sealed else Fault.BAD_BATCH), None
        if is_sealed or self._task.was_clean:
            return Fault.TRUNCATED_SEALED_LOG, None
        return Fault.TORN_TAIL, None

    # -- the end

    def _finish(self) -> None:
        next_offset = self._order.last_offset + 1
        is_closed = self._task.next_base is not None or not self._is_open
        entries = 0
        if self._offset_index is not None:
            self._offset_index.finish(self._end_position, is_compacted=self._is_compacted)
            entries += self._offset_index.count
        if self._time_index is not None:
            if self._after_corruption:
                self._time_index.skip_corrupt(RELATIVE_OFFSET_MAX + self._task.base_offset + 1)
            self._time_index.finish(next_offset, is_closed=is_closed)
            entries += self._time_index.count
        if self._segment.size_bytes:
            self._report_missing()
        end = next_offset if self._task.next_base is None else self._task.next_base
        self._missing.end_at(end)
        self._producers.finish(end)
        self._findings.count_more(Fault.OFFSET_GAP, self._path, self._order.unlisted_gaps)
        entries += self._check_txn_index()
        self._counts = self._counts._replace(index_entries=entries)

    @property
    def _is_open(self) -> bool:
        """Whether the indexes have the size that they have while the segment is active."""
        indexes = (self._offset_index, self._time_index)
        return any(index.is_open for index in indexes if index is not None)

    def _report_missing(self) -> None:
        if self._offset_index is None:
            path = self._side_file(FileKind.OFFSET_INDEX)
            self._findings.add(Fault.MISSING_INDEX, path, "no offset index")
        if self._time_index is None:
            path = self._side_file(FileKind.TIME_INDEX)
            is_old = self._first_magic == 0
            severity = Severity.NOTE if is_old else None
            self._findings.add(Fault.MISSING_INDEX, path, "no time index", severity=severity)

    def _check_txn_index(self) -> int:
        path, data = self._side_file(FileKind.TXN_INDEX), self._aborted_before
        # A broker that truncates a log before its only abort leaves an empty file: that is right.
        return check_txn_index(
            TxnIndexBytes(path, data or b""),
            self._producers.markers,
            self._findings,
            base_offset=self._task.base_offset,
            is_exact=self._producers.is_known and not (self._is_compacted or self._missing),
            evidence=self._evidence,
        )

    @property
    def _evidence(self) -> LogEvidence:
        return LogEvidence(self._has_data, self._missing.has_any)

    def _has_data(self, producer_id: int, first_offset: int, end_offset: int) -> bool:
        """Whether this segment or earlier ones have data of the producer. A transaction that began
        in this segment was seen while reading it."""
        if first_offset >= self._task.base_offset:
            return True
        segments = SegmentList(list_partition(self._path.parent).segments)
        try:
            return has_data(segments, producer_id, first_offset, end_offset)
        finally:
            segments.close()

    def _add(self, fault: Fault, what: str, position: int) -> None:
        self._findings.add(fault, self._path, what, position=position)
