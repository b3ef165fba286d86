"""The valid batches of a log, segment by segment, and the bytes between them.

A batch is valid if its header, CRC and records are, and if its offsets fit between those of its
neighbours. No CRC covers a base offset or a leader epoch. A batch whose base offset alone is wrong,
and whose place is known from its neighbours, is valid at that place. Batches that fit each other,
but not the name of their file, are right: the file was renamed, or is of a log that rolled
elsewhere. They are listed apart (`outside`). A leader epoch that does not fit between those of the
neighbours is wrong: epochs never decrease along a log.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from stratalog.errors import StratalogError
from stratalog.format.batch import HEADER_BYTES, MAGIC_2, MAGIC_AT, OFFSET_MAX, BatchHeader
from stratalog.format.batch_check import BatchStatus
from stratalog.format.batch_table import first_offsets
from stratalog.format.checkpoint import decode_leader_epochs
from stratalog.format.names import FileKind
from stratalog.log.partition_listing import list_partition
from stratalog.maintenance.verify.segment import CorruptRange, SegmentScan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from stratalog.format.checkpoint import EpochEntry
    from stratalog.maintenance.verify.segment import Chunk
    from stratalog.storage.segment_view import SegmentView

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
    """The first offset; for a compressed set of old messages, the last one."""
    last_offset: int
    leader_epoch: int
    magic: int
    crc: int
    is_corrected: bool = False
    """The file has another base offset or leader epoch, which is wrong."""


class CorruptPlace(NamedTuple):
    """Bytes that hold no valid batch, and why."""

    position: int
    size_bytes: int
    reason: str
    is_torn: bool = False
    """The beginning of a batch at the end of the log: what a crash leaves."""


class CorruptBytes(NamedTuple):
    """Such bytes of a segment, and the offsets that are missing there."""

    path: Path
    place: CorruptPlace
    first_offset: int
    """The offset that is expected here."""
    next_offset: int | None
    """Offset of what follows; None at the end of the log."""


_NUMBERS: Final = ValidBatch._fields[1:-1]
_ROW: Final = np.dtype([*((name, np.int64) for name in _NUMBERS), ("is_corrected", np.bool_)])
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
    outside: NDArray[Any]
    """Batches in the order of the file with offsets that it should not have."""
    is_certain: NDArray[np.bool_]
    """Which of them have certainly the offsets that they should have, but in another file."""

    @property
    def next_offset(self) -> int:
        """The offset after its last valid batch."""
        return int(self.rows["last_offset"][-1]) + 1 if len(self.rows) else self.base_offset

    @property
    def corrected(self) -> list[ValidBatch]:
        """Batches whose base offset or leader epoch has to be put right."""
        return list(self._batches(self.rows[self.rows["is_corrected"]]))

    def between(self, first_offset: int, next_offset: int) -> list[ValidBatch]:
        """The batches that are completely in this range."""
        rows = self.rows
        is_inside = (rows["first_offset"] >= first_offset) & (rows["last_offset"] < next_offset)
        return list(self._batches(rows[is_inside]))

    def batch(self, row: Any) -> ValidBatch:
        """One of the rows."""
        return ValidBatch(self.path, *row.tolist())

    def _batches(self, rows: NDArray[Any]) -> Iterator[ValidBatch]:
        for row in rows.tolist():
            yield ValidBatch(self.path, *row)


def scan_partition(directory: Path) -> list[ScannedSegment]:
    """Every segment of a partition directory, read completely."""
    found: list[ScannedSegment] = []
    next_base = next_valid_base = None
    for segment in reversed(list_partition(directory).segments):
        try:
            found.append(_scan(segment, next_base, next_valid_base))
        finally:
            segment.release()
        next_base = segment.base_offset
        if len(found[-1].rows):
            next_valid_base = next_base
    found.reverse()
    _correct_epochs([segment.rows for segment in found], read_epochs(directory))
    return found


def joined(segments: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The batches of all segments."""
    return np.concatenate([np.empty(0, _ROW), *segments])


def read_epochs(directory: Path) -> tuple[EpochEntry, ...]:
    """What `leader-epoch-checkpoint` says; empty if it is missing or cannot be right."""
    try:
        entries = decode_leader_epochs((directory / FileKind.LEADER_EPOCHS.value).read_bytes())
    except (OSError, StratalogError):
        return ()
    is_rising = all(
        before.epoch < after.epoch and before.start_offset < after.start_offset
        for before, after in pairwise(entries)
    )
    return entries if is_rising else ()


