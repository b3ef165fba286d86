"""Drivers, other writers and retention between any two steps of a commit, with crashes anywhere.

Rules that hold whatever happens: the rows of a commit are in the log once, or not at all; once the
commit was answered, or is known as a replay, they are in the log or were deleted from it by
retention; what others have written stays.

`STRATALOG_MODEL_EXAMPLES` sets how many random histories are tried: a quarter of it.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.bulk.row_staging import StagingOptions
from stratalog.bulk.target import Target, abandon_runs
from stratalog.commits import install
from stratalog.commits.journal import JOURNAL_FILE, CommitIdentity
from stratalog.commits.staged import StagedCommit
from stratalog.config import LogConfig
from stratalog.errors import StratalogError
from stratalog.format.names import TopicPartition
from stratalog.format.record import Record, encode_batch
from stratalog.maintenance.recovery import open_log
from stratalog.storage.disk import Disk
from tests.commits.staging import open_logs, rows, stage
from tests.disks import Fault, FaultyDisk, SimulatedDisk
from tests.effort import IS_LONG, scaled
from tests.opening import NOW_MS, UNSYNCED, Clock, kill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from stratalog.commits.staged import StagedRun

SEEDS = scaled(20)
PARTITIONS = 2
CONFIG = {"segment.bytes": 700, "index.interval.bytes": 100}
ROWS = 24
TERMS = StagingOptions("orders", batch_bytes=250, has_checksums=True)
SHARED, OTHER = "a" * 32, "b" * 32


@dataclass
class Driver:
    """Writes the micro-batches of a query; another one may do the same."""

    query: str
    number: int = 0
    runs: tuple[StagedRun, ...] = ()


@dataclass
class World:
    """A log directory and what is known of it."""

    path: Path
    disk: Disk
    groups: dict[str, set[bytes]] = field(default_factory=dict)
    """The rows of each commit that was tried."""
    acknowledged: set[bytes] = field(default_factory=set)
    deleted: set[bytes] = field(default_factory=set)
    """What retention has removed."""
    written: int = 0

    # -- drivers

    def commit(self, driver: Driver, disk: Disk, *, is_other: bool = False) -> bool:
        """Stage and commit the driver's next micro-batch, or other rows under the same number;
        whether the directory was left in good order."""
        first = 1000 * driver.number + (500_000 if is_other else 0)
        first += 200_000 if driver.query == OTHER else 0
        name = f"{driver.query[0]} {first}"
        self.groups[name] = {b"%06d" % row for row in range(first, first + ROWS)}
        driver.runs = ()
        for task in range(2):
            batch = rows(first + task * ROWS // 2, ROWS // 2)
            driver.runs += stage(
                [self.path],
                [batch],
                task=task,
                number=driver.number,
                job=driver.query,
                terms=TERMS,
                disk=self.disk,
            )
        identity = CommitIdentity(driver.query, driver.number)
        commit = StagedCommit(driver.runs, driver.query, driver.number, identity)
        is_closed = False
        with suppress(StratalogError):
            logs = open_logs(self.path, disk=disk)
            with suppress(StratalogError):
                logs.commits.commit(commit)
                self.acknowledged |= self.groups[name]
                driver.number += 1
            with suppress(StratalogError):
                logs.close()
                is_closed = True
            kill(logs)
        return is_closed

    def abort(self, driver: Driver) -> None:
        abandon_runs(Target((self.path,), lock_wait_ms=0), driver.runs)

    # -- others

    def append(self) -> None:
        """Another process of ours."""
        with open_logs(self.path, disk=self.disk) as logs:
            for partition in range(PARTITIONS):
                logs.append("orders", self._value(), partition=partition)

    def broker_appends(self) -> None:
        """Somebody who knows nothing of journals."""
        for log in self._as_a_broker():
            for _ in range(3):
                log.append(encode_batch([Record(0, NOW_MS, b"foreign", self._value())]))

    def broker_retains(self, kept: int = 1) -> None:
        for log in self._as_a_broker():
            log.roll()
            gone = max(0, len(log.maintenance.segments) - kept)
            before = {record.value for record in log.read()}
            log.maintenance.delete_oldest(gone)
            log.maintenance.remove_discarded(0, at_once=True)
            self.deleted |= before - {record.value for record in log.read()}

    def _as_a_broker(self) -> Iterable[Any]:
        for number in range(PARTITIONS):
            directory = self.path / str(TopicPartition("orders", number))
            config = LogConfig.parse(CONFIG)
            with open_log(directory, config, disk=self.disk, now_ms=Clock()) as log:
                yield log
        marker = self.path / ".kafka_cleanshutdown"
        self.disk.write_atomically(marker, b'{"version":0,"brokerEpoch":"1"}')

    def _value(self) -> bytes:
        self.written += 1
        value = b"other %06d" % self.written
        self.acknowledged.add(value)
        return value

    # -- the rules

    def check(self) -> None:
        with open_logs(self.path, disk=self.disk) as logs:
            values = Counter(r.value for log in logs.partitions_of("orders") for r in log.read())
        assert not (self.path / JOURNAL_FILE).exists()
        assert [value for value, count in values.items() if count > 1] == []
        accounted = values.keys() | self.deleted
        assert self.acknowledged <= accounted
        for name, group in self.groups.items():
            assert len(group & accounted) in (0, ROWS), name


def create(path: Path, disk: Disk) -> None:
    with open_logs(path, disk=disk) as logs:
        logs.create_topic("orders", PARTITIONS, config=CONFIG)
        for number in range(6):
            logs.append("orders", b"before %d" % number, partition=number % PARTITIONS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_histories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = random.Random(seed)
    if rng.random() < 0.5:
        monkeypatch.setattr(install, "SEGMENT_BYTES_MIN", 1)
    path = tmp_path / "logs"
    path.mkdir()
    simulated = SimulatedDisk(path)
    create(path, simulated.disk)
    world = World(path, simulated.disk)
    drivers = [Driver(SHARED), Driver(SHARED), Driver(OTHER)]
    others: list[Callable[[], None]] = [world.append, world.broker_appends, world.broker_retains]
    for _ in range(7):
        if rng.random() < 0.55:
            driver = rng.choice(drivers)
            fault = Fault(
                rng.randrange(20, 160),
                is_lasting=rng.random() < 0.7,
                written=rng.random(),
            )
            faulty = FaultyDisk(simulated.calls, fault if rng.random() < 0.8 else None)
            is_closed = world.commit(driver, faulty.disk, is_other=rng.random() < 0.15)
            if not is_closed and rng.random() < 0.5:
                simulated.crash(rng)
            elif rng.random() < 0.5:
                simulated_abort(world, rng.choice(drivers), simulated)
        else:
            rng.choice(others)()
        if rng.random() < 0.2:
            world.check()
    world.check()


def simulated_abort(world: World, driver: Driver, simulated: SimulatedDisk) -> None:
    """It removes files with a disk of its own, which the simulated one has to see."""
    world.abort(driver)
    simulated.forget_missing()


SCENARIOS: dict[str, list[str]] = {
    "retention": ["broker_appends", "broker_retains"],
    "retention leaves a part": ["broker_retains_some"],
    "two drivers": ["second_driver"],
    "two drivers and an abort": ["abort_second", "broker_appends", "second_driver"],
    "another writer": ["append", "broker_retains"],
    "other rows": ["other_rows", "broker_retains"],
}


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=list(SCENARIOS))
def test_between_any_two_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: list[str]
) -> None:
    """Killed at a changing call of the commit (every one in a long run); then
    others come, and it is finished."""
    template = tmp_path / "template"
    create(template, Disk(UNSYNCED))
    probe = FaultyDisk(UNSYNCED)
    shutil.copytree(template, tmp_path / "probe")
    assert World(tmp_path / "probe", Disk(UNSYNCED)).commit(Driver(SHARED), probe.disk)
    calls = len(probe.history)
    assert calls > 80
    step = 1 if IS_LONG else 7
    for at in range(1 + len(scenario) % step, calls + 1, step):
        monkeypatch.setattr(install, "SEGMENT_BYTES_MIN", at // step % 2 or 1 << 20)
        path = tmp_path / str(at)
        shutil.copytree(template, path)
        world = World(path, Disk(UNSYNCED))
        first, second = Driver(SHARED), Driver(SHARED)
        fault = Fault(at, is_lasting=True, written=0.5)
        world.commit(first, FaultyDisk(UNSYNCED, fault).disk)
        for event in scenario:
            act(world, event, second)
        world.check()
        world.commit(first, world.disk)
        world.check()
        shutil.rmtree(path)


def act(world: World, event: str, second: Driver) -> None:
    match event:
        case "second_driver":
            world.commit(second, world.disk)
        case "other_rows":
            world.commit(second, world.disk, is_other=True)
        case "abort_second":
            world.commit(second, FaultyDisk(UNSYNCED, Fault(1, is_lasting=True)).disk)
            world.abort(second)
        case "broker_retains_some":
            world.broker_retains(kept=3)
        case _:
            getattr(world, event)()


@pytest.mark.slow
def test_a_driver_that_aborts_while_another_commits(tmp_path: Path) -> None:
    """Between the steps of the commit. They share a query, and so the names of their files."""
    create(tmp_path, Disk(UNSYNCED))
    world = World(tmp_path, Disk(UNSYNCED))
    first, second = Driver(SHARED), Driver(SHARED)
    hooked = FaultyDisk(UNSYNCED)
    call = hooked._is_due

    def is_due(name: str) -> bool:
        if len(hooked.history) % 9:
            return call(name)
        second.runs = stage(
            [tmp_path], [rows(0, ROWS)], job=SHARED, terms=TERMS, disk=Disk(UNSYNCED)
        )
        world.abort(second)
        return call(name)

    hooked._is_due = is_due  # type: ignore[method-assign]
    world.commit(first, hooked.disk)
    assert first.number == 1
    world.check()
    assert world.acknowledged
