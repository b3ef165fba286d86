"""`__transaction_state`: the state of each transactional id, in Kafka's own topic and format.

First the state transitions of Kafka's coordinator, as pure functions: each returns the state to
write before the transition takes effect. A restart continues with the last state that was written.

Then the log. The hash of a transactional id determines its partition. The last record of an id is
its state; a tombstone removes it. A writer that opens the directory reads every partition that has
a record, as a broker does for each one it leads. Empty ones (most of Kafka's fifty) are not opened.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import (
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
    StratalogError,
)
from stratalog.format.messages.transaction_records import (
    TransactionState,
    TransactionStatus,
    encode_transaction_state,
    encode_transactional_id,
    key_version,
    read_transaction_state,
    read_transactional_id,
)
from stratalog.format.names import TRANSACTION_STATE_TOPIC, TopicPartition
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log.offset_assignment import AppendOrigin
from stratalog.log.producer_transitions import EPOCH_PER_TRANSACTION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stratalog.log.partition_log import PartitionLog
    from stratalog.log.partition_view import PartitionView
    from stratalog.partitions.catalog import TopicCatalog
    from stratalog.partitions.root import LogContext

EPOCH_MAX: Final = (1 << 15) - 1
NO_EPOCH: Final = -1
_NO_ID: Final = -1
_NOT_STARTED: Final = -1

_IDLE: Final = frozenset(
    {
        TransactionStatus.EMPTY,
        TransactionStatus.COMPLETE_COMMIT,
        TransactionStatus.COMPLETE_ABORT,
    }
)
_COMPLETE: Final = {
    True: TransactionStatus.COMPLETE_COMMIT,
    False: TransactionStatus.COMPLETE_ABORT,
}
_PREPARED: Final = frozenset({TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT})


class ProducerIdentity(NamedTuple):
    """The producer id and epoch in a producer's batches. A higher epoch of the id fences it."""

    producer_id: int
    producer_epoch: int


def identity_of(state: TransactionState) -> ProducerIdentity:
    return ProducerIdentity(state.producer_id, state.producer_epoch)


def is_idle(state: TransactionState) -> bool:
    """Whether no transaction is open or being ended."""
    return state.status in _IDLE


def is_prepared(state: TransactionState) -> bool:
    """Whether commit or abort is decided; markers may still be missing."""
    return state.status in _PREPARED


def has_epochs_left(state: TransactionState) -> bool:
    """The last epoch is reserved to fence the last producer."""
    return _has_next(state.producer_epoch)


def _has_next(epoch: int) -> bool:
    return epoch < EPOCH_MAX - 1


def partitions_of(state: TransactionState) -> Iterator[TopicPartition]:
    """The partitions that the transaction has written to, or was about to write to."""
    for topic, partitions in state.partitions:
        for partition in partitions:
            yield TopicPartition(topic, partition)


def started(identity: ProducerIdentity, timeout_ms: int, now_ms: int) -> TransactionState:
    """A producer starts with this identity; all earlier ones are fenced."""
    return TransactionState(
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        timeout_ms=timeout_ms,
        status=TransactionStatus.EMPTY,
        partitions=(),
        last_update_timestamp=now_ms,
        start_timestamp=_NOT_STARTED,
    )


def restarted(
    state: TransactionState,
    expected: ProducerIdentity | None,
    timeout_ms: int,
    now_ms: int,
    new_producer_id: int | None,
) -> TransactionState:
    """The producer of an idle transactional id starts again, with the next epoch or with a new
    producer id.

    With `expected`, it is the same client that asks for another epoch: if it repeats its last
    request, because the response was lost, it gets the same response.
    """
    if expected is not None and check_repeated_start(state, expected):
        identity, last_epoch = identity_of(state), state.last_producer_epoch
    else:
        last_epoch = NO_EPOCH if expected is None else state.producer_epoch
        if new_producer_id is None:
            identity = ProducerIdentity(state.producer_id, state.producer_epoch + 1)
        else:
            identity = ProducerIdentity(new_producer_id, 0)
    is_same_id = identity.producer_id == state.producer_id
    previous_id = state.previous_producer_id if is_same_id else state.producer_id
    return started(identity, timeout_ms, now_ms)._replace(
        previous_producer_id=previous_id, last_producer_epoch=last_epoch
    )


def check_repeated_start(state: TransactionState, expected: ProducerIdentity) -> bool:
    """Check a producer that says it has the identity `expected`. True if it got its present one by
    an earlier copy of this request. Raises ProducerFencedError if it has another identity than it
    says."""
    if expected == identity_of(state):
        return False
    is_known = expected.producer_id in {state.producer_id, state.previous_producer_id}
    if is_known and expected.producer_epoch == state.last_producer_epoch != NO_EPOCH:
        return True
    raise ProducerFencedError(f"the producer is {identity_of(state)} now, not {expected}")


