"""The outside of zstd frames: the compiled twin of `format/zstd_frame.py`."""

from __future__ import annotations

from typing import Any

from numba import types

from stratalog.format.batch import CODEC_MASK, HEADER_BYTES
from stratalog.format.kernels.jit import kernel, part
from stratalog.format.kernels.layout import BATCHES
from stratalog.format.kernels.memory import load_le_u16, load_le_u32, load_u8

FAILED = -1

_MAGIC = 0xFD2FB528
_ZSTD = 4
_BLOCK_BYTES_MAX = 128 << 10
_RLE_BLOCK, _COMPRESSED_BLOCK, _RESERVED = 1, 2, 3


@part
def _header(at: int, end: int) -> tuple[int, int, bool]:
    """Where the blocks start or FAILED, the declared content or -1, whether a checksum follows."""
    if end - at < 5 or load_le_u32(at) != _MAGIC:
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


@part
def _frame(at: int, end: int) -> tuple[int, int]:
    """What one frame that fills [at, end) holds at least and at most; FAILED for anything else."""
    at, content, has_checksum = _header(at, end)
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
    `out`. FAILED where the payload is no single whole frame: `zstd_frame.check` knows more."""
    for i in range(len(batches)):
        batch = batches[i]
        out[i, 0] = FAILED
        if batch.attributes & CODEC_MASK == _ZSTD:
            first = buf + batch.position
            least, most = _frame(first + HEADER_BYTES, first + batch.size_bytes)
            out[i, 0] = least
            out[i, 1] = most