def _correct_epochs(segments: Sequence[NDArray[Any]], known: Sequence[EpochEntry]) -> None:
    """Give batches whose leader epoch cannot be right, between those of their neighbours, one that
    can: that of both neighbours, or what the checkpoint says."""
    ends = np.cumsum([len(rows) for rows in segments], dtype=np.int64)
    batches = joined(segments)
    places = np.flatnonzero(batches["leader_epoch"] >= 0)
    offsets, epochs = batches["first_offset"][places], batches["leader_epoch"][places]
    for wrong in sorted({*_epochs_out_of_order(epochs), *_unknown_epochs(epochs, offsets, known)}):
        low = epochs[wrong - 1] if wrong else epochs[wrong + 1]
        high = epochs[wrong + 1] if wrong + 1 < len(epochs) else low
        by_file = epoch_at(known, int(offsets[wrong]))
        epochs[wrong] = by_file if by_file is not None and low <= by_file <= high else low
        slot = int(np.searchsorted(ends, places[wrong], "right"))
        row = segments[slot][places[wrong] - ends[slot]]  # counted from the end of the segment
        row["leader_epoch"], row["is_corrected"] = epochs[wrong], True


def _epochs_out_of_order(epochs: NDArray[np.int64]) -> Iterator[int]:
    """Where one batch alone has an epoch above that of the next or below that of the one before."""
    end = len(epochs) - 1
    for at in np.flatnonzero(epochs[1:] < epochs[:-1]).tolist():
        fits_without_first = not at or epochs[at - 1] <= epochs[at + 1]
        fits_without_second = at + 1 == end or epochs[at] <= epochs[at + 2]
        is_first_adjoining = bool(at) and epochs[at - 1] == epochs[at]
        if fits_without_first and not (fits_without_second and is_first_adjoining):
            yield at
        elif fits_without_second:
            yield at + 1


def _unknown_epochs(
    epochs: NDArray[np.int64], offsets: NDArray[np.int64], known: Sequence[EpochEntry]
) -> Iterator[int]:
    """Where one batch alone, between two that fit the checkpoint, has an epoch that it lacks."""
    if len(known) and len(epochs) >= 3:
        numbers, starts = np.array(known, np.int64).T
        at = np.searchsorted(starts, offsets, "right") - 1
        is_right = (at >= 0) & (numbers[np.maximum(at, 0)] == epochs)
        is_alone = ~is_right[1:-1] & is_right[:-2] & is_right[2:]
        yield from (
            number
            for number in (np.flatnonzero(is_alone) + 1).tolist()
            if epochs[number] not in numbers
        )


def epoch_at(known: Sequence[EpochEntry], offset: int) -> int | None:
    """The leader epoch that a checkpoint has for an offset; None below its first entry."""
    return next((each.epoch for each in reversed(known) if each.start_offset <= offset), None)


def _scan(
    segment: SegmentView, next_base: int | None, next_valid_base: int | None
) -> ScannedSegment:
    """`next_base` is that of the next segment, `next_valid_base` that of the next one with a valid
    batch."""
    chunks: list[NDArray[Any]] = [np.empty(0, _ROW)]
    faults: list[CorruptPlace] = []
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
            faults.append(CorruptPlace(step.position, size_bytes, step.reason, is_torn))
    rows, misplaced = np.concatenate(chunks), list[CorruptPlace]()
    outside, is_certain = rows[:0], np.empty(0, np.bool_)
    if not _is_in_order(rows, segment.base_offset, next_base):
        if _is_in_order(rows, segment.base_offset, next_valid_base):
            next_base = next_valid_base  # what is in between has none of its own offsets
        else:
            found = rows.copy()  # as they are in the file
            kept, misplaced = _place_corrected(rows, segment.base_offset, next_base)
            is_outside = ~np.isin(np.arange(len(rows)), kept)
            is_certain = _is_in_a_run(found, is_outside)[is_outside]
            outside, rows = found[is_outside], rows[kept]
    corrupt = [
        _corrupt_bytes(segment, next_base, rows, fault) for fault in sorted([*faults, *misplaced])
    ]
    return ScannedSegment(
        segment.path,
        segment.base_offset,
        next_base,
        end_position,
        rows,
        tuple(corrupt),
        outside,
        is_certain,
    )


