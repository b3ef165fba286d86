"""The identity of a producer and the numbers of its batches, by which a log takes each once."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, TypeAlias

from stratalog.errors import (
    AppendError,
    InvalidTopicError,
    InvalidTxnStateError,
    LogOfflineError,
)
from stratalog.format.batch import Codec, advance_sequence
from stratalog.format.names import TopicPartition
from stratalog.format.record import BatchFields, Header
from stratalog.producing.batches import (
    BATCH_BYTES_DEFAULT,
    LINGER_MS_DEFAULT,
    BuilderOptions,
    BuiltBatch,
    Delivery,
    NewRecord,
    Outcome,
    PartitionBatch,
    checked_timestamp,
)
from stratalog.producing.partitioner import StickyPartitioner, partition_for_key
from stratalog.storage.locks import detach_in_children, inherited_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stratalog.log.log_state import AppendInfo
    from stratalog.partitions.catalog import TopicCatalog
    from stratalog.partitions.root import LogContext
    from stratalog.partitions.schedule import Schedule
    from stratalog.partitions.topics import TopicInfo
    from stratalog.producing.transaction_log import ProducerIdentity


class SequenceNumbers:
    """Producer id and epoch, and the next sequence number in each partition.

    After a failure it is not certain whether the batch is in the log. Its number must not be used
    for other records: the log might take them for the batch, and drop them. So numbering begins
    anew then, under an identity that has written nothing.
    """

    def __init__(self, renew: Callable[[], ProducerIdentity], *, is_transactional: bool) -> None:
        """`renew` gives such an identity. Within a transaction there can be no other one."""
        self._renew = renew
        self._is_transactional = is_transactional
        self._next: dict[TopicPartition, int] = {}
        self.identity = renew()
        self.is_in_doubt = False
        """A batch failed."""

    def renew(self) -> None:
        """Take another identity, and count from 0 again."""
        self.identity = self._renew()
        self._next.clear()
        self.is_in_doubt = False

    def settle(self) -> bool:
        """Begin anew if there is doubt; whether that was so."""
        if not self.is_in_doubt:
            return False
        if self._is_transactional:
            raise InvalidTxnStateError("a batch of the transaction failed: it can only be aborted")
        self.renew()
        return True

    def stamp(self, fields: BatchFields, topic_partition: TopicPartition) -> BatchFields:
        """The fields of the producer's next batch in this partition."""
        return fields._replace(
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.producer_epoch,
            base_sequence=self._next.get(topic_partition, 0),
            is_transactional=self._is_transactional,
        )

    def advance(self, topic_partition: TopicPartition, records: int) -> None:
        """So many records more of the partition are in the log."""
        before = self._next.get(topic_partition, 0)
        self._next[topic_partition] = advance_sequence(before, records)


# Appending records: each goes to its partition, and with others into a batch.
#
# A record waits with others for its partition until a batch is full, `linger_ms` is over, or
# somebody flushes or asks for its offset. What an append returns knows the offset once the batch
# is written; a failure that nobody asked about comes out of the next `flush` or `close`.
#
# Whatever goes wrong with a batch is the failure of its records alone: other records are written,
# and the producer can be used and closed.

Headers: TypeAlias = "Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]]"


@dataclass(frozen=True)
class ProducerOptions:
    """How a producer makes batches. The defaults are Kafka's."""

    linger_ms: int = LINGER_MS_DEFAULT
    """How long a record may wait for others to share a batch with; 0: not at all."""
    batch_bytes: int = BATCH_BYTES_DEFAULT
    """How large a batch of several records may become."""
    codec: Codec = Codec.NONE
    level: int | None = None
    """Of the codec; None is Kafka's default."""

    @classmethod
    def of(
        cls, linger_ms: int, batch_bytes: int, compression: Codec | str, level: int | None
    ) -> Self:
        """With the codec by its name, too."""
        return cls(linger_ms, batch_bytes, _codec_of(compression), level)


def _codec_of(compression: Codec | str) -> Codec:
    if isinstance(compression, Codec):
        return compression
    try:
        return Codec[compression.upper()]
    except KeyError:
        names = ", ".join(codec.name.lower() for codec in Codec)
        raise ValueError(f"compression is {compression!r}, not one of {names}") from None


