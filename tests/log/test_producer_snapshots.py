"""What survives a snapshot, a reload and a truncation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.errors import CorruptSnapshotError, OutOfOrderSequenceError
from stratalog.format.producer_snapshot import decode_snapshot
from stratalog.log.offset_assignment import AppendOrigin
from stratalog.log.producer_state_manager import ProducerStateManager
from tests.log.producer_batches import (
    DAY_MS,
    NOW_MS,
    append,
    commit,
    control,
    data,
    end,
    refused,
    txn_data,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_snapshot_bytes() -> None:
    """One entry, computed by hand from the layout; the same as Kafka's test vector."""
    manager = ProducerStateManager()
    assert manager.snapshot() == bytes.fromhex("000148674bc700000000")
    end(manager, control(39), commit(coordinator_epoch=5))
    append(
        manager,
        data(40, sequence=7, count=3, timestamp=1_700_000_000_000),
        AppendOrigin.REPLICATION,
    )
    assert manager.snapshot() == bytes.fromhex(
        "0001 3d7d23e5 00000001 00000000000003e9 0000 00000009 000000000000002a 00000002"
        "0000018bcfe56800 00000005 ffffffffffffffff"
    )


def test_snapshot_is_needed_when_the_log_has_moved() -> None:
    manager = ProducerStateManager()
    assert (manager.needs_snapshot, manager.last_snapshot_offset) == (False, 0)
    manager.map_end_offset = 5
    assert (manager.needs_snapshot, manager.last_snapshot_offset) == (True, 0)
    manager.on_snapshot_written()
    assert (manager.needs_snapshot, manager.last_snapshot_offset) == (False, 5)


def filled() -> ProducerStateManager:
    """Two producers with several batches; one has a transaction open, from offset 5."""
    manager = ProducerStateManager()
    for at in range(3):
        append(manager, data(at, sequence=at, producer_id=1))
    end(manager, control(3, producer_id=2), commit(coordinator_epoch=7))
    append(manager, data(4, sequence=0, producer_id=2))
    append(manager, txn_data(5, sequence=1, count=2, producer_id=2))
    return manager


def test_restored_state_knows_the_newest_batch_of_each_producer() -> None:
    original = filled()
    manager = ProducerStateManager(start_offset=99)
    manager.restore(original.snapshot(), 7, NOW_MS)
    assert manager.snapshot() == original.snapshot()
    assert (manager.map_end_offset, manager.last_snapshot_offset) == (7, 7)
    assert manager.first_unstable_offset(7) == 5
    assert append(manager, data(7, sequence=2, producer_id=1)).duplicate is not None
    error = refused(manager, data(7, sequence=1, producer_id=1))
    assert isinstance(error, OutOfOrderSequenceError), "that batch was not in the snapshot"
    assert append(original, data(7, sequence=1, producer_id=1)).duplicate is not None
    append(manager, data(7, sequence=3, producer_id=1))


def test_restore_leaves_out_what_expired() -> None:
    manager = ProducerStateManager()
    manager.restore(filled().snapshot(), 7, NOW_MS + DAY_MS)
    assert list(manager.producers) == [2], "a transaction is open"


def test_unreadable_snapshot_changes_nothing() -> None:
    manager = filled()
    raw = manager.snapshot()
    with pytest.raises(CorruptSnapshotError):
        manager.restore(raw[:-1], 50, NOW_MS)
    assert manager.snapshot() == raw
    assert manager.map_end_offset == 7


def test_reload_takes_the_newest_readable_snapshot() -> None:
    manager = filled()
    good = manager.snapshot()
    append(manager, txn_data(7, sequence=3, producer_id=2))
    end(manager, control(8, producer_id=2), commit(coordinator_epoch=7))
    asked: list[int] = []

    def newest_first() -> Iterator[tuple[int, bytes]]:
        for offset, raw in ((8, b"\0\1junk"), (7, good), (3, b"never read")):
            asked.append(offset)
            yield offset, raw

    assert manager.truncate_and_reload(0, 8, newest_first(), NOW_MS) == [8]
    assert asked == [8, 7]
    assert manager.map_end_offset == 7
    assert manager.first_unstable_offset(8) == 5
    assert set(decode_snapshot(manager.snapshot())) == set(decode_snapshot(good))


def test_reload_without_any_snapshot_begins_at_the_log_start() -> None:
    manager = filled()
    assert manager.truncate_and_reload(4, 6, [], NOW_MS) == []
    assert manager.is_empty
    assert (manager.map_end_offset, manager.last_snapshot_offset) == (4, 4)


def test_reload_at_the_same_end_keeps_what_is_in_memory() -> None:
    """A snapshot would know less: of each producer the newest batch alone."""
    manager = filled()
    assert manager.truncate_and_reload(2, 7, [(6, b"never read")], NOW_MS) == []
    assert len(manager.producers[1].batches) == 3
    assert manager.last_snapshot_offset == 6


def test_truncating_fully_forgets_everything() -> None:
    manager = filled()
    end(manager, control(7, producer_id=2), commit(coordinator_epoch=7))
    manager.on_snapshot_written()
    manager.truncate_fully_and_start_at(40)
    assert manager.is_empty
    assert manager.first_unstable_offset(0) is None
    assert (manager.map_end_offset, manager.last_snapshot_offset) == (40, 0)
