"""The hash that decides the partition of a key: murmur2, as in Kafka's clients."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stratalog.format.buffers import Buffer

_SEED: Final = 0x9747B28C
_MIX: Final = 0x5BD1E995
_INT32_MASK: Final = 0x7FFF_FFFF
_UINT32_MASK: Final = 0xFFFF_FFFF


def murmur2(data: Buffer) -> int:
    """The 32-bit hash of Kafka's clients, as an unsigned number."""
    size = len(data)
    hashed = _SEED ^ size
    for word in struct.unpack_from(f"<{size >> 2}I", data):
        mixed = word * _MIX & _UINT32_MASK
        mixed = (mixed ^ mixed >> 24) * _MIX & _UINT32_MASK
        hashed = hashed * _MIX & _UINT32_MASK ^ mixed
    if tail := data[size & ~3 :]:
        hashed = (hashed ^ int.from_bytes(tail, "little")) * _MIX & _UINT32_MASK
    hashed = (hashed ^ hashed >> 13) * _MIX & _UINT32_MASK
    return hashed ^ hashed >> 15


def partition_for_key(key: Buffer, partition_count: int) -> int:
    """The partition of all records with this key."""
    return (murmur2(key) & _INT32_MASK) % partition_count
