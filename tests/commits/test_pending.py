"""Decided commits that are not finished: nothing of them is lost, and nobody is locked out."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from stratalog.bulk.row_staging import StagingOptions
from stratalog.commits.committer import SWEEP_INTERVAL_MS
from stratalog.commits.journal import (
    JOURNAL_FILE,
    CommitIdentity,
    Journal,
    JournalFile,
    decode_journal,
    plan_commit,
)
from stratalog.commits.staged import StagedCommit
from stratalog.config import LogConfig
from stratalog.errors import (
    CommitError,
    CommitPendingError,
    DiskFullError,
    FsyncError,
    StratalogError,
)
from stratalog.format.batch import HEADER_BYTES, BatchHeader
from stratalog.format.names import TopicPartition
from stratalog.format.record import Record, encode_batch, seal_batch
from stratalog.maintenance.recovery import open_log
from stratalog.storage.disk import Disk, SystemCalls
from tests.commits.staging import JOB, QUERY, open_logs, rows, stage, stage_tasks, values_in
from tests.disks import FaultyDisk
from tests.opening import NOW_MS, UNSYNCED, Clock, kill

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog

CONFIG = {"segment.bytes": 1000}


@pytest.fixture
def logs_dir(tmp_path: Path) -> Path:
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 1, config=CONFIG)
        for number in range(10):
            logs.append("orders", b"before %d" % number)
    return tmp_path


def decide(path: Path, commit: StagedCommit) -> Journal:
    """What is on disk when the driver is killed right after the decision."""
    with open_logs(path) as logs:
        ends = {
            run.topic_partition: logs.partition(*run.topic_partition).log_end_offset
            for run in commit.runs
        }
        journal = plan_commit(commit, ends, len(logs.paths))
        JournalFile(Disk(UNSYNCED), [path]).write(journal)
        kill(logs)
    return journal


@contextmanager
def as_a_broker(path: Path) -> Iterator[PartitionLog]:
    """The log, opened by somebody who knows nothing of the journal."""
    directory = path / "orders-0"
    with open_log(directory, LogConfig.parse(CONFIG), disk=Disk(UNSYNCED), now_ms=Clock()) as log:
        yield log
    (path / ".kafka_cleanshutdown").write_bytes(b'{"version":0,"brokerEpoch":"1"}')


def append_as_a_broker(path: Path, count: int, *, size: int = 100) -> None:
    with as_a_broker(path) as log:
        for _ in range(count):
            log.append(encode_batch([Record(0, NOW_MS, b"foreign", b"x" * size)]))


def retain_as_a_broker(path: Path) -> None:
    """All but the last segment go."""
    with as_a_broker(path) as log:
        log.maintenance.delete_oldest(len(log.maintenance.segments) - 1)
        log.maintenance.remove_discarded(0, at_once=True)


def ours(path: Path) -> list[bytes | None]:
    values = values_in([path])[0]
    return [v for v in values if v is not None and not v.startswith((b"before", b"x"))]


def expected(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


def staged(path: Path, count: int = 10) -> StagedCommit:
    runs = stage([path], [rows(0, count)])
    return StagedCommit(runs, JOB, 0, CommitIdentity(QUERY, 0))


def test_retention_before_anything_is_installed(logs_dir: Path) -> None:
    """The planned offsets are below the log start by then. Nothing was installed there."""
    decide(logs_dir, staged(logs_dir))
    append_as_a_broker(logs_dir, 30)
    retain_as_a_broker(logs_dir)
    with open_logs(logs_dir) as logs:
        assert logs.commits.is_committed(CommitIdentity(QUERY, 0))
    assert ours(logs_dir) == expected(10)
    assert not (logs_dir / JOURNAL_FILE).exists()


def test_retention_after_a_part_was_installed(logs_dir: Path) -> None:
    """What the log still has of it proves that the rest before it was there."""
    commit = staged(logs_dir, 200)
    faulty = FaultyDisk(UNSYNCED)
    with open_logs(logs_dir, disk=faulty.disk) as logs:
        faulty.fail_next(errno.ENOSPC, skip=60)
        with pytest.raises(CommitPendingError):
            logs.commits.commit(commit)
    with as_a_broker(logs_dir) as log:
        had = [r.value for r in log.read() if r.key != b"foreign"][10:]
        assert 0 < len(had) < 200
        log.maintenance.delete_oldest(len(log.maintenance.segments) - 1)
        left = [r.value for r in log.read()]
    assert 0 < len(left) < len(had)
    append_as_a_broker(logs_dir, 2)
    values = ours(logs_dir)
    assert values == expected(200)[200 - len(values) :]
    assert len(values) == 200 - (len(had) - len(left))


def test_a_full_disk_while_it_is_installed(logs_dir: Path) -> None:
    """Journal and files stay; the directory opens for others; the next opening finishes it."""
    commit = staged(logs_dir, 200)

    def pwrite(fd: int, data: object, position: int) -> int:
        if (logs_dir / JOURNAL_FILE).exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.pwrite(fd, data, position)  # type: ignore[arg-type]

    disk = Disk(SystemCalls(fsync=lambda _fd: None, pwrite=pwrite))
    logs = open_logs(logs_dir, disk=disk)
    with pytest.raises(CommitPendingError, match="do not write its rows again") as caught:
        logs.commits.commit(commit)
    assert isinstance(caught.value.__cause__, DiskFullError)
    kill(logs)
    assert len(list(logs_dir.rglob("*.staged"))) == len(commit.runs)
    append_as_a_broker(logs_dir, 30)
    retain_as_a_broker(logs_dir)
    with open_logs(logs_dir, disk=disk) as logs:  # still full: opens, but does not commit
        assert logs.commits.is_pending(JOB)
        later = StagedCommit(stage([logs_dir], [rows(500, 1)], number=1), JOB, 1)
        with pytest.raises(CommitPendingError, match="No space left"):
            logs.commits.commit(later)
        kill(logs)
    assert ours(logs_dir) == expected(200)


def test_a_decision_whose_durability_is_unknown_is_pending(logs_dir: Path) -> None:
    """The journal has its name, but the fsync of that name fails: the next opening will carry the
    commit out, so the caller must not hear that nothing was written."""
    commit = StagedCommit(stage([logs_dir], [rows(0, 10)]), JOB)

    def fsync(fd: int) -> None:
        is_root = os.path.samestat(os.fstat(fd), logs_dir.stat())
        if is_root and (logs_dir / JOURNAL_FILE).exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    logs = open_logs(logs_dir, disk=Disk(SystemCalls(fsync=fsync)))
    with pytest.raises(CommitPendingError, match="do not write its rows again") as caught:
        logs.commits.commit(commit)
    assert isinstance(caught.value.__cause__, FsyncError)
    with suppress(StratalogError):
        logs.close()
    assert ours(logs_dir) == expected(10)


class FullForProgress:
    """A disk on which commits can be decided and installed, but that cannot be recorded."""

    def __init__(self) -> None:
        self.is_full = True
        self.disk = Disk(replace(UNSYNCED, rename=self._rename))

    def _rename(self, source: Path, target: Path) -> None:
        if self.is_full and target.name == JOURNAL_FILE and target.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        source.replace(target)


def test_a_pending_commit_is_finished_within_an_hour(logs_dir: Path) -> None:
    """Its partitions are neither compacted nor retained until then."""
    clock, full = Clock(), FullForProgress()
    with open_logs(logs_dir, disk=full.disk, clock=clock) as logs:
        with pytest.raises(CommitPendingError):
            logs.commits.commit(staged(logs_dir))
        full.is_full = False
        clock.advance(SWEEP_INTERVAL_MS)
        logs.run_pending_tasks()
        assert not (logs_dir / JOURNAL_FILE).exists()
        assert logs.commits.is_committed(CommitIdentity(QUERY, 0))
        values = [record.value for record in logs.partition("orders", 0).read()]
        assert values[10:] == expected(10)


def test_a_commit_without_a_journal_is_not_pending(logs_dir: Path) -> None:
    def rename(source: Path, target: Path) -> None:
        if target.name == JOURNAL_FILE:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        source.replace(target)

    disk = Disk(replace(UNSYNCED, rename=rename))
    with open_logs(logs_dir, disk=disk) as logs, pytest.raises(DiskFullError):
        logs.commits.commit(staged(logs_dir))
    assert ours(logs_dir) == []


def test_what_may_be_of_a_pending_commit_is_not_compacted(tmp_path: Path) -> None:
    """All runs are installed, but that could not be recorded. Compaction would remove what proves
    it, and the old values would be appended a second time, behind newer ones."""
    config = {**CONFIG, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 1, config=config)
    keys = pa.array([b"key"] * 10)
    old = pa.record_batch({"value": pa.array([b"old"] * 10), "key": keys})
    commit = StagedCommit(stage([tmp_path], [old]), JOB, 0, CommitIdentity(QUERY, 0))
    is_full = True

    def rename(source: Path, target: Path) -> None:
        if is_full and target.name == JOURNAL_FILE and target.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        source.replace(target)

    with open_logs(tmp_path, disk=Disk(replace(UNSYNCED, rename=rename))) as logs:
        with pytest.raises(CommitPendingError):
            logs.commits.commit(commit)
        for _ in range(30):
            logs.append("orders", b"new" * 30, key=b"key")
        logs.maintenance.run_once()
        kill(logs)
    is_full = False
    with open_logs(tmp_path) as logs:
        assert not (tmp_path / JOURNAL_FILE).exists()
        values = [record.value for record in logs.partition("orders", 0).read()]
        assert values == [b"old"] * 10 + [b"new" * 30] * 30
        logs.maintenance.run_once()  # nothing is pending any more
        values = [record.value for record in logs.partition("orders", 0).read()]
        assert b"old" not in values
        assert values[-1] == b"new" * 30


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_retention_keeps_what_may_be_of_a_pending_commit(tmp_path: Path, policy: str) -> None:
    """All runs are installed and can be read, but that could not be recorded. Retention would
    remove what proves it, and readers would get the records a second time."""
    config = {**CONFIG, "cleanup.policy": policy, "retention.bytes": 0}
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 1, config={**config, "retention.bytes": -1})
        for number in range(30):
            logs.append("orders", b"before %030d" % number, key=b"%d" % number)
        start = logs.partition("orders", 0).log_end_offset
        logs.alter_config("orders", {"retention.bytes": 0})
    keys = pa.array([b"key %d" % number for number in range(10)])
    some = pa.record_batch({"value": pa.array(expected(10)), "key": keys})
    commit = StagedCommit(stage([tmp_path], [some]), JOB, 0, CommitIdentity(QUERY, 0))
    full = FullForProgress()
    for is_first in (True, False):  # the commit fails, and then finishing it when it is opened
        with open_logs(tmp_path, disk=full.disk) as logs:
            if is_first:
                with pytest.raises(CommitPendingError):
                    logs.commits.commit(commit)
            for _ in range(30):
                logs.append("orders", b"x" * 90, key=b"foreign")
            logs.maintenance.run_once()
            log = logs.partition("orders", 0)
            assert 0 < log.log_start_offset <= start
            count = len(log.segments)
            logs.delete_records("orders", 0, log.log_start_offset if is_first else -1)
            logs.maintenance.run_once()
            assert len(log.segments) == count > 3
    with open_logs(tmp_path) as logs:
        assert not (tmp_path / JOURNAL_FILE).exists()
        assert log.log_end_offset == logs.partition("orders", 0).log_end_offset
        logs.maintenance.run_once()  # nothing is pending any more
        assert len(logs.partition("orders", 0).segments) == 1
    assert ours(tmp_path) == []


@pytest.mark.parametrize("number", [-1, 1 << 63])
def test_a_number_that_the_state_cannot_hold_is_refused(logs_dir: Path, number: int) -> None:
    runs = stage([logs_dir], [rows(0, 10)])
    commit = StagedCommit(runs, JOB, 0, CommitIdentity(QUERY, number))
    refused = pytest.raises(CommitError, match=f"{number} is not between 0 and")
    with open_logs(logs_dir) as logs, refused:
        logs.commits.commit(commit)
    assert ours(logs_dir) == []


def two_with_journals(tmp_path: Path) -> tuple[Path, Path]:
    """Directories that were written apart from each other, each with a decided commit."""
    for name, job in (("first", JOB), ("second", JOB[::-1])):
        path = tmp_path / name
        with open_logs(path) as logs:
            logs.create_topic(name, 1)
        runs = stage([path], [rows(0, 10)], terms=StagingOptions(name), job=job)
        decide(path, StagedCommit(runs, job, 0, CommitIdentity(name, 0)))
        for run in runs:
            os.utime(path / f"{name}-0" / run.name, (1, 1))
    return tmp_path / "first", tmp_path / "second"


def test_two_directories_with_a_journal_each(tmp_path: Path) -> None:
    """When they are opened together for the first time, both commits are finished."""
    with open_logs(*two_with_journals(tmp_path)) as logs:
        for name in ("first", "second"):
            assert logs.commits.is_committed(CommitIdentity(name, 0), name)
            assert [r.value for r in logs.partition(name, 0).read()] == expected(10)
    assert not list(tmp_path.rglob(JOURNAL_FILE))


@pytest.mark.parametrize("hidden", ["first", "second"])
def test_one_journal_does_not_stand_in_for_the_other(tmp_path: Path, hidden: str) -> None:
    """One commit cannot be finished: the other one is, and the files of both stay."""
    paths = two_with_journals(tmp_path)
    (file,) = (tmp_path / hidden).rglob("*.staged")
    shutil.move(file, tmp_path / "elsewhere")
    with open_logs(*paths) as logs:
        other = "second" if hidden == "first" else "first"
        assert logs.commits.is_committed(CommitIdentity(other, 0), other)
        assert not logs.commits.is_committed(CommitIdentity(hidden, 0), hidden)
        with pytest.raises(CommitPendingError, match="is missing"):
            logs.commits.finish()
        shutil.move(tmp_path / "elsewhere", file)
        os.utime(file, (1, 1))
        assert logs.commits.sweep() == 0
    with open_logs(*paths) as logs:
        assert [r.value for r in logs.partition(hidden, 0).read()] == expected(10)


def test_a_staged_file_that_is_missing(logs_dir: Path) -> None:
    """It is not in the log, so nobody may say that it is."""
    commit = staged(logs_dir)
    decide(logs_dir, commit)
    path = logs_dir / "orders-0" / commit.runs[0].name
    shutil.move(path, logs_dir / "elsewhere")
    append_as_a_broker(logs_dir, 30)
    with open_logs(logs_dir) as logs:
        logs.append("orders", b"before all of it")
        assert not logs.commits.is_committed(CommitIdentity(QUERY, 0))
        with pytest.raises(
            CommitPendingError, match="a staged file of a decided commit is missing"
        ):
            logs.commits.finish()
    assert (logs_dir / JOURNAL_FILE).exists()
    shutil.move(logs_dir / "elsewhere", path)
    assert ours(logs_dir) == expected(10)


def test_what_is_recorded_as_installed_needs_no_file(logs_dir: Path) -> None:
    commit = staged(logs_dir)
    journal = decide(logs_dir, commit)
    parts = tuple(replace(part, is_installed=True) for part in journal.partitions)
    JournalFile(Disk(UNSYNCED), [logs_dir]).write(replace(journal, partitions=parts))
    (logs_dir / "orders-0" / commit.runs[0].name).unlink()
    with open_logs(logs_dir) as logs:
        assert logs.commits.is_committed(CommitIdentity(QUERY, 0))
    assert ours(logs_dir) == []


def test_progress_is_recorded_before_files_go(tmp_path: Path) -> None:
    """Whenever a staged file is gone while the journal is there, the journal says why."""
    with open_logs(tmp_path) as logs:
        logs.create_topic("orders", 3, config=CONFIG)
    commit = stage_tasks([tmp_path], 2, 40)
    checked = []

    def unlink(path: Path) -> None:
        if path.name.endswith(".staged"):
            journal = decode_journal((tmp_path / JOURNAL_FILE).read_bytes())
            part = next(p for p in journal.partitions if str(p.topic_partition) == path.parent.name)
            assert part.is_installed
            checked.append(path)
        path.unlink()

    disk = Disk(SystemCalls(fsync=lambda _fd: None, unlink=unlink))
    with open_logs(tmp_path, disk=disk) as logs:
        logs.commits.commit(commit)
    assert len(checked) == len(commit.runs) == 6


def test_a_batch_of_somebody_else_with_the_same_shape(logs_dir: Path) -> None:
    """Offset, size and number of records are those of the staged batch; the CRC is not."""
    commit = staged(logs_dir)
    decide(logs_dir, commit)
    data = bytearray((logs_dir / "orders-0" / commit.runs[0].name).read_bytes())
    at = data.index(b"000000")
    data[at : at + 6] = b"xxxxxx"
    size = BatchHeader.unpack(data).size_bytes
    changed = BatchHeader.unpack(data)
    with as_a_broker(logs_dir) as log:
        log.append(seal_batch(changed, bytes(data[HEADER_BYTES:size])))
    assert ours(logs_dir) == [*expected(10)[1 : changed.record_count], *expected(10)]


def test_a_log_that_is_shorter_than_planned(logs_dir: Path) -> None:
    """Records before the commit were not flushed when the power went."""
    commit = staged(logs_dir)
    journal = decide(logs_dir, commit)
    parts = tuple(replace(part, start_offset=17) for part in journal.partitions)
    JournalFile(Disk(UNSYNCED), [logs_dir]).write(replace(journal, partitions=parts))
    assert ours(logs_dir) == expected(10)
    assert not (logs_dir / JOURNAL_FILE).exists()


def test_where_it_goes_is_recorded_when_the_log_is_shorter(logs_dir: Path) -> None:
    """Else what was installed would be looked for in the wrong place after the next crash."""
    commit = staged(logs_dir, 200)
    journal = decide(logs_dir, commit)
    parts = tuple(replace(part, start_offset=170) for part in journal.partitions)
    JournalFile(Disk(UNSYNCED), [logs_dir]).write(replace(journal, partitions=parts))
    calls = 0
    while (logs_dir / JOURNAL_FILE).exists():
        calls += 7
        faulty = FaultyDisk(UNSYNCED)
        faulty.fail_next(skip=calls)
        with suppress(StratalogError):
            kill(open_logs(logs_dir, disk=faulty.disk))
        append_as_a_broker(logs_dir, 1)
    assert calls > 50
    assert ours(logs_dir) == expected(200)


def test_a_topic_that_was_created_again_gets_nothing(logs_dir: Path) -> None:
    """Even if files of the old one are found there."""
    commit = staged(logs_dir)
    decide(logs_dir, commit)
    journal = (logs_dir / JOURNAL_FILE).read_bytes()
    run = logs_dir / "orders-0" / commit.runs[0].name
    data = run.read_bytes()
    (logs_dir / JOURNAL_FILE).unlink()
    with open_logs(logs_dir) as logs:
        logs.delete_topic("orders")
        logs.create_topic("orders", 1, config=CONFIG)
    run.write_bytes(data)
    (logs_dir / JOURNAL_FILE).write_bytes(journal)
    with open_logs(logs_dir):
        pass
    assert ours(logs_dir) == []
    assert not (logs_dir / JOURNAL_FILE).exists()


# -- files that cannot be read


def deny(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Let opening the file fail as it does for another user."""
    real = os.open

    def open_(name: str | Path, flags: int, mode: int = 0o777, **options: int) -> int:
        if str(name) == str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(name))
        return real(name, flags, mode, **options)

    monkeypatch.setattr(os, "open", open_)


