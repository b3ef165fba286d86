"""The partitions that Kafka's partitioner gives to a column of keys.

Importing this module loads compiled kernels; import it where many records are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from stratalog.format.kernels import partition as kernel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

UNPLACED: Final = kernel.UNPLACED
_BINARY: Final = (pa.binary(), pa.string())


def place_keys(keys: pa.Array, partition_count: int, partitions: NDArray[np.int32]) -> int:
    """Fill in `partitions` where it is UNPLACED and the key is not null: murmur2, as Kafka's
    clients do. Answers how many rows are left UNPLACED."""
    if partition_count <= 0 or len(keys) != len(partitions):
        raise ValueError(f"{len(keys)} keys, {len(partitions)} rows, {partition_count} partitions")
    if not len(keys):
        return 0
    if keys.type not in _BINARY:
        keys = keys.cast(pa.binary())
    valid, offsets, data = keys.buffers()
    return kernel.place_keys(
        offsets.address + 4 * keys.offset,
        data.address if data is not None else 0,
        valid.address if valid is not None else 0,
        keys.offset,
        partition_count,
        partitions,
    )
