"""The transaction coordinator: who may write under a transactional id, and how it ended.

Invariants:

* a state is written before it counts, and a partition is part of the written state before data goes
  there: so after a crash the log tells every partition that may have to be cleaned up;
* a transaction is decided by the write of its prepared state. From then on its markers are written,
  again after a failure or a crash, until all are there;
* of all producers that ever began under an id, only the latest can write;
* no two transactions have the same producer id and epoch. So a marker that is written again, since
  nobody knows any more that it was, can end no later transaction.

Whoever opens the directory for writing ends what is overdue: a producer that died with its process
would otherwise hold back the last stable offset for ever. In a directory of a Kafka cluster
(`meta.properties`) only transactions of producers that began here are ended without being asked:
those of the cluster are its coordinator's, and this directory may hold but one of several replicas.

Losing power may cost the last states that were written, while data written after them survives. A
producer id that was in use then may have gone further than anybody knows; it is used no more.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, NamedTuple

from stratalog.errors import (
    InvalidNameError,
    InvalidProducerEpochError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    ProducerFencedError,
    StratalogError,
)
from stratalog.format.messages.transaction_records import TransactionState, TransactionStatus
from stratalog.partitions.state import FIRST_PRODUCER_ID
from stratalog.producing import transaction_log as steps
from stratalog.producing.transaction_log import ProducerIdentity, TransactionLog

if TYPE_CHECKING:
    from collections.abc import Set

    from stratalog.format.names import TopicPartition
    from stratalog.log.partition_log import PartitionLog
    from stratalog.partitions.catalog import TopicCatalog
    from stratalog.partitions.root import LogContext
    from stratalog.partitions.state import ProducerIds
    from stratalog.partitions.table import PartitionSlot

_log = logging.getLogger(__name__)


class OpenTransaction(NamedTuple):
    """A transaction that has not ended."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    since_ms: int
    partitions: tuple[TopicPartition, ...]
    is_decided: bool
    """Commit or abort is certain; only markers are missing."""


