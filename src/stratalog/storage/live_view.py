"""The active segment as a reader sees it while it is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.format.index_search import WARM_BYTES
from stratalog.storage.index_view import IndexView
from stratalog.storage.segment_view import SegmentView

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from stratalog.storage.index_file import IndexFile
    from stratalog.storage.index_view import IndexFormat
    from stratalog.storage.log_file import LogFile
    from stratalog.storage.segment_end import SegmentEnd
    from stratalog.storage.trace import IndexKind


class LiveSegmentView(SegmentView):
    """What was published of an active segment when this view was made, and no more.

    Index entries come from the writer's memory: the files are preallocated, and finding their end
    would take longer than most lookups. Only the newest are copied; older ones are read from the
    file when asked for, as always.
    """

    def __init__(
        self,
        path: Path,
        base_offset: int,
        end: SegmentEnd,
        file: LogFile,
        indexes: Mapping[IndexKind, IndexFile],
    ) -> None:
        super().__init__(path, base_offset, end.position)
        self.end = end
        self.file = file
        self._indexes = indexes

    def load_index(self, of: IndexFormat) -> IndexView | None:
        index = self._indexes[of.kind]
        if index.is_trimmed:
            return super().load_index(of)
        entries = index.entries_below(self.end.next_offset)  # newer ones are not for this view
        tail_entries = min(entries, WARM_BYTES // of.entry_bytes)
        first = (entries - tail_entries) * of.entry_bytes
        tail = bytes(index.buffer[first : entries * of.entry_bytes])
        return IndexView.of_tail(of, self.sibling(of.extension), self.base_offset, tail, entries)
