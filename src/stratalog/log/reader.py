"""Reading a log: finding an offset or a time, and the records of a range.

`LogReader` is what every log offers, one that is only read (`PartitionView`) and one that is being
written (`PartitionLog`). They differ in how they know their segments and offsets; finding and
reading are the same, and need nothing but a `SegmentList`. Both may lose segments while they are
read: retention deletes, compaction replaces, a follower truncates. Then the reader takes a fresh
list.

Finding takes Kafka's two steps: choose the segment, then let its sparse index say where a short
scan begins. Pass a `Trace` to see every comparison. Reading passes the parts of the log in order,
lets the `CorruptionPolicy` decide at bad bytes, and leaves out what the isolation level hides;
`column_reader` does the same for Arrow columns.
"""

from __future__ import annotations

import enum
from abc import abstractmethod
from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, TypeVar

from stratalog.errors import (
    CorruptBatchError,
    CorruptError,
    CorruptRecordError,
    OffsetOutOfRangeError,
    SegmentGoneError,
    StratalogError,
)
from stratalog.format.arguments import (
    INT64_MAX,
    choice_of,
    count_of,
    milliseconds_of,
    offset_of,
    word_of,
)
from stratalog.format.log_entry import RecordDecoder, records_of
from stratalog.log.partition_listing import RETRIES_MAX
from stratalog.storage.closeable import Closeable
from stratalog.storage.remote_path import RemotePath
from stratalog.storage.segment_view import CHUNK_BYTES
from stratalog.storage.trace import RecordStep

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa

    from stratalog.format.arguments import TimeLike
    from stratalog.format.log_entry import EntryHeader
    from stratalog.format.names import TopicPartition
    from stratalog.format.record import Record
    from stratalog.format.txn_index import AbortedTxn
    from stratalog.log.column_stream import ValueFormat
    from stratalog.log.segment_list import SegmentList, SegmentPart
    from stratalog.storage.segment_view import LoadedBatch, SegmentView, TimeHit
    from stratalog.storage.trace import Trace

T = TypeVar("T")

StartOffset: TypeAlias = int | Literal["earliest", "latest"]
_START_WORDS: Final = ("earliest", "latest")


class IsolationLevel(enum.Enum):
    """Kafka's `isolation.level`, by its names."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


Isolation: TypeAlias = IsolationLevel | Literal["read_uncommitted", "read_committed"]
"""What a parameter `isolation` accepts."""


class AbortedRanges:
    """The aborted transactions of a log, as a predicate over batches.

    Kafka's consumer walks the list of aborted transactions along with the batches and keeps a set
    of producer ids. This works for a reader that starts anywhere and skips ahead: a producer's
    transactions never overlap, so a transactional batch is aborted exactly if its base offset is in
    one of its producer's aborted ranges.
    """

    def __init__(self, transactions: Iterable[AbortedTxn]) -> None:
        ranges: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for txn in transactions:
            ranges[txn.producer_id].append((txn.first_offset, txn.last_offset))
        self.by_producer = {pid: sorted(of_producer) for pid, of_producer in ranges.items()}

    def __bool__(self) -> bool:
        return bool(self.by_producer)

    def covers(self, producer_id: int, base_offset: int) -> bool:
        """Whether this producer's batch at `base_offset` was aborted."""
        ranges = self.by_producer.get(producer_id)
        if ranges is None:
            return False
        slot = bisect_right(ranges, base_offset, key=lambda first_last: first_last[0]) - 1
        return slot >= 0 and base_offset <= ranges[slot][1]


class Skipped(NamedTuple):
    """Corrupt bytes that a reader skipped."""

    path: Path
    position: int
    size_bytes: int
    first_offset: int
    """The offset that was expected here; it and those up to `next_offset` may be lost."""
    next_offset: int | None
    """Base offset of the next valid batch; None if the segment has no more."""
    reason: str

    def __str__(self) -> str:
        until = "the end of the segment" if self.next_offset is None else self.next_offset
        return (
            f"{self.path} at byte {self.position}: skipped {self.size_bytes} bytes, "
            f"offsets {self.first_offset} up to {until}: {self.reason}"
        )


