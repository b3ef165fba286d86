"""Filters magic-2 batches for compaction: the compiled twin of `filtering`.

A batch is gone through once to decide on each record, and a second time only if it has to be
written again. What the kernel may touch, and nothing else:

* reads: batches in the `size_bytes` bytes at their position in the buffer, their payloads, the
  offset map, the marks;
* writes: [OUT, OUT_END + COPY_SLACK_BYTES), one byte a record at DECISIONS, the ring, `state`,
  `orders` and `kept`.
"""

from __future__ import annotations

from typing import Any

from numba import types

from stratalog.format import batch as layout
from stratalog.format.kernels import offset_map as keys
from stratalog.format.kernels.crc import batch_crc
from stratalog.format.kernels.jit import inlined, kernel, not_inlined
from stratalog.format.kernels.memory import (
    BATCHES,
    PAYLOADS,
    copy,
    load_le_i64,
    load_u8,
    memcpy,
    store_be_i16,
    store_be_i32,
    store_be_i64,
    store_u8,
)
from stratalog.format.kernels.record_fields import (
    binary,
    key_of,
    numbers,
    put_varint,
    record_body,
    varint_size,
    wrapping_add,
    wrapping_sub,
    zigzag,
)

# What is to be done with a batch, decided before: bits of `orders`.
DISCARD, KEEP, RETAIN_EMPTY, IS_EMPTY_TXN_MARKER, PROBE = 1, 2, 4, 8, 16
# What became of it: the same place, afterwards.
DROPPED, COPIED, REBUILT, EMPTIED, UNPACKED = range(5)
"""UNPACKED is a rebuilt batch whose records are to be compressed; it has no CRC yet."""

# Words of the state: what the caller fills, and what is counted.
NOW_MS, HORIZON_MS, MARKS, MARKS_START, MARKS_COUNT = range(5)
BUF, OUT, OUT_END, DECISIONS = range(5, 9)
USED, NEEDED, KEPT_BATCHES, RECORDS_READ, RECORDS_KEPT, INVALID_RECORDS, BATCH_INDEX = range(9, 16)
STATE_WORDS = 16

CORRUPT = -1

_LONG_MIN = -(1 << 63)
_RECORD_GROWTH_MAX = 10  # nine bytes of a timestamp, and one of the length
_DROPPED_RECORD, _KEPT, _IS_TOMBSTONE, _ASK = 0, 1, 2, 4


@not_inlined
def _decide_waiting(count: int, keymap: Any, decisions: int) -> None:
    """Drop records that are no longer the last of their key, whatever was decided so far."""
    for i in range(count):
        at = keymap[keys.RING] + 8 * keys.RING_WORDS * i
        first, second = load_le_i64(at), load_le_i64(at + 8)
        slot = keys.find(keymap[keys.TABLE], keymap[keys.SLOT_COUNT], first, second)
        if load_le_i64(at + keys.QUEUED_OFFSET) < keys.offset_at(slot):
            store_u8(decisions + load_le_i64(at + keys.QUEUED_INDEX), _DROPPED_RECORD)


@inlined
def _first_decision(offset: int, key_bytes: int, value_bytes: int, rules: Any) -> int:
    """The decision on a record without a lookup of its key; _ASK if the lookup is needed."""
    latest_offset, drops_tombstones, marks, marks_start, marks_count = rules
    decision = _KEPT if value_bytes >= 0 else _KEPT | _IS_TOMBSTONE
    if offset > latest_offset:
        return decision
    if key_bytes < 0 or (value_bytes < 0 and drops_tombstones):
        return _DROPPED_RECORD
    if 0 <= offset - marks_start < marks_count:
        return decision if keys.is_marked(marks, offset - marks_start) else _DROPPED_RECORD
    return decision | _ASK


@inlined
def _rules(batch: Any, order: int, keymap: Any, state: Any) -> Any:
    has_horizon = batch.attributes & layout.DELETE_HORIZON_BIT != 0
    return (
        _LONG_MIN if order & KEEP else keymap[keys.LATEST_OFFSET],
        has_horizon and state[NOW_MS] >= batch.base_timestamp,
        state[MARKS],
        state[MARKS_START],
        0 if order & PROBE else state[MARKS_COUNT],
    )