def test_an_unreadable_file_is_refused_before_the_decision(
    logs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = staged(logs_dir)
    deny(monkeypatch, logs_dir / "orders-0" / commit.runs[0].name)
    with open_logs(logs_dir) as logs:
        with pytest.raises(CommitError, match=r"permission.* Nothing was written"):
            logs.commits.commit(commit)
        assert not logs.commits.is_pending(JOB)
    monkeypatch.undo()
    assert ours(logs_dir) == []


def test_a_file_that_becomes_unreadable_locks_nobody_out(
    logs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = staged(logs_dir)
    decide(logs_dir, commit)
    deny(monkeypatch, logs_dir / "orders-0" / commit.runs[0].name)
    with open_logs(logs_dir) as logs:
        logs.append("orders", b"before all of it")
        with pytest.raises(CommitPendingError, match="permission"):
            logs.commits.finish()
    monkeypatch.undo()
    deny(monkeypatch, logs_dir / JOURNAL_FILE)
    with open_logs(logs_dir) as logs:
        logs.append("orders", b"before all of it")
    monkeypatch.undo()
    assert ours(logs_dir) == expected(10)


def test_staged_files_have_the_mode_of_segments(logs_dir: Path) -> None:
    """Whatever the umask of the task: a broker does not start if it cannot read one of them."""
    (segment,) = sorted((logs_dir / "orders-0").glob("*.log"))[-1:]
    segment.chmod(0o640)
    before = os.umask(0o077)
    try:
        commit = staged(logs_dir)
    finally:
        os.umask(before)
    path = logs_dir / str(TopicPartition("orders", 0)) / commit.runs[0].name
    assert path.stat().st_mode & 0o777 == 0o640
