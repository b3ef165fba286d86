"""Verifying the three indexes of a segment: every entry against the batches of the log.

An offset entry must point to the start of a batch, and its offset must be the last offset of that
batch or of a later one of the same append (followers, cleaners and brokers before 4.1 write one
entry per append). A time entry must name a batch with exactly that max timestamp, with no larger
timestamp before it. A transaction index must have an entry for each ABORT marker.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from stratalog.errors import CorruptError, StratalogError
from stratalog.format import offset_index, time_index
from stratalog.format.batch import NO_TIMESTAMP
from stratalog.format.index_entries import INTERVAL_BYTES_DEFAULT
from stratalog.format.producer_snapshot import NO_OFFSET
from stratalog.format.txn_index import ENTRY_BYTES, AbortedTxn
from stratalog.maintenance.verify.findings import Fault, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from stratalog.maintenance.verify.findings import Findings
    from stratalog.maintenance.verify.producer_checks import LogEvidence, Marker

SPARSE_BYTES: Final = 16 << 20
"""This many bytes without an entry are worth a warning: a lookup reads half of them on average."""


class _Layout(NamedTuple):
    """How a sparse index is stored."""

    entry: np.dtype[Any]
    count_valid: Callable[[bytes], int]
    may_repeat: bool
    """Whether the second column may repeat a number."""
    found_by: str
    """The column by which the entries of batches are found."""


_OFFSET_INDEX: Final = _Layout(
    np.dtype([("offset", ">i4"), ("position", ">i4")]),
    offset_index.count_valid_entries,
    may_repeat=False,
    found_by="position",
)
_TIME_INDEX: Final = _Layout(
    np.dtype([("timestamp", ">i8"), ("offset", ">i4")]),
    time_index.count_valid_entries,
    may_repeat=True,
    found_by="offset",
)


class _IndexCheck:
    """What both sparse indexes share: loading, the tail, and the order of entries."""

    def __init__(
        self, path: Path, data: bytes, base_offset: int, findings: Findings, layout: _Layout
    ) -> None:
        entry = layout.entry
        self.path = path
        self.entry_bytes = entry.itemsize
        self._findings = findings
        whole = len(data) // entry.itemsize * entry.itemsize
        self.count = layout.count_valid(data)
        entries: NDArray[Any] = np.frombuffer(data, entry, self.count)
        self.is_open = whole > self.count * entry.itemsize
        """Zeros follow the entries: the segment was not closed."""
        if whole < len(data):
            what = f"{len(data)} bytes are not a multiple of {entry.itemsize}"
            findings.add(Fault.INDEX_SIZE, path, what, position=whole)
        self._check_tail(data[self.count * entry.itemsize : whole])
        self.columns = {name: entries[name].astype(np.int64) for name in entry.names or ()}
        in_order = self._check_order(*self.columns.values(), may_repeat=layout.may_repeat)
        self.columns["offset"] += base_offset
        column = self.columns[layout.found_by]
        self._slots = in_order[np.argsort(column[in_order], kind="stable")]
        self._sorted = column[self._slots]

    def _check_tail(self, tail: bytes) -> None:
        if not tail:
            return
        at = self.count * self.entry_bytes
        if tail.count(0) == len(tail):
            what = f"{len(tail)} bytes of zeros after {self.count} entries"
            self._findings.add(Fault.INDEX_UNTRIMMED, self.path, what, position=at)
            return
        junk = np.flatnonzero(np.frombuffer(tail, np.uint8))[0]
        what = f"entries end at byte {at}, but what follows is not all zeros"
        self._findings.add(Fault.INDEX_GARBAGE, self.path, what, position=at + int(junk))

    def wrong(self, slot: int, fault: Fault, what: str) -> None:
        at = slot * self.entry_bytes
        self._findings.add(fault, self.path, f"slot {slot}: {what}", position=at)

    def take_listed(self, fault: Fault, places: NDArray[Any]) -> list[int]:
        return self._findings.take_listed(fault, self.path, places)

    def _check_order(
        self, first: NDArray[np.int64], second: NDArray[np.int64], *, may_repeat: bool
    ) -> NDArray[np.int64]:
        """Report each slot that is negative or not above the one before it; returns the others.

        The second column may repeat a number, if `may_repeat`.
        """
        is_bad = (first < 0) | (second < 0)
        is_bad[1:] |= np.diff(first) <= 0
        is_bad[1:] |= np.diff(second) < (0 if may_repeat else 1)
        for slot in self.take_listed(Fault.INDEX_OUT_OF_ORDER, np.flatnonzero(is_bad)):
            before = f" follows ({first[slot - 1]}, {second[slot - 1]})" if slot else ""
            what = f"({first[slot]}, {second[slot]}){before}"
            self.wrong(slot, Fault.INDEX_OUT_OF_ORDER, what)
        return np.flatnonzero(~is_bad)


class OffsetIndexCheck(_IndexCheck):
    """`.index` of a segment."""

    def __init__(self, path: Path, data: bytes, base_offset: int, findings: Findings) -> None:
        super().__init__(path, data, base_offset, findings, _OFFSET_INDEX)
        self._offsets, self._positions = self.columns["offset"], self.columns["position"]
        self._pending = np.empty(
            0, np.int64
        )  # slots whose offset may belong to a later batch of the append
        self._coarse = 0
        self._batch_bytes_max = 0

    def add(self, rows: NDArray[Any], last_records: NDArray[np.int64]) -> None:
        """Check the entries of these batches; `last_records` are the offsets of their last
        records."""
        self._batch_bytes_max = max(self._batch_bytes_max, int(rows["size_bytes"].max()))
        start, end = rows["position"][0], rows["position"][-1] + rows["size_bytes"][-1]
        low, high = np.searchsorted(self._sorted, (start, end))
        slots = self._slots[low:high]
        if len(slots):
            self._check_entries(slots, rows, last_records)
        if len(self._pending):
            ends = np.concatenate((rows["last_offset"], last_records))
            is_found = np.isin(self._offsets[self._pending], ends)
            self._coarse += int(is_found.sum())
            self._pending = self._pending[~is_found]

    def _check_entries(
        self, slots: NDArray[np.int64], rows: NDArray[Any], last_records: NDArray[np.int64]
    ) -> None:
        positions, offsets = self._positions[slots], self._offsets[slots]
        at = np.searchsorted(rows["position"], positions, "right") - 1
        is_start = rows["position"][at] == positions
        base, last = rows["base_offset"][at], rows["last_offset"][at]
        is_exact = (last == offsets) | (last_records[at] == offsets)
        is_set = base < 0  # old brokers indexed the first offset of a compressed set
        is_inside = is_start & is_set & (offsets < last) & (offsets > self._ends_before(rows, at))
        self._coarse += int(is_inside.sum())
        is_exact |= is_inside
        is_later = is_start & ~is_exact & (offsets > last)
        self._pending = np.concatenate((self._pending, slots[is_later]))
        is_bad = ~is_start | ~(is_exact | is_later)
        for n in self.take_listed(Fault.INDEX_MISMATCH, np.flatnonzero(is_bad)):
            slot, position, offset = int(slots[n]), int(positions[n]), int(offsets[n])
            if is_start[n]:
                what = f"offset {offset}, but the batch at {position} has {base[n]} to {last[n]}"
            else:
                what = f"no batch starts at position {position} (offset {offset})"
            self.wrong(slot, Fault.INDEX_MISMATCH, what)

    @staticmethod
    def _ends_before(rows: NDArray[Any], at: NDArray[np.int64]) -> NDArray[np.int64]:
        """The last offset of the batch before each of these; -1 for the first of the chunk."""
        ends: NDArray[np.int64] = np.where(at > 0, rows["last_offset"][at - 1], -1)
        return ends

    def skip_corrupt(self, start: int, end: int) -> None:
        """The log is corrupt here: entries that point into it cannot be checked."""
        is_inside = (self._sorted >= start) & (self._sorted < end)
        self._sorted = self._sorted[~is_inside]
        self._slots = self._slots[~is_inside]
        self._pending = np.empty(0, np.int64)  # their batches may be in it

    def finish(self, end_position: int, *, is_compacted: bool) -> None:
        """The log has ended at `end_position`."""
        past = self._slots[np.searchsorted(self._sorted, end_position) :]
        for slot in self.take_listed(Fault.INDEX_PAST_END, past):
            position = int(self._positions[slot])
            what = f"position {position} is past the end of the log, {end_position}"
            self.wrong(slot, Fault.INDEX_PAST_END, what)
        for slot in self.take_listed(Fault.INDEX_MISMATCH, self._pending):
            what = f"no batch ends with offset {self._offsets[slot]}"
            self.wrong(slot, Fault.INDEX_MISMATCH, what)
        if self._coarse:
            what = f"{self._coarse} of {self.count} entries have the last offset of several batches"
            self._findings.add(Fault.INDEX_COARSE, self.path, what)
        self._check_density(end_position, is_compacted=is_compacted)

    def _check_density(self, end_position: int, *, is_compacted: bool) -> None:
        """The longest range without an entry, against the default interval."""
        stops = np.concatenate(([0], self._sorted, [max(end_position, 0)]))
        gaps = np.diff(stops)
        longest = int(gaps.max())
        if longest <= INTERVAL_BYTES_DEFAULT + 2 * self._batch_bytes_max:
            return
        start = int(stops[int(gaps.argmax())])
        # Cleaners write few entries, but never none for so long a log.
        is_bad = longest >= SPARSE_BYTES and not (is_compacted and self.count)
        self._findings.add(
            Fault.INDEX_SPARSE,
            self.path,
            f"no entry for {longest} bytes of the log from position {start} on",
            severity=Severity.WARNING if is_bad else None,
        )


class TimeIndexCheck(_IndexCheck):
    """`.timeindex` of a segment."""

    def __init__(self, path: Path, data: bytes, base_offset: int, findings: Findings) -> None:
        super().__init__(path, data, base_offset, findings, _TIME_INDEX)
        self._timestamps, self._offsets = self.columns["timestamp"], self.columns["offset"]
        self._done = 0
        self._coarse = 0
        self.max_timestamp = NO_TIMESTAMP
        """Max timestamp of all batches so far."""

    def add(self, rows: NDArray[Any]) -> None:
        """Check the entries of these batches."""
        so_far = np.maximum.accumulate(rows["max_timestamp"])
        so_far = np.maximum(so_far, self.max_timestamp)
        ends = np.maximum.accumulate(rows["last_offset"])
        high = int(np.searchsorted(self._sorted, ends[-1], "right"))
        if high > self._done:
            slots = self._slots[self._done : high]
            self._check_entries(slots, rows, ends, so_far)
            self._done = high
        self.max_timestamp = int(so_far[-1])

    def _check_entries(
        self,
        slots: NDArray[np.int64],
        rows: NDArray[Any],
        ends: NDArray[np.int64],
        so_far: NDArray[np.int64],
    ) -> None:
        timestamps, offsets = self._timestamps[slots], self._offsets[slots]
        at = np.searchsorted(ends, offsets)
        base = rows["base_offset"][at]
        has_batch = base <= offsets
        is_right = has_batch & (rows["max_timestamp"][at] == timestamps)
        self._coarse += int((is_right & (ends[at] != offsets)).sum())
        is_latest = so_far[at] <= timestamps
        for n in self.take_listed(Fault.INDEX_MISMATCH, np.flatnonzero(~is_right | ~is_latest)):
            slot, timestamp, offset = int(slots[n]), int(timestamps[n]), int(offsets[n])
            if not has_batch[n]:
                what = f"no batch holds offset {offset}"
            elif not is_right[n]:
                found = int(rows["max_timestamp"][at[n]])
                what = f"timestamp {timestamp}, but the batch that ends at {offset} has {found}"
            else:
                larger = int(so_far[at[n]])
                what = f"timestamp {timestamp} at {offset}, but an earlier batch has {larger}"
            self.wrong(slot, Fault.INDEX_MISMATCH, what)

    def skip_corrupt(self, next_offset: int) -> None:
        """Offsets below `next_offset` that were not seen are corrupt."""
        self._done = max(self._done, int(np.searchsorted(self._sorted, next_offset)))

    def finish(self, next_offset: int, *, is_closed: bool) -> None:
        """The log has ended before `next_offset`."""
        for slot in self.take_listed(Fault.INDEX_PAST_END, self._slots[self._done :]):
            what = f"offset {self._offsets[slot]} is past the end of the log, {next_offset}"
            self.wrong(slot, Fault.INDEX_PAST_END, what)
        if self._coarse:
            what = f"{self._coarse} of {self.count} entries have an offset inside a batch"
            self._findings.add(Fault.INDEX_COARSE, self.path, what)
        largest = int(self._timestamps.max(initial=NO_TIMESTAMP))
        if is_closed and not self.is_open and largest < self.max_timestamp:
            what = f"the largest timestamp of the log, {self.max_timestamp}, has no entry"
            self._findings.add(
                Fault.INDEX_SHORT, self.path, what, position=self.count * self.entry_bytes
            )


class TxnIndexBytes(NamedTuple):
    """The file as it was before the log was read: a broker may abort a transaction meanwhile."""

    path: Path
    before: bytes

    def last_offsets_now(self) -> set[int]:
        """Last offsets of all transactions, after all markers were read."""
        found = set()
        with suppress(FileNotFoundError):
            data = self.path.read_bytes()
            for at in range(0, len(data) - ENTRY_BYTES + 1, ENTRY_BYTES):
                with suppress(StratalogError):
                    found.add(AbortedTxn.unpack(data, at).last_offset)
        return found


def check_txn_index(
    index: TxnIndexBytes,
    markers: Mapping[int, Marker],
    findings: Findings,
    *,
    base_offset: int,
    is_exact: bool,
    evidence: LogEvidence,
) -> int:
    """Check the entries against the markers; returns how many entries there are.

    `is_exact`: no batch was removed from the log, and the state before it is known. Otherwise a
    transaction may have begun earlier than the log shows.

    `evidence` is used only if an entry or its marker is missing, or if the transaction begins later
    than expected. If the cleaner removed all data of a transaction, it wrote no entry either; and
    then it removed the marker, so that a snapshot may list a transaction as open that ended before
    the next one began. An entry whose marker is among missing offsets is right: nobody but the
    index knows of it.
    """
    path = index.path
    entries = list(_entries(path, index.before, findings))
    last_offset = last_stable = -1
    for at, txn in entries:
        reason = _disorder(txn, last_offset, last_stable, base_offset)
        if reason:
            findings.add(Fault.TXN_INDEX_BAD, path, reason, position=at)
        last_offset, last_stable = txn.last_offset, txn.last_stable_offset
        reason = _mismatch(txn, markers.get(txn.last_offset), evidence, is_exact=is_exact)
        if reason:
            findings.add(Fault.TXN_INDEX_MISMATCH, path, reason, position=at)
    aborts = [each for each in sorted(markers.items()) if _needs_entry(each[1])]
    seen = index.last_offsets_now() if aborts else set()
    for offset, marker in aborts:
        if offset in seen:
            continue
        if evidence.has_data(marker.producer_id, marker.first_offset, offset):
            what = (
                f"no entry for the transaction of producer {marker.producer_id} from "
                f"{marker.first_offset} on, aborted at {offset}"
            )
            findings.add(Fault.TXN_INDEX_MISSING_ENTRY, path, what)
    return len(entries)


def _needs_entry(marker: Marker) -> bool:
    """Whether the transaction that a marker ends belongs in the index: aborted and not empty."""
    return marker.is_abort and marker.first_offset != NO_OFFSET


def _entries(path: Path, data: bytes, findings: Findings) -> Iterator[tuple[int, AbortedTxn]]:
    for at in range(0, len(data) - ENTRY_BYTES + 1, ENTRY_BYTES):
        try:
            yield at, AbortedTxn.unpack(data, at)
        except CorruptError as error:
            findings.add(Fault.TXN_INDEX_BAD, path, error.reason, position=at)
        except StratalogError as error:
            findings.add(Fault.TXN_INDEX_BAD, path, str(error), position=at)
    left = len(data) % ENTRY_BYTES
    if left:
        at = len(data) - left
        findings.add(
            Fault.TXN_INDEX_TORN, path, f"the last entry has only {left} bytes", position=at
        )


def _disorder(txn: AbortedTxn, last_offset: int, last_stable: int, base_offset: int) -> str:
    """What is wrong with an entry or its order; empty if nothing is."""
    if txn.last_offset < base_offset:
        return f"last offset {txn.last_offset} is below the segment's base offset"
    if txn.producer_id < 0:
        return f"producer id is {txn.producer_id}"
    if not 0 <= txn.first_offset < txn.last_offset:
        return f"transaction from {txn.first_offset} to {txn.last_offset}"
    if txn.last_offset <= last_offset:
        return f"last offset {txn.last_offset} does not increase"
    if txn.last_stable_offset < last_stable:
        return f"last stable offset {txn.last_stable_offset} decreases"
    return ""


def _mismatch(
    txn: AbortedTxn, marker: Marker | None, evidence: LogEvidence, *, is_exact: bool
) -> str:
    """How the log contradicts an entry; empty if it does not."""
    if marker is None or not marker.is_abort:
        is_lost = marker is None and evidence.lacks(txn.last_offset, txn.last_offset + 1)
        return "" if is_lost else f"no ABORT marker at offset {txn.last_offset}"
    if marker.producer_id != txn.producer_id:
        return f"producer {txn.producer_id}, but the marker is of {marker.producer_id}"
    first = marker.first_offset
    if _is_start_wrong(txn, first, evidence, is_exact=is_exact):
        return f"first offset {txn.first_offset}, but the transaction began at {first}"
    if is_exact and first == NO_OFFSET:
        return f"the transaction that ended at {txn.last_offset} has no records"
    if is_exact and txn.last_stable_offset != marker.last_stable_offset:
        expected = marker.last_stable_offset
        return f"last stable offset {txn.last_stable_offset}, expected {expected}"
    return ""


def _is_start_wrong(txn: AbortedTxn, first: int, evidence: LogEvidence, *, is_exact: bool) -> bool:
    if first in {NO_OFFSET, txn.first_offset}:
        return False
    if is_exact:
        return True
    if first > txn.first_offset or evidence.lacks(first, txn.first_offset):
        return False
    return evidence.has_data(txn.producer_id, first, txn.first_offset)