class Producer:
    """Appends records to topics. Thread-safe. Use it as a context manager, or `close` it."""

    def __init__(
        self,
        catalog: TopicCatalog,
        engine: LogContext,
        schedule: Schedule,
        options: ProducerOptions,
        numbering: SequenceNumbers | None = None,
    ) -> None:
        """`LogDir.producer` makes one."""
        self.options = options
        self._catalog = catalog
        self._now_ms = engine.now_ms
        self._default_config = engine.config.log_config
        self._schedule = schedule
        self._numbering = numbering
        self._fields = BatchFields(codec=options.codec, level=options.level)
        self._lock = threading.RLock()
        self._lanes: dict[TopicPartition, PartitionBatch] = {}
        self._failed: list[Outcome] = []
        self._sticky: dict[str, StickyPartitioner] = {}
        self._is_timer_set = False
        self._is_closed = False
        self._is_detached = False
        detach_in_children(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
        """Append a record. `timestamp` is in milliseconds since 1970; None is now.

        Without `partition` the key decides, as for Kafka's own clients; without a key too, any
        partition will do. A topic that does not exist is created if `auto.create.topics.enable`.

        Raises InvalidTimestampError, MessageTooLargeError or TypeError for a record that no batch
        can hold; other records are not affected.
        """
        self.check_process()
        now_ms = self._now_ms()
        timestamp = checked_timestamp(now_ms if timestamp is None else timestamp)
        record = NewRecord(key, value, timestamp, _headers_of(headers))
        _check_bytes(key, "key")
        _check_bytes(value, "value")
        with self._lock:
            if self._is_closed:
                raise ValueError("the producer is closed")
            self._settle()
            lane = self._lane_for(topic, record, partition)
            delivery = Delivery(self, lane, record, now_ms)
            lane.add(delivery)
            self.write(lane, all_of_it=self.options.linger_ms <= 0)
            if lane.waiting and not self._is_timer_set:
                self._set_timer(self.options.linger_ms)
            return delivery

    def _lane_for(self, topic: str, record: NewRecord, partition: int | None) -> PartitionBatch:
        info = self._catalog.ensure(topic)
        if info.is_internal:
            raise InvalidTopicError(f"{topic} is the log directory's own topic")
        if partition is None:
            if record.key is None:
                partition = self._sticky_partition(info, len(record.value or b""))
            else:
                partition = partition_for_key(record.key, info.partition_count)
        target = TopicPartition(topic, partition)
        lane = self._lanes.get(target)
        if lane is None:
            self._catalog.slot(target)  # raises if there is no such partition
            lane = self._lanes[target] = PartitionBatch(target, self._builder_options(target))
        elif lane.options.max_message_bytes != info.config.max_message_bytes:
            self._renew(lane)
        return lane

    def _renew(self, lane: PartitionBatch) -> None:
        self._failed += lane.renew(self._builder_options(lane.target))

    def _sticky_partition(self, info: TopicInfo, size_bytes: int) -> int:
        sticky = self._sticky.get(info.name)
        if sticky is None:
            sticky = self._sticky[info.name] = StickyPartitioner(self.options.batch_bytes)
        return sticky.choose(info.partitions, size_bytes)

    def _builder_options(self, target: TopicPartition) -> BuilderOptions:
        fields = self._fields
        if self._numbering is not None:
            fields = self._numbering.stamp(fields, target)
        topic = self._catalog.topics.get(target.topic)  # it may have been deleted meanwhile
        config = self._default_config if topic is None else topic.config
        return BuilderOptions(
            batch_bytes=self.options.batch_bytes,
            linger_ms=self.options.linger_ms,
            max_message_bytes=config.max_message_bytes,
            fields=fields,
        )

    # -- writing

    def flush(self) -> None:
        """Write every waiting record. Raises the first failure since the last flush, unless its
        `Delivery` has told it."""
        self.check_process()
        with self._lock:
            for lane in self._lanes.values():
                self.write(lane, all_of_it=True)
            failed, self._failed = self._failed, []
        for outcome in failed:
            if not outcome.is_told and outcome.failure is not None:
                outcome.is_told = True
                raise outcome.failure

    def close(self) -> None:
        """Write what waits, and take no more records. Idempotent. In a forked child, where all that
        waits is the parent's, writes nothing."""
        with self._lock:
            self._is_closed = True
            if not self._is_detached:
                self.flush()

    def detach(self) -> None:
        """In a forked child: the records that wait are the parent's to write."""
        self._lock = threading.RLock()  # a thread that does not exist here may have the other
        self._is_detached = True

    def check_process(self) -> None:
        """Raise LogOfflineError in a forked child."""
        if self._is_detached:
            raise LogOfflineError(self._catalog.roots[0].path, inherited_reason())

    def discard(self) -> None:
        """Drop every waiting record, and forget about failures."""
        with self._lock:
            self._is_closed = True
            for lane in self._lanes.values():
                failure = InvalidTxnStateError("aborted before the record was written")
                lane.settle(Outcome(lane.target, None, failure), len(lane.waiting))
            self._lanes.clear()
            self._failed.clear()

    def write(self, lane: PartitionBatch, *, all_of_it: bool) -> None:
        """Write the batches that are ready, or all. Deliveries and `flush` tell of failures."""
        self.check_process()
        with self._lock:
            while lane.waiting:
                if self._numbering is not None and self._numbering.is_in_doubt:
                    try:
                        self._settle()
                    except InvalidTxnStateError:
                        return
                try:
                    if self._write_ready(lane, all_of_it=all_of_it):
                        return
                except BaseException:  # interrupted: what waits still is not built any more
                    self._renew(lane)
                    raise

    def _write_ready(self, lane: PartitionBatch, *, all_of_it: bool) -> bool:
        """False if the batches from some point on must be built anew, with other numbers."""
        built = lane.builder.flush() if all_of_it else lane.builder.drain(self._now_ms())
        for batch in built:
            interrupted = AppendError("interrupted while it was written: it may be in the log")
            outcome = Outcome(lane.target, None, interrupted)
            try:
                outcome = self._outcome_of(lane.target, batch)
            finally:
                self._settle_batch(lane, outcome, batch.record_count)
            if outcome.failure is not None and self._numbering is not None:
                return False
        return True

    def _outcome_of(self, target: TopicPartition, batch: BuiltBatch) -> Outcome:
        if batch.failure is not None:
            return Outcome(target, None, batch.failure)
        try:
            return Outcome(target, self._write(target, batch), None)
        except Exception as error:  # whatever it is, it is this batch's alone
            return Outcome.failed(target, error)

    def _settle_batch(self, lane: PartitionBatch, outcome: Outcome, record_count: int) -> None:
        lane.settle(outcome, record_count)
        if outcome.failure is not None:
            self._failed.append(outcome)
            if self._numbering is not None:
                self._numbering.is_in_doubt = True

    def _write(self, target: TopicPartition, batch: BuiltBatch) -> AppendInfo:
        slot = self._catalog.slot(target)
        self.before_write(target)
        info = slot.log().append(batch.data, facts=batch.facts)
        if self._numbering is not None:
            self._numbering.advance(target, batch.record_count)
        return info

    def before_write(self, target: TopicPartition) -> None:
        """Called before each batch. A transaction has something to do here."""

    def _settle(self) -> None:
        """After a failure, go on under another identity, with all that waits."""
        if self._numbering is not None and self._numbering.settle():
            for lane in self._lanes.values():
                self._renew(lane)

    def _set_timer(self, delay_ms: int) -> None:
        self._is_timer_set = True
        self._schedule.after(delay_ms, "lingering batches", self._write_due)

    def _write_due(self) -> None:
        with self._lock:
            self._is_timer_set = False
            for lane in self._lanes.values():
                self.write(lane, all_of_it=False)
            now_ms = self._now_ms()
            waits = [lane.builder.ready_in_ms(now_ms) for lane in self._lanes.values()]
            next_ms = min((wait for wait in waits if wait is not None), default=None)
            if next_ms is not None:
                self._set_timer(max(next_ms, 1))


def _headers_of(headers: Headers) -> tuple[Header, ...]:
    if not headers:
        return ()
    items = headers.items() if isinstance(headers, Mapping) else headers
    made = tuple(Header(key, value) for key, value in items)
    for header in made:
        if not isinstance(header.key, str):
            raise TypeError(f"the header key {header.key!r} is not a str")
        _check_bytes(header.value, f"header {header.key!r}")
    return made


def _check_bytes(value: object, what: str) -> None:
    """Here, not when the batch is encoded: others' records are in it."""
    if value is not None and not isinstance(value, bytes):
        raise TypeError(f"the {what} is a {type(value).__name__}, not bytes or None")
