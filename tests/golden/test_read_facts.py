"""Offsets, producers, transactions, epochs and timestamps are those that Kafka's loader found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.format.checkpoint import EpochEntry
from stratalog.format.producer_snapshot import NO_OFFSET
from stratalog.format.txn_index import AbortedTxn
from stratalog.format.uuids import encode_id
from stratalog.log.partition_view import PartitionView
from tests.golden.cases import GoldenCase, all_cases
from tests.golden.expected import directory_to_read, loaded, undamaged_cases
from tests.looping import for_each

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.format.producer_snapshot import ProducerEntry

LOADED_AT_MS = 1_794_700_000_000  # November 2026 by the broker's clock; the loader ran after it
EXPIRATION_MS = 86_400_000
UNDAMAGED = for_each("case", undamaged_cases())


@pytest.mark.slow
@UNDAMAGED
def test_offsets(case: GoldenCase) -> None:
    for directory in case.partition_dirs():
        with PartitionView(directory) as view:
            assert view.log_start_offset == case.loaddir["logStartOffset"]
            assert view.log_end_offset == case.loaddir["logEndOffset"]
            assert view.last_stable_offset == case.loaddir["lastStableOffset"]


def test_log_goes_on_after_damage() -> None:
    """Kafka's recovery cut this log at the damaged batch; a reader sees the batches behind it."""
    before, after = GoldenCase("u-badcrc").partition_dirs()
    with PartitionView(before) as view:
        assert (view.log_end_offset, view.last_stable_offset) == (260, 260)
    with PartitionView(after) as view:
        assert (view.log_end_offset, view.last_stable_offset) == (249, 249)


@pytest.mark.slow
@for_each("case", all_cases())
def test_segments(case: GoldenCase) -> None:
    with PartitionView(case.partition_dirs()[-1]) as view:
        listed = [(segment.base_offset, segment.size_bytes) for segment in view.segments]
        assert listed == [
            (segment["baseOffset"], segment["size"]) for segment in case.loaddir["segments"]
        ]
        assert view.size_bytes == sum(size for _, size in listed)


@pytest.mark.slow
@UNDAMAGED
def test_largest_timestamps(case: GoldenCase) -> None:
    """Where no record has a timestamp Kafka tells the file's modification time instead."""
    for directory in case.partition_dirs():
        with PartitionView(directory) as view:
            for slot, segment in enumerate(case.loaddir["segments"]):
                largest = view.segments.largest_timestamp(slot).timestamp
                if largest >= 0:
                    assert largest == segment["largestTimestamp"]
                else:
                    assert not _timestamps_in(case, slot)


def _timestamps_in(case: GoldenCase, slot: int) -> list[int]:
    """Timestamps of a segment's records, as Kafka's loader found them."""
    bases = [segment["baseOffset"] for segment in case.loaddir["segments"]]
    end = bases[slot + 1] if slot + 1 < len(bases) else case.loaddir["logEndOffset"]
    records = [facts.record for facts in loaded(case)]
    return [r.timestamp for r in records if bases[slot] <= r.offset < end and r.timestamp >= 0]


@pytest.mark.slow
@UNDAMAGED
def test_aborted_transactions(case: GoldenCase) -> None:
    expected = [
        AbortedTxn(0, t["producerId"], t["firstOffset"], t["lastOffset"], t["lastStableOffset"])
        for t in case.loaddir["abortedTxns"]
    ]
    for directory in case.partition_dirs():
        with PartitionView(directory) as view:
            assert view.aborted_transactions() == expected


@pytest.mark.parametrize("name", ["txn", "txn-now", "txn-simple"])
def test_aborted_transactions_of_a_range(name: str) -> None:
    with PartitionView(GoldenCase(name).partition_dir) as view:
        every = view.aborted_transactions()
        assert every
        end = view.log_end_offset
        for start in range(end):
            for stop in {start + 1, start + 5, end}:
                assert view.aborted_transactions(start, stop) == [
                    txn for txn in every if txn.last_offset >= start and txn.first_offset < stop
                ]


@pytest.mark.slow
@UNDAMAGED
def test_producers(case: GoldenCase) -> None:
    """The loader dropped idle producers whose newest timestamp was a day old; a view does not."""
    expected = {
        (
            p["producerId"],
            p["producerEpoch"],
            p["lastSeq"],
            p["lastDataOffset"],
            p["lastTimestamp"],
            p["coordinatorEpoch"],
            p.get("currentTxnFirstOffset", NO_OFFSET),
        )
        for p in case.loaddir["producers"]
    }
    for directory in case.partition_dirs():
        with PartitionView(directory) as view:
            assert {_as_tuple(p) for p in view.producers if not _is_expired(p)} == expected
            ids = [producer.producer_id for producer in view.producers]
            assert ids == sorted(set(ids))


def _is_expired(producer: ProducerEntry) -> bool:
    is_idle = producer.current_txn_first_offset == NO_OFFSET
    return is_idle and LOADED_AT_MS - producer.timestamp >= EXPIRATION_MS


def _as_tuple(producer: ProducerEntry) -> tuple[int, ...]:
    return (
        producer.producer_id,
        producer.producer_epoch,
        producer.last_sequence,
        producer.last_offset,
        producer.timestamp,
        producer.coordinator_epoch,
        producer.current_txn_first_offset,
    )


def test_idle_producers_are_still_told() -> None:
    """Nothing expires without a clock: every producer of the log, with its last batch."""
    with PartitionView(GoldenCase("idempotent").partition_dir) as view:
        found = [(p.producer_id, p.last_sequence, p.last_offset) for p in view.producers]
    assert found == [(0, 59, 59), (1, 59, 119), (2, 59, 179), (3, 59, 239)]


def test_open_transactions() -> None:
    with PartitionView(GoldenCase("txn").partition_dir) as view:
        open_txns = {p.producer_id: p.open_txn_first_offset for p in view.producers}
    assert open_txns == {5: 130, 6: None}


@UNDAMAGED
def test_leader_epochs(case: GoldenCase) -> None:
    """The loader drops an epoch that begins at the log end: it has no record yet."""
    with PartitionView(directory_to_read(case)) as view:
        with_records = [e for e in view.leader_epochs if e.start_offset < view.log_end_offset]
    assert with_records == [EpochEntry(*entry) for entry in case.loaddir["epochs"]]


@for_each("case", all_cases())
def test_topic_id_is_the_one_in_the_file(case: GoldenCase) -> None:
    directory = directory_to_read(case)
    with PartitionView(directory) as view:
        told = _topic_id_line(directory)
        assert (None if view.topic_id is None else encode_id(view.topic_id)) == told


def _topic_id_line(directory: Path) -> str | None:
    try:
        text = (directory / "partition.metadata").read_text()
    except FileNotFoundError:
        return None
    return text.partition("topic_id: ")[2].strip()
