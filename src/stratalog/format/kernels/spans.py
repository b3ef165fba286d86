"""Locates the fields of a batch's records, from which Python objects are then built.

Keys and values are not copied here: a slice of the caller's bytes makes the object that the caller
wants. The kernel reads the payload and writes `out`, nothing else.
"""

from __future__ import annotations

from typing import Any

from numba import types

from stratalog.format.kernels.jit import inlined, kernel
from stratalog.format.kernels.record_fields import (
    binary,
    headers_end,
    numbers,
    read_int,
    record_body,
    wrapping_add,
)

# The rows of `out`; a column for each record. Positions are in bytes from `origin`.
OFFSET, TIMESTAMP = 0, 1
KEY_AT, KEY_END = 2, 3  # the end is -1 for null
VALUE_AT, VALUE_END = 4, 5
HEADERS_AT = 6  # of the number of headers; -1 if there are none
ROWS = 7

# What is found, as a sum.
HAS_NULL_KEY, HAS_NULL_VALUE, HAS_HEADERS = 1, 2, 4
NOT_ORDINARY = -1

_ADDRESSES = types.UniTuple(types.int64, 3)
_BASES = types.UniTuple(types.int64, 2)


@inlined
def _field(at: int, end: int, origin: int, row: int, index: int, out: Any) -> tuple[int, bool]:
    """Note where a key or value is; the position after it, or -1, and whether it is null."""
    if at < 0:
        return -1, False
    start, length, after = binary(at, end)
    out[row, index] = start - origin
    out[row + 1, index] = after - origin if length >= 0 else -1
    return after, length < 0


@inlined
def _headers(at: int, end: int, origin: int, index: int, out: Any) -> tuple[int, bool]:
    """Note where the headers are; the position after them, or -1, and whether there are any."""
    if at < 0:
        return -1, False
    count, after = read_int(at, end)
    if after < 0 or count == 0:
        out[HEADERS_AT, index] = -1
        return after, False
    out[HEADERS_AT, index] = at - origin
    return headers_end(after, end, count), True


@kernel(types.int64(_ADDRESSES, _BASES, types.int64[:, ::1]))
def spans(addresses: tuple[int, int, int], bases: tuple[int, int], out: Any) -> int:
    """The records of one payload: its origin, start and end are `addresses`, base offset and base
    timestamp of its batch are `bases`. `out` has a column for each record of the batch.

    Returns NOT_ORDINARY for a payload that breaks a rule of the format, and for offsets that do not
    grow: the readable decoder says what is wrong, or reads them.
    """
    origin, at, end = addresses
    found = 0
    for index in range(out.shape[1]):
        body, next_at = record_body(at, end)
        if body < 0:
            return NOT_ORDINARY
        timestamp_delta, offset_delta, _, at = numbers(body, next_at)
        offset = wrapping_add(bases[0], offset_delta)
        if index > 0 and offset <= out[OFFSET, index - 1]:
            return NOT_ORDINARY
        out[OFFSET, index] = offset
        out[TIMESTAMP, index] = wrapping_add(bases[1], timestamp_delta)
        at, is_null_key = _field(at, next_at, origin, KEY_AT, index, out)
        at, is_null_value = _field(at, next_at, origin, VALUE_AT, index, out)
        at, has_headers = _headers(at, next_at, origin, index, out)
        if at != next_at:
            return NOT_ORDINARY
        found |= HAS_NULL_KEY * is_null_key | HAS_NULL_VALUE * is_null_value
        found |= HAS_HEADERS * has_headers
    return found if at == end else NOT_ORDINARY
