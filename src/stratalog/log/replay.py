"""Producer state from the log itself: the newest good snapshot, and the batches after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.log import snapshot_plan
from stratalog.log.segments import SegmentList
from stratalog.log.transactions import producer_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stratalog.format.batch import BatchHeader
    from stratalog.format.control import EndMarker
    from stratalog.log.producer_state import ProducerStateManager
    from stratalog.log.side_files import SnapshotFiles
    from stratalog.storage.segment import Segment


class ProducerReload:
    """Brings producer state and snapshots in line with a log that was loaded or cut."""

    def __init__(
        self,
        producers: ProducerStateManager,
        snapshots: SnapshotFiles,
        segments: Sequence[Segment],
        log_start_offset: int,
    ) -> None:
        self._producers = producers
        self._snapshots = snapshots
        self._segments = segments
        self._log_start_offset = log_start_offset

    def run(self, end_offset: int, now_ms: int, *, is_clean: bool = False) -> None:
        """State of everything below `end_offset`, with snapshots where a reload may want them.

        After a clean stop without any snapshot there never was a producer: brokers before 0.11
        had none. Then nothing is replayed.
        """
        bases = [segment.base_offset for segment in self._segments]
        due = snapshot_plan.to_take_on_rebuild(bases, end_offset)
        if is_clean and not self._snapshots.offsets:
            self._producers.truncate_fully_and_start_at(self._log_start_offset)
            self._take(due)
            return
        self._restore(end_offset, now_ms)
        for header, marker in self._batches_up_to(end_offset):
            reached = [offset for offset in due if offset <= header.base_offset]
            due = due[len(reached) :]
            self._take(reached)
            self._producers.replay(header, marker)
            if marker is not None:  # nobody reads meanwhile, so an ended transaction blocks nobody
                self._producers.on_high_watermark_updated(header.next_offset)
        self._take(due)

    def _batches_up_to(self, end_offset: int) -> Iterable[tuple[BatchHeader, EndMarker | None]]:
        """Those that the snapshot does not tell; often there are none, and nothing is read."""
        start_offset = self._producers.map_end_offset
        if start_offset >= end_offset:
            return ()
        views = SegmentList([segment.view() for segment in self._segments])
        return producer_batches(views, start_offset, end_offset)

    def _restore(self, end_offset: int, now_ms: int) -> None:
        snapshots, start_offset = self._snapshots, self._log_start_offset
        outside = snapshot_plan.out_of_range(snapshots.offsets, start_offset, end_offset)
        snapshots.delete(outside)
        unreadable = self._producers.truncate_and_reload(
            start_offset, end_offset, snapshots.newest_first(), now_ms
        )
        snapshots.delete(unreadable)

    def _take(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            if offset > self._producers.map_end_offset or offset == self._log_start_offset:
                self._producers.map_end_offset = max(offset, self._producers.map_end_offset)
            self._snapshots.take(self._producers)
