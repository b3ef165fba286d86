"""Both sparse indexes of one segment: mapped for its writer, written from what its log says.

An index is never repaired. One that is missing, or contradicts the log, is built again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stratalog.errors import CorruptIndexError
from stratalog.storage.index_file import OffsetIndexFile, TimeIndexFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stratalog.format.index_rules import IndexBuilder
    from stratalog.storage.disk import Disk
    from stratalog.storage.segment_end import SegmentEnd


class IndexPair(NamedTuple):
    """Where the offset index and the time index of a segment are, or belong."""

    disk: Disk
    offset_index: Path
    time_index: Path
    base_offset: int

    def open(
        self, end: SegmentEnd, bytes_max: int, rebuild: Callable[[], IndexBuilder]
    ) -> tuple[OffsetIndexFile, TimeIndexFile]:
        """Map both at `bytes_max`, for a log that ends at `end`. `rebuild` reads the log, so it is
        asked only if need be. An empty log needs no files: mapping makes them."""
        if end.position and not self._are_there():
            self.write(rebuild())
        try:
            return self._map(end, bytes_max)
        except CorruptIndexError:
            self.write(rebuild())
            return self._map(end, bytes_max)

    def write(self, entries: IndexBuilder) -> None:
        """Replace both files. They are derived, so nothing is synced."""
        self.disk.write_file(self.offset_index, entries.offset_index, is_synced=False)
        self.disk.write_file(self.time_index, entries.time_index, is_synced=False)

    def _are_there(self) -> bool:
        return self.disk.exists(self.offset_index) and self.disk.exists(self.time_index)

    def _map(self, end: SegmentEnd, bytes_max: int) -> tuple[OffsetIndexFile, TimeIndexFile]:
        base_offset = self.base_offset
        offset_index = OffsetIndexFile(self.disk, self.offset_index, base_offset, bytes_max)
        offset_index.check(log_bytes=end.position, next_offset=end.next_offset)
        time_index = TimeIndexFile(self.disk, self.time_index, base_offset, bytes_max)
        time_index.check(next_offset=end.next_offset)
        return offset_index, time_index
