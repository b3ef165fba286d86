"""Checks that the records of a batch are valid, in place, without copying them.

The structure of every record is checked, as `records.decode` does, and beyond it what only makes
sense for the batch as a whole: offset deltas that rise within the batch's span, and a largest
timestamp that is the records'.

What the kernel may touch, and nothing else: it reads the payloads and writes `found`. Every length
is checked against the end of what holds it before it is used.
"""

from __future__ import annotations

from typing import Any, Final

import numba
import numpy as np
from numba import types

from stratalog.format.batch import LOG_APPEND_TIME_BIT, NO_TIMESTAMP
from stratalog.format.kernels.jit import inlined, kernel
from stratalog.format.kernels.memory import BATCHES, PAYLOADS
from stratalog.format.kernels.record_fields import fields_end, record_numbers, wrapping_add

GOOD, BAD_RECORDS, BAD_OFFSETS, BAD_TIMESTAMP = range(4)

BATCH_CHECK: Final = np.dtype(
    [("status", np.int64), ("last_record_offset", np.int64), ("max_timestamp", np.int64)],
    align=True,
)
"""The result for one batch. The last record offset of a batch without records is before its base
offset."""

_FOUND: Final = numba.from_dtype(BATCH_CHECK)[::1]


@inlined
def _check_one(batch: Any, at: int, stop: int, out: Any) -> int:
    """The status on the records in [at, stop). The first fault of the structure ends it."""
    before = -1
    span = batch.last_offset - batch.base_offset
    largest = NO_TIMESTAMP
    status = GOOD
    for _ in range(batch.record_count):
        timestamp_delta, offset_delta, at, end = record_numbers(at, stop)
        if at < 0:
            return BAD_RECORDS
        largest = max(largest, wrapping_add(batch.base_timestamp, timestamp_delta))
        if offset_delta <= before or offset_delta > span:
            status = BAD_OFFSETS
        before = offset_delta
        if fields_end(at, end, False) != end:
            return BAD_RECORDS
        at = end
    if batch.record_count > 0 and at != stop:
        return BAD_RECORDS
    out.last_record_offset = batch.base_offset + before
    out.max_timestamp = largest
    is_appended = batch.attributes & LOG_APPEND_TIME_BIT
    if batch.record_count > 0 and not is_appended and largest != batch.max_timestamp:
        status = BAD_TIMESTAMP if status == GOOD else status
    return status


@kernel(types.void(BATCHES, PAYLOADS, _FOUND))
def check(batches: Any, payloads: Any, found: Any) -> None:
    """Judge each batch by its plain records. Its header must be good, its count not negative."""
    for b in range(len(batches)):
        at = payloads[b].address
        out = found[b]
        out.last_record_offset = batches[b].base_offset - 1
        out.max_timestamp = NO_TIMESTAMP
        out.status = _check_one(batches[b], at, at + payloads[b].size_bytes, out)
