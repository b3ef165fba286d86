"""LZ4 frames, decompressed: the compiled twin of `format/lz4_frame.py`.

It accepts no frame that the readable one refuses, save for blocks that break LZ4's rules about
their last bytes; whatever it does not understand it leaves to that one.
"""

from __future__ import annotations

from typing import Any

from stratalog.format.kernels.jit import outlined, part
from stratalog.format.kernels.memory import (
    copy,
    copy_16,
    copy_back,
    load_le_u16,
    load_le_u32,
    load_u8,
    memcpy,
)

FAILED = -1

_MAGIC = 0x184D2204
_VERSION_MASK, _VERSION_1 = 0xC0, 0x40
_INDEPENDENT_BIT, _CHECKSUMS_BIT, _SIZE_BIT, _RESERVED_BITS = 0x20, 0x10, 0x08, 0x03
_STORED_BIT = 0x8000_0000
_RATIO_MAX = 255

_MASK = 0xFFFF_FFFF
_P1, _P2, _P3, _P4, _P5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1


@part
def _rotate(value: int, by: int) -> int:
    return (value << by | value >> (32 - by)) & _MASK


@part
def _lane(lane: int, at: int) -> int:
    return _rotate((lane + load_le_u32(at) * _P2) & _MASK, 13) * _P1 & _MASK


@outlined
def xxh32(at: int, size: int) -> int:
    """The compiled twin of `format/xxhash.py`."""
    end = at + size
    value = _P5
    if size >= 16:
        a, b, c, d = (_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK
        while end - at >= 16:
            a, b, c, d = _lane(a, at), _lane(b, at + 4), _lane(c, at + 8), _lane(d, at + 12)
            at += 16
        value = (_rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)) & _MASK
    value = (value + size) & _MASK
    while end - at >= 4:
        value = _rotate((value + load_le_u32(at) * _P3) & _MASK, 17) * _P4 & _MASK
        at += 4
    while at < end:
        value = _rotate((value + load_u8(at) * _P5) & _MASK, 11) * _P1 & _MASK
        at += 1
    value = (value ^ value >> 15) * _P2 & _MASK
    value = (value ^ value >> 13) * _P3 & _MASK
    return value ^ value >> 16


@outlined
def _lengthened(length: int, at: int, end: int) -> tuple[int, int]:
    """A length of 15 goes on in the next bytes, up to one that is not 255."""
    byte = 255
    while byte == 255:
        if at >= end:
            return length, FAILED
        byte = load_u8(at)
        length += byte
        at += 1
    return length, at


@part
def _literals(token: int, at: int, end: int, out: int, out_end: int) -> tuple[int, int]:
    """Copy the literals of a sequence; the addresses after them in input and output, or FAILED."""
    length = token >> 4
    if length < 15 and end - at >= 16 and out_end - out >= 16:
        copy_16(out, at)
        return at + length, out + length
    if length == 15:
        length, at = _lengthened(length, at, end)
    if at < 0 or length > end - at or length > out_end - out:
        return FAILED, out
    copy(out, at, length, end)
    return at + length, out + length


@part
def _match(token: int, at: int, end: int, out: int, out_end: int) -> tuple[int, int, int]:
    """How long a match is, how far back it lies, and the position after it or FAILED."""
    if end - at < 2:
        return 0, 0, FAILED
    distance = load_le_u16(at)
    at += 2
    length = token & 15
    if length == 15:
        length, at = _lengthened(length, at, end)
    length += 4
    if length > out_end - out or distance == 0:
        return 0, 0, FAILED
    return length, distance, at


@outlined
def _block(at: int, end: int, out: int, out_end: int) -> int:
    """Decompress one block; the address after what came out, or FAILED. May write slack."""
    out_start = out
    while at < end:
        token = load_u8(at)
        at, out = _literals(token, at + 1, end, out, out_end)
        if at < 0:
            return FAILED
        if at == end:
            return out
        length, distance, at = _match(token, at, end, out, out_end)
        if at < 0 or distance > out - out_start:
            return FAILED
        if distance >= 16 and length <= 32:
            copy_16(out, out - distance)
            copy_16(out + 16, out + 16 - distance)
        else:
            copy_back(out, distance, length)
        out += length
    return FAILED


@outlined
def _header(at: int, end: int) -> tuple[int, int, bool]:
    """Where the blocks start or FAILED, how large one may be, whether each has a checksum."""
    if end - at < 7 or load_le_u32(at) != _MAGIC:
        return FAILED, 0, False
    flags, size_code = load_u8(at + 4), load_u8(at + 5) >> 4
    checksum_at = at + (14 if flags & _SIZE_BIT else 6)
    is_known = flags & _VERSION_MASK == _VERSION_1 and flags & _RESERVED_BITS == 0
    if not is_known or not flags & _INDEPENDENT_BIT or checksum_at >= end:
        return FAILED, 0, False
    if load_u8(at + 5) & 0x8F or size_code < 4:
        return FAILED, 0, False
    if xxh32(at + 4, checksum_at - at - 4) >> 8 & 0xFF != load_u8(checksum_at):
        return FAILED, 0, False
    return checksum_at + 1, 1 << (2 * size_code + 8), flags & _CHECKSUMS_BIT != 0


@part
def _is_checksum_right(at: int, block_end: int, end: int) -> bool:
    if end - block_end < 4:
        return False
    stored: int = load_le_u32(block_end)
    return stored == xxh32(at, block_end - at)


@part
def _stored_or_compressed(at: int, end: int, out: int, out_end: int, is_stored: bool) -> int:
    if not is_stored:
        return _block(at, end, out, out_end)
    if end - at > out_end - out:
        return FAILED
    memcpy(out, at, end - at)
    return out + (end - at)


@outlined
def frame(at: int, end: int, out: int, out_end: int) -> int:
    """Decompress the frame in [at, end); the address after what came out, or FAILED.

    Reads below `end` only and may write COPY_SLACK_BYTES after `out_end`.
    """
    at, block_bytes_max, has_checksums = _header(at, end)
    while at >= 0 and end - at >= 4:
        size: Any = load_le_u32(at)
        if size == 0:
            return out
        at += 4
        is_stored = size & _STORED_BIT != 0
        size &= ~_STORED_BIT
        if size > block_bytes_max or size > end - at:
            return FAILED
        block_end = at + size
        if has_checksums and not _is_checksum_right(at, block_end, end):
            return FAILED
        room_end = min(out_end, out + block_bytes_max)
        out = _stored_or_compressed(at, block_end, out, room_end, is_stored)
        if out < 0:
            return FAILED
        at = block_end + (4 if has_checksums else 0)
    return FAILED
