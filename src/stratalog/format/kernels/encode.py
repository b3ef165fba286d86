"""Encodes columns of records as magic-2 batches: the compiled twin of `record.encode_batch`.

Works through rows and cuts a batch where the next record would make it larger than the limit. What
the kernel may touch, and nothing else:

* reads: the slots, the numbers of the rows, and of every column the entries of these rows;
* writes: the slots it fills, and [OUT, OUT_END + COPY_SLACK_BYTES).

Every record is measured before it is written, so output never runs past its end.
"""

from __future__ import annotations

from typing import Any

from numba import types

from stratalog.format import batch as layout
from stratalog.format.kernels.crc import batch_crc
from stratalog.format.kernels.jit import inlined, kernel, not_inlined
from stratalog.format.kernels.memory import (
    copy,
    is_null,
    load_le_i64,
    load_le_u32,
    load_slot,
    memcpy,
    store_be_i16,
    store_be_i32,
    store_be_i64,
    store_slot,
    store_u8,
)
from stratalog.format.kernels.record_fields import put_varint, varint_size, wrapping_sub, zigzag

# A binary column: its offsets (int32), data, end of data, validity or 0, bits before the first row.
OFFSETS, DATA, DATA_END, VALID, VALID_BIT = range(5)
COLUMN_SLOTS = 5

# Slots the caller fills.
KEY, VALUE, HEADER_KEY, HEADER_VALUE = 0, 5, 10, 15
HEADERS, HEADERS_VALID, HEADERS_VALID_BIT = 20, 21, 22  # the lists: offsets (int32) or 0, validity
TIMESTAMPS = 23
OUT, OUT_END = 24, 25
BATCH_BYTES, BATCH_BYTES_MAX = 26, 27
ATTRIBUTES, LEADER_EPOCH, PRODUCER_ID, PRODUCER_EPOCH = 28, 29, 30, 31
MAX_TIMESTAMP, HAS_MAX_TIMESTAMP = 32, 33
RESTARTS_OFFSETS, IS_SEALED = 34, 35
ROWS = 36  # how many
# Slots the kernel goes on from, and leaves where it stopped.
ROW, NEXT_OFFSET, NEXT_SEQUENCE = 37, 38, 39
# Slots the kernel fills.
USED, NEEDED = 40, 41
# Filled by the caller: the numbers of the rows to encode (int32), in order; 0: the first ROWS rows.
ROW_NUMBERS = 42
SLOTS = 43

DONE, FULL, TOO_LARGE = range(3)

_NULL = -1
_SEQUENCES = 1 << 31


@inlined
def _column(slots: int, first: int) -> tuple[int, int, int, int, int]:
    return (
        load_slot(slots, first + OFFSETS),
        load_slot(slots, first + DATA),
        load_slot(slots, first + DATA_END),
        load_slot(slots, first + VALID),
        load_slot(slots, first + VALID_BIT),
    )


@inlined
def _field(column: Any, row: int) -> tuple[int, int]:
    """Address and length of one entry; _NULL stands for the length of none."""
    offsets, data, _, valid, first_bit = column
    if offsets == 0 or is_null(valid, first_bit + row):
        return 0, _NULL
    start = load_le_u32(offsets + 4 * row)
    return data + start, load_le_u32(offsets + 4 * row + 4) - start


@inlined
def _field_size(length: int) -> int:
    return varint_size(zigzag(length)) + max(length, 0)


@inlined
def _put_field(at: int, source: int, length: int, readable_end: int) -> int:
    at = put_varint(at, zigzag(length))
    if length <= 0:
        return at
    copy(at, source, length, readable_end)
    return at + length


@inlined
def _header_range(slots: int, row: int) -> tuple[int, int]:
    """The first header of a row and the one after its last."""
    lists = load_slot(slots, HEADERS)
    if lists == 0 or is_null(
        load_slot(slots, HEADERS_VALID), load_slot(slots, HEADERS_VALID_BIT) + row
    ):
        return 0, 0
    return load_le_u32(lists + 4 * row), load_le_u32(lists + 4 * row + 4)


@not_inlined
def _headers_size(slots: int, first: int, end: int) -> int:
    key, value = _column(slots, HEADER_KEY), _column(slots, HEADER_VALUE)
    size = 0
    for header in range(first, end):
        _, length = _field(key, header)
        size += _field_size(length)
        _, length = _field(value, header)
        size += _field_size(length)
    return size


@inlined
def _put_header_field(at: int, source: int, length: int) -> int:
    at = put_varint(at, zigzag(length))
    if length <= 0:
        return at
    memcpy(at, source, length)
    return at + length


@not_inlined
def _put_headers(at: int, slots: int, first: int, end: int) -> int:
    key, value = _column(slots, HEADER_KEY), _column(slots, HEADER_VALUE)
    for header in range(first, end):
        source, length = _field(key, header)
        at = _put_header_field(at, source, length)
        source, length = _field(value, header)
        at = _put_header_field(at, source, length)
    return at


