"""Which records retention may have deleted: each process notes the segments of a log just before it
deletes the oldest of them, and the checker applies Kafka's rules to what was noted."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from stratalog.log.partition_view import read_topic_id
from stratalog.log.segment_changes import SegmentChanges
from stratalog.storage.segment_view import SegmentView
from tests.torture.setup import now_ms

if TYPE_CHECKING:
    from tests.torture.setup import Journal, Kind


class SegmentNote(NamedTuple):
    """A segment, by its file alone: indexes and what a writer remembers may be wrong."""

    base_offset: int
    end_offset: int
    """Where the next one begins, or the log ends."""
    size_bytes: int
    newest_ms: int
    """Largest timestamp of its batches."""


@dataclass(frozen=True)
class Deletion:
    """The `count` oldest segments of a log are about to be deleted."""

    at_ms: int
    count: int
    log_start_offset: int
    high_watermark: int
    segments: tuple[SegmentNote, ...]
    """All of them, before."""

    @classmethod
    def of(cls, log: SegmentChanges, count: int) -> Self:
        segments, offsets = log.segments, log._offsets
        ends = [*(segment.base_offset for segment in segments[1:]), offsets.end]
        notes = []
        for segment, end_offset in zip(segments, ends, strict=True):
            view = SegmentView(segment.path, segment.base_offset, segment.size_bytes)
            newest_ms = max((header.max_timestamp for _, header in view.walk_headers()), default=-1)
            view.release()
            notes.append(
                SegmentNote(segment.base_offset, end_offset, segment.size_bytes, newest_ms)
            )
        return cls(now_ms(), count, offsets.log_start, offsets.high_watermark, tuple(notes))

    @classmethod
    def from_note(cls, segments: list[list[int]], **facts: Any) -> Self:
        return cls(segments=tuple(SegmentNote(*segment) for segment in segments), **facts)

    @property
    def new_start(self) -> int:
        return self.segments[self.count - 1].end_offset

    def count_allowed(self, kind: Kind) -> int:
        """How many of the oldest segments Kafka would delete: by the log start offset, then by
        size, then by time. Each pass stops at the first segment that it keeps."""
        rest = [each for each in self.segments if each.end_offset <= self.high_watermark]
        if rest and rest[-1] == self.segments[-1] and not rest[-1].size_bytes:
            rest.pop()
        total = len(rest)
        while rest and self._is_below_start(rest[0]):
            rest.pop(0)
        if kind.is_deleted:
            removed = total - len(rest)
            excess = sum(each.size_bytes for each in self.segments[removed:])
            excess -= kind.retention_bytes or 0
            while kind.retention_bytes is not None and rest and excess >= rest[0].size_bytes:
                excess -= rest.pop(0).size_bytes
            while kind.retention_ms is not None and rest and self._is_old(rest[0], kind):
                rest.pop(0)
        return total - len(rest)

    def _is_below_start(self, segment: SegmentNote) -> bool:
        return segment != self.segments[-1] and segment.end_offset <= self.log_start_offset

    def _is_old(self, segment: SegmentNote, kind: Kind) -> bool:
        assert kind.retention_ms is not None
        return self.at_ms - segment.newest_ms > kind.retention_ms


def note_deletions(journal: Journal) -> None:
    """From now on, in this process."""
    delete_oldest = SegmentChanges.delete_oldest

    def noted(log: SegmentChanges, count: int) -> int:
        with log.lock:
            topic_id = read_topic_id(log._segments.path)
            name, number = log._topic_partition
            if count and topic_id is not None and not name.startswith("__"):
                facts = asdict(Deletion.of(log, count))
                journal.note("retention", topic=name, id=str(topic_id), partition=number, **facts)
            return delete_oldest(log, count)

    SegmentChanges.delete_oldest = noted  # type: ignore[assignment, method-assign]
