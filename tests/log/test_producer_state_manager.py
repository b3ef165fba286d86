"""Every answer of the checks, and what is seen and kept of producers and transactions."""

from __future__ import annotations

import pytest

from stratalog.errors import (
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from stratalog.format.txn_index import AbortedTxn
from stratalog.log.offset_assignment import AppendOrigin
from stratalog.log.producer_state_manager import (
    NOTHING_TO_UPDATE,
    ProducerStateConfig,
    ProducerStateManager,
)
from stratalog.log.producer_transitions import CachedBatch, CompletedTxn
from tests.log.producer_batches import (
    DAY_MS,
    NOW_MS,
    PRODUCER_ID,
    abort,
    append,
    commit,
    control,
    data,
    end,
    plain,
    refused,
    txn_data,
)

CLIENT, COORDINATOR = AppendOrigin.CLIENT, AppendOrigin.COORDINATOR
REPLICATION = AppendOrigin.REPLICATION
MAX_SEQUENCE = 2_147_483_647


@pytest.fixture
def manager() -> ProducerStateManager:
    return ProducerStateManager()


# -- sequences and epochs


def test_batches_without_a_producer_are_no_work(manager: ProducerStateManager) -> None:
    assert manager.check([plain(0), plain(1)], CLIENT) is NOTHING_TO_UPDATE
    assert manager.update(NOTHING_TO_UPDATE) == ()
    assert manager.is_empty


def test_batches_follow_each_other(manager: ProducerStateManager) -> None:
    append(manager, data(0, sequence=0, count=3))
    append(manager, data(3, sequence=3))
    assert manager.producers[PRODUCER_ID].last_sequence == 3


def test_check_changes_nothing_until_update(manager: ProducerStateManager) -> None:
    checked = manager.check([txn_data(0, sequence=0)], CLIENT)
    assert manager.is_empty
    assert manager.first_unstable_offset(0) is None
    manager.update(checked)
    assert manager.first_unstable_offset(0) == 0


@pytest.mark.parametrize("sequence", [0, 1, 17, MAX_SEQUENCE])
def test_unknown_producer_may_begin_anywhere(manager: ProducerStateManager, sequence: int) -> None:
    """The log may have known it: expiry and deletion forget producers that still write."""
    append(manager, data(0, sequence=sequence))
    assert manager.producers[PRODUCER_ID].last_sequence == sequence


@pytest.mark.parametrize("sequence", [0, 1, 3, 4, 6, 100])
def test_gap_or_overlap_is_out_of_order(manager: ProducerStateManager, sequence: int) -> None:
    append(manager, data(0, sequence=0, count=5))
    error = refused(manager, data(5, sequence=sequence))
    assert isinstance(error, OutOfOrderSequenceError)
    assert (error.code, error.kafka_name) == (45, "OUT_OF_ORDER_SEQUENCE_NUMBER")
    assert str(PRODUCER_ID) in str(error)
    assert str(sequence) in str(error)


def test_sequence_goes_on_at_zero_after_the_largest(manager: ProducerStateManager) -> None:
    append(manager, data(0, sequence=MAX_SEQUENCE))
    assert isinstance(refused(manager, data(1, sequence=1)), OutOfOrderSequenceError)
    append(manager, data(1, sequence=0))
    append(manager, data(2, sequence=1, count=2))
    assert manager.producers[PRODUCER_ID].last_sequence == 2


def test_batch_may_span_the_wrap(manager: ProducerStateManager) -> None:
    append(manager, data(0, sequence=MAX_SEQUENCE - 1, count=4))
    append(manager, data(4, sequence=2))
    duplicate = append(manager, data(9, sequence=MAX_SEQUENCE - 1, count=4)).duplicate
    assert duplicate == CachedBatch(1, 3, 3, NOW_MS)


def test_lower_epoch_is_fenced(manager: ProducerStateManager) -> None:
    append(manager, data(0, sequence=0, epoch=2))
    for origin in (CLIENT, COORDINATOR):
        error = refused(manager, data(1, sequence=1, epoch=1), origin)
        assert isinstance(error, InvalidProducerEpochError)
        assert (error.code, error.kafka_name) == (47, "INVALID_PRODUCER_EPOCH")


def test_higher_epoch_begins_at_zero(manager: ProducerStateManager) -> None:
    append(manager, data(0, sequence=0, count=5, epoch=1))
    assert isinstance(refused(manager, data(5, sequence=5, epoch=2)), OutOfOrderSequenceError)
    assert isinstance(refused(manager, data(5, sequence=1, epoch=2)), OutOfOrderSequenceError)
    append(manager, data(5, sequence=0, epoch=2))
    state = manager.producers[PRODUCER_ID]
    assert (state.producer_epoch, len(state.batches)) == (2, 1)


def test_epoch_known_from_a_marker_begins_at_zero(manager: ProducerStateManager) -> None:
    append(manager, txn_data(0, sequence=0, count=5))
    end(manager, control(5, epoch=1), abort())
    assert isinstance(refused(manager, data(6, sequence=5, epoch=1)), OutOfOrderSequenceError)
    append(manager, data(6, sequence=0, epoch=1))


def test_producer_without_sequences_is_an_invalid_record(manager: ProducerStateManager) -> None:
    error = refused(manager, data(0, sequence=-1))
    assert isinstance(error, InvalidRecordError)
    assert (error.code, error.kafka_name) == (87, "INVALID_RECORD")


def test_coordinator_counts_no_sequences(manager: ProducerStateManager) -> None:
    append(manager, txn_data(0, sequence=-1), COORDINATOR)
    append(manager, txn_data(1, sequence=-1), COORDINATOR)
    assert manager.producers[PRODUCER_ID].to_entry().last_sequence == -1
    append(manager, txn_data(2, sequence=9), COORDINATOR)


def test_replication_records_what_it_gets(manager: ProducerStateManager) -> None:
    append(manager, data(0, sequence=5, epoch=3), REPLICATION)
    append(manager, data(1, sequence=99, epoch=3), REPLICATION)
    append(manager, data(2, sequence=7, epoch=1), REPLICATION)
    state = manager.producers[PRODUCER_ID]
    assert (state.producer_epoch, state.batches) == (1, (CachedBatch(7, 2, 0, NOW_MS),))


def test_batches_of_one_append_are_checked_in_a_row(manager: ProducerStateManager) -> None:
    headers = [
        data(0, sequence=0, producer_id=1),
        data(1, sequence=0, producer_id=2),
        plain(2),
        data(3, sequence=1, producer_id=1),
    ]
    manager.update(manager.check(headers, CLIENT))
    assert [state.last_sequence for _, state in sorted(manager.producers.items())] == [1, 0]
    with pytest.raises(OutOfOrderSequenceError):
        manager.check(
            [data(4, sequence=2, producer_id=1), data(5, sequence=4, producer_id=1)], CLIENT
        )


# -- duplicates


def test_any_of_the_last_five_is_answered_from_memory(manager: ProducerStateManager) -> None:
    for at in range(7):
        append(manager, data(10 * at, sequence=2 * at, count=2, timestamp=NOW_MS + at))
    snapshot = manager.snapshot()
    for at in range(2, 7):
        again = data(100, sequence=2 * at, count=2, timestamp=NOW_MS + 999)
        duplicate = append(manager, again).duplicate
        assert duplicate is not None
        assert (duplicate.first_offset, duplicate.last_offset) == (10 * at, 10 * at + 1)
        assert duplicate.timestamp == NOW_MS + at
    assert manager.snapshot() == snapshot
    assert isinstance(refused(manager, data(100, sequence=2, count=2)), OutOfOrderSequenceError)


def test_duplicate_is_known_only_as_a_whole(manager: ProducerStateManager) -> None:
    append(manager, data(0, sequence=0, count=4))
    assert isinstance(refused(manager, data(4, sequence=0, count=2)), OutOfOrderSequenceError)
    assert isinstance(refused(manager, data(4, sequence=2, count=2)), OutOfOrderSequenceError)


def test_duplicate_of_a_fenced_epoch_is_fenced(manager: ProducerStateManager) -> None:
    append(manager, data(0, sequence=0, epoch=0))
    append(manager, data(1, sequence=0, epoch=1))
    assert isinstance(refused(manager, data(2, sequence=0, epoch=0)), InvalidProducerEpochError)


def test_only_clients_send_duplicates(manager: ProducerStateManager) -> None:
    """What a leader sends twice, it has in its log twice."""
    append(manager, data(0, sequence=0), REPLICATION)
    assert append(manager, data(1, sequence=0), REPLICATION).duplicate is None
    assert len(manager.producers[PRODUCER_ID].batches) == 2


def test_batch_twice_in_one_append_is_no_duplicate(manager: ProducerStateManager) -> None:
    """It could not be answered: the first one has not been written."""
    with pytest.raises(OutOfOrderSequenceError):
        manager.check([data(0, sequence=0), data(1, sequence=0)], CLIENT)


# -- transactions


@pytest.mark.parametrize("origin", [CLIENT, COORDINATOR, REPLICATION])
def test_other_batch_inside_a_transaction_is_refused(
    manager: ProducerStateManager, origin: AppendOrigin
) -> None:
    append(manager, txn_data(0, sequence=0))
    error = refused(manager, data(1, sequence=1), origin)
    assert isinstance(error, InvalidTxnStateError)
    assert (error.code, error.kafka_name) == (48, "INVALID_TXN_STATE")


def test_replay_of_a_log_refuses_nothing(manager: ProducerStateManager) -> None:
    manager.replay(txn_data(0, sequence=0))
    manager.replay(data(1, sequence=9))
    manager.replay(plain(2))
    manager.replay(control(2))
    assert manager.producers[PRODUCER_ID].open_txn_first_offset == 0
    txn = manager.replay(control(3), abort())
    assert txn == CompletedTxn(PRODUCER_ID, 0, 3, is_aborted=True, last_stable_offset=4)
    assert manager.first_unstable_offset(high_watermark=3) == 0
    assert manager.first_unstable_offset(high_watermark=4) is None


def test_batch_after_the_transaction_may_be_plain(manager: ProducerStateManager) -> None:
    append(manager, txn_data(0, sequence=0))
    end(manager, control(1), commit())
    append(manager, data(2, sequence=1))
    assert not manager.producers[PRODUCER_ID].has_open_txn


def test_completed_transactions_and_their_index_entries(manager: ProducerStateManager) -> None:
    append(manager, txn_data(0, sequence=0, producer_id=1))
    append(manager, txn_data(1, sequence=0, producer_id=2))
    aborted = end(manager, control(2, producer_id=2), abort())
    assert aborted == CompletedTxn(2, 1, 2, is_aborted=True, last_stable_offset=0)
    assert aborted.index_entry() == AbortedTxn(0, 2, 1, 2, 0)
    committed = end(manager, control(3, producer_id=1), commit())
    assert committed == CompletedTxn(1, 0, 3, is_aborted=False, last_stable_offset=4)


def test_transactions_that_end_in_one_append(manager: ProducerStateManager) -> None:
    """Each gets the stable offset as of its own marker, as when a leader wrote them."""
    headers = [
        txn_data(0, sequence=0, producer_id=1),
        txn_data(1, sequence=0, producer_id=2),
        control(2, producer_id=1),
        txn_data(3, sequence=1, producer_id=1),
        control(4, producer_id=2),
        control(5, producer_id=1),
    ]
    markers = {2: abort(), 4: abort(), 5: commit()}
    completed = manager.update(manager.check(headers, REPLICATION, markers=markers))
    assert [txn.index_entry() for txn in completed if txn.is_aborted] == [
        AbortedTxn(0, 1, 0, 2, 1),
        AbortedTxn(0, 2, 1, 4, 3),
    ]
    assert completed[2] == CompletedTxn(1, 3, 5, is_aborted=False, last_stable_offset=6)


def test_marker_without_data_completes_nothing(manager: ProducerStateManager) -> None:
    assert end(manager, control(0, epoch=4), abort(coordinator_epoch=2)) is None
    state = manager.producers[PRODUCER_ID]
    assert (state.producer_epoch, state.coordinator_epoch) == (4, 2)
    assert manager.first_unstable_offset(0) is None


def test_marker_of_a_replaced_coordinator_is_fenced(manager: ProducerStateManager) -> None:
    end(manager, control(0), commit(coordinator_epoch=5))
    with pytest.raises(TransactionCoordinatorFencedError) as caught:
        manager.check([control(1)], COORDINATOR, markers={1: commit(coordinator_epoch=4)})
    assert (caught.value.code, caught.value.kafka_name) == (52, "TRANSACTION_COORDINATOR_FENCED")
    end(manager, control(1), commit(coordinator_epoch=5))
    end(manager, control(2), commit(coordinator_epoch=4), origin=REPLICATION)
    assert manager.producers[PRODUCER_ID].coordinator_epoch == 4


def test_marker_of_a_lower_epoch_is_fenced(manager: ProducerStateManager) -> None:
    append(manager, txn_data(0, sequence=0, epoch=2))
    with pytest.raises(InvalidProducerEpochError):
        manager.check([control(1, epoch=1)], COORDINATOR, markers={1: abort()})
    end(manager, control(1, epoch=1), abort(), origin=REPLICATION)


def test_control_batches_that_are_no_markers_change_nothing(manager: ProducerStateManager) -> None:
    checked = manager.check([control(0)], REPLICATION, markers={})
    assert checked == NOTHING_TO_UPDATE
    with pytest.raises(TypeError):
        manager.check([control(0)], REPLICATION)


def test_newer_protocol_wants_a_new_epoch_in_the_marker(manager: ProducerStateManager) -> None:
    append(manager, txn_data(0, sequence=0), transaction_version=2)
    with pytest.raises(InvalidProducerEpochError):
        end(manager, control(1, epoch=0), commit(), transaction_version=2)
    txn = end(manager, control(1, epoch=1), commit(), transaction_version=2)
    assert txn == CompletedTxn(PRODUCER_ID, 0, 1, is_aborted=False, last_stable_offset=2)
    retry = end(manager, control(2, epoch=1), commit(), transaction_version=2)
    assert retry is None, "the coordinator may not have heard of the first one"
    append(manager, txn_data(3, sequence=0, epoch=1), transaction_version=2)
    with pytest.raises(InvalidProducerEpochError):
        end(manager, control(4, epoch=1), commit(), transaction_version=2)


def test_newer_protocol_lets_an_unknown_producer_begin_at_zero_only(
    manager: ProducerStateManager,
) -> None:
    with pytest.raises(OutOfOrderSequenceError):
        append(manager, txn_data(0, sequence=1), transaction_version=2)
    append(manager, data(0, sequence=8, producer_id=2), transaction_version=2)
    append(manager, txn_data(1, sequence=0), transaction_version=2)


# -- what readers may see


def test_completed_transaction_blocks_until_its_marker_is_replicated(
    manager: ProducerStateManager,
) -> None:
    append(manager, txn_data(10, sequence=0, count=3))
    assert manager.first_unstable_offset(high_watermark=13) == 10
    end(manager, control(13), commit())
    assert manager.first_unstable_offset(high_watermark=13) == 10
    assert manager.last_stable_offset(high_watermark=13) == 10
    assert manager.first_unstable_offset(high_watermark=14) is None
    assert manager.last_stable_offset(high_watermark=14) == 14
    manager.on_high_watermark_updated(13)
    assert not manager.is_empty
    assert manager.last_stable_offset(high_watermark=13) == 10
    manager.on_high_watermark_updated(14)
    assert manager.first_unstable_offset(high_watermark=0) is None


def test_oldest_of_open_and_unreplicated_transactions_counts(
    manager: ProducerStateManager,
) -> None:
    append(manager, txn_data(0, sequence=0, producer_id=1))
    append(manager, txn_data(1, sequence=0, producer_id=2))
    end(manager, control(2, producer_id=1), commit())
    assert manager.first_unstable_offset(high_watermark=2) == 0
    assert manager.first_unstable_offset(high_watermark=3) == 1
    append(manager, txn_data(3, sequence=0, producer_id=3))
    end(manager, control(4, producer_id=3), commit())
    assert manager.first_unstable_offset(high_watermark=3) == 1


def test_last_stable_offset_lies_between_log_start_and_high_watermark(
    manager: ProducerStateManager,
) -> None:
    assert manager.last_stable_offset(high_watermark=7) == 7
    append(manager, txn_data(10, sequence=0))
    assert manager.last_stable_offset(high_watermark=8) == 8
    assert manager.last_stable_offset(high_watermark=11) == 10
    assert manager.last_stable_offset(high_watermark=30, log_start_offset=20) == 20


def test_log_start_moves_past_transactions_but_not_past_producers(
    manager: ProducerStateManager,
) -> None:
    append(manager, data(0, sequence=0, producer_id=9))
    append(manager, txn_data(1, sequence=0, producer_id=1))
    end(manager, control(2, producer_id=1), commit())
    manager.on_log_start_offset_incremented(3, latest_snapshot_offset=None)
    assert manager.first_unstable_offset(high_watermark=0) is None
    assert sorted(manager.producers) == [1, 9], "retention forgets no producer"
    assert (manager.map_end_offset, manager.last_snapshot_offset) == (3, 3)
    manager.on_log_start_offset_incremented(8, latest_snapshot_offset=6)
    assert (manager.map_end_offset, manager.last_snapshot_offset) == (8, 6)
    assert manager.needs_snapshot


# -- time


def test_producers_expire_after_a_day(manager: ProducerStateManager) -> None:
    append(manager, data(0, sequence=0, producer_id=1, timestamp=NOW_MS))
    append(manager, data(1, sequence=0, producer_id=2, timestamp=NOW_MS + 1))
    append(manager, txn_data(2, sequence=0, producer_id=3))
    assert manager.remove_expired(NOW_MS + DAY_MS - 1) == []
    assert manager.remove_expired(NOW_MS + DAY_MS) == [1]
    assert manager.remove_expired(NOW_MS + 9 * DAY_MS) == [2]
    assert list(manager.producers) == [3], "it has a transaction open"
    append(manager, data(3, sequence=500, producer_id=1))


def test_expiration_time_is_a_setting() -> None:
    manager = ProducerStateManager(ProducerStateConfig(producer_id_expiration_ms=100))
    append(manager, data(0, sequence=0, timestamp=1000))
    assert manager.remove_expired(1099) == []
    assert manager.remove_expired(1100) == [PRODUCER_ID]
