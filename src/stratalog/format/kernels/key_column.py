"""A hash for every key of a column."""

from __future__ import annotations

from typing import Any

from numba import types

from stratalog.format.kernels.jit import kernel
from stratalog.format.kernels.key_hash import hash_key
from stratalog.format.kernels.memory import load_le_u32


@kernel(
    types.void(types.int64, types.int64, types.int64, types.int64, types.int64, types.int64[::1])
)
def hash_column(offsets: int, data: int, size: int, first: int, second: int, out: Any) -> None:
    """The first word of the hash of each key of an Arrow binary column with 32-bit offsets.

    `offsets` and `data` are addresses, `first` and `second` the hash's secret. Reads
    `len(out) + 1` offsets and `size` bytes of data; the offsets must lie within these.
    """
    secret = (first, second)
    for i in range(len(out)):
        start, end = load_le_u32(offsets + 4 * i), load_le_u32(offsets + 4 * i + 4)
        out[i] = hash_key(data + start, end - start, secret, data + size)[0]
