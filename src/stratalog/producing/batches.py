"""Records collected into batches, by the rules of Kafka's producer.

`BatchBuilder` collects the records of one partition. A batch takes records as long as its estimated
size stays within `batch_bytes`; a larger record gets a batch of its own. A batch is ready once it
is full or its first record has waited for `linger_ms`. As in Kafka, compressed sizes are estimated
from the compression ratio of the last batches, which rises fast and falls slowly. No batch exceeds
`max_message_bytes`, whatever the estimate.

The fields of records are collected in lists, and encoded batch by batch: small batches here, large
ones by a compiled kernel. It takes half a second to load, so it is loaded when that pays off.

The builder is pure: the clock is an argument, and nothing is written. Its batches are those that a
producer sends, with offsets from 0. Records that cannot be encoded become a batch with a failure,
and do not affect other batches.

An `Outcome` is the result of a batch, a `Delivery` that of one record.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stratalog.errors import (
    AppendError,
    InvalidTimestampError,
    InvalidTxnStateError,
    MessageTooLargeError,
    StratalogError,
)
from stratalog.format.arguments import milliseconds_of
from stratalog.format.batch import HEADER_BYTES, NO_TIMESTAMP, TIMESTAMP_MAX, Codec
from stratalog.format.record import BatchFields, Header, RecordLists, encode_lists
from stratalog.format.varint import size_of_int, size_of_long
from stratalog.log.offset_assignment import BatchFacts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.format.arguments import TimeLike
    from stratalog.format.buffers import Buffer
    from stratalog.format.names import TopicPartition
    from stratalog.log.log_state import AppendInfo
    from stratalog.producing.producer import Producer

BATCH_BYTES_DEFAULT: Final = 16_384
LINGER_MS_DEFAULT: Final = 5
MAX_MESSAGE_BYTES_DEFAULT: Final = 1_048_588
_NEVER_MS: Final = TIMESTAMP_MAX

_RATIO_SAFETY: Final = 1.05
_RATIO_STEP_UP: Final = 0.05
_RATIO_STEP_DOWN: Final = 0.005


@dataclass(frozen=True)
class BuilderOptions:
    """How batches are built. The defaults are those of a Kafka 4.0 producer and topic."""

    batch_bytes: int = BATCH_BYTES_DEFAULT
    linger_ms: int = LINGER_MS_DEFAULT
    max_message_bytes: int = MAX_MESSAGE_BYTES_DEFAULT
    codec: Codec = Codec.NONE


def check_timestamp(timestamp: TimeLike) -> int:
    """The timestamp of a record in milliseconds, if Kafka's producer accepts it.

    Raises InvalidTimestampError if it is negative or does not fit the 64 bits of the format, and
    InvalidArgumentError if it is not a time.
    """
    number = timestamp if type(timestamp) is int else milliseconds_of(timestamp)
    if not 0 <= number <= TIMESTAMP_MAX:
        raise InvalidTimestampError(
            f"timestamp {number} is not in 0 to {TIMESTAMP_MAX} (milliseconds since 1970)"
        )
    return number


class PendingBatch(RecordLists):
    """Records that will become one batch, unless it has to be divided."""

    __slots__ = ("created_ms", "is_part", "moved", "outcome", "payload_bytes")

    def __init__(self, created_ms: int) -> None:
        super().__init__()
        self.created_ms = created_ms
        self.payload_bytes = 0
        """The exact size before compression."""
        self.is_part = False
        """Whether it is a half of a batch that was too large."""
        self.outcome: Outcome | None = None
        self.moved: list[tuple[PendingBatch, int]] | None = None
        """Where each record is now, if they were put into other batches."""

    def complete(self, outcome: Outcome) -> None:
        """Set the outcome, now that the batch was appended or refused, and free keys and values."""
        self.outcome = outcome
        self._free()

    def _free(self) -> None:
        self.keys = []
        self.values = []
        self.headers = {}

    def divide(self) -> tuple[PendingBatch, PendingBatch]:
        """Move each half of the records to a batch of its own."""
        first, second = PendingBatch(self.created_ms), PendingBatch(self.created_ms)
        half, moved = len(self) // 2, []
        for index, record in enumerate(self.records()):
            part = first if index < half else second
            part.add(*record)
            moved.append((part, len(part) - 1))
        first.is_part = second.is_part = True
        self.moved = moved
        self._free()
        return first, second


class BuiltBatch(NamedTuple):
    """A batch as a producer sends it."""

    pending: PendingBatch
    data: Buffer
    facts: BatchFacts | None = None
    """Facts of the records; None if they could not be encoded."""
    failure: AppendError | None = None
    """Why the records could not be encoded; `data` is empty then."""

    @property
    def record_count(self) -> int:
        return len(self.pending)


class BatchBuilder:
    """Builds the batches of one partition. Not thread-safe: the producer has a lock."""

    __slots__ = (
        "_closed",
        "_full_bytes",
        "_open",
        "_options",
        "_payload_max",
        "_ratio",
        "ready_ms",
    )

    def __init__(self, options: BuilderOptions | None = None, ratio: float = 1.0) -> None:
        """With `linger_ms` 0 a batch is ready as soon as it has a record, so that `Producer.append`
        writes it before it returns. `ratio` is the first `compression_ratio`."""
        self._options = options or BuilderOptions()
        self._closed: deque[PendingBatch] = deque()
        self._open: PendingBatch | None = None
        self.ready_ms = _NEVER_MS
        """The time at which there will be a batch to build if nothing more is added, 0 if there is
        one already; `_NEVER_MS` means never."""
        self.compression_ratio = ratio

    @property
    def compression_ratio(self) -> float:
        """The expected size of records after compression, divided by their size before."""
        return self._ratio

    @compression_ratio.setter
    def compression_ratio(self, ratio: float) -> None:
        self._ratio = ratio
        batch_bytes, message_bytes = self._options.batch_bytes, self._options.max_message_bytes
        self._payload_max = min(self._payload_within(batch_bytes), message_bytes - HEADER_BYTES)
        self._full_bytes = self._payload_within(batch_bytes - 1) + 1

    @property
    def options(self) -> BuilderOptions:
        return self._options

    @property
    def has_records(self) -> bool:
        """Whether records are waiting."""
        return self._open is not None or bool(self._closed)

    @property
    def has_closed(self) -> bool:
        """Whether there is a batch to build."""
        return bool(self._closed)

    @property
    def record_count(self) -> int:
        """The number of waiting records."""
        return sum(map(len, self.pending()))

    def pending(self) -> list[PendingBatch]:
        """The batches of all waiting records, oldest first."""
        return [*self._closed] if self._open is None else [*self._closed, self._open]

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: tuple[Header, ...],
        now_ms: int,
    ) -> PendingBatch:
        """Add a record, as the last one of the batch that is returned. Raises MessageTooLargeError
        if it does not even fit a batch of its own; nothing is added then."""
        batch = self._open
        if batch is not None:
            timestamps = batch.timestamps
            index = len(timestamps)
            delta = timestamp - timestamps[0]
            if key is None or value is None or headers or not -64 <= delta < 64:
                size = batch.payload_bytes + _record_size(key, value, delta, index, headers)
            else:  # what `_record_size` returns, without a call
                size, length = len(key), len(value)
                size += length + (5 if size < 64 else 4 + size_of_int(size))
                size += 1 if length < 64 else 2 if length < 8192 else size_of_int(length)
                size += 0 if index < 64 else 1 if index < 8192 else size_of_int(index) - 1
                size += 1 if size < 64 else 2 if size < 8192 else size_of_int(size)
                size += batch.payload_bytes
            if size <= self._payload_max:
                batch.keys.append(key)
                batch.values.append(value)
                timestamps.append(timestamp)
                if headers:
                    batch.headers[index] = headers
                batch.payload_bytes = size
                if size >= self._full_bytes:
                    self.ready_ms = 0
                return batch
        size = _record_size(key, value, 0, 0, headers)
        batch = self._begin(size, now_ms)
        batch.add(key, value, timestamp, headers)
        batch.payload_bytes = size
        self._update_ready()
        return batch

    def _begin(self, size: int, now_ms: int) -> PendingBatch:
        """A new batch, for a first record of this size."""
        if HEADER_BYTES + size > self._options.max_message_bytes:
            raise MessageTooLargeError(
                f"the record needs a batch of {HEADER_BYTES + size} bytes, more than "
                f"max.message.bytes, which is {self._options.max_message_bytes}"
            )
        if self._open is not None:
            self._closed.append(self._open)
        batch = self._open = PendingBatch(now_ms)
        return batch

    def _update_ready(self) -> None:
        batch = self._open
        if self._closed:
            self.ready_ms = 0
        elif batch is None:
            self.ready_ms = _NEVER_MS
        elif batch.payload_bytes >= self._full_bytes:
            self.ready_ms = 0
        else:
            self.ready_ms = batch.created_ms + self._options.linger_ms

    def close_ready(self, now_ms: int) -> None:
        """Add no more records to a batch that is full or has waited long enough."""
        if now_ms >= self.ready_ms and (batch := self._open) is not None:
            is_over = now_ms - batch.created_ms >= self._options.linger_ms
            if is_over or batch.payload_bytes >= self._full_bytes:
                self.close_open_batch()

    def close_open_batch(self) -> None:
        """Add no more records to the open batch."""
        if self._open is not None:
            self._closed.append(self._open)
            self._open = None
            self._update_ready()

    def build(self, fields: BatchFields) -> BuiltBatch:
        """Encode the oldest closed batch, which must exist. It counts as waiting until `complete`
        is called. `fields` have the producer's identity and the batch's sequence."""
        while True:
            batch = self._closed[0]
            try:
                data = self._encode(batch, fields)
            except Exception as error:  # affects this batch only
                failure = AppendError(
                    f"a batch of {len(batch)} records cannot be encoded: {error!r}"
                )
                failure.__cause__ = error
                return BuiltBatch(batch, b"", failure=failure)
            if data is not None:
                has_all_keys = all(batch.keys) or None not in batch.keys
                facts = BatchFacts(min(batch.timestamps), has_all_keys)
                return BuiltBatch(batch, data, facts)
            self._closed = deque([*batch.divide(), *list(self._closed)[1:]])

    def _encode(self, batch: PendingBatch, fields: BatchFields) -> Buffer | None:
        """None if compression made it larger than `max_message_bytes`, and it can be divided."""
        data = _encoded(batch, fields)
        if len(data) <= self._options.max_message_bytes:
            if fields.codec is not Codec.NONE and not batch.is_part:
                self._update_ratio((len(data) - HEADER_BYTES) / batch.payload_bytes)
            return data
        self.compression_ratio = 1.0
        if len(batch) > 1:
            return None
        return _encoded(batch, fields._replace(codec=Codec.NONE, level=None))

    def complete(self, built: BuiltBatch, outcome: Outcome) -> None:
        """Remove the batch that was built last, which was appended or refused."""
        self._closed.popleft()
        self._update_ready()
        built.pending.complete(outcome)

    def discard(self, outcome: Outcome) -> None:
        """Complete all records without building batches."""
        for batch in self.pending():
            batch.complete(outcome)
        self._closed.clear()
        self._open = None
        self._update_ready()

    def _update_ratio(self, ratio: float) -> None:
        expected = self._ratio
        if ratio > expected:
            self.compression_ratio = max(expected + _RATIO_STEP_UP, ratio)
        elif ratio < expected:
            self.compression_ratio = max(expected - _RATIO_STEP_DOWN, ratio)

    def _payload_within(self, batch_bytes: int) -> int:
        """The largest size of records, before compression, for which a batch is expected to have at
        most `batch_bytes`."""
        bytes_max = batch_bytes - HEADER_BYTES
        if self._options.codec is Codec.NONE or bytes_max < 0:
            return bytes_max
        payload = int((bytes_max + 1) / (self._ratio * _RATIO_SAFETY))
        while self._compressed(payload + 1) <= bytes_max:
            payload += 1
        while self._compressed(payload) > bytes_max:
            payload -= 1
        return payload

    def _compressed(self, payload_bytes: int) -> int:
        """The expected size of records after compression."""
        return int(payload_bytes * self._ratio * _RATIO_SAFETY)


def _record_size(
    key: bytes | None,
    value: bytes | None,
    timestamp_delta: int,
    offset_delta: int,
    headers: tuple[Header, ...],
) -> int:
    """The size of a record in a batch: exactly what it takes when it is encoded."""
    size = 2 if -64 <= timestamp_delta < 64 else 1 + size_of_long(timestamp_delta)
    size += 1 if offset_delta < 64 else 2 if offset_delta < 8192 else size_of_int(offset_delta)
    if key is None:
        size += 1
    else:
        length = len(key)
        size += length + (1 if length < 64 else size_of_int(length))
    if value is None:
        size += 1
    else:
        length = len(value)
        size += length + (1 if length < 64 else 2 if length < 8192 else size_of_int(length))
    size += 1 if not headers else _headers_size(headers)
    return size + (1 if size < 64 else 2 if size < 8192 else size_of_int(size))


def _headers_size(headers: Sequence[Header]) -> int:
    size = size_of_int(len(headers))
    for key, value in headers:
        length = len(key.encode())
        size += size_of_int(length) + length
        size += 1 if value is None else size_of_int(len(value)) + len(value)
    return size


# -- encoding

KERNEL_RECORDS_MIN: Final = 16
"""Batches with fewer records are encoded faster without the kernel."""
LOAD_KERNEL_AFTER_RECORDS: Final = 100_000
_KERNEL: Final = "stratalog.format.encode_columns"


class LoadedEncoder:
    """The compiled encoder, once it is loaded."""

    module: Any = None
    records_left = LOAD_KERNEL_AFTER_RECORDS


def _encoded(lists: RecordLists, fields: BatchFields) -> Buffer:
    records = len(lists)
    if records < KERNEL_RECORDS_MIN:
        return encode_lists(lists, fields)
    if LoadedEncoder.module is None:
        LoadedEncoder.records_left -= records
        if LoadedEncoder.records_left >= 0 and _KERNEL not in sys.modules:
            return encode_lists(lists, fields)
        LoadedEncoder.module = import_module(_KERNEL)
    data: Buffer = LoadedEncoder.module.encode_lists(lists, fields)
    return data


# -- results


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
        """The outcome of a failed append. An error that is not a StratalogError becomes an
        AppendError, like Kafka's UNKNOWN_SERVER_ERROR."""
        if isinstance(error, StratalogError):
            return cls(target, None, error)
        failure = AppendError(f"{target}: a batch could not be appended: {error!r}")
        failure.__cause__ = error
        return cls(target, None, failure)


