"""Compaction of one log: only the last record of each key is kept.

A cleaning pass has two steps. The first reads the dirty part of the log and maps each key to its
last offset, until the memory for that is full. The second rewrites all segments up to there, the
clean head included, group by group; each group is installed before the next one is rewritten. So an
interrupted pass leaves a log that has every live key, and the next pass continues.

No lock is held while records are read: the segments are sealed. If the log is truncated or loses
segments meanwhile, the pass aborts (CleaningAbortedError).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stratalog.maintenance.cleaning.offset_map import LOAD_FACTOR, OffsetMap, map_keys
from stratalog.maintenance.cleaning.plan import UNCONTROLLED, Throttle, abort_if_truncated
from stratalog.maintenance.cleaning.rewriting import CleanedSegment, RewritePlan, Rewriter
from stratalog.maintenance.cleaning.sources import BatchReader, sources_of_log

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stratalog.log.partition_log import PartitionLog
    from stratalog.maintenance.cleaning.plan import CleaningPlan, CleaningResult, PassControl
    from stratalog.maintenance.cleaning.sources import SourceSegment

DEDUPE_BUFFER_BYTES: Final = 128 << 20
MEMORY_BYTES_MAX: Final = (1 << 31) - 1  # as in Kafka, whatever the setting


class Cleaner:
    """Cleans one log at a time and keeps its memory for the next one."""

    def __init__(
        self,
        memory_bytes: int = DEDUPE_BUFFER_BYTES,
        *,
        load_factor: float = LOAD_FACTOR,
        throttle: Throttle | None = None,
    ) -> None:
        """`memory_bytes` is a thread's share of `log.cleaner.dedupe.buffer.size`."""
        self._throttle = throttle or Throttle()
        self._map = OffsetMap(min(memory_bytes, MEMORY_BYTES_MAX), load_factor=load_factor)

    def clean(
        self, log: PartitionLog, plan: CleaningPlan, control: PassControl = UNCONTROLLED
    ) -> CleaningResult:
        """Run one cleaning pass over the planned range.

        Progress is reported as bytes are read: in total those of the dirty segments, then those of
        all segments below the end. Raises CorruptError if a batch is corrupt, and
        CleaningAbortedError if the log changes or the pass is to stop; segments that were replaced
        by then stay replaced.
        """
        started, epoch = time.monotonic(), log.truncation_epoch

        def step(bytes_done: int) -> None:
            self._throttle.pay(bytes_done, control.may_continue)
            control.step(log.path, bytes_done)

        with abort_if_truncated(log, epoch):
            done = self._rewrite(log, plan, epoch, step)
        counts, seconds = done.rewriter.counts, time.monotonic() - started
        return done.rewrite_plan.result(plan, self._map, counts, done.bytes_written, seconds)

    def _rewrite(
        self,
        log: PartitionLog,
        plan: CleaningPlan,
        truncation_epoch: int,
        step: Callable[[int], None],
    ) -> _Rewrite:
        """Run both steps of the pass."""
        first_dirty, sources = plan.first_dirty_offset, sources_of_log(log, plan)
        with BatchReader() as reader:
            dirty = [source for source in sources if source.end_offset > first_dirty]
            map_keys(self._map, dirty, first_dirty, reader, step)
            end_offset = max(first_dirty, self._map.latest_offset + 1)
            rewrite_plan = RewritePlan.of_log(log, plan, end_offset)
            rewriter = Rewriter(self._map, rewrite_plan.rules(self._map.get))
            rewrite = _Rewrite(log, rewrite_plan, rewriter, truncation_epoch)
            for group in rewrite_plan.grouped(sources):
                rewrite.group(group, reader, step)
        return rewrite


@dataclass
class _Rewrite:
    """The second step, group by group."""

    log: PartitionLog
    rewrite_plan: RewritePlan
    rewriter: Rewriter
    truncation_epoch: int
    bytes_written: int = 0

    def group(
        self, sources: Sequence[SourceSegment], reader: BatchReader, step: Callable[[int], None]
    ) -> None:
        """Rewrite adjacent segments into one that replaces them."""
        log, bases = self.log, [source.base_offset for source in sources]
        cleaned = CleanedSegment(log.maintenance.disk, log.path, bases[0], self.rewrite_plan.config)
        try:
            for source in sources:
                self.rewriter.rewrite_segment(source, cleaned, reader, step)
            new = cleaned.finish(sources[-1].facts.mtime_ms)
        except BaseException:
            cleaned.discard()
            raise
        old_bytes = sum(source.facts.size_bytes for source in sources)
        epoch = self.truncation_epoch
        log.maintenance.replace_segments(bases, new, old_bytes=old_bytes, truncation_epoch=epoch)
        self.bytes_written += new.size_bytes
