"""Log directories that belong together: opening only some of them for writing."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from stratalog.bulk.row_staging import StagingOptions
from stratalog.bulk.target import Target
from stratalog.commits.journal import JOURNAL_FILE
from stratalog.commits.staged import StagedCommit
from stratalog.errors import InconsistentLogDirsError, MissingLogDirsError, StratalogError
from stratalog.format.murmur import partition_for_key
from stratalog.log.reader import IsolationLevel
from stratalog.partitions.saved_state import STATE_FILE
from stratalog.storage.disk import Disk
from stratalog.storage.staged_names import parse_staged_name
from tests.commits import staging
from tests.disks import Fault, FaultyDisk, SimulatedDisk
from tests.opening import UNSYNCED, Clock, kill, open_logs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.log_dir import LogDir

HOURS_MS = 5 * 60 * 60 * 1000


@pytest.fixture
def dirs(tmp_path: Path) -> list[Path]:
    """Two directories with two partitions of a topic in each."""
    dirs = [tmp_path / "1", tmp_path / "2"]
    with open_logs(*dirs) as logs:
        logs.create_topic("orders", 4)
        for number in range(40):
            logs.append("orders", b"v%d" % number, key=b"k%d" % number)
    return dirs


def content_of(path: Path) -> dict[str, bytes]:
    """All files but the lock."""
    files = (file for file in path.rglob("*") if file.is_file() and file.name != ".lock")
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def committed(logs: LogDir, topic: str = "orders") -> list[bytes]:
    return sorted(
        record.value or b""
        for log in logs.partitions_of(topic)
        for record in log.read(isolation=IsolationLevel.READ_COMMITTED)
    )


# -- what is a set


@pytest.mark.parametrize("given", [0, 1])
def test_a_part_of_a_set_is_refused_and_not_changed(dirs: list[Path], given: int) -> None:
    before = content_of(dirs[given])
    with pytest.raises(MissingLogDirsError, match="offline") as caught:
        open_logs(dirs[given])
    assert caught.value.missing == (str(dirs[1 - given]),)
    assert str(dirs[1 - given]) in str(caught.value)
    assert content_of(dirs[given]) == before


def test_tasks_that_stage_rows_are_refused_too(dirs: list[Path]) -> None:
    with pytest.raises(MissingLogDirsError):
        Target((dirs[0],)).find("orders")


def test_directories_may_be_moved_and_given_in_any_order(dirs: list[Path]) -> None:
    moved = dirs[0].with_name("moved")
    dirs[0].rename(moved)
    with open_logs(dirs[1], moved) as logs:
        assert len(committed(logs)) == 40
    with pytest.raises(MissingLogDirsError) as caught:
        open_logs(dirs[1])
    assert caught.value.missing == (str(moved),)


def test_a_directory_may_be_added(dirs: list[Path]) -> None:
    third = dirs[0].with_name("3")
    open_logs(*dirs, third).close()
    for part in ([dirs[0]], dirs, [dirs[1], third]):
        with pytest.raises(MissingLogDirsError):
            open_logs(*part)
    open_logs(third, *dirs).close()


def test_a_single_directory_has_no_set(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 1)
    assert "dirs" not in json.loads((tmp_path / STATE_FILE).read_bytes())


def test_kafkas_directory_id_is_used(tmp_path: Path) -> None:
    dirs = [tmp_path / "1", tmp_path / "2"]
    ids = ["VccFXMMcQ9OJvlEVWSLLuA", "M4iGeErFSCi1ys_xxX2xkg"]
    for path, directory_id in zip(dirs, ids, strict=True):
        path.mkdir()
        (path / "meta.properties").write_text(
            f"version=1\ncluster.id=c\nnode.id=1\ndirectory.id={directory_id}\n"
        )
    open_logs(*dirs).close()
    for path, directory_id in zip(dirs, ids, strict=True):
        state = json.loads((path / STATE_FILE).read_bytes())
        assert state["dir_id"] == directory_id
        assert sorted(state["dirs"]) == sorted(ids)


def test_a_state_file_from_before_there_were_sets(dirs: list[Path]) -> None:
    for path in dirs:
        state = json.loads((path / STATE_FILE).read_bytes())
        for name in ("dir_id", "dirs", "partition_counts"):
            del state[name]
        (path / STATE_FILE).write_text(json.dumps(state))
    open_logs(dirs[0]).close()
    open_logs(*dirs).close()
    with pytest.raises(MissingLogDirsError):
        open_logs(dirs[0])


def test_a_copy_of_a_directory_is_not_another_one(dirs: list[Path]) -> None:
    copy = dirs[0].with_name("copy")
    copy.mkdir()
    shutil.copy(dirs[0] / STATE_FILE, copy)
    with pytest.raises(InconsistentLogDirsError, match="same directory id"):
        open_logs(*dirs, copy)


# -- offline


def test_keys_keep_their_partitions_while_a_directory_is_offline(dirs: list[Path]) -> None:
    with open_logs(dirs[0], missing_dirs="offline") as logs:
        here = logs.topic("orders").partitions
        assert (len(here), logs.topic("orders").partition_count) == (2, 4)
        assert logs.missing_dirs == [dirs[1]]
        for number in range(40):
            key = b"k%d" % number
            if partition_for_key(key, 4) in here:
                appended = logs.append("orders", b"new", key=key)
                assert appended.partition == partition_for_key(key, 4)
            else:
                with pytest.raises(MissingLogDirsError, match="use partition orders-"):
                    logs.append("orders", b"new", key=key)
        for _ in range(10):
            assert logs.append("orders", b"any").partition in here
    open_logs(*dirs).close()


def test_nothing_is_created_or_deleted_while_a_directory_is_offline(dirs: list[Path]) -> None:
    with open_logs(*dirs) as logs:
        logs.create_topic("elsewhere", 1)
        [path] = [log.path.parent for log in logs.partitions_of("elsewhere")]
    [other] = set(dirs) - {path}
    with open_logs(other, missing_dirs="offline") as logs:
        with pytest.raises(MissingLogDirsError):
            logs.append("elsewhere", b"x")  # would create it a second time
        with pytest.raises(MissingLogDirsError):
            logs.create_topic("new")
        with pytest.raises(MissingLogDirsError):
            logs.add_partitions("orders", 5)
        with pytest.raises(MissingLogDirsError):
            logs.delete_topic("orders")
    with open_logs(*dirs) as logs:
        assert {name: info.partition_count for name, info in logs.topics.items()} == {
            "elsewhere": 1,
            "orders": 4,
        }


def test_settings_that_were_changed_offline_stand(dirs: list[Path]) -> None:
    with open_logs(dirs[1], missing_dirs="offline") as logs:
        logs.alter_config("orders", {"retention.ms": 7})
    with open_logs(*dirs) as logs:
        assert logs.topic("orders").overrides == {"retention.ms": "7"}


def decided_commits(dirs: list[Path], scratch: Path) -> Iterator[tuple[list[Path], int]]:
    """The directories after a commit that was interrupted at any call once it was decided, and how
    many records it has."""
    for at in itertools.count():
        copies = [scratch / str(at) / path.name for path in dirs]
        for path, copy in zip(dirs, copies, strict=True):
            shutil.copytree(path, copy)
        commit = staging.stage_tasks(copies, tasks=1, count=8)
        faulty = FaultyDisk(UNSYNCED)
        logs = staging.open_logs(*copies, disk=faulty.disk)
        faulty.fault = Fault(len(faulty.history) + 1 + at, is_lasting=True)
        with suppress(StratalogError):
            logs.commits.commit(commit)
            return
        kill(logs)
        if (copies[0] / JOURNAL_FILE).exists():
            yield copies, commit.record_count
        shutil.rmtree(scratch / str(at))


@pytest.mark.slow
def test_staged_files_of_a_journal_elsewhere_are_not_swept(
    dirs: list[Path], tmp_path: Path
) -> None:
    """The journal is in the first directory, some of its runs are in the second."""
    count = 0
    for copies, records in decided_commits(dirs, tmp_path / "crashed"):
        staged = [path for path in copies[1].rglob("*") if parse_staged_name(path.name)]
        for path in staged:
            os.utime(path, (1, 1))
        with open_logs(copies[1], missing_dirs="offline", disk=Disk(UNSYNCED)) as logs:
            assert logs.commits.sweep() == 0
            with pytest.raises(MissingLogDirsError):
                logs.commits.commit(StagedCommit((), staging.JOB, 7))
        assert all(path.exists() for path in staged)
        count += bool(staged)
        with open_logs(*copies, disk=Disk(UNSYNCED)) as logs:
            assert len(committed(logs)) == 40 + records
    assert count > 3


def test_what_a_journal_elsewhere_may_still_need_is_not_compacted(dirs: list[Path]) -> None:
    """Compaction would remove what proves that a run is installed."""
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    with open_logs(*dirs) as logs:
        logs.create_topic("table", 2, config={**config, "segment.bytes": "1048576"})
        for _ in range(30):
            for partition in range(2):
                logs.append("table", b"v" * 90, key=b"k", partition=partition)
        for log in logs.partitions_of("table"):
            log.roll()
        for partition in range(2):
            logs.append("table", b"last", key=b"k", partition=partition)
    (directory,) = dirs[1].glob("table-*")
    staging.stage(dirs, [staging.rows(0, 40)], terms=StagingOptions("table"))
    staged = [path for path in directory.iterdir() if parse_staged_name(path.name)]
    assert staged

    def records_after_compaction() -> int:
        with open_logs(dirs[1], missing_dirs="offline") as logs:
            logs.maintenance.run_once()
            return sum(1 for _ in logs.partition("table", int(directory.name[-1])).read())

    assert records_after_compaction() == 31
    for path in staged:
        path.unlink()
    assert records_after_compaction() < 31


def test_producer_ids_are_not_handed_out_twice(dirs: list[Path]) -> None:
    """The copy of the state in the second directory is one write behind."""
    old = (dirs[1] / STATE_FILE).read_bytes()
    logs = open_logs(*dirs)
    first = logs.transactional_producer("a").identity.producer_id
    kill(logs)
    (dirs[1] / STATE_FILE).write_bytes(old)
    with open_logs(dirs[1], missing_dirs="offline") as logs:
        assert logs._producer_ids.take() > first


# -- forget


def test_a_lost_directory_is_forgotten(dirs: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    with open_logs(*dirs) as logs, logs.transaction("shop") as txn:
        for partition in range(4):
            txn.append("orders", b"x", partition=partition)
    lost = dirs[1].with_name("lost")
    dirs[1].rename(lost)
    with open_logs(dirs[0], missing_dirs="forget") as logs:
        assert "partitions of topic 'orders' are lost" in caplog.text
        assert logs.topic("orders").partitions == (0, 1, 2, 3)
        values = committed(logs)
        assert 0 < len(values) < 44
        logs.append("orders", b"new", key=b"k1")
        with logs.transaction("shop") as txn:
            for partition in range(4):
                txn.append("orders", b"y", partition=partition)
        assert len(committed(logs)) == len(values) + 5
    open_logs(dirs[0]).close()
    with pytest.raises(InconsistentLogDirsError, match="declared lost"):
        open_logs(dirs[0], lost)
    with pytest.raises(InconsistentLogDirsError, match=r"is in both|declared lost"):
        open_logs(lost, dirs[0])


@pytest.mark.slow
def test_of_a_decided_commit_the_rest_is_finished(dirs: list[Path], tmp_path: Path) -> None:
    count = 0
    for copies, records in decided_commits(dirs, tmp_path / "crashed"):
        shutil.copytree(copies[0], tmp_path / "rest")
        with open_logs(*copies, disk=Disk(UNSYNCED)) as logs:
            expected = sum(
                log.log_end_offset
                for log in logs.partitions_of("orders")
                if log.path.parent == copies[0]
            )
        with open_logs(tmp_path / "rest", missing_dirs="forget", disk=Disk(UNSYNCED)) as logs:
            assert len(committed(logs)) == expected
            assert not (tmp_path / "rest" / JOURNAL_FILE).exists()
            after = staging.stage_tasks([tmp_path / "rest"], number=1)
            assert logs.commits.commit(after).record_count == after.record_count
        count += records
        shutil.rmtree(tmp_path / "rest")
    assert count


# -- crashes

BEFORE, DURING = b"before", b"during"


def transact(logs: LogDir, value: bytes) -> None:
    with logs.transaction("shop", timeout_ms=60_000) as txn:
        for partition in range(2):
            txn.append("orders", value, partition=partition)


def prepare(dirs: list[Path], disk: Disk) -> None:
    with open_logs(*dirs, disk=disk) as logs:
        logs.create_topic("orders", 2)
        transact(logs, BEFORE)


def check_all_or_nothing(logs: LogDir, *, was_acknowledged: bool) -> None:
    values = [
        [record.value for record in log.read(isolation=IsolationLevel.READ_COMMITTED)]
        for log in logs.partitions_of("orders")
    ]
    assert values[0] == values[1]
    assert values[0] == [BEFORE, DURING] or (not was_acknowledged and values[0] == [BEFORE])
    assert logs.open_transactions() == []
    for log in logs.partitions_of("orders"):
        assert log.last_stable_offset == log.log_end_offset


@pytest.mark.slow
@pytest.mark.parametrize("order", [(0,), (1,), (0, 1), (1, 0)])
def test_a_transaction_over_two_directories_of_which_one_is_opened_first(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    """Interrupted at every call; then the directories are opened one by one, hours later."""
    template = [tmp_path / "template" / "1", tmp_path / "template" / "2"]
    prepare(template, Disk(UNSYNCED))
    probe = [tmp_path / "probe" / "1", tmp_path / "probe" / "2"]
    shutil.copytree(tmp_path / "template", tmp_path / "probe")
    counting = FaultyDisk(UNSYNCED)
    logs = open_logs(*probe, disk=counting.disk)
    start = len(counting.history)
    transact(logs, DURING)
    end = len(counting.history)
    kill(logs)
    assert end > start + 5
    for at in range(start + 1, end + 2):
        base = tmp_path / str(at)
        shutil.copytree(tmp_path / "template", base)
        dirs = [base / "1", base / "2"]
        clock = Clock()
        faulty = FaultyDisk(UNSYNCED, Fault(at, is_lasting=True, written=0.5))
        logs = open_logs(*dirs, disk=faulty.disk, clock=clock)
        was_acknowledged = False
        with suppress(StratalogError):
            transact(logs, DURING)
            was_acknowledged = True
        kill(logs)
        clock.advance(HOURS_MS)
        for number in order:
            with pytest.raises(MissingLogDirsError):
                open_logs(dirs[number], clock=clock, disk=Disk(UNSYNCED))
            with open_logs(
                dirs[number], clock=clock, disk=Disk(UNSYNCED), missing_dirs="offline"
            ) as logs:
                logs.run_pending_tasks()
        with open_logs(*dirs, clock=clock, disk=Disk(UNSYNCED)) as logs:
            check_all_or_nothing(logs, was_acknowledged=was_acknowledged)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_power_loss_while_a_set_is_recorded(tmp_path: Path, seed: int) -> None:
    """Whatever the disk forgets, all together open again; and once they were open, no part does."""
    rng = random.Random(f"dir sets {seed}")
    simulated = SimulatedDisk(tmp_path)
    dirs = [tmp_path / "1", tmp_path / "2", tmp_path / "3"]
    with open_logs(*dirs[:2], disk=simulated.disk) as logs:
        logs.create_topic("orders", 2)
    was_opened = False
    faulty = FaultyDisk(simulated.calls, Fault(rng.randint(1, 60), is_lasting=True))
    with suppress(StratalogError):
        logs = open_logs(*dirs, disk=faulty.disk)
        was_opened = True
        with suppress(StratalogError):
            logs.create_topic("more", 5)
        kill(logs)
    simulated.crash(rng)
    if was_opened:
        for part in (dirs[:2], dirs[1:], dirs[:1], dirs[2:]):
            with pytest.raises(MissingLogDirsError):
                open_logs(*part, disk=simulated.disk)
    with open_logs(*dirs, disk=simulated.disk) as logs:
        assert logs.topic("orders").partitions == (0, 1)
        logs.append("orders", b"x")
