"""The outside of a zstd frame: enough to know that it is whole and how much it may hold.

Block headers are walked, block contents are not looked into. Layout (RFC 8878, little-endian):
magic, frame header (descriptor, window, dictionary id, content size: all but the first optional),
blocks of a three-byte header and content, an optional four-byte checksum.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import CorruptRecordError

if TYPE_CHECKING:
    from stratalog.format.buffers import Buffer

MAGIC: Final = 0xFD2FB528
_SKIPPABLE_MAGIC = 0x184D2A50  # the low four bits are free
_U32 = struct.Struct("<I")
_BLOCK_BYTES_MAX = 128 << 10
_RLE_BLOCK, _COMPRESSED_BLOCK, _RESERVED = 1, 2, 3  # 0 is stored as is
_DICTIONARY_ID_BYTES = (0, 1, 2, 4)
_CONTENT_SIZE_BYTES = (0, 2, 4, 8)


class Declared(NamedTuple):
    """What the frames say about the size of their content, without decompressing."""

    at_least: int
    """The declared content sizes; 0 for frames that declare none."""
    at_most: int


def check(data: Buffer) -> Declared:
    """Walk all frames of `data`; raise unless the last one ends where the bytes do."""
    at = least = most = 0
    end = len(data)
    try:
        while at < end or not end:
            (magic,) = _U32.unpack_from(data, at)
            if magic == MAGIC:
                at, frame_least, frame_most = _frame(data, at + _U32.size)
                least += frame_least
                most += frame_most
            elif magic & ~0xF == _SKIPPABLE_MAGIC:
                at += 2 * _U32.size + _U32.unpack_from(data, at + _U32.size)[0]
            else:
                raise CorruptRecordError(f"zstd: frame magic is {magic:08x}", position=at)
    except (struct.error, IndexError):
        at = end + 1
    if at > end:
        raise CorruptRecordError("zstd: the frame is cut short", position=end)
    return Declared(least, most)


def _frame(data: Buffer, at: int) -> tuple[int, int, int]:
    """Where the frame whose descriptor is at `at` ends, and what it holds at least and at most.

    The end may lie behind the bytes at hand.
    """
    descriptor = data[at]
    is_single_segment = descriptor >> 5 & 1
    size_bytes = _CONTENT_SIZE_BYTES[descriptor >> 6] or is_single_segment
    at += 2 - is_single_segment + _DICTIONARY_ID_BYTES[descriptor & 3]
    content = int.from_bytes(data[at : at + size_bytes], "little")
    if size_bytes == 2:  # this form counts from 256
        content += 256
    at += size_bytes
    most = 0
    is_last = 0
    while not is_last:
        header = data[at] | data[at + 1] << 8 | data[at + 2] << 16
        is_last, kind, size = header & 1, header >> 1 & 3, header >> 3
        if kind == _RESERVED or size > _BLOCK_BYTES_MAX:
            raise CorruptRecordError(f"zstd: block header is {header:06x}", position=at)
        at += 3 + (1 if kind == _RLE_BLOCK else size)
        most += _BLOCK_BYTES_MAX if kind == _COMPRESSED_BLOCK else size
    if content > most:
        raise CorruptRecordError(f"zstd: the blocks cannot hold {content} bytes", position=at)
    at += 4 if descriptor & 4 else 0
    return at, content, content if size_bytes else most
