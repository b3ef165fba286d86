"""What a log refuses of a producer, with Kafka's error for it.

Pure functions of the producer's state before a batch and the batch's header. How strict they are
depends on who appends: a client's batches are checked in full; a coordinator's for their epochs,
as it counts no sequences; what comes from the leader of a partition was checked there, except that
a batch outside the producer's open transaction is never right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from stratalog.format.batch import NO_PRODUCER_EPOCH
from stratalog.log.origin import AppendOrigin

if TYPE_CHECKING:
    from stratalog.format.batch import BatchHeader
    from stratalog.format.control import EndMarker
    from stratalog.log.producers import ProducerState
    from stratalog.log.txn_verification import TxnVerifications, VerificationGuard

EPOCH_PER_TRANSACTION: Final = 2  # the transaction version from which each one has its own epoch


class AppendRules(NamedTuple):
    """How strictly one append is checked."""

    origin: AppendOrigin
    transaction_version: int
    """Of the protocol that the request follows: 2 is the one of KIP-890."""
    guard: VerificationGuard | None
    verifications: TxnVerifications
    must_be_verified: bool

    @property
    def has_epoch_per_transaction(self) -> bool:
        return self.transaction_version >= EPOCH_PER_TRANSACTION


def check_has_sequence(header: BatchHeader) -> None:
    """A client that has a producer id counts its batches."""
    if header.base_sequence < 0:
        raise InvalidRecordError(f"{named(header)} has base sequence {header.base_sequence}")


def check_data(before: ProducerState, header: BatchHeader, rules: AppendRules) -> None:
    """Raise unless the producer may write this batch of data."""
    if rules.origin is not AppendOrigin.REPLICATION:
        check_epoch(before, header)
        if rules.must_be_verified:
            _check_verified(before, header, rules)
        if rules.origin is AppendOrigin.CLIENT:
            _check_sequence(before, header, rules)
    if before.has_open_txn and not header.is_transactional:
        raise InvalidTxnStateError(
            f"{named(header)} is not transactional, but the producer has a transaction open "
            f"since offset {before.open_txn_first_offset}"
        )


def check_marker(
    before: ProducerState, header: BatchHeader, marker: EndMarker, rules: AppendRules
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
    """An older instance of the producer writes no more."""
    if header.producer_epoch < before.producer_epoch:
        raise _fenced(before, header, "below")


def is_in_transaction(before: ProducerState, header: BatchHeader) -> bool:
    """Whether the log knows the transaction that the batch belongs to. Another epoch has ended it,
    even if the marker is still to come."""
    return before.has_open_txn and before.producer_epoch == header.producer_epoch


def named(header: BatchHeader) -> str:
    """A batch, for messages."""
    return f"batch at offset {header.base_offset} of producer {header.producer_id}"


def _check_verified(before: ProducerState, header: BatchHeader, rules: AppendRules) -> None:
    is_known = not header.is_transactional or is_in_transaction(before, header)
    if not is_known and not rules.verifications.is_verified(header.producer_id, rules.guard):
        raise InvalidTxnStateError(f"{named(header)} belongs to no open transaction")
    if rules.origin is AppendOrigin.CLIENT:
        rules.verifications.check_sequence(header)


def _check_sequence(before: ProducerState, header: BatchHeader, rules: AppendRules) -> None:
    """A client's batches follow each other without a gap, from 0 in each epoch."""
    begins_epoch = rules.has_epoch_per_transaction and header.is_transactional
    if before.producer_epoch == NO_PRODUCER_EPOCH and not begins_epoch:
        return  # the log may have known it once, so any sequence may come next
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
