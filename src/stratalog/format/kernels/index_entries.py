"""Which batches get index entries: the compiled twin of `index_entries.after_batch`."""

from __future__ import annotations

from typing import Any

from numba import types

from stratalog.format.kernels.jit import kernel
from stratalog.format.kernels.memory import BATCHES

# Slots of `state`: an `IndexState`, and the timestamp of the last time entry.
MAX_TIMESTAMP, MAX_TIMESTAMP_OFFSET, BYTES_SINCE_ENTRY, LAST_INDEXED_TIMESTAMP = range(4)


@kernel(
    types.UniTuple(types.int64, 2)(
        BATCHES, types.int64, types.int64[::1], types.int64[::1], types.int64[:, ::1]
    )
)
def choose(
    batches: Any, interval_bytes: int, state: Any, indexed: Any, times: Any
) -> tuple[int, int]:
    """The number of offset entries and of time entries for these batches.

    `indexed` receives the rows that get an offset entry, `times` timestamp and offset of each time
    entry. Both must have room for one per batch.
    """
    bytes_since_entry = state[BYTES_SINCE_ENTRY]
    max_timestamp = state[MAX_TIMESTAMP]
    max_timestamp_offset = state[MAX_TIMESTAMP_OFFSET]
    last_indexed_timestamp = state[LAST_INDEXED_TIMESTAMP]
    offset_entries = 0
    time_entries = 0
    for i in range(len(batches)):
        batch = batches[i]
        if batch.max_timestamp > max_timestamp:
            max_timestamp = batch.max_timestamp
            max_timestamp_offset = batch.last_offset
        if bytes_since_entry > interval_bytes:
            indexed[offset_entries] = i
            offset_entries += 1
            if max_timestamp > last_indexed_timestamp:
                times[time_entries, 0] = max_timestamp
                times[time_entries, 1] = max_timestamp_offset
                time_entries += 1
                last_indexed_timestamp = max_timestamp
            bytes_since_entry = 0
        bytes_since_entry += batch.size_bytes
    state[BYTES_SINCE_ENTRY] = bytes_since_entry
    state[MAX_TIMESTAMP] = max_timestamp
    state[MAX_TIMESTAMP_OFFSET] = max_timestamp_offset
    state[LAST_INDEXED_TIMESTAMP] = last_indexed_timestamp
    return offset_entries, time_entries
