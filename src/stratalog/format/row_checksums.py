"""A checksum of rows by key and value, whatever their order and however they are divided.

What Spark computes again from the same input has the same checksum, even if it comes in other
tasks or another order; timestamps and headers do not count, and neither do partitions. Checksums of
parts add up (modulo 2^62) to that of the whole. It tells different rows apart by accident; nobody's
safety may depend on it.

Importing this module loads compiled kernels; import it where many records are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from stratalog.format.kernels import row_checksum as kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BINARY: Final = (pa.binary(), pa.string())


def checksum_rows(batch: pa.RecordBatch) -> int:
    """Of the columns `key` (null where it is missing) and `value`."""
    key = _binary(batch.column("key")) if "key" in batch.schema.names else None
    value = _binary(batch.column("value"))
    return kernel.sum_rows(_addresses(key), _addresses(value), batch.num_rows)


def _binary(column: pa.Array) -> pa.Array | None:
    """None for a column of nulls only."""
    if pa.types.is_null(column.type) or not len(column):
        return None
    return column if column.type in _BINARY else column.cast(pa.binary())


def _addresses(column: pa.Array | None) -> NDArray[np.int64]:
    """As the kernel takes them. The caller keeps the column meanwhile."""
    if column is None:
        return np.zeros(4, np.int64)
    valid, offsets, data = column.buffers()
    return np.array(
        [
            offsets.address + 4 * column.offset,
            data.address if data is not None else 0,
            valid.address if valid is not None else 0,
            column.offset,
        ],
        np.int64,
    )
