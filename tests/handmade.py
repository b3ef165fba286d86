"""Batches made with `struct` alone, for tests that must not lean on the project's encoder."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NO_ID: Final = -1


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE: Final = _crc_table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def varint(value: int) -> bytes:
    zigzag = ((value << 1) ^ (value >> 63)) & 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


class Rec(NamedTuple):
    """One record; deltas are against its batch."""

    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    value: bytes | None

    def pack(self) -> bytes:
        body = b"\0" + varint(self.timestamp_delta) + varint(self.offset_delta)
        for data in (self.key, self.value):
            body += varint(-1) if data is None else varint(len(data)) + data
        body += varint(0)
        return varint(len(body)) + body


class Head(NamedTuple):
    """The header fields that tests vary."""

    base_timestamp: int = 1000
    attributes: int = 0
    producer_id: int = NO_ID
    producer_epoch: int = NO_ID
    base_sequence: int = NO_ID
    leader_epoch: int = 0
    last_offset_delta: int | None = None


def batch(base_offset: int, records: Sequence[Rec], head: Head = Head()) -> bytes:  # noqa: B008
    """A batch of magic 2, uncompressed."""
    times = [head.base_timestamp + record.timestamp_delta for record in records]
    last = head.last_offset_delta
    if last is None:
        last = max((record.offset_delta for record in records), default=0)
    rest = struct.pack(
        ">hiqqqhii",
        head.attributes,
        last,
        head.base_timestamp if records else -1,
        max(times, default=head.base_timestamp),
        head.producer_id,
        head.producer_epoch,
        head.base_sequence,
        len(records),
    ) + b"".join(record.pack() for record in records)
    start = struct.pack(">qiib", base_offset, 9 + len(rest), head.leader_epoch, 2)
    return start + struct.pack(">I", crc32c(rest)) + rest


def plain(base_offset: int, count: int = 2, timestamp: int = 1000) -> bytes:
    """`count` records with key and value, one millisecond apart."""
    records = [Rec(n, n, b"k%d" % n, b"v%d" % (base_offset + n)) for n in range(count)]
    return batch(base_offset, records, Head(timestamp))


def write_segment(partition: Path, base_offset: int, *batches: bytes, suffix: str = "") -> Path:
    """The `.log` alone: what follows from it is for the code under test to build."""
    partition.mkdir(parents=True, exist_ok=True)
    path = partition / f"{base_offset:020d}.log{suffix}"
    path.write_bytes(b"".join(batches))
    return path
