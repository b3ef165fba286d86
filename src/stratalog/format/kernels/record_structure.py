"""Where the fields of a magic-2 record end, if they are what lengths and counts say.

Nothing is copied. Every length is checked against the end of what holds it before it is used.
"""

from __future__ import annotations

from stratalog.format.kernels.jit import outlined, part
from stratalog.format.kernels.varint import read_int


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