class CorruptionPolicy:
    """Without a listener the first corruption is raised; with one it is reported and skipped.

    What looks like corruption may only be a truncation in progress: then the segment is gone.
    """

    def __init__(
        self,
        on_skip: Callable[[Skipped], None] | None = None,
        is_truncated: Callable[[], bool] = lambda: False,
    ) -> None:
        self._on_skip = on_skip
        self._is_truncated = is_truncated

    def _check_not_truncated(self, path: Path) -> None:
        if self._is_truncated():
            raise SegmentGoneError(path)

    def resume_after_records(self, error: CorruptRecordError, size_bytes: int) -> int:
        """Where to continue after a batch whose CRC is valid and whose records are corrupt.

        The header can be trusted, so the next batch begins `size_bytes` further on.
        """
        if error.path is not None:
            self._check_not_truncated(error.path)
        if self._on_skip is None or error.path is None or error.offsets is None:
            raise error
        first, last = error.offsets
        self._on_skip(
            Skipped(error.path, error.position, size_bytes, first, last + 1, error.reason)
        )
        return error.position + size_bytes

    def resume_after(self, part: SegmentPart, error: CorruptError, *, expected_offset: int) -> int:
        """Where to continue in this part of the log after the corruption that `error` reports.

        Junk after the last batch of a segment does no harm if the next segment begins with the
        expected offset: then nothing is missing, and nothing is reported.
        """
        segment, end = part.segment, part.end_position
        self._check_not_truncated(segment.path)
        position = error.position
        resume = self._declared_end(segment, position, end)
        if resume is None:
            resume = segment.next_valid_batch(position + 1, offset_min=expected_offset)
        if resume is None and part.next_base == expected_offset:
            return end
        if self._on_skip is None:
            raise error
        stop = end if resume is None else resume
        next_offset = None if resume is None else first_offset_at(segment, resume)
        skipped_bytes = stop - position
        self._on_skip(
            Skipped(
                segment.path, position, skipped_bytes, expected_offset, next_offset, error.reason
            )
        )
        return stop

    @staticmethod
    def _declared_end(segment: SegmentView, position: int, end: int) -> int | None:
        """The end that the corrupt batch declares, if a valid batch begins there.

        Tried first: a search byte by byte could find a batch that is stored in a record's value.
        """
        batch = segment.file.peek(position)
        if batch is None or batch.size_bytes <= 0:
            return None
        declared = position + batch.size_bytes
        return declared if declared < end and segment.is_valid(declared) else None


def first_offset_at(segment: SegmentView, position: int) -> int:
    """First offset of the valid batch at `position`. Decompresses a set of old messages for it."""
    batch = segment.load_batch(position)
    if batch.header.base_offset is not None:
        return batch.header.base_offset
    try:
        return next(records_of(batch.buf, batch.entry, check_crc=False)).offset
    except (StratalogError, StopIteration):
        return batch.entry.offset  # its last


class Location(NamedTuple):
    """Where a record is."""

    path: Path
    position: int
    """Position of its batch in the file."""
    header: EntryHeader
    record: Record


class OffsetAndTimestamp(NamedTuple):
    """What Kafka's offsetsForTimes returns."""

    offset: int
    timestamp: int


def locate_offset(parts: Iterable[SegmentPart], trace: Trace | None = None) -> Location | None:
    """The first record at or above the start of the parts: the one asked for, or the next one if
    compaction removed it."""
    for part in parts:
        segment, expected_offset = part.segment, part.start_offset
        found = segment.seek(expected_offset, trace)
        while found.batch is not None:
            if found.batch.last_offset >= part.limit_offset:
                raise_for_batch(part, found.position, segment.base_offset)
            location = _first_record(segment, found.position, part.start_offset, trace)
            if location is not None:
                segment.check_one_version()
                return location
            expected_offset = found.batch.last_offset + 1
            found = segment.seek(expected_offset)
        _check_stop(part, found.position, expected_offset)
        segment.check_unchanged()
    return None


def _check_stop(part: SegmentPart, position: int, expected_offset: int) -> None:
    """Raise if the batches of this part end at corruption that may have contained the record."""
    try:
        for _ in part.segment.batches(position, part.end_position, expected_offset=expected_offset):
            return
    except CorruptError as error:
        CorruptionPolicy().resume_after(part, error, expected_offset=expected_offset)


