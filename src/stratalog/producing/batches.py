"""Records collected into batches, by the rules of Kafka's producer.

`BatchBuilder` builds the batches of one partition. A batch takes records as long as its estimated
size stays within `batch_bytes`; a larger record gets a batch of its own. A batch is ready once it
is full or its first record has waited for `linger_ms`. As in Kafka, compressed sizes are estimated
from the compression ratio of the last batches, which rises fast and falls slowly. No batch exceeds
`max_message_bytes`, whatever the estimate.

The builder is pure: the clock is an argument, and nothing is written. Its batches are those that a
producer sends: offsets from 0, to be validated like any other request. Records that cannot be
encoded become a batch with a failure, and do not affect other batches.

`PartitionQueue` holds the records that wait for one partition, an `Outcome` is the result of a
batch, and a `Delivery` that of one record.
"""

from __future__ import annotations

import operator
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import (
    AppendError,
    InvalidTimestampError,
    InvalidTxnStateError,
    MessageTooLargeError,
    StratalogError,
)
from stratalog.format.batch import HEADER_BYTES, NO_TIMESTAMP, Codec, advance_sequence
from stratalog.format.record import BatchFields, Header, Record, encode_batch
from stratalog.format.varint import size_of_int, size_of_long
from stratalog.log.appends import BatchFacts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.format.names import TopicPartition
    from stratalog.log.log_state import AppendInfo
    from stratalog.producing.producer import Producer

BATCH_BYTES_DEFAULT: Final = 16_384
LINGER_MS_DEFAULT: Final = 5
MAX_MESSAGE_BYTES_DEFAULT: Final = 1_048_588

_TIMESTAMP_MAX: Final = (1 << 63) - 1
_RATIO_SAFETY: Final = 1.05
_RATIO_STEP_UP: Final = 0.05
_RATIO_STEP_DOWN: Final = 0.005


class NewRecord(NamedTuple):
    """A record that has no offset yet."""

    key: bytes | None
    value: bytes | None
    timestamp: int | None = None
    """In milliseconds; None is the time when it is added."""
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True)
class BuilderOptions:
    """How batches are built. The defaults are those of a Kafka 4.0 producer and topic."""

    batch_bytes: int = BATCH_BYTES_DEFAULT
    linger_ms: int = LINGER_MS_DEFAULT
    max_message_bytes: int = MAX_MESSAGE_BYTES_DEFAULT
    fields: BatchFields = field(default_factory=BatchFields)
    """Codec, level and producer. The base sequence continues from batch to batch."""


def check_timestamp(timestamp: int) -> int:
    """The timestamp of a record, if Kafka's producer accepts it.

    Raises InvalidTimestampError if it is negative or does not fit the 64 bits of the format, and
    TypeError if it is not an integer.
    """
    number = operator.index(timestamp)
    if not 0 <= number <= _TIMESTAMP_MAX:
        raise InvalidTimestampError(
            f"timestamp {number} is not in 0 to {_TIMESTAMP_MAX} (milliseconds since 1970)"
        )
    return number


class BuiltBatch(NamedTuple):
    """A batch as a producer sends it."""

    data: bytes
    record_count: int
    facts: BatchFacts | None = None
    """Facts of the records; None if they could not be encoded."""
    failure: AppendError | None = None
    """Why the records could not be encoded; `data` is empty then."""


