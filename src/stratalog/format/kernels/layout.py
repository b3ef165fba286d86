"""The tables kernels read and write: one row a batch, and the slots of their answers."""

from __future__ import annotations

from typing import Final

import numba
import numpy as np

BATCH: Final = np.dtype(
    [
        ("position", np.int64),
        ("base_offset", np.int64),
        ("last_offset", np.int64),
        ("base_timestamp", np.int64),
        ("max_timestamp", np.int64),
        ("producer_id", np.int64),
        ("size_bytes", np.int32),
        ("partition_leader_epoch", np.int32),
        ("crc", np.uint32),
        ("base_sequence", np.int32),
        ("record_count", np.int32),
        ("attributes", np.int16),
        ("producer_epoch", np.int16),
        ("magic", np.int8),
    ],
    align=True,
)
"""One batch or legacy message. What a legacy header does not tell is -1."""

PAYLOAD: Final = np.dtype([("address", np.int64), ("size_bytes", np.int64)], align=True)
"""Where the plain records of a batch lie in memory."""

BATCHES: Final = numba.from_dtype(BATCH)[::1]
PAYLOADS: Final = numba.from_dtype(PAYLOAD)[::1]
