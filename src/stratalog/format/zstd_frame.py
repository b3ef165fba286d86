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
_RAW_BLOCK, _RLE_BLOCK, _COMPRESSED_BLOCK = 0, 1, 2
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
    if not data:
        raise CorruptRecordError("zstd: no frame")
    while at < len(data):
        magic = _u32(data, at)
        if magic & ~0xF == _SKIPPABLE_MAGIC:
            at += 8 + _u32(data, at + 4)
            _check_end(data, at)
            continue
        if magic != MAGIC:
            raise CorruptRecordError(f"zstd: frame magic is {magic:08x}", position=at)
        at, declared = _frame(data, at)
        least += declared.at_least
        most += declared.at_most
    return Declared(least, most)


def _frame(data: Buffer, at: int) -> tuple[int, Declared]:
    _check_end(data, at + 5)
    descriptor = data[at + 4]
    is_single_segment = descriptor >> 5 & 1
    size_bytes = _CONTENT_SIZE_BYTES[descriptor >> 6] or is_single_segment
    at += 5 + (1 - is_single_segment) + _DICTIONARY_ID_BYTES[descriptor & 3]
    _check_end(data, at + size_bytes)
    content = int.from_bytes(data[at : at + size_bytes], "little")
    if size_bytes == 2:  # this form counts from 256
        content += 256
    at, most = _blocks(data, at + size_bytes)
    at += 4 if descriptor & 4 else 0
    _check_end(data, at)
    if not size_bytes:
        return at, Declared(0, most)
    if content > most:
        raise CorruptRecordError(f"zstd: the blocks cannot hold {content} bytes", position=at)
    return at, Declared(content, content)


def _blocks(data: Buffer, at: int) -> tuple[int, int]:
    most = 0
    is_last = False
    while not is_last:
        _check_end(data, at + 3)
        header = data[at] | data[at + 1] << 8 | data[at + 2] << 16
        is_last = bool(header & 1)
        kind, size = header >> 1 & 3, header >> 3
        most += size if kind in (_RAW_BLOCK, _RLE_BLOCK) else _BLOCK_BYTES_MAX
        if kind not in (_RAW_BLOCK, _RLE_BLOCK, _COMPRESSED_BLOCK) or size > _BLOCK_BYTES_MAX:
            raise CorruptRecordError(f"zstd: block header is {header:06x}", position=at)
        at += 3 + (1 if kind == _RLE_BLOCK else size)
        _check_end(data, at)
    return at, most


def _u32(data: Buffer, at: int) -> int:
    _check_end(data, at + 4)
    value: int = _U32.unpack_from(data, at)[0]
    return value


def _check_end(data: Buffer, end: int) -> None:
    if end > len(data):
        raise CorruptRecordError("zstd: the frame is cut short", position=len(data))
