"""The second pass of a round as a value: made once, then carried out here or elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratalog.maintenance.cleaning.filtering import PassRules, last_records
from stratalog.maintenance.cleaning.groups import group_segments, legacy_delete_horizon_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stratalog.config import LogConfig
    from stratalog.log.partition_log import PartitionLog
    from stratalog.maintenance.cleaning.filtering import LastRecord
    from stratalog.maintenance.cleaning.log_facts import SegmentFacts
    from stratalog.maintenance.cleaning.selection import Selection
    from stratalog.maintenance.cleaning.sources import Source


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """What the second pass does: which segments become one, and what decides on their records."""

    end_offset: int
    groups: tuple[tuple[SegmentFacts, ...], ...]
    config: LogConfig
    bound: int
    now_ms: int
    legacy_horizon_ms: int
    producers: dict[int, LastRecord]

    @classmethod
    def of(cls, log: PartitionLog, selection: Selection, end_offset: int) -> RewritePlan:
        """For a round whose first pass came up to `end_offset`."""
        config, bound = log.config, selection.first_uncleanable_offset
        with log.changing():
            producers = last_records(log.producers.producers.values())
        return cls(
            end_offset=end_offset,
            groups=tuple(group_segments(selection.segments, end_offset, bound, config)),
            config=config,
            bound=bound,
            now_ms=selection.now_ms,
            legacy_horizon_ms=legacy_delete_horizon_ms(
                selection.segments, selection.first_dirty_offset, config.delete_retention_ms
            ),
            producers=producers,
        )

    def rules(self, newest_offset_of: Callable[[bytes], int]) -> PassRules:
        """With the offset map in its readable form."""
        return PassRules(
            newest_offset_of=newest_offset_of,
            map_latest_offset=self.end_offset - 1,
            bound=self.bound,
            now_ms=self.now_ms,
            delete_retention_ms=self.config.delete_retention_ms,
            legacy_horizon_ms=self.legacy_horizon_ms,
            producers=self.producers,
        )

    def grouped(self, sources: Iterable[Source]) -> list[tuple[Source, ...]]:
        """The sources of each group."""
        by_base = {source.base_offset: source for source in sources}
        return [tuple(by_base[facts.base_offset] for facts in group) for group in self.groups]

    @property
    def bases(self) -> tuple[tuple[int, ...], ...]:
        """Base offsets of the segments in each group."""
        return tuple(tuple(facts.base_offset for facts in group) for group in self.groups)