def find_time(
    segments: SegmentList,
    timestamp: int,
    start_offset: int,
    trace: Trace | None = None,
    *,
    is_exact: bool = True,
) -> OffsetAndTimestamp | None:
    """The earliest record at or above `start_offset` whose timestamp is `timestamp` or later.

    If timestamps are out of order, later records may be older. Unless `is_exact`, segments in a
    store are assumed to be in order of time.
    """
    # Segments below the start may still exist; they need not be opened.
    for slot in segments.slots_of_time(
        timestamp, segments.slot_of(start_offset), trace, is_exact=is_exact
    ):
        segment = segments[slot]
        hit = segment.times.find(timestamp, start_offset, trace)
        if hit is None:
            segment.check_unchanged()
        else:
            segment.check_one_version()
            _check_hit(segments, slot, hit)
            return OffsetAndTimestamp(hit.offset, hit.timestamp)
    return None


def _check_hit(segments: SegmentList, slot: int, hit: TimeHit) -> None:
    """Raise if the record that was found belongs to a later segment: a read from there on would
    miss the segments in between."""
    bases = segments.bases
    if slot + 1 == len(bases) or hit.offset < bases[slot + 1]:
        return
    segment = segments[slot]
    batch = segment.file.peek(hit.position)
    if batch is not None and batch.base_offset >= segments.bases[slot + 1]:
        raise CorruptBatchError(
            f"the batch has offset {batch.base_offset}, expected below {segments.bases[slot + 1]}",
            position=hit.position,
            path=segment.path,
            offsets=(batch.base_offset, batch.last_offset),
        )


def find_max_timestamp(segments: SegmentList, start_offset: int) -> OffsetAndTimestamp | None:
    """The first record at or above `start_offset` that has the largest timestamp of all those."""
    largest = [segments.largest_timestamp(slot).timestamp for slot in range(len(segments))]
    found: OffsetAndTimestamp | None = None
    for slot in sorted(range(len(segments)), key=lambda slot: -largest[slot]):
        if largest[slot] < 0 or (found is not None and largest[slot] < found.timestamp):
            break
        times = segments[slot].times
        # The newest may be below the start, or be gone from a batch that is empty now.
        hit = times.find(largest[slot], start_offset) or times.find_newest(start_offset)
        if hit is not None and (found is None or _is_newer(hit, found)):
            found = OffsetAndTimestamp(hit.offset, hit.timestamp)
    return found


def _is_newer(hit: TimeHit, found: OffsetAndTimestamp) -> bool:
    """Whether `hit` replaces what was found. The first of equal timestamps counts."""
    return (hit.timestamp, -hit.offset) > (found.timestamp, -found.offset)


def _first_record(
    segment: SegmentView, position: int, target: int, trace: Trace | None
) -> Location | None:
    batch = segment.load_batch(position)
    try:
        for passed, record in enumerate(records_of(batch.buf, batch.entry, check_crc=False)):
            if record.offset >= target:
                if trace is not None:
                    trace.add(RecordStep(position, passed, record.offset, record.timestamp))
                return Location(segment.path, position, batch.header, record)
    except CorruptError as error:
        raise error.located(segment.path, buffer_start=position) from None
    return None


NO_LIMIT: Final = (1 << 63) - 1
SHORT_READ_RECORDS: Final = 100
"""Up to this many records are read from a store in small chunks, without read-ahead: the bytes that
a lookup has fetched usually suffice."""
SHORT_CHUNK_BYTES: Final = 32 * 1024


class TimeRange(NamedTuple):
    """Timestamps of records, in milliseconds; None is no bound."""

    since_ms: int | None = None
    until_ms: int | None = None
    """Exclusive."""

    @property
    def is_all(self) -> bool:
        return self == ALL_TIMES

    def has(self, timestamp: int) -> bool:
        return (self.since_ms is None or timestamp >= self.since_ms) and (
            self.until_ms is None or timestamp < self.until_ms
        )


ALL_TIMES: Final = TimeRange()


