"""Decodes records of magic-2 batches into columns: the compiled twin of `format/record.py`.

Columns are raw memory that the caller sized before. What the kernel may touch, and nothing else:

* reads: the payloads, from `address` to `address + size_bytes` (to check CRCs, headers too);
* writes: `slots`, and per wanted column one entry a record (offset columns one more); columns of
  data and of headers up to their room, keys and values `COPY_SLACK_BYTES` more.

Every length is checked against the end of what holds it before it is used, so any payload results
in records or -1.
"""

from __future__ import annotations

from typing import Any

from numba import types

from stratalog.format.batch import ATTRIBUTES_AT, HEADER_BYTES, LOG_APPEND_TIME_BIT
from stratalog.format.kernels.crc import crc32c_at
from stratalog.format.kernels.jit import inlined, kernel, not_inlined
from stratalog.format.kernels.memory import (
    BATCHES,
    PAYLOADS,
    copy,
    load_le_i64,
    load_slot,
    load_u8,
    memcpy,
    store_i32,
    store_i64,
    store_slot,
    store_u8,
)
from stratalog.format.kernels.record_fields import read_int, read_long, record_body

# Slots the caller fills: addresses of columns, 0 where one is not wanted.
OFFSET, TIMESTAMP = 0, 1
KEY, VALUE = 2, 5  # three slots each: offsets, data, validity
HEADERS = 8  # offsets of the lists
HEADER_KEY, HEADER_VALUE = 9, 11  # two slots each: offsets, data
HEADER_VALUE_VALID = 13
# How much the data columns have room for; the same five numbers are found below.
ROOM = 14
KEY_ROOM, VALUE_ROOM, HEADERS_ROOM, HEADER_KEY_ROOM, HEADER_VALUE_ROOM = range(14, 19)
# Slots the kernel fills.
NEEDED = 19
KEY_BYTES, VALUE_BYTES, HEADERS_FOUND, HEADER_KEY_BYTES, HEADER_VALUE_BYTES = range(19, 24)
KEY_NULLS, VALUE_NULLS, HEADER_VALUE_NULLS = 24, 25, 26
BATCH_INDEX = 27
SLOTS = 28

_COVERED_BYTES = HEADER_BYTES - ATTRIBUTES_AT  # of the header, by the CRC


@inlined
def _add(slots: int, slot: int, number: int) -> None:
    store_slot(slots, slot, load_slot(slots, slot) + number)


@inlined
def _clear_bit(bitmap: int, index: int) -> None:
    at = bitmap + (index >> 3)
    store_u8(at, load_u8(at) & ~(1 << (index & 7)))


@inlined
def _numbers(at: int, end: int, index: int, base: Any, columns: Any) -> int:
    """Store timestamp and offset of record `index`; the position after them, or -1."""
    base_timestamp, base_offset, append_timestamp, is_appended = base
    timestamps, offsets = columns
    delta, at = read_long(at, end)
    if at < 0:
        return -1
    if timestamps:
        store_i64(
            timestamps + 8 * index, append_timestamp if is_appended else base_timestamp + delta
        )
    delta, at = read_int(at, end)
    if offsets:
        store_i64(offsets + 8 * index, base_offset + delta)
    return at


@inlined
def put_binary(at: int, length: int, index: int, used: int, column: Any) -> tuple[int, int]:
    """Copy the `length` bytes at `at` (below 0: null) to entry `index` of a binary column of which
    `used` bytes are taken.

    Returns the position after them and the bytes taken then. Bytes without room are counted and not
    copied: the caller makes room and calls again.
    """
    offsets, data, room, valid, nulls, readable_end = column
    if offsets:
        store_i32(offsets + 4 * index, used)
    if length < 0:
        if offsets:
            _clear_bit(valid, index)
            store_i64(nulls, load_le_i64(nulls) + 1)
        return at, used
    if offsets:
        if used + length <= room:
            copy(data + used, at, length, readable_end)
        used += length
    return at + length, used


@inlined
def _binary(at: int, end: int, index: int, used: int, column: Any) -> tuple[int, int]:
    """A key or value, as `put_binary`; the position is -1 if it does not end before `end`."""
    if at < 0:
        return -1, used
    length, at = read_int(at, end)
    if at < 0 or length > end - at:
        return -1, used
    return put_binary(at, length, index, used, column)


@not_inlined
def _header(at: int, end: int, slots: int, is_kept: bool) -> int:
    """One header's key and value; the position after them, or -1."""
    key_bytes = load_slot(slots, HEADER_KEY_BYTES)
    value_bytes = load_slot(slots, HEADER_VALUE_BYTES)
    index = load_slot(slots, HEADERS_FOUND)
    length, at = read_int(at, end)
    if at < 0 or length < 0 or length > end - at:
        return -1
    if is_kept and key_bytes + length <= load_slot(slots, HEADER_KEY_ROOM):
        memcpy(load_slot(slots, HEADER_KEY + 1) + key_bytes, at, length)
        store_i32(load_slot(slots, HEADER_KEY) + 4 * index, key_bytes)
    _add(slots, HEADER_KEY_BYTES, length)
    length, at = read_int(at + length, end)
    if at < 0 or length > end - at:
        return -1
    if is_kept:
        store_i32(load_slot(slots, HEADER_VALUE) + 4 * index, value_bytes)
    if length < 0:
        _add(slots, HEADER_VALUE_NULLS, 1)
        if is_kept:
            _clear_bit(load_slot(slots, HEADER_VALUE_VALID), index)
        return at
    if is_kept and value_bytes + length <= load_slot(slots, HEADER_VALUE_ROOM):
        memcpy(load_slot(slots, HEADER_VALUE + 1) + value_bytes, at, length)
    _add(slots, HEADER_VALUE_BYTES, length)
    return at + length


