"""Checks that records have the canonical encoding: the one that every encoder produces.

Varints may be longer than they need to be, a null may have any negative length, the unused
attributes may be used: readers do not mind. Records without such freedoms come out of decoding and
encoding as the same bytes, so they can be copied into another batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from numba import types

from stratalog.format.batch import NO_TIMESTAMP
from stratalog.format.kernels.jit import inlined, kernel, not_inlined
from stratalog.format.kernels.memory import load_u8
from stratalog.format.kernels.record_fields import (
    INT_BYTES_MAX,
    LONG_BYTES_MAX,
    read_int,
    read_long,
    varint_size,
    wrapping_add,
    zigzag,
)

if TYPE_CHECKING:
    from stratalog.format.buffers import Buffer

_NULL = -1
_LAST_INT_BYTE_MAX = 0x0F
_LAST_LONG_BYTE_MAX = 0x01


@inlined
def _is_short(value: int, at: int, after: int, bytes_max: int, last_byte_max: int) -> bool:
    """Whether the varint has no surplus bytes, nor surplus bits in the last one it may have."""
    size = after - at
    if size == bytes_max and load_u8(after - 1) > last_byte_max:
        return False
    return size == varint_size(zigzag(value))


@inlined
def _is_int_short(value: int, at: int, after: int) -> bool:
    return _is_short(value, at, after, INT_BYTES_MAX, _LAST_INT_BYTE_MAX)


@inlined
def _is_long_short(value: int, at: int, after: int) -> bool:
    return _is_short(value, at, after, LONG_BYTES_MAX, _LAST_LONG_BYTE_MAX)


@inlined
def _field(at: int, end: int) -> int:
    """The position after a key or value, or -1."""
    if at < 0:
        return -1
    length, after = read_int(at, end)
    if after < 0 or length < _NULL or length > end - after or not _is_int_short(length, at, after):
        return -1
    return after + max(length, 0)


@inlined
def _is_ascii(at: int, end: int) -> bool:
    while at < end:
        if load_u8(at) >= 0x80:
            return False
        at += 1
    return True


@not_inlined
def _headers(at: int, end: int, count: int) -> int:
    """The position after the headers, or -1. ASCII keys need no UTF-8 check."""
    for _ in range(count):
        key = at
        at = _field(at, end)
        if at < 0 or not _is_ascii(key, at):
            return -1
        at = _field(at, end)
        if at < 0:
            return -1
    return at


@inlined
def _numbers(at: int, end: int, index: int, base_timestamp: int) -> int:
    """The position after attributes and both deltas, or -1."""
    delta, after = read_long(at + 1, end)
    if after < 0 or load_u8(at) != 0 or not _is_long_short(delta, at + 1, after):
        return -1
    if wrapping_add(base_timestamp, delta) < NO_TIMESTAMP or (index == 0 and delta != 0):
        return -1
    delta, at = read_int(after, end)
    return at if at >= 0 and _is_int_short(delta, after, at) else -1


@inlined
def _all_headers(at: int, end: int) -> int:
    """The position after the count of headers and all of them, or -1. `at` may be -1 already."""
    if at < 0:
        return -1
    count, after = read_int(at, end)
    if after < 0 or count < 0 or not _is_int_short(count, at, after):
        return -1
    return _headers(after, end, count) if count else after


@kernel(types.boolean(*[types.int64] * 4))
def _is_canonical(at: int, stop: int, count: int, base_timestamp: int) -> bool:
    for index in range(count):
        length, body = read_int(at, stop)
        if body < 0 or length < 1 or length > stop - body or not _is_int_short(length, at, body):
            return False
        end = body + length
        at = _numbers(body, end, index, base_timestamp)
        at = _all_headers(_field(_field(at, end), end), end)
        if at != end:
            return False
    return at == stop


def is_canonical(payload: Buffer, count: int, base_timestamp: int) -> bool:
    """Whether encoding these records again results in the same bytes: the first one's timestamp is
    the base, and no timestamp is below -1, which encoders reject.

    False where that is not certain, and for what is no `count` records.
    """
    records = pa.py_buffer(payload)
    start = records.address
    answer: bool = _is_canonical(start, start + records.size, count, base_timestamp)
    return answer
