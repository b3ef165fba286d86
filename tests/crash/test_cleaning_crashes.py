"""Compaction stopped at each of its calls to the system, by a kill, a loss of power or an error.

Whatever is left, each group of segments is the old one or the new one, every live key has its last
value, no aborted record is shown, and cleaning again comes to where it would have come.
"""

from __future__ import annotations

import errno
import random
import shutil
from typing import TYPE_CHECKING, NamedTuple

import pytest

from stratalog.errors import DiskFullError, FsyncError, LogOfflineError, StorageError
from stratalog.log.partition_view import PartitionView
from stratalog.log.reader import IsolationLevel
from stratalog.maintenance.recovery import LoadPoint
from tests.crash.cleaned_history import (
    RETENTION_MS,
    START_MS,
    UNSYNCED,
    Expected,
    check_content,
    clean,
    expected_of,
    open_at,
    write_history,
)
from tests.disks import Fault, FaultyDisk, SimulatedDisk
from tests.effort import IS_LONG, scaled
from tests.log.building import batches_of
from tests.model.index_checks import check_indexes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.format.record import Record
    from stratalog.log.partition_log import PartitionLog

CALLS_MAX = 300
SEEDS = range(scaled(1))


class Round(NamedTuple):
    """A log that is about to be cleaned, and what comes of that if nothing happens."""

    before: Path
    after: Path
    expected: Expected
    checkpoint: int | None
    now_ms: int
    groups: tuple[tuple[int, ...], ...]
    records: list[Record]
    """Afterwards."""


@pytest.fixture(scope="module")
def rounds(tmp_path_factory: pytest.TempPathFactory) -> list[Round]:
    """One of dirt; one of more dirt, once tombstones and markers may go."""
    root = tmp_path_factory.mktemp("rounds")
    found: list[Round] = []
    checkpoint, now_ms, first = None, START_MS + 1000, 0
    before = root / "0" / "before" / "t-0"
    before.parent.mkdir(parents=True)
    for number in range(2):
        with open_at(before, UNSYNCED, now_ms) as log:
            write_history(log, first=first, segments=4 if number == 0 else 2)
            first += 4 if number == 0 else 2
            expected = expected_of(log)
        after = shutil.copytree(before, root / f"{number}" / "after" / "t-0")
        with open_at(after, UNSYNCED, now_ms, LoadPoint(was_clean=True)) as log:
            result = clean(log, checkpoint, now_ms)
            log.maintenance.remove_discarded(0, at_once=True)
            records = list(log.read())
        found.append(Round(before, after, expected, checkpoint, now_ms, result.groups, records))
        checkpoint, now_ms = result.end_offset, now_ms + RETENTION_MS
        before = shutil.copytree(after, root / f"{number + 1}" / "before" / "t-0")
    assert all(len(done.groups) > 1 for done in found)
    assert max(len(group) for done in found for group in done.groups) > 1
    sizes = [sum(f.stat().st_size for f in done.after.glob("*.log")) for done in found]
    assert sizes[0] < sum(f.stat().st_size for f in found[0].before.glob("*.log"))
    return found


def crash_points(
    done: Round, root: Path
) -> Iterator[tuple[Path, SimulatedDisk, FaultyDisk, PartitionLog]]:
    """A fresh log for each call that cleaning makes, with a disk that fails from there on."""
    for at in range(1, CALLS_MAX):
        directory = root / f"{at}"
        path = directory / "t-0"
        shutil.copytree(done.before, path)
        sim = SimulatedDisk(directory)
        faulty = FaultyDisk(sim.calls)
        point = LoadPoint(0, done.expected.end, was_clean=True)
        log = open_at(path, faulty.disk, done.now_ms, point)
        faulty.fault = Fault(len(faulty.history) + at, is_lasting=True)
        yield path, sim, faulty, log
        shutil.rmtree(directory)
        if not faulty.has_failed:
            return
    raise AssertionError("cleaning never comes to its end")


def check_groups(path: Path, done: Round) -> list[str]:
    """Of each group, whether it is the old one or the new one."""
    states = []
    for group in done.groups:
        old = {base: log_at(done.before, base) for base in group}
        new = log_at(done.after, group[0])
        found = {base: log_at(path, base) for base in group}
        found = {base: raw for base, raw in found.items() if raw is not None}
        if found == old:
            states.append("old")
            continue
        assert found[group[0]] == new
        # Those that begin behind the last record of the new one may outlive a loss of power: a
        # loader cannot tell that they were part of the group. What they have is superseded.
        end = batches_of(new)[-1].next_offset if new else group[0]
        left = {base: raw for base, raw in found.items() if base != group[0]}
        assert all(base >= end and raw == old[base] for base, raw in left.items())
        states.append("new and left over" if left else "new")
    return states


