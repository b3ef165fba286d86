"""One record of a magic-2 batch, taken apart as far as compaction and checks look at it.

Headers are not looked into: they stay what they are.
"""

from __future__ import annotations

from stratalog.format.kernels.jit import outlined, part
from stratalog.format.kernels.varint import read_int, read_long
from stratalog.format.record import RECORD_BYTES_MIN

_BODY_BYTES_MIN = RECORD_BYTES_MIN - 1  # without the length itself


@part
def record_body(at: int, end: int) -> tuple[int, int]:
    """Where the body of the record at `at` begins and ends; (-1, -1) if it cannot be one."""
    length, start = read_int(at, end)
    if start < 0 or length < _BODY_BYTES_MIN or length > end - start:
        return -1, -1
    return start, start + length


@part
def numbers(start: int, end: int) -> tuple[int, int, int, int]:
    """Timestamp delta, offset delta, the positions of the offset delta and of the key's length.

    The last is -1 if the body does not hold them.
    """
    timestamp_delta, at = read_long(start + 1, end)  # one byte of attributes, which are unused
    if at < 0:
        return 0, 0, 0, -1
    offset_delta, after = read_int(at, end)
    return timestamp_delta, offset_delta, at, after


@part
def binary(at: int, end: int) -> tuple[int, int, int]:
    """Where a field's bytes begin, how many there are (below 0: null), and the position after it.

    The last is -1 if the body does not hold it.
    """
    length, start = read_int(at, end)
    if start < 0 or length > end - start:
        return 0, 0, -1
    return start, length, start + max(length, 0)


@part
def key_of(at: int, end: int) -> tuple[int, int, int, int, int]:
    """Of the record at `at`: its end, offset delta, where its key begins, how many bytes that has
    (below 0: null), and the position after it. The end is -1 if this cannot be a record.
    """
    start, record_end = record_body(at, end)
    if start < 0:
        return -1, 0, 0, 0, 0
    _, offset_delta, _, at = numbers(start, record_end)
    if at < 0:
        return -1, 0, 0, 0, 0
    key_at, key_bytes, at = binary(at, record_end)
    if at < 0:
        return -1, 0, 0, 0, 0
    return record_end, offset_delta, key_at, key_bytes, at


# Where the fields of a magic-2 record end, if they are what lengths and counts say.
#
# Nothing is copied. Every length is checked against the end of what holds it before it is used.


@outlined
def _headers_end(at: int, end: int, count: int) -> int:
    """The position after `count` headers, or -1."""
    if count < 0 or count > end - at:
        return -1
    for _ in range(count):
        length, at = read_int(at, end)
        if at < 0 or length < 0 or length > end - at:
            return -1
        length, at = read_int(at + length, end)
        if at < 0 or length > end - at:
            return -1
        at += max(length, 0)
    return at


@part
def fields_end(at: int, end: int, needs_key: bool) -> int:
    """The position after key, value and headers, or -1. `at` may be -1 already.

    With `needs_key` a record without a key has no such position.
    """
    if at < 0:
        return -1
    length, at = read_int(at, end)
    if at < 0 or length > end - at or (needs_key and length < 0):
        return -1
    length, at = read_int(at + max(length, 0), end)
    if at < 0 or length > end - at:
        return -1
    count, at = read_int(at + max(length, 0), end)
    if at < 0 or count == 0:
        return at
    return _headers_end(at, end, count)
