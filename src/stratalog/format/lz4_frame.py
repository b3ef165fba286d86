"""LZ4 frames as Kafka writes and reads them.

Layout (little-endian): magic `04 22 4D 18`, FLG, BD, an optional 8-byte content size, one header
checksum byte; then blocks of a four-byte size (top bit: stored as is), the bytes and an optional
checksum; a zero size ends the frame. Like Kafka's reader this one skips the content size, refuses
linked blocks and dictionaries, and ignores the content checksum and what follows the frame.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import CorruptRecordError, LimitExceededError
from stratalog.format.buffers import Scratch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stratalog.format.buffers import Buffer

MAGIC: Final = b"\x04\x22\x4d\x18"
WRITTEN_HEADER: Final = MAGIC + b"\x60\x40\x82"
"""Version 1, independent blocks of 64 KiB, no checksums, no content size: what Kafka writes."""

MEASURED_FROM_BYTES: Final = 16 << 20
"""If the output is larger, the rest is counted before memory is allocated for it."""

BLOCK_BYTES: Final = 64 << 10
LEVEL_DEFAULT: Final = 9  # means "fast"; every other level means "high compression"
_LEVELS = range(1, 18)
_END_MARK = bytes(4)
_SIZE = struct.Struct("<I")
_STORED_BIT = 0x8000_0000
_RATIO_MAX = 255  # a match grows by 255 bytes for each byte of its length
_BLOCK_CODES = range(4, 8)  # 64 KiB, 256 KiB, 1 MiB, 4 MiB


def decompress_into(
    data: Buffer, out: Scratch, at: int, bytes_max: int, *, trust_header: bool = False
) -> int:
    """Decompress the frame into `out` from `at` on; the position after the last byte written.

    `trust_header` skips the header checksum, which writers of magic 0 got wrong.
    """
    view = memoryview(data)
    position, block_bytes_max, has_checksums = _read_header(view, trust_header)
    blocks = list(_blocks(view, position, block_bytes_max, has_checksums))
    if has_checksums:
        end = _decompress_checked(view, blocks, out, at, bytes_max)
        if end is not None:
            return end
    start = at
    for number, block in enumerate(blocks):
        if at - start > MEASURED_FROM_BYTES and len(out.view) < at + block.bytes_max:
            total = _measured(blocks[number:], at - start, bytes_max)
            out.reserve(start, total + block_bytes_max)
        if has_checksums and xxh32(block.data) != _u32(view, block.end):
            raise CorruptRecordError("lz4: block checksum mismatch", position=block.end)
        at = (_store if block.is_stored else _decompress)(block.data, out, at, block_bytes_max)
        if at - start > bytes_max:
            raise LimitExceededError(f"decompressed records exceed {bytes_max} bytes")
    return at


def _measured(blocks: Sequence[_Block], total: int, bytes_max: int) -> int:
    """`total` and what comes out of the blocks, which are decompressed one by one to be counted."""
    scratch = Scratch()
    for block in blocks:
        read = _store if block.is_stored else _decompress
        total += read(block.data, scratch, 0, block.bytes_max)
        if total > bytes_max:
            raise LimitExceededError(f"decompressed records exceed {bytes_max} bytes")
    return total


class _Block(NamedTuple):
    data: memoryview
    end: int
    is_stored: bool
    bytes_max: int


def _blocks(
    view: memoryview, position: int, block_bytes_max: int, has_checksums: bool
) -> Iterator[_Block]:
    """Every block up to the end mark."""
    while size := _u32(view, position):
        position += _SIZE.size
        is_stored = bool(size & _STORED_BIT)
        size &= ~_STORED_BIT
        end = position + size
        if size > block_bytes_max or end > len(view):
            raise CorruptRecordError(f"lz4: block of {size} bytes", position=position)
        bytes_max = size if is_stored else min(block_bytes_max, size * _RATIO_MAX)
        yield _Block(view[position:end], end, is_stored, bytes_max)
        position = end + (_SIZE.size if has_checksums else 0)


def _decompress_checked(
    view: memoryview, blocks: Sequence[_Block], out: Scratch, at: int, bytes_max: int
) -> int | None:
    """Decompress the frame and check its checksums with the library, which is a hundred times as
    fast. None if it fails or the output may exceed the limit: then each block is checked here,
    because the library is stricter than Kafka, for example with the content checksum.
    """
    import cramjam  # noqa: PLC0415 - only compressed batches need it

    room = sum(block.bytes_max for block in blocks)
    if not blocks or room > bytes_max:
        return None
    frame = view[: blocks[-1].end + 2 * _SIZE.size + (_SIZE.size if view[4] & 0x04 else 0)]
    try:
        return at + int(cramjam.lz4.decompress_into(frame, out.reserve(at, room)[at : at + room]))
    except cramjam.DecompressionError:
        return None


def compress(data: bytes, level: int | None) -> bytes:
    """`data` as one frame of independent 64 KiB blocks; a block that does not shrink is stored."""
    import cramjam  # noqa: PLC0415 - only compressed batches need it

    chosen = LEVEL_DEFAULT if level is None else level
    if chosen not in _LEVELS:
        raise ValueError(level)
    out = bytearray(WRITTEN_HEADER)
    for at in range(0, len(data), BLOCK_BYTES):
        plain = data[at : at + BLOCK_BYTES]
        if chosen == LEVEL_DEFAULT:
            block = memoryview(cramjam.lz4.compress_block(plain, store_size=False))
        else:
            block = memoryview(
                cramjam.lz4.compress_block(
                    plain, mode="high_compression", compression=chosen, store_size=False
                )
            )
        if len(block) < len(plain):
            out += _SIZE.pack(len(block))
            out += block
        else:
            out += _SIZE.pack(len(plain) | _STORED_BIT) + plain
    out += _END_MARK
    return bytes(out)


def _read_header(view: memoryview, trust_header: bool) -> tuple[int, int, bool]:
    """Where the blocks start, how large one may be, and whether each has a checksum."""
    if bytes(view[: len(WRITTEN_HEADER)]) == WRITTEN_HEADER:
        return len(WRITTEN_HEADER), BLOCK_BYTES, False
    if len(view) < len(WRITTEN_HEADER) or bytes(view[: len(MAGIC)]) != MAGIC:
        raise CorruptRecordError("lz4: not a frame")
    flg, bd = view[4], view[5]
    if flg >> 6 != 1:
        raise CorruptRecordError(f"lz4: unsupported frame version {flg >> 6}")
    if not flg & 0x20:
        raise CorruptRecordError("lz4: linked blocks are not supported")
    block_code = bd >> 4
    if flg & 0x03 or bd & 0x8F or block_code not in _BLOCK_CODES:
        raise CorruptRecordError(f"lz4: invalid frame descriptor {flg:02x} {bd:02x}")
    checksum_at = 14 if flg & 0x08 else 6
    if len(view) <= checksum_at:
        raise CorruptRecordError("lz4: the frame header is truncated")
    if not trust_header and xxh32(view[4:checksum_at]) >> 8 & 0xFF != view[checksum_at]:
        raise CorruptRecordError("lz4: header checksum mismatch")
    return checksum_at + 1, 1 << (2 * block_code + 8), bool(flg & 0x10)


def _store(block: memoryview, out: Scratch, at: int, _bytes_max: int) -> int:
    end = at + len(block)
    out.reserve(at, len(block))[at:end] = block
    return end


def _decompress(block: memoryview, out: Scratch, at: int, block_bytes_max: int) -> int:
    import cramjam  # noqa: PLC0415 - only compressed batches need it

    room = min(block_bytes_max, len(block) * _RATIO_MAX)
    target = out.reserve(at, room)[at : at + room]
    try:
        return at + int(cramjam.lz4.decompress_block_into(block, target, output_len=room))
    except cramjam.DecompressionError as error:
        raise CorruptRecordError(f"lz4: {error}") from None


def _u32(view: memoryview, at: int) -> int:
    if len(view) - at < _SIZE.size:
        raise CorruptRecordError("lz4: the frame is truncated", position=at)
    value: int = _SIZE.unpack_from(view, at)[0]
    return value


# xxHash32 with seed 0, which guards lz4 frame headers and, rarely, blocks.

_P1, _P2, _P3, _P4, _P5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1
_MASK = 0xFFFF_FFFF
_STRIPE = struct.Struct("<4I")
_WORD = struct.Struct("<I")


def xxh32(data: Buffer) -> int:
    """The 32-bit xxHash of `data`."""
    view = memoryview(data)
    body = len(view) - len(view) % _STRIPE.size
    value = _stripes(view[:body]) if body else _P5
    value = (value + len(view)) & _MASK
    tail = view[body:]
    words = len(tail) - len(tail) % _WORD.size
    for (word,) in _WORD.iter_unpack(tail[:words]):
        value = _rotate((value + word * _P3) & _MASK, 17) * _P4 & _MASK
    for byte in tail[words:]:
        value = _rotate((value + byte * _P5) & _MASK, 11) * _P1 & _MASK
    value = (value ^ value >> 15) * _P2 & _MASK
    value = (value ^ value >> 13) * _P3 & _MASK
    return value ^ value >> 16


def _stripes(view: memoryview) -> int:
    a, b, c, d = (_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK
    for w, x, y, z in _STRIPE.iter_unpack(view):
        a = _rotate((a + w * _P2) & _MASK, 13) * _P1 & _MASK
        b = _rotate((b + x * _P2) & _MASK, 13) * _P1 & _MASK
        c = _rotate((c + y * _P2) & _MASK, 13) * _P1 & _MASK
        d = _rotate((d + z * _P2) & _MASK, 13) * _P1 & _MASK
    return (_rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)) & _MASK


def _rotate(value: int, by: int) -> int:
    return (value << by | value >> (32 - by)) & _MASK
