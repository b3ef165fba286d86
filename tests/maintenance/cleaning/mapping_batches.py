"""Keys of whole batches put into an offset map, without the reading around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stratalog.maintenance.cleaning.offset_map import OffsetMap


def put_batches(
    found: OffsetMap, rows: NDArray[Any], payloads: NDArray[Any], is_wanted: NDArray[np.bool_]
) -> int | None:
    """Put the keys of these batches into a map; None, or the row of one that is not in order."""
    keys = found.hashed(rows, payloads, is_wanted)
    if isinstance(keys, int):
        return keys
    found.put_hashed(keys)
    return None
