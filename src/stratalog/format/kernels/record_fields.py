"""The fields of a record for kernels: wrapping arithmetic, varints, and where fields begin and end.

Sums and differences wrap around like Java's longs. numba declares to LLVM that integers never
overflow, so a comparison with a plain sum may be wrong for very large numbers, and timestamps of
any size come from outside."""

from __future__ import annotations

from typing import Any

from numba.core import types
from numba.extending import intrinsic

from stratalog.format.kernels.jit import inlined, not_inlined
from stratalog.format.kernels.memory import load_u8, store_u8
from stratalog.format.record import RECORD_BYTES_MIN


def _operation(name: str) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return getattr(builder, name)(args[0], args[1])  # without the flags numba would add

    def operate(_context: Any, a: Any, b: Any) -> Any:
        return types.int64(types.int64, types.int64), codegen

    return intrinsic(operate)


wrapping_add = _operation("add")
wrapping_sub = _operation("sub")


# Compiled twins of `format/varint.py`. A negative position is an error.

INT_BYTES_MAX = 5
LONG_BYTES_MAX = 10

_LOGICAL_7 = (1 << 57) - 1  # mask for a logical right shift by 7


@inlined
def read_int(at: int, end: int) -> tuple[int, int]:
    """Decode the zig-zag int at `at`: its value and the position after it (-1 if it does not end
    before `end`)."""
    raw, after = _read_short(at, end)
    if after < 0:
        raw, after = read_unsigned(at, end, INT_BYTES_MAX)
        raw &= 0xFFFF_FFFF
    return (raw >> 1) ^ -(raw & 1), after


@inlined
def read_long(at: int, end: int) -> tuple[int, int]:
    """Decode the zig-zag long at `at`: its value and the position after it, or -1 as for an int."""
    raw, after = _read_short(at, end)
    if after < 0:
        raw, after = read_unsigned(at, end, LONG_BYTES_MAX)
    return ((raw >> 1) & 0x7FFF_FFFF_FFFF_FFFF) ^ -(raw & 1), after


@inlined
def _read_short(at: int, end: int) -> tuple[int, int]:
    """A number of one or two bytes, as most are, not yet un-zig-zagged. The position is -1 for a
    longer one, or if fewer than two bytes are left."""
    if end - at >= 2:
        byte = load_u8(at)
        if byte < 0x80:
            return byte, at + 1
        more = load_u8(at + 1)
        if more < 0x80:
            return byte & 0x7F | more << 7, at + 2
    return 0, -1


@inlined
def read_unsigned(at: int, end: int, bytes_max: int) -> tuple[int, int]:
    """Decode the number at `at`, of any size and not zig-zagged: its value and the position after
    it, or -1 as for an int."""
    value = 0
    shift = 0
    stop = min(end, at + bytes_max)
    while at < stop:
        byte = load_u8(at)
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return value, -1


@inlined
def zigzag(number: int) -> int:
    """Map 0, -1, 1, -2 to 0, 1, 2, 3, so that small numbers of either sign stay small."""
    return number << 1 ^ number >> 63


@not_inlined
def _long_size(raw: int) -> int:
    size = 1
    while raw < 0 or raw >= 0x80:
        raw = raw >> 7 & _LOGICAL_7
        size += 1
    return size


@inlined
def varint_size(raw: int) -> int:
    """Encoded size of a number that is already zig-zagged."""
    if 0 <= raw < 0x80:
        return 1
    if 0 <= raw < 0x4000:
        return 2
    return _long_size(raw)


@not_inlined
def _put_long(at: int, raw: int) -> int:
    while raw < 0 or raw >= 0x80:
        store_u8(at, raw & 0x7F | 0x80)
        raw = raw >> 7 & _LOGICAL_7
        at += 1
    store_u8(at, raw)
    return at + 1


@inlined
def put_varint(at: int, raw: int) -> int:
    """Write a number that is already zig-zagged; returns the position after it."""
    if 0 <= raw < 0x80:
        store_u8(at, raw)
        return at + 1
    if 0 <= raw < 0x4000:
        store_u8(at, raw & 0x7F | 0x80)
        store_u8(at + 1, raw >> 7)
        return at + 2
    return _put_long(at, raw)


# The fields of one magic-2 record that compaction and checks need. Headers are not decoded.

_BODY_BYTES_MIN = RECORD_BYTES_MIN - 1  # without the length itself


@inlined
def record_body(at: int, end: int) -> tuple[int, int]:
    """Where the body of the record at `at` begins and ends; (-1, -1) if it cannot be one."""
    length, start = read_int(at, end)
    if start < 0 or length < _BODY_BYTES_MIN or length > end - start:
        return -1, -1
    return start, start + length


@inlined
def numbers(start: int, end: int) -> tuple[int, int, int, int]:
    """Timestamp delta, offset delta, the positions of the offset delta and of the key's length.

    The last is -1 if the body does not hold them.
    """
    timestamp_delta, at = read_long(start + 1, end)  # one byte of attributes, which are unused
    if at < 0:
        return 0, 0, 0, -1
    offset_delta, after = read_int(at, end)
    return timestamp_delta, offset_delta, at, after


@inlined
def record_numbers(at: int, end: int) -> tuple[int, int, int, int]:
    """Timestamp delta and offset delta of the record at `at`, the position of the key's length, and
    where the record ends. The position of the key's length is -1 if this cannot be a record.
    """
    start, record_end = record_body(at, end)
    if start < 0:
        return 0, 0, -1, -1
    timestamp_delta, offset_delta, _, after = numbers(start, record_end)
    return timestamp_delta, offset_delta, after, record_end


@inlined
def binary(at: int, end: int) -> tuple[int, int, int]:
    """Where a field's bytes begin, its length (negative: null), and the position after it.

    The last is -1 if the body does not hold the field.
    """
    length, start = read_int(at, end)
    if start < 0 or length > end - start:
        return 0, 0, -1
    return start, length, start + max(length, 0)


@inlined
def key_of(at: int, end: int) -> tuple[int, int, int, int, int]:
    """Facts of the record at `at`: end, offset delta, where its key begins, the key's length
    (negative: null), and the position after the key. The end is -1 if this cannot be a record.
    """
    _, offset_delta, at, record_end = record_numbers(at, end)
    if at < 0:
        return -1, 0, 0, 0, 0
    key_at, key_bytes, at = binary(at, record_end)
    if at < 0:
        return -1, 0, 0, 0, 0
    return record_end, offset_delta, key_at, key_bytes, at


# Where the fields of a magic-2 record end. Every length is checked before it is used.


@not_inlined
def headers_end(at: int, end: int, count: int) -> int:
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


@inlined
def fields_end(at: int, end: int, needs_key: bool) -> int:
    """The position after key, value and headers, or -1. `at` may be -1 already.

    With `needs_key`, also -1 for a record without a key.
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
    return headers_end(at, end, count)
