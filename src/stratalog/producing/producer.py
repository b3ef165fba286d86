"""The producer: sends each record to its partition, in a batch with others.

A record waits with others for its partition until a batch is full, `linger_ms` is over, or somebody
flushes or asks for its offset. The `Delivery` that `append` returns has the offset once the batch
is written. A failure that nobody has asked for is raised by the next `flush` or `close`.

An error of one batch affects the records of this batch only: other records are written, and the
producer can still be used and closed.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias, TypedDict

from stratalog.errors import (
    AppendError,
    InvalidArgumentError,
    InvalidTopicError,
    InvalidTxnStateError,
    UnsupportedError,
)
from stratalog.format.arguments import choice_of, count_of
from stratalog.format.batch import Codec, advance_sequence
from stratalog.format.compression import compress
from stratalog.format.murmur import partition_for_key
from stratalog.format.names import TopicPartition
from stratalog.format.record import BatchFields, Header
from stratalog.producing.batches import (
    BATCH_BYTES_DEFAULT,
    LINGER_MS_DEFAULT,
    BuilderOptions,
    BuiltBatch,
    Delivery,
    LoadedEncoder,
    Outcome,
    PartitionQueue,
    check_timestamp,
)
from stratalog.producing.partitioner import StickyPartitioner
from stratalog.storage.closeable import Closeable
from stratalog.storage.locks import ProcessOwned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from stratalog.format.arguments import TimeLike
    from stratalog.format.encode_columns import EncodedBatches
    from stratalog.log.log_state import AppendInfo
    from stratalog.log.offset_assignment import AppendRules, BatchFacts
    from stratalog.partitions.catalog import TopicCatalog
    from stratalog.partitions.root import LogContext
    from stratalog.partitions.schedule import Schedule
    from stratalog.partitions.topics import TopicInfo
    from stratalog.producing.batches import AppendedRange
    from stratalog.producing.transaction_log import ProducerIdentity

Headers: TypeAlias = "Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]"


class RecordFields(TypedDict, total=False):
    """The fields of a record besides its topic and value: the keywords of `Producer.append`."""

    key: bytes | None
    headers: Headers
    timestamp: TimeLike | None
    partition: int | None


@dataclass(frozen=True)
class ProducerOptions:
    """How a producer builds batches. The defaults are Kafka's."""

    linger_ms: int = LINGER_MS_DEFAULT
    """How long a record may wait for others to share its batch; 0: not at all."""
    batch_bytes: int = BATCH_BYTES_DEFAULT
    """The maximum size of a batch of several records."""
    codec: Codec = Codec.NONE
    level: int | None = None
    """The compression level; None is Kafka's default."""

    @classmethod
    def of(
        cls, linger_ms: int, batch_bytes: int, compression: Codec | str, level: int | None
    ) -> Self:
        """`compression` may be a codec's name. Raises InvalidArgumentError."""
        codec = choice_of(Codec, compression, "compression")
        if level is not None and codec is not Codec.NONE:
            try:
                compress(codec, b"", level=level)
            except UnsupportedError as error:
                raise InvalidArgumentError(f"compression_level is {level!r}: {error}") from None
        linger_ms = count_of(linger_ms, "linger_ms")
        return cls(linger_ms, count_of(batch_bytes, "batch_bytes"), codec, level)


class SequenceNumbers:
    """The producer id and epoch of a producer, and its next sequence number in each partition.

    After a failure it is unknown whether the batch is in the log. Its numbers must not be used for
    other records: the log might take them for the same batch, and drop them. So the producer then
    continues with a new identity, which has written nothing yet.
    """

    def __init__(
        self, new_identity: Callable[[], ProducerIdentity], *, is_transactional: bool
    ) -> None:
        self._new_identity = new_identity
        self._is_transactional = is_transactional
        self._next: dict[TopicPartition, int] = {}
        self.identity = new_identity()
        self.has_failed = False
        """Whether a batch failed under this identity."""

    def renew(self) -> None:
        """Take a new identity, and number its batches from 0."""
        self.identity = self._new_identity()
        self._next.clear()
        self.has_failed = False

    @property
    def is_final(self) -> bool:
        """Whether nothing more can be written: a batch of a transaction failed."""
        return self.has_failed and self._is_transactional

    def renew_after_failure(self) -> None:
        """Take a new identity if a batch failed. Raises InvalidTxnStateError within a transaction,
        which keeps its identity."""
        if self.has_failed:
            if self._is_transactional:
                raise InvalidTxnStateError(
                    "a batch of the transaction failed: it can only be aborted"
                )
            self.renew()

    def fields_for(self, fields: BatchFields, topic_partition: TopicPartition) -> BatchFields:
        """The fields of the next batch in this partition."""
        return fields._replace(
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            base_sequence=self._next.get(topic_partition, 0),
            is_transactional=self._is_transactional,
        )

    def advance(self, topic_partition: TopicPartition, records: int) -> None:
        """Count records that were appended to the partition."""
        before = self._next.get(topic_partition, 0)
        self._next[topic_partition] = advance_sequence(before, records)


