"""The first record of a magic-2 batch at or after a time: the compiled twin of `record_search`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from numba import types

from stratalog.format.kernels.jit import kernel
from stratalog.format.kernels.varint import read_int, read_long

if TYPE_CHECKING:
    from stratalog.format.buffers import Buffer

NOT_FOUND = -1
BAD_RECORD = -2


@kernel(types.UniTuple(types.int64, 3)(*[types.int64] * 5))
def first_at(
    at: int, end: int, count: int, timestamp_delta_min: int, offset_delta_min: int
) -> tuple[int, int, int]:
    """Slot and both deltas (offset, timestamp) of the first record that has at least these.

    The slot is negative when there is none or a record breaks the format.
    """
    for slot in range(count):
        length, at = read_int(at, end)
        if at < 0 or length < 1 or length > end - at:
            return BAD_RECORD, 0, 0
        after = at + length
        timestamp_delta, at = read_long(at + 1, after)
        if at < 0:
            return BAD_RECORD, 0, 0
        if timestamp_delta >= timestamp_delta_min:
            offset_delta, at = read_int(at, after)
            if at < 0:
                return BAD_RECORD, 0, 0
            if offset_delta >= offset_delta_min:
                return slot, offset_delta, timestamp_delta
        at = after
    return NOT_FOUND, 0, 0


def address_of(buf: Buffer) -> int:
    """Where the bytes lie in memory. Keep `buf` alive for as long as the address is used."""
    return int(pa.py_buffer(buf).address)
