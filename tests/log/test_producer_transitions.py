from __future__ import annotations

import pytest

from stratalog.errors import CorruptRecordError
from stratalog.format.batch import BatchHeader
from stratalog.format.control import ControlType, EndMarker, encode_end_marker
from stratalog.format.producer_snapshot import ProducerEntry
from stratalog.format.record import BatchFields, Record, encode_batch, encode_empty_batch
from stratalog.format.txn_index import AbortedTxn
from stratalog.log.producer_transitions import (
    CACHED_BATCHES_MAX,
    CachedBatch,
    ProducerReplay,
    ProducerState,
    markers_in,
)
from tests.log.producer_batches import (
    NOW_MS,
    PRODUCER_ID,
    abort,
    commit,
    control,
    data,
    txn_data,
)

UNKNOWN = ProducerState.unknown(PRODUCER_ID)


def test_unknown_producer_has_no_epoch_and_no_batch() -> None:
    assert ProducerState(PRODUCER_ID, -1, -1, -1, -1, ()) == UNKNOWN
    assert UNKNOWN.last_sequence == -1
    assert not UNKNOWN.has_open_txn


def test_data_is_remembered() -> None:
    state = UNKNOWN.after_data(data(100, sequence=7, count=3, epoch=2, timestamp=5))
    assert state == ProducerState(PRODUCER_ID, 2, -1, 5, -1, (CachedBatch(9, 102, 2, 5),))
    assert state.last_sequence == 9
    assert state.to_entry().first_sequence == 7
    assert state.batches[0].first_offset == 100


def test_sequences_wrap_to_zero() -> None:
    state = UNKNOWN.after_data(data(0, sequence=2_147_483_646, count=4))
    assert state.last_sequence == 1
    assert state.to_entry().first_sequence == 2_147_483_646


def test_five_batches_are_cached() -> None:
    state = UNKNOWN
    for at in range(8):
        state = state.after_data(data(10 * at, sequence=at))
    assert CACHED_BATCHES_MAX == 5
    assert [batch.last_sequence for batch in state.batches] == [3, 4, 5, 6, 7]
    assert state.find_duplicate(data(0, sequence=2)) is None
    assert state.find_duplicate(data(0, sequence=3)) == CachedBatch(3, 30, 0, NOW_MS)
    assert state.find_duplicate(data(0, sequence=7)) == CachedBatch(7, 70, 0, NOW_MS)


@pytest.mark.parametrize(
    "other",
    [
        data(50, sequence=4, count=3, epoch=1),
        data(50, sequence=4, count=3, epoch=3),
        data(50, sequence=4, count=2, epoch=2),
        data(50, sequence=5, count=2, epoch=2),
        data(50, sequence=5, count=3, epoch=2),
    ],
    ids=["older epoch", "newer epoch", "fewer records", "same end", "shifted"],
)
def test_only_the_same_sequences_in_the_same_epoch_are_a_duplicate(other: BatchHeader) -> None:
    state = UNKNOWN.after_data(data(10, sequence=4, count=3, epoch=2))
    assert state.find_duplicate(data(50, sequence=4, count=3, epoch=2)) is not None
    assert state.find_duplicate(other) is None


def test_duplicate_is_found_across_the_wrap() -> None:
    state = UNKNOWN.after_data(data(10, sequence=2_147_483_647, count=3))
    found = state.find_duplicate(data(99, sequence=2_147_483_647, count=3))
    assert found is not None
    assert (found.first_offset, found.last_offset) == (10, 12)


@pytest.mark.parametrize("epoch", [1, 3], ids=["lower", "higher"])
def test_another_epoch_forgets_the_batches(epoch: int) -> None:
    """A lower one as well: replication records it, as the leader let it pass."""
    state = UNKNOWN.after_data(data(0, sequence=0, epoch=2))
    assert state.after_data(data(1, sequence=0, epoch=epoch)).batches == (
        CachedBatch(0, 1, 0, NOW_MS),
    )
    ended = state.after_marker(control(1, epoch=epoch), commit())
    assert (ended.producer_epoch, ended.batches, ended.last_sequence) == (epoch, (), -1)


def test_transaction_opens_with_its_first_batch_and_ends_with_its_marker() -> None:
    state = UNKNOWN.after_data(txn_data(10, sequence=0, count=2))
    assert state.open_txn_first_offset == 10
    state = state.after_data(txn_data(12, sequence=2))
    assert state.open_txn_first_offset == 10
    ended = state.after_marker(control(13, timestamp=NOW_MS + 9), abort(coordinator_epoch=4))
    assert not ended.has_open_txn
    assert ended.coordinator_epoch == 4
    assert ended.last_timestamp == NOW_MS + 9
    assert ended.batches == state.batches, "the same epoch goes on counting"


def test_marker_alone_makes_a_producer_known() -> None:
    state = UNKNOWN.after_marker(control(3, epoch=5, timestamp=8), commit(coordinator_epoch=2))
    assert state.to_entry() == ProducerEntry(
        producer_id=PRODUCER_ID,
        producer_epoch=5,
        last_sequence=-1,
        last_offset=-1,
        offset_delta=0,
        timestamp=8,
        coordinator_epoch=2,
        current_txn_first_offset=-1,
    )


