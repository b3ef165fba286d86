"""Compares two copies of a partition.

Both logs are read once, batch headers and CRCs by columns. Batches with the same offsets, leader
epoch, CRC and size are the same. Only where batches differ are records decoded and compared, one by
one: a copy may have the same records in other batches, recompressed or compacted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from stratalog.errors import CorruptError
from stratalog.format.checkpoint import decode_leader_epochs
from stratalog.format.names import FileKind, FileState, known_partition_file
from stratalog.log.partition_view import PartitionView
from stratalog.maintenance.repair.lineage import divergence
from stratalog.maintenance.repair.valid_batches import (
    CorruptBytes,
    CorruptPlace,
    joined,
    scan_partition,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from stratalog.format.record import Record
    from stratalog.maintenance.repair.lineage import Divergence
    from stratalog.maintenance.repair.valid_batches import ScannedSegment

LISTED_MAX: Final = 20
"""Differences between records that are listed; others are counted."""
READ_THROUGH: Final = 1000
"""Offsets between two ranges that are read rather than skipped."""
_COMPARED: Final = ["first_offset", "last_offset", "leader_epoch", "crc", "size_bytes"]
_FIELDS: Final = ("timestamp", "key", "value", "headers", "timestamp_type")
_PREALLOCATED: Final = {FileKind.OFFSET_INDEX, FileKind.TIME_INDEX}


class BatchDifference(NamedTuple):
    """A range of offsets in which the batches differ."""

    first_offset: int
    next_offset: int
    batches: tuple[int, int]
    """How many each copy has in this range; one of them may have none."""


class RecordDifference(NamedTuple):
    """A record that only one copy has, or that differs."""

    offset: int
    what: str
    """`only in A`, `only in B`, or the fields that differ."""


class FileDifference(NamedTuple):
    """A file that only one copy has, or whose content differs."""

    name: str
    what: str


@dataclass(frozen=True)
class PartitionDiff:
    """All differences between two copies of a partition."""

    paths: tuple[Path, Path]
    offsets: tuple[tuple[int, int], tuple[int, int]]
    """Log start and log end offset of each."""
    corrupt: tuple[tuple[CorruptBytes, ...], tuple[CorruptBytes, ...]]
    divergence: Divergence | None
    batches: tuple[BatchDifference, ...]
    records: tuple[RecordDifference, ...]
    """The first ones."""
    record_count: int
    """How many records differ, where both copies have batches."""
    files: tuple[FileDifference, ...]

    @property
    def has_same_records(self) -> bool:
        """Whether a reader gets the same records, of the same offsets, from both."""
        is_one_sided = any(not all(each.batches) for each in self.batches)
        return not (
            self.record_count or is_one_sided or any(self.corrupt) or len(set(self.offsets)) > 1
        )

    @property
    def is_same(self) -> bool:
        return self.has_same_records and not (self.batches or self.files)


def compare_partitions(a: Path, b: Path) -> PartitionDiff:
    """Compare two partition directories. Takes no lock and never writes."""
    scans = scan_partition(a), scan_partition(b)
    rows = [joined([segment.rows for segment in scan]) for scan in scans]
    ranges = _differing(*rows)
    with PartitionView(a) as view_a, PartitionView(b) as view_b:
        found: list[RecordDifference] = []
        count = 0
        for first, following in _read_at_once(ranges):
            for record in _differing_records(view_a, view_b, first, following):
                count += 1
                if len(found) < LISTED_MAX:
                    found.append(record)
        offsets = tuple((view.log_start_offset, view.log_end_offset) for view in (view_a, view_b))
    return PartitionDiff(
        (a, b),
        (offsets[0], offsets[1]),
        (_corrupt(scans[0]), _corrupt(scans[1])),
        divergence(*rows),
        tuple(ranges),
        tuple(found),
        count,
        tuple(_differing_files(a, b)),
    )


def _corrupt(scan: Sequence[ScannedSegment]) -> tuple[CorruptBytes, ...]:
    """The corrupt ranges, and batches of which only fields outside the CRC are wrong."""
    found = [each for segment in scan for each in segment.corrupt]
    for segment in scan:
        for batch in segment.corrected:
            reason = "its base offset or leader epoch is wrong"
            place = CorruptPlace(batch.position, batch.size_bytes, reason)
            next_offset = batch.last_offset + 1
            found.append(CorruptBytes(batch.path, place, batch.first_offset, next_offset))
    return tuple(sorted(found, key=lambda each: (each.path, each.place.position)))


# -- batches


def _differing(a: NDArray[Any], b: NDArray[Any]) -> list[BatchDifference]:
    key_a, key_b = _keys(a), _keys(b)
    left, right = a[~np.isin(key_a, key_b)], b[~np.isin(key_b, key_a)]
    return [
        BatchDifference(first, end, (_count(left, first, end), _count(right, first, end)))
        for first, end in _ranges(left, right)
    ]


def _count(rows: NDArray[Any], first_offset: int, next_offset: int) -> int:
    """How many of these batches are in a range; they are in the order of offsets."""
    before = np.searchsorted(rows["last_offset"], first_offset)
    return int(np.searchsorted(rows["first_offset"], next_offset) - before)


def _keys(rows: NDArray[Any]) -> NDArray[Any]:
    """What makes a batch the same, as one value each."""
    columns = np.column_stack([rows[name] for name in _COMPARED]).astype(">i8")
    return np.ascontiguousarray(columns).view(f"S{columns.itemsize * len(_COMPARED)}").ravel()


def _ranges(left: NDArray[Any], right: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Ranges of offsets that the batches of both cover, adjacent ones of the same kind as one."""
    marks = sorted(
        (int(row["first_offset"]), int(row["last_offset"]) + 1, side)
        for side, rows in enumerate((left, right))
        for row in rows
    )
    start = end = -1
    sides: set[int] = set()
    for first, next_offset, side in marks:
        touches = first < end or (first == end and side in sides)
        if start >= 0 and not touches:
            yield start, end
            sides, start = set(), first
        elif start < 0:
            start = first
        end, sides = max(end, next_offset), sides | {side}
    if start >= 0:
        yield start, end