def log_at(path: Path, base_offset: int) -> bytes | None:
    file = path / f"{base_offset:020d}.log"
    return file.read_bytes() if file.exists() else None


def check(path: Path, done: Round, point: LoadPoint, *, cleans: bool = True) -> list[str]:
    """What the next opening finds, and that cleaning can be done again."""
    with open_at(path, UNSYNCED, done.now_ms, point) as log:
        assert not [f for f in path.iterdir() if f.suffix in {".cleaned", ".swap", ".deleted"}]
        states = check_groups(path, done)
        check_content(log, done.expected)
        check_indexes(path)
        committed = list(log.read(isolation=IsolationLevel.READ_COMMITTED))
        with PartitionView(path) as view:
            assert list(view.read(isolation=IsolationLevel.READ_COMMITTED)) == committed
        if not cleans:
            return states
        clean(log, done.checkpoint, done.now_ms)
        log.maintenance.remove_discarded(0, at_once=True)
        check_content(log, done.expected)
        assert list(log.read()) == done.records
        check_indexes(path)
    with open_at(path, UNSYNCED, done.now_ms) as log:
        check_content(log, done.expected)
        assert list(log.read()) == done.records
    return states


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("seed", [None, *SEEDS])
def test_cleaning_is_stopped_anywhere(
    rounds: list[Round], tmp_path: Path, number: int, seed: int | None
) -> None:
    """By default, what a kill and what a loss of power leaves is cleaned again by turns."""
    done = rounds[number]
    seen = set()
    for path, sim, faulty, log in crash_points(done, tmp_path):
        try:
            clean(log, done.checkpoint, done.now_ms)
        except StorageError:
            assert faulty.has_failed
        calls = len(faulty.history)
        if seed is not None:
            sim.crash(random.Random(f"{seed}-{calls}"))
        point = LoadPoint(0, 0 if calls % 2 else done.expected.end)
        try:
            is_turn = (calls % 4 < 2) == (seed is None)  # of four calls, two with each point
            states = check(path, done, point, cleans=is_turn or IS_LONG)
        except BaseException as error:
            error.add_note(f"stopped at call {calls}: {faulty.history[-1]}")
            raise
        seen.add(tuple(states))
        if not faulty.has_failed:
            assert set(states) <= {"new", "new and left over"}
    assert ("old",) * len(done.groups) in seen
    assert ("new", *("old",) * (len(done.groups) - 1)) in seen
    assert ("new",) * len(done.groups) in seen


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_every_call_fails_once(rounds: list[Round], tmp_path: Path, number: int) -> None:
    """The error is typed. While nothing was renamed the log goes on, else it wants to be opened
    again; nothing is lost either way."""
    done = rounds[0]
    outcomes = set()
    for path, _, faulty, log in crash_points(done, tmp_path):
        assert faulty.fault is not None
        faulty.fault = Fault(faulty.fault.at, number, written=0.4)
        failure: StorageError | None = None
        try:
            clean(log, done.checkpoint, done.now_ms)
        except StorageError as error:
            failure = error
        if failure is None:
            faulty.fault = None  # it is past the end
        else:
            if not isinstance(failure, FsyncError):  # which says the same of any failed fsync
                assert isinstance(failure, DiskFullError) == (number == errno.ENOSPC)
            assert path in {failure.path, failure.path.parent}
        check_content(log, done.expected)  # whatever has happened, readers go on
        outcomes.add(log.is_usable)
        if log.is_usable:
            go_on(log, done)
        else:
            with pytest.raises(LogOfflineError):
                clean(log, done.checkpoint, done.now_ms)
            log.close()
            check(path, done, LoadPoint())
    assert outcomes == {True, False}


def go_on(log: PartitionLog, done: Round) -> None:
    """Clean in the same process."""
    clean(log, done.checkpoint, done.now_ms)
    check_content(log, done.expected)
    assert list(log.read()) == done.records
    names = {file.suffix for file in log.path.iterdir()}
    assert not names & {".cleaned", ".swap"}
    log.close()
    check_indexes(log.path, is_closed=True)
    with open_at(log.path, UNSYNCED, done.now_ms) as again:
        check_content(again, done.expected)
