"""The rule for adding index entries, shared by appending, recovery, cleaning and reindexing.

Per segment, for each batch in order:

1. if its max timestamp is larger than any before, it becomes the segment's largest;
2. if more than `interval_bytes` bytes precede the batch since the last entry, it gets an offset
   entry; the largest timestamp gets a time entry if it is newer than the last time entry;
3. when the segment is complete, the largest timestamp is offered to the time index once more.

So the first batch of a segment never has an entry. `after_batch` is the rule;
`kernels/index_entries.py` is its compiled twin for whole tables of batches.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from stratalog.format.batch import NO_TIMESTAMP
from stratalog.format.offset_index import OffsetEntry
from stratalog.format.time_index import TimeEntry

INTERVAL_BYTES_DEFAULT: Final = 4096

IndexState: TypeAlias = tuple[int, int, int]
"""The state of the rule between two batches: the largest timestamp, the last offset of the first
batch that reached it, and the bytes since the last offset entry."""


def after_batch(
    state: IndexState, interval_bytes: int, size_bytes: int, last_offset: int, max_timestamp: int
) -> tuple[IndexState, bool]:
    """The state after a batch, and whether the batch gets an offset entry."""
    largest, largest_offset, since_entry = state
    if max_timestamp > largest:
        largest, largest_offset = max_timestamp, last_offset
    if since_entry > interval_bytes:
        return (largest, largest_offset, size_bytes), True
    return (largest, largest_offset, since_entry + size_bytes), False


class IndexBuilder:
    """Builds the bytes of both sparse indexes from a segment's batches, added in log order."""

    def __init__(self, base_offset: int, interval_bytes: int = INTERVAL_BYTES_DEFAULT) -> None:
        self.offset_index = bytearray()
        self.time_index = bytearray()
        self.base_offset = base_offset
        self.interval_bytes = interval_bytes
        self.state: IndexState = (NO_TIMESTAMP, base_offset, 0)
        self.last_indexed_timestamp = NO_TIMESTAMP

    @property
    def max_timestamp(self) -> int:
        return self.state[0]

    def add(self, position: int, size_bytes: int, last_offset: int, max_timestamp: int) -> None:
        """Add the batch at `position`. Its last offset must fit the segment's int32 range."""
        self.state, has_entry = after_batch(
            self.state, self.interval_bytes, size_bytes, last_offset, max_timestamp
        )
        if has_entry:
            entry = OffsetEntry(last_offset, position)
            self.offset_index += entry.pack(base_offset=self.base_offset)
            self._offer_time()

    def finish(self) -> None:
        """The segment is complete: the largest timestamp gets its entry whatever the interval."""
        self._offer_time()

    def _offer_time(self) -> None:
        largest, largest_offset, _ = self.state
        if largest > self.last_indexed_timestamp:
            entry = TimeEntry(largest, largest_offset)
            self.time_index += entry.pack(base_offset=self.base_offset)
            self.last_indexed_timestamp = largest