@not_inlined
def _walk_headers(at: int, end: int, count: int, slots: int) -> int:
    """`count` headers; the position after them, or -1."""
    if count < 0 or count > end - at:
        return -1
    for _ in range(count):
        is_kept = load_slot(slots, HEADERS_FOUND) < load_slot(slots, HEADERS_ROOM)
        at = _header(at, end, slots, is_kept)
        if at < 0:
            return -1
        _add(slots, HEADERS_FOUND, 1)
    return at


@inlined
def _headers(at: int, end: int, index: int, slots: int, lists: int) -> int:
    """All headers of record `index`; the position after them, or -1."""
    if at < 0:
        return -1
    count, at = read_int(at, end)
    if lists:
        store_i32(lists + 4 * index, load_slot(slots, HEADERS_FOUND))
    if at < 0 or count == 0:
        return at
    return _walk_headers(at, end, count, slots)


@not_inlined
def close(slots: int, index: int, key_bytes: int, value_bytes: int) -> None:
    """Write the last entry of each offset column, and what was found."""
    store_slot(slots, KEY_BYTES, key_bytes)
    store_slot(slots, VALUE_BYTES, value_bytes)
    if load_slot(slots, KEY):
        store_i32(load_slot(slots, KEY) + 4 * index, key_bytes)
    if load_slot(slots, VALUE):
        store_i32(load_slot(slots, VALUE) + 4 * index, value_bytes)
    found = load_slot(slots, HEADERS_FOUND)
    if load_slot(slots, HEADERS):
        store_i32(load_slot(slots, HEADERS) + 4 * index, found)
    if 0 < found <= load_slot(slots, HEADERS_ROOM):
        store_i32(load_slot(slots, HEADER_KEY) + 4 * found, load_slot(slots, HEADER_KEY_BYTES))
        store_i32(load_slot(slots, HEADER_VALUE) + 4 * found, load_slot(slots, HEADER_VALUE_BYTES))


@inlined
def column_of(slots: int, first: int, room: int, nulls: int, readable_end: int) -> Any:
    return (
        load_slot(slots, first),
        load_slot(slots, first + 1),
        load_slot(slots, room),
        load_slot(slots, first + 2),
        slots + 8 * nulls,
        readable_end,
    )


@inlined
def _is_crc_valid(at: int, end: int, batch: Any) -> bool:
    stored: int = batch.crc
    return crc32c_at(at - _COVERED_BYTES, end - at + _COVERED_BYTES) == stored


@kernel(types.int64(BATCHES, PAYLOADS, types.int64, types.boolean))
def decode(batches: Any, payloads: Any, slots: int, checks_crc: bool) -> int:
    """Decode the records of all batches. Returns how many there are, or -1 if a batch breaks a rule
    of the format: then its index is in slot BATCH_INDEX. No record count is negative.

    `checks_crc` is for payloads that lie in their batches: headers come before them. Checking here
    brings the bytes into the cache just before they are decoded.
    """
    numbers = (load_slot(slots, TIMESTAMP), load_slot(slots, OFFSET))
    lists = load_slot(slots, HEADERS)
    index = key_bytes = value_bytes = 0
    for b in range(len(batches)):
        batch = batches[b]
        store_slot(slots, BATCH_INDEX, b)
        next_at = payloads[b].address
        stop = next_at + payloads[b].size_bytes
        if checks_crc and not _is_crc_valid(next_at, stop, batch):
            return -1
        is_appended = batch.attributes & LOG_APPEND_TIME_BIT
        base = (batch.base_timestamp, batch.base_offset, batch.max_timestamp, is_appended)
        key = column_of(slots, KEY, KEY_ROOM, KEY_NULLS, stop)
        value = column_of(slots, VALUE, VALUE_ROOM, VALUE_NULLS, stop)
        for _ in range(batch.record_count):
            at, next_at = record_body(next_at, stop)
            if at < 0:
                return -1
            at = _numbers(at + 1, next_at, index, base, numbers)
            at, key_bytes = _binary(at, next_at, index, key_bytes, key)
            at, value_bytes = _binary(at, next_at, index, value_bytes, value)
            at = _headers(at, next_at, index, slots, lists)
            if at != next_at:
                return -1
            index += 1
        if next_at != stop and batch.record_count > 0:
            return -1
    close(slots, index, key_bytes, value_bytes)
    return index
