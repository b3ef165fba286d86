"""A commit that is cut short between any two changes of the disk: nothing of it, or all of it."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from stratalog.commits import install
from stratalog.commits.journal import JOURNAL_FILE
from stratalog.config import LogConfig
from stratalog.errors import StratalogError
from stratalog.format.names import TopicPartition
from stratalog.format.record import Record, encode_batch
from stratalog.maintenance.recovery import open_log
from stratalog.storage.disk import Disk
from tests.commits.staging import (
    check_once,
    int_of,
    open_logs,
    stage_tasks,
    values_in,
)
from tests.disks import Fault, FaultyDisk, SimulatedDisk
from tests.effort import scaled
from tests.opening import NOW_MS, UNSYNCED, Clock, kill

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.commits.staged import StagedCommit

PARTITIONS = 2
BEFORE = 10
TASKS, COUNT = 2, 15
EXPECTED = TASKS * COUNT
CONFIG = {"segment.bytes": 700, "index.interval.bytes": 100}
_STAGED: dict[Path, StagedCommit] = {}
"""By the directory that the runs were staged in."""


def prepare(path: Path, disk: Disk) -> None:
    with open_logs(path, disk=disk) as logs:
        logs.create_topic("orders", PARTITIONS, config=CONFIG)
        for number in range(BEFORE):
            logs.append("orders", b"before %d" % number, partition=number % PARTITIONS)


def prepared(path: Path) -> Path:
    """A fresh directory with the same content each time."""
    template = path.parent / "template"
    if not template.exists():
        prepare(template, Disk(UNSYNCED))
    shutil.copytree(template, path)
    return path


def staged(path: Path, disk: Disk | None = None, *, syncs: bool = True) -> StagedCommit:
    return stage_tasks([path], TASKS, COUNT, disk=disk, syncs=syncs)


def copies_staged(path: Path, attempt: int = 1) -> StagedCommit:
    """The same, but copied from where this attempt was staged for a directory with this content."""
    template = path.parent / f"attempt {attempt}"
    if template not in _STAGED:
        shutil.copytree(path.parent / "template", template)
        _STAGED[template] = staged(template)
    for file in template.rglob("*.staged"):
        shutil.copyfile(file, path / file.relative_to(template))
    runs = []
    for run in _STAGED[template].runs:
        dirs = tuple((number, path / place.name) for number, place in run.topic.dirs)
        runs.append(replace(run, topic=replace(run.topic, dirs=dirs)))
    return replace(_STAGED[template], runs=tuple(runs))


def commit_until(path: Path, commit: StagedCommit, disk: Disk) -> bool:
    """Open, commit and close on a disk that fails somewhere; whether the commit was answered."""
    is_done = False
    with suppress(StratalogError):
        logs = open_logs(path, disk=disk)
        with suppress(StratalogError):
            logs.commits.commit(commit)
            is_done = True
            logs.close()
        kill(logs)
    return is_done


def calls_of_a_commit(path: Path) -> int:
    faulty = FaultyDisk(UNSYNCED)
    commit = copies_staged(prepared(path))
    assert commit_until(path, commit, faulty.disk)
    return len(faulty.history)


def values_of(path: Path, disk: Disk | None = None) -> dict[int, list[int]]:
    """The committed values, with what was there before checked and left out."""
    found = {}
    with open_logs(path, disk=disk) as logs:
        for log in logs.partitions_of("orders"):
            records = list(log.read())
            assert [r.offset for r in records] == list(range(log.log_end_offset))
            number = log.topic_partition.partition
            old = [r.value for r in records[: BEFORE // PARTITIONS]]
            assert old == [b"before %d" % n for n in range(BEFORE) if n % PARTITIONS == number]
            found[number] = [
                int_of(r.value) for r in records[BEFORE // PARTITIONS :] if r.key != b"foreign"
            ]
    assert not (path / JOURNAL_FILE).exists()
    return found


def check_all_or_nothing(path: Path, *, is_done: bool, disk: Disk | None = None) -> None:
    """After one open everything is decided; committing again makes it complete, and only once."""
    values = sorted(n for part in values_of(path, disk).values() for n in part)
    assert values in ([], list(range(EXPECTED)))
    assert values or not is_done
    commit = copies_staged(path, 2) if disk is None else staged(path, disk)
    with open_logs(path, disk=disk) as logs:
        assert logs.commits.commit(commit).is_replay == bool(values)
    by_partition = values_of(path, disk)
    check_once(
        {number: [b"%d" % n for n in part] for number, part in by_partition.items()},
        EXPECTED,
        TASKS,
    )
    assert not list(path.rglob("*.staged"))


@pytest.mark.slow
@pytest.mark.parametrize("segment_bytes_min", [1, install.SEGMENT_BYTES_MIN])
def test_killed_at_every_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segment_bytes_min: int
) -> None:
    """From some call on all fail, so nothing is cleaned up: the process might as well be dead.
    Runs become segments, or are appended."""
    monkeypatch.setattr(install, "SEGMENT_BYTES_MIN", segment_bytes_min)
    calls = calls_of_a_commit(tmp_path / "probe")
    assert calls > 80
    for at in range(1, calls + 1):
        path = prepared(tmp_path / str(at))
        commit = copies_staged(path)
        faulty = FaultyDisk(UNSYNCED, Fault(at, is_lasting=True, written=0.5))
        is_done = commit_until(path, commit, faulty.disk)
        check_all_or_nothing(path, is_done=is_done)


@pytest.mark.slow
def test_one_failing_call(tmp_path: Path) -> None:
    """One call fails and the process goes on: it closes the directory in good order."""
    for at in range(1, calls_of_a_commit(tmp_path / "probe") + 1):
        path = prepared(tmp_path / str(at))
        commit = copies_staged(path)
        faulty = FaultyDisk(UNSYNCED, Fault(at, written=0.5))
        with suppress(StratalogError):
            logs = open_logs(path, disk=faulty.disk)
            with suppress(StratalogError):
                logs.commits.commit(commit)
            with suppress(StratalogError):
                logs.close()
            kill(logs)
        check_all_or_nothing(path, is_done=False)


@pytest.mark.slow
def test_killed_again_while_it_is_finished(tmp_path: Path) -> None:
    """The open that finishes the commit is killed at every call, too, and so is the next."""
    path = prepared(tmp_path / "probe")
    first = calls_of_a_commit(tmp_path / "first")
    for at in range(first // 3, first, 7):
        for again in range(5, 90, 11):
            path = prepared(tmp_path / f"{at} {again}")
            commit = copies_staged(path)
            faulty = FaultyDisk(UNSYNCED, Fault(at, is_lasting=True, written=0.5))
            is_done = commit_until(path, commit, faulty.disk)
            for later in (again, again + 3):
                faulty = FaultyDisk(UNSYNCED, Fault(later, is_lasting=True, written=0.3))
                with suppress(StratalogError):
                    kill(open_logs(path, disk=faulty.disk))
            check_all_or_nothing(path, is_done=is_done)
            shutil.rmtree(path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(scaled(20)))
def test_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The disk forgets what was not synced, during the commit and again while it is finished."""
    if seed % 2:
        monkeypatch.setattr(install, "SEGMENT_BYTES_MIN", 1)
    rng = random.Random(seed)
    path = tmp_path / "logs"
    path.mkdir()
    simulated = SimulatedDisk(path)
    prepare(path, simulated.disk)
    commit = staged(path, simulated.disk, syncs=seed % 4 > 1)
    faulty = FaultyDisk(simulated.calls, Fault(rng.randrange(1, 130), is_lasting=True, written=0.5))
    is_done = commit_until(path, commit, faulty.disk)
    simulated.crash(rng)
    if rng.random() < 0.5:
        again = FaultyDisk(simulated.calls, Fault(rng.randrange(1, 90), is_lasting=True))
        with suppress(StratalogError):
            kill(open_logs(path, disk=again.disk))
        simulated.crash(rng)
    check_all_or_nothing(path, is_done=is_done, disk=simulated.disk)


