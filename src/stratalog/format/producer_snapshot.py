"""The producer snapshot (`.snapshot`): the state of each producer at the offset in its name.

A header with a checksum, then one entry per producer in no particular order. Only the newest batch
of a producer is kept, so after a reload only its duplicates are recognized. A file without
producers has 10 bytes.

Invariants: the CRC-32C covers everything after itself, the count agrees with the size exactly.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from stratalog.errors import CorruptSnapshotError, UnsupportedError
from stratalog.format.batch import advance_sequence
from stratalog.format.buffers import crc32c, pack_entry, unpack_at

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stratalog.format.buffers import Buffer

_HEADER = struct.Struct(
    ">h"  # version: 1
    "I"  # crc: CRC-32C from entry_count to the end
    "i"  # entry_count
)
_ENTRY = struct.Struct(
    ">q"  # producer_id
    "h"  # producer_epoch
    "i"  # last_sequence: of the newest batch
    "q"  # last_offset: of the newest batch; -1 when no batch is known
    "i"  # offset_delta: last minus first offset of the newest batch
    "q"  # timestamp: newest seen of this producer, a marker's included
    "i"  # coordinator_epoch: of the last marker; -1 before any
    "q"  # current_txn_first_offset: of the open transaction; -1 when none is open
)

HEADER_BYTES: Final = 10
ENTRY_BYTES: Final = 46
CRC_FROM: Final = 6
VERSION: Final = 1
NO_OFFSET: Final = -1

assert _HEADER.size == HEADER_BYTES
assert _ENTRY.size == ENTRY_BYTES


class SnapshotHeader(NamedTuple):
    """The first 10 bytes, in their order on disk."""

    version: int
    crc: int
    entry_count: int


class ProducerEntry(NamedTuple):
    """One producer: the 46 bytes in their order on disk."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int

    @classmethod
    def unpack(cls, buf: Buffer, at: int = 0) -> Self:
        return cls._make(unpack_at(_ENTRY, buf, at, "producer entry", CorruptSnapshotError))

    def pack(self) -> bytes:
        return pack_entry(_ENTRY, self, CorruptSnapshotError)

    @property
    def has_batch(self) -> bool:
        """False when the producer is known from a transaction marker only."""
        return self.last_offset >= 0

    @property
    def first_offset(self) -> int:
        """First offset of the newest batch."""
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        """First sequence of the newest batch, counted back across the wrap from 0 to 2147483647."""
        return advance_sequence(self.last_sequence, -self.offset_delta)

    @property
    def open_txn_first_offset(self) -> int | None:
        offset = self.current_txn_first_offset
        return offset if offset >= 0 else None


def decode_snapshot(buf: Buffer) -> tuple[ProducerEntry, ...]:
    """Every producer of the file, in file order. The CRC is checked first."""
    if len(buf) < HEADER_BYTES:
        raise CorruptSnapshotError(f"{len(buf)} bytes are too few for a producer snapshot")
    header = SnapshotHeader._make(_HEADER.unpack_from(buf))
    if header.version > VERSION:
        raise UnsupportedError(f"producer snapshot version {header.version} is not supported")
    if header.version < VERSION:
        raise CorruptSnapshotError(f"invalid version {header.version}")
    entries = memoryview(buf)[HEADER_BYTES:]
    computed = crc32c(memoryview(buf)[CRC_FROM:])
    if computed != header.crc:
        raise CorruptSnapshotError(
            f"CRC mismatch: stored {header.crc:08x}, computed {computed:08x}"
        )
    if header.entry_count * ENTRY_BYTES != len(entries):
        raise CorruptSnapshotError(
            f"{header.entry_count} entries do not fill {len(entries)} bytes", position=CRC_FROM
        )
    return tuple(map(ProducerEntry._make, _ENTRY.iter_unpack(entries)))


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """The bytes of a file. Kafka writes in the order of a hash map; readers must not depend on
    it."""
    packed = [entry.pack() for entry in entries]
    body = struct.pack(">i", len(packed)) + b"".join(packed)
    return struct.pack(">hI", VERSION, crc32c(body)) + body
