"""Zig-zag varints, as Kafka's ByteUtils writes them.

Seven bits a byte, least significant group first, high bit set on every byte but the last. Signed
values are zig-zagged first (0, -1, 1, -2 become 0, 1, 2, 3), so small negatives stay short. An int
takes at most 5 bytes, a long at most 10; more is corruption.

These are the readable scalar functions; `kernels/record_fields.py` has their compiled twins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.errors import CorruptRecordError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stratalog.format.buffers import Buffer

INT_BYTES_MAX = 5
LONG_BYTES_MAX = 10
_INT_MASK = 0xFFFF_FFFF
_LONG_MASK = 0xFFFF_FFFF_FFFF_FFFF
_LONG_SIGN = 1 << 63


def read_unsigned(
    buf: Buffer, at: int, end: int, bytes_max: int = INT_BYTES_MAX
) -> tuple[int, int]:
    """The plain (not zig-zagged) varint at `at`, and the position after it."""
    value = shift = 0
    for position in range(at, min(end, at + bytes_max)):
        byte = buf[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    if end - at < bytes_max:
        raise CorruptRecordError("varint runs past the end of its record", position=at)
    raise CorruptRecordError(f"varint is longer than {bytes_max} bytes", position=at)


def _zigzag_reader(bytes_max: int, mask: int) -> Callable[[Buffer, int, int], tuple[int, int]]:
    """A function that reads zig-zag numbers of up to `bytes_max` bytes. Like Java, it drops surplus
    high bits."""

    def read(buf: Buffer, at: int, end: int) -> tuple[int, int]:
        if at < end and buf[at] < 0x80:  # one byte: nearly every length and delta
            return (buf[at] >> 1) ^ -(buf[at] & 1), at + 1
        raw, after = read_unsigned(buf, at, end, bytes_max)
        raw &= mask
        return (raw >> 1) ^ -(raw & 1), after

    return read


read_int = _zigzag_reader(INT_BYTES_MAX, _INT_MASK)
"""`read_int(buf, at, end)`: the int at `at`, and the position after it, which is at most `end`."""
read_long = _zigzag_reader(LONG_BYTES_MAX, _LONG_MASK)
"""The same for a long."""


def write_unsigned(out: bytearray, value: int) -> None:
    """Append a plain varint. `value` is not negative."""
    while value >= 0x80:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def write_int(out: bytearray, value: int) -> None:
    """Append a zig-zag int. `value` fits 32 bits: a larger one would lose its high bits."""
    write_unsigned(out, _zigzag(value, 31) & _INT_MASK)


def write_long(out: bytearray, value: int) -> None:
    """Append a zig-zag long. Like a Java long, a larger `value` wraps around."""
    write_unsigned(out, _zigzag(wrapped_long(value), 63) & _LONG_MASK)


def size_of_int(value: int) -> int:
    """Bytes that `write_int` would append."""
    return _size_of(_zigzag(value, 31) & _INT_MASK)


def size_of_long(value: int) -> int:
    """Bytes that `write_long` would append."""
    return _size_of(_zigzag(wrapped_long(value), 63) & _LONG_MASK)


def wrapped_long(value: int) -> int:
    """`value` as a Java long holds it: sums past 63 bits come back from the other end.

    Timestamps are a base plus a delta. Corrupt ones overflow in Java, and both decoders must
    return the number that Kafka's consumers see.
    """
    if -_LONG_SIGN <= value < _LONG_SIGN:
        return value
    return ((value + _LONG_SIGN) & _LONG_MASK) - _LONG_SIGN


def _zigzag(value: int, sign_bit: int) -> int:
    return (value << 1) ^ (value >> sign_bit)


def _size_of(raw: int) -> int:
    return max(1, (raw.bit_length() + 6) // 7)
