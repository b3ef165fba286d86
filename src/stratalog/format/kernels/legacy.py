"""Decodes messages of magic 0 and 1 into columns: compiled twin of `format/legacy.py`, without
sets.

Every message is one record. What a compressed set holds is left to the readable decoder.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from stratalog.format.batch import CODEC_MASK, MAGIC_2, MAGIC_AT, NO_TIMESTAMP
from stratalog.format.kernels.jit import inlined, kernel, not_inlined
from stratalog.format.kernels.memory import (
    BATCHES,
    load_be_i32,
    load_le_i64,
    load_slot,
    load_u8,
    store_i32,
    store_i64,
    store_slot,
)
from stratalog.format.kernels.records import (
    BATCH_INDEX,
    HEADERS,
    KEY,
    KEY_NULLS,
    KEY_ROOM,
    OFFSET,
    TIMESTAMP,
    VALUE,
    VALUE_NULLS,
    VALUE_ROOM,
    close,
    column_of,
    put_binary,
)
from stratalog.format.legacy import HEADER_0_BYTES, HEADER_1_BYTES

_POLYNOMIAL = 0xEDB88320  # IEEE, bits reversed


def _slices() -> np.ndarray[Any, np.dtype[np.int64]]:
    """[k, v]: the sum of byte v followed by k zero bytes."""
    sums = np.arange(256, dtype=np.int64)
    for _ in range(8):
        sums = np.where(sums & 1, sums >> 1 ^ _POLYNOMIAL, sums >> 1)
    rows = [sums]
    for _ in range(7):
        rows.append(sums[rows[-1] & 0xFF] ^ rows[-1] >> 8)
    return np.stack(rows)


_SLICES = _slices()


@not_inlined
def crc32_at(at: int, size: int) -> int:
    """The CRC-32 (IEEE) of the `size` bytes at address `at`: no CPU has an instruction for it."""
    so_far = 0xFFFF_FFFF
    end = at + size
    while end - at >= 8:
        data = load_le_i64(at) ^ so_far
        so_far = 0
        for k in range(8):
            so_far ^= _SLICES[7 - k, data >> (8 * k) & 0xFF]
        at += 8
    while at < end:
        so_far = _SLICES[0, (so_far ^ load_u8(at)) & 0xFF] ^ so_far >> 8
        at += 1
    return so_far ^ 0xFFFF_FFFF


@inlined
def _is_crc_valid(buf: int, message: Any) -> bool:
    stored: int = message.crc
    return crc32_at(buf + message.position + MAGIC_AT, message.size_bytes - MAGIC_AT) == stored


@kernel(types.void(types.int64, BATCHES, types.boolean[::1]))
def check(buf: int, batches: Any, out: Any) -> None:
    """Whether each legacy entry of the bytes at address `buf` is right; others are left alone."""
    for i in range(len(batches)):
        if batches[i].magic < MAGIC_2:
            out[i] = _is_crc_valid(buf, batches[i])


@inlined
def _binary(at: int, end: int, index: int, used: int, column: Any) -> tuple[int, int]:
    """A key or value behind its four bytes of length, as `records.put_binary`; the position is -1
    if it does not end before `end`."""
    if at < 0 or end - at < 4:
        return -1, used
    length = load_be_i32(at)
    if length > end - at - 4:
        return -1, used
    return put_binary(at + 4, length, index, used, column)


@inlined
def _numbers(slots: int, index: int, message: Any) -> None:
    if load_slot(slots, OFFSET):
        store_i64(load_slot(slots, OFFSET) + 8 * index, message.last_offset)
    if load_slot(slots, TIMESTAMP):
        timestamp = message.max_timestamp if message.magic == 1 else NO_TIMESTAMP
        store_i64(load_slot(slots, TIMESTAMP) + 8 * index, timestamp)
    if load_slot(slots, HEADERS):
        store_i32(load_slot(slots, HEADERS) + 4 * index, 0)


@kernel(types.int64(types.int64, BATCHES, types.int64, types.boolean))
def decode(buf: int, messages: Any, slots: int, checks_crc: bool) -> int:
    """Decode plain messages at address `buf` as `records.decode` does batches, by its slots."""
    key_bytes = value_bytes = 0
    for i in range(len(messages)):
        message = messages[i]
        store_slot(slots, BATCH_INDEX, i)
        at = buf + message.position
        end = at + message.size_bytes
        if message.last_offset < 0 or message.attributes & CODEC_MASK:
            return -1
        if checks_crc and not _is_crc_valid(buf, message):
            return -1
        _numbers(slots, i, message)
        at += HEADER_0_BYTES if message.magic == 0 else HEADER_1_BYTES
        key = column_of(slots, KEY, KEY_ROOM, KEY_NULLS, end)
        value = column_of(slots, VALUE, VALUE_ROOM, VALUE_NULLS, end)
        at, key_bytes = _binary(at, end, i, key_bytes, key)
        at, value_bytes = _binary(at, end, i, value_bytes, value)
        if at < 0:
            return -1
    close(slots, len(messages), key_bytes, value_bytes)
    return len(messages)
