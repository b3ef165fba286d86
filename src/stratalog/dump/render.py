"""The compiled kernel that renders batches as the lines of a dump, exactly as `text` does.

Reading is as strict as `record.decode_records`. What it would reject, control batches and the old
formats are UNSUPPORTED: the caller renders that batch, from the current record on, with the
readable code.
"""

from __future__ import annotations

from typing import Any, Final

from numba import int64, types

from stratalog.dump import words
from stratalog.dump.words import put_boolean, put_int, put_utf8, put_word
from stratalog.format.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    LOG_APPEND_TIME_BIT,
    MAGIC_2,
    TRANSACTIONAL_BIT,
)
from stratalog.format.kernels.jit import ast_inlined, kernel, not_inlined
from stratalog.format.kernels.memory import BATCHES, PAYLOADS, load_u8, store_u8
from stratalog.format.kernels.record_fields import read_int, read_long
from stratalog.format.record import RECORD_BYTES_MIN

# Why a call ended. Within it, GO_ON.
DONE, FULL, UNSUPPORTED, LIMIT, GO_ON = range(5)

# Bits of state[MODE]: what to show.
DEEP, DATA, METADATA, FILTERED, RECORDS_FILTERED = 1, 2, 4, 8, 16

# Slots of `state`: what to do, where the next call goes on, and what was found.
TABLE, MODE, POSITION, OUT, OUT_END, NEEDED = range(6)
BATCH_AT, RECORD_AT, PAYLOAD_AT, IS_BATCH_SHOWN, LAST_OFFSET, SHOWN, GAPS = range(6, 13)
# The record at hand.
_TIMESTAMP, _OFFSET, _KEY_AT, _KEY_SIZE, _VALUE_AT, _VALUE_SIZE, _HEADERS_AT, _END = range(13, 21)
STATE_SLOTS: Final = 21

# Slots of `bounds`: what passes. All are inclusive, for any long may be an offset or a timestamp.
OFFSET_MIN, OFFSET_MAX, TIMESTAMP_MIN, TIMESTAMP_MAX = range(4)
HAS_PRODUCER, PRODUCER, KEY, KEY_BYTES, SHOWN_MAX = range(4, 9)
BOUND_SLOTS: Final = 9

BATCH_CHARS_MAX: Final = 1024
RECORD_CHARS_MAX: Final = 512  # besides three times the record's own bytes
SLACK_BYTES: Final = 64

_ZSTD = 4
_INT_MAX = (1 << 31) - 1
_INT_SIGN = 1 << 31
_INT_MASK = 0xFFFF_FFFF
_NEWLINE, _COMMA, _OPEN, _CLOSE = 10, 44, 91, 93


@ast_inlined
def _wrapped_int(value: int) -> int:
    return ((value + _INT_SIGN) & _INT_MASK) - _INT_SIGN


@ast_inlined
def _last_sequence(batch: Any) -> int:
    """As `text.last_sequence`."""
    base = int64(batch.base_sequence)
    delta = batch.last_offset - batch.base_offset
    if base == -1:
        return -1
    if base > _wrapped_int(_INT_MAX - delta):
        return _wrapped_int(delta - (_INT_MAX - base) - 1)
    return _wrapped_int(base + delta)


@not_inlined
def _put_codec(out: int, table: int, codec: int) -> int:
    if codec == 0:
        return put_word(out, table, words.NONE)
    if codec == 1:
        return put_word(out, table, words.GZIP)
    if codec == 2:
        return put_word(out, table, words.SNAPPY)
    if codec == 3:
        return put_word(out, table, words.LZ4)
    return put_word(out, table, words.ZSTD)


@ast_inlined
def _put_byte(out: int, byte: int) -> int:
    store_u8(out, byte)
    return out + 1


@ast_inlined
def _put_time_name(out: int, table: int, attributes: int) -> int:
    if attributes & LOG_APPEND_TIME_BIT:
        return put_word(out, table, words.LOG_APPEND_TIME)
    return put_word(out, table, words.CREATE_TIME)


@not_inlined
def _put_field(out: int, table: int, word: words.Word, value: int) -> int:
    return put_int(put_word(out, table, word), value)


