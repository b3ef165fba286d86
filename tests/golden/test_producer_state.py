"""Producers, transactions and epochs of real logs: replayed, they are what Kafka wrote down."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import pytest

from stratalog.format.checkpoint import EpochEntry, decode_leader_epochs
from stratalog.format.txn_index import read_entries
from stratalog.log.epochs import LeaderEpochCache
from stratalog.log.offset_assignment import AppendOrigin
from stratalog.log.producer_state_manager import ProducerStateManager
from tests.golden.cases import GoldenCase, all_cases, log_dir_case
from tests.golden.replaying import known, segments_of, snapshot_at
from tests.looping import for_each

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stratalog.format.producer_snapshot import ProducerEntry
    from tests.golden.replaying import Batch

KAFKA_CLOCK_MS = 1_794_800_000_000  # when Kafka's loader ran, within a few hours

CLEANED = frozenset(case.name for case in all_cases() if case.name.startswith("compact"))
"""Kafka's cleaner removed batches: snapshots before the last were taken when they still existed."""

CLEANED_TXNS = frozenset({"compact-txn"})
"""Aborted data is gone, so on replay these transactions are empty and leave no entry."""

COMPACTION_WITH_PRODUCERS = [
    "idempotent",
    "last-batch-emptied",
    "random-1",
    "txn-open",
    "txn-open-midsegment",
    "txn-rounds",
]


class Snapshots(NamedTuple):
    """Contents by offset."""

    written: dict[int, frozenset[ProducerEntry]]
    """By Kafka."""
    replayed: dict[int, frozenset[ProducerEntry]]


def partitions(*, without: frozenset[str] = frozenset()) -> list[Path]:
    cases = [case for case in [*all_cases(), log_dir_case()] if case.name not in without]
    return [path for case in cases for path in case.partition_dirs()]


