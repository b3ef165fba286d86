"""A transaction over two partitions, interrupted anywhere: readers see all of it or nothing."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import StratalogError
from stratalog.log.reader import IsolationLevel
from stratalog.storage.disk import Disk
from tests.disks import Fault, FaultyDisk, SimulatedDisk
from tests.opening import UNSYNCED, Clock, kill, open_logs

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.log_dir import LogDir

BEFORE, DURING, AFTER = b"before", b"during", b"after"


def transact(logs: LogDir, value: bytes, *, flush: bool = False) -> None:
    with logs.transaction("shop", flush=flush) as txn:
        for partition in range(2):
            txn.append("orders", value, partition=partition)


def prepare(path: Path, disk: Disk) -> None:
    with open_logs(path, disk=disk) as logs:
        logs.create_topic("orders", 2)
        transact(logs, BEFORE)


def committed(logs: LogDir) -> list[list[bytes | None]]:
    return [
        [record.value for record in log.read(isolation=IsolationLevel.READ_COMMITTED)]
        for log in logs.partitions_of("orders")
    ]


def check(logs: LogDir, *, was_acknowledged: bool) -> None:
    """Open again: what was decided is finished, the rest is aborted by the next transaction."""
    transact(logs, AFTER)
    nothing, everything = [BEFORE, AFTER], [BEFORE, DURING, AFTER]
    first, second = committed(logs)
    assert first == second
    assert first == everything or (not was_acknowledged and first == nothing)
    assert logs.open_transactions() == []
    for log in logs.partitions_of("orders"):
        assert log.last_stable_offset == log.log_end_offset


def crash_points(path: Path, *, flush: bool) -> range:
    faulty = FaultyDisk(UNSYNCED)
    logs = open_logs(path, disk=faulty.disk)
    start = len(faulty.history)
    transact(logs, DURING, flush=flush)
    end = len(faulty.history)
    kill(logs)
    assert end > start + 5
    return range(start + 1, end + 2)


@pytest.mark.slow
@pytest.mark.parametrize("is_lasting", [True, False], ids=["killed", "one failure"])
@pytest.mark.parametrize("flush", [False, True])
def test_interrupted_at_every_call(tmp_path: Path, flush: bool, is_lasting: bool) -> None:
    template = tmp_path / "template"
    prepare(template, Disk(UNSYNCED))
    shutil.copytree(template, tmp_path / "probe")
    for at in crash_points(tmp_path / "probe", flush=flush):
        path = tmp_path / str(at)
        shutil.copytree(template, path)
        faulty = FaultyDisk(UNSYNCED, Fault(at, is_lasting=is_lasting, written=0.5))
        logs = open_logs(path, disk=faulty.disk)
        was_acknowledged = False
        with suppress(StratalogError):
            transact(logs, DURING, flush=flush)
            was_acknowledged = True
        kill(logs)
        with open_logs(path, disk=Disk(UNSYNCED)) as logs:
            check(logs, was_acknowledged=was_acknowledged)


@pytest.mark.slow
@pytest.mark.parametrize("was_opened_since", [False, True])
def test_hours_after_a_kill_nothing_is_open(tmp_path: Path, was_opened_since: bool) -> None:
    """Nobody uses the transactional id again: opening alone ends what is overdue."""
    template = tmp_path / "template"
    prepare(template, Disk(UNSYNCED))
    shutil.copytree(template, tmp_path / "probe")
    for at in crash_points(tmp_path / "probe", flush=False):
        path = tmp_path / str(at)
        shutil.copytree(template, path)
        faulty = FaultyDisk(UNSYNCED, Fault(at, is_lasting=True, written=0.5))
        clock = Clock()
        logs = open_logs(path, disk=faulty.disk, clock=clock)
        was_acknowledged = False
        with suppress(StratalogError):
            transact(logs, DURING)
            was_acknowledged = True
        kill(logs)
        if was_opened_since:
            open_logs(path, disk=Disk(UNSYNCED), clock=clock).close()
        clock.advance(5 * 60 * 60 * 1000)
        with open_logs(path, disk=Disk(UNSYNCED), clock=clock) as logs:
            for log in logs.partitions_of("orders"):
                assert log.last_stable_offset == log.log_end_offset
            assert logs.open_transactions() == []
            first, second = committed(logs)
            assert first == second
            assert first == [BEFORE, DURING] or (not was_acknowledged and first == [BEFORE])


@pytest.mark.slow
@pytest.mark.parametrize("is_lasting", [True, False], ids=["killed", "one failure"])
def test_going_on_after_a_failure(tmp_path: Path, is_lasting: bool) -> None:
    """The same, in the process that saw the failure, once the disk is well again."""
    template = tmp_path / "template"
    prepare(template, Disk(UNSYNCED))
    shutil.copytree(template, tmp_path / "probe")
    for at in crash_points(tmp_path / "probe", flush=False):
        path = tmp_path / str(at)
        shutil.copytree(template, path)
        faulty = FaultyDisk(UNSYNCED, Fault(at, is_lasting=is_lasting, written=0.5))
        with open_logs(path, disk=faulty.disk) as logs:
            was_acknowledged = False
            with suppress(StratalogError):
                transact(logs, DURING)
                was_acknowledged = True
            faulty.fault = None
            check(logs, was_acknowledged=was_acknowledged)


@pytest.mark.parametrize("seed", range(25))
def test_power_loss(tmp_path: Path, seed: int) -> None:
    """With `flush`, a commit that returned is there whatever the disk forgets."""
    rng = random.Random(f"transactions {seed}")
    simulated = SimulatedDisk(tmp_path)
    path = tmp_path / "data"
    prepare(path, simulated.disk)
    faulty = FaultyDisk(simulated.calls, Fault(rng.randint(1, 60), is_lasting=True))
    was_acknowledged = False
    with suppress(StratalogError):
        logs = open_logs(path, disk=faulty.disk)
        with suppress(StratalogError):
            transact(logs, DURING, flush=True)
            was_acknowledged = True
        kill(logs)
    simulated.crash(rng)
    with open_logs(path, disk=simulated.disk) as logs:
        check(logs, was_acknowledged=was_acknowledged)
