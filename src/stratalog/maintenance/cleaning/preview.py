"""What a cleaning pass would leave of a log: the pass itself, on a log that is only read.

Both steps run as in `cleaner`; what the second one would write is counted and dropped. So the size
is exact, for as long as all keys fit the offset map (else several passes would follow).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stratalog.log.producer_transitions import ProducerState
from stratalog.maintenance.cleaning.cleaner import DEDUPE_BUFFER_BYTES
from stratalog.maintenance.cleaning.filtering import last_records
from stratalog.maintenance.cleaning.offset_map import OffsetMap, map_keys
from stratalog.maintenance.cleaning.rewriting import RewritePlan, Rewriter
from stratalog.maintenance.cleaning.sources import BatchReader, source_segments

if TYPE_CHECKING:
    from collections.abc import Callable

    from stratalog.config import LogConfig
    from stratalog.log.partition_view import PartitionView
    from stratalog.maintenance.cleaning.plan import CleaningPlan, RecordCounts
    from stratalog.maintenance.cleaning.sources import SourceSegment


class CleaningPreview(NamedTuple):
    """What a pass would free and keep."""

    freed_bytes: int
    """By how much the log would be smaller."""
    records: RecordCounts


def preview_cleaning(
    view: PartitionView,
    plan: CleaningPlan,
    config: LogConfig,
    *,
    on_progress: Callable[[int], None] = lambda _: None,
) -> CleaningPreview:
    """What a pass over the planned range would do. Reads the log, and never writes."""
    first_dirty = plan.first_dirty_offset
    sources = source_segments(view, plan)
    keys = OffsetMap(DEDUPE_BUFFER_BYTES)
    with BatchReader() as reader:
        dirty = [source for source in sources if source.end_offset > first_dirty]
        map_keys(keys, dirty, first_dirty, reader, on_progress)
        end_offset = max(first_dirty, keys.latest_offset + 1)
        producers = last_records(map(ProducerState.from_entry, view.producers))
        rewrite_plan = RewritePlan.of(config, producers, plan, end_offset)
        rewriter = Rewriter(keys, rewrite_plan.rules(keys.get))
        cleaned = [source for group in rewrite_plan.grouped(sources) for source in group]
        after_bytes = sum(_rewritten_bytes(rewriter, each, reader, on_progress) for each in cleaned)
    before_bytes = sum(source.facts.size_bytes for source in cleaned)
    return CleaningPreview(before_bytes - after_bytes, rewriter.counts)


def _rewritten_bytes(
    rewriter: Rewriter,
    source: SourceSegment,
    reader: BatchReader,
    on_progress: Callable[[int], None],
) -> int:
    size_bytes = 0
    rewriter.begin(source)
    for run in source.runs(reader):
        for written in rewriter.rewrite(run, source.facts.mtime_ms):
            size_bytes += int(written.compressed().rows["size_bytes"].sum())
        on_progress(int(run.rows["size_bytes"].sum()))
    return size_bytes