class _TopicQueues:
    """The queues of one topic, and what is needed to choose one of them."""

    __slots__ = ("by_partition", "info", "partition_count", "sticky")

    def __init__(self, info: TopicInfo, sticky: StickyPartitioner) -> None:
        self.by_partition: dict[int, PartitionQueue] = {}
        self.sticky = sticky
        self.use(info)

    def use(self, info: TopicInfo) -> None:
        self.info = info
        self.partition_count = info.partition_count

    def sticky_partition(self, value: bytes | None) -> int:
        """For a record without a key."""
        return self.sticky.choose(self.info.partitions, 0 if value is None else len(value))


class ProducerParts(NamedTuple):
    """The parts of a log directory that a producer works with."""

    catalog: TopicCatalog
    context: LogContext
    schedule: Schedule


class Producer(ProcessOwned, Closeable):
    """Appends records to topics. Thread-safe. Use it as a context manager, or `close` it."""

    def __init__(
        self,
        parts: ProducerParts,
        options: ProducerOptions,
        sequences: SequenceNumbers | None = None,
    ) -> None:
        """Use `LogDir.producer`."""
        super().__init__(parts.catalog.roots[0].path)
        self.options = options
        self._catalog, context, self._schedule = parts
        self._now_ms = context.now_ms
        self._sequences = sequences
        self._fields = BatchFields(codec=options.codec, level=options.level)
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._failed: list[Outcome] = []
        self._topics: dict[str, _TopicQueues] = {}
        self._partition_for_key: Callable[[bytes, int], int] = partition_for_key
        self._is_timer_set = False
        self._is_closed = False

    @property
    def producer_id(self) -> int | None:
        """None for a producer that is not idempotent."""
        return None if self._sequences is None else self._sequences.identity.producer_id

    # -- appending

    def append(  # noqa: C901 - for every record: a call more is a tenth of its time
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        timestamp: TimeLike | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """Append a record. `timestamp` is an int in milliseconds since 1970, a `datetime` with a
        time zone or a `numpy.datetime64` in UTC; None is now.

        Without `partition`, the key determines the partition, as in Kafka's own clients; without a
        key, the producer chooses one. A topic that does not exist is created if
        `auto.create.topics.enable` is set.

        Raises InvalidTimestampError, InvalidArgumentError, MessageTooLargeError or TypeError for a
        record that no batch can hold; other records are not affected.
        """
        if self._is_detached:
            self.check_process()
        now_ms = self._now_ms()
        time_ms = now_ms if timestamp is None else check_timestamp(timestamp)
        found = _headers_of(headers) if headers else ()
        if type(key) is not bytes:
            key = _checked_bytes(key, "key")
        if type(value) is not bytes:
            value = _checked_bytes(value, "value")
        with self._lock:
            if self._is_closed:
                self._check_open()
            if self._sequences is not None:
                self._sequences.renew_after_failure()
            queues = self._topics.get(topic)
            if queues is None or queues.info is not self._catalog.topics.get(topic):
                queues = self._update_topic(topic)
            if partition is None:
                if key is None:
                    partition = queues.sticky_partition(value)
                else:
                    partition = self._partition_for_key(key, queues.partition_count)
            queue = queues.by_partition.get(partition) or self._add_queue(queues, partition)
            builder = queue.builder
            batch = builder.add(key, value, time_ms, found, now_ms)
            delivery = Delivery(queue, batch, len(batch.timestamps) - 1)
            if now_ms >= builder.ready_ms:
                builder.close_ready(now_ms)
                self._write_closed(queue)
            if not self._is_timer_set and builder.has_records:
                self._set_timer(self.options.linger_ms)
            return delivery

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError("the producer is closed")

    def _update_topic(self, topic: str) -> _TopicQueues:
        """Called when the topic is used for the first time, or has changed."""
        info = self.topic_info(topic)
        queues = self._topics.get(topic)
        if queues is None:
            queues = _TopicQueues(info, StickyPartitioner(self.options.batch_bytes))
            self._topics[topic] = queues
        queues.use(info)
        options = self._builder_options(info)
        for queue in queues.by_partition.values():
            if queue.builder.options != options:
                self._failed += queue.rebuild(options)
        return queues

    def _add_queue(self, queues: _TopicQueues, partition: int) -> PartitionQueue:
        target = TopicPartition(queues.info.name, partition)
        self._catalog.slot(target)  # raises if there is no such partition
        queue = PartitionQueue(self, target, self._builder_options(queues.info))
        queues.by_partition[partition] = self._queues[target] = queue
        return queue

    def _builder_options(self, info: TopicInfo) -> BuilderOptions:
        return BuilderOptions(
            batch_bytes=self.options.batch_bytes,
            linger_ms=self.options.linger_ms,
            max_message_bytes=info.config.max_message_bytes,
            codec=self.options.codec,
        )

    # -- columns

    def append_columns(self, topic: str | None, data: Any) -> list[AppendedRange]:
        """Append the rows of Arrow data, and return what was stored in each partition.

        `data` is a pyarrow Table, RecordBatch or RecordBatchReader, or any object with
        `__arrow_c_stream__`: a DataFrame of pandas or polars, a relation of DuckDB. Columns, in any
        order; others are ignored:

        * `value`: string or binary; null is a tombstone;
        * `key` (optional): string or binary; determines the partition, as in `append`;
        * `timestamp`: an Arrow timestamp, or int64 in milliseconds; null is now;
        * `headers`: list of struct of `key` (string) and `value` (binary);
        * `partition`: an integer, or null to go by the key;
        * `topic`: string, used if the argument is None.

        The rows are written when the call returns, after all records that wait in this producer for
        the same partitions. Rows are read and written in portions of about 8 MiB, so the data may
        be larger than memory.

        Raises WriteSchemaError if a column is missing or has another type, and before anything of
        a portion is written InvalidRecordError, InvalidTimestampError or MessageTooLargeError for a
        row that the topic does not accept. Portions before it are in the log then; use a
        transaction to append all rows or none.
        """
        from stratalog.producing.arrow_rows import ColumnWriter  # noqa: PLC0415 - loads kernels

        self.check_process()
        return ColumnWriter(self, topic).write(data)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the producer for `ColumnWriter`: other appends wait."""
        with self._lock:
            self._check_open()
            self._renew_after_failure()
            yield

    def topic_info(self, topic: str) -> TopicInfo:
        """A topic to append to; created if it is missing and `auto.create.topics.enable` is set."""
        info = self._catalog.ensure(topic)
        if info.is_internal:
            raise InvalidTopicError(f"cannot append to the internal topic {topic}")
        return info

    def now_ms(self) -> int:
        return self._now_ms()

    def write_waiting(self, targets: Iterable[TopicPartition]) -> None:
        """Write the records that wait for these partitions: they come before those that follow."""
        for target in targets:
            queue = self._queues.get(target)
            if queue is not None:
                self.write(queue, include_open=True)
        self._renew_after_failure()

    def batch_fields(self, target: TopicPartition, rules: AppendRules) -> BatchFields:
        """The fields of the next batch in a partition, with the topic's codec if it has one."""
        fields = self._fields
        if rules.codec is not None:
            fields = fields._replace(codec=rules.codec, level=rules.level)
        return fields if self._sequences is None else self._sequences.fields_for(fields, target)

    def append_encoded(
        self, target: TopicPartition, batches: EncodedBatches, facts: BatchFacts
    ) -> AppendInfo:
        """Append batches that were encoded with `batch_fields`."""
        try:
            slot = self._catalog.slot(target)
            self.before_write(target)
            info = slot.log().append_own(batches.data, facts)
        except BaseException:
            if self._sequences is not None:
                self._sequences.has_failed = True
            raise
        if self._sequences is not None:
            self._sequences.advance(target, batches.record_count)
        return info

    # -- writing

    def flush(self) -> None:
        """Write every waiting record. Raises the first failure since the last flush, unless a
        `Delivery` has raised it."""
        self.check_process()
        with self._lock:
            for queue in self._queues.values():
                self.write(queue, include_open=True)
            failed, self._failed = self._failed, []
        for outcome in failed:
            if not outcome.is_reported and outcome.failure is not None:
                outcome.is_reported = True
                raise outcome.failure

    def close(self) -> None:
        """Write every waiting record, and accept no more. Idempotent. In a forked child nothing is
        written: the records belong to the parent."""
        with self._lock:
            self._is_closed = True
            if not self._is_detached:
                self.flush()

    def discard(self) -> None:
        """Drop every waiting record and every failure, and accept no more records."""
        with self._lock:
            self._is_closed = True
            for queue in self._queues.values():
                failure = InvalidTxnStateError("aborted before the record was written")
                queue.builder.discard(Outcome(queue.target, None, failure))
            self._queues.clear()
            self._topics.clear()
            self._failed.clear()

    def write(self, queue: PartitionQueue, *, include_open: bool) -> None:
        """Write the batches that are ready; with `include_open`, all batches. Deliveries and
        `flush` report failures."""
        self.check_process()
        with self._lock:
            if include_open:
                queue.builder.close_open_batch()
            else:
                queue.builder.close_ready(self._now_ms())
            self._write_closed(queue)

    def _write_closed(self, queue: PartitionQueue) -> None:
        """Encode the closed batches of a queue, and append them to its log, oldest first."""
        builder, target = queue.builder, queue.target
        while builder.has_closed:
            try:
                fields = self._next_fields(target)
            except InvalidTxnStateError:
                return
            batch = builder.build(fields)
            outcome = None
            try:
                outcome = self._outcome_of(target, batch)
            finally:
                self._complete(queue, batch, outcome)
            if LoadedEncoder.module is not None and self._partition_for_key is partition_for_key:
                self._use_compiled_partitioner()

    def _use_compiled_partitioner(self) -> None:
        """Kernels are loaded now, so hash keys with them."""
        from stratalog.format.hashing import partition_key  # noqa: PLC0415 - loads kernels

        self._partition_for_key = partition_key

    def _next_fields(self, target: TopicPartition) -> BatchFields:
        """The fields of the next batch in a partition. After a failure, they have a new
        identity."""
        if self._sequences is None:
            return self._fields
        self._sequences.renew_after_failure()
        return self._sequences.fields_for(self._fields, target)

    def _outcome_of(self, target: TopicPartition, batch: BuiltBatch) -> Outcome:
        if batch.failure is not None:
            return Outcome(target, None, batch.failure)
        try:
            return Outcome(target, self._append(target, batch), None)
        except Exception as error:  # affects this batch only
            return Outcome.failed(target, error)

    def _complete(self, queue: PartitionQueue, batch: BuiltBatch, outcome: Outcome | None) -> None:
        if outcome is None:
            interrupted = AppendError("interrupted while it was written: it may be in the log")
            outcome = Outcome(queue.target, None, interrupted)
        queue.builder.complete(batch, outcome)
        if outcome.failure is not None:
            # Failures that a delivery has raised would keep their tracebacks until a flush.
            self._failed = [failed for failed in self._failed if not failed.is_reported]
            self._failed.append(outcome)
            if self._sequences is not None:
                self._sequences.has_failed = True

    def _append(self, target: TopicPartition, batch: BuiltBatch) -> AppendInfo:
        slot = self._catalog.slot(target)
        self.before_write(target)
        info = slot.log().append(batch.data, facts=batch.facts)
        if self._sequences is not None:
            self._sequences.advance(target, batch.record_count)
        return info

    def before_write(self, target: TopicPartition) -> None:
        """Called before each batch; a transaction adds the partition here."""

    def _renew_after_failure(self) -> None:
        if self._sequences is not None:
            self._sequences.renew_after_failure()

    def _set_timer(self, delay_ms: int) -> None:
        self._is_timer_set = True
        self._schedule.after(delay_ms, "lingering batches", self._write_lingering)

    def _write_lingering(self) -> None:
        wait_ms = self._wait_ms()
        if wait_ms is not None and wait_ms > 0:  # the thread that appends writes ready batches
            self._set_timer(wait_ms)
            return
        with self._lock:
            self._is_timer_set = False
            for queue in self._queues.values():
                self.write(queue, include_open=False)
            wait_ms = self._wait_ms()
            is_final = self._sequences is not None and self._sequences.is_final
            if wait_ms is not None and not is_final:
                self._set_timer(max(wait_ms, 1))

    def _wait_ms(self) -> int | None:
        """How long until a batch is ready; None if no record is waiting. Needs no lock: a record
        that is added meanwhile is ready later than one that was there."""
        builders = [queue.builder for queue in list(self._queues.values())]
        waiting = [builder.ready_ms for builder in builders if builder.has_records]
        if not waiting:
            return None
        return min(min(waiting) - self._now_ms(), max(self.options.linger_ms, 1))


def _headers_of(headers: Headers) -> tuple[Header, ...]:
    if not headers:
        return ()
    items = headers.items() if isinstance(headers, Mapping) else headers
    found = tuple(Header(key, value) for key, value in items)
    for header in found:
        if not isinstance(header.key, str):
            raise TypeError(f"the header key {header.key!r} is not a str")
        _checked_bytes(header.value, f"header {header.key!r}")
    return found


def _checked_bytes(value: object, what: str) -> bytes | None:
    """Checked before the record shares a batch with others, which would fail with it."""
    if value is None:
        return None
    if not isinstance(value, bytes):
        raise TypeError(f"the {what} must be bytes or None, not {type(value).__name__}")
    return bytes(value)  # not of a subclass
