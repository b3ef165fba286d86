"""The transaction coordinator: who may write with a transactional id, and how transactions end.

Invariants:

* a state is written before it takes effect, and a partition is in the written state before data is
  appended there: after a crash the log names every partition that may need an abort marker;
* writing its prepared state decides a transaction. From then on its markers are written, and again
  after a failure or a crash, until all of them are in the logs;
* of all producers that ever used a transactional id, only the latest can write;
* no two transactions of producers in this process, or of clients of version 2, have the same
  producer id and epoch. So a marker that is written twice, because the first was forgotten, cannot
  end a later transaction. Older clients keep their epoch; as in Kafka, their next transaction
  begins only when all markers of the last one are written.

Opening the directory for writing aborts timed-out transactions: a producer that died with its
process would otherwise hold back the last stable offset for ever. In a directory of a Kafka cluster
(`meta.properties`) only transactions of producers that started here are ended without being asked
for: the others belong to the cluster's coordinator, and this may be one of several replicas.

A power failure may lose the last states, while data written after them survives. The sequence
numbers of the producer ids in use at that time are unknown then, so these ids are not used again.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from stratalog.errors import (
    ConcurrentTransactionsError,
    InvalidNameError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    StratalogError,
)
from stratalog.format.messages.transaction_records import TransactionState, TransactionStatus
from stratalog.log.producer_transitions import EPOCH_PER_TRANSACTION
from stratalog.partitions.saved_state import FIRST_PRODUCER_ID
from stratalog.producing import transaction_log as transitions
from stratalog.producing.transaction_log import ProducerIdentity, TransactionLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Set

    from stratalog.format.names import TopicPartition
    from stratalog.log.partition_log import PartitionLog
    from stratalog.partitions.catalog import TopicCatalog
    from stratalog.partitions.partition_table import PartitionSlot
    from stratalog.partitions.root import LogContext
    from stratalog.partitions.saved_state import ProducerIds

_log = logging.getLogger(__name__)

MarkerListener: TypeAlias = "Callable[[TopicPartition, ProducerIdentity, bool], None]"
"""Partition, producer id and epoch of the marker, and whether it commits."""


class OpenTransaction(NamedTuple):
    """A transaction that has not ended."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    since_ms: int
    partitions: tuple[TopicPartition, ...]
    is_decided: bool
    """Whether commit or abort is decided; only markers are missing."""


