"""Batches replayed against the limits of a segment: the compiled twin of `SegmentWriter.append`.

`replay` stops at the first batch that needs a new segment. As for an append,
`storage.roll.roll_reason` then returns the reason; the kernel only adds up numbers, so that no
object is created per batch.
"""

from __future__ import annotations

from typing import Any

from numba import types

from stratalog.format.kernels.jit import inlined, kernel
from stratalog.format.kernels.memory import BATCHES

# Slots of `state`: the segment so far.
(
    SIZE_BYTES,
    BASE_OFFSET,
    NEXT_OFFSET,
    FIRST_TIMESTAMP,
    MAX_TIMESTAMP,
    MAX_TIMESTAMP_OFFSET,
    BYTES_SINCE_ENTRY,
    LAST_INDEXED_TIMESTAMP,
    OFFSET_ENTRIES,
    TIME_ENTRIES,
    ANCHOR_POSITION,
    RECORDS,
    TIMED_RECORDS,
    MIN_TIMESTAMP,
    BATCH_COUNT,
    STATE_SLOTS,
) = range(16)

# Slots of `limits`.
(
    SEGMENT_BYTES,
    SEGMENT_MS,
    INTERVAL_BYTES,
    OFFSET_SLOTS,
    TIME_SLOTS,
    OFFSETS_MAX,
    LIMIT_SLOTS,
) = range(7)

# Slots of `sums`, as floats: they exceed 64 bits.
TIMESTAMP_SUM, SCANNED_SUM, TIME_ERROR_SUM, SUM_SLOTS = range(4)

# Buckets of a histogram: exact below 128, then 64 for every power of two.
_EXACT = 128
_STEPS = 64
BUCKETS = 59 * _STEPS


@inlined
def _bucket(value: int) -> int:
    shift = 0
    while value >= _EXACT:
        value >>= 1
        shift += 1
    return shift * _STEPS + value


def bucket_value(bucket: int) -> int:
    """The middle of what a bucket counts."""
    if bucket < _EXACT:
        return bucket
    shift = bucket // _STEPS - 1
    return ((bucket - shift * _STEPS) << shift) + (1 << shift >> 1)


@inlined
def _must_roll(batch: Any, limits: Any, state: Any) -> bool:
    """The rule of `storage.roll.roll_reason`. An empty segment takes any batch."""
    if state[SIZE_BYTES] == 0:
        return False
    first = state[FIRST_TIMESTAMP]
    is_old = first >= 0 and batch.max_timestamp - first > limits[SEGMENT_MS]
    is_full = (
        state[OFFSET_ENTRIES] >= limits[OFFSET_SLOTS] or state[TIME_ENTRIES] >= limits[TIME_SLOTS]
    )
    is_large = state[SIZE_BYTES] > limits[SEGMENT_BYTES] - batch.size_bytes
    is_far = batch.last_offset - state[BASE_OFFSET] > limits[OFFSETS_MAX]
    must: bool = is_old or is_full or is_large or is_far
    return must


@inlined
def _index(batch: Any, limits: Any, state: Any) -> bool:
    """The rule of `index_entries.after_batch`; whether the batch gets an offset entry."""
    if batch.max_timestamp > state[MAX_TIMESTAMP]:
        state[MAX_TIMESTAMP] = batch.max_timestamp
        state[MAX_TIMESTAMP_OFFSET] = batch.last_offset
    has_entry: bool = state[BYTES_SINCE_ENTRY] > limits[INTERVAL_BYTES]
    if has_entry:
        state[OFFSET_ENTRIES] += 1
        if state[MAX_TIMESTAMP] > state[LAST_INDEXED_TIMESTAMP]:
            state[LAST_INDEXED_TIMESTAMP] = state[MAX_TIMESTAMP]
            state[TIME_ENTRIES] += 1
        state[BYTES_SINCE_ENTRY] = 0
    state[BYTES_SINCE_ENTRY] += batch.size_bytes
    return has_entry


@inlined
def _count_scan(distance: int, records: int, has_entry: bool, sums: Any, found: Any) -> None:
    """How far lookups of these records scan. An entry has the last offset of its batch, so only a
    lookup of that one starts at the batch."""
    far = records - 1 if has_entry else records
    found[0, 0] += records - far
    found[0, _bucket(distance)] += far
    sums[SCANNED_SUM] += float(distance) * far


@inlined
def _count_time(
    timestamp: int, records: int, is_in_order: bool, state: Any, sums: Any, found: Any
) -> None:
    """How long before these records the entry is that a lookup of their time finds. Lookups of late
    records find others, so those are left out."""
    indexed = state[LAST_INDEXED_TIMESTAMP]
    error = timestamp - (indexed if indexed >= 0 else state[FIRST_TIMESTAMP])
    if is_in_order and error >= 0:
        found[1, _bucket(error)] += records
        sums[TIME_ERROR_SUM] += float(error) * records
    state[TIMED_RECORDS] += records
    sums[TIMESTAMP_SUM] += float(timestamp) * records
    if state[MIN_TIMESTAMP] < 0 or timestamp < state[MIN_TIMESTAMP]:
        state[MIN_TIMESTAMP] = timestamp


@kernel(
    types.int64(
        BATCHES,
        types.int64,
        types.int64[::1],
        types.int64[::1],
        types.float64[::1],
        types.int64[:, ::1],
    )
)
def replay(batches: Any, start: int, limits: Any, state: Any, sums: Any, found: Any) -> int:
    """Add the batches from row `start` on, up to one that needs a new segment; returns its row, or
    how many rows there are.

    `found` has two histograms of records: bytes between where the offset index leads and the batch,
    and milliseconds between the entry of the time index and the batch.
    """
    for i in range(start, len(batches)):
        batch = batches[i]
        if _must_roll(batch, limits, state):
            return i
        position, timestamp = state[SIZE_BYTES], batch.max_timestamp
        records = max(1, batch.record_count)
        if position == 0:
            state[FIRST_TIMESTAMP] = timestamp
        is_in_order = timestamp >= state[MAX_TIMESTAMP]
        has_entry = _index(batch, limits, state)
        _count_scan(position - state[ANCHOR_POSITION], records, has_entry, sums, found)
        if has_entry:
            state[ANCHOR_POSITION] = position
        if timestamp >= 0:
            _count_time(timestamp, records, is_in_order, state, sums, found)
        state[RECORDS] += records
        state[BATCH_COUNT] += 1
        state[SIZE_BYTES] += batch.size_bytes
        state[NEXT_OFFSET] = batch.last_offset + 1
    return len(batches)
