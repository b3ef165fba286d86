"""Retention stopped at each of its calls to the system, by a kill, a loss of power or an error.

Whatever is left, the log begins with a segment, has every record from there to its old end, shows
no aborted one, and goes on with the next offset.
"""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING, NamedTuple

import pytest

from stratalog.config import LogConfig
from stratalog.errors import LogOfflineError, StorageError
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log.partition_view import PartitionView
from stratalog.log.reader import IsolationLevel
from stratalog.maintenance.recovery import LoadPoint, open_log
from stratalog.maintenance.retention import retain
from stratalog.storage.disk import Disk, SystemCalls
from tests.disks import Fault, FaultyDisk, SimulatedDisk
from tests.effort import scaled

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=10_000, segment_index_bytes=240, index_interval_bytes=150)
CALLS_MAX = 200
SEEDS = range(scaled(1))
UNSYNCED = Disk(SystemCalls(fsync=lambda _fd: None))


class Expected(NamedTuple):
    """What was in the log before."""

    bases: list[int]
    end: int
    records: list[Record]
    committed: list[Record]


def batch(timestamp: int, *, producer_id: int = -1, sequence: int = -1) -> bytes:
    fields = BatchFields(
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=sequence,
        is_transactional=producer_id >= 0,
    )
    return encode_batch([Record(0, timestamp, b"k", b"v" * 30)], fields)


def open_it(path: Path, disk: Disk, *, retention_ms: int = -1, clean: bool = False) -> PartitionLog:
    config = LogConfig.parse({"retention.ms": retention_ms}, CONFIG)
    point = LoadPoint(was_clean=clean)
    return open_log(path, config, disk=disk, now_ms=lambda: NOW_MS, point=point)


def set_clock(log: PartitionLog, now_ms: int) -> None:
    log._now_ms = log._segments.now_ms = lambda: now_ms


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Expected]:
    """Four segments, a day apart; in each a transaction is aborted that began in the one before."""
    path = tmp_path_factory.mktemp("made") / "t-0"
    with open_it(path, UNSYNCED) as log:
        for day in range(4):
            time = NOW_MS - (4 - day) * 86_400_000
            set_clock(log, time)  # of the markers
            log.become_leader(day)
            if day:
                log.end_transaction(7, 0, commit=False)
            log.append(batch(time))
            log.append(batch(time, producer_id=7, sequence=day))
            log.append(batch(time))
            if day < 3:
                log.roll()
        log.end_transaction(7, 0, commit=False)
        expected = Expected(
            [segment.base_offset for segment in log.maintenance.segments],
            log.log_end_offset,
            list(log.read()),
            list(log.read(isolation=IsolationLevel.READ_COMMITTED)),
        )
    assert expected.bases == [0, 3, 7, 11]
    assert [record.offset for record in expected.committed] == [0, 2, 4, 6, 8, 10, 12, 14]
    return path, expected


def check(log: PartitionLog, expected: Expected, starts: list[int]) -> None:
    start = log.log_start_offset
    assert start in starts
    assert log.maintenance.segments[0].base_offset == start
    assert log.log_end_offset == expected.end
    assert list(log.read()) == [r for r in expected.records if r.offset >= start]
    committed = list(log.read(isolation=IsolationLevel.READ_COMMITTED))
    assert committed == [r for r in expected.committed if r.offset >= start]
    with PartitionView(log.path) as view:
        assert list(view.read(isolation=IsolationLevel.READ_COMMITTED)) == committed
    assert not [*log.path.glob("*.deleted")]
    assert log.append(batch(NOW_MS)).first_offset == expected.end
    assert log.leader_epoch == 3


def crash_points(
    made: Path, root: Path, retention_ms: int
) -> Iterator[tuple[Path, SimulatedDisk, FaultyDisk, PartitionLog]]:
    """A fresh log for each call that retention makes, with a disk that fails from there on."""
    for at in range(1, CALLS_MAX):
        directory = root / f"{retention_ms}-{at}"
        path = directory / "t-0"
        shutil.copytree(made, path)
        sim = SimulatedDisk(directory)
        faulty = FaultyDisk(sim.calls)
        log = open_it(path, faulty.disk, retention_ms=retention_ms, clean=True)
        faulty.fault = Fault(len(faulty.history) + at, is_lasting=True)
        yield path, sim, faulty, log
        if not faulty.has_failed:
            return
    raise AssertionError("retention never comes to its end")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("retention_ms", "starts"),
    [(2 * 86_400_000 + 1, [0, 3, 7]), (0, [0, 3, 7, 11, 16])],
    ids=["two of four", "all"],
)
@pytest.mark.parametrize("seed", [None, *SEEDS])
def test_retention_is_stopped_anywhere(
    made: tuple[Path, Expected],
    tmp_path: Path,
    retention_ms: int,
    starts: list[int],
    seed: int | None,
) -> None:
    source, expected = made
    seen = set()
    for path, sim, faulty, log in crash_points(source, tmp_path, retention_ms):
        try:
            retain(log, NOW_MS)
        except StorageError:
            assert faulty.has_failed
        if seed is not None:
            sim.crash(random.Random(f"{seed}-{len(faulty.history)}"))
        with open_it(path, UNSYNCED) as again:
            seen.add(again.log_start_offset)
            check(again, expected, starts)
        if not faulty.has_failed:
            with open_it(path, UNSYNCED) as again:
                assert again.log_start_offset == starts[-1]
    assert {0, starts[-1]} <= seen


@pytest.mark.slow
def test_a_disk_that_fails_once(made: tuple[Path, Expected], tmp_path: Path) -> None:
    """The log says so and refuses writes; opened again, it is as before or begins later."""
    source, expected = made
    outcomes = set()
    for path, _, faulty, log in crash_points(source, tmp_path, 0):
        assert faulty.fault is not None
        faulty.fault = Fault(faulty.fault.at)
        try:
            retain(log, NOW_MS)
        except StorageError:
            pass
        else:
            continue
        outcomes.add(log.is_usable)
        if log.is_usable:  # nothing but the roll has failed
            assert log.log_start_offset == 0
        else:
            with pytest.raises(LogOfflineError):
                log.append(batch(NOW_MS))
        list(log.read())
        log.close()
        with open_it(path, UNSYNCED) as again:
            check(again, expected, [0, 3, 7, 11, 16])
    assert outcomes == {True, False}