# -- records


def _read_at_once(ranges: Sequence[BatchDifference]) -> Iterator[tuple[int, int]]:
    """The offsets for which both copies have batches, which differ. Ranges that are close are read
    together: what is the same between them is read faster than another range is begun."""
    start = end = -1
    for difference in ranges:
        is_close = end >= 0 and difference.first_offset - end <= READ_THROUGH
        if start >= 0 and not (all(difference.batches) and is_close):
            yield start, end
            start = end = -1
        if all(difference.batches):
            start = difference.first_offset if start < 0 else start
            end = difference.next_offset
    if start >= 0:
        yield start, end


def _differing_records(
    a: PartitionView, b: PartitionView, first_offset: int, next_offset: int
) -> Iterator[RecordDifference]:
    left, right = (_records(view, first_offset, next_offset) for view in (a, b))
    record, other = next(left, None), next(right, None)
    while record is not None or other is not None:
        if other is None or (record is not None and record.offset < other.offset):
            assert record is not None
            yield RecordDifference(record.offset, "only in A")
            record = next(left, None)
        elif record is None or other.offset < record.offset:
            yield RecordDifference(other.offset, "only in B")
            other = next(right, None)
        else:
            fields = [name for name in _FIELDS if getattr(record, name) != getattr(other, name)]
            if fields:
                yield RecordDifference(record.offset, f"different {', '.join(fields)}")
            record, other = next(left, None), next(right, None)


def _records(view: PartitionView, first_offset: int, next_offset: int) -> Iterator[Record]:
    start = max(view.log_start_offset, first_offset)
    if start < min(next_offset, view.log_end_offset):
        yield from view.read(start, next_offset, on_skip=lambda _: None)


# -- files


def _differing_files(a: Path, b: Path) -> Iterator[FileDifference]:
    names_a, names_b = _names(a), _names(b)
    for name in sorted({*names_a, *names_b}):
        if name not in names_a or name not in names_b:
            yield FileDifference(name, "only in A" if name in names_a else "only in B")
            continue
        kind = names_a[name]
        if kind is FileKind.LEADER_EPOCHS:
            what = _epoch_difference(a / name, b / name)
        elif kind is FileKind.LOG:
            what = ""  # compared by its batches
        else:
            what = _content_difference(a / name, b / name, is_padded=kind in _PREALLOCATED)
        if what:
            yield FileDifference(name, what)


def _names(directory: Path) -> dict[str, FileKind]:
    found = {}
    for path in directory.iterdir():
        file = known_partition_file(path.name)
        if file is not None and file.state is FileState.LIVE and path.is_file():
            found[path.name] = file.kind
    return found


def _content_difference(a: Path, b: Path, *, is_padded: bool) -> str:
    """Zeros at the end of an index are space that was preallocated."""
    data, other = a.read_bytes(), b.read_bytes()
    if is_padded:
        data, other = data.rstrip(b"\0"), other.rstrip(b"\0")
    if data == other:
        return ""
    at = next((at for at, pair in enumerate(zip(data, other, strict=False)) if len({*pair}) > 1),
              min(len(data), len(other)))  # fmt: skip
    return f"differs from byte {at} on ({len(data)} and {len(other)} bytes)"


def _epoch_difference(a: Path, b: Path) -> str:
    try:
        left, right = (dict(decode_leader_epochs(path.read_bytes())) for path in (a, b))
    except CorruptError as error:
        return f"cannot be compared: {error.reason}"
    for epoch in sorted({*left, *right}):
        if left.get(epoch) != right.get(epoch):
            starts = [
                "is missing" if epochs.get(epoch) is None else f"starts at {epochs[epoch]}"
                for epochs in (left, right)
            ]
            return f"epoch {epoch} {starts[0]} in A, {starts[1]} in B"
    return ""