@not_inlined
def _put_batch(out: int, table: int, batch: Any, position: int, is_valid: bool) -> int:
    """A batch's line."""
    attributes = int64(batch.attributes)
    out = _put_field(out, table, words.BASE_OFFSET, int64(batch.base_offset))
    out = _put_field(out, table, words.LAST_OFFSET, int64(batch.last_offset))
    out = _put_field(out, table, words.COUNT, int64(batch.record_count))
    out = _put_field(out, table, words.BASE_SEQUENCE, int64(batch.base_sequence))
    out = _put_field(out, table, words.LAST_SEQUENCE, _last_sequence(batch))
    out = _put_field(out, table, words.PRODUCER_ID, int64(batch.producer_id))
    out = _put_field(out, table, words.PRODUCER_EPOCH, int64(batch.producer_epoch))
    out = _put_field(out, table, words.LEADER_EPOCH, int64(batch.partition_leader_epoch))
    out = put_word(out, table, words.IS_TRANSACTIONAL)
    out = put_boolean(out, table, attributes & TRANSACTIONAL_BIT != 0)
    out = put_word(out, table, words.IS_CONTROL)
    out = put_boolean(out, table, attributes & CONTROL_BIT != 0)
    out = put_word(out, table, words.DELETE_HORIZON)
    if attributes & DELETE_HORIZON_BIT:
        out = _put_byte(put_int(_put_byte(out, _OPEN), batch.base_timestamp), _CLOSE)
    else:
        out = put_word(out, table, words.EMPTY)
    out = _put_field(out, table, words.POSITION, position)
    out = put_int(_put_time_name(out, table, attributes), batch.max_timestamp)
    out = _put_field(out, table, words.SIZE, int64(batch.size_bytes))
    out = _put_field(out, table, words.MAGIC, int64(batch.magic))
    out = _put_codec(put_word(out, table, words.CODEC), table, attributes & CODEC_MASK)
    out = _put_field(out, table, words.CRC, int64(batch.crc))
    out = put_boolean(put_word(out, table, words.IS_VALID), table, is_valid)
    return _put_byte(out, _NEWLINE)


@ast_inlined
def _may_hold(batch: Any, bounds: Any) -> bool:
    """As `Filters.may_hold`."""
    if bounds[HAS_PRODUCER] and batch.producer_id != bounds[PRODUCER]:
        return False
    if batch.last_offset < bounds[OFFSET_MIN] or batch.base_offset > bounds[OFFSET_MAX]:
        return False
    accepted: bool = batch.max_timestamp >= bounds[TIMESTAMP_MIN]
    return accepted


@not_inlined
def _is_key(at: int, size: int, bounds: Any) -> bool:
    if size != bounds[KEY_BYTES]:
        return False
    for i in range(size):  # noqa: SIM110  # kernels know no generators
        if load_u8(at + i) != load_u8(bounds[KEY] + i):
            return False
    return True


@ast_inlined
def _accepts(state: Any, bounds: Any) -> bool:
    """As `Filters.accepts`."""
    offset, timestamp = state[_OFFSET], state[_TIMESTAMP]
    if offset < bounds[OFFSET_MIN] or offset > bounds[OFFSET_MAX]:
        return False
    if timestamp < bounds[TIMESTAMP_MIN] or timestamp > bounds[TIMESTAMP_MAX]:
        return False
    return bounds[KEY_BYTES] < 0 or _is_key(state[_KEY_AT], state[_KEY_SIZE], bounds)


@not_inlined
def _after_headers(at: int, end: int) -> int:
    """The position after a record's headers, or -1 when they are wrong. `at` is their count."""
    count, at = read_int(at, end)
    if at < 0 or count < 0 or count > end - at:
        return -1
    for i in range(2 * count):
        size, at = read_int(at, end)
        is_null_key = size < 0 and i % 2 == 0
        if at < 0 or is_null_key or size > end - at:
            return -1
        at += max(size, 0)
    return at


@not_inlined
def _put_header_keys(out: int, at: int, end: int) -> int:
    """Write the keys of headers that `_after_headers` has checked."""
    count, at = read_int(at, end)
    for i in range(count):
        if i:
            out = _put_byte(out, _COMMA)
        size, at = read_int(at, end)
        out = put_utf8(out, at, size, end)
        at += size
        size, at = read_int(at, end)
        at += max(size, 0)
    return out


