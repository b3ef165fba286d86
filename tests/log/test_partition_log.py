"""A partition that is written: what it answers and refuses, and what readers see of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import (
    AppendError,
    CorruptMessageError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    RecordListTooLargeError,
    StorageError,
    UnexpectedAppendOffsetError,
)
from stratalog.format.batch import NO_TIMESTAMP, TimestampType
from stratalog.format.record import BatchFields, Record
from stratalog.log.offset_assignment import AppendOrigin
from stratalog.log.partition_view import PartitionView
from stratalog.log.reader import IsolationLevel
from tests.log.building import log_name
from tests.log.written_log import (
    CONFIG,
    NOW_MS,
    PRODUCER,
    Setup,
    bases,
    batch,
    filled,
    offsets,
    sent,
)

if TYPE_CHECKING:
    from stratalog.log.partition_log import PartitionLog

# -- appending


def test_offsets_are_given_in_order(log: PartitionLog) -> None:
    first, second = log.append(batch(3)), log.append(batch(2))
    assert (first.first_offset, first.last_offset) == (0, 2)
    assert (second.first_offset, second.last_offset) == (3, 4)
    assert first.log_append_time_ms == NO_TIMESTAMP
    assert offsets(log) == [0, 1, 2, 3, 4]
    assert (log.log_end_offset, log.high_watermark, log.last_stable_offset) == (5, 5, 5)


def test_the_size_is_that_of_the_batches_in_all_segments(setup: Setup) -> None:
    log = setup.reopen(replace(CONFIG, preallocate=True))
    raw = batch(3)
    assert log.size_bytes == 0
    for _ in range(9):
        log.append(raw)
    assert len(bases(log)) == 2
    assert (setup.path / log_name(bases(log)[-1])).stat().st_size == 1000  # preallocated
    assert log.size_bytes == 9 * len(raw)
    log.truncate_to(15)
    assert log.size_bytes == 5 * len(raw)
    log.close()
    with PartitionView(setup.path) as view:
        assert view.size_bytes == log.size_bytes


def test_log_append_time_is_answered(setup: Setup) -> None:
    log = setup.reopen(replace(CONFIG, message_timestamp_type=TimestampType.LOG_APPEND_TIME))
    setup.now_ms += 55
    assert log.append(batch()).log_append_time_ms == NOW_MS + 55
    (record,) = log.read()
    assert (record.timestamp, record.timestamp_type.kafka_name) == (NOW_MS + 55, "LogAppendTime")


def test_nothing_whole_is_nothing_to_append(log: PartitionLog) -> None:
    for data in (b"", batch()[:40]):
        info = log.append(data)
        assert (info.first_offset, info.last_offset) == (-1, -1)
    assert log.log_end_offset == 0


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (batch(first_offset=3), InvalidRecordError),
        (batch()[:-1] + b"\xff", CorruptMessageError),
        (batch() + batch(), InvalidRecordError),
        (batch(40), RecordListTooLargeError),
        (sent(-1), InvalidRecordError),
    ],
    ids=["offset", "crc", "two batches", "too large for a segment", "no sequence"],
)
def test_what_is_refused_changes_nothing(
    setup: Setup, data: bytes, error: type[AppendError]
) -> None:
    log = setup.log
    log.append(batch())
    before = (setup.path / log_name(0)).read_bytes()
    with pytest.raises(error):
        log.append(data)
    assert log.log_end_offset == 1
    assert (setup.path / log_name(0)).read_bytes() == before
    assert log.append(batch()).first_offset == 1


def test_a_follower_keeps_offsets_and_epochs(log: PartitionLog) -> None:
    fields = BatchFields(partition_leader_epoch=4)
    log.append_as_follower(batch(2, first_offset=10, fields=fields))
    assert (log.log_start_offset, log.log_end_offset) == (0, 12)
    assert offsets(log) == [10, 11]
    assert [tuple(entry) for entry in log.epochs.entries] == [(4, 10)]
    with pytest.raises(UnexpectedAppendOffsetError):
        log.append_as_follower(batch(first_offset=11))
    log.append_as_follower(batch(first_offset=12) + batch(first_offset=20))
    assert offsets(log) == [10, 11, 12, 20]


def test_messages_of_old_formats_clear_the_epochs(log: PartitionLog) -> None:
    """Nobody can tell their epochs, so no end of an epoch may be told any more."""
    from stratalog.format.legacy import encode_legacy  # noqa: PLC0415 - only here

    log.become_leader(3)
    log.append(batch())
    old = encode_legacy([Record(1, NOW_MS, None, b"v")], 1)
    log.append_as_follower(old)
    assert log.epochs.entries == ()
    assert offsets(log) == [0, 1]


# -- several at once


def test_each_request_stands_or_falls_on_its_own(log: PartitionLog) -> None:
    log.append(batch())
    results = log.append_many([batch(2), batch(first_offset=5), batch(), batch()[:-1] + b"\xff"])
    first, second, third, fourth = results
    assert not isinstance(first, Exception)
    assert (first.first_offset, first.last_offset) == (1, 2)
    assert isinstance(second, InvalidRecordError)
    assert not isinstance(third, Exception)
    assert third.first_offset == 3
    assert isinstance(fourth, CorruptMessageError)
    assert offsets(log) == [0, 1, 2, 3]


def test_sequences_within_a_group(log: PartitionLog) -> None:
    log.append(batch())
    results = log.append_many([sent(0), sent(0), sent(1), sent(3), sent(2)])
    assert [
        type(result) if isinstance(result, Exception) else (result[0], result.is_duplicate)
        for result in results
    ] == [(1, False), (1, True), (2, False), OutOfOrderSequenceError, (3, False)]


def test_a_group_rolls_where_single_appends_would(setup: Setup) -> None:
    """Also when the segment is empty, whose clock begins with the first batch of the group."""
    times = [NOW_MS, NOW_MS + 10, NOW_MS + 500, NOW_MS + 501, NOW_MS + 5000]
    config = replace(CONFIG, segment_ms=400)
    single = setup.reopen(config)
    for time in times:
        single.append(batch(timestamp=time))
    expected = bases(single)
    assert expected == [0, 2, 4]
    single.truncate_fully_and_start_at(0)
    single.append_many([batch(timestamp=time) for time in times])
    assert bases(single) == expected


def test_no_space_is_an_answer_to_each_request(setup: Setup) -> None:
    log = setup.log
    log.append(batch())
    setup.disk.fail_next()
    results = log.append_many([batch(), batch(first_offset=3), batch()])
    assert [type(result) for result in results] == [StorageError, InvalidRecordError, StorageError]
    assert log.is_usable
    assert log.log_end_offset == 1
    assert log.append(batch()).first_offset == 1


# -- producers


def test_a_retry_is_answered_from_memory(setup: Setup) -> None:
    log = setup.log
    for sequence in range(6):
        log.append(sent(sequence))
    size = (setup.path / log_name(0)).stat().st_size
    info = log.append(sent(3))
    assert (info.first_offset, info.last_offset, info.is_duplicate) == (3, 3, True)
    assert (setup.path / log_name(0)).stat().st_size == size
    with pytest.raises(OutOfOrderSequenceError):
        log.append(sent(0))  # older than the last five: not known any more
    with pytest.raises(OutOfOrderSequenceError):
        log.append(sent(7))
    log.append(sent(0, epoch=1))
    with pytest.raises(InvalidProducerEpochError):
        log.append(sent(6))


def test_transactions(log: PartitionLog) -> None:
    committed, everything = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
    log.append(sent(0, in_txn=True, count=2))
    log.append(batch())
    assert log.last_stable_offset == 0
    assert offsets(log, isolation=committed) == []
    assert offsets(log, isolation=everything) == [0, 1, 2]
    with pytest.raises(InvalidTxnStateError):
        log.append(sent(2))
    info = log.end_transaction(PRODUCER, 0, commit=False)
    assert info.first_offset == 3
    assert log.last_stable_offset == 4
    assert offsets(log, isolation=committed) == [2]
    (txn,) = log.aborted_transactions()
    assert (txn.first_offset, txn.last_offset, txn.last_stable_offset) == (0, 3, 4)
    log.append(sent(2, in_txn=True))
    log.end_transaction(PRODUCER, 0, commit=True)
    assert offsets(log, isolation=committed) == [2, 4]


def test_a_marker_of_a_client_is_refused(log: PartitionLog) -> None:
    fields = BatchFields(is_control=True, is_transactional=True, producer_id=1, producer_epoch=0)
    with pytest.raises(InvalidRecordError):
        log.append(batch(fields=fields), origin=AppendOrigin.CLIENT)


def test_an_iterator_outlives_the_segments_it_reads(log: PartitionLog) -> None:
    """What is open stays readable; what is not is gone, and said to be."""
    filled(log)
    reading = log.read()
    assert next(reading).offset == 0
    log.truncate_fully_and_start_at(100)
    with pytest.raises(OffsetOutOfRangeError):
        list(reading)
