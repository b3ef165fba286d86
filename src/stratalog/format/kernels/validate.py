"""Batches that clients send: checked, given their offsets and stamped, in one pass each.

The compiled twin of `log/batch_checks.py` for the one case that matters: a whole magic-2 batch that
is stored as it came. A batch it does not like it leaves alone, for the readable twin to accept by
another way or to refuse with a reason.

What the kernel may touch, and nothing else: the batches in `buf`, which it patches; the plain
records of a compressed batch, which the caller made and gives as `payload`. Every length is checked
against the end of what holds it before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from numba import types

from stratalog.format.batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER_BYTES,
    LEADER_EPOCH_AT,
    MAGIC_2,
    MAGIC_AT,
    PREFIX_BYTES,
)
from stratalog.format.kernels.big_endian import store_be_i16, store_be_i32, store_be_i64
from stratalog.format.kernels.crc import crc32c_at
from stratalog.format.kernels.jit import kernel, outlined, part
from stratalog.format.kernels.memory import (
    load_be_i16,
    load_be_i32,
    load_be_i64,
    load_be_u32,
    load_le_i64,
    load_u8,
)
from stratalog.format.kernels.record_structure import fields_end
from stratalog.format.kernels.varint import read_int, read_long
from stratalog.format.kernels.wrapping import wrapping_add, wrapping_sub

if TYPE_CHECKING:
    from stratalog.format.buffers import Buffer

# The terms of an append: little-endian int64 in this order, then the size of each batch.
FLAGS, BATCH_BYTES_MAX, BEFORE_MAX_MS, AFTER_MAX_MS, NEXT_OFFSET, LEADER_EPOCH, NOW_MS = range(7)
TERMS = 7
# Bits of the flags.
CLIENT, COMPACTED, LOG_APPEND_TIME = 1, 2, 4

_BODY_BYTES_MIN = 6
_NO_TIMESTAMP = -1
_BAD = -(1 << 63)

_LAST_OFFSET_DELTA_AT = 23
_BASE_TIMESTAMP_AT = 27
_MAX_TIMESTAMP_AT = 35
_PRODUCER_ID_AT = 43
_BASE_SEQUENCE_AT = 53
_RECORD_COUNT_AT = 57

_CODEC_MASK = 0x07
_TIMESTAMP_TYPE_BIT = 0x08
_CONTROL_BIT = 0x20
_KNOWN_BITS = 0x7F


@part
def _get(table: int, place: int) -> int:
    number: int = load_le_i64(table + 8 * place)
    return number


@part
def _is_header_good(at: int, size: int, terms: int) -> bool:
    """What can be told from the 61 bytes at `at`, CRC apart."""
    if size < HEADER_BYTES or size > _get(terms, BATCH_BYTES_MAX):
        return False
    if load_u8(at + MAGIC_AT) != MAGIC_2 or load_be_i32(at + 8) + PREFIX_BYTES != size:
        return False
    count = load_be_i32(at + _RECORD_COUNT_AT)
    if count <= 0 or load_be_i32(at + _LAST_OFFSET_DELTA_AT) != count - 1:
        return False
    if load_be_i16(at + ATTRIBUTES_AT) & _TIMESTAMP_TYPE_BIT:
        return False
    return _get(terms, FLAGS) & CLIENT == 0 or _may_client_send(at)


@part
def _may_client_send(at: int) -> bool:
    if load_be_i64(at) != 0 or load_be_i16(at + ATTRIBUTES_AT) & _CONTROL_BIT:
        return False
    has_sequence: bool = load_be_i32(at + _BASE_SEQUENCE_AT) >= 0
    return has_sequence or load_be_i64(at + _PRODUCER_ID_AT) < 0


@part
def _max_timestamp(batch: int, at: int, stop: int, terms: int) -> int:
    """The largest timestamp of the records in [at, stop), or _BAD if one breaks a rule."""
    flags, now = _get(terms, FLAGS), _get(terms, NOW_MS)
    needs_key = flags & COMPACTED != 0
    checks_time = flags & LOG_APPEND_TIME == 0
    before, after = _get(terms, BEFORE_MAX_MS), _get(terms, AFTER_MAX_MS)
    base = load_be_i64(batch + _BASE_TIMESTAMP_AT)
    largest = _NO_TIMESTAMP
    for index in range(load_be_i32(batch + _RECORD_COUNT_AT)):
        length, at = read_int(at, stop)
        if at < 0 or length < _BODY_BYTES_MIN or length > stop - at:
            return _BAD
        end = at + length
        delta, at = read_long(at + 1, end)
        if at < 0:
            return _BAD
        timestamp = wrapping_add(base, delta)
        largest = max(largest, timestamp)
        age = wrapping_sub(now, timestamp)
        is_limited = checks_time and timestamp != _NO_TIMESTAMP
        if is_limited and (age > before or wrapping_sub(0, age) > after):
            return _BAD
        delta, at = read_int(at, end)
        if delta != index or fields_end(at, end, needs_key) != end:
            return _BAD
        at = end
    return largest if at == stop else _BAD


@part
def _stamp(batch: int, size: int, largest: int, log_append_time: bool) -> None:
    """Write the timestamp type and `largest`, and the CRC if that changed anything."""
    if not log_append_time and load_be_i64(batch + _MAX_TIMESTAMP_AT) == largest:
        return
    attributes = load_be_i16(batch + ATTRIBUTES_AT) & _KNOWN_BITS & ~_TIMESTAMP_TYPE_BIT
    if log_append_time:
        attributes |= _TIMESTAMP_TYPE_BIT
    store_be_i16(batch + ATTRIBUTES_AT, attributes)
    store_be_i64(batch + _MAX_TIMESTAMP_AT, largest)
    store_be_i32(batch + CRC_AT, _crc(batch, size))


@outlined
def _crc(batch: int, size: int) -> int:
    crc: int = crc32c_at(batch + ATTRIBUTES_AT, size - ATTRIBUTES_AT)
    return crc


@kernel(types.int64(*[types.int64] * 6))
def _validate(
    buf: int, buf_bytes: int, payload: int, payload_bytes: int, terms: int, count: int
) -> int:
    """`validate` on addresses; `payload` 0 stands for None."""
    next_offset, now = _get(terms, NEXT_OFFSET), _get(terms, NOW_MS)
    log_append_time = _get(terms, FLAGS) & LOG_APPEND_TIME != 0
    batch = buf
    for i in range(count):
        size = _get(terms, TERMS + i)
        if size > buf + buf_bytes - batch or not _is_header_good(batch, size, terms):
            return i
        if payload == 0 and load_be_i16(batch + ATTRIBUTES_AT) & _CODEC_MASK:
            return i
        if _crc(batch, size) != load_be_u32(batch + CRC_AT):
            return i
        at = payload if payload else batch + HEADER_BYTES
        stop = payload + payload_bytes if payload else batch + size
        largest = _max_timestamp(batch, at, stop, terms)
        if largest == _BAD:
            return i
        store_be_i64(batch, next_offset)
        store_be_i32(batch + LEADER_EPOCH_AT, _get(terms, LEADER_EPOCH))
        _stamp(batch, size, now if log_append_time else largest, log_append_time)
        next_offset += load_be_i32(batch + _RECORD_COUNT_AT)
        batch += size
    return count


def validate(buf: bytearray | memoryview, payload: Buffer | None, terms: bytes) -> int:
    """Check the batches that lie end to end in `buf`, and give each its offsets, the leader epoch
    and the timestamp that the terms ask for.

    `payload` is the plain records if the (then only) batch is compressed. Answers how many batches
    are done: those before the first that is not simply good, which is left as it was, like all
    after it.
    """
    batches, packed = pa.py_buffer(buf), pa.py_buffer(terms)
    payload_at = payload_bytes = 0
    if payload is not None:
        plain = pa.py_buffer(payload)
        payload_at, payload_bytes = plain.address, plain.size
    done: int = _validate(
        batches.address,
        len(buf),
        payload_at,
        payload_bytes,
        packed.address,
        len(terms) // 8 - TERMS,
    )
    return done
