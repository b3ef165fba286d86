"""Partitions of many keys at once: the compiled twin of `log_dir.partitioner.partition_for_key`.

Reads the offsets, data and validity of the rows given, and writes `out`, nothing else.
"""

from __future__ import annotations

from typing import Any

from numba import types

from stratalog.format.kernels.jit import kernel, part
from stratalog.format.kernels.memory import is_null, load_le_u32, load_u8

UNPLACED = -1

_SEED = 0x9747B28C
_MIX = 0x5BD1E995
_UINT32 = 0xFFFF_FFFF
_INT32 = 0x7FFF_FFFF


@part
def _murmur2(at: int, size: int) -> int:
    hashed = (_SEED ^ size) & _UINT32
    end = at + (size & ~3)
    while at < end:
        word = load_le_u32(at) * _MIX & _UINT32
        word = (word ^ word >> 24) * _MIX & _UINT32
        hashed = hashed * _MIX & _UINT32 ^ word
        at += 4
    left = size & 3
    if left:
        if left == 3:
            hashed ^= load_u8(at + 2) << 16
        if left >= 2:
            hashed ^= load_u8(at + 1) << 8
        hashed = (hashed ^ load_u8(at)) * _MIX & _UINT32
    hashed = (hashed ^ hashed >> 13) * _MIX & _UINT32
    return hashed ^ hashed >> 15


@kernel(types.int64(*[types.int64] * 5, types.int32[::1]))
def place_keys(
    offsets: int, data: int, valid: int, valid_bit: int, partition_count: int, out: Any
) -> int:
    """Give every row that is UNPLACED and has a key its partition; how many are left UNPLACED.

    `offsets` (int32) and `data` are those of the key column, `valid` its validity or 0, and
    `valid_bit` the bit of the first row.
    """
    left = 0
    for row in range(len(out)):
        if out[row] != UNPLACED:
            continue
        if is_null(valid, valid_bit + row):
            left += 1
            continue
        start = load_le_u32(offsets + 4 * row)
        size = load_le_u32(offsets + 4 * row + 4) - start
        out[row] = (_murmur2(data + start, size) & _INT32) % partition_count
    return left
