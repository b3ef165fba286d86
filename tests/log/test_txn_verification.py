"""The first batch of a transaction is written only under a guard that is still good."""

from __future__ import annotations

import pytest

from stratalog.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
)
from stratalog.log.appends import AppendOrigin
from stratalog.log.producer_state import ProducerStateConfig, ProducerStateManager
from tests.log.producer_batches import (
    DAY_MS,
    NOW_MS,
    abort,
    append,
    commit,
    control,
    data,
    end,
    refused,
    txn_data,
)


@pytest.fixture
def verifying() -> ProducerStateManager:
    return ProducerStateManager(ProducerStateConfig(transaction_verification=True))


def test_transaction_needs_a_guard_to_begin(verifying: ProducerStateManager) -> None:
    first = txn_data(0, sequence=0)
    assert isinstance(refused(verifying, first), InvalidTxnStateError)
    guard = verifying.start_verification(first, NOW_MS)
    assert guard is not None
    assert verifying.start_verification(first, NOW_MS) is guard
    append(verifying, first, guard=guard)
    second = txn_data(1, sequence=1)
    assert verifying.start_verification(second, NOW_MS) is None
    append(verifying, second)
    end(verifying, control(2), commit())
    with pytest.raises(InvalidTxnStateError):
        append(verifying, txn_data(3, sequence=2), guard=guard)


def test_marker_voids_the_guard(verifying: ProducerStateManager) -> None:
    """The transaction that was asked about is over; the next one has to be asked about again."""
    batch = txn_data(1, sequence=0)
    stale = verifying.start_verification(batch, NOW_MS)
    end(verifying, control(0), abort())
    fresh = verifying.start_verification(batch, NOW_MS)
    assert fresh is not stale
    with pytest.raises(InvalidTxnStateError):
        append(verifying, batch, guard=stale)
    append(verifying, batch, guard=fresh)


def test_plain_batches_and_replication_need_no_guard(verifying: ProducerStateManager) -> None:
    append(verifying, data(0, sequence=0))
    append(verifying, txn_data(1, sequence=1), AppendOrigin.REPLICATION)


def test_plain_batch_leaves_the_guard(verifying: ProducerStateManager) -> None:
    first = txn_data(1, sequence=1)
    guard = verifying.start_verification(first, NOW_MS)
    append(verifying, data(0, sequence=0))
    append(verifying, first, guard=guard)


def test_newer_epoch_needs_its_own_guard(verifying: ProducerStateManager) -> None:
    first = txn_data(0, sequence=0)
    append(verifying, first, guard=verifying.start_verification(first, NOW_MS))
    assert isinstance(refused(verifying, txn_data(1, sequence=0, epoch=1)), InvalidTxnStateError)


def test_fenced_producer_is_told_so_before_the_coordinator_is_asked(
    verifying: ProducerStateManager,
) -> None:
    end(verifying, control(0, epoch=3), commit())
    with pytest.raises(InvalidProducerEpochError):
        verifying.start_verification(txn_data(1, sequence=0, epoch=2), NOW_MS)
    assert isinstance(
        refused(verifying, txn_data(1, sequence=0, epoch=2)), InvalidProducerEpochError
    )


def test_no_batch_overtakes_one_that_waits_to_be_verified(
    verifying: ProducerStateManager,
) -> None:
    later, earlier = txn_data(0, sequence=4), txn_data(0, sequence=2)
    guard = verifying.start_verification(later, NOW_MS)
    assert verifying.start_verification(earlier, NOW_MS) is guard
    with pytest.raises(OutOfOrderSequenceError):
        append(verifying, later, guard=guard)
    append(verifying, earlier, guard=guard)


def test_new_epoch_waits_for_its_own_sequence(verifying: ProducerStateManager) -> None:
    verifying.start_verification(txn_data(0, sequence=2), NOW_MS)
    bumped = txn_data(0, sequence=6, epoch=1)
    guard = verifying.start_verification(bumped, NOW_MS)
    append(verifying, bumped, guard=guard)


def test_guard_that_nobody_uses_expires(verifying: ProducerStateManager) -> None:
    batch = txn_data(0, sequence=0)
    guard = verifying.start_verification(batch, NOW_MS)
    verifying.remove_expired(NOW_MS + DAY_MS - 1)
    assert verifying.start_verification(batch, NOW_MS) is guard
    verifying.remove_expired(NOW_MS + DAY_MS)
    with pytest.raises(InvalidTxnStateError):
        append(verifying, batch, guard=guard)
