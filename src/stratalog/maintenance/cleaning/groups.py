"""Which segments a round rewrites together, and how long legacy tombstones stay.

Every segment below the end of the offset map is rewritten, the clean head included. Neighbours
become one segment as long as it is sure to stay within the topic's limits, whatever survives: sizes
are those before cleaning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.config import LogConfig
    from stratalog.maintenance.cleaning.log_facts import SegmentFacts

RELATIVE_OFFSET_MAX: Final = (1 << 31) - 1
NO_LEGACY_HORIZON_MS: Final = 0


def group_segments(
    segments: Sequence[SegmentFacts], end_offset: int, bound: int, config: LogConfig
) -> list[tuple[SegmentFacts, ...]]:
    """Groups of the sealed segments that begin below `end_offset`, left to right, as full as can.

    `bound` is the first uncleanable offset: no record of the last segment reaches it.
    """
    chosen = [s for s in segments if s.base_offset < end_offset and not s.is_active]
    groups: list[_Group] = []
    for slot, segment in enumerate(chosen):
        next_base = chosen[slot + 1].base_offset if slot + 1 < len(chosen) else bound
        if groups and groups[-1].has_room_for(segment, next_base - 1, config):
            groups[-1].add(segment)
        else:
            groups.append(_Group(segment))
    return [tuple(group.segments) for group in groups]


class _Group:
    """Segments that become one, with running sums: a log may have very many small ones."""

    def __init__(self, first: SegmentFacts) -> None:
        self.segments: list[SegmentFacts] = []
        self._size_bytes = self._offset_index_bytes = self._time_index_bytes = 0
        self.add(first)

    def add(self, segment: SegmentFacts) -> None:
        self.segments.append(segment)
        self._size_bytes += segment.size_bytes
        self._offset_index_bytes += segment.offset_index_bytes
        self._time_index_bytes += segment.time_index_bytes

    def has_room_for(self, segment: SegmentFacts, last_offset: int, config: LogConfig) -> bool:
        if self._size_bytes + segment.size_bytes > config.segment_bytes:
            return False
        index_bytes_max = config.segment_index_bytes
        if self._offset_index_bytes + segment.offset_index_bytes > index_bytes_max:
            return False
        if self._time_index_bytes + segment.time_index_bytes > index_bytes_max:
            return False
        # An empty segment has no offsets to fit; else one would be left behind every 2^31 offsets.
        span = last_offset - self.segments[0].base_offset
        return not segment.size_bytes or span <= RELATIVE_OFFSET_MAX


def legacy_delete_horizon_ms(
    segments: Sequence[SegmentFacts], first_dirty_offset: int, delete_retention_ms: int
) -> int:
    """Tombstones of magic 0 and 1 stay in segments whose mtime is above this.

    Their batches cannot carry a horizon of their own, so the age of the newest clean segment has to
    do: its tombstones have been through a round since it was written.
    """
    clean = [s.mtime_ms for s in segments if s.base_offset < first_dirty_offset]
    return clean[-1] - delete_retention_ms if clean else NO_LEGACY_HORIZON_MS
