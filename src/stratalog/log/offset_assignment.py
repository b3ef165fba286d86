"""Assigns offsets to the batches of an append: in their headers, or in a new batch.

An append is described by values: who appends (`AppendOrigin`), the topic's rules (`AppendRules`),
the offsets to assign (`Assignment`). `validation` checks the batches and returns a
`ValidatedAppend`.

A batch is stored as it was sent, if possible. Then only its header changes: base offset and leader
epoch, which no CRC covers; if the timestamp type or the max timestamp changes, the CRC as well.
Records are encoded again, into one new batch, if their codec is not the topic's, if they have magic
0 or 1 (Kafka 4.0 stores magic 2 only), or if their offsets do not count 0, 1, 2.

Batches that were encoded elsewhere and staged in a file need only those 12 bytes: `assign_offsets`
patches them in memory, a `SegmentPlan` in the file, which becomes a segment without being copied.
"""

from __future__ import annotations

import enum
import struct
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from stratalog.config import LogConfig
from stratalog.errors import AppendError, CorruptBatchError, InvalidTimestampError, RecordError
from stratalog.format import offset_index, time_index
from stratalog.format.batch import (
    ATTRIBUTES_AT,
    HEADER_BYTES,
    LEADER_EPOCH_AT,
    MAGIC_2,
    NO_TIMESTAMP,
    PREFIX_BYTES,
    BatchHeader,
    BatchSpan,
    Codec,
    TimestampType,
    attributes_of,
)
from stratalog.format.buffers import crc32c
from stratalog.format.index_entries import IndexBuilder
from stratalog.format.index_search import RELATIVE_OFFSET_MAX
from stratalog.format.record import BatchFields, encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stratalog.format.buffers import Buffer
    from stratalog.format.log_entry import EntryHeader
    from stratalog.format.record import Record


class AppendOrigin(enum.Enum):
    """Where a batch comes from: it decides what is checked, and whether offsets are assigned. The
    names are Kafka's."""

    CLIENT = "client"
    """A producer: everything is checked."""
    COORDINATOR = "coordinator"
    """A group or transaction coordinator on this broker, which may write control batches."""
    RAFT_LEADER = "raft leader"
    """The metadata quorum, which assigns offsets and epochs itself."""
    REPLICATION = "replication"
    """The leader of the partition, which has already checked everything."""


NO_OFFSET: Final = -1
OFFSETS_PER_REQUEST_MAX: Final = 1 << 31
OFFSET_AND_EPOCH: Final = struct.Struct(
    ">q"  # base offset
    "i"  # batch length, unchanged
    "i"  # partition leader epoch
)
"""The first bytes of a batch, with what the leader assigns. No CRC covers them."""
_DEFAULTS: Final = LogConfig()


@dataclass(frozen=True)
class AppendRules:
    """The settings of a topic that decide whether and how a batch is stored."""

    max_message_bytes: int = _DEFAULTS.max_message_bytes
    segment_bytes: int = _DEFAULTS.segment_bytes
    is_compacted: bool = False
    codec: Codec | None = None
    """The codec of every stored batch; None keeps the producer's."""
    level: int | None = None
    """The compression level for `codec`, if that is set; None is Kafka's default."""
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    timestamp_before_max_ms: int = _DEFAULTS.message_timestamp_before_max_ms
    timestamp_after_max_ms: int = _DEFAULTS.message_timestamp_after_max_ms

    @classmethod
    def of(cls, config: LogConfig) -> AppendRules:
        codec = config.codec
        return cls(
            max_message_bytes=config.max_message_bytes,
            segment_bytes=config.segment_bytes,
            is_compacted=config.is_compacted,
            codec=codec,
            level=None if codec is None else config.level_of(codec),
            timestamp_type=config.message_timestamp_type,
            timestamp_before_max_ms=config.message_timestamp_before_max_ms,
            timestamp_after_max_ms=config.message_timestamp_after_max_ms,
        )

    @property
    def is_log_append_time(self) -> bool:
        return self.timestamp_type is TimestampType.LOG_APPEND_TIME


