"""The state of a log's producers: how each batch changes it, and which batches are rejected.

State is a function of the batches, so there is one set of transitions for a reader that replays a
log, a writer that appends to it, and recovery that rebuilds what was lost. The transitions record
what is in the log and reject nothing. Before an append, the checks below decide what to reject,
with Kafka's error; they are pure functions of the producer's state and the batch's header. How
strict they are depends on who appends. A client's batches are checked completely. A coordinator has
no sequence numbers, so only its epochs are checked. Batches from the leader of a partition were
checked there, but one outside the producer's open transaction is always rejected.

Invariants:

* a producer has at most one open transaction; it began at `open_txn_first_offset`;
* the cached batches all belong to the producer's epoch, oldest first, five at most;
* `ProducerTable.ongoing` holds exactly the open transactions of `ProducerTable.states`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Self

from stratalog.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from stratalog.format.batch import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, Entry
from stratalog.format.control import ControlType, read_end_marker
from stratalog.format.log_entry import records_of
from stratalog.format.producer_snapshot import NO_OFFSET, ProducerEntry
from stratalog.format.txn_index import VERSION, AbortedTxn
from stratalog.log.offset_assignment import AppendOrigin

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stratalog.format.batch import BatchHeader
    from stratalog.format.buffers import Buffer
    from stratalog.format.control import EndMarker

SEQUENCES: Final = 1 << 31  # they count to 2147483647 and then start over at 0
CACHED_BATCHES_MAX: Final = 5  # as many as an idempotent producer may have in flight
NO_COORDINATOR_EPOCH: Final = -1


class CachedBatch(NamedTuple):
    """A batch of a producer, with the fields that identify it if it is sent again."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    """Last minus first offset, and so last minus first sequence."""
    timestamp: int

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerState(NamedTuple):
    """The state of one producer. Immutable: a transition returns another state."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    """Coordinator epoch of the last marker; -1 before any."""
    last_timestamp: int
    """Last timestamp of the newest batch, a marker's included."""
    open_txn_first_offset: int
    """-1 when no transaction is open."""
    batches: tuple[CachedBatch, ...]

    @classmethod
    def unknown(cls, producer_id: int) -> Self:
        """A producer that the log has not seen, or has forgotten."""
        no_epoch, no_coordinator = NO_PRODUCER_EPOCH, NO_COORDINATOR_EPOCH
        return cls(producer_id, no_epoch, no_coordinator, NO_TIMESTAMP, NO_OFFSET, ())

    @classmethod
    def from_entry(cls, entry: ProducerEntry) -> Self:
        """The state from a snapshot, which has only the newest batch.

        The file has one timestamp for the batch and a later marker. If it is the marker's, a retry
        of the batch returns it, as in Kafka.
        """
        batches: tuple[CachedBatch, ...] = ()
        if entry.has_batch:
            newest = CachedBatch(
                entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp
            )
            batches = (newest,)
        return cls(
            entry.producer_id,
            entry.producer_epoch,
            entry.coordinator_epoch,
            entry.timestamp,
            max(entry.current_txn_first_offset, NO_OFFSET),  # any negative offset means none
            batches,
        )

    @property
    def last_sequence(self) -> int:
        """Last sequence of the newest batch in this epoch; -1 without one."""
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def next_sequence(self) -> int:
        """The one that the next batch in this epoch begins with."""
        return (self.batches[-1].last_sequence + 1) % SEQUENCES if self.batches else 0

    @property
    def has_open_txn(self) -> bool:
        return self.open_txn_first_offset != NO_OFFSET

    def to_entry(self) -> ProducerEntry:
        """As a snapshot stores it: only the newest batch survives."""
        newest = self.batches[-1] if self.batches else CachedBatch(NO_SEQUENCE, NO_OFFSET, 0, 0)
        last_sequence, last_offset, offset_delta, _ = newest
        return ProducerEntry(
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            last_sequence=last_sequence,
            last_offset=last_offset,
            offset_delta=offset_delta,
            timestamp=self.last_timestamp,
            coordinator_epoch=self.coordinator_epoch,
            current_txn_first_offset=self.open_txn_first_offset,
        )

    def after_data(self, header: BatchHeader) -> ProducerState:
        """The producer wrote this batch. The first transactional one opens a transaction."""
        base_offset, delta = header.base_offset, header.last_offset_delta
        timestamp, epoch = header.max_timestamp, header.producer_epoch
        sequence = header.base_sequence
        if sequence >= 0:
            sequence = (sequence + delta) % SEQUENCES
        newest = CachedBatch(sequence, base_offset + delta, delta, timestamp)
        if epoch == self.producer_epoch:
            batches = (*self.batches[1 - CACHED_BATCHES_MAX :], newest)
        else:
            batches = (newest,)
        first_offset = self.open_txn_first_offset
        if first_offset == NO_OFFSET and header.is_transactional:
            first_offset = base_offset
        return ProducerState(
            self.producer_id, epoch, self.coordinator_epoch, timestamp, first_offset, batches
        )

    def after_marker(self, header: BatchHeader, marker: EndMarker) -> ProducerState:
        """The coordinator ended the producer's transaction, if one was open."""
        epoch = header.producer_epoch
        return ProducerState(
            self.producer_id,
            epoch,
            marker.coordinator_epoch,
            header.max_timestamp,
            NO_OFFSET,
            self.batches if epoch == self.producer_epoch else (),
        )

    def find_duplicate(self, header: BatchHeader) -> CachedBatch | None:
        """The cached batch that has the same sequences in the same epoch."""
        if header.producer_epoch != self.producer_epoch:
            return None
        if header.base_sequence == self.next_sequence:  # most batches are no duplicates
            return None
        delta, last_sequence = header.last_offset_delta, header.last_sequence
        for batch in self.batches:  # same last and same count, hence same first
            if batch.last_sequence == last_sequence and batch.offset_delta == delta:
                return batch
        return None

    def is_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Idle for `expiration_ms` or longer. A producer in a transaction never expires."""
        return not self.has_open_txn and now_ms - self.last_timestamp >= expiration_ms


class CompletedTxn(NamedTuple):
    """A transaction that its marker ended. One without data never appears."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Last offset of the marker."""
    is_aborted: bool
    last_stable_offset: int
    """Once this one has ended: where the oldest transaction still open began, or past the marker.
    """

    def index_entry(self) -> AbortedTxn:
        """The line for the `.txnindex` of the segment that holds the marker, if it was aborted."""
        return AbortedTxn(
            VERSION, self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset
        )