class TransactionCoordinator:
    """Begins and ends transactions. Thread-safe."""

    def __init__(self, catalog: TopicCatalog, ids: ProducerIds, context: LogContext) -> None:
        self._catalog = catalog
        self._was_clean = True
        self._ids = ids
        self._context = context
        self._states = TransactionLog(catalog, context)
        self._lock = threading.RLock()
        self._begun_here: dict[str, ProducerIdentity] = {}

    # -- what a producer asks for

    def begin_producer(
        self,
        transactional_id: str,
        timeout_ms: int | None,
        *,
        expected: ProducerIdentity | None = None,
    ) -> ProducerIdentity:
        """Make the caller the only producer of the id, and end what its predecessor left open.

        With `expected` only its own predecessor: the producer of this identity goes on.
        """
        timeout_ms = self._checked(transactional_id, timeout_ms)
        with self._lock:
            self._states.create()
            if expected is not None:
                self._state_for(transactional_id, expected)
            self._end_if_open(transactional_id)
            identity = self._next_identity(transactional_id)
            begun = steps.begun(identity, timeout_ms, self._context.now_ms())
            self._states.write(transactional_id, begun)
            self._begun_here[transactional_id] = identity
            return identity

    def _checked(self, transactional_id: str, timeout_ms: int | None) -> int:
        if not transactional_id:
            raise InvalidNameError("a transactional id cannot be empty")
        longest_ms = self._context.config.transaction_max_timeout_ms
        timeout_ms = longest_ms if timeout_ms is None else timeout_ms
        if not 0 < timeout_ms <= longest_ms:
            raise InvalidTransactionTimeoutError(
                f"a timeout of {timeout_ms} ms is not in 1 to {longest_ms}, "
                "which is transaction.max.timeout.ms"
            )
        return timeout_ms

    def _next_identity(self, transactional_id: str) -> ProducerIdentity:
        state = self._states.find(transactional_id)
        is_known = self._was_clean or transactional_id in self._begun_here
        if state is None or not is_known or not steps.has_epochs_left(state):
            return ProducerIdentity(self._ids.take(), 0)
        return ProducerIdentity(state.producer_id, state.producer_epoch + 1)

    def add_partition(
        self, transactional_id: str, identity: ProducerIdentity, topic_partition: TopicPartition
    ) -> None:
        """The producer is about to write to this partition."""
        with self._lock:
            state = self._state_for(transactional_id, identity)
            if steps.is_prepared(state):
                raise InvalidTxnStateError(f"the transaction of {transactional_id!r} is ending")
            after = steps.with_partition(state, topic_partition, self._context.now_ms())
            self._states.write(transactional_id, after)

    def end(
        self, transactional_id: str, identity: ProducerIdentity, *, commit: bool, flush: bool
    ) -> None:
        """End the producer's transaction. With `flush` the end survives a crash of the machine."""
        with self._lock:
            state = self._state_for(transactional_id, identity)
            if steps.is_idle(state):
                return  # it never wrote anything
            if state.status is TransactionStatus.ONGOING:
                state = self._decide(transactional_id, state, commit=commit, flush=flush)
            elif commit != (state.status is TransactionStatus.PREPARE_COMMIT):
                raise InvalidTxnStateError(
                    f"the transaction of {transactional_id!r} is {state.status.kafka_name} already"
                )
            self._finish(transactional_id, state, flush=flush)

    def _state_for(self, transactional_id: str, identity: ProducerIdentity) -> TransactionState:
        state = self._states.find(transactional_id)
        if state is None or steps.identity_of(state) != identity:
            raise ProducerFencedError(
                f"another producer has taken over transactional id {transactional_id!r}, "
                "or its transaction took too long"
            )
        return state

    # -- what is left over

    def open_transactions(self) -> list[OpenTransaction]:
        """Every transaction that has not ended, left by a crash or just going on."""
        with self._lock:
            return [
                OpenTransaction(
                    transactional_id,
                    state.producer_id,
                    state.producer_epoch,
                    state.start_timestamp,
                    tuple(steps.partitions_of(state)),
                    steps.is_prepared(state),
                )
                for transactional_id, state in self._states.all()
                if not steps.is_idle(state)
            ]

    def abort(self, transactional_id: str) -> bool:
        """End what is open under the id: abort it, unless it is decided already. Whether there was
        something to end. Its producer is fenced."""
        with self._lock:
            return self._end_if_open(transactional_id)

    def resume(self, *, was_clean: bool, ends_nothing: bool = False) -> None:
        """Take over from the last writer: write the markers that are missing, and abort what is
        overdue.

        After an unclean stop also abort transactions that nobody knows of, because the state that
        told of them was lost. That one fails does not keep the directory from opening: the timer
        tries again. With `ends_nothing` all this is left to whoever opens the directory next.
        """
        with self._lock:
            self._was_clean = was_clean
            if ends_nothing or not self._states.exists:
                return  # there never was a transaction
            if not was_clean:
                known = self._finish_prepared()
                if not self._states.has_unreadable and not self._catalog.missing_dirs:
                    self._abort_all_but(known)
            try:
                self.abort_timed_out()
            except StratalogError as error:
                _log.warning("a transaction could not be ended and is tried again later: %s", error)

    def _finish_prepared(self) -> set[tuple[ProducerIdentity, TopicPartition]]:
        """Write the markers of decided transactions. Who is still writing where, by the others."""
        writing = set()
        for transactional_id, state in list(self._states.all()):
            if steps.is_prepared(state) and self._is_reachable(state):
                self._finish(transactional_id, state)
            elif not steps.is_idle(state):
                identity = steps.identity_of(state)
                writing |= {(identity, tp) for tp in steps.partitions_of(state)}
        return writing

    def _abort_all_but(self, known: Set[tuple[ProducerIdentity, TopicPartition]]) -> None:
        for slot in self._catalog.slots():
            for identity, epoch in _open_in(slot.log()):
                is_ours = identity.producer_id >= FIRST_PRODUCER_ID
                if is_ours and (identity, slot.topic_partition) not in known:
                    _log.warning("%s: aborted a transaction that was lost", slot.path)
                    slot.log().end_transaction(*identity, commit=False, coordinator_epoch=epoch)

    def abort_timed_out(self) -> None:
        """Abort transactions that have been open for longer than their producers asked for, and
        write markers that are missing. One that fails does not stop the others; the first failure
        is raised at the end."""
        failure: StratalogError | None = None
        with self._lock:
            now_ms = self._context.now_ms()
            for transactional_id, state in self._states.all():
                is_ongoing = state.status is TransactionStatus.ONGOING
                is_overdue = is_ongoing and now_ms - state.start_timestamp > state.timeout_ms
                if not (is_overdue or steps.is_prepared(state)) or not self._is_ours(state):
                    continue
                if not self._is_reachable(state):
                    continue
                if is_overdue:
                    _log.warning(
                        "aborted the transaction of %r, which was open for more than %d ms",
                        transactional_id,
                        state.timeout_ms,
                    )
                try:
                    self._end_if_open(transactional_id)
                except StratalogError as error:
                    failure = failure or error
        if failure is not None:
            raise failure

    def expire_transactional_ids(self) -> None:
        """Drop transactional ids that were not used for `transactional.id.expiration.ms`."""
        with self._lock:
            oldest_ms = self._context.now_ms() - self._context.config.transactional_id_expiration_ms
            for transactional_id, state in self._states.all():
                is_expired = steps.is_idle(state) and state.last_update_timestamp <= oldest_ms
                if is_expired and self._is_ours(state):
                    self._states.write(transactional_id, None)

    def _is_ours(self, state: TransactionState) -> bool:
        """Whether to end or forget it without being asked."""
        is_of_cluster = any(root.meta is not None for root in self._catalog.roots)
        return not is_of_cluster or state.producer_id >= FIRST_PRODUCER_ID

    def _is_reachable(self, state: TransactionState) -> bool:
        """Whether a partition that is not here was deleted: it may be in a missing directory."""
        if not self._catalog.missing_dirs:
            return True
        return all(self._catalog.find(tp) is not None for tp in steps.partitions_of(state))

    def close(self) -> None:
        """Abort what producers of this process have left open."""
        with self._lock:
            for transactional_id, identity in self._begun_here.items():
                state = self._states.find(transactional_id)
                if state is not None and steps.identity_of(state) == identity:
                    self._end_if_open(transactional_id)

    # -- ending

    def _end_if_open(self, transactional_id: str) -> bool:
        state = self._states.find(transactional_id)
        if state is None or steps.is_idle(state):
            return False
        if not self._is_reachable(state):
            self._catalog.check_complete(f"end the transaction of {transactional_id!r}")
        if not steps.is_prepared(state):
            state = self._decide(transactional_id, steps.fenced(state), commit=False)
        self._finish(transactional_id, state)
        return True

    def _decide(
        self, transactional_id: str, state: TransactionState, *, commit: bool, flush: bool = False
    ) -> TransactionState:
        if flush:  # a decision to commit must not outlive the data it is about
            for slot in self._slots_of(state):
                slot.log().flush()
        decided = steps.prepared(state, commit=commit, now_ms=self._context.now_ms())
        self._states.write(transactional_id, decided)
        if flush:
            self._states.flush(transactional_id)
        return decided

    def _finish(
        self, transactional_id: str, state: TransactionState, *, flush: bool = False
    ) -> None:
        """Write all markers. Where one fails the others are written, and the state stays."""
        failure: StratalogError | None = None
        epoch = self._states.coordinator_epoch(transactional_id)
        for slot in self._slots_of(state):
            try:
                self._write_marker(slot, state, epoch, flush=flush)
            except StratalogError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        now_ms = self._context.now_ms()
        self._states.write(transactional_id, steps.completed(state, now_ms))

    def _write_marker(
        self, slot: PartitionSlot, state: TransactionState, coordinator_epoch: int, *, flush: bool
    ) -> None:
        log = slot.log()
        try:
            log.end_transaction(
                *steps.identity_of(state),
                commit=state.status is TransactionStatus.PREPARE_COMMIT,
                coordinator_epoch=coordinator_epoch,
            )
        except InvalidProducerEpochError:
            return  # a later transaction has begun there, so the marker is there
        if flush:
            log.flush()

    def _slots_of(self, state: TransactionState) -> list[PartitionSlot]:
        """A topic that was deleted meanwhile needs no marker."""
        found = (self._catalog.find(tp) for tp in steps.partitions_of(state))
        return [slot for slot in found if slot is not None]


def _open_in(log: PartitionLog) -> list[tuple[ProducerIdentity, int]]:
    """Producers that have a transaction open in a log, and the coordinator epoch known of them."""
    return [
        (ProducerIdentity(producer_id, state.producer_epoch), max(state.coordinator_epoch, 0))
        for producer_id, state in log.producers.producers.items()
        if state.has_open_txn
    ]
