"""How a transaction goes on: the steps of Kafka's coordinator, as functions of its state.

Each gives the state to write before the step counts. `__transaction_state` of a real broker shows
the same steps in the same order; a restart takes up at the last one that was written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.format.messages.transaction_records import TransactionState, TransactionStatus
from stratalog.format.names import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

EPOCH_MAX: Final = (1 << 15) - 1
_NOT_STARTED: Final = -1

_IDLE: Final = frozenset(
    {
        TransactionStatus.EMPTY,
        TransactionStatus.COMPLETE_COMMIT,
        TransactionStatus.COMPLETE_ABORT,
    }
)
_PREPARED: Final = frozenset({TransactionStatus.PREPARE_COMMIT, TransactionStatus.PREPARE_ABORT})


class ProducerIdentity(NamedTuple):
    """What a producer writes into its batches. A higher epoch of the same id fences it."""

    producer_id: int
    producer_epoch: int


def identity_of(state: TransactionState) -> ProducerIdentity:
    return ProducerIdentity(state.producer_id, state.producer_epoch)


def is_idle(state: TransactionState) -> bool:
    """No transaction is open or being ended."""
    return state.status in _IDLE


def is_prepared(state: TransactionState) -> bool:
    """How the transaction ends is decided; its markers may not all be there yet."""
    return state.status in _PREPARED


def has_epochs_left(state: TransactionState) -> bool:
    """One is kept back, to fence the last producer with."""
    return state.producer_epoch < EPOCH_MAX - 1


def partitions_of(state: TransactionState) -> Iterator[TopicPartition]:
    """The partitions that the transaction has written to, or was about to."""
    for topic, partitions in state.partitions:
        for partition in partitions:
            yield TopicPartition(topic, partition)


def begun(identity: ProducerIdentity, timeout_ms: int, now_ms: int) -> TransactionState:
    """A producer has this identity from now on; all earlier ones are fenced."""
    return TransactionState(
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        timeout_ms=timeout_ms,
        status=TransactionStatus.EMPTY,
        partitions=(),
        last_update_timestamp=now_ms,
        start_timestamp=_NOT_STARTED,
    )


def with_partition(
    state: TransactionState, topic_partition: TopicPartition, now_ms: int
) -> TransactionState:
    """The transaction, begun now if it was not, is about to write to another partition."""
    by_topic = {} if is_idle(state) else {topic: set(ids) for topic, ids in state.partitions}
    by_topic.setdefault(topic_partition.topic, set()).add(topic_partition.partition)
    return state._replace(
        status=TransactionStatus.ONGOING,
        partitions=tuple((topic, tuple(sorted(ids))) for topic, ids in by_topic.items()),
        last_update_timestamp=now_ms,
        start_timestamp=now_ms if is_idle(state) else state.start_timestamp,
    )


def fenced(state: TransactionState) -> TransactionState:
    """Ends the transaction over its producer's head: whatever that one still sends is refused."""
    return state._replace(producer_epoch=state.producer_epoch + 1)


def prepared(state: TransactionState, *, commit: bool, now_ms: int) -> TransactionState:
    """The decision. Once this is written, the transaction ends so, whatever happens."""
    status = TransactionStatus.PREPARE_COMMIT if commit else TransactionStatus.PREPARE_ABORT
    return state._replace(status=status, last_update_timestamp=now_ms)


def completed(state: TransactionState, now_ms: int) -> TransactionState:
    """All markers are written."""
    is_commit = state.status is TransactionStatus.PREPARE_COMMIT
    status = TransactionStatus.COMPLETE_COMMIT if is_commit else TransactionStatus.COMPLETE_ABORT
    return state._replace(status=status, partitions=(), last_update_timestamp=now_ms)
