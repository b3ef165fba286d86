"""The transaction index of a segment, held against the markers in it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from stratalog.errors import CorruptError, StratalogError
from stratalog.format.snapshot import NO_OFFSET
from stratalog.format.txn_index import ENTRY_BYTES, AbortedTxn
from stratalog.maintenance.verify.findings import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from stratalog.maintenance.verify.findings import Findings
    from stratalog.maintenance.verify.producer_checks import HasData, Marker


class TxnIndexBytes(NamedTuple):
    """The file, read before and after the log: a broker may abort a transaction in between."""

    path: Path
    before: bytes
    after: bytes

    @property
    def last_offsets(self) -> set[int]:
        """Of all transactions that are in it at last."""
        found = set()
        for at in range(0, len(self.after) - ENTRY_BYTES + 1, ENTRY_BYTES):
            with suppress(StratalogError):
                found.add(AbortedTxn.unpack(self.after, at).last_offset)
        return found


def check_txn_index(
    index: TxnIndexBytes,
    markers: Mapping[int, Marker],
    findings: Findings,
    *,
    base_offset: int,
    is_exact: bool,
    has_data: HasData,
) -> int:
    """How many entries there are; what is wrong with them goes to `findings`.

    `is_exact`: the log has all batches that it ever had, and the state before it is known. Without,
    a transaction may have begun earlier than the log shows.

    `has_data` is asked only where an entry is missing or begins later than expected. If the cleaner
    removed all data of a transaction, it wrote no entry either; and then it removed the marker, so
    that a snapshot may have a transaction as open that ended before the next one began.
    """
    path = index.path
    entries = list(_entries(path, index.before, findings))
    last_offset = last_stable = -1
    for at, txn in entries:
        reason = _disorder(txn, last_offset, last_stable, base_offset)
        if reason:
            findings.add(Fault.TXN_INDEX_BAD, path, reason, position=at)
        last_offset, last_stable = txn.last_offset, txn.last_stable_offset
        reason = _mismatch(txn, markers.get(txn.last_offset), has_data, is_exact=is_exact)
        if reason:
            findings.add(Fault.TXN_INDEX_MISMATCH, path, reason, position=at)
    seen = index.last_offsets
    for offset, marker in sorted(markers.items()):
        if not _is_entry_due(marker) or offset in seen:
            continue
        if has_data(marker.producer_id, marker.first_offset, offset):
            what = (
                f"no entry for the transaction of producer {marker.producer_id} from "
                f"{marker.first_offset} on, aborted at {offset}"
            )
            findings.add(Fault.TXN_INDEX_MISSING_ENTRY, path, what)
    return len(entries)


def _is_entry_due(marker: Marker) -> bool:
    """Whether the transaction that a marker ends belongs into the index: aborted, not empty."""
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
    """What is wrong with an entry by itself and the one before it."""
    if txn.last_offset < base_offset:
        return f"last offset {txn.last_offset} is below the segment's base offset"
    if txn.producer_id < 0:
        return f"producer id is {txn.producer_id}"
    if not 0 <= txn.first_offset < txn.last_offset:
        return f"transaction from {txn.first_offset} to {txn.last_offset}"
    if txn.last_offset <= last_offset:
        return f"last offset {txn.last_offset} does not rise"
    if txn.last_stable_offset < last_stable:
        return f"last stable offset {txn.last_stable_offset} falls"
    return ""


def _mismatch(txn: AbortedTxn, marker: Marker | None, has_data: HasData, *, is_exact: bool) -> str:
    """Where the log contradicts an entry."""
    if marker is None or not marker.is_abort:
        return f"no ABORT marker at offset {txn.last_offset}"
    if marker.producer_id != txn.producer_id:
        return f"producer {txn.producer_id}, but the marker is of {marker.producer_id}"
    first = marker.first_offset
    if _is_start_wrong(txn, first, has_data, is_exact=is_exact):
        return f"first offset {txn.first_offset}, but the transaction began at {first}"
    if is_exact and first == NO_OFFSET:
        return f"the transaction that ended at {txn.last_offset} has no records"
    if is_exact and txn.last_stable_offset != marker.last_stable_offset:
        due = marker.last_stable_offset
        return f"last stable offset {txn.last_stable_offset}, where {due} is due"
    return ""


def _is_start_wrong(txn: AbortedTxn, first: int, has_data: HasData, *, is_exact: bool) -> bool:
    if first in {NO_OFFSET, txn.first_offset}:
        return False
    if is_exact:
        return True
    return first < txn.first_offset and has_data(txn.producer_id, first, txn.first_offset)
