"""The transaction index (`.txnindex`): the aborted transactions whose marker is in a segment.

Entries only, no header, no checksum, not preallocated. The file is created with the segment's first
ABORT marker; committed transactions have no entry.

Invariants:

* an entry belongs to the segment that holds the ABORT marker, so `last_offset` is never below its
  base offset, while `first_offset` may be in an earlier segment;
* last offsets strictly increase, because markers are written in log order;
* `last_stable_offset` never decreases. It lets a search stop: every transaction whose marker comes
  later began at or above it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from stratalog.errors import CorruptIndexError, UnsupportedError
from stratalog.format.buffers import pack_entry, unpack_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.format.buffers import Buffer

_ENTRY = struct.Struct(
    ">h"  # version: 0
    "q"  # producer_id
    "q"  # first_offset: of the transaction
    "q"  # last_offset: of the ABORT marker
    "q"  # last_stable_offset: right after the abort
)

ENTRY_BYTES: Final = 34
VERSION: Final = 0

assert _ENTRY.size == ENTRY_BYTES


class AbortedTxn(NamedTuple):
    """One aborted transaction: the 34 bytes in their order on disk."""

    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    @classmethod
    def unpack(cls, buf: Buffer, at: int = 0) -> Self:
        name = "the entry of an aborted transaction"
        entry = cls._make(unpack_at(_ENTRY, buf, at, name, CorruptIndexError))
        if entry.version > VERSION:
            raise UnsupportedError(f"aborted transaction at byte {at} has version {entry.version}")
        if entry.version < VERSION:
            raise CorruptIndexError(f"invalid version {entry.version}", position=at)
        return entry

    def pack(self) -> bytes:
        return pack_entry(_ENTRY, self, CorruptIndexError)


class AbortedTxns(NamedTuple):
    """The aborted transactions of one index in a range of offsets."""

    txns: tuple[AbortedTxn, ...]
    is_complete: bool
    """No later segment's index can add to them."""


def read_entries(buf: Buffer) -> Iterator[AbortedTxn]:
    """Every complete entry. A partial one at the end, from an unfinished write, is skipped."""
    for at in range(0, len(buf) - ENTRY_BYTES + 1, ENTRY_BYTES):
        yield AbortedTxn.unpack(buf, at)


def collect_aborted(buf: Buffer, from_offset: int, to_offset: int) -> AbortedTxns:
    """The aborted transactions that overlap [`from_offset`, `to_offset`).

    Continue with the index of the next segment until one `is_complete`.
    """
    found = []
    for txn in read_entries(buf):
        if txn.last_offset >= from_offset and txn.first_offset < to_offset:
            found.append(txn)
        if txn.last_stable_offset >= to_offset:
            return AbortedTxns(tuple(found), is_complete=True)
    return AbortedTxns(tuple(found), is_complete=False)


def entries_below(buf: Buffer, offset: int) -> int:
    """How many entries survive truncating the log to `offset`: up to the first lost marker."""
    entries = 0
    for txn in read_entries(buf):
        if txn.last_offset >= offset:
            break
        entries += 1
    return entries


def check_sanity(buf: Buffer, base_offset: int) -> None:
    """Kafka's own check when it loads a segment: no marker below the base offset."""
    for slot, txn in enumerate(read_entries(buf)):
        if txn.last_offset < base_offset:
            raise CorruptIndexError(
                f"last offset {txn.last_offset} is below base offset {base_offset}",
                position=slot * ENTRY_BYTES,
            )


def check_entries(buf: Buffer, base_offset: int) -> None:
    """Raise at the first entry that no index of a segment at `base_offset` can have."""
    check_sanity(buf, base_offset)
    last_offset = last_stable_offset = -1
    for slot, txn in enumerate(read_entries(buf)):
        reason = None
        if txn.producer_id < 0:
            reason = f"producer id is {txn.producer_id}"
        elif not 0 <= txn.first_offset < txn.last_offset:  # data first, then the marker
            reason = f"transaction from {txn.first_offset} to {txn.last_offset}"
        elif txn.last_offset <= last_offset:
            reason = f"last offset {txn.last_offset} does not increase"
        elif txn.last_stable_offset < last_stable_offset:
            reason = f"last stable offset {txn.last_stable_offset} decreases"
        if reason is not None:
            raise CorruptIndexError(reason, position=slot * ENTRY_BYTES)
        last_offset, last_stable_offset = txn.last_offset, txn.last_stable_offset
    if len(buf) % ENTRY_BYTES:
        at = len(buf) - len(buf) % ENTRY_BYTES
        raise CorruptIndexError("the entry of an aborted transaction is truncated", position=at)