class ReadArguments(NamedTuple):
    """The arguments of `LogReader.read`."""

    start: StartOffset = "earliest"
    end: int | None = None
    since: TimeLike | None = None
    until: TimeLike | None = None
    timestamp_disorder_ms: int | None = None
    isolation: Isolation = IsolationLevel.READ_UNCOMMITTED
    max_bytes: int = NO_LIMIT
    max_records: int = NO_LIMIT


@dataclass(frozen=True)
class ReadPlan:
    """What to read."""

    start_offset: int
    end_offset: int
    """Exclusive."""
    aborted: AbortedRanges
    """Transactions to hide; none for read_uncommitted."""
    corruption: CorruptionPolicy
    bytes_max: int = NO_LIMIT
    """Stop before the batch that would exceed it, but always return the first one."""
    records_max: int = NO_LIMIT
    times: TimeRange = ALL_TIMES
    """Other records are left out, and do not count."""

    def hides(self, header: EntryHeader) -> bool:
        """Whether the batch is hidden: markers, and data of aborted transactions."""
        if header.is_control:
            return True
        if not header.is_transactional or header.base_offset is None:
            return False
        return self.aborted.covers(header.producer_id, header.base_offset)


def read_records(parts: Iterable[SegmentPart], plan: ReadPlan) -> Iterator[Record]:
    """Every visible record in the range, one by one. `parts` begin with the range's start."""
    left = plan.records_max
    if left <= 0:
        return
    for part, batch in _visible_batches(parts, plan):
        records = _records_of(part.segment.path, batch, plan)
        if records and not _is_within(records, part.start_offset, plan.end_offset):
            first, end = part.start_offset, plan.end_offset
            records = [record for record in records if first <= record.offset < end]
        if not plan.times.is_all:
            records = [record for record in records if plan.times.has(record.timestamp)]
        if len(records) >= left:
            part.segment.check_one_version()
            yield from records[:left]
            return
        left -= len(records)
        yield from records


def _is_within(records: Sequence[Record], start_offset: int, end_offset: int) -> bool:
    return start_offset <= records[0].offset and records[-1].offset < end_offset


def batches_of(
    part: SegmentPart, corruption: CorruptionPolicy, *, is_short: bool = False
) -> Iterator[LoadedBatch]:
    """The batches of one part from its start on, across corruption. If only a few are wanted,
    nothing is fetched ahead."""
    segment = part.segment
    position = part.first_position
    expected_offset: int | None = None
    if not is_short:
        segment.file.expect(position, part.end_position)
    chunk_bytes = SHORT_CHUNK_BYTES if is_short else CHUNK_BYTES
    while position < part.end_position:
        try:
            for batch in segment.batches(
                position,
                part.end_position,
                expected_offset=expected_offset,
                chunk_bytes=chunk_bytes,
            ):
                _check_within(part, batch)
                expected_offset = batch.header.next_offset
                yield batch
            break
        except CorruptError as error:
            due = max(part.start_offset, expected_offset or 0)
            position = corruption.resume_after(part, error, expected_offset=due)
    segment.check_unchanged()


def _visible_batches(
    parts: Iterable[SegmentPart], plan: ReadPlan
) -> Iterator[tuple[SegmentPart, LoadedBatch]]:
    """Every visible batch that overlaps the range, within the limit on bytes."""
    bytes_left = plan.bytes_max
    is_first = True
    is_short = plan.records_max <= SHORT_READ_RECORDS
    for part in fetched_ahead(parts, plan):
        if part.start_offset >= plan.end_offset:
            return
        for batch in batches_of(part, plan.corruption, is_short=is_short and _is_remote(part)):
            header = batch.header
            if header.base_offset is not None and header.base_offset >= plan.end_offset:
                part.segment.check_unchanged()
                return
            if not plan.hides(header):
                bytes_left -= batch.entry.size_bytes
                if bytes_left < 0 and not is_first:
                    part.segment.check_unchanged()
                    return
                is_first = False
                yield part, batch
            if header.next_offset >= plan.end_offset or (bytes_left <= 0 and not is_first):
                part.segment.check_unchanged()
                return


