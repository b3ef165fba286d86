"""A partition that is written: what it answers, refuses, rolls, flushes, cuts and survives."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from stratalog.config import LogConfig
from stratalog.errors import (
    AppendError,
    CorruptMessageError,
    InvalidProducerEpochError,
    InvalidRecordError,
    InvalidTxnStateError,
    LogOfflineError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    RecordListTooLargeError,
    StorageError,
    UnexpectedAppendOffsetError,
)
from stratalog.format.batch import NO_TIMESTAMP, TimestampType
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log.isolation import IsolationLevel
from stratalog.log.origin import AppendOrigin
from stratalog.log.partition_view import PartitionView
from stratalog.log.producer_state import ProducerStateManager
from stratalog.maintenance.recovery import LoadPoint, open_log
from stratalog.storage.segment import Segment
from tests.disks import FaultyDisk
from tests.log.building import log_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=1000, segment_index_bytes=240, index_interval_bytes=150)
PRODUCER = 7


class Setup:
    """A log, its disk and its clock."""

    def __init__(self, root: Path) -> None:
        self.path = root / "t-0"
        self.disk = FaultyDisk()
        self.now_ms = NOW_MS
        self.log = self.open()

    def open(self, config: LogConfig = CONFIG, point: LoadPoint = LoadPoint()) -> PartitionLog:  # noqa: B008
        self.log = open_log(
            self.path, config, disk=self.disk.disk, now_ms=lambda: self.now_ms, point=point
        )
        return self.log

    def reopen(self, config: LogConfig = CONFIG) -> PartitionLog:
        self.log.close()
        point = LoadPoint(self.log.log_start_offset, self.log.recovery_point, was_clean=True)
        return self.open(config, point)


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    made = Setup(tmp_path)
    yield made
    made.log.close()


@pytest.fixture
def log(setup: Setup) -> PartitionLog:
    return setup.log


def batch(
    count: int = 1,
    *,
    timestamp: int = NOW_MS,
    value_bytes: int = 20,
    fields: BatchFields = BatchFields(),  # noqa: B008
    first_offset: int = 0,
) -> bytes:
    records = [
        Record(first_offset + n, timestamp, b"key-%d" % n, b"v" * value_bytes) for n in range(count)
    ]
    return encode_batch(records, fields)


def sent(sequence: int, *, epoch: int = 0, in_txn: bool = False, count: int = 1) -> bytes:
    fields = BatchFields(
        producer_id=PRODUCER,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=in_txn,
    )
    return batch(count, fields=fields)


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.writable_segments]


def offsets(log: PartitionLog, **how: IsolationLevel) -> list[int]:
    return [record.offset for record in log.read(**how)]  # type: ignore[arg-type]


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


# -- segments


def test_a_segment_rolls_when_it_is_full(setup: Setup) -> None:
    log = setup.log
    for _ in range(20):
        log.append(batch())
    size = len(batch())
    assert bases(log) == list(range(0, 20, 1000 // size))
    assert all(segment.size_bytes <= 1000 for segment in log.writable_segments)
    assert offsets(log) == list(range(20))
    assert log.recovery_point == bases(log)[-1], "what was sealed is durable"
    assert (setup.path / log_name(bases(log)[-1], ".snapshot")).exists()


def test_a_segment_rolls_with_the_time_of_records(setup: Setup) -> None:
    log = setup.reopen(replace(CONFIG, segment_ms=1000))
    setup.now_ms += 100_000  # of no concern
    for time in (0, 1000, 400, 1001, 1500):
        log.append(batch(timestamp=NOW_MS + time))
    assert bases(log) == [0, 3]


def test_a_segment_rolls_when_an_index_is_full(setup: Setup) -> None:
    """48 bytes are four time entries, one of them kept for the last."""
    log = setup.reopen(replace(CONFIG, segment_index_bytes=48, index_interval_bytes=0))
    for number in range(9):
        log.append(batch(timestamp=NOW_MS + number))
    assert bases(log) == [0, 4, 8]


def test_a_segment_rolls_when_offsets_reach_too_far(log: PartitionLog) -> None:
    far = (1 << 31) + 5
    log.append_as_follower(batch(first_offset=3))
    log.append_as_follower(batch(first_offset=far))
    assert bases(log) == [0, far]
    assert offsets(log) == [3, far]


def test_jitter_is_drawn_for_each_segment(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([0, 900, 0])
    monkeypatch.setattr("stratalog.log.segmented_log.random.randrange", lambda _: next(drawn))
    log = setup.reopen(replace(CONFIG, segment_ms=1000, segment_jitter_ms=950))
    log.append(batch())
    log.roll()
    for time in (0, 100, 101, 1101):
        log.append(batch(timestamp=NOW_MS + time))
    assert bases(log) == [0, 1, 3]
    assert not list(drawn)


def test_rolling_an_empty_segment_does_nothing(log: PartitionLog) -> None:
    log.roll()
    log.append(batch())
    log.roll()
    log.roll()
    assert bases(log) == [0, 1]


def test_settings_change_from_now_on(log: PartitionLog) -> None:
    log.append(batch())
    log.update_config(replace(CONFIG, max_message_bytes=200, segment_bytes=2000))
    with pytest.raises(MessageTooLargeError):
        log.append(batch(5))
    for _ in range(15):
        log.append(batch())
    assert bases(log) == [0]
    log.update_config(replace(CONFIG, message_timestamp_type=TimestampType.LOG_APPEND_TIME))
    assert log.append(batch()).log_append_time_ms == NOW_MS
    assert bases(log) == [0, 16]


# -- durability


def test_flush_after_so_many_messages(setup: Setup) -> None:
    log = setup.reopen(replace(CONFIG, flush_messages=4))
    for expected in (0, 0, 0, 4, 4):
        log.append(batch())
        assert log.recovery_point == expected
    log.append(batch(3))
    assert log.recovery_point == 8


def test_flush_after_so_much_time(setup: Setup) -> None:
    log = setup.reopen(replace(CONFIG, flush_ms=1000))
    log.append(batch())
    assert not log.flush_if_due(NOW_MS + 999)
    assert log.recovery_point == 0
    setup.now_ms = NOW_MS + 1000
    assert log.flush_if_due(setup.now_ms)
    assert log.recovery_point == 1
    assert not log.flush_if_due(NOW_MS + 1999)


def test_flush_in_order_and_only_what_is_new(setup: Setup) -> None:
    log = setup.log
    for _ in range(20):
        log.append(batch())
    log.flush()
    calls = len(setup.disk.history)
    log.flush()
    assert setup.disk.history[calls:] == []
    log.append(batch())
    calls = len(setup.disk.history)
    log.flush()
    assert setup.disk.history[calls:] == ["fsync"] * 4  # log, two indexes, snapshot


def test_a_failed_fsync_is_final(setup: Setup) -> None:
    """Nobody knows what the disk holds then; only opening the log again can tell."""
    log = setup.log
    log.append(batch())
    setup.disk.fail_next()
    with pytest.raises(StorageError):
        log.flush()
    assert not log.is_usable
    for change in (log.flush, log.roll, lambda: log.append(batch()), lambda: log.truncate_to(0)):
        with pytest.raises(LogOfflineError, match="an earlier write failed"):
            change()
    assert offsets(log) == [0], "reading goes on"
    log.close()
    assert setup.open().append(batch()).first_offset == 1


def test_an_interrupt_in_the_middle_of_an_append(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between the write and its account: the log must not be written on."""
    log = setup.log
    log.append(batch())

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ProducerStateManager, "update", interrupt)
        with pytest.raises(KeyboardInterrupt):
            log.append(batch())
    assert not log.is_usable
    assert offsets(log) == [0]
    log.close()
    assert offsets(setup.open()) == [0, 1]


