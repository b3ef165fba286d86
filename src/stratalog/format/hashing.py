"""Hashes of columns: of keys, of Kafka's partitioner, and checksums of rows.

Importing this module loads compiled kernels; import it where many records are read or written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from stratalog.format.kernels import hashing as kernel
from stratalog.format.kernels.jit import entry_point

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_SECRET: Final = (0x5741_7453_6C6F_6721, 0x2143_6F75_6E74_696E)
"""A constant, because hashes from several processes are compared."""


def hash_keys(column: pa.Array) -> NDArray[np.int64]:
    """64 bits for each key; a null counts as the empty key. Not safe against chosen keys."""
    hashes = np.zeros(len(column), np.int64)
    if not len(column):
        return hashes
    _, offsets, data = column.buffers()
    if data is None:  # nothing but nulls and empty keys
        data = pa.py_buffer(b"")
    column.validate()
    kernel.hash_column(
        offsets.address + 4 * column.offset, data.address, data.size, *_SECRET, hashes
    )
    return hashes


UNASSIGNED: Final = kernel.UNASSIGNED
_BINARY: Final = (pa.binary(), pa.string())


def partition_keys(keys: pa.Array, partition_count: int, partitions: NDArray[np.int32]) -> int:
    """Fill in `partitions` where it is UNASSIGNED and the key is not null: murmur2, as Kafka's
    clients do. Returns how many rows are still UNASSIGNED."""
    if partition_count <= 0 or len(keys) != len(partitions):
        raise ValueError(f"{len(keys)} keys, {len(partitions)} rows, {partition_count} partitions")
    if not len(keys):
        return 0
    if keys.type not in _BINARY:
        keys = keys.cast(pa.binary())
    return kernel.partition_keys(*_column_parts(keys), partition_count, partitions)


partition_key: Final[Callable[[bytes, int], int]] = entry_point(kernel.partition_key)
"""The partition of one key, given the number of partitions: murmur2, as above."""


def checksum_rows(batch: pa.RecordBatch) -> int:
    """A checksum of the columns `key` (null if it is missing) and `value`, in any order of rows.

    Checksums of parts add up (modulo 2^62) to that of all rows, so Spark may compute the same input
    in other tasks or another order. Timestamps, headers and partitions do not count. It detects
    accidental differences, not intended ones.
    """
    key = _binary(batch.column("key")) if "key" in batch.schema.names else None
    value = _binary(batch.column("value"))
    return kernel.sum_rows(_addresses(key), _addresses(value), batch.num_rows)


def _binary(column: pa.Array) -> pa.Array | None:
    """None for a column of nulls only."""
    if pa.types.is_null(column.type) or not len(column):
        return None
    return column if column.type in _BINARY else column.cast(pa.binary())


def _addresses(column: pa.Array | None) -> NDArray[np.int64]:
    """For the kernel. The caller must keep the column alive."""
    return np.array((0, 0, 0, 0) if column is None else _column_parts(column), np.int64)


def _column_parts(column: pa.Array) -> tuple[int, int, int, int]:
    """The addresses of a binary column's offsets, data and validity bits (0: there are none), and
    its first slot."""
    valid, offsets, data = column.buffers()
    return (
        offsets.address + 4 * column.offset,
        data.address if data is not None else 0,
        valid.address if valid is not None else 0,
        column.offset,
    )