@inlined
def _decide(batch: Any, payload: Any, order: int, keymap: Any, state: Any) -> bool:
    """Store for each record whether it is kept. False if the batch breaks a rule of the format."""
    rules, decisions = _rules(batch, order, keymap, state), state[DECISIONS]
    next_at = payload.address
    stop = next_at + payload.size_bytes
    waiting = 0
    for index in range(batch.record_count):
        next_at, offset_delta, key_at, key_bytes, at = key_of(next_at, stop)
        if next_at < 0:
            return False
        _, value_bytes, at = binary(at, next_at)
        if at < 0:
            return False
        offset = batch.base_offset + offset_delta
        decision = _first_decision(offset, key_bytes, value_bytes, rules)
        state[INVALID_RECORDS] += decision == _DROPPED_RECORD and key_bytes < 0
        if decision & _ASK:
            keys.queue(keymap, waiting, (key_at, key_bytes, stop), (offset, index))
            waiting += 1
        store_u8(decisions + index, decision & ~_ASK)
        if waiting == keys.RING_SLOTS:
            _decide_waiting(waiting, keymap, decisions)
            waiting = 0
    _decide_waiting(waiting, keymap, decisions)
    is_used_up: bool = next_at == stop or batch.record_count == 0
    return is_used_up


@inlined
def _count_kept(decisions: int, count: int) -> tuple[int, bool]:
    """How many records are kept, and whether a tombstone is among them."""
    kept = tombstones = 0
    for index in range(count):
        decision = load_u8(decisions + index)
        kept += decision & _KEPT
        tombstones += decision & _IS_TOMBSTONE
    return kept, tombstones > 0


@inlined
def _put_record(at: int, body: tuple[int, int], deltas: tuple[int, int], stop: int) -> int:
    """Write a record that has another timestamp delta now; the position after it."""
    rest_at, end = body
    timestamp_delta = zigzag(deltas[0])
    rest_bytes = end - rest_at
    at = put_varint(at, zigzag(1 + varint_size(timestamp_delta) + rest_bytes))
    store_u8(at, 0)
    at = put_varint(at + 1, timestamp_delta)
    copy(at, rest_at, rest_bytes, stop)
    return at + rest_bytes


@inlined
def _put_kept(at: int, batch: Any, payload: Any, base: Any, decisions: int) -> tuple[int, int, int]:
    """Write the records that stay: the position after them, base and largest timestamp.

    `base` is the timestamp that deltas count from, unless it is still to be the first record's.
    """
    base_timestamp, is_first = base
    is_appended = batch.attributes & layout.LOG_APPEND_TIME_BIT != 0
    largest = batch.max_timestamp if is_appended else _LONG_MIN
    next_at = payload.address
    stop = next_at + payload.size_bytes
    for index in range(batch.record_count):
        start, end = record_body(next_at, stop)
        next_at = end
        if load_u8(decisions + index) == _DROPPED_RECORD:
            continue
        timestamp_delta, offset_delta, rest_at, _ = numbers(start, end)
        timestamp = batch.max_timestamp
        if not is_appended:
            timestamp = wrapping_add(batch.base_timestamp, timestamp_delta)
        if is_first:
            base_timestamp = timestamp
            is_first = False
        largest = max(largest, timestamp)
        deltas = (wrapping_sub(timestamp, base_timestamp), offset_delta)
        at = _put_record(at, (rest_at, end), deltas, stop)
    return at, base_timestamp, largest


@not_inlined
def _put_header(at: int, end: int, batch: Any, new: Any) -> None:
    """The header of the batch in [at, end); `new` is what it does not share with the old one."""
    attributes, base_timestamp, max_timestamp, record_count = new
    store_be_i64(at, batch.base_offset)
    store_be_i32(at + layout.BATCH_LENGTH_AT, end - at - layout.PREFIX_BYTES)
    store_be_i32(at + layout.LEADER_EPOCH_AT, batch.partition_leader_epoch)
    store_u8(at + layout.MAGIC_AT, layout.MAGIC_2)
    store_be_i16(at + layout.ATTRIBUTES_AT, attributes)
    store_be_i32(at + layout.LAST_OFFSET_DELTA_AT, batch.last_offset - batch.base_offset)
    store_be_i64(at + layout.BASE_TIMESTAMP_AT, base_timestamp)
    store_be_i64(at + layout.MAX_TIMESTAMP_AT, max_timestamp)
    store_be_i64(at + layout.PRODUCER_ID_AT, batch.producer_id)
    store_be_i16(at + layout.PRODUCER_EPOCH_AT, batch.producer_epoch)
    store_be_i32(at + layout.BASE_SEQUENCE_AT, batch.base_sequence)
    store_be_i32(at + layout.RECORD_COUNT_AT, record_count)
    store_be_i32(at + layout.CRC_AT, batch_crc(at, end - at))


