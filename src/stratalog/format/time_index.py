"""The time index (`.timeindex`): from a timestamp to an offset, sparsely.

Entries only, no header, no checksum: a corrupt index is rebuilt from the log, never repaired.

Invariants:

* an entry (T, O) says: T is the largest timestamp so far, and the batch that ends at O reached it
  first. Every record with a larger timestamp is after O;
* timestamps strictly increase and none is negative; offsets never decrease;
* offsets are relative to the segment's base offset, 0 to 2147483647;
* the index of an active segment is preallocated: zeros follow the entries until it is trimmed.

`entries` counts the real entries of `buf`, see `count_valid_entries`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from stratalog.errors import CorruptIndexError
from stratalog.format import index_search as search
from stratalog.format.batch import NO_TIMESTAMP, TIMESTAMP_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.format.buffers import Buffer

_ENTRY = struct.Struct(
    ">q"  # timestamp: largest so far, milliseconds
    "i"  # relative_offset: last offset of the batch that reached it - base offset of the segment
)
_TIMESTAMP, _RELATIVE_OFFSET = search.columns_of(_ENTRY)

ENTRY_BYTES: Final = 12

assert _ENTRY.size == ENTRY_BYTES


class TimeEntry(NamedTuple):
    """No record up to `offset` is newer than `timestamp`."""

    timestamp: int
    offset: int

    def pack(self, *, base_offset: int) -> bytes:
        relative_offset = search.relative(self.offset, base_offset)
        if not 0 <= self.timestamp <= TIMESTAMP_MAX:
            raise CorruptIndexError(f"timestamp {self.timestamp} does not fit an index entry")
        return _ENTRY.pack(self.timestamp, relative_offset)

    @classmethod
    def unpack(cls, buf: Buffer, at: int = 0, *, base_offset: int) -> Self:
        timestamp, relative_offset = search.unpack_entry(_ENTRY, buf, at)
        return cls(timestamp, base_offset + relative_offset)


class TimeIndexHit(NamedTuple):
    """The result of a lookup. Slot -1: there is no such entry, scan from the start of the
    segment."""

    slot: int
    timestamp: int
    offset: int


def last_entry(buf: Buffer, entries: int, base_offset: int) -> TimeEntry:
    """The segment's largest timestamp as far as it is indexed; with no entry, (-1, base offset)."""
    if entries <= 0:
        return TimeEntry(NO_TIMESTAMP, base_offset)
    return TimeEntry.unpack(buf, (entries - 1) * ENTRY_BYTES, base_offset=base_offset)


def lookup(
    buf: Buffer, entries: int, base_offset: int, target: int, trace: list[int] | None = None
) -> TimeIndexHit:
    """The greatest entry at or below the timestamp `target`; with none, (-1, base offset).

    `trace` receives the slots that Kafka's own search compares, in its order.
    """
    slot = search.greatest_at_most(_TIMESTAMP, buf, entries, target, trace)
    if slot == search.NO_SLOT:
        return TimeIndexHit(search.NO_SLOT, NO_TIMESTAMP, base_offset)
    timestamp, relative_offset = _ENTRY.unpack_from(buf, slot * ENTRY_BYTES)
    return TimeIndexHit(slot, timestamp, base_offset + relative_offset)


def entries_below(buf: Buffer, entries: int, base_offset: int, offset: int) -> int:
    """How many entries survive truncating the log to `offset`: those of smaller offsets."""
    return search.greatest_at_most(_RELATIVE_OFFSET, buf, entries, offset - base_offset - 1) + 1


def read_entries(buf: Buffer, entries: int, base_offset: int) -> Iterator[TimeEntry]:
    """Entries 0 to `entries` - 1 (or as many as `buf` has), as they are stored."""
    for timestamp, relative_offset in search.unpack_entries(_ENTRY, buf, entries):
        yield TimeEntry(timestamp, base_offset + relative_offset)


def count_valid_entries(buf: Buffer) -> int:
    """How many entries the file really holds, a preallocated zero tail left out.

    The rule is that of `index_search.count_used`: the tail begins at the first slot, other than
    slot 0, whose relative offset is 0. So an entry of timestamp 0 at the base offset, which is only
    ever the first, counts as tail: its twelve zero bytes look the same, and so does a look-up.
    """
    return search.count_used(_RELATIVE_OFFSET, buf)


def check_entries(buf: Buffer, entries: int) -> None:
    """Raise at the first entry that no time index can have.

    Passing means the entries are safe to search, not that the log holds what they say.
    """
    search.check_order(_TIMESTAMP, buf, entries, "timestamp")
    search.check_order(_RELATIVE_OFFSET, buf, entries, "relative offset", may_repeat=True)
    if entries > 0:
        timestamp, relative_offset = _ENTRY.unpack_from(buf, 0)
        if timestamp < 0 or relative_offset < 0:
            raise CorruptIndexError(
                f"slot 0 has a negative value: timestamp {timestamp}, "
                f"relative offset {relative_offset}"
            )


def check_sanity(buf: Buffer, base_offset: int) -> None:
    """Kafka's own quick check of a whole file: its length, and its last slot.

    An untrimmed file fails it: the zero in the last slot is smaller than the first timestamp.
    """
    if not len(buf):
        return
    slots = len(buf) // ENTRY_BYTES
    last_at = max(0, slots - 1) * ENTRY_BYTES
    last = last_entry(buf, slots, base_offset)
    if slots and last.timestamp < _ENTRY.unpack_from(buf, 0)[0]:
        raise CorruptIndexError(
            f"last timestamp {last.timestamp} is below the first one", position=last_at
        )
    if last.offset < base_offset:
        raise CorruptIndexError(
            f"last offset {last.offset} is below base offset {base_offset}", position=last_at
        )
    if len(buf) % ENTRY_BYTES:
        raise CorruptIndexError(f"{len(buf)} bytes are not a multiple of {ENTRY_BYTES}")