def append_foreign(path: Path, value: bytes) -> None:
    """What a Kafka broker does that knows nothing of the journal: recover the log, append to it."""
    for number in range(PARTITIONS):
        directory = path / str(TopicPartition("orders", number))
        config = LogConfig.parse(CONFIG)
        with open_log(directory, config, disk=Disk(UNSYNCED), now_ms=Clock()) as log:
            log.append(encode_batch([Record(0, NOW_MS, b"foreign", value)]))
    (path / ".kafka_cleanshutdown").write_bytes(b'{"version":0,"brokerEpoch":"1"}')


@pytest.mark.slow
def test_a_broker_in_between(tmp_path: Path) -> None:
    """Killed anywhere, a broker appends, killed again while it is finished, a broker once more."""
    calls = calls_of_a_commit(tmp_path / "probe")
    for at in range(20, calls + 1, 3):
        path = prepared(tmp_path / str(at))
        commit = copies_staged(path)
        faulty = FaultyDisk(UNSYNCED, Fault(at, is_lasting=True, written=0.5))
        is_done = commit_until(path, commit, faulty.disk)
        append_foreign(path, b"1")
        faulty = FaultyDisk(UNSYNCED, Fault(at // 2, is_lasting=True, written=0.5))
        with suppress(StratalogError):
            kill(open_logs(path, disk=faulty.disk))
        append_foreign(path, b"2")
        check_all_or_nothing(path, is_done=is_done)
        with open_logs(path) as logs:
            for log in logs.partitions_of("orders"):
                foreign = [record.value for record in log.read() if record.key == b"foreign"]
                assert foreign == [b"1", b"2"]
        shutil.rmtree(path)


def test_values_in_sees_everything(tmp_path: Path) -> None:
    """The check itself can fail."""
    path = prepared(tmp_path / "logs")
    with open_logs(path) as logs:
        logs.append("orders", b"7", partition=0)
    with pytest.raises(AssertionError):
        check_all_or_nothing(path, is_done=False)
    assert b"7" in values_in([path])[0]