@ast_inlined
def _read_record(at: int, payload_end: int, state: Any) -> bool:
    """Note in `state` where the fields of the record at `at` lie; False when it is wrong."""
    length, start = read_int(at, payload_end)
    if start < 0 or length < RECORD_BYTES_MIN - 1 or length > payload_end - start:
        return False
    end = start + length
    timestamp_delta, at = read_long(start + 1, end)
    if at < 0:
        return False
    offset_delta, at = read_int(at, end)
    if at < 0:
        return False
    key_bytes, key = read_int(at, end)
    if key < 0 or key_bytes > end - key:
        return False
    value_bytes, value = read_int(key + max(key_bytes, 0), end)
    if value < 0 or value_bytes > end - value:
        return False
    headers = value + max(value_bytes, 0)
    state[_TIMESTAMP] = timestamp_delta
    state[_OFFSET] = offset_delta
    state[_KEY_AT] = key
    state[_KEY_SIZE] = max(key_bytes, -1)
    state[_VALUE_AT] = value
    state[_VALUE_SIZE] = max(value_bytes, -1)
    state[_HEADERS_AT] = headers
    state[_END] = end
    return _after_headers(headers, end) == end


@ast_inlined
def _put_metadata(out: int, table: int, batch: Any, state: Any) -> int:
    base_sequence = int64(batch.base_sequence)
    sequence = -1
    if base_sequence >= 0:
        sequence = (base_sequence + state[_OFFSET] - batch.base_offset) & _INT_MAX
    out = _put_field(out, table, words.OFFSET, state[_OFFSET])
    out = put_int(_put_time_name(out, table, int64(batch.attributes)), state[_TIMESTAMP])
    out = _put_field(out, table, words.KEY_SIZE, state[_KEY_SIZE])
    out = _put_field(out, table, words.VALUE_SIZE, state[_VALUE_SIZE])
    out = _put_field(out, table, words.SEQUENCE, sequence)
    out = put_word(out, table, words.HEADER_KEYS)
    out = _put_header_keys(out, state[_HEADERS_AT], state[_END])
    return _put_byte(out, _CLOSE)


@ast_inlined
def _put_record(out: int, batch: Any, state: Any, payload_end: int) -> int:
    """A record's line."""
    table, mode = state[TABLE], state[MODE]
    has_metadata = mode & METADATA != 0
    if has_metadata:
        out = _put_metadata(out, table, batch, state)
    if mode & DATA:
        if state[_KEY_SIZE] >= 0:
            out = (
                put_word(out, table, words.KEY)
                if has_metadata
                else put_word(out, table, words.FIRST_KEY)
            )
            out = put_utf8(out, state[_KEY_AT], state[_KEY_SIZE], payload_end)
        if state[_VALUE_SIZE] >= 0:
            out = put_word(out, table, words.PAYLOAD)
            out = put_utf8(out, state[_VALUE_AT], state[_VALUE_SIZE], payload_end)
    return _put_byte(out, _NEWLINE)


@ast_inlined
def _note_gap(offset: int, state: Any, gaps: Any) -> bool:
    """Remember where offsets are not consecutive; False when there is no room for it."""
    last = state[LAST_OFFSET]
    if last != -1 and offset != last + 1:
        at = 2 * state[GAPS]
        if at + 2 > len(gaps):
            return False
        gaps[at], gaps[at + 1] = last, offset
        state[GAPS] += 1
    state[LAST_OFFSET] = offset
    return True


@ast_inlined
def _is_room(state: Any, needed: int) -> bool:
    state[NEEDED] = needed
    is_room: bool = state[OUT_END] - state[OUT] >= needed
    return is_room


@not_inlined
def _show_batch(batch: Any, is_valid: bool, state: Any) -> None:
    position = state[POSITION] + batch.position
    state[OUT] = _put_batch(state[OUT], state[TABLE], batch, position, is_valid)
    state[IS_BATCH_SHOWN] = 1


@ast_inlined
def _count_shown(state: Any, bounds: Any, otherwise: int) -> int:
    """LIMIT if that was the last one to show."""
    state[SHOWN] += 1
    return LIMIT if state[SHOWN] >= bounds[SHOWN_MAX] else otherwise


