"""Snappy blocks and xerial streams, decompressed: compiled, for what `compression.py` also reads.

Whatever is not understood here is left to that module.
"""

from __future__ import annotations

from typing import Any

from numba import types

from stratalog.format.batch import CODEC_MASK, HEADER_BYTES
from stratalog.format.kernels.jit import inlined, kernel, not_inlined
from stratalog.format.kernels.memory import (
    BATCHES,
    copy,
    copy_16,
    copy_back,
    load_be_i32,
    load_be_i64,
    load_le_u16,
    load_le_u32,
    load_u8,
    memcpy,
)
from stratalog.format.kernels.record_fields import INT_BYTES_MAX, read_unsigned
from stratalog.format.record import RECORD_BYTES_MIN

FAILED = -1

_XERIAL_MAGIC = 0x82534E4150505900 - (1 << 64)  # as a signed long
_XERIAL_HEADER_BYTES = 16
_LITERAL, _COPY_1, _COPY_2 = 0, 1, 2


@inlined
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


@inlined
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


@not_inlined
def _snappy_block(at: int, end: int, out: int, out_end: int) -> int:
    """Decompress one block; the address after what came out, or FAILED. May write slack."""
    size, at = read_unsigned(at, end, INT_BYTES_MAX)
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


@not_inlined
def snappy_stream(at: int, end: int, out: int, out_end: int) -> int:
    """Decompress the xerial stream or raw block in [at, end); the address after what came out, or
    FAILED. Reads below `end` only and may write COPY_SLACK_BYTES after `out_end`."""
    if end - at < _XERIAL_HEADER_BYTES or load_be_i64(at) != _XERIAL_MAGIC:
        return _snappy_block(at, end, out, out_end)
    at += _XERIAL_HEADER_BYTES
    while at < end:
        if end - at < 4:
            return FAILED
        size = load_be_i32(at)
        at += 4
        if size <= 0 or size > end - at:
            return FAILED
        out = _snappy_block(at, at + size, out, out_end)
        if out < 0:
            return FAILED
        at += size
    return out


# LZ4 frames, decompressed: the compiled twin of `format/lz4_frame.py`.
#
# It accepts no frame that the readable one rejects; whatever it does not understand it leaves to
# that one. LZ4's rules about the end of a block are those of its reference implementation: the last
# five bytes of the output are literals, and so is everything from twelve bytes before the end of
# the room on.

_LZ4_MAGIC = 0x184D2204
_VERSION_MASK, _VERSION_1 = 0xC0, 0x40
_INDEPENDENT_BIT, _CHECKSUMS_BIT, _SIZE_BIT, _RESERVED_BITS = 0x20, 0x10, 0x08, 0x03
_STORED_BIT = 0x8000_0000
_RATIO_MAX = 255
_LAST_LITERALS = 5
_LAST_SEQUENCE_BYTES_MIN = 2 + 1 + _LAST_LITERALS  # a distance, the last token, the last literals
_MATCH_FREE_BYTES = 12

_MASK = 0xFFFF_FFFF
_P1, _P2, _P3, _P4, _P5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1


@inlined
def _rotate(value: int, by: int) -> int:
    return (value << by | value >> (32 - by)) & _MASK


@inlined
def _lane(lane: int, at: int) -> int:
    return _rotate((lane + load_le_u32(at) * _P2) & _MASK, 13) * _P1 & _MASK


@not_inlined
def xxh32(at: int, size: int) -> int:
    """The compiled twin of `xxh32` in `format/lz4_frame.py`."""
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


@not_inlined
def _lengthened(length: int, at: int, end: int) -> tuple[int, int]:
    """A length of 15 continues in the next bytes, up to one that is not 255."""
    byte = 255
    while byte == 255:
        if at >= end:
            return length, FAILED
        byte = load_u8(at)
        length += byte
        at += 1
    return length, at


@inlined
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


@inlined
def _match(token: int, at: int, end: int, out: int, out_end: int) -> tuple[int, int, int]:
    """How long a match is, how far back it lies, and the position after it or FAILED."""
    if end - at < _LAST_SEQUENCE_BYTES_MIN or out_end - out < _MATCH_FREE_BYTES:
        return 0, 0, FAILED
    distance = load_le_u16(at)
    at += 2
    length = token & 15
    if length == 15:
        length, at = _lengthened(length, at, end)
        if end - at < _LAST_LITERALS:
            return 0, 0, FAILED
    length += 4
    if length > out_end - out - _LAST_LITERALS or distance == 0:
        return 0, 0, FAILED
    return length, distance, at


@not_inlined
def _lz4_block(at: int, end: int, out: int, out_end: int) -> int:
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


@not_inlined
def _lz4_header(at: int, end: int) -> tuple[int, int, bool]:
    """Where the blocks start or FAILED, how large one may be, whether each has a checksum."""
    if end - at < 7 or load_le_u32(at) != _LZ4_MAGIC:
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


@inlined
def _is_checksum_right(at: int, block_end: int, end: int) -> bool:
    if end - block_end < 4:
        return False
    stored: int = load_le_u32(block_end)
    return stored == xxh32(at, block_end - at)


@inlined
def _stored_or_compressed(at: int, end: int, out: int, out_end: int, is_stored: bool) -> int:
    if not is_stored:
        return _lz4_block(at, end, out, out_end)
    if end - at > out_end - out:
        return FAILED
    memcpy(out, at, end - at)
    return out + (end - at)


