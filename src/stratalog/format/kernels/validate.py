"""Validates batches of clients, and assigns offsets and timestamps, in one pass over each.

The compiled twin of `log/validation.py` for the one case that matters: a complete magic-2 batch
that is stored as it came. A batch that the kernel does not accept stays as it is, for the readable
twin to accept in another way or to reject with a reason.

What the kernel may touch, and nothing else: the batches in `buf`, which it patches; the
uncompressed records of a compressed batch, which the caller passes as `payload`. Every length is
checked against the end of what contains it before it is used. `validate_compressed` decompresses
by itself.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from numba import types

from stratalog.format import batch as layout
from stratalog.format.kernels.crc import batch_crc
from stratalog.format.kernels.jit import entry_point, inlined, kernel, not_inlined
from stratalog.format.kernels.memory import (
    load_be_i16,
    load_be_i32,
    load_be_i64,
    load_be_u32,
    load_slot,
    load_u8,
    store_be_i16,
    store_be_i32,
    store_be_i64,
)
from stratalog.format.kernels.record_fields import (
    fields_end,
    record_numbers,
    wrapping_add,
    wrapping_sub,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.format.buffers import Buffer

# The terms of an append: little-endian int64 in this order, then the size of each batch.
FLAGS, BATCH_BYTES_MAX, BEFORE_MAX_MS, AFTER_MAX_MS, NEXT_OFFSET, LEADER_EPOCH, NOW_MS = range(7)
TERMS = 7
_RULES = struct.Struct("<4q")  # from FLAGS on
_pack_assign = struct.Struct("<4q").pack_into  # from NEXT_OFFSET on, with the first batch's size
# Bits of the flags.
CLIENT, COMPACTED, LOG_APPEND_TIME = 1, 2, 4

BATCHES_MAX: Final = 256
"""The maximum number of batches in one call."""
_BAD = -(1 << 63)


_KNOWN_BITS = 0x7F


class Terms:
    """The rules of a topic and the numbers of one append, in memory that the kernels read. Used by
    one thread at a time."""

    __slots__ = ("_memory", "_slots", "address")

    def __init__(
        self, flags: int, batch_bytes_max: int, before_max_ms: int, after_max_ms: int
    ) -> None:
        self._slots = bytearray(8 * (TERMS + BATCHES_MAX))
        _RULES.pack_into(self._slots, 0, flags, batch_bytes_max, before_max_ms, after_max_ms)
        self._memory = pa.py_buffer(self._slots)
        self.address: int = self._memory.address

    def assign(self, next_offset: int, leader_epoch: int, now_ms: int, size: int) -> None:
        """For an append of one batch of `size` bytes, or as the first of several."""
        _pack_assign(self._slots, 8 * NEXT_OFFSET, next_offset, leader_epoch, now_ms, size)

    def validate_one(
        self, buf: bytearray, next_offset: int, leader_epoch: int, now_ms: int
    ) -> bool:
        """`validate` for one uncompressed batch: the same, faster."""
        size = len(buf)
        _pack_assign(self._slots, 8 * NEXT_OFFSET, next_offset, leader_epoch, now_ms, size)
        return _validate_now(pa.py_buffer(buf).address, size, 0, 0, self.address, 1) == 1

    def set_sizes(self, sizes: Sequence[int]) -> None:
        """Set the sizes of all batches of the append."""
        struct.pack_into(f"<{len(sizes)}q", self._slots, 8 * TERMS, *sizes)


@inlined
def _is_header_good(at: int, size: int, terms: int) -> bool:
    """Whether the 61 bytes at `at` are a valid header, apart from the CRC."""
    if size < layout.HEADER_BYTES or size > load_slot(terms, BATCH_BYTES_MAX):
        return False
    declared = load_be_i32(at + layout.BATCH_LENGTH_AT) + layout.PREFIX_BYTES
    if load_u8(at + layout.MAGIC_AT) != layout.MAGIC_2 or declared != size:
        return False
    count = load_be_i32(at + layout.RECORD_COUNT_AT)
    if count <= 0 or load_be_i32(at + layout.LAST_OFFSET_DELTA_AT) != count - 1:
        return False
    if load_be_i16(at + layout.ATTRIBUTES_AT) & layout.LOG_APPEND_TIME_BIT:
        return False
    return load_slot(terms, FLAGS) & CLIENT == 0 or _may_client_send(at)


@inlined
def _may_client_send(at: int) -> bool:
    if load_be_i64(at) != 0 or load_be_i16(at + layout.ATTRIBUTES_AT) & layout.CONTROL_BIT:
        return False
    has_sequence: bool = load_be_i32(at + layout.BASE_SEQUENCE_AT) >= 0
    return has_sequence or load_be_i64(at + layout.PRODUCER_ID_AT) < 0


@inlined
def _max_timestamp(batch: int, at: int, stop: int, terms: int) -> int:
    """The largest timestamp of the records in [at, stop), or _BAD if one breaks a rule."""
    flags, now = load_slot(terms, FLAGS), load_slot(terms, NOW_MS)
    needs_key = flags & COMPACTED != 0
    checks_time = flags & LOG_APPEND_TIME == 0
    before, after = load_slot(terms, BEFORE_MAX_MS), load_slot(terms, AFTER_MAX_MS)
    base = load_be_i64(batch + layout.BASE_TIMESTAMP_AT)
    largest = layout.NO_TIMESTAMP
    for index in range(load_be_i32(batch + layout.RECORD_COUNT_AT)):
        timestamp_delta, offset_delta, at, end = record_numbers(at, stop)
        if at < 0:
            return _BAD
        timestamp = wrapping_add(base, timestamp_delta)
        largest = max(largest, timestamp)
        age = wrapping_sub(now, timestamp)
        is_limited = checks_time and timestamp != layout.NO_TIMESTAMP
        if is_limited and (age > before or wrapping_sub(0, age) > after):
            return _BAD
        if offset_delta != index or fields_end(at, end, needs_key) != end:
            return _BAD
        at = end
    return largest if at == stop else _BAD


@inlined
def _stamp(batch: int, size: int, largest: int, log_append_time: bool) -> None:
    """Write the timestamp type and `largest`, and the CRC if that changed anything."""
    if not log_append_time and load_be_i64(batch + layout.MAX_TIMESTAMP_AT) == largest:
        return
    attributes = (
        load_be_i16(batch + layout.ATTRIBUTES_AT) & _KNOWN_BITS & ~layout.LOG_APPEND_TIME_BIT
    )
    if log_append_time:
        attributes |= layout.LOG_APPEND_TIME_BIT
    store_be_i16(batch + layout.ATTRIBUTES_AT, attributes)
    store_be_i64(batch + layout.MAX_TIMESTAMP_AT, largest)
    store_be_i32(batch + layout.CRC_AT, batch_crc(batch, size))


@not_inlined
def intact_size(batch: int, end: int, terms: int, number: int) -> int:
    """The size of this batch; 0 unless it ends at or before `end`, and has a good header and a
    right CRC. `number` is its place in the terms."""
    size: int = load_slot(terms, TERMS + number)
    if size > end - batch or not _is_header_good(batch, size, terms):
        return 0
    return size if batch_crc(batch, size) == load_be_u32(batch + layout.CRC_AT) else 0


@not_inlined
def assign_in_place(
    batch: int, size: int, at: int, stop: int, terms: int, next_offset: int
) -> bool:
    """Check the uncompressed records in [at, stop). If all are good, give the batch its offsets,
    the leader epoch and the timestamp that the terms ask for; else leave it as it is."""
    largest = _max_timestamp(batch, at, stop, terms)
    if largest == _BAD:
        return False
    log_append_time = load_slot(terms, FLAGS) & LOG_APPEND_TIME != 0
    if log_append_time:
        largest = load_slot(terms, NOW_MS)
    store_be_i64(batch, next_offset)
    store_be_i32(batch + layout.LEADER_EPOCH_AT, load_slot(terms, LEADER_EPOCH))
    _stamp(batch, size, largest, log_append_time)
    return True


@kernel(types.int64(*[types.int64] * 6))
def _validate(
    buf: int, buf_bytes: int, payload: int, payload_bytes: int, terms: int, count: int
) -> int:
    """`validate` on addresses; `payload` 0 stands for None."""
    batch, next_offset = buf, load_slot(terms, NEXT_OFFSET)
    for i in range(count):
        size = intact_size(batch, buf + buf_bytes, terms, i)
        if not size:
            return i
        at, stop = batch + layout.HEADER_BYTES, batch + size
        if payload:
            at, stop = payload, payload + payload_bytes
        elif load_be_i16(batch + layout.ATTRIBUTES_AT) & layout.CODEC_MASK:
            return i
        if not assign_in_place(batch, size, at, stop, terms, next_offset):
            return i
        next_offset += load_be_i32(batch + layout.RECORD_COUNT_AT)
        batch += size
    return count


_validate_now = entry_point(_validate)


def validate(
    buf: bytearray | memoryview, terms: Terms, count: int = 1, payload: Buffer | None = None
) -> int:
    """Check the `count` batches that lie end to end in `buf`, and give each its offsets, the leader
    epoch and the timestamp that the terms ask for.

    `payload` is the uncompressed records if the (then only) batch is compressed. Returns how many
    batches are done: those before the first that is not accepted, which is left as it was, like all
    after it.
    """
    batches = pa.py_buffer(buf)
    if payload is None:
        return _validate(batches.address, len(buf), 0, 0, terms.address, count)
    plain = pa.py_buffer(payload)
    return _validate(batches.address, len(buf), plain.address, plain.size, terms.address, count)