def check_identity(state: TransactionState, identity: ProducerIdentity) -> None:
    """Raise ProducerFencedError unless the producer is the current one of the transactional id."""
    if state.producer_id != identity.producer_id:
        raise InvalidProducerIdMappingError(
            f"the transactional id has the producer id {state.producer_id} now, not "
            f"{identity.producer_id}: another producer uses it"
        )
    if state.producer_epoch != identity.producer_epoch:
        raise ProducerFencedError(
            f"producer {identity.producer_id} has epoch {state.producer_epoch} now, not "
            f"{identity.producer_epoch}: another producer uses its transactional id, or its "
            "transaction timed out"
        )


def with_partitions(
    state: TransactionState,
    partitions: Iterable[TopicPartition],
    now_ms: int,
    client_version: int = 0,
) -> TransactionState:
    """The transaction, started now if none is open, is about to write to these partitions."""
    by_topic = {} if is_idle(state) else {topic: set(ids) for topic, ids in state.partitions}
    for topic, partition in partitions:
        by_topic.setdefault(topic, set()).add(partition)
    return state._replace(
        status=TransactionStatus.ONGOING,
        partitions=tuple((topic, tuple(sorted(ids))) for topic, ids in by_topic.items()),
        last_update_timestamp=now_ms,
        start_timestamp=now_ms if is_idle(state) else state.start_timestamp,
        client_transaction_version=client_version,
    )


def fenced(state: TransactionState, *, by_itself: bool = False) -> TransactionState:
    """The producer is fenced: its further writes are rejected. If it asked for it itself, it may
    ask for its new epoch."""
    return state._replace(
        producer_epoch=state.producer_epoch + 1,
        last_producer_epoch=state.producer_epoch if by_itself else NO_EPOCH,
        client_transaction_version=0,
    )


def check_end(
    state: TransactionState, identity: ProducerIdentity, *, commit: bool, client_version: int = 0
) -> bool:
    """Check a request to end the transaction. True if it repeats one that was carried out, False if
    it is to be carried out now.

    Clients of version 2 get a new epoch with each end, so one that repeats a request has the epoch
    before. They may also abort a transaction that wrote nothing. Raises InvalidTxnStateError,
    ProducerFencedError or InvalidProducerIdMappingError.
    """
    is_repeated = client_version >= EPOCH_PER_TRANSACTION and _has_next_epoch(state, identity)
    if not is_repeated:
        check_identity(state, identity)
    if is_prepared(state):
        if commit is (state.status is TransactionStatus.PREPARE_COMMIT):
            return False  # a marker is still missing
    elif state.status is TransactionStatus.ONGOING:
        if not is_repeated:
            return False
        raise ProducerFencedError("a later transaction of the producer is open")
    elif is_repeated or client_version < EPOCH_PER_TRANSACTION:
        if state.status is _COMPLETE[commit]:
            return True
    elif not commit:
        return False
    raise InvalidTxnStateError(
        f"cannot {'commit' if commit else 'abort'}: the transaction is {state.status.kafka_name}"
    )


def _has_next_epoch(state: TransactionState, identity: ProducerIdentity) -> bool:
    """Whether the state is that after the end of this producer's transaction."""
    if state.client_transaction_version < EPOCH_PER_TRANSACTION:
        return False
    if state.producer_id == identity.producer_id:
        return state.producer_epoch == identity.producer_epoch + 1
    was_last = not _has_next(identity.producer_epoch) and state.producer_epoch == 0
    return was_last and state.previous_producer_id == identity.producer_id


def prepared(
    state: TransactionState,
    *,
    commit: bool,
    now_ms: int,
    client_version: int,
    next_producer_id: int,
) -> TransactionState:
    """The decision. Once this is written, the transaction ends this way, whatever happens.

    For clients of version 2 the next epoch begins with it; if there is none left,
    `next_producer_id` is what the producer continues with.
    """
    ending = state._replace(
        status=TransactionStatus.PREPARE_COMMIT if commit else TransactionStatus.PREPARE_ABORT,
        last_update_timestamp=now_ms,
        start_timestamp=now_ms if is_idle(state) else state.start_timestamp,
        client_transaction_version=client_version,
    )
    if client_version < EPOCH_PER_TRANSACTION:
        return ending
    return ending._replace(
        producer_epoch=state.producer_epoch + 1,
        last_producer_epoch=state.producer_epoch,
        next_producer_id=next_producer_id,
    )


def completed(state: TransactionState, now_ms: int) -> TransactionState:
    """The state after all markers are written."""
    is_commit = state.status is TransactionStatus.PREPARE_COMMIT
    ended = state._replace(status=_COMPLETE[is_commit], partitions=(), last_update_timestamp=now_ms)
    if state.next_producer_id == _NO_ID:
        return ended
    return ended._replace(
        producer_id=state.next_producer_id,
        producer_epoch=0,
        previous_producer_id=state.producer_id,
        next_producer_id=_NO_ID,
    )


_KEY_VERSION: Final = 0
_COLUMNS_FROM_BYTES: Final = 4 << 20

