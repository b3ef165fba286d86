"""What the batch headers of a log show: sizes, codecs, offsets, times and producers.

Records are neither decompressed nor checked, so this is as fast as the log can be read. Corrupt
bytes are skipped as readers skip them, and counted. A batch from the future counts only if its CRC
is right: one flipped bit would distort every figure about time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from stratalog.config.values import HOUR_MS
from stratalog.format.batch import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    LOG_APPEND_TIME_BIT,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    peek,
)
from stratalog.format.batch_table import Stop, check_crcs, first_offsets, scan_batches
from stratalog.format.counts import added

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from stratalog.format.batch_table import BatchTable
    from stratalog.storage.segment_view import SegmentView

CHUNK_BYTES: Final = 1 << 20
"""Small enough to stay in the cache of a core between reading and scanning."""
EXAMPLES_MAX: Final = 10
PRODUCERS_MAX: Final = 100_000


class HeaderScan:
    """The batches of a segment in tables of bounded size; positions are those in the file."""

    def __init__(self, segment: SegmentView, now_ms: int) -> None:
        self._segment = segment
        self._now_ms = now_ms
        self.corrupt_bytes = 0
        """Skipped so far, a torn tail included."""

    def __iter__(self) -> Iterator[NDArray[Any]]:
        file, end = self._segment.file, self._segment.size_bytes
        buffer = bytearray(min(CHUNK_BYTES, end))
        position = 0
        while position < end:
            view = memoryview(buffer)[: end - position]
            count = file.read_into(view, position)
            if not count:
                return  # truncated meanwhile
            table = scan_batches(buffer, 0, count)
            rows = self._without_corrupt_future(buffer, table)
            if len(rows):
                rows["position"] += position
                yield rows
            position += table.end
            if table.stop is Stop.PARTIAL and not len(table) and count == len(buffer):
                batch = peek(buffer)
                if batch is not None and len(buffer) < batch.size_bytes <= end - position:
                    buffer = bytearray(batch.size_bytes)
                    continue
            if table.stop is Stop.CORRUPT or (table.stop is Stop.PARTIAL and not len(table)):
                position = self._after_corruption(position)

    def _without_corrupt_future(self, buffer: bytearray, table: BatchTable) -> NDArray[Any]:
        """The batches except those from the future whose CRC is wrong."""
        is_future = table["max_timestamp"] > self._now_ms
        if not is_future.any():
            return table.rows
        is_wrong = is_future.copy()
        is_wrong[is_future] = ~check_crcs(buffer, table.select(is_future))
        self.corrupt_bytes += int(table["size_bytes"][is_wrong].sum())
        return table.rows[~is_wrong]

    def _after_corruption(self, position: int) -> int:
        segment = self._segment
        found = segment.next_valid_batch(position + 1, offset_min=segment.base_offset)
        resume = segment.size_bytes if found is None else found
        self.corrupt_bytes += resume - position
        return resume


class CodecSum(NamedTuple):
    """Batches of one codec."""

    batches: int = 0
    records: int = 0
    size_bytes: int = 0


class SurveyedSegment(NamedTuple):
    """One segment as it is on disk."""

    base_offset: int
    end_offset: int
    size_bytes: int
    records: int
    min_timestamp: int
    max_timestamp: int
    """The largest max timestamp of the batches; -1 if none has one."""


class Example(NamedTuple):
    """A place worth a look."""

    offset: int
    amount: int
    """Missing offsets, or milliseconds."""


@dataclass
class HeaderFacts:
    """Sums over the batches of a log. Facts of several logs can be added up."""

    size_bytes: int = 0
    batches: int = 0
    records: int = 0
    """Offsets of batches of magic 0 and 1 that are compressed: their headers have no count."""
    control_batches: int = 0
    transactional_batches: int = 0
    append_time_batches: int = 0
    corrupt_bytes: int = 0
    largest_batch_bytes: int = 0
    min_timestamp: int = NO_TIMESTAMP
    max_timestamp: int = NO_TIMESTAMP
    """Largest of those that are not in the future."""
    late_batches: int = 0
    """Batches with a timestamp below that of an earlier batch."""
    late_records: int = 0
    latest_ms: int = 0
    """The largest difference between the timestamp of a late batch and an earlier, larger one."""
    late_examples: tuple[Example, ...] = ()
    future_batches: int = 0
    future_ms: int = 0
    """How far the largest timestamp was in the future."""
    future_examples: tuple[Example, ...] = ()
    gaps: int = 0
    gap_offsets: int = 0
    """Offsets between batches that no batch has: compaction leaves them."""
    gap_examples: tuple[Example, ...] = ()
    batch_sizes: Counter[int] = field(default_factory=Counter)
    """Batches of up to this many bytes; the bounds are powers of two."""
    batch_records: Counter[int] = field(default_factory=Counter)
    codecs: dict[int, CodecSum] = field(default_factory=dict)
    hours: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Records and bytes by the start of the hour; none from the future."""
    producers: frozenset[int] = frozenset()
    segments: tuple[SurveyedSegment, ...] = ()

    @property
    def header_bytes(self) -> int:
        return HEADER_BYTES * self.batches

    @property
    def batch_bytes_mean(self) -> float:
        return self.size_bytes / self.batches if self.batches else 0.0

    @property
    def record_bytes_mean(self) -> float:
        """As stored: compressed, with its share of the batch header."""
        return self.size_bytes / self.records if self.records else 0.0

    @property
    def span_ms(self) -> int:
        return max(0, self.max_timestamp - self.min_timestamp) if self.max_timestamp >= 0 else 0

    def plus(self, other: HeaderFacts) -> HeaderFacts:
        """Facts of two logs."""
        hours = dict(self.hours)
        for start, (records, size) in other.hours.items():
            before = hours.get(start, (0, 0))
            hours[start] = (before[0] + records, before[1] + size)
        codecs = dict(self.codecs)
        for codec, found in other.codecs.items():
            codecs[codec] = added(codecs.get(codec, CodecSum()), found)
        timed = [each for each in (self, other) if each.min_timestamp >= 0]
        sums = {name: getattr(self, name) + getattr(other, name) for name in _ADDED}
        largest = {name: max(getattr(self, name), getattr(other, name)) for name in _LARGEST}
        return HeaderFacts(
            **sums,
            **largest,
            min_timestamp=min((each.min_timestamp for each in timed), default=NO_TIMESTAMP),
            codecs=codecs,
            hours=hours,
            producers=self.producers | other.producers,
            gap_examples=(self.gap_examples + other.gap_examples)[:EXAMPLES_MAX],
            late_examples=(self.late_examples + other.late_examples)[:EXAMPLES_MAX],
            future_examples=(self.future_examples + other.future_examples)[:EXAMPLES_MAX],
        )


