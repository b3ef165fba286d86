"""Records on their way to a partition, and what became of them.

A `Lane` holds the records that wait for one partition; an `Outcome` is what became of a batch of
them; a `Delivery` is one record, for whoever wants to know its offset.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from stratalog.errors import AppendError, InvalidTxnStateError, StratalogError
from stratalog.format.batch import NO_TIMESTAMP
from stratalog.log.batch_builder import BatchBuilder, BuilderOptions, NewRecord

if TYPE_CHECKING:
    from stratalog.format.names import TopicPartition
    from stratalog.log.log_state import AppendInfo
    from stratalog.log_dir.producer import Producer


class RecordMetadata(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds: as given, or of the append where the topic asks for that."""


class Outcome:
    """What became of one batch."""

    __slots__ = ("failure", "info", "is_told", "target")

    def __init__(
        self, target: TopicPartition, info: AppendInfo | None, failure: StratalogError | None
    ) -> None:
        self.target = target
        self.info = info
        self.failure = failure
        self.is_told = False
        """Somebody has asked and knows of the failure."""

    @classmethod
    def failed(cls, target: TopicPartition, error: Exception) -> Outcome:
        """With an error that may be none of ours: Kafka's unknown server error."""
        if isinstance(error, StratalogError):
            return cls(target, None, error)
        failure = AppendError(f"{target}: a batch could not be appended: {error!r}")
        failure.__cause__ = error
        return cls(target, None, failure)


class Delivery:
    """A record that was handed to a producer."""

    __slots__ = ("_index", "_lane", "_outcome", "_producer", "record", "since_ms")

    def __init__(self, producer: Producer, lane: Lane, record: NewRecord, since_ms: int) -> None:
        self._producer = producer
        self._lane = lane
        self._outcome: Outcome | None = None
        self._index = 0
        self.record: NewRecord = record
        self.since_ms = since_ms

    @property
    def is_done(self) -> bool:
        """Whether the record was written or refused; until then it waits for others."""
        return self._outcome is not None

    def result(self) -> RecordMetadata:
        """Where the record is. If it still waits, it is written now.

        Raises what its batch was refused with: an AppendError, or a StorageError.
        """
        if self._outcome is None:
            self._producer.write(self._lane, all_of_it=True)
        outcome = self._outcome
        if outcome is None:
            raise InvalidTxnStateError("a batch before the record failed: it was not written")
        if outcome.failure is not None:
            outcome.is_told = True
            raise outcome.failure
        assert outcome.info is not None
        timestamp = outcome.info.log_append_time_ms
        if timestamp == NO_TIMESTAMP:
            timestamp = self.record.timestamp or 0
        return RecordMetadata(*outcome.target, outcome.info.first_offset + self._index, timestamp)

    def settle(self, outcome: Outcome, index: int) -> None:
        """Called by the producer: the record was the one at `index` of this batch."""
        self._outcome = outcome
        self._index = index
        self.record = NewRecord(None, None, self.record.timestamp)  # the rest is in the log


class Lane:
    """The records on their way to one partition."""

    def __init__(self, target: TopicPartition, options: BuilderOptions) -> None:
        self.target = target
        self.waiting: deque[Delivery] = deque()
        self.options = options
        self.builder = BatchBuilder(options)

    def add(self, delivery: Delivery) -> None:
        self.builder.add(delivery.record, delivery.since_ms)
        self.waiting.append(delivery)

    def renew(self, options: BuilderOptions) -> list[Outcome]:
        """Build the batches of what waits in another way. Returns what became of records that
        these options refuse."""
        self.options = options
        ratio = self.builder.compression_ratio
        self.builder = BatchBuilder(options)
        self.builder.compression_ratio = ratio
        waiting, self.waiting = self.waiting, deque()
        refused = []
        for delivery in waiting:
            try:
                self.add(delivery)
            except Exception as error:  # of this record alone
                refused.append(Outcome.failed(self.target, error))
                delivery.settle(refused[-1], 0)
        return refused

    def settle(self, outcome: Outcome, record_count: int) -> None:
        for index in range(record_count):
            self.waiting.popleft().settle(outcome, index)