class ProducerUpdate(NamedTuple):
    """How one batch changes its producer."""

    state: ProducerState
    """After the batch."""
    last_offset: int
    """Last offset of the batch."""
    is_abort: bool = False

    @classmethod
    def of_batch(cls, before: ProducerState, header: BatchHeader, marker: EndMarker | None) -> Self:
        """The update by a marker or, without one, by a batch of data."""
        last_offset = header.base_offset + header.last_offset_delta
        if marker is None:
            return cls(before.after_data(header), last_offset)
        after = before.after_marker(header, marker)
        return cls(after, last_offset, is_abort=marker.type is ControlType.ABORT)


class ProducerTable:
    """Every producer, and the transactions that are open. Changes come in log order."""

    def __init__(self, states: Iterable[ProducerState] = ()) -> None:
        self.states = {state.producer_id: state for state in states}
        self.ongoing = {
            producer_id: state.open_txn_first_offset
            for producer_id, state in self.states.items()
            if state.has_open_txn
        }
        """Producer id to the first offset of its open transaction."""
        self.first_open_offset = min(self.ongoing.values(), default=None)
        """First offset of the oldest open transaction. Cached: each append needs it."""

    def state_of(self, producer_id: int) -> ProducerState:
        """What is known of a producer."""
        state = self.states.get(producer_id)
        return ProducerState.unknown(producer_id) if state is None else state

    def apply(self, change: ProducerUpdate) -> CompletedTxn | None:
        """Apply the change; returns the transaction that it ended, if any."""
        state = change.state
        producer_id, first_offset = state.producer_id, state.open_txn_first_offset
        self.states[producer_id] = state
        ended = self.ongoing.get(producer_id, NO_OFFSET)
        if first_offset == ended:
            return None
        if first_offset != NO_OFFSET:  # only a marker ends a transaction, and it opens none
            self._open(producer_id, first_offset)
            return None
        self._close(producer_id)
        still_open = self.first_open_offset
        stable = change.last_offset + 1 if still_open is None else still_open
        return CompletedTxn(producer_id, ended, change.last_offset, change.is_abort, stable)

    def _open(self, producer_id: int, first_offset: int) -> None:
        self.ongoing[producer_id] = first_offset
        if self.first_open_offset is None or first_offset < self.first_open_offset:
            self.first_open_offset = first_offset

    def _close(self, producer_id: int) -> None:
        if self.ongoing.pop(producer_id) == self.first_open_offset:
            self.first_open_offset = min(self.ongoing.values(), default=None)

    def remove_expired(self, now_ms: int, expiration_ms: int) -> list[int]:
        """Forget the producers that have been idle for too long; returns their ids."""
        expired = [
            producer_id
            for producer_id, state in self.states.items()
            if state.is_expired(now_ms, expiration_ms)
        ]
        for producer_id in expired:
            del self.states[producer_id]
        return expired


