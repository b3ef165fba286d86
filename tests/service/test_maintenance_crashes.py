"""A retention check of a whole log directory, stopped at each of its calls to the system."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import StratalogError
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.storage.disk import Disk
from tests.disks import Fault, FaultyDisk, SimulatedDisk
from tests.opening import NOW_MS, UNSYNCED, Clock, kill, open_logs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.log_dir import LogDir

DAY_MS = 86_400_000
AGES = {"some": [9, 8, 1], "all": [9, 8], "below": [1, 1, 1]}
STARTS = {"some": {0, 1, 2}, "all": {0, 1, 2}, "below": {0, 1, 2}}
"""Where each log may begin: one segment has one record, so that is any base offset."""
DONE = {"some": 2, "all": 2, "below": 2}
ENDS = {"some": 3, "all": 2, "below": 3}


def prepare(path: Path, disk: Disk) -> None:
    with open_logs(path, disk=disk) as logs:
        for topic, ages in AGES.items():
            logs.create_topic(topic, 1)
            log = logs.partition(topic, 0)
            for days in ages:
                log.roll()
                record = Record(0, NOW_MS - days * DAY_MS, b"k", b"v")
                log.append(encode_batch([record], BatchFields()))
        logs.delete_records("below", 0, 2)


def maintain(logs: LogDir, clock: Clock) -> None:
    """Check retention; then, when the delay is over, write checkpoints and remove files."""
    logs.maintenance.check_retention()
    clock.advance(120_000)
    logs.run_pending_tasks()


def check(logs: LogDir) -> None:
    for topic, end in ENDS.items():
        log = logs.partition(topic, 0)
        assert log.log_start_offset in STARTS[topic]
        assert log.log_end_offset == end
        assert [record.offset for record in log.read()] == list(range(log.log_start_offset, end))
        assert not [*log.path.glob("*.deleted")]
        assert logs.append(topic, b"more").offset == end


def crash_points(template: Path, tmp_path: Path) -> Iterator[int]:
    path = shutil.copytree(template, tmp_path / "probe")
    faulty, clock = FaultyDisk(UNSYNCED), Clock()
    logs = open_logs(path, disk=faulty.disk, clock=clock)
    start = len(faulty.history)
    maintain(logs, clock)
    end = len(faulty.history)
    assert {topic: logs.partition(topic, 0).log_start_offset for topic in DONE} == DONE
    assert not logs.maintenance.state().failing
    kill(logs)
    assert end > start + 20
    yield from range(start + 1, end + 1)


@pytest.fixture
def template(tmp_path: Path) -> Path:
    path = tmp_path / "template"
    prepare(path, Disk(UNSYNCED))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("is_lasting", [True, False], ids=["killed", "one failure"])
def test_stopped_at_every_call(template: Path, tmp_path: Path, is_lasting: bool) -> None:
    """One log that fails does not keep the others: with one failure these are done; unless an
    fsync failed, which takes the whole directory offline."""
    for at in crash_points(template, tmp_path):
        path = shutil.copytree(template, tmp_path / str(at))
        faulty = FaultyDisk(UNSYNCED, Fault(at, is_lasting=is_lasting, written=0.5))
        clock = Clock()
        logs = open_logs(path, disk=faulty.disk, clock=clock)
        maintain(logs, clock)  # raises nothing: it is told elsewhere
        assert faulty.has_failed
        state = logs.maintenance.state()
        failed = [p.topic_partition.topic for p in state.partitions if p.failures]
        told = [*failed, *(f for _, failures in state.directories for f in failures)]
        assert told
        if not is_lasting and faulty.history[at - 1] != "fsync":
            assert len(told) == 1
            for topic in set(DONE).difference(failed):
                assert logs.partition(topic, 0).log_start_offset == DONE[topic]
            with suppress(StratalogError):
                logs.close()
        kill(logs)
        with open_logs(path, disk=Disk(UNSYNCED), clock=clock) as logs:
            check(logs)


@pytest.mark.slow
def test_power_is_lost_at_any_call(template: Path, tmp_path: Path) -> None:
    """What a check has done stays done; what it has not is there as before."""
    points = [*crash_points(template, tmp_path)]
    for seed in range(25):
        rng = random.Random(seed)
        path = shutil.copytree(template, tmp_path / f"seed-{seed}")
        simulated = SimulatedDisk(path.parent / path.name)
        at = rng.choice([*points, points[-1] + 1])
        faulty, clock = FaultyDisk(simulated.calls, Fault(at, is_lasting=True)), Clock()
        logs = open_logs(path, disk=faulty.disk, clock=clock)
        maintain(logs, clock)
        done = {
            partition.topic_partition.topic
            for partition in logs.maintenance.state().partitions
            if partition.deleted_segments
        }
        kill(logs)
        simulated.crash(rng)
        with open_logs(path, disk=Disk(UNSYNCED), clock=clock) as logs:
            for topic in done:
                assert logs.partition(topic, 0).log_start_offset == DONE[topic], seed
            check(logs)
