"""Snappy blocks and xerial streams, decompressed: compiled, for what `compression.py` also reads.

Whatever is not understood here is left to that module.
"""

from __future__ import annotations

from stratalog.format.kernels.jit import outlined, part
from stratalog.format.kernels.memory import (
    copy,
    copy_back,
    load_be_i32,
    load_be_i64,
    load_le_u16,
    load_le_u32,
    load_u8,
)

FAILED = -1

_XERIAL_MAGIC = 0x82534E4150505900 - (1 << 64)  # as a signed long
_XERIAL_HEADER_BYTES = 16
_LITERAL, _COPY_1, _COPY_2 = 0, 1, 2


@outlined
def _declared_size(at: int, end: int) -> tuple[int, int]:
    size = shift = 0
    while at < end and shift < 35:
        byte = load_u8(at)
        at += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return size, at
        shift += 7
    return 0, FAILED


@part
def _literal(tag: int, at: int, end: int) -> tuple[int, int]:
    """How long the literal is and where it starts, or FAILED."""
    length = (tag >> 2) + 1
    if length <= 60:
        return length, at
    extra = length - 60
    if end - at < extra:
        return 0, FAILED
    length = 0
    for i in range(extra):
        length |= load_u8(at + i) << (8 * i)
    return length + 1, at + extra


@part
def _back_reference(tag: int, at: int, end: int) -> tuple[int, int, int]:
    """Length, distance, and the position after them or FAILED."""
    kind = tag & 3
    extra = 4 if kind == 3 else kind
    if end - at < extra:
        return 0, 0, FAILED
    if kind == _COPY_1:
        return (tag >> 2 & 7) + 4, (tag >> 5) << 8 | load_u8(at), at + 1
    distance = load_le_u16(at) if kind == _COPY_2 else load_le_u32(at)
    return (tag >> 2) + 1, distance, at + extra


@outlined
def _block(at: int, end: int, out: int, out_end: int) -> int:
    """Decompress one block; the address after what came out, or FAILED. May write slack."""
    size, at = _declared_size(at, end)
    if at < 0 or size > out_end - out:
        return FAILED
    out_start = out
    out_end = out + size
    while at < end:
        tag = load_u8(at)
        at += 1
        if tag & 3 == _LITERAL:
            length, at = _literal(tag, at, end)
            if at < 0 or length > end - at or length > out_end - out:
                return FAILED
            copy(out, at, length, end)
            at += length
        else:
            length, distance, at = _back_reference(tag, at, end)
            if at < 0 or length > out_end - out or distance == 0 or distance > out - out_start:
                return FAILED
            copy_back(out, distance, length)
        out += length
    return out if out == out_end else FAILED


@outlined
def stream(at: int, end: int, out: int, out_end: int) -> int:
    """Decompress the xerial stream or raw block in [at, end); the address after what came out, or
    FAILED. Reads below `end` only and may write COPY_SLACK_BYTES after `out_end`."""
    if end - at < _XERIAL_HEADER_BYTES or load_be_i64(at) != _XERIAL_MAGIC:
        return _block(at, end, out, out_end)
    at += _XERIAL_HEADER_BYTES
    while at < end:
        if end - at < 4:
            return FAILED
        size = load_be_i32(at)
        at += 4
        if size <= 0 or size > end - at:
            return FAILED
        out = _block(at, at + size, out, out_end)
        if out < 0:
            return FAILED
        at += size
    return out