@inlined
def _rebuild(at: int, batch: Any, payload: Any, horizon: Any, decisions: int) -> Any:
    """Write the batch with what stays of it: the position after it and its largest timestamp."""
    sets_horizon, horizon_ms, kept_count = horizon
    attributes = batch.attributes | (layout.DELETE_HORIZON_BIT if sets_horizon else 0)
    base_timestamp = horizon_ms if sets_horizon else batch.base_timestamp
    base = (base_timestamp, attributes & layout.DELETE_HORIZON_BIT == 0)
    end, base_timestamp, largest = _put_kept(
        at + layout.HEADER_BYTES, batch, payload, base, decisions
    )
    _put_header(at, end, batch, (attributes, base_timestamp, largest, kept_count))
    return end, largest


@inlined
def _empty(at: int, batch: Any) -> int:
    """Write a header without records, so that sequences and offsets stay known."""
    end = at + layout.HEADER_BYTES
    attributes = batch.attributes & ~(layout.CODEC_MASK | layout.DELETE_HORIZON_BIT)
    _put_header(at, end, batch, (attributes, layout.NO_TIMESTAMP, batch.max_timestamp, 0))
    return end


@inlined
def _room_needed(batch: Any, payload: Any) -> int:
    rebuilt = layout.HEADER_BYTES + payload.size_bytes + _RECORD_GROWTH_MAX * batch.record_count
    needed: int = max(rebuilt, batch.size_bytes)
    return needed


@inlined
def _write(at: int, batch: Any, payload: Any, order: int, state: Any) -> Any:
    """Write what stays of a batch whose records are decided on.

    The position after it, what became of it, how many records stayed, its largest timestamp.
    """
    decisions, count = state[DECISIONS], batch.record_count
    kept_count, has_tombstone = 0, False
    if order & DISCARD == 0:
        kept_count, has_tombstone = _count_kept(decisions, count)
    if kept_count == 0:
        if order & RETAIN_EMPTY:
            return _empty(at, batch), EMPTIED, 0, batch.max_timestamp
        return at, DROPPED, 0, layout.NO_TIMESTAMP
    is_due = has_tombstone or order & IS_EMPTY_TXN_MARKER != 0
    sets_horizon = is_due and batch.attributes & layout.DELETE_HORIZON_BIT == 0
    if kept_count == count and not sets_horizon:
        memcpy(at, state[BUF] + batch.position, batch.size_bytes)
        return at + batch.size_bytes, COPIED, count, batch.max_timestamp
    horizon = (sets_horizon, state[HORIZON_MS], kept_count)
    end, largest = _rebuild(at, batch, payload, horizon, decisions)
    action = UNPACKED if batch.attributes & layout.CODEC_MASK else REBUILT
    return end, action, kept_count, largest


@kernel(
    types.int64(BATCHES, PAYLOADS, types.uint8[::1], types.int64[::1], types.int64[::1], BATCHES)
)
def filter_batches(
    batches: Any, payloads: Any, orders: Any, keymap: Any, state: Any, kept: Any
) -> int:
    """Write what stays of the batches to OUT, until there is no room for another.

    Returns how many batches were gone through: what became of each takes the place of its order,
    and `kept` has a row for each that was written, its position counted from OUT. With room for
    none, NEEDED is what the first one takes. CORRUPT, with BATCH_INDEX, if a batch breaks a rule
    of the format.
    """
    at = state[OUT]
    state[KEPT_BATCHES] = 0
    for b in range(len(batches)):
        batch, payload, order = batches[b], payloads[b], orders[b]
        state[BATCH_INDEX] = b
        state[NEEDED] = _room_needed(batch, payload)
        if state[OUT_END] - at < state[NEEDED]:
            state[USED] = at - state[OUT]
            return b
        if order & DISCARD == 0 and not _decide(batch, payload, order, keymap, state):
            return CORRUPT
        end, action, count, largest = _write(at, batch, payload, order, state)
        orders[b] = action
        state[RECORDS_READ] += batch.record_count
        state[RECORDS_KEPT] += count
        if action != DROPPED:
            row = state[KEPT_BATCHES]
            kept[row] = batch
            kept[row].position = at - state[OUT]
            kept[row].size_bytes = end - at
            kept[row].max_timestamp = largest
            kept[row].record_count = count
            state[KEPT_BATCHES] = row + 1
        at = end
    state[USED] = at - state[OUT]
    return len(batches)