class Assignment(NamedTuple):
    """What the leader assigns to the batches it appends."""

    next_offset: int
    """The log end offset: what the first record gets."""
    leader_epoch: int
    now_ms: int
    origin: AppendOrigin = AppendOrigin.CLIENT


class BatchFacts(NamedTuple):
    """Facts about the records of a batch that this process has just encoded.

    The batch has offsets from 0 on, no timestamp below 0 and a valid CRC, so it need not be decoded
    to apply the topic's rules.
    """

    oldest_timestamp: int
    has_all_keys: bool


class ValidatedAppend(NamedTuple):
    """Batches that may be written as they are."""

    data: Buffer
    """Whole batches end to end, with their offsets, epoch and timestamps."""
    spans: tuple[BatchSpan, ...]
    """Where they are in `data`, in order."""
    headers: tuple[EntryHeader, ...]
    """Headers of the same batches."""
    first_offset: int
    last_offset: int
    max_timestamp: int
    offset_of_max_timestamp: int
    """Last offset of the first batch that reaches `max_timestamp`: what a time index stores."""
    log_append_time_ms: int = NO_TIMESTAMP
    """The time of the append, which the producer gets, if the topic uses LogAppendTime; else -1."""
    was_rewritten: bool = False
    """The records were put into new batches: another codec, format or offsets inside."""

    @property
    def record_count(self) -> int:
        """Counted by offsets, as Kafka does: a follower's data may have gaps."""
        return self.last_offset - self.first_offset + 1 if self.spans else 0

    @property
    def next_offset(self) -> int:
        """The log end offset once this is appended. Means nothing for an empty append."""
        return self.last_offset + 1


EMPTY_APPEND: Final = ValidatedAppend(
    data=b"",
    spans=(),
    headers=(),
    first_offset=NO_OFFSET,
    last_offset=NO_OFFSET,
    max_timestamp=NO_TIMESTAMP,
    offset_of_max_timestamp=NO_OFFSET,
)
"""Data without a complete batch. Kafka's log accepts it silently and writes nothing."""

AppendResult: TypeAlias = ValidatedAppend | AppendError


@dataclass(eq=False, slots=True)
class GroupAppend:
    """Several requests that are written together. Each succeeds or fails on its own.

    The usual group, in which every request is one batch that is stored as it came, is held as its
    batches; the results of single requests are created on demand.
    """

    data: Buffer
    """The accepted requests end to end."""
    spans: list[BatchSpan]
    """Where their batches are in `data`."""
    headers: list[EntryHeader]
    """Headers of the same batches."""
    next_offset: int
    """The log end offset once this is written."""
    log_append_time_ms: int
    """The time of the append if the topic uses LogAppendTime; else -1."""
    _results: tuple[AppendResult, ...] | None = None

    @classmethod
    def of(
        cls, results: Sequence[AppendResult], next_offset: int, log_append_time_ms: int
    ) -> GroupAppend:
        """A group built from the results of its requests, whatever they are."""
        spans: list[BatchSpan] = []
        headers: list[EntryHeader] = []
        pieces: list[Buffer] = []
        start = 0
        for result in results:
            if not isinstance(result, AppendError):
                for position, size_bytes, *facts in result.spans:
                    spans.append(BatchSpan(start + position, size_bytes, *facts))
                headers += result.headers
                pieces.append(result.data)
                start += len(result.data)
        group = cls(b"".join(pieces), spans, headers, next_offset, log_append_time_ms)
        group._results = tuple(results)
        return group

    @property
    def results(self) -> tuple[AppendResult, ...]:
        """One for each request, in order. A `ValidatedAppend` counts positions in its own data."""
        if self._results is None:
            view = memoryview(self.data)
            self._results = tuple(
                one_batch(view[span[0] : span[0] + span[1]], header, self.log_append_time_ms)
                for span, header in zip(self.spans, self.headers, strict=True)
                if isinstance(header, BatchHeader)
            )
        return self._results

    @property
    def accepted(self) -> list[ValidatedAppend]:
        return [result for result in self.results if not isinstance(result, AppendError)]

    @property
    def offsets(self) -> list[tuple[int, int] | AppendError]:
        """For each request its first and last offset (-1 and -1 if it is empty), or its error."""
        if self._results is None:
            return [(span[2], span[3]) for span in self.spans]
        return [
            result if isinstance(result, AppendError) else (result.first_offset, result.last_offset)
            for result in self._results
        ]