@ast_inlined
def _begin_batch(batch: Any, is_valid: bool, state: Any, bounds: Any) -> int:
    """Write a batch's line unless it must wait for a record; GO_ON if records follow."""
    mode = state[MODE]
    if batch.magic != MAGIC_2 or batch.attributes & CODEC_MASK > _ZSTD:
        return UNSUPPORTED
    if mode & FILTERED and not _may_hold(batch, bounds):
        state[LAST_OFFSET] = -1  # what follows is not next to what came before
        return DONE
    if mode & DEEP and batch.attributes & CONTROL_BIT:
        return UNSUPPORTED
    if not mode & RECORDS_FILTERED or not mode & DEEP:
        if not _is_room(state, BATCH_CHARS_MAX):
            return FULL
        _show_batch(batch, is_valid, state)
    if mode & DEEP:
        return GO_ON
    return _count_shown(state, bounds, DONE)


@ast_inlined
def _render_record(
    batch: Any, is_valid: bool, payload: Any, state: Any, bounds: Any, gaps: Any
) -> int:
    """Show the record that `state` is at, if it passes; GO_ON when it is done."""
    payload_end = payload.address + payload.size_bytes
    if not _read_record(payload.address + state[PAYLOAD_AT], payload_end, state):
        return UNSUPPORTED
    state[_OFFSET] += batch.base_offset
    if batch.attributes & LOG_APPEND_TIME_BIT:
        state[_TIMESTAMP] = batch.max_timestamp
    else:
        state[_TIMESTAMP] += batch.base_timestamp
    size = state[_END] - payload.address - state[PAYLOAD_AT]
    if not _is_room(state, BATCH_CHARS_MAX + RECORD_CHARS_MAX + 3 * size):
        return FULL
    if not _note_gap(state[_OFFSET], state, gaps):
        return FULL
    state[PAYLOAD_AT] += size
    state[RECORD_AT] += 1
    if state[MODE] & RECORDS_FILTERED and not _accepts(state, bounds):
        return GO_ON
    if not state[IS_BATCH_SHOWN]:
        _show_batch(batch, is_valid, state)
    state[OUT] = _put_record(state[OUT], batch, state, payload_end)
    return _count_shown(state, bounds, GO_ON)


@ast_inlined
def _render_batch(
    batch: Any, is_valid: bool, payload: Any, state: Any, bounds: Any, gaps: Any
) -> int:
    if state[RECORD_AT] == 0 and not state[IS_BATCH_SHOWN]:
        why = _begin_batch(batch, is_valid, state, bounds)
        if why != GO_ON:
            return why
    count = int64(batch.record_count)
    if count == 0:
        return DONE
    if count < 0 or payload.size_bytes < count * RECORD_BYTES_MIN:
        return UNSUPPORTED
    while state[RECORD_AT] < count:
        why = _render_record(batch, is_valid, payload, state, bounds, gaps)
        if why != GO_ON:
            return why
    return DONE if state[PAYLOAD_AT] == payload.size_bytes else UNSUPPORTED


@kernel(
    types.int64(
        BATCHES, types.boolean[::1], PAYLOADS, types.int64[::1], types.int64[::1], types.int64[::1]
    )
)
def render(batches: Any, valid: Any, payloads: Any, state: Any, bounds: Any, gaps: Any) -> int:
    """Write the lines of `batches` from `state` on, and return why it stopped.

    `valid` says whose CRC is valid; `payloads` where the records are, with a negative size if they
    could not be decompressed. Reads only payloads, and bounds[KEY_BYTES] bytes at bounds[KEY].
    Writes below state[OUT_END] + SLACK_BYTES only. FULL wants room for state[NEEDED] bytes, or for
    more in `gaps`.
    """
    while state[BATCH_AT] < len(batches):
        i = state[BATCH_AT]
        why = _render_batch(batches[i], valid[i], payloads[i], state, bounds, gaps)
        if why != DONE:
            return why
        state[BATCH_AT] += 1
        state[RECORD_AT] = 0
        state[PAYLOAD_AT] = 0
        state[IS_BATCH_SHOWN] = 0
    return DONE