def test_an_interrupt_before_an_append(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    log = setup.log

    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "append", interrupt)
        with pytest.raises(KeyboardInterrupt):
            log.append(batch())
    assert log.is_usable
    assert log.append(batch()).first_offset == 0


def test_closing(setup: Setup) -> None:
    log = setup.log
    with log:
        log.append(sent(0))
    log.close()
    assert log.recovery_point == 1
    assert (setup.path / log_name(1, ".snapshot")).stat().st_size == 56
    assert (setup.path / log_name(0, ".index")).stat().st_size == 0
    assert (setup.path / log_name(0, ".timeindex")).stat().st_size == 12
    with pytest.raises(LogOfflineError, match="closed"):
        log.append(batch())
    assert not log.is_usable
    assert setup.open(point=LoadPoint(0, 1, was_clean=True)).append(sent(0)).is_duplicate


def test_preallocated_segments_are_trimmed(setup: Setup) -> None:
    log = setup.reopen(replace(CONFIG, preallocate=True))
    log.roll()
    for _ in range(12):
        log.append(batch())
    sizes = [(setup.path / log_name(base)).stat().st_size for base in bases(log)]
    assert sizes[-1] == 1000
    assert all(size % len(batch()) == 0 for size in sizes[:-1])
    assert offsets(log) == list(range(12))
    log.close()
    assert (setup.path / log_name(bases(log)[-1])).stat().st_size % len(batch()) == 0


