"""A crash between any two steps of making, growing, changing or deleting a topic."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import StratalogError
from stratalog.partitions.saved_state import StateStore
from stratalog.storage.disk import Disk
from tests.disks import Fault, FaultyDisk, SimulatedDisk
from tests.opening import UNSYNCED, Clock, kill, open_logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from stratalog.log_dir import LogDir

VALUES = [b"0", b"1", b"2"]


def create(logs: LogDir) -> None:
    logs.create_topic("new", 3, config={"retention.ms": 5000})


def grow(logs: LogDir) -> None:
    logs.add_partitions("old", 4)


def change(logs: LogDir) -> None:
    logs.alter_config("old", {"retention.ms": 7})


def delete(logs: LogDir) -> None:
    logs.delete_topic("old")


def recreate(logs: LogDir) -> None:
    logs.delete_topic("old")
    logs.create_topic("old", 2)
    for partition in range(2):
        for value in VALUES:
            logs.append("old", value, partition=partition)
    logs.flush()


ACTIONS = [create, grow, change, delete, pytest.param(recreate, marks=pytest.mark.slow)]


def prepare(dirs: list[Path], disk: Disk) -> None:
    with open_logs(*dirs, disk=disk) as logs:
        logs.create_topic("old", 2)
        for partition in range(2):
            for value in VALUES:
                logs.append("old", value, partition=partition)
            logs.delete_records("old", partition, 1)


def check(logs: LogDir, action: Callable[[LogDir], None]) -> None:
    """Before or after the action, never in between; and everything works."""
    topics = {name: info.partition_count for name, info in logs.topics.items()}
    allowed: dict[Callable[[LogDir], None], list[dict[str, int]]] = {
        create: [{"old": 2}, {"old": 2, "new": 3}],
        grow: [{"old": 2}, {"old": 4}],
        change: [{"old": 2}],
        delete: [{"old": 2}, {}],
        recreate: [{"old": 2}, {}],
    }
    assert topics in allowed[action]
    for name, info in logs.topics.items():
        assert info.topic_id is not None
        assert info.partitions == tuple(range(info.partition_count))
        for log in logs.partitions_of(name):
            values = [record.value for record in log.read()]
            if name == "old" and log.topic_partition.partition < 2:
                assert values == VALUES[log.log_start_offset :] or action is recreate
                assert values in (VALUES[1:], VALUES, [], VALUES[:1], VALUES[:2])
            else:
                assert values == []
    if "new" in topics:
        assert logs.topic("new").config.retention_ms == 5000
        assert logs.partition("new", 2).config.retention_ms == 5000
    logs.create_topic("after")
    for name in logs.topics:
        logs.append(name, b"more")


def prepared(root: Path) -> list[Path]:
    """Fresh directories with the same content each time."""
    template = root.parent / "template"
    if not template.exists():
        prepare([template / "1", template / "2"], Disk(UNSYNCED))
    shutil.copytree(template, root)
    return [root / "1", root / "2"]


def crash_points(action: Callable[[LogDir], None], tmp_path: Path) -> Iterator[int]:
    """The numbers of the changing calls that the action makes, found by running it once."""
    dirs = prepared(tmp_path / "probe")
    faulty = FaultyDisk(UNSYNCED)
    logs = open_logs(*dirs, disk=faulty.disk)
    start = len(faulty.history)
    action(logs)
    end = len(faulty.history)
    kill(logs)
    assert end > start
    yield from range(start + 1, end + 1)


@pytest.mark.slow
@pytest.mark.parametrize("action", ACTIONS)
def test_killed_at_every_call(tmp_path: Path, action: Callable[[LogDir], None]) -> None:
    """From some call on all fail, so nothing is cleaned up: the process might as well be dead."""
    for at in crash_points(action, tmp_path):
        dirs = prepared(tmp_path / str(at))
        faulty = FaultyDisk(UNSYNCED, Fault(at, is_lasting=True, written=0.5))
        logs = open_logs(*dirs, disk=faulty.disk)
        with suppress(StratalogError):
            action(logs)
        kill(logs)
        with open_logs(*dirs, disk=Disk(UNSYNCED)) as logs:
            check(logs, action)
        state = StateStore(Disk(), dirs).state
        assert (state.creates, state.deletes) == ((), ())


@pytest.mark.slow
@pytest.mark.parametrize("action", ACTIONS)
def test_one_failing_call(tmp_path: Path, action: Callable[[LogDir], None]) -> None:
    """One call fails and the process goes on: it may try again, or close."""
    for at in crash_points(action, tmp_path):
        dirs = prepared(tmp_path / str(at))
        faulty = FaultyDisk(UNSYNCED, Fault(at, written=0.5))
        logs = open_logs(*dirs, disk=faulty.disk)
        with suppress(StratalogError):
            action(logs)
        with suppress(StratalogError):
            logs.close()
        kill(logs)
        with open_logs(*dirs, disk=Disk(UNSYNCED)) as logs:
            check(logs, action)


@pytest.mark.slow
@pytest.mark.parametrize("action", ACTIONS)
def test_power_loss_at_random_calls(tmp_path: Path, action: Callable[[LogDir], None]) -> None:
    """The disk forgets what was not synced, and comes up with any mixture of the rest."""
    points = list(crash_points(action, tmp_path))
    for seed in range(12):
        rng = random.Random(f"{action.__name__} {seed}")
        root = tmp_path / f"seed {seed}"
        root.mkdir()
        dirs = [root / "1", root / "2"]
        simulated = SimulatedDisk(root)
        prepare(dirs, simulated.disk)
        faulty = FaultyDisk(simulated.calls, Fault(rng.choice(points), is_lasting=True))
        logs = open_logs(*dirs, disk=faulty.disk)
        with suppress(StratalogError):
            action(logs)
        kill(logs)
        simulated.crash(rng)
        with open_logs(*dirs, disk=simulated.disk, clock=Clock()) as logs:
            check(logs, action)
