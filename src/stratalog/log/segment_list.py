"""The segments of one log in offset order, as a reader sees them, and which of them has what.

A lookup may touch thousands of segments, so only the most recently used stay open; the others close
their file and forget what they read. Any number of threads may use a list.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from itertools import accumulate
from threading import RLock
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.format.offset_index import RELATIVE_OFFSET_MAX
from stratalog.storage.trace import SegmentStep

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stratalog.storage.segment_view import LargestTimestamp, SegmentEnd, SegmentView
    from stratalog.storage.trace import Trace

OPEN_SEGMENTS_MAX: Final = 64


class SegmentPart(NamedTuple):
    """A segment, and how far to read it."""

    segment: SegmentView
    start_offset: int
    """Records below it are not wanted, or belong to an earlier part."""
    end_position: int
    next_base: int | None
    """Base offset of the segment after it; None for the last."""

    @property
    def end_offset(self) -> int:
        """Exclusive: no batch of this part reaches it."""
        return self.segment.end.next_offset if self.next_base is None else self.next_base


class SegmentList:
    """Ordered by base offset; never empty."""

    def __init__(self, segments: Sequence[SegmentView], bases: Sequence[int] | None = None) -> None:
        """`bases` if they are known."""
        self.bases = bases or [segment.base_offset for segment in segments]
        self._segments = tuple(segments)
        self._open: OrderedDict[int, SegmentView] = OrderedDict()
        self._largest: list[LargestTimestamp] = []
        self._largest_so_far: list[int] = []
        self._lock = RLock()  # over the three above

    def with_last(self, segment: SegmentView) -> SegmentList:
        """The same list with a newer view of its last segment: the log has grown."""
        after = SegmentList((*self._segments[:-1], segment), self.bases)
        return self._followed_by(after, 0, len(self) - 1)

    def updated(self, segments: Sequence[SegmentView]) -> SegmentList:
        """A list of other segments, which keeps what is known of those that both have."""
        start = bisect_left(self.bases, segments[0].base_offset)
        kept = 0
        for mine, other in zip(self._segments[start:], segments, strict=False):
            if mine is not other:
                break
            kept += 1
        return self._followed_by(SegmentList(segments), start, kept)

    def _followed_by(self, after: SegmentList, start: int, kept: int) -> SegmentList:
        """`after` begins with `kept` segments of this list, from slot `start` on: what is known of
        them is known there, too."""
        with self._lock:
            after._lock, after._open = self._lock, self._open
            after._largest = self._largest[start : start + kept]
            if start:
                so_far = accumulate((largest.timestamp for largest in after._largest), max)
                after._largest_so_far = list(so_far)
            else:
                after._largest_so_far = self._largest_so_far[:kept]
        return after

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[SegmentView]:
        return (self[slot] for slot in range(len(self._segments)))

    def __getitem__(self, slot: int) -> SegmentView:
        segment = self._segments[slot]
        if len(self._segments) > OPEN_SEGMENTS_MAX:
            with self._lock:
                self._open[segment.base_offset] = segment
                self._open.move_to_end(segment.base_offset)
                if len(self._open) > OPEN_SEGMENTS_MAX:
                    self._open.popitem(last=False)[1].release()
        return segment

    @property
    def end(self) -> SegmentEnd:
        """Where the log ends."""
        return self._segments[-1].end

    def close(self) -> None:
        for segment in self._segments:
            segment.release()

    def slot_of(self, offset: int, trace: Trace | None = None) -> int:
        """The segment with the greatest base offset at or below `offset`; the first if none is."""
        slot = max(0, bisect_right(self.bases, offset) - 1)
        if trace is not None:
            segment = self._segments[slot]
            compared = _compared_by_bisection(self.bases, offset)
            reason = "the greatest base offset at or below the target"
            trace.add(SegmentStep(segment.path, segment.base_offset, reason, compared))
        return slot

    def slot_of_time(self, timestamp: int, trace: Trace | None = None) -> int | None:
        """The first segment, oldest first, whose largest timestamp is `timestamp` or later."""
        so_far = self._largest_so_far
        with self._lock:
            while len(so_far) < len(self) and (not so_far or so_far[-1] < timestamp):
                self._note_largest()
        slot = bisect_left(so_far, timestamp)
        if slot == len(so_far):
            return None
        if trace is not None:
            segment = self._segments[slot]
            compared = tuple(largest.timestamp for largest in self._largest[: slot + 1])
            reason = "the first whose largest timestamp is at or after the target"
            trace.add(SegmentStep(segment.path, segment.base_offset, reason, compared))
        return slot

    def largest_timestamp(self, slot: int) -> LargestTimestamp:
        """Largest timestamp of one segment, cached."""
        with self._lock:
            while len(self._largest) <= slot:
                self._note_largest()
        return self._largest[slot]

    def _note_largest(self) -> None:
        slot = len(self._largest)
        is_last = slot == len(self) - 1
        # The index of a live segment must not be newer than the bytes seen: its end goes first.
        next_offset = self.end.next_offset if is_last else self.bases[slot + 1]
        is_beyond = next_offset - self.bases[slot] > RELATIVE_OFFSET_MAX + 1
        largest = self._segments[slot].known_largest
        if largest is None or is_beyond:
            times = self[slot].times
            largest = times.largest
            if is_beyond and times.largest_out_of_reach.timestamp > largest.timestamp:
                largest = times.largest_out_of_reach
        self._largest.append(largest)
        before = self._largest_so_far[-1] if self._largest_so_far else largest.timestamp
        self._largest_so_far.append(max(before, largest.timestamp))

    def parts_from(self, offset: int, trace: Trace | None = None) -> Iterator[SegmentPart]:
        """The segments that have `offset` and everything after it, in order."""
        for slot in range(self.slot_of(offset, trace), len(self)):
            segment = self[slot]
            start_offset = max(offset, segment.base_offset)
            if slot + 1 < len(self):
                next_base = self.bases[slot + 1]
                yield SegmentPart(segment, start_offset, segment.size_bytes, next_base)
            else:
                yield SegmentPart(segment, start_offset, self.end.position, None)


def _compared_by_bisection(bases: Sequence[int], offset: int) -> tuple[int, ...]:
    """The base offsets that a binary search compares, in order."""
    low, high = 0, len(bases)
    compared = []
    while low < high:
        middle = (low + high) // 2
        compared.append(bases[middle])
        if bases[middle] <= offset:
            low = middle + 1
        else:
            high = middle
    return tuple(compared)
