"""The segments of one log in offset order, and which of them has an offset or a time.

A lookup may touch thousands of segments, so only the most recently used stay open; the others close
their file and forget what they read. Any number of threads may use a list.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from itertools import accumulate
from threading import RLock
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.format.index_search import RELATIVE_OFFSET_MAX
from stratalog.storage.remote_path import RemotePath
from stratalog.storage.store import fetch_pool
from stratalog.storage.trace import SegmentStep

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stratalog.storage.segment_view import LargestTimestamp, OffsetTime, SegmentEnd, SegmentView
    from stratalog.storage.trace import Trace

OPEN_SEGMENTS_MAX: Final = 64
SEARCHED_SEGMENTS_MIN: Final = 32
"""In a longer log in a store, a lookup by time checks a few segments instead of all earlier
ones."""
GUESSES_MAX: Final = 4


class SegmentPart(NamedTuple):
    """A segment, and how far to read it."""

    segment: SegmentView
    start_offset: int
    """Records below it are not wanted, or belong to an earlier part."""
    end_position: int
    next_base: int | None
    """What `limit_offset` is, mostly the base offset of the next segment; None for the last."""
    start_position: int | None = None
    """Where the batch with the start offset begins, if that is known."""

    @property
    def first_position(self) -> int:
        """Where to begin to read."""
        if self.start_position is not None:
            return self.start_position
        return self.segment.seek(self.start_offset).position

    @property
    def limit_offset(self) -> int:
        """All batches of this part are below it."""
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
        self._lock = RLock()  # guards the three above

    def with_last(self, segment: SegmentView) -> SegmentList:
        """The same list with a newer view of its last segment: the log has grown."""
        after = SegmentList((*self._segments[:-1], segment), self.bases)
        return self._followed_by(after, 0, len(self) - 1)

    def updated(self, segments: Sequence[SegmentView]) -> SegmentList:
        """A list of other segments. What is cached of segments in both lists is kept."""
        start = bisect_left(self.bases, segments[0].base_offset)
        kept = 0
        for mine, other in zip(self._segments[start:], segments, strict=False):
            if mine is not other:
                break
            kept += 1
        return self._followed_by(SegmentList(segments), start, kept)

    def _followed_by(self, after: SegmentList, start: int, kept: int) -> SegmentList:
        """Copy what is cached to `after`, which begins with `kept` segments of this list, from slot
        `start` on."""
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

    @property
    def last(self) -> SegmentView:
        return self._segments[-1]

    @property
    def is_end_known(self) -> bool:
        """Whether `end` is cached."""
        return "end" in self._segments[-1].__dict__

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

    def slots_of_time(
        self, timestamp: int, first: int, trace: Trace | None = None, *, is_exact: bool = True
    ) -> Iterator[int]:
        """The segments from slot `first` on that may have a record at or after `timestamp`. Unless
        `is_exact`, segments of a long log in a store are taken to be in order of time."""
        if self._is_costly:
            if not is_exact:
                yield from range(self._searched_slot(timestamp, first, trace), len(self))
                return
            self._learn_largest()
        found = self.slot_of_time(timestamp, trace)
        if found is None:
            return
        if found >= first:
            yield found
        for slot in range(max(found + 1, first), len(self._segments)):
            if self.largest_timestamp(slot).timestamp >= timestamp:
                yield slot

    def is_older(self, slot: int, timestamp: int) -> bool:
        """Whether all records of a segment are known to be older. Only checks that are cheap."""
        return not self._is_costly and self.largest_timestamp(slot).timestamp < timestamp

    def _learn_largest(self) -> None:
        """Load the largest timestamps of segments in a store from their time indexes, many at once.
        They are not checked against the log, which would take four more requests each."""
        unknown = [each for each in self._segments[:-1] if each.known_largest is None]
        found = fetch_pool().map(lambda each: each.times.indexed_largest, unknown)
        for segment, largest in zip(unknown, found, strict=True):
            segment.known_largest = largest
            segment.release()

    @property
    def _is_costly(self) -> bool:
        """Whether the largest timestamps are not known, and to learn them all takes too many
        requests."""
        return (
            len(self._segments) > SEARCHED_SEGMENTS_MIN
            and isinstance(self._segments[0].path, RemotePath)
            and any(segment.known_largest is None for segment in self._segments[:-1])
        )

    def _searched_slot(self, timestamp: int, first: int, trace: Trace | None) -> int:
        """The first segment that may have a record at or after `timestamp`, by the time indexes of
        a few. Assumes that timestamps are in order between segments. If they are evenly spread, it
        checks two or three segments, else no more than a binary search."""
        last = len(self) - 1
        below, found, limit = first - 1, last, last
        slot, guesses = (below + found) // 2, 0
        compared = []
        while below + 1 < found:
            oldest, newest = self[slot].times.span
            compared.append(newest.timestamp)
            guesses += 1
            if newest.timestamp < timestamp and slot < last:
                below = slot
            else:
                found, limit = slot, slot - 1
                if oldest.timestamp < timestamp:
                    break
            guess = min(max(self._guessed_slot(timestamp, oldest, newest), below + 1), limit)
            slot = guess if guesses <= GUESSES_MAX else (below + found) // 2
        if trace is not None:
            segment = self._segments[found]
            reason = "a search by the last entries of time indexes, taken to be in order"
            trace.add(SegmentStep(segment.path, segment.base_offset, reason, tuple(compared)))
        return found

    def _guessed_slot(self, timestamp: int, oldest: OffsetTime, newest: OffsetTime) -> int:
        """The slot of `timestamp` if offsets and timestamps continue as in the segment from
        `oldest` to `newest`. If it may be among the first records of the last segment, which its
        time index does not show, the slot before."""
        per_ms = (newest.offset - oldest.offset) / max(1, newest.timestamp - oldest.timestamp)
        offset = oldest.offset + (timestamp - oldest.timestamp) * per_ms
        first_records = (self.bases[-1] - self.bases[0]) / len(self) / 8
        if offset < self.bases[-1] + first_records:
            offset = min(offset, self.bases[-1] - 1)
        return bisect_right(self.bases, offset) - 1

    def slot_of_time(self, timestamp: int, trace: Trace | None = None) -> int | None:
        """The first segment, oldest first, whose largest timestamp is `timestamp` or later."""
        so_far = self._largest_so_far
        if not so_far or so_far[-1] < timestamp:
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
        if len(self._largest) <= slot:
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
            start_offset = max(offset, self.bases[slot])
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
