"""Producers and transactions of a log that grows: a view that is refreshed continues where it was,
and finds what a new view finds."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log.partition_view import PartitionView
from stratalog.log_dir import LogDir
from tests.effort import scaled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog
    from stratalog.log.producer_transitions import ProducerReplay

PRODUCERS = range(100, 104)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    with LogDir.open(tmp_path) as logs:
        logs.create_topic("t")
        yield logs.partition("t", 0)


def _append(log: PartitionLog, producer_id: int, value: bytes) -> None:
    known = log.producers.producers.get(producer_id)
    fields = BatchFields(
        is_transactional=True,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0 if known is None else known.last_sequence + 1,
    )
    log.append(encode_batch([Record(0, 1000, b"k", value)], fields))


def _step(log: PartitionLog, chance: random.Random) -> None:
    producer_id = chance.choice(PRODUCERS)
    match chance.randrange(10):
        case 0:
            log.roll()
        case 1:
            log.truncate_to(chance.randint(max(0, log.log_end_offset - 5), log.log_end_offset))
        case 2 | 3 | 4:
            commit = chance.random() < 0.5
            log.end_transaction(producer_id, 0, commit=commit, coordinator_epoch=0)
        case _:
            _append(log, producer_id, chance.randbytes(8))


def _facts(view: PartitionView) -> tuple[object, ...]:
    return view.last_stable_offset, view.producers, view.aborted_transactions()


def _replay_of(view: PartitionView) -> ProducerReplay:
    _ = view.last_stable_offset
    assert view._replayed is not None
    return view._replayed.replay


@pytest.mark.parametrize("seed", range(scaled(3)))
def test_a_refreshed_view_finds_what_a_new_one_finds(log: PartitionLog, seed: int) -> None:
    chance = random.Random(seed)
    with PartitionView(log.path) as followed:
        for _ in range(30):
            for _ in range(chance.randint(1, 4)):
                _step(log, chance)
            followed.refresh()
            with PartitionView(log.path) as fresh:
                assert _facts(followed) == _facts(fresh)


def test_what_was_replayed_is_not_replayed_again(log: PartitionLog) -> None:
    _append(log, 100, b"first")
    with PartitionView(log.path) as view:
        replay = _replay_of(view)
        _append(log, 100, b"second")
        view.refresh()
        assert _replay_of(view) is replay
        log.truncate_to(1)
        _append(log, 101, b"other")
        view.refresh()
        assert _replay_of(view) is not replay
        assert [producer.producer_id for producer in view.producers] == [100, 101]
