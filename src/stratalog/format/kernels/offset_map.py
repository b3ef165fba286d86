"""The last offset of each key: an open-addressing table of three words a slot.

A slot holds the two words of a key's hash and its offset plus one; a slot whose last word is 0 is
empty. A table that is larger than the caches costs a miss for nearly every key, so hashes are
computed for many records, their slots asked for ahead of time, and the keys put in only then.
Hashing touches the records and putting in the table, so one thread can do each.

What the kernels may touch, and nothing else: the table (SLOT_COUNT slots), the ring (RING_SLOTS
times RING_WORDS words), the state, and payloads from `address` to `address + size_bytes`.
"""

from __future__ import annotations

from typing import Any

from numba import types

from stratalog.format.kernels.hashing import hash_key
from stratalog.format.kernels.jit import inlined, kernel
from stratalog.format.kernels.memory import (
    BATCHES,
    PAYLOADS,
    load_le_i64,
    load_u8,
    prefetch,
    store_i64,
    store_u8,
)
from stratalog.format.kernels.record_fields import key_of

# Words of the state: what the caller fills, and what the kernels keep.
TABLE, SLOT_COUNT, ENTRIES_MAX, SECRET_0, SECRET_1, RING, START_OFFSET = range(7)
ENTRIES, LATEST_OFFSET, IS_FULL, BATCH_INDEX = range(7, 11)
STATE_WORDS = 11

SLOT_BYTES = 24
RING_SLOTS = 512
HASHED_WORDS = 4
_PREFETCH_AHEAD = 24
RING_WORDS = 4
_SECOND, _OFFSET = 8, 16  # in a slot
QUEUED_OFFSET, QUEUED_INDEX = 16, 24  # in an entry of the ring, behind the hash

CORRUPT = -1
NOT_FOUND = -1


@inlined
def slot_of(first: int, slot_count: int) -> int:
    """The slot where the search for a hash begins: as its upper half is to 2^32."""
    return ((first >> 32) & 0xFFFF_FFFF) * slot_count >> 32


@inlined
def prefetch_slot(table: int, slot_count: int, first: int) -> None:
    at = table + SLOT_BYTES * slot_of(first, slot_count)
    prefetch(at)
    prefetch(at + SLOT_BYTES - 1)  # a slot may lie across two cache lines


@inlined
def find(table: int, slot_count: int, first: int, second: int) -> int:
    """The address of the slot that has this hash, or of the empty one where it belongs."""
    slot = slot_of(first, slot_count)
    while True:
        at = table + SLOT_BYTES * slot
        if load_le_i64(at + _OFFSET) == 0:
            return at
        if load_le_i64(at) == first and load_le_i64(at + _SECOND) == second:
            return at
        slot += 1
        if slot == slot_count:
            slot = 0


@inlined
def offset_at(slot: int) -> int:
    """NOT_FOUND for an empty slot."""
    number: int = load_le_i64(slot + _OFFSET)
    return number - 1


@inlined
def _put(state: Any, first: int, second: int, offset: int) -> None:
    """There must be an empty slot."""
    at = find(state[TABLE], state[SLOT_COUNT], first, second)
    before = load_le_i64(at + _OFFSET)
    if before == 0:
        store_i64(at, first)
        store_i64(at + _SECOND, second)
        state[ENTRIES] += 1
    if offset + 1 > before:
        store_i64(at + _OFFSET, offset + 1)


@inlined
def queue(state: Any, waiting: int, key: tuple[int, int, int], what: tuple[int, int]) -> None:
    """Queue a record until the slot of its key is in the CPU cache.

    `key` is address, size and the end of what may be read; `what` the offset and a number.
    """
    key_at, key_bytes, readable_end = key
    secret = (state[SECRET_0], state[SECRET_1])
    first, second = hash_key(key_at, key_bytes, secret, readable_end)
    prefetch_slot(state[TABLE], state[SLOT_COUNT], first)
    at = state[RING] + 8 * RING_WORDS * waiting
    store_i64(at, first)
    store_i64(at + _SECOND, second)
    store_i64(at + QUEUED_OFFSET, what[0])
    store_i64(at + QUEUED_INDEX, what[1])