_ADDED: Final = (
    "size_bytes",
    "batches",
    "records",
    "control_batches",
    "transactional_batches",
    "append_time_batches",
    "corrupt_bytes",
    "late_batches",
    "late_records",
    "future_batches",
    "gaps",
    "gap_offsets",
    "batch_sizes",
    "batch_records",
    "segments",
)
_LARGEST: Final = ("largest_batch_bytes", "max_timestamp", "latest_ms", "future_ms")


def sum_of_facts(found: Iterable[HeaderFacts]) -> HeaderFacts:
    """Facts of any number of logs."""
    total = HeaderFacts()
    for facts in found:
        total = total.plus(facts)
    return total


class HeaderCounter:
    """Adds up the batches of one log, in order."""

    def __init__(self, now_ms: int, log_start_offset: int) -> None:
        self._now_ms = now_ms
        self.facts = HeaderFacts()
        self._next_offset = log_start_offset
        self._largest = NO_TIMESTAMP
        self._segment: SurveyedSegment | None = None
        self._producers: set[int] = set()

    def begin_segment(self, base_offset: int) -> None:
        self._end_segment()
        self._segment = SurveyedSegment(base_offset, base_offset, 0, 0, NO_TIMESTAMP, NO_TIMESTAMP)

    def add(self, rows: NDArray[Any]) -> None:
        """A table of batches."""
        facts = self.facts
        sizes = rows["size_bytes"].astype(np.int64)
        records = _record_counts(rows, self._next_offset)
        attributes = rows["attributes"]
        facts.batches += len(rows)
        facts.size_bytes += int(sizes.sum())
        facts.records += int(records.sum())
        facts.control_batches += int(np.count_nonzero(attributes & CONTROL_BIT))
        facts.transactional_batches += int(np.count_nonzero(attributes & TRANSACTIONAL_BIT))
        facts.append_time_batches += int(np.count_nonzero(attributes & LOG_APPEND_TIME_BIT))
        facts.largest_batch_bytes = max(facts.largest_batch_bytes, int(sizes.max()))
        facts.batch_sizes.update(by_power(sizes))
        facts.batch_records.update(by_power(records))
        self._add_codecs(attributes & CODEC_MASK, sizes, records)
        self._add_times(rows, sizes, records)
        self._add_offsets(rows)
        if len(self._producers) < PRODUCERS_MAX:
            ids = np.unique(rows["producer_id"])
            self._producers.update(ids[ids >= 0].tolist())
        self._add_to_segment(rows, int(sizes.sum()), int(records.sum()))

    def finish(self, corrupt_bytes: int) -> HeaderFacts:
        """The facts of the whole log."""
        self._end_segment()
        self.facts.corrupt_bytes = corrupt_bytes
        self.facts.producers = frozenset(self._producers)
        return self.facts

    def _add_codecs(
        self, codecs: NDArray[Any], sizes: NDArray[np.int64], records: NDArray[np.int64]
    ) -> None:
        counts = np.bincount(codecs, minlength=8)
        for codec in np.flatnonzero(counts).tolist():
            chosen = codecs == codec
            found = CodecSum(
                int(counts[codec]), int(records[chosen].sum()), int(sizes[chosen].sum())
            )
            known = self.facts.codecs.get(codec, CodecSum())
            self.facts.codecs[codec] = added(known, found)

    def _add_times(
        self, rows: NDArray[Any], sizes: NDArray[np.int64], records: NDArray[np.int64]
    ) -> None:
        facts, times = self.facts, rows["max_timestamp"]
        largest = np.maximum.accumulate(np.concatenate(([self._largest], times)))
        late = np.flatnonzero((times >= 0) & (times < largest[:-1]))
        if len(late):
            by_ms = largest[late] - times[late]
            facts.late_batches += len(late)
            facts.late_records += int(records[late].sum())
            facts.latest_ms = max(facts.latest_ms, int(by_ms.max()))
            facts.late_examples = _with_examples(facts.late_examples, rows, late, by_ms)
        future = np.flatnonzero(times > self._now_ms)
        if len(future):
            by_ms = times[future] - self._now_ms
            facts.future_batches += len(future)
            facts.future_ms = max(facts.future_ms, int(by_ms.max()))
            facts.future_examples = _with_examples(facts.future_examples, rows, future, by_ms)
        self._largest = int(largest[-1])
        is_timed = (times >= 0) & (times <= self._now_ms)
        timed = times[is_timed]
        if len(timed):
            before = facts.min_timestamp
            first = int(timed.min())
            facts.min_timestamp = first if before < 0 else min(before, first)
            facts.max_timestamp = max(facts.max_timestamp, int(timed.max()))
            self._add_hours(timed, sizes[is_timed], records[is_timed])

    def _add_hours(
        self, times: NDArray[Any], sizes: NDArray[np.int64], records: NDArray[np.int64]
    ) -> None:
        hours, at = np.unique(times // HOUR_MS, return_inverse=True)
        amounts = np.bincount(at, weights=sizes).astype(np.int64).tolist()
        counts = np.bincount(at, weights=records).astype(np.int64).tolist()
        found = self.facts.hours
        for hour, count, size in zip(hours.tolist(), counts, amounts, strict=True):
            before = found.get(hour * HOUR_MS, (0, 0))
            found[hour * HOUR_MS] = (before[0] + count, before[1] + size)

    def _add_offsets(self, rows: NDArray[Any]) -> None:
        facts, first, last = self.facts, first_offsets(rows), rows["last_offset"]
        expected = np.concatenate(([self._next_offset], last[:-1] + 1))
        missing = np.where(rows["base_offset"] >= 0, first - expected, 0)
        gaps = np.flatnonzero(missing > 0)
        facts.gaps += len(gaps)
        facts.gap_offsets += int(missing[gaps].sum())
        facts.gap_examples = _with_examples(facts.gap_examples, rows, gaps, missing[gaps])
        self._next_offset = int(last[-1]) + 1

    def _add_to_segment(self, rows: NDArray[Any], size_bytes: int, records: int) -> None:
        segment = self._segment
        if segment is None:
            raise ValueError("begin_segment comes first")
        times = rows["max_timestamp"]
        timed = times[times >= 0]
        first = int(timed.min()) if len(timed) else NO_TIMESTAMP
        mins = [time for time in (segment.min_timestamp, first) if time >= 0]
        self._segment = SurveyedSegment(
            segment.base_offset,
            int(rows["last_offset"][-1]) + 1,
            segment.size_bytes + size_bytes,
            segment.records + records,
            min(mins, default=NO_TIMESTAMP),
            max(segment.max_timestamp, int(times.max())),
        )

    def _end_segment(self) -> None:
        if self._segment is not None:
            self.facts.segments += (self._segment,)
            self._segment = None


def _record_counts(rows: NDArray[Any], next_offset: int) -> NDArray[np.int64]:
    """Records of each batch; for a legacy set, the offsets since the batch before it."""
    counts = rows["record_count"].astype(np.int64)
    if (counts < 0).any():
        before = np.concatenate(([next_offset - 1], rows["last_offset"][:-1]))
        counts = np.where(counts < 0, np.maximum(1, rows["last_offset"] - before), counts)
    return counts


def by_power(values: NDArray[np.int64]) -> dict[int, int]:
    """How many are up to each power of two."""
    bits = np.frexp(np.maximum(values - 1, 0).astype(np.float64))[1]
    counts = np.bincount(bits)
    return {1 << bit: int(counts[bit]) for bit in np.flatnonzero(counts).tolist()}


def _with_examples(
    found: tuple[Example, ...], rows: NDArray[Any], at: NDArray[Any], amounts: NDArray[Any]
) -> tuple[Example, ...]:
    left = EXAMPLES_MAX - len(found)
    offsets = rows["last_offset"][at[:left]].tolist()
    pairs = zip(offsets, amounts[:left].tolist(), strict=True)
    return (*found, *(Example(*pair) for pair in pairs))