_log = logging.getLogger(__name__)


class TransactionLog:
    """The states of all transactional ids. Not thread-safe: the coordinator has a lock."""

    def __init__(self, catalog: TopicCatalog, context: LogContext) -> None:
        self._catalog = catalog
        self._context = context
        self._states: dict[int, dict[str, TransactionState]] = {}
        self.has_unreadable = False
        """Whether the last call of `all` skipped a partition."""

    @property
    def exists(self) -> bool:
        return TRANSACTION_STATE_TOPIC in self._catalog.topics

    def create(self) -> None:
        """Create the topic as Kafka does, with one replica."""
        if self.exists:
            return
        self._catalog.create(
            TRANSACTION_STATE_TOPIC,
            self._context.config.transaction_state_log_num_partitions,
            replication_factor=1,
            overrides={
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "segment.bytes": self._context.config.transaction_state_log_segment_bytes,
            },
        )

    def find(self, transactional_id: str) -> TransactionState | None:
        """The state of an id; None if it was never used, or has expired."""
        if not self.exists:
            return None
        return self._partition(self._partition_of(transactional_id)).get(transactional_id)

    def all(self) -> Iterator[tuple[str, TransactionState]]:
        """Every id and its state. Reads the topic on the first call.

        A partition that cannot be read is logged and skipped: using its ids raises, and the next
        call tries again.
        """
        self.has_unreadable = False
        if not self.exists:
            return
        for partition in self._catalog.topic(TRANSACTION_STATE_TOPIC).partitions:
            try:
                states = self._partition(partition)
            except StratalogError as error:
                self.has_unreadable = True
                _log.warning("cannot read the transactions of this partition: %s", error)
            else:
                yield from list(states.items())

    def write(self, transactional_id: str, state: TransactionState | None) -> None:
        """Write the state of an id; None removes it. Takes effect once it is in the log."""
        partition = self._partition_of(transactional_id)
        states = self._partition(partition)
        record = Record(
            0,
            self._context.now_ms(),
            key=encode_transactional_id(transactional_id),
            value=None if state is None else _encode(state),
        )
        self._log(partition).append(
            encode_batch([record], BatchFields()), origin=AppendOrigin.COORDINATOR
        )
        if state is None:
            states.pop(transactional_id, None)
        else:
            states[transactional_id] = state

    def flush(self, transactional_id: str) -> None:
        """Make the id's state durable."""
        self._log(self._partition_of(transactional_id)).flush()

    def coordinator_epoch(self, transactional_id: str) -> int:
        """For the markers: the leader epoch of the id's partition of the topic."""
        return self._log(self._partition_of(transactional_id)).leader_epoch

    def _partition_of(self, transactional_id: str) -> int:
        count = self._catalog.topic(TRANSACTION_STATE_TOPIC).partition_count
        return java_abs(java_hash(transactional_id)) % count

    def _log(self, partition: int) -> PartitionLog:
        return self._catalog.slot(TopicPartition(TRANSACTION_STATE_TOPIC, partition)).log()

    def _partition(self, partition: int) -> dict[str, TransactionState]:
        states = self._states.get(partition)
        if states is None:
            slot = self._catalog.slot(TopicPartition(TRANSACTION_STATE_TOPIC, partition))
            states = {} if slot.is_empty else read_states(slot.log())
            self._states[partition] = states
        return states


def _encode(state: TransactionState) -> bytes:
    """Encode a state in version 0, which every Kafka reads, unless it has values that need version
    1."""
    newer = (state.previous_producer_id, state.next_producer_id, state.client_transaction_version)
    return encode_transaction_state(state, version=0 if newer == (_NO_ID, _NO_ID, 0) else 1)


def read_states(log: PartitionLog | PartitionView) -> dict[str, TransactionState]:
    """The states in a partition of the topic. Decodes only the last value of each id: before
    compaction there may be many."""
    last = dict(_keys_and_values(log))
    return {
        read_transactional_id(key): read_transaction_state(value)
        for key, value in last.items()
        if key is not None and value is not None and key_version(key) == _KEY_VERSION
    }


def _keys_and_values(
    log: PartitionLog | PartitionView,
) -> Iterator[tuple[bytes | None, bytes | None]]:
    """All records in order. Loading the kernels pays off only for many."""
    if log.size_bytes < _COLUMNS_FROM_BYTES:
        for record in log.read("earliest"):
            yield record.key, record.value
        return
    for batch in log.read_columns("earliest", columns=("key", "value")):
        yield from zip(
            batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True
        )


def java_hash(text: str) -> int:
    """Java's `String.hashCode`."""
    hashed = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        hashed = hashed * 31 + int.from_bytes(units[at : at + 2]) & 0xFFFF_FFFF
    return hashed - (1 << 32) if hashed >= 1 << 31 else hashed


def java_abs(value: int) -> int:
    """Kafka's `Utils.abs`: 0 for the smallest int, which has no positive counterpart."""
    return 0 if value == -(1 << 31) else abs(value)