def one_batch(
    data: Buffer, header: BatchHeader, log_append_time_ms: int = NO_TIMESTAMP
) -> ValidatedAppend:
    """The result for one batch, whose offsets are assigned."""
    base_offset, last_offset = header.base_offset, header.last_offset
    max_timestamp = header.max_timestamp
    return ValidatedAppend(
        data,
        (BatchSpan(0, len(data), base_offset, last_offset, max_timestamp),),
        (header,),
        base_offset,
        last_offset,
        max_timestamp,
        last_offset,
        log_append_time_ms,
    )


def next_assignment(assign: Assignment, result: AppendResult) -> Assignment:
    """The assignment for the request after one with this result."""
    if isinstance(result, AppendError) or not result.spans:
        return assign
    return assign._replace(next_offset=result.next_offset)


def keeps_codec(codec_id: int, is_control: bool, rules: AppendRules) -> bool:
    """Whether the topic stores records of this codec as they are. Markers are never compressed."""
    return rules.codec is None or codec_id == rules.codec or (is_control and codec_id == 0)


def can_stay(header: EntryHeader, records: Sequence[Record], rules: AppendRules) -> bool:
    """Whether the batch can be stored with nothing but its header changed."""
    if not isinstance(header, BatchHeader):
        return False
    if not keeps_codec(header.codec_id, header.is_control, rules):
        return False
    expected = range(header.base_offset, header.base_offset + len(records))
    return all(record.offset == offset for record, offset in zip(records, expected, strict=True))


def with_assigned_header(
    batch: Buffer, header: BatchHeader, max_timestamp: int, rules: AppendRules, assign: Assignment
) -> ValidatedAppend:
    """A copy of `batch` whose header has its offsets, leader epoch and timestamps.
    `max_timestamp` is the largest of the records."""
    if rules.is_log_append_time:
        max_timestamp = assign.now_ms
    stamped = header._replace(
        base_offset=assign.next_offset, partition_leader_epoch=assign.leader_epoch
    )
    if (header.timestamp_type, header.max_timestamp) != (rules.timestamp_type, max_timestamp):
        stamped = stamped._replace(
            attributes=_attributes(header, rules.timestamp_type), max_timestamp=max_timestamp
        )
        covered = stamped.pack()[ATTRIBUTES_AT:]
        records = memoryview(batch)[ATTRIBUTES_AT + len(covered) :]
        stamped = stamped._replace(crc=crc32c(records, crc32c(covered)))
    out = bytearray(batch)
    fixed = stamped.pack()
    out[: len(fixed)] = fixed
    return one_batch(out, stamped, _log_append_time(rules, assign))


def _attributes(header: BatchHeader, timestamp_type: TimestampType) -> int:
    """The header's attributes with this timestamp type. Undefined bits are cleared, as in Kafka."""
    return attributes_of(
        codec=Codec(header.codec_id),
        timestamp_type=timestamp_type,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
        has_delete_horizon=header.delete_horizon_ms is not None,
    )