class BatchBuilder:
    """Builds the batches of one partition. Not thread-safe: the producer has a lock."""

    def __init__(self, options: BuilderOptions | None = None) -> None:
        self._options = options or BuilderOptions()
        self._closed: list[_OpenBatch] = []
        self._open: _OpenBatch | None = None
        self._next_sequence = self._options.fields.base_sequence
        self.compression_ratio = 1.0
        """The expected size of records after compression, divided by their size before."""

    def add(self, record: NewRecord, now_ms: int) -> None:
        """Add a record. Raises MessageTooLargeError if it does not even fit a batch of its own, or
        InvalidTimestampError; nothing is added then."""
        timestamp = check_timestamp(now_ms if record.timestamp is None else record.timestamp)
        numbered_record = Record(0, timestamp, record.key, record.value, record.headers)
        batch = self._open
        if batch is not None:
            size = batch.size_with(numbered_record)
            if self._has_room(size):
                batch.add(numbered_record, size)
                return
        fresh = _OpenBatch(now_ms)
        size = fresh.size_with(numbered_record)
        if HEADER_BYTES + size > self._options.max_message_bytes:
            raise MessageTooLargeError(
                f"the record needs a batch of {HEADER_BYTES + size} bytes, more than "
                f"max.message.bytes, which is {self._options.max_message_bytes}"
            )
        if batch is not None:
            self._closed.append(batch)
        fresh.add(numbered_record, size)
        self._open = fresh

    @property
    def record_count(self) -> int:
        """The number of waiting records."""
        open_count = len(self._open.records) if self._open is not None else 0
        return open_count + sum(len(batch.records) for batch in self._closed)

    def ready_in_ms(self, now_ms: int) -> int | None:
        """How long until `drain` returns a batch if nothing more is added; None if no record is
        waiting."""
        if self._closed:
            return 0
        if self._open is None:
            return None
        if self._is_full(self._open):
            return 0
        return max(0, self._open.created_ms + self._options.linger_ms - now_ms)

    def drain(self, now_ms: int) -> list[BuiltBatch]:
        """Every batch that is ready, oldest first."""
        batch = self._open
        if batch is not None and (
            self._is_full(batch) or now_ms - batch.created_ms >= self._options.linger_ms
        ):
            return self.flush()
        return self._take()

    def flush(self) -> list[BuiltBatch]:
        """Batches of all waiting records, ready or not."""
        if self._open is not None:
            self._closed.append(self._open)
            self._open = None
        return self._take()

    def _take(self) -> list[BuiltBatch]:
        closed, self._closed = self._closed, []
        return [built for batch in closed for built in self._build_or_fail(batch)]

    def _build_or_fail(self, batch: _OpenBatch) -> list[BuiltBatch]:
        sequence = self._next_sequence
        try:
            return self._build(batch)
        except Exception as error:  # affects this batch only
            self._next_sequence = sequence
            count = len(batch.records)
            failure = AppendError(f"a batch of {count} records cannot be encoded: {error!r}")
            failure.__cause__ = error
            return [BuiltBatch(b"", count, failure=failure)]

    def _build(self, batch: _OpenBatch) -> list[BuiltBatch]:
        """One batch; or several, if compression made it larger than `max_message_bytes`."""
        data = self._encode(batch.records, self._options.fields.codec)
        if len(data) <= self._options.max_message_bytes:
            self._update_ratio((len(data) - HEADER_BYTES) / batch.payload_bytes)
            return [self._built(data, batch.records)]
        self.compression_ratio = 1.0
        return self._split(batch.records)

    def _split(self, records: Sequence[Record]) -> list[BuiltBatch]:
        """Halves, recursively, until each fits; a single record is not compressed."""
        half = len(records) // 2
        codec = self._options.fields.codec if half else Codec.NONE
        data = self._encode(records, codec)
        if len(data) <= self._options.max_message_bytes:
            return [self._built(data, records)]
        return [*self._split(records[:half]), *self._split(records[half:])]

    def _encode(self, records: Sequence[Record], codec: Codec) -> bytes:
        fields = self._options.fields._replace(codec=codec, base_sequence=self._next_sequence)
        if codec is Codec.NONE:
            fields = fields._replace(level=None)
        numbered = [record._replace(offset=offset) for offset, record in enumerate(records)]
        return encode_batch(numbered, fields)

    def _built(self, data: bytes, records: Sequence[Record]) -> BuiltBatch:
        if self._next_sequence >= 0:
            self._next_sequence = advance_sequence(self._next_sequence, len(records))
        facts = BatchFacts(
            oldest_timestamp=min([record.timestamp for record in records]),
            has_all_keys=None not in [record.key for record in records],
        )
        return BuiltBatch(data, len(records), facts)

    def _update_ratio(self, ratio: float) -> None:
        expected = self.compression_ratio
        if ratio > expected:
            self.compression_ratio = max(expected + _RATIO_STEP_UP, ratio)
        elif ratio < expected:
            self.compression_ratio = max(expected - _RATIO_STEP_DOWN, ratio)

    def _has_room(self, payload_bytes: int) -> bool:
        return (
            self._estimate(payload_bytes) <= self._options.batch_bytes
            and HEADER_BYTES + payload_bytes <= self._options.max_message_bytes
        )

    def _is_full(self, batch: _OpenBatch) -> bool:
        return self._estimate(batch.payload_bytes) >= self._options.batch_bytes

    def _estimate(self, payload_bytes: int) -> int:
        """The size of a batch, as far as it is known before compression."""
        if self._options.fields.codec is Codec.NONE:
            return HEADER_BYTES + payload_bytes
        return HEADER_BYTES + int(payload_bytes * self.compression_ratio * _RATIO_SAFETY)