def identify(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def compare_snapshots(partition: Path) -> Snapshots:
    """At each segment's base offset and at the end of the log, where Kafka wrote one."""
    manager, snapshots = ProducerStateManager(), Snapshots({}, {})

    def compare_at(offset: int) -> None:
        written = snapshot_at(partition, offset)
        if written is not None:
            snapshots.written[offset], snapshots.replayed[offset] = written, known(manager)

    for segment in segments_of(partition):
        compare_at(segment.base_offset)
        for batch in segment.batches:
            replay(manager, batch)
            manager.map_end_offset = batch.header.next_offset
    compare_at(manager.map_end_offset)
    return snapshots


def replay(manager: ProducerStateManager, batch: Batch) -> bytes:
    """Record the batch; the line that it adds to the transaction index."""
    if batch.magic_2 is None:
        return b""
    completed = manager.replay(batch.magic_2, batch.marker)
    return completed.index_entry().pack() if completed and completed.is_aborted else b""


@for_each("partition", partitions(without=CLEANED))
def test_replay_gives_the_snapshots_that_kafka_wrote(partition: Path) -> None:
    snapshots = compare_snapshots(partition)
    assert snapshots.replayed == snapshots.written


@pytest.mark.parametrize("name", sorted(CLEANED))
def test_cleaned_log_gives_the_newest_snapshot(
    name: str, golden: Callable[[str], GoldenCase]
) -> None:
    snapshots = compare_snapshots(golden(name).partition_dir)
    newest = max(snapshots.written)
    assert snapshots.replayed[newest] == snapshots.written[newest]


@pytest.mark.parametrize("name", COMPACTION_WITH_PRODUCERS)
def test_many_producers_before_the_cleaner_came(
    name: str, compaction_dir: Callable[[str], Path]
) -> None:
    partition = compaction_dir(name) / "before" / f"{name}-0"
    snapshots = compare_snapshots(partition)
    assert any(snapshots.written.values())
    assert snapshots.replayed == snapshots.written
    check_txn_indexes(partition)


@for_each("partition", partitions(without=CLEANED_TXNS))
def test_replay_gives_the_transaction_indexes_byte_for_byte(partition: Path) -> None:
    check_txn_indexes(partition)


def check_txn_indexes(partition: Path) -> None:
    manager = ProducerStateManager()
    for segment in segments_of(partition):
        lines = [replay(manager, batch) for batch in segment.batches]
        assert b"".join(lines) == segment.txn_index


@for_each("case", all_cases())
def test_loader_finds_the_same_producers_and_transactions(case: GoldenCase) -> None:
    """From the newest snapshot, without what has expired since, as Kafka's loader does.

    Of the killed brokers' logs Kafka made the snapshot itself while it recovered them.
    """
    partition = case.partition_dirs()[-1]
    loaded = case.loaddir
    end_offset = loaded["logEndOffset"]
    manager = ProducerStateManager()
    newest = partition / f"{end_offset:020d}.snapshot"
    if newest.exists():
        manager.restore(newest.read_bytes(), end_offset, KAFKA_CLOCK_MS)
    found = {
        entry.producer_id: (
            entry.producer_epoch,
            entry.last_sequence,
            entry.last_offset,
            entry.timestamp,
            entry.coordinator_epoch,
            entry.current_txn_first_offset,
        )
        for entry in known(manager)
    }
    assert found == {
        producer["producerId"]: (
            producer["producerEpoch"],
            producer["lastSeq"],
            producer["lastDataOffset"],
            producer["lastTimestamp"],
            producer["coordinatorEpoch"],
            producer.get("currentTxnFirstOffset", -1),
        )
        for producer in loaded["producers"]
    }
    assert manager.last_stable_offset(end_offset) == loaded["lastStableOffset"]
    aborted = [txn for s in segments_of(partition) for txn in read_entries(s.txn_index)]
    assert [txn[1:] for txn in aborted] == [
        tuple(txn[key] for key in ("producerId", "firstOffset", "lastOffset", "lastStableOffset"))
        for txn in loaded["abortedTxns"]
    ]


@for_each("partition", partitions(without=CLEANED))
def test_nothing_that_a_broker_accepted_is_refused(partition: Path) -> None:
    """Each batch as it came: data from clients, markers from the coordinator."""
    checked, replayed = ProducerStateManager(), ProducerStateManager()
    for segment in segments_of(partition):
        for batch in segment.batches:
            header = batch.magic_2
            if header is None:
                continue
            origin = AppendOrigin.COORDINATOR if header.is_control else AppendOrigin.CLIENT
            markers = {header.base_offset: batch.marker} if batch.marker else {}
            answer = checked.check([header], origin, markers=markers)
            assert answer.duplicate is None
            checked.update(answer)
            replay(replayed, batch)
    assert checked.producers == replayed.producers


@for_each("partition", partitions())
def test_epochs_are_those_of_the_batches(partition: Path) -> None:
    """As far as records tell. A checkpoint also knows a leader that wrote nothing, from the log's
    end on, and where an epoch began whose first records are gone."""
    checkpoint = partition / "leader-epoch-checkpoint"
    raw = checkpoint.read_bytes() if checkpoint.exists() else b""
    expected, epochs = LeaderEpochCache(decode_leader_epochs(raw)), LeaderEpochCache()
    end_offset = 0
    for segment in segments_of(partition):
        for batch in segment.batches:
            end_offset = batch.header.next_offset
            if batch.magic_2 is None:
                epochs.clear()
            elif batch.magic_2.partition_leader_epoch >= 0:  # a follower's log may lack them
                epochs.assign(batch.magic_2.partition_leader_epoch, batch.magic_2.base_offset)
    expected.truncate_from_end(end_offset)
    if expected.entries and epochs.entries:
        begins_at = max(expected.entries[0].start_offset, epochs.entries[0].start_offset)
        expected.truncate_from_start(begins_at)
        epochs.truncate_from_start(begins_at)
    assert epochs.entries == expected.entries


def test_epochs_of_three_leaders(golden: Callable[[str], GoldenCase]) -> None:
    expected = (EpochEntry(0, 0), EpochEntry(2, 20), EpochEntry(6, 40))
    checkpoint = golden("epochs").partition_dir / "leader-epoch-checkpoint"
    assert LeaderEpochCache(decode_leader_epochs(checkpoint.read_bytes())).entries == expected