def rewrite(
    records: Sequence[Record], sent: Sequence[EntryHeader], rules: AppendRules, assign: Assignment
) -> ValidatedAppend:
    """The records of the batches that were sent, in one batch by the topic's rules."""
    _check_timestamps(records)
    placed = [
        record._replace(offset=offset) for offset, record in enumerate(records, assign.next_offset)
    ]
    raw = encode_batch(placed, rewritten_fields(sent, rules, assign, max_timestamp_of(records)))
    append = one_batch(raw, BatchHeader.unpack(raw), _log_append_time(rules, assign))
    return append._replace(was_rewritten=True)


def rewritten_fields(
    sent: Sequence[EntryHeader], rules: AppendRules, assign: Assignment, max_timestamp: int
) -> BatchFields:
    """The fields of the new batch. `max_timestamp` is the largest of its records."""
    codec, level = rules.codec, rules.level
    if codec is None:
        codec, level = Codec(max(header.codec_id for header in sent)), None
    return BatchFields.kept_of(sent[0])._replace(
        codec=codec,
        level=level,
        timestamp_type=rules.timestamp_type,
        partition_leader_epoch=assign.leader_epoch,
        max_timestamp=assign.now_ms if rules.is_log_append_time else max_timestamp,
    )


def max_timestamp_of(records: Sequence[Record]) -> int:
    """The largest timestamp, -1 at least: smaller ones do not count, as in Kafka."""
    return max(NO_TIMESTAMP, *(record.timestamp for record in records))


def _check_timestamps(records: Sequence[Record]) -> None:
    """Raise if a timestamp is below -1: Kafka stores such records as they are, but refuses to
    rewrite them."""
    errors = tuple(
        RecordError(index, f"timestamp {record.timestamp} is negative")
        for index, record in enumerate(records)
        if record.timestamp < NO_TIMESTAMP
    )
    if errors:
        raise InvalidTimestampError(
            f"record {errors[0].batch_index} of the batch: {errors[0].message}",
            record_errors=errors,
        )


def _log_append_time(rules: AppendRules, assign: Assignment) -> int:
    return assign.now_ms if rules.is_log_append_time else NO_TIMESTAMP


_OFFSET: Final = struct.Struct(">q")
_EPOCH: Final = struct.Struct(">i")
_SPARE_ENTRIES: Final = 2
"""An index is full before its last entry is used."""


def assign_offsets(
    data: Buffer, next_offset: int, leader_epoch: int, *, is_trusted: bool = False
) -> GroupAppend:
    """Give the batches of `data` offsets from `next_offset` on, in place.

    Raises CorruptBatchError unless `data` is complete, valid batches of records without a producer
    id. The CRC is checked, because the batches were read from a disk. With `is_trusted` nothing is
    checked, because this process has just encoded them.
    """
    spans: list[BatchSpan] = []
    headers: list[EntryHeader] = []
    view = memoryview(data)
    at = 0
    while at < len(data):
        header = BatchHeader.unpack(view, at) if is_trusted else checked_header(view, at)
        size_bytes = header.size_bytes
        _OFFSET.pack_into(view, at, next_offset)
        _EPOCH.pack_into(view, at + LEADER_EPOCH_AT, leader_epoch)
        header = header._replace(base_offset=next_offset, partition_leader_epoch=leader_epoch)
        last_offset = header.last_offset
        spans.append(BatchSpan(at, size_bytes, next_offset, last_offset, header.max_timestamp))
        headers.append(header)
        at += size_bytes
        next_offset = last_offset + 1
    return GroupAppend(data, spans, headers, next_offset, NO_TIMESTAMP)


def split_batches(data: Buffer) -> Iterator[memoryview]:
    """The complete batches of `data`, one by one."""
    view = memoryview(data)
    at = 0
    while at < len(view):
        size_bytes = BatchHeader.unpack(view, at).size_bytes
        yield view[at : at + size_bytes]
        at += size_bytes


