"""Appending records: each goes to its partition, and with others into a batch.

A record waits in the open batch of its partition until that is full, `linger_ms` is over, or
somebody flushes or asks for its offset. What an append returns knows the offset once the batch is
written; a failure that nobody asked about comes out of the next `flush` or `close`.

With a producer id the batches are numbered, so that the log takes each of them once.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeAlias

from stratalog.errors import (
    AppendError,
    InvalidTopicError,
    InvalidTxnStateError,
    StratalogError,
)
from stratalog.format.batch import NO_TIMESTAMP, Codec, advance_sequence
from stratalog.format.names import TopicPartition
from stratalog.format.record import BatchFields, Header, Record, encode_batch
from stratalog.log_dir.partitioner import StickyPartitioner, partition_for_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stratalog.log.log_state import AppendInfo
    from stratalog.log_dir.catalog import TopicCatalog
    from stratalog.log_dir.root import Engine
    from stratalog.log_dir.schedule import Schedule
    from stratalog.log_dir.topics import TopicInfo
    from stratalog.log_dir.transaction_steps import ProducerIdentity

Headers: TypeAlias = "Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]"

RECORD_OVERHEAD_BYTES: Final = 21
"""The most that lengths and deltas of a record take."""
HEADER_OVERHEAD_BYTES: Final = 10


class RecordMetadata(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds: as given, or of the append where the topic asks for that."""


@dataclass(frozen=True)
class ProducerOptions:
    """How a producer makes batches. The defaults are Kafka's."""

    linger_ms: int = 5
    """How long a record may wait for others to share a batch with; 0: not at all."""
    batch_bytes: int = 16_384
    """How large a batch may become, before compression. A larger record gets one of its own."""
    codec: Codec = Codec.NONE
    level: int | None = None
    """Of the codec; None is Kafka's default."""


class Numbering:
    """The identity of a producer, and the next sequence number in each partition."""

    def __init__(self, renew: Callable[[], ProducerIdentity], *, is_transactional: bool) -> None:
        """`renew` gives an identity under which nothing has been written yet."""
        self._renew = renew
        self._is_transactional = is_transactional
        self._next: dict[TopicPartition, int] = {}
        self.identity = renew()
        self.is_in_doubt = False
        """A batch may be in the log or not, so no sequence number can be the right one next."""

    def settle(self) -> None:
        """Begin anew if there is doubt."""
        if self.is_in_doubt:
            self.identity = self._renew()
            self._next.clear()
            self.is_in_doubt = False

    def stamp(self, fields: BatchFields, topic_partition: TopicPartition) -> BatchFields:
        """The fields of the producer's next batch in this partition."""
        return fields._replace(
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            base_sequence=self._next.get(topic_partition, 0),
            is_transactional=self._is_transactional,
        )

    def advance(self, topic_partition: TopicPartition, records: int) -> None:
        """So many records of the partition are in the log."""
        before = self._next.get(topic_partition, 0)
        self._next[topic_partition] = advance_sequence(before, records)


class _Batch:
    """Records on their way to one partition, and what became of them."""

    def __init__(self, topic_partition: TopicPartition, due_ms: int) -> None:
        self.topic_partition = topic_partition
        self.due_ms = due_ms
        self.records: list[Record] = []
        self.size_bytes = 0
        self.info: AppendInfo | None = None
        self.failure: StratalogError | None = None
        self.is_failure_known = False
        self._timestamps: list[int] = []

    @property
    def is_open(self) -> bool:
        return self.info is None and self.failure is None

    def take_info(self, info: AppendInfo) -> None:
        """The records are in the log: there is no need to keep them."""
        self._timestamps = [record.timestamp for record in self.records]
        self.records = []
        self.info = info

    def result(self, index: int) -> RecordMetadata:
        if self.failure is not None:
            self.is_failure_known = True
            raise self.failure
        assert self.info is not None
        timestamp = self.info.log_append_time_ms
        if timestamp == NO_TIMESTAMP:
            timestamp = self._timestamps[index]
        return RecordMetadata(*self.topic_partition, self.info.first_offset + index, timestamp)


class Delivery:
    """A record that was handed to a producer."""

    __slots__ = ("_batch", "_index", "_producer")

    def __init__(self, producer: Producer, batch: _Batch, index: int) -> None:
        self._producer = producer
        self._batch = batch
        self._index = index

    @property
    def is_done(self) -> bool:
        """Whether the record was written or refused; until then it waits for others."""
        return not self._batch.is_open

    def result(self) -> RecordMetadata:
        """Where the record is. If it still waits, it is written now.

        Raises what its batch was refused with: an AppendError, or a StorageError.
        """
        if self._batch.is_open:
            self._producer.send(self._batch)
        return self._batch.result(self._index)


