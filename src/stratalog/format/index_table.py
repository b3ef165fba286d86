"""Index entries of whole tables of batches: the fast twin of `index_rules.IndexBuilder.add`.

Importing this module loads compiled kernels; import it where many batches are indexed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stratalog.format.batch import MAGIC_2
from stratalog.format.kernels import index as kernel
from stratalog.format.offset_index import RELATIVE_OFFSET_MAX

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stratalog.format.index_entries import IndexBuilder

_OFFSET_ENTRY: Final = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
_TIME_ENTRY: Final = np.dtype([("timestamp", ">i8"), ("relative_offset", ">i4")])


def add_batches(builder: IndexBuilder, rows: NDArray[Any], buffer_start: int = 0) -> None:
    """Take the batches of a `BatchTable` whose buffer began at byte `buffer_start` of the log.

    Their offsets must fit the segment, see `count_in_order`. Calls may alternate with `add`.
    """
    rows = np.ascontiguousarray(rows)
    state = np.empty(kernel.SLOTS, np.int64)
    state[kernel.BYTES_SINCE_ENTRY] = builder.bytes_since_entry
    state[kernel.MAX_TIMESTAMP] = builder.max_timestamp
    state[kernel.MAX_TIMESTAMP_OFFSET] = builder.max_timestamp_offset
    state[kernel.LAST_INDEXED_TIMESTAMP] = builder.last_indexed_timestamp
    indexed = np.empty(len(rows), np.int64)
    times = np.empty((len(rows), 2), np.int64)
    offsets_found, times_found = kernel.choose(rows, builder.interval_bytes, state, indexed, times)
    chosen, base_offset = rows[indexed[:offsets_found]], builder.base_offset
    offset_entries = np.empty(offsets_found, _OFFSET_ENTRY)
    offset_entries["relative_offset"] = chosen["last_offset"] - base_offset
    offset_entries["position"] = chosen["position"] + buffer_start
    time_entries = np.empty(times_found, _TIME_ENTRY)
    time_entries["timestamp"] = times[:times_found, 0]
    time_entries["relative_offset"] = times[:times_found, 1] - base_offset
    builder.offset_index += offset_entries.tobytes()
    builder.time_index += time_entries.tobytes()
    builder.bytes_since_entry = int(state[kernel.BYTES_SINCE_ENTRY])
    builder.max_timestamp = int(state[kernel.MAX_TIMESTAMP])
    builder.max_timestamp_offset = int(state[kernel.MAX_TIMESTAMP_OFFSET])
    builder.last_indexed_timestamp = int(state[kernel.LAST_INDEXED_TIMESTAMP])


def first_offsets(rows: NDArray[Any]) -> NDArray[np.int64]:
    """The offset that each entry begins with in the file; of a legacy set it is the last one."""
    first: NDArray[np.int64] = np.where(
        rows["magic"] == MAGIC_2, rows["base_offset"], rows["last_offset"]
    )
    return first


def fits_segment(rows: NDArray[Any], base_offset: int) -> NDArray[np.bool_]:
    """Which batches have offsets that an index of the segment at `base_offset` can hold."""
    first, last = first_offsets(rows), rows["last_offset"]
    # An offset near the largest int64 wraps around when the delta is added: below its first.
    fits: NDArray[np.bool_] = (first >= base_offset) & (last >= first)
    fits &= last - base_offset <= RELATIVE_OFFSET_MAX
    return fits