def checked_header(data: Buffer, at: int) -> BatchHeader:
    """The header of the batch at `at`, which is complete and has a valid CRC."""
    if len(data) - at < HEADER_BYTES:
        raise CorruptBatchError("the file ends inside a batch", position=at)
    header = BatchHeader.unpack(data, at)
    size_bytes = header.size_bytes
    if not HEADER_BYTES <= size_bytes <= len(data) - at or header.magic != MAGIC_2:
        raise CorruptBatchError("no complete batch begins here", position=at)
    if header.crc != crc32c(memoryview(data)[at + ATTRIBUTES_AT : at + size_bytes]):
        raise CorruptBatchError("CRC mismatch", position=at)
    if header.record_count != header.last_offset_delta + 1 or header.record_count <= 0:
        raise CorruptBatchError(
            f"{header.record_count} records do not match the offsets of the batch", position=at
        )
    if header.producer_id >= 0 or header.is_control:
        raise CorruptBatchError("the batch belongs to a producer or is a marker", position=at)
    return header


class SegmentPlan(NamedTuple):
    """A file of batches as a segment at a certain offset."""

    batches: FileBatches
    indexes: IndexBuilder
    leader_epoch: int
    next_offset: int

    def patches(self) -> Iterator[tuple[int, bytes]]:
        """The bytes to write, with their positions."""
        position, offset = 0, self.indexes.base_offset
        for size_bytes, records in zip(self.batches.sizes, self.batches.counts, strict=True):
            yield (
                position,
                OFFSET_AND_EPOCH.pack(offset, size_bytes - PREFIX_BYTES, self.leader_epoch),
            )
            position += size_bytes
            offset += records


class FileBatches:
    """Collects what the indexes of a segment need to know about a file's checked batches."""

    def __init__(self) -> None:
        self.sizes = array("q")
        self.counts = array("q")
        self.max_timestamps = array("q")
        self.size_bytes = 0
        self.stamped: tuple[int, int] | None = None
        """The base offset and leader epoch that have been written into the file and synced."""

    def add(self, header: BatchHeader) -> None:
        self.sizes.append(header.size_bytes)
        self.counts.append(header.record_count)
        self.max_timestamps.append(header.max_timestamp)
        self.size_bytes += header.size_bytes

    def plan(self, base_offset: int, leader_epoch: int, config: LogConfig) -> SegmentPlan | None:
        """The segment that appending the batches one by one would create; None if the log would
        roll in between."""
        if not self.sizes or self._rolls(config):
            return None
        indexes = IndexBuilder(base_offset, config.index_interval_bytes)
        position, offset = 0, base_offset
        for size_bytes, records, max_timestamp in zip(
            self.sizes, self.counts, self.max_timestamps, strict=True
        ):
            offset += records
            if offset - 1 - base_offset > RELATIVE_OFFSET_MAX:
                return None
            indexes.add(position, size_bytes, offset - 1, max_timestamp)
            position += size_bytes
        indexes.finish()
        if not _fits(indexes, config.segment_index_bytes):
            return None
        return SegmentPlan(self, indexes, leader_epoch, offset)

    def _rolls(self, config: LogConfig) -> bool:
        """Whether the log would roll in between, by size or by time, with the largest jitter; also
        true if the first batch has no timestamp, because then the wall clock decides."""
        first, newest = self.max_timestamps[0], max(self.max_timestamps)
        segment_ms = config.effective_segment_ms - config.effective_segment_jitter_ms
        is_by_time = first < 0 or newest - first > segment_ms
        return is_by_time or self.size_bytes > config.segment_bytes


def _fits(indexes: IndexBuilder, bytes_max: int) -> bool:
    offset_entries = len(indexes.offset_index) // offset_index.ENTRY_BYTES
    time_entries = len(indexes.time_index) // time_index.ENTRY_BYTES
    return (
        offset_entries + _SPARE_ENTRIES <= bytes_max // offset_index.ENTRY_BYTES
        and time_entries + _SPARE_ENTRIES <= bytes_max // time_index.ENTRY_BYTES
    )