class Producer:
    """Appends records to topics. Thread-safe. Use it as a context manager, or `close` it."""

    def __init__(
        self,
        catalog: TopicCatalog,
        engine: Engine,
        schedule: Schedule,
        options: ProducerOptions,
        numbering: Numbering | None = None,
    ) -> None:
        """`LogDir.producer` makes one."""
        self.options = options
        self._catalog = catalog
        self._now_ms = engine.now_ms
        self._schedule = schedule
        self._numbering = numbering
        self._fields = BatchFields(codec=options.codec, level=options.level)
        self._lock = threading.RLock()
        self._open: dict[TopicPartition, _Batch] = {}
        self._failed: list[_Batch] = []
        self._sticky: dict[str, StickyPartitioner] = {}
        self._is_timer_set = False
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()

    @property
    def producer_id(self) -> int | None:
        """None for a producer that does not number its batches."""
        return None if self._numbering is None else self._numbering.identity.producer_id

    # -- appending

    def append(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """Append a record. `timestamp` is in milliseconds; None is now.

        Without `partition` the key decides, as for Kafka's own clients; without a key too, any
        partition will do. A topic that does not exist is created if `auto.create.topics.enable`.
        """
        _check_bytes(key, "key")
        _check_bytes(value, "value")
        timestamp = self._now_ms() if timestamp is None else timestamp
        record = Record(0, timestamp, key, value, _headers_of(headers))
        size_bytes = size_bound(record)
        with self._lock:
            if self._is_closed:
                raise ValueError("the producer is closed")
            target = self._target(topic, partition, key, size_bytes)
            batch = self._open.get(target)
            if batch is not None and batch.size_bytes + size_bytes > self.options.batch_bytes:
                self.send(batch)
                batch = None
            if batch is None:
                batch = self._new_batch(target)
            batch.records.append(record._replace(offset=len(batch.records)))
            batch.size_bytes += size_bytes
            delivery = Delivery(self, batch, len(batch.records) - 1)
            if self.options.linger_ms <= 0 or batch.size_bytes >= self.options.batch_bytes:
                self.send(batch)
            return delivery

    def _target(
        self, topic: str, partition: int | None, key: bytes | None, size_bytes: int
    ) -> TopicPartition:
        info = self._catalog.ensure(topic)
        if info.is_internal:
            raise InvalidTopicError(f"{topic} is the log directory's own topic")
        if partition is None:
            if key is None:
                partition = self._sticky_partition(info, size_bytes)
            else:
                partition = partition_for_key(key, info.partition_count)
        target = TopicPartition(topic, partition)
        self._catalog.slot(target)  # raises if there is no such partition
        return target

    def _sticky_partition(self, info: TopicInfo, size_bytes: int) -> int:
        sticky = self._sticky.get(info.name)
        if sticky is None:
            sticky = self._sticky[info.name] = StickyPartitioner(self.options.batch_bytes)
        return sticky.choose(info.partitions, size_bytes)

    def _new_batch(self, target: TopicPartition) -> _Batch:
        batch = _Batch(target, self._now_ms() + self.options.linger_ms)
        self._open[target] = batch
        if self.options.linger_ms > 0 and not self._is_timer_set:
            self._set_timer(self.options.linger_ms)
        return batch

    # -- sending

    def flush(self) -> None:
        """Write every waiting record. Raises the first failure since the last flush, unless its
        `Delivery` has told it."""
        with self._lock:
            for batch in list(self._open.values()):
                self.send(batch)
            failed, self._failed = self._failed, []
        for batch in failed:
            if not batch.is_failure_known and batch.failure is not None:
                batch.is_failure_known = True
                raise batch.failure

    def close(self) -> None:
        """Write what waits, and take no more records. Idempotent."""
        with self._lock:
            self._is_closed = True
            self.flush()

    def discard(self) -> None:
        """Drop every waiting record."""
        with self._lock:
            for batch in self._open.values():
                batch.failure = InvalidTxnStateError("aborted before the record was written")
            self._open.clear()
            self._failed.clear()

    def send(self, batch: _Batch) -> None:
        """Write a batch now. What became of it is told by its records' deliveries."""
        with self._lock:
            if not batch.is_open:
                return
            target = batch.topic_partition
            self._open.pop(target, None)
            try:
                batch.take_info(self._write(target, batch.records))
            except StratalogError as error:
                batch.failure = error
                self._failed.append(batch)
                if self._numbering is not None and not isinstance(error, AppendError):
                    self._numbering.is_in_doubt = True

    def _write(self, target: TopicPartition, records: list[Record]) -> AppendInfo:
        fields = self._fields
        numbering = self._numbering
        if numbering is not None:
            self.before_write(target, numbering)
            fields = numbering.stamp(fields, target)
        info = self._catalog.slot(target).log().append(encode_batch(records, fields))
        if numbering is not None:
            numbering.advance(target, len(records))
        return info

    def before_write(self, target: TopicPartition, numbering: Numbering) -> None:
        """Called before each numbered batch. A transaction has more to do here."""
        numbering.settle()

    def _set_timer(self, delay_ms: int) -> None:
        self._is_timer_set = True
        self._schedule.after(delay_ms, "lingering batches", self._send_due)

    def _send_due(self) -> None:
        with self._lock:
            self._is_timer_set = False
            now_ms = self._now_ms()
            for batch in list(self._open.values()):
                if batch.due_ms <= now_ms:
                    self.send(batch)
            if self._open:
                next_ms = min(batch.due_ms for batch in self._open.values())
                self._set_timer(next_ms - now_ms)


def size_bound(record: Record) -> int:
    """Bytes that the record takes in a batch, at most."""
    size_bytes = RECORD_OVERHEAD_BYTES
    for part in (record.key, record.value):
        size_bytes += 0 if part is None else len(part)
    for key, value in record.headers:
        size_bytes += HEADER_OVERHEAD_BYTES + len(key.encode()) + (len(value) if value else 0)
    return size_bytes


def _headers_of(headers: Headers) -> tuple[Header, ...]:
    if not headers:
        return ()
    items = headers.items() if isinstance(headers, Mapping) else headers
    made = tuple(Header(key, value) for key, value in items)
    for header in made:
        _check_bytes(header.value, f"header {header.key!r}")
    return made


def _check_bytes(value: object, what: str) -> None:
    """Here, not when the batch is encoded: others' records are in it."""
    if value is not None and not isinstance(value, bytes):
        raise TypeError(f"the {what} is a {type(value).__name__}, not bytes or None")