# -- cutting


def filled(log: PartitionLog, batches: int = 20) -> PartitionLog:
    for number in range(batches):
        log.append(batch(2, timestamp=NOW_MS + number))
    return log


def test_truncating(setup: Setup) -> None:
    log = filled(setup.log)
    assert len(bases(log)) == 3
    log.truncate_to(9)  # inside a batch, which goes as a whole
    assert offsets(log) == list(range(8))
    assert log.log_end_offset == 9
    assert log.find_time(NOW_MS + 4) is None
    assert log.append(batch()).first_offset == 9
    assert offsets(log) == [*range(8), 9]
    names = {int(file.stem) for file in setup.path.glob("*.log")}
    assert names == set(bases(log))
    log.flush()
    with pytest.raises(OffsetOutOfRangeError):
        log.truncate_to(-1)


def test_truncating_forgets_producers_and_transactions(log: PartitionLog) -> None:
    log.append(sent(0, in_txn=True))
    log.append(batch())
    log.end_transaction(PRODUCER, 0, commit=False)
    log.truncate_to(2)
    assert log.last_stable_offset == 0
    assert log.aborted_transactions() == []
    assert log.producers.producers[PRODUCER].open_txn_first_offset == 0
    log.truncate_to(0)
    assert log.producers.is_empty
    log.append(sent(0))
    assert log.last_stable_offset == 1


def test_truncating_above_the_end_only_trims_epochs(log: PartitionLog) -> None:
    log.become_leader(2)
    log.append(batch())
    log.become_leader(5)
    log.truncate_to(1)
    assert (log.log_end_offset, offsets(log)) == (1, [0])
    assert [tuple(entry) for entry in log.epochs.entries] == [(2, 0)]


def test_truncating_below_the_first_segment_starts_over(setup: Setup) -> None:
    log = setup.log
    log.truncate_fully_and_start_at(50)
    filled(log)
    log.truncate_to(30)
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (30, 30, 30)
    assert bases(log) == [30]
    assert [file.name for file in setup.path.glob("*.log")] == [log_name(30)]
    assert not list(setup.path.glob("*.snapshot"))
    assert log.append(batch()).first_offset == 30


def test_deleting_records(log: PartitionLog) -> None:
    filled(log, 5)
    log.become_leader(4)
    assert log.delete_records(3) == 3
    assert offsets(log) == list(range(3, 10))
    assert log.delete_records(1) == 3
    assert [tuple(entry) for entry in log.epochs.entries] == [(0, 3), (4, 10)]
    with pytest.raises(OffsetOutOfRangeError):
        list(log.read(2))
    with pytest.raises(OffsetOutOfRangeError):
        log.delete_records(11)
    assert log.is_usable
    assert log.delete_records(-1) == 10
    assert offsets(log) == []
    assert log.append(batch()).first_offset == 10


def test_leader_epochs(setup: Setup) -> None:
    log = setup.log
    log.become_leader(2)
    log.append(batch(2))
    log.become_leader(5)
    log.append(batch())
    assert [tuple(log.end_offset_for_epoch(epoch)) for epoch in (1, 2, 3, 5, 6)] == [
        (1, 0),
        (2, 2),
        (2, 2),
        (5, 3),
        (-1, -1),
    ]
    assert setup.reopen().leader_epoch == 5


def test_an_iterator_outlives_the_segments_it_reads(log: PartitionLog) -> None:
    """What is open stays readable; what is not is gone, and said to be."""
    filled(log)
    reading = log.read()
    assert next(reading).offset == 0
    log.truncate_fully_and_start_at(100)
    with pytest.raises(OffsetOutOfRangeError):
        list(reading)