@not_inlined
def lz4_frame(at: int, end: int, out: int, out_end: int) -> int:
    """Decompress the frame in [at, end); the address after what came out, or FAILED.

    Reads below `end` only and may write COPY_SLACK_BYTES after `out_end`.
    """
    at, block_bytes_max, has_checksums = _lz4_header(at, end)
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
        room_end = min(out_end, out + min(block_bytes_max, size * _RATIO_MAX))
        out = _stored_or_compressed(at, block_end, out, room_end, is_stored)
        if out < 0:
            return FAILED
        at = block_end + (4 if has_checksums else 0)
    return FAILED


# The structure of zstd frames: the compiled twin of `compression.check_zstd_frames`.

_ZSTD_MAGIC = 0xFD2FB528
_ZSTD = 4
_BLOCK_BYTES_MAX = 128 << 10
_RLE_BLOCK, _COMPRESSED_BLOCK, _RESERVED = 1, 2, 3


@inlined
def _zstd_header(at: int, end: int) -> tuple[int, int, bool]:
    """Where the blocks start or FAILED, the declared content or -1, whether a checksum follows."""
    if end - at < 5 or load_le_u32(at) != _ZSTD_MAGIC:
        return FAILED, 0, False
    descriptor = load_u8(at + 4)
    is_single_segment = descriptor >> 5 & 1
    size_code = descriptor >> 6
    size_bytes = 1 << size_code if size_code else is_single_segment
    dictionary_bytes = (1 << (descriptor & 3)) >> 1
    at += 6 - is_single_segment + dictionary_bytes
    has_checksum = descriptor & 4 != 0
    if size_bytes == 0:
        return at, -1, has_checksum
    if end - at < size_bytes or size_bytes == 8:
        return FAILED, 0, False
    content = load_u8(at)
    if size_bytes == 2:
        content = load_le_u16(at) + 256
    if size_bytes == 4:
        content = load_le_u32(at)
    return at + size_bytes, content, has_checksum


@inlined
def _frame(at: int, end: int) -> tuple[int, int]:
    """What one frame that fills [at, end) holds at least and at most; FAILED for anything else."""
    at, content, has_checksum = _zstd_header(at, end)
    most = 0
    is_last = at < 0
    while not is_last:
        if end - at < 3:
            return FAILED, 0
        header = load_le_u16(at) | load_u8(at + 2) << 16
        kind = header >> 1 & 3
        size = header >> 3
        is_last = header & 1 != 0
        if kind == _RESERVED or size > _BLOCK_BYTES_MAX:
            return FAILED, 0
        at += 3 + (1 if kind == _RLE_BLOCK else size)
        most += _BLOCK_BYTES_MAX if kind == _COMPRESSED_BLOCK else size
    if at + (4 if has_checksum else 0) != end or content > most:
        return FAILED, 0
    return max(content, 0), most if content < 0 else content


@kernel(types.void(types.int64, BATCHES, types.int64[:, ::1]))
def declare(buf: int, batches: Any, out: Any) -> None:
    """What the zstd frame of each batch at address `buf` holds, at least and at most, in rows of
    `out`. FAILED if the payload is not a single complete frame: `check_zstd_frames` knows more."""
    for i in range(len(batches)):
        batch = batches[i]
        out[i, 0] = FAILED
        if batch.attributes & CODEC_MASK == _ZSTD:
            first = buf + batch.position
            least, most = _frame(first + HEADER_BYTES, first + batch.size_bytes)
            out[i, 0] = least
            out[i, 1] = most


# Decompression of runs of batches, for the codecs that have kernels.

_NONE, _SNAPPY, _LZ4 = 0, 2, 3


@not_inlined
def decompress_payload(codec_id: int, at: int, end: int, out: int, out_end: int) -> int:
    """Decompress the records in [at, end); the address after what came out, or FAILED for codecs
    that have no kernel and whatever the kernels do not understand.

    Reads below `end` only and may write COPY_SLACK_BYTES after `out_end`.
    """
    if codec_id == _LZ4:
        return lz4_frame(at, end, out, out_end)
    if codec_id == _SNAPPY:
        return snappy_stream(at, end, out, out_end)
    if codec_id != _NONE or end - at > out_end - out:
        return FAILED
    memcpy(out, at, end - at)
    return out + (end - at)


@kernel(types.int64(types.int64, BATCHES, *[types.int64] * 3, types.int64[::1]))
def expand(buf: int, batches: Any, out: int, start: int, out_bytes: int, ends: Any) -> int:
    """Put the plain records of batches at address `buf` side by side at address `out`, from `start`
    on. Returns how many batches it did and notes in `ends` where each ended.

    It stops at a batch it has no kernel or no room for, or that seems bad: the caller's to judge.
    Reads the batches only; writes `out_bytes` bytes at `out` and up to COPY_SLACK_BYTES more.
    """
    at = out + start
    for i in range(len(batches)):
        batch = batches[i]
        if batch.record_count > 0:
            first = buf + batch.position
            codec_id = batch.attributes & CODEC_MASK
            end = decompress_payload(
                codec_id, first + HEADER_BYTES, first + batch.size_bytes, at, out + out_bytes
            )
            if end < 0 or end - at < batch.record_count * RECORD_BYTES_MIN:
                return i
            at = end
        ends[i] = at - out
    return len(batches)
