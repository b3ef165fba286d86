"""Large runs become segments of their own: what is in the directory then, and when they do not."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from stratalog.commits import install
from stratalog.commits.journal import JOURNAL_FILE, JournalFile, plan_commit
from stratalog.commits.staged import StagedCommit
from stratalog.errors import CommitError, CommitPendingError
from stratalog.maintenance.verify.directory import verify_partition
from stratalog.storage.disk import Disk, SystemCalls
from tests.commits.staging import (
    JOB,
    as_producers_send,
    batches_of,
    check_once,
    contents,
    open_logs,
    rows,
    stage,
    stage_tasks,
    values_in,
)
from tests.commits.test_commit import CONFIGS
from tests.opening import NOW_MS, UNSYNCED, kill

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.log_dir import LogDir

ONCE = {name: config for name, config in CONFIGS.items() if "rolls" not in name}
"""Where a run fits into a segment."""


@pytest.fixture(autouse=True)
def _every_run_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "SEGMENT_BYTES_MIN", 1)


def append_in_segments(logs: LogDir, commit: StagedCommit, runs: dict[str, bytes]) -> None:
    """What a commit has to be equal to: single appends, with a roll before each run."""
    for run in sorted(commit.runs, key=lambda run: run.task):
        log = logs.partition(*run.topic_partition)
        log.roll()
        for batch in batches_of(runs[f"{run.topic_partition}/{run.name}"]):
            log.append(batch)


@pytest.mark.parametrize("segment_bytes_min", [1, 1 << 20])
@pytest.mark.parametrize("syncs", [True, False])
def test_every_staged_file_is_synced_before_the_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segment_bytes_min: int, syncs: bool
) -> None:
    """By its task or by the commit; a file that becomes a segment, after its offsets are written
    and not again."""
    monkeypatch.setattr(install, "SEGMENT_BYTES_MIN", segment_bytes_min)
    calls: list[tuple[str, int]] = []

    def fsync(fd: int) -> None:
        calls.append(("fsync", os.fstat(fd).st_ino))

    def rename(source: Path, target: Path) -> None:
        calls.append((target.name, 0))
        source.replace(target)

    disk = Disk(replace(UNSYNCED, fsync=fsync, rename=rename))
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 2)
    commit = stage_tasks([tmp_path], 2, disk=disk, syncs=syncs)
    files = {path.stat().st_ino for path in tmp_path.rglob("*.staged")}
    assert len(files) == len(commit.runs) == 4
    by_tasks = [inode for _, inode in calls if inode in files]
    assert sorted(by_tasks) == (sorted(files) if syncs else [])
    calls.clear()
    with open_logs(tmp_path, disk=disk) as logs:
        logs.commits.commit(commit)
    decision = calls.index((JOURNAL_FILE, 0))
    before = sorted(inode for _, inode in calls[:decision] if inode in files)
    is_large = segment_bytes_min == 1
    assert before == (sorted(files) if is_large or not syncs else [])
    if is_large:  # the last segment of a log is synced once more when the log is closed
        later = [inode for _, inode in calls[decision:] if inode in files]
        assert len(later) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("config", ONCE.values(), ids=list(ONCE))
@pytest.mark.parametrize("is_empty", [True, False])
def test_files_are_those_of_appends_that_rolled(
    tmp_path: Path, config: dict[str, object], is_empty: bool
) -> None:
    """Byte for byte, all files."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    with open_logs(ours) as logs:
        logs.create_topic("orders", 3, config=config)
        for number in range(0 if is_empty else 5):
            logs.append("orders", b"before %d" % number, partition=number % 2)
    shutil.copytree(ours, theirs)
    for number in range(2):
        commit = stage_tasks([ours], number=number)
        staged = {path: data for path, data in contents(ours).items() if path.endswith(".staged")}
        if "message.timestamp.type" in config:
            staged = as_producers_send(staged)
        with open_logs(ours) as logs:
            logs.commits.commit(commit)
        with open_logs(theirs) as logs:
            append_in_segments(logs, commit, staged)
    mine, expected = contents(ours), contents(theirs)
    mine.pop("stratalog-state.json")  # knows the commits
    expected.pop("stratalog-state.json")
    assert mine.keys() == expected.keys()
    assert [name for name in mine if mine[name] != expected[name]] == []
    assert sum(name.endswith(".log") for name in mine) == 18 + (0 if is_empty else 2)
    assert all(path.stat().st_nlink == 1 for path in ours.rglob("*.log"))
    for number in range(3):
        assert not list(verify_partition(ours / f"orders-{number}").findings)


def test_the_file_is_not_copied(tmp_path: Path) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 1)
    commit = StagedCommit(stage([tmp_path], [rows(0, 10)]), JOB)
    inode = (tmp_path / "orders-0" / commit.runs[0].name).stat().st_ino
    with open_logs(tmp_path) as logs:
        logs.commits.commit(commit)
        logs.append("orders", b"after")
        log = logs.partition("orders", 0)
        assert [record.offset for record in log.read()] == list(range(11))
        assert log.recovery_point == 10
    assert (tmp_path / "orders-0" / "00000000000000000000.log").stat().st_ino == inode
    assert len(list(tmp_path.rglob("*.log"))) == 2
    assert values_in([tmp_path])[0] == [b"%06d" % number for number in range(10)] + [b"after"]