def fetched_ahead(parts: Iterable[SegmentPart], plan: ReadPlan) -> Iterator[SegmentPart]:
    """The same parts. In a store, the next part is fetched while one is read, unless the read is
    limited and may not need it."""
    is_limited = plan.records_max < NO_LIMIT or plan.bytes_max < NO_LIMIT
    held: SegmentPart | None = None
    for part in parts:
        if held is not None:
            if part.start_offset < plan.end_offset:
                part.segment.file.expect(0, part.end_position)
            yield held
            held = None
        if _is_remote(part) and not is_limited:
            held = part
        else:
            yield part
    if held is not None:
        yield held


def _is_remote(part: SegmentPart) -> bool:
    return isinstance(part.segment.path, RemotePath)


_DECODER: Final = RecordDecoder()


def _records_of(path: Path, batch: LoadedBatch, plan: ReadPlan) -> list[Record]:
    """All records of a batch, or none: if one is corrupt, those before it are not returned."""
    try:
        return _DECODER.records_of(batch.buf, batch.entry, batch.header)
    except CorruptRecordError as error:
        located = error.located(path, buffer_start=batch.position - batch.entry.position)
        plan.corruption.resume_after_records(located, batch.entry.size_bytes)
        return []


def raise_for_batch(part: SegmentPart, position: int, expected_offset: int) -> None:
    """Read the corrupt batch at `position`, to raise the error that says what is wrong."""
    for batch in part.segment.batches(position, part.end_position, expected_offset=expected_offset):
        _check_within(part, batch)
        return


def _check_within(part: SegmentPart, batch: LoadedBatch) -> None:
    """Raise if a batch reaches into the batches after it: no CRC covers a base offset, so a corrupt
    one is recognized by that."""
    if batch.header.next_offset > part.limit_offset:
        raise CorruptBatchError(
            f"the batch has offset {batch.entry.offset}, expected below {part.limit_offset}",
            position=batch.position,
            path=part.segment.path,
            offsets=(batch.entry.offset, batch.header.next_offset - 1),
        )