class _OpenBatch:
    """Records that will become one batch, unless it has to be split."""

    def __init__(self, created_ms: int) -> None:
        self.created_ms = created_ms
        self.records: list[Record] = []
        self.payload_bytes = 0
        """The exact size before compression."""

    def size_with(self, record: Record) -> int:
        """`payload_bytes` after adding `record`."""
        base_timestamp = self.records[0].timestamp if self.records else record.timestamp
        body = (
            1
            + size_of_long(record.timestamp - base_timestamp)
            + size_of_int(len(self.records))
            + _field_size(record.key)
            + _field_size(record.value)
            + size_of_int(len(record.headers))
        )
        for key, value in record.headers:
            body += _field_size(key.encode()) + _field_size(value)
        return self.payload_bytes + size_of_int(body) + body

    def add(self, record: Record, payload_bytes: int) -> None:
        self.records.append(record)
        self.payload_bytes = payload_bytes


def _field_size(data: bytes | None) -> int:
    return size_of_int(-1) if data is None else size_of_int(len(data)) + len(data)


class RecordMetadata(NamedTuple):
    """The place and timestamp of an appended record."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """In milliseconds: as given, or the append time (`message.timestamp.type=LogAppendTime`)."""


class AppendedRange(NamedTuple):
    """What `append_columns` has stored in one partition."""

    topic: str
    partition: int
    record_count: int
    first_offset: int
    last_offset: int
    """Records that others append at the same time may be between the two."""


class Outcome:
    """The result of appending one batch."""

    __slots__ = ("failure", "info", "is_reported", "target")

    def __init__(
        self, target: TopicPartition, info: AppendInfo | None, failure: StratalogError | None
    ) -> None:
        self.target = target
        self.info = info
        self.failure = failure
        self.is_reported = False
        """Whether the failure was raised to the caller."""

    @classmethod
    def failed(cls, target: TopicPartition, error: Exception) -> Outcome:
        """With any error: one that is not a StratalogError becomes an AppendError, as Kafka's
        unknown server error."""
        if isinstance(error, StratalogError):
            return cls(target, None, error)
        failure = AppendError(f"{target}: a batch could not be appended: {error!r}")
        failure.__cause__ = error
        return cls(target, None, failure)


class Delivery:
    """A record that was given to a producer."""

    __slots__ = ("_index", "_outcome", "_producer", "_queue", "record", "since_ms")

    def __init__(
        self, producer: Producer, queue: PartitionQueue, record: NewRecord, since_ms: int
    ) -> None:
        self._producer = producer
        self._queue = queue
        self._outcome: Outcome | None = None
        self._index = 0
        self.record: NewRecord = record
        self.since_ms = since_ms

    @property
    def is_done(self) -> bool:
        """Whether the record was appended or rejected; until then it is waiting."""
        return self._outcome is not None

    def result(self) -> RecordMetadata:
        """The record's place in the log. If it is still waiting, it is written now.

        Raises the error of its batch: an AppendError or a StorageError.
        """
        if self._outcome is None:
            self._producer.write(self._queue, all_of_it=True)
        outcome = self._outcome
        if outcome is None:
            raise InvalidTxnStateError(
                "the record was not written: an earlier batch of the transaction failed"
            )
        if outcome.failure is not None:
            outcome.is_reported = True
            raise outcome.failure
        assert outcome.info is not None
        timestamp = outcome.info.log_append_time_ms
        if timestamp == NO_TIMESTAMP:
            timestamp = self.record.timestamp or 0
        return RecordMetadata(*outcome.target, outcome.info.first_offset + self._index, timestamp)

    def complete(self, outcome: Outcome, index: int) -> None:
        """Called by the producer: the record was at `index` of this batch."""
        self._outcome = outcome
        self._index = index
        self.record = NewRecord(None, None, self.record.timestamp)  # free the key and the value


class PartitionQueue:
    """The records that wait for one partition."""

    def __init__(self, target: TopicPartition, options: BuilderOptions) -> None:
        self.target = target
        self.waiting: deque[Delivery] = deque()
        self.options = options
        self.builder = BatchBuilder(options)

    def add(self, delivery: Delivery) -> None:
        self.builder.add(delivery.record, delivery.since_ms)
        self.waiting.append(delivery)

    def rebuild(self, options: BuilderOptions) -> list[Outcome]:
        """Build the batches of all waiting records again, with other options. Returns the failures
        of records that these options reject."""
        self.options = options
        ratio = self.builder.compression_ratio
        self.builder = BatchBuilder(options)
        self.builder.compression_ratio = ratio
        waiting, self.waiting = self.waiting, deque()
        rejected = []
        for delivery in waiting:
            try:
                self.add(delivery)
            except Exception as error:  # affects this record only
                rejected.append(Outcome.failed(self.target, error))
                delivery.complete(rejected[-1], 0)
        return rejected

    def complete(self, outcome: Outcome, record_count: int) -> None:
        for index in range(record_count):
            self.waiting.popleft().complete(outcome, index)