def test_snapshot_entry_keeps_the_newest_batch_only() -> None:
    state = UNKNOWN
    for at in range(3):
        state = state.after_data(txn_data(10 + 2 * at, sequence=2 * at, count=2, epoch=1))
    entry = ProducerEntry(PRODUCER_ID, 1, 5, 15, 1, NOW_MS, -1, 10)
    assert state.to_entry() == entry
    assert ProducerState.from_entry(entry) == state._replace(batches=state.batches[-1:])


def test_entry_without_a_batch() -> None:
    entry = ProducerEntry(PRODUCER_ID, 1, -1, -1, 0, 7, 3, -1)
    state = ProducerState.from_entry(entry)
    assert state == ProducerState(PRODUCER_ID, 1, 3, 7, -1, ())
    assert state.to_entry() == entry


def test_expiry_counts_from_the_last_batch_and_spares_open_transactions() -> None:
    state = UNKNOWN.after_data(data(0, sequence=0, timestamp=1000))
    assert not state.is_expired(now_ms=1499, expiration_ms=500)
    assert state.is_expired(now_ms=1500, expiration_ms=500)
    in_txn = UNKNOWN.after_data(txn_data(0, sequence=0))
    assert not in_txn.is_expired(now_ms=NOW_MS + 10**12, expiration_ms=500)


def test_aborts_are_noted_with_the_stable_offset_after_them() -> None:
    replay = ProducerReplay()
    replay.add_data(txn_data(0, sequence=0, producer_id=1))
    replay.add_data(txn_data(1, sequence=0, producer_id=2))
    replay.add_data(txn_data(2, sequence=0, producer_id=3))
    assert replay.first_open_offset == 0
    assert replay.open_transactions == {1: 0, 2: 1, 3: 2}
    replay.add_marker(control(3, producer_id=2), abort())
    replay.add_marker(control(4, producer_id=1), commit())
    replay.add_marker(control(5, producer_id=3), abort())
    assert replay.aborted == [AbortedTxn(0, 2, 1, 3, 0), AbortedTxn(0, 3, 2, 5, 6)]
    assert replay.first_open_offset is None


def test_marker_without_data_ends_nothing() -> None:
    replay = ProducerReplay()
    replay.add_marker(control(0), abort())
    assert replay.aborted == []
    assert list(replay.producers) == [PRODUCER_ID]


def test_replay_begins_with_the_transactions_of_a_snapshot() -> None:
    later = ProducerEntry(1, 0, 4, 44, 0, NOW_MS, -1, 40)
    earlier = ProducerEntry(2, 0, 9, 49, 0, NOW_MS, -1, 30)
    replay = ProducerReplay([later, earlier])
    assert replay.first_open_offset == 30
    assert replay.producers == {1: later, 2: earlier}
    replay.add_marker(control(50, producer_id=2), abort())
    assert replay.aborted == [AbortedTxn(0, 2, 30, 50, 40)]
    assert replay.first_open_offset == 40


def test_replay_survives_a_snapshot_that_no_broker_wrote() -> None:
    """Two transactions at one offset, a producer twice, an offset below -1."""
    first = ProducerEntry(1, 0, 4, 44, 0, NOW_MS, -1, 40)
    replay = ProducerReplay([first, first._replace(producer_id=2), first])
    replay.add_marker(control(50, producer_id=1), abort())
    replay.add_marker(control(51, producer_id=2), abort())
    assert replay.aborted == [AbortedTxn(0, 1, 40, 50, 40), AbortedTxn(0, 2, 40, 51, 52)]
    replay = ProducerReplay([first])
    replay.add_data(txn_data(30, sequence=0, producer_id=3))
    assert replay.first_open_offset == 30, "below one that the snapshot claims"
    negative = ProducerReplay([first._replace(current_txn_first_offset=-7)])
    assert negative.first_open_offset is None


def test_markers_are_read_from_control_batches_only() -> None:
    records = [Record(offset=0, timestamp=NOW_MS, key=b"k", value=b"v")]
    plain = encode_batch(records, BatchFields(producer_id=1, producer_epoch=0, base_sequence=0))
    marker = EndMarker(ControlType.ABORT, coordinator_epoch=6)
    ended = encode_end_marker(
        marker,
        offset=1,
        timestamp=NOW_MS,
        producer_id=1,
        producer_epoch=0,
        partition_leader_epoch=0,
    )
    emptied = encode_empty_batch(BatchHeader.unpack(ended)._replace(base_offset=2))
    raw = plain + ended + emptied
    positions = (0, len(plain), len(plain) + len(ended))
    batches = [(position, BatchHeader.unpack(raw, position)) for position in positions]
    assert markers_in(raw, batches) == {1: marker}


def test_other_control_records_are_no_markers() -> None:
    leader_change = [Record(offset=0, timestamp=NOW_MS, key=b"\0\0\0\2", value=b"")]
    fields = BatchFields(is_control=True, producer_id=1, producer_epoch=0)
    raw = encode_batch(leader_change, fields)
    assert markers_in(raw, [(0, BatchHeader.unpack(raw))]) == {}


def test_damaged_marker_is_a_typed_error() -> None:
    short_key = [Record(offset=0, timestamp=NOW_MS, key=b"\0", value=b"")]
    fields = BatchFields(is_control=True, producer_id=1, producer_epoch=0)
    raw = encode_batch(short_key, fields)
    with pytest.raises(CorruptRecordError):
        markers_in(raw, [(0, BatchHeader.unpack(raw))])