class ProducerReplay(ProducerTable):
    """A table for readers: feed it every magic-2 batch that has a producer id, in log order."""

    def __init__(self, entries: Iterable[ProducerEntry] = (), *, start_offset: int = 0) -> None:
        """`entries` of the snapshot that was taken at `start_offset`."""
        super().__init__(map(ProducerState.from_entry, entries))
        self.start_offset = start_offset
        self.aborted: list[AbortedTxn] = []
        """Transactions whose ABORT marker was among the batches: the lines of a `.txnindex`."""

    @property
    def producers(self) -> dict[int, ProducerEntry]:
        """By producer id, as in a snapshot."""
        return {producer_id: state.to_entry() for producer_id, state in self.states.items()}

    @property
    def open_transactions(self) -> dict[int, int]:
        """Producer id to the first offset of its open transaction."""
        return dict(self.ongoing)

    def add_data(self, header: BatchHeader) -> None:
        """A data batch of a producer."""
        self._add(header, None)

    def add_marker(self, header: BatchHeader, marker: EndMarker) -> None:
        """The end of the producer's transaction."""
        self._add(header, marker)

    def _add(self, header: BatchHeader, marker: EndMarker | None) -> None:
        before = self.state_of(header.producer_id)
        completed = self.apply(ProducerUpdate.of_batch(before, header, marker))
        if completed is not None and completed.is_aborted:
            self.aborted.append(completed.index_entry())


def markers_in(buf: Buffer, batches: Iterable[tuple[int, BatchHeader]]) -> dict[int, EndMarker]:
    """The transaction markers among `batches` (position in `buf`, header), by their offset.

    Costs nothing for data. Control batches of other types, and those that compaction emptied, are
    left out. Corruption raises CorruptError; the CRC is not checked again.
    """
    found = {}
    for position, header in batches:
        if header.is_control and header.has_producer:
            entry = Entry(position, header.base_offset, header.size_bytes, header.magic)
            record = next(records_of(buf, entry, check_crc=False), None)
            marker = None if record is None else read_end_marker(record, position=position)
            if marker is not None:
                found[header.base_offset] = marker
    return found


EPOCH_PER_TRANSACTION: Final = 2  # the transaction version from which each one has its own epoch


class ProducerCheckRules(NamedTuple):
    """How strictly one append is checked."""

    origin: AppendOrigin
    transaction_version: int
    """Version of the protocol that the request follows: 2 is the one of KIP-890."""

    @property
    def has_epoch_per_transaction(self) -> bool:
        return self.transaction_version >= EPOCH_PER_TRANSACTION


def check_has_sequence(header: BatchHeader) -> None:
    """Raise if a client's batch has a producer id and no sequence number."""
    if header.base_sequence < 0:
        raise InvalidRecordError(f"{named(header)} has base sequence {header.base_sequence}")


def check_data(before: ProducerState, header: BatchHeader, rules: ProducerCheckRules) -> None:
    """Raise unless the producer may write this batch of data."""
    if rules.origin is not AppendOrigin.REPLICATION:
        check_epoch(before, header)
        if rules.origin is AppendOrigin.CLIENT:
            _check_sequence(before, header, rules)
    if before.has_open_txn and not header.is_transactional:
        raise InvalidTxnStateError(
            f"{named(header)} is not transactional, but the producer has a transaction open "
            f"since offset {before.open_txn_first_offset}"
        )


def check_marker(
    before: ProducerState, header: BatchHeader, marker: EndMarker, rules: ProducerCheckRules
) -> None:
    """Raise unless this marker may end the producer's transaction."""
    if rules.origin is AppendOrigin.REPLICATION:
        return
    check_epoch(before, header)
    if (
        rules.has_epoch_per_transaction
        and header.producer_epoch == before.producer_epoch
        and before.has_open_txn  # if not, the same marker is in the log and this is a retry
    ):
        raise _fenced(before, header, "not above")
    if marker.coordinator_epoch < before.coordinator_epoch:
        raise TransactionCoordinatorFencedError(
            f"{named(header)} is a marker of coordinator epoch {marker.coordinator_epoch}, "
            f"which is below the last seen {before.coordinator_epoch}"
        )


def check_epoch(before: ProducerState, header: BatchHeader) -> None:
    """Raise if the batch is of an older instance of the producer."""
    if header.producer_epoch < before.producer_epoch:
        raise _fenced(before, header, "below")


def named(header: BatchHeader) -> str:
    """A batch, for messages."""
    return f"batch at offset {header.base_offset} of producer {header.producer_id}"


def _check_sequence(before: ProducerState, header: BatchHeader, rules: ProducerCheckRules) -> None:
    """Raise unless the batch follows the producer's last one without a gap. Each epoch begins at
    0."""
    begins_epoch = rules.has_epoch_per_transaction and header.is_transactional
    if before.producer_epoch == NO_PRODUCER_EPOCH and not begins_epoch:
        return  # the log may have forgotten the producer, so any sequence is accepted
    expected = 0
    if header.producer_epoch == before.producer_epoch:
        expected = before.next_sequence
    if header.base_sequence != expected:
        raise OutOfOrderSequenceError(
            f"{named(header)} has base sequence {header.base_sequence}, expected {expected}"
        )


def _fenced(before: ProducerState, header: BatchHeader, relation: str) -> InvalidProducerEpochError:
    return InvalidProducerEpochError(
        f"{named(header)} has producer epoch {header.producer_epoch}, "
        f"which is {relation} the last seen {before.producer_epoch}"
    )
