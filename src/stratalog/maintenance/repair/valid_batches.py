"""The valid batches of a log, segment by segment, and the bytes between them.

A batch is valid if its header, CRC and records are, and if its offsets fit between those of its
neighbours. No CRC covers a base offset: a batch whose base offset alone is wrong, and whose place
is known from its neighbours, is valid at that place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from stratalog.format.batch import HEADER_BYTES, MAGIC_2, MAGIC_AT, BatchHeader
from stratalog.format.batch_check import BatchStatus
from stratalog.format.batch_table import first_offsets
from stratalog.log.listing import list_partition
from stratalog.maintenance.verify.segment import CorruptRange, SegmentScan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from stratalog.maintenance.verify.segment import Chunk
    from stratalog.storage.segment_view import SegmentView

OFFSET_MAX: Final = (1 << 63) - 1
_UNREADABLE: Final = {
    BatchStatus.BAD_RECORDS: "the CRC is valid, but the records cannot be decoded",
    BatchStatus.BAD_OFFSETS: "the offsets of the records do not increase, or are outside the batch",
}


class ValidBatch(NamedTuple):
    """A batch that can be read."""

    path: Path
    position: int
    size_bytes: int
    first_offset: int
    """Of a compressed set of old messages: its last offset."""
    last_offset: int
    leader_epoch: int
    magic: int
    crc: int
    is_moved: bool = False
    """The file has another base offset, which is wrong."""


class CorruptBytes(NamedTuple):
    """Bytes of a segment that hold no valid batch."""

    path: Path
    position: int
    size_bytes: int
    first_offset: int
    """The offset that is expected here."""
    next_offset: int | None
    """Offset of what follows; None at the end of the log."""
    reason: str
    is_torn: bool = False
    """The beginning of a batch at the end of the log: what a crash leaves."""


_ROW: Final = np.dtype(
    [
        ("position", np.int64),
        ("size_bytes", np.int64),
        ("first_offset", np.int64),
        ("last_offset", np.int64),
        ("leader_epoch", np.int64),
        ("magic", np.int64),
        ("crc", np.int64),
        ("is_moved", np.bool_),
    ]
)
"""The fields of a ValidBatch, but for its path."""


@dataclass(frozen=True)
class ScannedSegment:
    """One segment."""

    path: Path
    base_offset: int
    next_base: int | None
    end_position: int
    """Where its bytes end; zeros that were preallocated do not count."""
    rows: NDArray[Any]
    """Its valid batches, in the order of offsets."""
    corrupt: tuple[CorruptBytes, ...]

    @property
    def next_offset(self) -> int:
        """The offset after its last valid batch."""
        return int(self.rows["last_offset"][-1]) + 1 if len(self.rows) else self.base_offset

    @property
    def moved(self) -> list[ValidBatch]:
        """Batches whose base offset has to be put right."""
        return list(self._batches(self.rows[self.rows["is_moved"]]))

    def between(self, first_offset: int, next_offset: int) -> list[ValidBatch]:
        """The batches that are completely in this range."""
        rows = self.rows
        is_inside = (rows["first_offset"] >= first_offset) & (rows["last_offset"] < next_offset)
        return list(self._batches(rows[is_inside]))

    def _batches(self, rows: NDArray[Any]) -> Iterator[ValidBatch]:
        for row in rows.tolist():
            yield ValidBatch(self.path, *row)


def scan_partition(directory: Path) -> list[ScannedSegment]:
    """Every segment of a partition directory, read completely."""
    segments = list_partition(directory).segments
    bases = [segment.base_offset for segment in segments]
    found = []
    for segment, next_base in zip(segments, [*bases[1:], None], strict=True):
        try:
            found.append(_scan(segment, next_base))
        finally:
            segment.release()
    return found


class _Fault(NamedTuple):
    position: int
    size_bytes: int
    reason: str
    is_torn: bool = False


def _scan(segment: SegmentView, next_base: int | None) -> ScannedSegment:
    chunks: list[NDArray[Any]] = [np.empty(0, _ROW)]
    faults: list[_Fault] = []
    end_position = segment.size_bytes
    for step in SegmentScan(segment):
        if not isinstance(step, CorruptRange):
            rows, bad = _divided(step)
            chunks.append(rows)
            faults += bad
        elif step.is_zero and next_base is None:
            end_position = step.position
        else:
            size_bytes, is_torn = step.end - step.position, step.is_torn and next_base is None
            faults.append(_Fault(step.position, size_bytes, step.reason, is_torn))
    rows, misplaced = _in_order(np.concatenate(chunks), segment.base_offset, next_base)
    corrupt = [
        _corrupt_bytes(segment, next_base, rows, fault) for fault in sorted([*faults, *misplaced])
    ]
    return ScannedSegment(
        segment.path, segment.base_offset, next_base, end_position, rows, tuple(corrupt)
    )


def _divided(chunk: Chunk) -> tuple[NDArray[Any], list[_Fault]]:
    """The batches that can be read, and those that cannot."""
    status = chunk.found["status"]
    is_bad = np.isin(status, list(map(int, _UNREADABLE)))
    bad = [
        _Fault(int(row["position"]), int(row["size_bytes"]), _UNREADABLE[BatchStatus(int(why))])
        for row, why in zip(chunk.rows[is_bad], status[is_bad], strict=True)
    ]
    good = chunk.rows[~is_bad]
    rows = np.zeros(len(good), _ROW)
    for name in ("position", "size_bytes", "last_offset", "magic", "crc"):
        rows[name] = good[name]
    rows["first_offset"] = first_offsets(good)
    rows["leader_epoch"] = np.where(good["magic"] == MAGIC_2, good["partition_leader_epoch"], -1)
    return rows, bad


def _in_order(
    rows: NDArray[Any], base_offset: int, next_base: int | None
) -> tuple[NDArray[Any], list[_Fault]]:
    """The batches whose offsets increase, those with a wrong base offset put right if their place
    is certain; and the others."""
    limit = OFFSET_MAX if next_base is None else next_base
    first, last = rows["first_offset"], rows["last_offset"]
    expected = np.concatenate(([base_offset], last[:-1] + 1))[: len(rows)]
    if (first >= expected).all() and (not len(rows) or int(last[-1]) < limit):
        return rows, []
    return _sorted_out(rows, base_offset, limit)


def _sorted_out(
    rows: NDArray[Any], base_offset: int, limit: int
) -> tuple[NDArray[Any], list[_Fault]]:
    kept: list[int] = []
    misplaced: list[_Fault] = []
    expected = base_offset
    for at in range(len(rows)):
        first, last = int(rows["first_offset"][at]), int(rows["last_offset"][at])
        after = int(rows["first_offset"][at + 1]) if at + 1 < len(rows) else limit
        # A base offset that jumped up makes the next batch, which is right, look wrong.
        is_wrong = first < expected or last >= limit or expected <= after <= last
        if is_wrong and rows["magic"][at] == MAGIC_2 and after - expected == last - first + 1:
            rows[at]["first_offset"], rows[at]["last_offset"] = expected, after - 1
            rows[at]["is_moved"] = True
        elif is_wrong:
            reason = f"offset {first} is out of order, expected {expected}"
            misplaced.append(_Fault(int(rows["position"][at]), int(rows["size_bytes"][at]), reason))
            continue
        kept.append(at)
        expected = int(rows["last_offset"][at]) + 1
    return rows[kept], misplaced


def _corrupt_bytes(
    segment: SegmentView, next_base: int | None, rows: NDArray[Any], fault: _Fault
) -> CorruptBytes:
    """With the offsets that are missing there."""
    at = int(np.searchsorted(rows["position"], fault.position))
    first = int(rows["last_offset"][at - 1]) + 1 if at else segment.base_offset
    after = int(rows["first_offset"][at]) if at < len(rows) else next_base
    if fault.is_torn:
        after = _declared_end(segment, fault.position, first)
    return CorruptBytes(
        segment.path, fault.position, fault.size_bytes, first, after, fault.reason, fault.is_torn
    )


def _declared_end(segment: SegmentView, position: int, expected: int) -> int | None:
    """Where the offsets of an incomplete batch end, if its header is there and plausible."""
    raw = segment.file.read(position, HEADER_BYTES)
    if len(raw) < HEADER_BYTES or raw[MAGIC_AT] != MAGIC_2:
        return None
    header = BatchHeader.unpack(raw)
    return header.last_offset + 1 if header.base_offset == expected <= header.last_offset else None
