"""A checksum of rows that does not depend on their order."""

from __future__ import annotations

from typing import Any

from numba import types

from stratalog.format.kernels.crc import crc32c_at
from stratalog.format.kernels.jit import kernel, part
from stratalog.format.kernels.memory import is_null, load_le_u32

_NULL = 0x5A17_0001
_MIX = 0x2C1B_3C6D
_UINT32 = 0xFFFF_FFFF
_SUM_MASK = (1 << 62) - 1


@part
def _cell(column: Any, row: int) -> int:
    """The CRC-32C of one value of an Arrow binary column; a constant for a null."""
    offsets, valid = column[0], column[2]
    if offsets == 0 or is_null(valid, column[3] + row):
        return _NULL
    start = load_le_u32(offsets + 4 * row)
    crc: int = crc32c_at(column[1] + start, load_le_u32(offsets + 4 * row + 4) - start)
    return crc


@kernel(types.int64(types.int64[::1], types.int64[::1], types.int64))
def sum_rows(keys: Any, values: Any, rows: int) -> int:
    """The sum over all rows of a number made of key and value, modulo 2^62.

    Each column is an Arrow binary column with 32-bit offsets, as four numbers: the addresses of
    the first offset, the data and the validity (0: none), and the bit of the first row in that. An
    address of 0 for the offsets: all values are null.
    """
    total = 0
    for row in range(rows):
        key, value = _cell(keys, row), _cell(values, row)
        key = (key ^ key >> 15) * _MIX & _UINT32
        total = total + ((key ^ key >> 13) ^ value) & _SUM_MASK
    return total