class Delivery:
    """A record that was passed to a producer."""

    __slots__ = ("_batch", "_index", "_queue")

    def __init__(self, queue: PartitionQueue, batch: PendingBatch, index: int) -> None:
        self._queue = queue
        self._batch = batch
        self._index = index

    @property
    def is_done(self) -> bool:
        """Whether the record was appended or rejected; until then it is waiting."""
        return self._find()[0].outcome is not None

    def result(self) -> RecordMetadata:
        """The record's place in the log. If it is still waiting, it is written now.

        Raises the error of its batch: an AppendError or a StorageError.
        """
        batch, index = self._find()
        if batch.outcome is None:
            self._queue.producer.write(self._queue, include_open=True)
            batch, index = self._find()
        outcome = batch.outcome
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
            timestamp = batch.timestamps[index]
        return RecordMetadata(*outcome.target, outcome.info.first_offset + index, timestamp)

    def _find(self) -> tuple[PendingBatch, int]:
        """The batch that the record is in now, and its place there."""
        batch, index = self._batch, self._index
        while batch.moved is not None:
            batch, index = batch.moved[index]
        return batch, index


class PartitionQueue:
    """The records that wait for one partition."""

    __slots__ = ("builder", "producer", "target")

    def __init__(self, producer: Producer, target: TopicPartition, options: BuilderOptions) -> None:
        self.producer = producer
        self.target = target
        self.builder = BatchBuilder(options)

    def rebuild(self, options: BuilderOptions) -> list[Outcome]:
        """Build the batches of all waiting records again, with other options. Returns the failures
        of records that these options reject."""
        pending = self.builder.pending()
        self.builder = BatchBuilder(options, self.builder.compression_ratio)
        rejected = []
        for batch in pending:
            moved = []
            for key, value, timestamp, headers in batch.records():
                try:
                    new = self.builder.add(key, value, timestamp, headers, batch.created_ms)
                except Exception as error:  # affects this record only
                    new = PendingBatch(batch.created_ms)
                    new.timestamps.append(timestamp)
                    rejected.append(Outcome.failed(self.target, error))
                    new.complete(rejected[-1])
                moved.append((new, len(new) - 1))
            batch.moved = moved
        return rejected
