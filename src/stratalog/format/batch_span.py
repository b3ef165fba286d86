"""Where a batch lies in a run of batches, and what the indexes want to know of it."""

from __future__ import annotations

from typing import NamedTuple


class BatchSpan(NamedTuple):
    """One batch or legacy entry. `position` counts from the start of the bytes it came in."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    max_timestamp: int
