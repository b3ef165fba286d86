"""A partition that is written: when it rolls, and what is left of it when it is cut."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import (
    MessageTooLargeError,
    OffsetOutOfRangeError,
)
from stratalog.format.batch import TimestampType
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


def test_a_segment_rolls_when_it_is_full(setup: Setup) -> None:
    log = setup.log
    for _ in range(20):
        log.append(batch())
    size = len(batch())
    assert bases(log) == list(range(0, 20, 1000 // size))
    assert all(segment.size_bytes <= 1000 for segment in log.maintenance.segments)
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
    monkeypatch.setattr("stratalog.log.log_state.random.randrange", lambda _: next(drawn))
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
