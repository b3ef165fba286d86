"""Validates batches of clients that are compressed with lz4 or snappy.

A kernel of its own, because the decompressors take seconds to compile on a first start and most
logs have one kind of batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from numba import types

from stratalog.format.batch import ATTRIBUTES_AT, CODEC_MASK, HEADER_BYTES, RECORD_COUNT_AT
from stratalog.format.kernels.decompress import decompress_payload
from stratalog.format.kernels.jit import kernel
from stratalog.format.kernels.memory import COPY_SLACK_BYTES, load_be_i16, load_be_i32, load_slot
from stratalog.format.kernels.validate import NEXT_OFFSET, assign_in_place, intact_size

if TYPE_CHECKING:
    from stratalog.format.kernels.validate import Terms


@kernel(types.int64(*[types.int64] * 6))
def _validate(buf: int, buf_bytes: int, room: int, room_bytes: int, terms: int, count: int) -> int:
    """`validate_compressed` on addresses."""
    batch, next_offset = buf, load_slot(terms, NEXT_OFFSET)
    for i in range(count):
        size = intact_size(batch, buf + buf_bytes, terms, i)
        if not size:
            return i
        at, stop = batch + HEADER_BYTES, batch + size
        codec_id = load_be_i16(batch + ATTRIBUTES_AT) & CODEC_MASK
        if codec_id:
            stop = decompress_payload(codec_id, at, stop, room, room + room_bytes)
            at = room
        if stop < 0 or not assign_in_place(batch, size, at, stop, terms, next_offset):
            return i
        next_offset += load_be_i32(batch + RECORD_COUNT_AT)
        batch += size
    return count


def validate_compressed(
    buf: bytearray | memoryview, terms: Terms, count: int, room: memoryview
) -> int:
    """What `validate` does, for batches that are compressed with lz4 or snappy, or not at all.

    `room` is memory for the records of one batch. A batch whose records do not fit is not accepted,
    like one that only `compression.py` understands.
    """
    batches, scratch = pa.py_buffer(buf), pa.py_buffer(room)
    room_bytes = max(0, len(room) - COPY_SLACK_BYTES)
    return _validate(batches.address, len(buf), scratch.address, room_bytes, terms.address, count)
