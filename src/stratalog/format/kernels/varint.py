"""Compiled twins of `format/varint.py`. A position below zero stands for the error."""

from __future__ import annotations

from stratalog.format.kernels.jit import part
from stratalog.format.kernels.memory import load_u8

INT_BYTES_MAX = 5
LONG_BYTES_MAX = 10


@part
def read_int(at: int, end: int) -> tuple[int, int]:
    """The zig-zag int at `at`, and the position after it, or -1 if it does not end before `end`."""
    if end - at >= 2:
        byte = load_u8(at)
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), at + 1
        more = load_u8(at + 1)
        if more < 0x80:
            raw = byte & 0x7F | more << 7
            return (raw >> 1) ^ -(raw & 1), at + 2
    raw, after = _read_any(at, end, INT_BYTES_MAX)
    raw &= 0xFFFF_FFFF
    return (raw >> 1) ^ -(raw & 1), after


@part
def read_long(at: int, end: int) -> tuple[int, int]:
    """The zig-zag long at `at`, and the position after it or -1, as for an int."""
    if end - at >= 2:
        byte = load_u8(at)
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), at + 1
        more = load_u8(at + 1)
        if more < 0x80:
            raw = byte & 0x7F | more << 7
            return (raw >> 1) ^ -(raw & 1), at + 2
    raw, after = _read_any(at, end, LONG_BYTES_MAX)
    return ((raw >> 1) & 0x7FFF_FFFF_FFFF_FFFF) ^ -(raw & 1), after


@part
def _read_any(at: int, end: int, bytes_max: int) -> tuple[int, int]:
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