class LogReader(Closeable):
    """Finding and reading in one log."""

    topic_partition: TopicPartition

    @property
    @abstractmethod
    def segments(self) -> SegmentList:
        """The segments to read from, as of now."""

    @abstractmethod
    def refresh_segments(self) -> None:
        """List the segments again, because one of the files in `segments` is gone."""

    @property
    @abstractmethod
    def log_start_offset(self) -> int:
        """The first offset that readers may see."""

    @property
    @abstractmethod
    def log_end_offset(self) -> int:
        """The offset that the next record will get (exclusive end)."""

    @property
    def high_watermark(self) -> int:
        """Up to here (exclusive) records are visible. On disk that is the log end."""
        return self.log_end_offset

    @property
    @abstractmethod
    def last_stable_offset(self) -> int:
        """Up to here (exclusive) every transaction has ended."""

    @abstractmethod
    def aborted_transactions(self, start: int = 0, end: int | None = None) -> list[AbortedTxn]:
        """The aborted transactions that touch the offsets [start, end)."""

    # -- while segments come and go

    @property
    def truncation_epoch(self) -> int:
        """Grows when the log is truncated; constant where nobody can truncate it."""
        return 0

    def truncated_since(self, epoch: int) -> bool:
        """Whether bytes that could be read at this `truncation_epoch` may be gone. Then what looks
        like corruption is not."""
        return self.truncation_epoch != epoch

    def parts_from(self, offset: int, trace: Trace | None = None) -> Iterator[SegmentPart]:
        """The parts of the log from `offset` on, each opened before it is yielded.

        Raises OffsetOutOfRangeError when retention has deleted what comes next.
        """
        retries = 0
        while True:
            self.check_range(offset)
            try:
                for part in self.segments.parts_from(offset, trace):
                    part.segment.open()
                    yield part
                    if part.next_base is None:
                        return
                    offset = part.next_base
            except SegmentGoneError:
                retries += 1
                if retries > RETRIES_MAX:
                    raise
                self.refresh_segments()

    def retry_if_gone(self, operation: Callable[[], T]) -> T:
        """Return what `operation` returns. It is called again, with a fresh list of segments, if a
        segment is gone or was truncated meanwhile."""
        for _ in range(RETRIES_MAX):
            epoch = self.truncation_epoch
            try:
                return operation()
            except SegmentGoneError:
                self.refresh_segments()
            except CorruptError:
                if not self.truncated_since(epoch):
                    raise
                self.refresh_segments()
        return operation()

    # -- finding

    def locate(self, offset: int, trace: Trace | None = None) -> Location | None:
        """The record at `offset`, or the next one if compaction removed it; None if there is none,
        as at the log end."""
        self.check_range(offset)
        return self.retry_if_gone(lambda: locate_offset(self.parts_from(offset, trace), trace))

    def find_time(
        self, timestamp: TimeLike, trace: Trace | None = None, *, is_exact: bool = False
    ) -> OffsetAndTimestamp | None:
        """The earliest record whose timestamp is `timestamp` or later.

        A time is an int in milliseconds since 1970, a `datetime` with a time zone, or a
        `numpy.datetime64` in UTC.

        In a store, a log of more than 32 segments is searched by a few of its time indexes, as if
        no record were older than those of an earlier segment. With `is_exact`, all of them are
        searched; on a disk they always are.
        """
        target = milliseconds_of(timestamp, rounds_up=True)
        return self.retry_if_gone(
            lambda: find_time(
                self.segments, target, self.log_start_offset, trace, is_exact=is_exact
            )
        )

    def find_max_timestamp(self) -> OffsetAndTimestamp | None:
        """The first record that has the largest timestamp."""
        return self.retry_if_gone(lambda: find_max_timestamp(self.segments, self.log_start_offset))

    def resolve(self, start: StartOffset) -> int:
        """`earliest` and `latest` as numbers; a number as it is."""
        if not isinstance(start, str):
            return offset_of(start, "start")
        is_earliest = word_of(start, _START_WORDS, "start") == "earliest"
        return self.log_start_offset if is_earliest else self.high_watermark

    # -- reading

    def read(  # noqa: PLR0913  # independent choices, all but two by keyword
        self,
        start: StartOffset = "earliest",
        end: int | None = None,
        *,
        since: TimeLike | None = None,
        until: TimeLike | None = None,
        timestamp_disorder_ms: int | None = None,
        isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
        max_bytes: int = NO_LIMIT,
        max_records: int = NO_LIMIT,
        on_skip: Callable[[Skipped], None] | None = None,
    ) -> Iterator[Record]:
        """Records from `start` up to `end` (exclusive; all that may be seen if None).

        `since` and `until` (exclusive) leave out records with other timestamps. A time is an int in
        milliseconds since 1970, a `datetime` with a time zone, or a `numpy.datetime64` in UTC.
        Reading begins at the first record at or after `since`, which the time index finds. It does
        not stop at `until`, because timestamps may be out of order, unless `timestamp_disorder_ms`
        says how much older than an earlier record a record may be.

        `isolation` is an IsolationLevel or Kafka's name of it, such as "read_committed".
        `max_bytes` limits the batches that are read, but the first one is always returned.
        Corruption in the middle of the log raises CorruptError; with `on_skip` it is reported and
        skipped instead. A torn tail is not corruption: the log ends before it.
        """
        arguments = ReadArguments(
            start, end, since, until, timestamp_disorder_ms, isolation, max_bytes, max_records
        )
        plan = self.plan_of(arguments, on_skip)
        return read_records(self.parts_from(plan.start_offset), plan)

    def read_columns(  # noqa: PLR0913  # as for `read`
        self,
        start: StartOffset = "earliest",
        end: int | None = None,
        *,
        columns: Collection[str] | None = None,
        since: TimeLike | None = None,
        until: TimeLike | None = None,
        timestamp_disorder_ms: int | None = None,
        isolation: Isolation = IsolationLevel.READ_UNCOMMITTED,
        keys: ValueFormat = "bytes",
        values: ValueFormat = "bytes",
        max_bytes: int = NO_LIMIT,
        max_records: int = NO_LIMIT,
        on_skip: Callable[[Skipped], None] | None = None,
    ) -> pa.RecordBatchReader:
        """The same records as `read` returns, as Arrow record batches of bounded size.

        The result is lazy: it decodes the next batch when it is asked for one. pandas, polars,
        DuckDB and the writers of `pyarrow.dataset` take it as it is. Its files are closed when it
        is used up or deleted, or this partition is closed.

        `columns` chooses among `stratalog.format.column_types.ALL_COLUMNS`, `topic` and
        `partition`; the default is offset, timestamp, timestampType, key, value and headers. What
        is not chosen is not copied. `keys` and `values` are "bytes", "text", "json", or the Arrow
        type of the JSON (`stratalog.log.column_stream` describes them).
        """
        from stratalog.log.column_stream import ColumnSource, ColumnStream  # noqa: PLC0415  # loads

        stream = ColumnStream(columns, keys=keys, values=values)
        arguments = ReadArguments(
            start, end, since, until, timestamp_disorder_ms, isolation, max_bytes, max_records
        )
        return stream.open([ColumnSource(self, self.plan_of(arguments, on_skip))])

    def plan_of(
        self, arguments: ReadArguments, on_skip: Callable[[Skipped], None] | None
    ) -> ReadPlan:
        """What to read for these arguments. Raises OffsetOutOfRangeError and
        InvalidArgumentError."""
        level = choice_of(IsolationLevel, arguments.isolation, "isolation")
        within = TimeRange(_bound(arguments.since, "since"), _bound(arguments.until, "until"))
        start_offset = self.resolve(arguments.start)
        end = NO_LIMIT if arguments.end is None else offset_of(arguments.end, "end")
        self.check_range(start_offset)
        bytes_max = count_of(arguments.max_bytes, "max_bytes")
        records_max = count_of(arguments.max_records, "max_records")
        is_limited = min(bytes_max, records_max) < NO_LIMIT
        needs_no_end = is_limited and self._may_read_without_end(start_offset)
        limit = NO_LIMIT if needs_no_end else self.high_watermark
        if not within.is_all:
            first, last = self._range_of_times(within, arguments, skips=on_skip is not None)
            start_offset, end = max(start_offset, first), min(end, last)
        aborted: list[AbortedTxn] = []
        if level is IsolationLevel.READ_COMMITTED:
            limit = self.last_stable_offset
            aborted = self.aborted_transactions(start_offset, limit)
        return ReadPlan(
            start_offset=start_offset,
            end_offset=min(end, limit),
            aborted=AbortedRanges(aborted),
            corruption=CorruptionPolicy(
                on_skip, partial(self.truncated_since, self.truncation_epoch)
            ),
            bytes_max=bytes_max,
            records_max=records_max,
            times=within,
        )

    def _may_read_without_end(self, offset: int) -> bool:
        """Whether a limited read from here can be planned without the log end, which in a store
        would have to be looked for."""
        return False

    def _range_of_times(
        self, within: TimeRange, arguments: ReadArguments, *, skips: bool
    ) -> tuple[int, int]:
        """The offsets from which and up to which records can have these timestamps. If corruption
        that is to be skipped prevents looking up a bound, there is no such bound."""
        first, end = 0, NO_LIMIT
        disorder_ms = arguments.timestamp_disorder_ms
        if disorder_ms is not None:
            disorder_ms = count_of(disorder_ms, "timestamp_disorder_ms")
        try:
            if within.since_ms is not None:
                first = self._offset_at(within.since_ms)
            if within.until_ms is not None and disorder_ms is not None:
                end = self._offset_at(min(within.until_ms + disorder_ms, INT64_MAX))
        except CorruptError:
            if not skips:
                raise
        return first, end

    def _offset_at(self, timestamp: int) -> int:
        found = self.find_time(timestamp, is_exact=True)
        return self.high_watermark if found is None else found.offset

    def check_range(self, offset: int) -> None:
        """Raise OffsetOutOfRangeError unless the log has this offset, or ends there."""
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(
                offset,
                log_start_offset=self.log_start_offset,
                log_end_offset=self.log_end_offset,
            )


def _bound(time: TimeLike | None, name: str) -> int | None:
    return None if time is None else milliseconds_of(time, name, rounds_up=True)