class TransactionCoordinator:
    """Begins and ends transactions. Thread-safe."""

    def __init__(self, catalog: TopicCatalog, ids: ProducerIds, context: LogContext) -> None:
        self._catalog = catalog
        self._was_clean = True
        self._ids = ids
        self._context = context
        self._states = TransactionLog(catalog, context)
        self._lock = threading.RLock()
        self._started_here: dict[str, ProducerIdentity] = {}
        self._known: set[str] = set()  # ids whose producers started since the directory was opened
        self.marker_listeners: list[MarkerListener] = []
        """Called, by whatever thread ends a transaction, after each marker was written."""

    # -- requests of producers in this process

    def init_producer(
        self,
        transactional_id: str,
        timeout_ms: int | None,
        *,
        expected: ProducerIdentity | None = None,
    ) -> ProducerIdentity:
        """Make the caller the only producer of the id, and end the transaction that its predecessor
        left open. Closing the directory aborts its open transaction.

        With `expected`, raises ProducerFencedError unless the predecessor has this identity.
        """
        timeout_ms = self._check_timeout(transactional_id, timeout_ms)
        with self._lock:
            self._states.create()
            if expected is not None:
                self._state_for(transactional_id, expected)
            self._end_if_open(transactional_id)
            identity = self._start(transactional_id, timeout_ms, None)
            self._started_here[transactional_id] = identity
            return identity

    def end(
        self, transactional_id: str, identity: ProducerIdentity, *, commit: bool, flush: bool
    ) -> None:
        """End the producer's transaction. With `flush`, it survives a crash of the machine."""
        with self._lock:
            state = self._state_for(transactional_id, identity)
            if transitions.is_idle(state):
                return  # it wrote nothing
            transitions.check_end(state, identity, commit=commit)
            if state.status is TransactionStatus.ONGOING:
                state = self._decide(transactional_id, state, commit=commit, flush=flush)
            self._finish(transactional_id, state, flush=flush)

    # -- requests of producers that a broker serves

    def new_producer_id(self) -> int:
        """For a producer without a transactional id."""
        return self._ids.take()

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdentity | None = None
    ) -> ProducerIdentity:
        """Kafka's InitProducerId. With `expected`, the current producer of the id asks for its next
        epoch, and gets the same one again if it repeats the request.

        Aborts the transaction that is still open, and raises ConcurrentTransactionsError then:
        clients try again. Raises ProducerFencedError if another producer has taken over.
        """
        timeout_ms = self._check_timeout(transactional_id, timeout_ms)
        with self._lock:
            self._states.create()
            state = self._states.find(transactional_id)
            if state is not None:
                if expected is not None:
                    transitions.check_repeated_start(state, expected)
                if self._end_if_open(transactional_id, by_itself=expected is not None):
                    raise ConcurrentTransactionsError(
                        f"the last transaction of {transactional_id!r} was still open"
                    )
            return self._start(transactional_id, timeout_ms, expected)

    def add_partitions(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        partitions: Iterable[TopicPartition],
        client_version: int = 0,
    ) -> None:
        """The producer is about to write to these partitions. `client_version` is 2 if it does not
        announce them (Produce from version 12 on).

        Raises ProducerFencedError, or ConcurrentTransactionsError while the last transaction ends.
        """
        with self._lock:
            state = self._state_for(transactional_id, identity)
            self._check_not_ending(transactional_id, state)
            added = set(partitions).difference(transitions.partitions_of(state))
            if added:
                now_ms = self._context.now_ms()
                after = transitions.with_partitions(state, sorted(added), now_ms, client_version)
                self._states.write(transactional_id, after)

    def verify_partitions(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        partitions: Iterable[TopicPartition],
    ) -> dict[TopicPartition, bool]:
        """Whether each of these partitions is part of the producer's open transaction. Raises as
        `add_partitions` does."""
        with self._lock:
            state = self._state_for(transactional_id, identity)
            self._check_not_ending(transactional_id, state)
            known = set(transitions.partitions_of(state))
            return {each: each in known for each in partitions}

    def end_transaction(
        self,
        transactional_id: str,
        identity: ProducerIdentity,
        *,
        commit: bool,
        client_version: int = 0,
    ) -> ProducerIdentity:
        """Kafka's EndTxn. Returns what the producer continues with: for clients of version 2, whose
        transactions have an epoch each, another identity.

        The end is decided when this returns. Should a marker be missing, because it could not be
        written, `abort_timed_out` writes it later.
        """
        with self._lock:
            state = self._find(transactional_id)
            if transitions.check_end(state, identity, commit=commit, client_version=client_version):
                return transitions.identity_of(state)
            if not transitions.is_prepared(state):
                state = self._decide(
                    transactional_id, state, commit=commit, client_version=client_version
                )
            try:
                self._finish(transactional_id, state)
            except StratalogError as error:
                _log.warning("writing a marker failed, and will be retried: %s", error)
            return transitions.identity_of(transitions.completed(state, 0))

    def states(self) -> list[tuple[str, TransactionState]]:
        """All transactional ids and their states."""
        with self._lock:
            return list(self._states.all())

    def find(self, transactional_id: str) -> TransactionState | None:
        """The state of a transactional id; None if it is not known."""
        with self._lock:
            return self._states.find(transactional_id)

    # -- both

    def add_partition(
        self, transactional_id: str, identity: ProducerIdentity, topic_partition: TopicPartition
    ) -> None:
        """The producer is about to write to this partition."""
        self.add_partitions(transactional_id, identity, (topic_partition,))

    def _check_timeout(self, transactional_id: str, timeout_ms: int | None) -> int:
        if not transactional_id:
            raise InvalidNameError("a transactional id cannot be empty")
        longest_ms = self._context.config.transaction_max_timeout_ms
        timeout_ms = longest_ms if timeout_ms is None else timeout_ms
        if not 0 < timeout_ms <= longest_ms:
            raise InvalidTransactionTimeoutError(
                f"the timeout of {timeout_ms} ms is not between 1 and transaction.max.timeout.ms, "
                f"which is {longest_ms}"
            )
        return timeout_ms

    def _start(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdentity | None
    ) -> ProducerIdentity:
        state, now_ms = self._states.find(transactional_id), self._context.now_ms()
        if state is None:
            after = transitions.started(ProducerIdentity(self._ids.take(), 0), timeout_ms, now_ms)
        else:
            is_known = self._was_clean or transactional_id in self._known
            is_usable = is_known and transitions.has_epochs_left(state)
            new_id = None if is_usable else self._ids.take()
            after = transitions.restarted(state, expected, timeout_ms, now_ms, new_id)
        self._states.write(transactional_id, after)
        self._known.add(transactional_id)
        return transitions.identity_of(after)

    def _find(self, transactional_id: str) -> TransactionState:
        state = self._states.find(transactional_id)
        if state is None:
            raise InvalidProducerIdMappingError(
                f"the transactional id {transactional_id!r} is not known, or has expired"
            )
        return state

    def _state_for(self, transactional_id: str, identity: ProducerIdentity) -> TransactionState:
        state = self._find(transactional_id)
        transitions.check_identity(state, identity)
        return state

    def _check_not_ending(self, transactional_id: str, state: TransactionState) -> None:
        if transitions.is_prepared(state):
            raise ConcurrentTransactionsError(
                f"the last transaction of {transactional_id!r} is still ending"
            )

    # -- transactions that are still open

    def open_transactions(self) -> list[OpenTransaction]:
        """Every transaction that has not ended, including those that a crash left open."""
        with self._lock:
            return [
                _open_transaction(transactional_id, state)
                for transactional_id, state in self._states.all()
                if not transitions.is_idle(state)
            ]

    def abort(self, transactional_id: str) -> bool:
        """Fence the id's producer and end its open transaction: abort it, unless it is already
        decided. Returns whether there was one."""
        with self._lock:
            return self._end_if_open(transactional_id)

    def resume(self, *, was_clean: bool, ends_nothing: bool = False) -> None:
        """Take over from the last writer: write missing markers, and abort timed-out transactions.

        After an unclean shutdown, also abort transactions whose state was lost. A failure does not
        prevent opening the directory: the timer tries again. With `ends_nothing` all this is left
        to the next writer.
        """
        with self._lock:
            self._was_clean = was_clean
            if ends_nothing or not self._states.exists:
                return  # there was never a transaction
            if not was_clean:
                known = self._finish_prepared()
                if not self._states.has_unreadable and not self._catalog.missing_dirs:
                    self._abort_all_but(known)
            try:
                self.abort_timed_out()
            except StratalogError as error:
                _log.warning("ending a transaction failed, and will be retried: %s", error)

    def _finish_prepared(self) -> set[tuple[ProducerIdentity, TopicPartition]]:
        """Write the markers of decided transactions. Returns the producers of the others, with
        their partitions."""
        writing = set()
        for transactional_id, state in list(self._states.all()):
            if transitions.is_prepared(state) and self._is_reachable(state):
                self._finish(transactional_id, state)
            elif not transitions.is_idle(state):
                identity = transitions.identity_of(state)
                writing |= {(identity, tp) for tp in transitions.partitions_of(state)}
        return writing

    def _abort_all_but(self, known: Set[tuple[ProducerIdentity, TopicPartition]]) -> None:
        for slot in self._catalog.slots():
            for identity, epoch in _open_in(slot.log()):
                is_ours = identity.producer_id >= FIRST_PRODUCER_ID
                if is_ours and (identity, slot.topic_partition) not in known:
                    _log.warning("%s: aborted a transaction whose state was lost", slot.path)
                    self._append_marker(slot, identity, commit=False, coordinator_epoch=epoch)

    def abort_timed_out(self) -> None:
        """Abort timed-out transactions, and write missing markers. A failure does not stop the
        others; the first one is raised at the end."""
        failure: StratalogError | None = None
        with self._lock:
            now_ms = self._context.now_ms()
            for transactional_id, state in self._states.all():
                is_ongoing = state.status is TransactionStatus.ONGOING
                has_timed_out = is_ongoing and now_ms - state.start_timestamp > state.timeout_ms
                if not (
                    has_timed_out or transitions.is_prepared(state)
                ) or not self._is_managed_here(state):
                    continue
                if not self._is_reachable(state):
                    continue
                if has_timed_out:
                    _log.warning(
                        "aborted the transaction of %r: it was open for more than %d ms",
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
        """Drop transactional ids that were unused for `transactional.id.expiration.ms`."""
        with self._lock:
            oldest_ms = self._context.now_ms() - self._context.config.transactional_id_expiration_ms
            for transactional_id, state in self._states.all():
                is_expired = transitions.is_idle(state) and state.last_update_timestamp <= oldest_ms
                if is_expired and self._is_managed_here(state):
                    self._states.write(transactional_id, None)

    def _is_managed_here(self, state: TransactionState) -> bool:
        """Whether this coordinator may end or expire it without a request."""
        is_of_cluster = any(root.meta is not None for root in self._catalog.roots)
        return not is_of_cluster or state.producer_id >= FIRST_PRODUCER_ID

    def _is_reachable(self, state: TransactionState) -> bool:
        """Whether all its partitions are here or deleted, and none is in a missing directory."""
        if not self._catalog.missing_dirs:
            return True
        return all(self._catalog.find(tp) is not None for tp in transitions.partitions_of(state))

    def close(self) -> None:
        """Abort the open transactions of producers of this process."""
        with self._lock:
            for transactional_id, identity in self._started_here.items():
                state = self._states.find(transactional_id)
                if state is not None and transitions.identity_of(state) == identity:
                    self._end_if_open(transactional_id)

    # -- ending

    def _end_if_open(self, transactional_id: str, *, by_itself: bool = False) -> bool:
        state = self._states.find(transactional_id)
        if state is None or transitions.is_idle(state):
            return False
        if not self._is_reachable(state):
            self._catalog.check_complete(f"end the transaction of {transactional_id!r}")
        if not transitions.is_prepared(state):
            fenced = transitions.fenced(state, by_itself=by_itself)
            state = self._decide(transactional_id, fenced, commit=False)
        self._finish(transactional_id, state)
        return True

    def _decide(
        self,
        transactional_id: str,
        state: TransactionState,
        *,
        commit: bool,
        flush: bool = False,
        client_version: int = 0,
    ) -> TransactionState:
        if flush:  # a durable decision to commit needs durable data
            for slot in self._slots_of(state):
                slot.log().flush()
        has_own_epoch = client_version >= EPOCH_PER_TRANSACTION
        decided = transitions.prepared(
            state,
            commit=commit,
            now_ms=self._context.now_ms(),
            client_version=client_version,
            next_producer_id=(
                self._ids.take() if has_own_epoch and not transitions.has_epochs_left(state) else -1
            ),
        )
        self._states.write(transactional_id, decided)
        if flush:
            self._states.flush(transactional_id)
        return decided

    def _finish(
        self, transactional_id: str, state: TransactionState, *, flush: bool = False
    ) -> None:
        """Write all markers. If one fails, the others are written and the state stays prepared."""
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
        self._states.write(transactional_id, transitions.completed(state, now_ms))

    def _write_marker(
        self, slot: PartitionSlot, state: TransactionState, coordinator_epoch: int, *, flush: bool
    ) -> None:
        identity = transitions.identity_of(state)
        commit = state.status is TransactionStatus.PREPARE_COMMIT
        try:
            self._append_marker(slot, identity, commit=commit, coordinator_epoch=coordinator_epoch)
        except InvalidProducerEpochError:
            return  # a later transaction has started there, so the marker is in the log
        if flush:
            slot.log().flush()

    def write_marker(
        self,
        topic_partition: TopicPartition,
        identity: ProducerIdentity,
        *,
        commit: bool,
        coordinator_epoch: int,
    ) -> None:
        """Kafka's WriteTxnMarkers: end whatever transaction the producer has in this partition."""
        with self._lock:
            slot = self._catalog.slot(topic_partition)
            self._append_marker(slot, identity, commit=commit, coordinator_epoch=coordinator_epoch)

    def _append_marker(
        self,
        slot: PartitionSlot,
        identity: ProducerIdentity,
        *,
        commit: bool,
        coordinator_epoch: int,
    ) -> None:
        slot.log().end_transaction(*identity, commit=commit, coordinator_epoch=coordinator_epoch)
        for listener in self.marker_listeners:
            listener(slot.topic_partition, identity, commit)

    def _slots_of(self, state: TransactionState) -> list[PartitionSlot]:
        """Partitions of the transaction; deleted ones need no marker."""
        found = (self._catalog.find(tp) for tp in transitions.partitions_of(state))
        return [slot for slot in found if slot is not None]


def _open_in(log: PartitionLog) -> list[tuple[ProducerIdentity, int]]:
    """Producers with an open transaction in a log, and their coordinator epochs."""
    return [
        (ProducerIdentity(producer_id, state.producer_epoch), max(state.coordinator_epoch, 0))
        for producer_id, state in log.producers.producers.items()
        if state.has_open_txn
    ]


def _open_transaction(transactional_id: str, state: TransactionState) -> OpenTransaction:
    return OpenTransaction(
        transactional_id,
        state.producer_id,
        state.producer_epoch,
        state.start_timestamp,
        tuple(transitions.partitions_of(state)),
        transitions.is_prepared(state),
    )