@not_inlined
def _close(slots: int, batch: int, end: int, count: int, times: tuple[int, int]) -> None:
    """Write the header of the batch in [batch, end) and move on to the next one."""
    base_timestamp, largest = times
    offset, sequence = load_slot(slots, NEXT_OFFSET), load_slot(slots, NEXT_SEQUENCE)
    store_be_i64(batch, offset)
    store_be_i32(batch + layout.BATCH_LENGTH_AT, end - batch - layout.PREFIX_BYTES)
    store_be_i32(batch + layout.LEADER_EPOCH_AT, load_slot(slots, LEADER_EPOCH))
    store_u8(batch + layout.MAGIC_AT, layout.MAGIC_2)
    store_be_i16(batch + layout.ATTRIBUTES_AT, load_slot(slots, ATTRIBUTES))
    store_be_i32(batch + layout.LAST_OFFSET_DELTA_AT, count - 1)
    store_be_i64(batch + layout.BASE_TIMESTAMP_AT, base_timestamp)
    if load_slot(slots, HAS_MAX_TIMESTAMP):
        largest = load_slot(slots, MAX_TIMESTAMP)
    store_be_i64(batch + layout.MAX_TIMESTAMP_AT, largest)
    store_be_i64(batch + layout.PRODUCER_ID_AT, load_slot(slots, PRODUCER_ID))
    store_be_i16(batch + layout.PRODUCER_EPOCH_AT, load_slot(slots, PRODUCER_EPOCH))
    store_be_i32(batch + layout.BASE_SEQUENCE_AT, sequence)
    store_be_i32(batch + layout.RECORD_COUNT_AT, count)
    if load_slot(slots, IS_SEALED):
        store_be_i32(batch + layout.CRC_AT, batch_crc(batch, end - batch))
    if load_slot(slots, RESTARTS_OFFSETS) == 0:
        store_slot(slots, NEXT_OFFSET, offset + count)
    if sequence >= 0:
        store_slot(slots, NEXT_SEQUENCE, (sequence + count) % _SEQUENCES)


@inlined
def _record(at: int, slots: int, row: int, deltas: tuple[int, int], room: Any) -> tuple[int, int]:
    """Write one record at `at`: the position after it. Without room: -1, and that position."""
    columns, limit = room
    key, value = columns
    timestamp_delta, offset_delta = zigzag(deltas[0]), zigzag(deltas[1])
    key_at, key_bytes = _field(key, row)
    value_at, value_bytes = _field(value, row)
    header, headers_end = _header_range(slots, row)
    body = 1 + varint_size(timestamp_delta) + varint_size(offset_delta)
    body += _field_size(key_bytes) + _field_size(value_bytes)
    body += varint_size(zigzag(headers_end - header))
    if headers_end > header:
        body += _headers_size(slots, header, headers_end)
    end = at + varint_size(zigzag(body)) + body
    if end > limit:
        return -1, end
    at = put_varint(at, zigzag(body))
    store_u8(at, 0)
    at = put_varint(at + 1, timestamp_delta)
    at = put_varint(at, offset_delta)
    at = _put_field(at, key_at, key_bytes, key[2])
    at = _put_field(at, value_at, value_bytes, value[2])
    at = put_varint(at, zigzag(headers_end - header))
    if headers_end > header:
        at = _put_headers(at, slots, header, headers_end)
    return at, end


@inlined
def _row_number(numbers: int, row: int) -> int:
    return row if numbers == 0 else load_le_u32(numbers + 4 * row)


@inlined
def _stop(slots: int, batch: int, row: int, needed: int, reason: int) -> int:
    store_slot(slots, USED, batch - load_slot(slots, OUT))
    store_slot(slots, ROW, row)
    store_slot(slots, NEEDED, needed)
    return reason


@kernel(types.int64(types.int64))
def encode(slots: int) -> int:
    """Encode rows from slot ROW on. DONE: all are; USED bytes of whole batches are there.

    FULL: the batch that starts with slot ROW needs at least NEEDED bytes of room. TOO_LARGE: the
    record of slot ROW makes a batch of NEEDED bytes even alone. With ROW_NUMBERS, slot ROW counts
    these numbers.
    """
    columns = (_column(slots, KEY), _column(slots, VALUE))
    timestamps, rows = load_slot(slots, TIMESTAMPS), load_slot(slots, ROWS)
    batch_bytes, out_end = load_slot(slots, BATCH_BYTES), load_slot(slots, OUT_END)
    row, at = load_slot(slots, ROW), load_slot(slots, OUT)
    numbers = load_slot(slots, ROW_NUMBERS)
    while row < rows:
        batch, first = at, row
        at += layout.HEADER_BYTES
        base = largest = load_le_i64(timestamps + 8 * _row_number(numbers, row))
        while row < rows:
            limit = batch + (batch_bytes if row > first else load_slot(slots, BATCH_BYTES_MAX))
            number = _row_number(numbers, row)
            timestamp = load_le_i64(timestamps + 8 * number)
            deltas = (wrapping_sub(timestamp, base), row - first)
            after, end = _record(at, slots, number, deltas, (columns, min(limit, out_end)))
            if after < 0:
                break
            largest = max(largest, timestamp)
            at = after
            row += 1
        if row < rows and end <= limit:
            return _stop(slots, batch, first, end - batch, FULL)
        if row == first:
            return _stop(slots, batch, row, end - batch, TOO_LARGE)
        _close(slots, batch, at, row - first, (base, largest))
    return _stop(slots, at, row, 0, DONE)