def _divided(chunk: Chunk) -> tuple[NDArray[Any], list[CorruptPlace]]:
    """The batches that can be read, and those that cannot."""
    status = chunk.found["status"]
    is_bad = np.isin(status, list(map(int, _UNREADABLE)))
    bad = [
        CorruptPlace(
            int(row["position"]), int(row["size_bytes"]), _UNREADABLE[BatchStatus(int(why))]
        )
        for row, why in zip(chunk.rows[is_bad], status[is_bad], strict=True)
    ]
    good = chunk.rows[~is_bad]
    rows = np.zeros(len(good), _ROW)
    for name in ("position", "size_bytes", "last_offset", "magic", "crc"):
        rows[name] = good[name]
    rows["first_offset"] = first_offsets(good)
    rows["leader_epoch"] = np.where(good["magic"] == MAGIC_2, good["partition_leader_epoch"], -1)
    return rows, bad


def _is_in_order(rows: NDArray[Any], base_offset: int, limit: int | None) -> bool:
    """Whether offsets increase, from the base offset to below the limit."""
    if not len(rows):
        return True
    first, last = rows["first_offset"], rows["last_offset"]
    expected = np.concatenate(([base_offset], last[:-1] + 1))
    return bool((first >= expected).all()) and (limit is None or int(last[-1]) < limit)


def _place_corrected(
    rows: NDArray[Any], base_offset: int, next_base: int | None
) -> tuple[list[int], list[CorruptPlace]]:
    """Numbers of the batches whose offsets increase, those with a wrong base offset put right if
    their place is certain; and the others."""
    limit = OFFSET_MAX if next_base is None else next_base
    kept: list[int] = []
    misplaced: list[CorruptPlace] = []
    expected = base_offset
    for at in range(len(rows)):
        first, last = int(rows["first_offset"][at]), int(rows["last_offset"][at])
        after = int(rows["first_offset"][at + 1]) if at + 1 < len(rows) else limit
        # A base offset that jumped up makes the next batch, which is right, look wrong. One that
        # follows the batch before it is right, wherever the next one seems to begin.
        is_wrong = last >= limit or (
            first != expected and (first < expected or expected <= after <= last)
        )
        is_next = not at or (bool(kept) and kept[-1] == at - 1)
        is_certain = is_next and first != expected and after - expected == last - first + 1
        if is_wrong and is_certain and rows["magic"][at] == MAGIC_2:
            rows[at]["first_offset"], rows[at]["last_offset"] = expected, after - 1
            rows[at]["is_corrected"] = True
        elif is_wrong:
            reason = f"offset {first} is out of order, expected {expected}"
            misplaced.append(
                CorruptPlace(int(rows["position"][at]), int(rows["size_bytes"][at]), reason)
            )
            continue
        kept.append(at)
        expected = int(rows["last_offset"][at]) + 1
    return kept, misplaced


def _is_in_a_run(rows: NDArray[Any], is_outside: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether the offsets of a batch continue those of a neighbour in the file: then both are
    right. A flipped bit changes one batch only, so two that are outside and in order are right too.
    """
    first, next_first = rows["last_offset"][:-1] + 1, rows["first_offset"][1:]
    is_rising = (first <= next_first) & is_outside[:-1] & is_outside[1:]
    is_pair = (first == next_first) | is_rising
    found = np.zeros(len(rows), np.bool_)
    found[:-1] |= is_pair
    found[1:] |= is_pair
    return found


def _corrupt_bytes(
    segment: SegmentView, next_base: int | None, rows: NDArray[Any], place: CorruptPlace
) -> CorruptBytes:
    """The corrupt ranges, with the offsets that are missing there."""
    at = int(np.searchsorted(rows["position"], place.position))
    first = int(rows["last_offset"][at - 1]) + 1 if at else segment.base_offset
    after = int(rows["first_offset"][at]) if at < len(rows) else next_base
    if place.is_torn:
        after = _declared_end(segment, place.position, first)
    return CorruptBytes(segment.path, place, first, after)


def _declared_end(segment: SegmentView, position: int, expected: int) -> int | None:
    """Where the offsets of an incomplete batch end, if its header is there and plausible."""
    raw = segment.file.read(position, HEADER_BYTES)
    if len(raw) < HEADER_BYTES or raw[MAGIC_AT] != MAGIC_2:
        return None
    header = BatchHeader.unpack(raw)
    return header.last_offset + 1 if header.base_offset == expected <= header.last_offset else None