@kernel(types.int64(BATCHES, PAYLOADS, types.boolean[::1], types.int64[::1], types.int64[:, ::1]))
def hash_batches(batches: Any, payloads: Any, is_wanted: Any, state: Any, hashed: Any) -> int:
    """Hash the keys of the wanted batches, from START_OFFSET on: how many records have one.

    `hashed` gets the hash, the offset and the row of the batch; it must have room for all records.
    Of the state only BATCH_INDEX is changed, and only if the answer is CORRUPT.
    """
    secret, start_offset = (state[SECRET_0], state[SECRET_1]), state[START_OFFSET]
    count = 0
    for b in range(len(batches)):
        if not is_wanted[b]:
            continue
        next_at = payloads[b].address
        stop = next_at + payloads[b].size_bytes
        for _ in range(batches[b].record_count):
            next_at, offset_delta, key_at, key_bytes, _ = key_of(next_at, stop)
            if next_at < 0:
                state[BATCH_INDEX] = b
                return CORRUPT
            offset = batches[b].base_offset + offset_delta
            if key_bytes >= 0 and offset >= start_offset:
                first, second = hash_key(key_at, key_bytes, secret, stop)
                hashed[count, 0] = first
                hashed[count, 1] = second
                hashed[count, 2] = offset
                hashed[count, 3] = b
                count += 1
    return count


@inlined
def _stop_at(batches: Any, state: Any, b: int, last_batch: int) -> None:
    """The table is full when a record of batch `b` comes; `last_batch` is that of the one before.

    If nothing of the batch is in, the one before it is accounted for as a whole.
    """
    state[IS_FULL] = 1
    if b > 0 and last_batch != b:
        before = batches[b - 1].last_offset
        if before >= state[START_OFFSET]:
            state[LATEST_OFFSET] = max(before, state[LATEST_OFFSET])


@kernel(types.void(BATCHES, types.int64[:, ::1], types.int64[::1]))
def put_hashed(batches: Any, hashed: Any, state: Any) -> None:
    """Put in what `hash_batches` found in these batches, until the table is full.

    LATEST_OFFSET is the last offset that was considered: inside a batch if the table is full by
    then.
    """
    count, last_batch = len(hashed), -1
    for i in range(count):
        ahead = i + _PREFETCH_AHEAD
        if ahead < count:
            prefetch_slot(state[TABLE], state[SLOT_COUNT], hashed[ahead, 0])
        if state[ENTRIES] >= state[ENTRIES_MAX]:
            _stop_at(batches, state, hashed[i, 3], last_batch)
            return
        _put(state, hashed[i, 0], hashed[i, 1], hashed[i, 2])
        state[LATEST_OFFSET] = hashed[i, 2]
        last_batch = hashed[i, 3]
    if len(batches):
        last_offset = batches[len(batches) - 1].last_offset
        if last_offset >= state[START_OFFSET]:
            state[LATEST_OFFSET] = max(last_offset, state[LATEST_OFFSET])


@kernel(types.void(types.int64[::1], types.int64[::1], types.int64[::1], types.int64[::1]))
def put_hashes(first: Any, second: Any, offsets: Any, state: Any) -> None:
    """Put in what another table holds. There must be room; a larger offset wins."""
    for i in range(len(offsets)):
        _put(state, first[i], second[i], offsets[i])


@kernel(types.void(types.int64, types.int64, types.int64, types.int64[::1]))
def put_key(at: int, size: int, offset: int, state: Any) -> None:
    """Put in one key. There must be room."""
    first, second = hash_key(at, size, (state[SECRET_0], state[SECRET_1]), at + size)
    _put(state, first, second, offset)


@kernel(types.int64(types.int64, types.int64, types.int64[::1]))
def find_key(at: int, size: int, state: Any) -> int:
    """The offset of the key in the `size` bytes at address `at`, or NOT_FOUND."""
    first, second = hash_key(at, size, (state[SECRET_0], state[SECRET_1]), at + size)
    return offset_at(find(state[TABLE], state[SLOT_COUNT], first, second))


@inlined
def is_marked(marks: int, index: int) -> bool:
    byte: int = load_u8(marks + (index >> 3))
    return byte >> (index & 7) & 1 != 0


@kernel(types.void(types.int64[::1], types.int64, types.int64, types.int64))
def mark_offsets(state: Any, marks: int, start_offset: int, count: int) -> None:
    """Set the bit of each offset in the table that lies in [start_offset, start_offset + count)."""
    table = state[TABLE]
    for slot in range(state[SLOT_COUNT]):
        index = offset_at(table + SLOT_BYTES * slot) - start_offset
        if 0 <= index < count:
            at = marks + (index >> 3)
            store_u8(at, load_u8(at) | 1 << (index & 7))
