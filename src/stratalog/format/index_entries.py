"""When a batch gets index entries: the one rule behind append, recovery and in-memory rebuilding.

Per segment, for each batch in order:

1. a larger max timestamp than any before replaces the (timestamp, last offset) kept so far;
2. when more than `interval_bytes` bytes precede the batch since the last entry, it gets an offset
   entry, and the kept pair is offered to the time index, which takes it if it is newer;
3. at the end of the segment the kept pair is offered once more.

So the first batch never has an entry, and an entry exists only after more than the interval.
"""

from __future__ import annotations

from typing import Final

from stratalog.format.batch import NO_TIMESTAMP
from stratalog.format.offset_index import OffsetEntry
from stratalog.format.time_index import TimeEntry

INTERVAL_BYTES_DEFAULT: Final = 4096


class IndexBuilder:
    """Builds the bytes of both sparse indexes from a segment's batches, fed in log order."""

    def __init__(self, base_offset: int, interval_bytes: int = INTERVAL_BYTES_DEFAULT) -> None:
        self.offset_index = bytearray()
        self.time_index = bytearray()
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        """Last offset of the earliest batch that reached `max_timestamp`."""
        self.base_offset = base_offset
        self.interval_bytes = interval_bytes
        self.bytes_since_entry = 0
        self.last_indexed_timestamp = NO_TIMESTAMP

    def add(self, position: int, size_bytes: int, last_offset: int, max_timestamp: int) -> None:
        """Take the batch at `position`. Its last offset must fit the segment's int32 range."""
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if self.bytes_since_entry > self.interval_bytes:
            entry = OffsetEntry(last_offset, position)
            self.offset_index += entry.pack(base_offset=self.base_offset)
            self._offer_time()
            self.bytes_since_entry = 0
        self.bytes_since_entry += size_bytes

    def finish(self) -> None:
        """The segment is complete: the largest timestamp gets its entry whatever the interval."""
        self._offer_time()

    def _offer_time(self) -> None:
        if self.max_timestamp > self.last_indexed_timestamp:
            entry = TimeEntry(self.max_timestamp, self.max_timestamp_offset)
            self.time_index += entry.pack(base_offset=self.base_offset)
            self.last_indexed_timestamp = self.max_timestamp
