"""The first record of a batch at or after a time: the compiled twin of `log_entry.RecordSearch`.

One call checks the batch and searches it, because at a few microseconds a lookup every call into
compiled code counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from numba import types

from stratalog.format import batch as layout
from stratalog.format.kernels.crc import batch_crc
from stratalog.format.kernels.jit import inlined, kernel
from stratalog.format.kernels.memory import (
    load_be_i16,
    load_be_i32,
    load_be_i64,
    load_be_u32,
    load_u8,
)
from stratalog.format.kernels.record_fields import read_int, read_long

if TYPE_CHECKING:
    from stratalog.format.buffers import Buffer

NOT_FOUND = -1
NOT_ORDINARY = -2

_ODD_BITS = layout.CODEC_MASK | layout.LOG_APPEND_TIME_BIT
_FAR = 1 << 61


@inlined
def _is_ordinary(batch: int, end: int) -> bool:
    """Whether a whole, right, plain batch of the current magic with its own timestamps is here."""
    if end - batch < layout.HEADER_BYTES or load_u8(batch + layout.MAGIC_AT) != layout.MAGIC_2:
        return False
    size = load_be_i32(batch + layout.BATCH_LENGTH_AT) + layout.PREFIX_BYTES
    if size < layout.HEADER_BYTES or size > end - batch:
        return False
    if load_be_i16(batch + layout.ATTRIBUTES_AT) & _ODD_BITS:
        return False
    if batch_crc(batch, size) != load_be_u32(batch + layout.CRC_AT):
        return False
    return bool(abs(load_be_i64(batch + layout.BASE_TIMESTAMP_AT)) < _FAR)


@inlined
def _deltas(at: int, end: int) -> tuple[int, int, int]:
    """Both deltas of the record at `at` (timestamp, offset) and the position after it, or -1."""
    length, at = read_int(at, end)
    if at < 0 or length < 1 or length > end - at:
        return 0, 0, -1
    after = at + length
    timestamp_delta, at = read_long(at + 1, after)
    if at < 0:
        return 0, 0, -1
    offset_delta, at = read_int(at, after)
    return timestamp_delta, offset_delta, after if at >= 0 else -1


@kernel(types.UniTuple(types.int64, 3)(*[types.int64] * 4))
def first_at(batch: int, end: int, target: int, start_offset: int) -> tuple[int, int, int]:
    """Slot, offset and timestamp of the first record that is late enough, in the batch at `batch`.

    The slot is NOT_FOUND when there is none, and NOT_ORDINARY for a batch that this kernel leaves
    to others: of an old magic, compressed, with append time, corrupt, or truncated by `end`.
    """
    if not _is_ordinary(batch, end):
        return NOT_ORDINARY, 0, 0
    base_offset, base_timestamp = load_be_i64(batch), load_be_i64(batch + layout.BASE_TIMESTAMP_AT)
    at, end = (
        batch + layout.HEADER_BYTES,
        batch + load_be_i32(batch + layout.BATCH_LENGTH_AT) + layout.PREFIX_BYTES,
    )
    for slot in range(load_be_i32(batch + layout.RECORD_COUNT_AT)):
        timestamp_delta, offset_delta, at = _deltas(at, end)
        if at < 0:
            return NOT_ORDINARY, 0, 0
        timestamp, offset = base_timestamp + timestamp_delta, base_offset + offset_delta
        if timestamp >= target and offset >= start_offset:
            return slot, offset, timestamp
    return NOT_FOUND, 0, 0


def first_in(buf: Buffer, position: int, target: int, start_offset: int) -> tuple[int, int, int]:
    """`first_at` for the batch at `buf[position]`."""
    address = pa.py_buffer(buf).address
    return first_at(address + position, address + len(buf), target, start_offset)
