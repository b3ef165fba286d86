"""The offset index (`.index`): from an offset to a position in the `.log` file, sparsely.

Entries only, no header, no checksum: a corrupt index is rebuilt from the log, never repaired.

Invariants:

* an entry names the LAST offset of a batch and the position where that batch starts;
* offsets are relative to the segment's base offset, 0 to 2147483647, and strictly increase;
* positions strictly increase as well;
* the first batch of a segment has no entry, so nothing found means position 0;
* the index of an active segment is preallocated: zeros follow the entries until it is trimmed.

`entries` counts the real entries of `buf`, see `count_valid_entries`.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from stratalog.errors import CorruptIndexError
from stratalog.format import index_search as search

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.format.buffers import Buffer

_ENTRY = struct.Struct(
    ">i"  # relative_offset: last offset of the batch - base offset of the segment
    "i"  # position: of the batch's first byte in the .log file
)
_RELATIVE_OFFSET, _POSITION = search.columns_of(_ENTRY)

ENTRY_BYTES: Final = 8
POSITION_MAX: Final = (1 << 31) - 1

assert _ENTRY.size == ENTRY_BYTES


class OffsetEntry(NamedTuple):
    """The batch that ends at `offset` starts at byte `position`."""

    offset: int
    position: int

    @classmethod
    def unpack(cls, buf: Buffer, at: int = 0, *, base_offset: int) -> Self:
        relative_offset, position = search.unpack_entry(_ENTRY, buf, at)
        return cls(base_offset + relative_offset, position)

    def pack(self, *, base_offset: int) -> bytes:
        relative_offset = search.relative(self.offset, base_offset)
        if not 0 <= self.position <= POSITION_MAX:
            raise CorruptIndexError(f"position {self.position} does not fit an index entry")
        return _ENTRY.pack(relative_offset, self.position)


class OffsetIndexHit(NamedTuple):
    """The result of a lookup. Slot -1: there is no such entry, scan from the start of the
    segment."""

    slot: int
    offset: int
    position: int


def lookup(
    buf: Buffer, entries: int, base_offset: int, target: int, trace: list[int] | None = None
) -> OffsetIndexHit:
    """The greatest entry at or below the offset `target`; with none, (base offset, position 0).

    `trace` receives the slots that Kafka's own search compares, in its order.
    """
    slot = search.greatest_at_most(_RELATIVE_OFFSET, buf, entries, target - base_offset, trace)
    if slot == search.NO_SLOT:
        return OffsetIndexHit(search.NO_SLOT, base_offset, 0)
    relative_offset, position = _ENTRY.unpack_from(buf, slot * ENTRY_BYTES)
    return OffsetIndexHit(slot, base_offset + relative_offset, position)


def entries_below(buf: Buffer, entries: int, base_offset: int, offset: int) -> int:
    """How many entries survive truncating the log to `offset`: those of smaller offsets."""
    return search.greatest_at_most(_RELATIVE_OFFSET, buf, entries, offset - base_offset - 1) + 1


def read_entries(buf: Buffer, entries: int, base_offset: int) -> Iterator[OffsetEntry]:
    """Entries 0 to `entries` - 1 (or as many as `buf` has), as they are stored."""
    for relative_offset, position in search.unpack_entries(_ENTRY, buf, entries):
        yield OffsetEntry(base_offset + relative_offset, position)


def count_valid_entries(buf: Buffer) -> int:
    """How many entries the file really holds, a preallocated zero tail left out.

    The rule is that of `index_search.count_used`: the tail begins at the first slot, other than
    slot 0, whose relative offset is 0. On garbage the count is arbitrary; `check_entries` rejects
    it."""
    return search.count_used(_RELATIVE_OFFSET, buf)


def check_entries(buf: Buffer, entries: int, *, log_bytes: int) -> None:
    """Raise at the first entry that no index of a log of `log_bytes` bytes can have.

    Passing means the entries are safe to search, not that the log holds what they say.
    """
    for column, name in ((_RELATIVE_OFFSET, "relative offset"), (_POSITION, "position")):
        search.check_order(column, buf, entries, name)
    if entries <= 0:
        return
    relative_offset, position = _ENTRY.unpack_from(buf, 0)
    if relative_offset < 0 or position < 0:
        raise CorruptIndexError(
            f"slot 0 has a negative value: relative offset {relative_offset}, position {position}"
        )
    last_at = (entries - 1) * ENTRY_BYTES
    position = _ENTRY.unpack_from(buf, last_at)[1]
    if position >= log_bytes:
        raise CorruptIndexError(
            f"position {position} is past the end of the log ({log_bytes} bytes)", position=last_at
        )


def check_sanity(buf: Buffer, base_offset: int) -> None:
    """Kafka's own quick check of a whole file: its length, and its last slot."""
    if len(buf) % ENTRY_BYTES:
        raise CorruptIndexError(f"{len(buf)} bytes are not a multiple of {ENTRY_BYTES}")
    if not len(buf):
        return
    last = OffsetEntry.unpack(buf, len(buf) - ENTRY_BYTES, base_offset=base_offset)
    if last.offset < base_offset:
        raise CorruptIndexError(
            f"last offset {last.offset} is below base offset {base_offset}",
            position=len(buf) - ENTRY_BYTES,
        )