ROLLS = {
    "by size": ({"segment.bytes": 400}, 0),
    "by a full index": ({"segment.index.bytes": 40, "index.interval.bytes": 100}, 0),
    "by time": ({"segment.ms": 1000}, 40),
}


@pytest.mark.parametrize(("config", "step_ms"), ROLLS.values(), ids=list(ROLLS))
def test_a_run_that_appends_would_have_divided(
    tmp_path: Path, config: dict[str, object], step_ms: int
) -> None:
    """It is appended, as small runs are."""
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 1, config=config)
    times = pa.array([NOW_MS - 9000 + step_ms * n for n in range(200)], pa.timestamp("ms"))
    commit = StagedCommit(stage([tmp_path], [rows(0, 200, timestamp=times)]), JOB)
    with open_logs(tmp_path) as logs:
        logs.commits.commit(commit)
    assert len(list(tmp_path.rglob("*.log"))) > 2
    assert values_in([tmp_path])[0] == [b"%06d" % number for number in range(200)]


@pytest.mark.parametrize("why", ["mode", "links", "second name"])
def test_a_file_that_cannot_become_a_segment(tmp_path: Path, why: str) -> None:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 1)
    commit = StagedCommit(stage([tmp_path], [rows(0, 10)]), JOB)
    path = tmp_path / "orders-0" / commit.runs[0].name
    calls = UNSYNCED
    if why == "mode":
        path.chmod(0o600)
    elif why == "second name":
        (tmp_path / "a backup").hardlink_to(path)
    else:

        def link(_source: Path, _target: Path) -> None:
            raise PermissionError(1, "Operation not permitted")

        calls = SystemCalls(fsync=lambda _fd: None, link=link)
    before = path.read_bytes()
    inode = path.stat().st_ino
    with open_logs(tmp_path, disk=Disk(calls)) as logs:
        logs.commits.commit(commit)
    (log,) = tmp_path.rglob("*.log")
    assert log.stat().st_ino != inode
    assert values_in([tmp_path])[0] == [b"%06d" % number for number in range(10)]
    if why == "second name":
        assert (tmp_path / "a backup").read_bytes() == before


def test_a_broker_appends_to_the_segment_before_it_is_finished(tmp_path: Path) -> None:
    """The staged name is still there, and so its file grows, too."""
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 1)
    commit = stage_tasks([tmp_path], 3, 40)

    def rename(source: Path, target: Path) -> None:
        if target.name == "stratalog-commit.json" and target.exists():
            raise OSError(5, "Input/output error")  # no progress is recorded
        source.replace(target)

    logs = open_logs(tmp_path, disk=Disk(SystemCalls(fsync=lambda _fd: None, rename=rename)))
    with pytest.raises(CommitPendingError):
        logs.commits.commit(commit)
    kill(logs)
    directory = tmp_path / "orders-0"
    last = sorted(directory.glob("*.log"))[-1]
    assert last.stat().st_nlink == 2
    with last.open("ab") as file:
        data = bytearray(next(batches_of(last.read_bytes())))
        data[:8] = (120).to_bytes(8, "big")
        file.write(data)
    values = values_in([tmp_path])[0]
    assert len(values) > 120
    check_once({0: values[:120]}, 120)
    assert not list(tmp_path.rglob("*.staged"))


def test_resuming_leaves_files_as_they_are(tmp_path: Path) -> None:
    """What was decided by somebody else may be in the log under another name: it is appended."""
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 1)
    commit = stage_tasks([tmp_path], 3, 40)
    ends = {run.topic_partition: 0 for run in commit.runs}
    JournalFile(Disk(UNSYNCED), [tmp_path]).write(plan_commit(commit, ends, 1))
    check_once(values_in([tmp_path]), 120)
    assert len(list(tmp_path.rglob("*.log"))) == 1


def test_the_log_grows_before_the_decision(tmp_path: Path) -> None:
    """Somebody appends between the check and the decision: the runs get other offsets."""
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 1)
    commit = stage_tasks([tmp_path], 3, 40)

    def rename(source: Path, target: Path) -> None:
        if target.name == "stratalog-commit.json" and not target.exists():
            logs.append("orders", b"between")
        source.replace(target)

    logs = open_logs(tmp_path, disk=Disk(SystemCalls(fsync=lambda _fd: None, rename=rename)))
    with logs:
        logs.commits.commit(commit)
        offsets = [record.offset for record in logs.partition("orders", 0).read()]
    assert offsets == list(range(121))
    assert len(list(tmp_path.rglob("*.log"))) == 4  # each run is a segment all the same
    values = values_in([tmp_path])[0]
    assert values[0] == b"between"
    check_once({0: values[1:]}, 120)
    assert not list(verify_partition(tmp_path / "orders-0").findings)


def test_a_refused_commit_leaves_good_runs(tmp_path: Path) -> None:
    """They can be committed later, to another place in the log."""
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 1)
    commit = stage_tasks([tmp_path], 3, 40)
    path = tmp_path / "orders-0" / commit.runs[1].name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with open_logs(tmp_path) as logs:
        with pytest.raises(CommitError, match="CRC"):
            logs.commits.commit(commit)
        path.write_bytes(whole)
        logs.append("orders", b"between")
        logs.commits.commit(commit)
        offsets = [record.offset for record in logs.partition("orders", 0).read()]
    assert offsets == list(range(121))
    check_once({0: values_in([tmp_path])[0][1:]}, 120)
