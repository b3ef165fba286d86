"""Backups of directories that a writer changes all the time."""

from __future__ import annotations

import itertools
import random
import shutil
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from stratalog import LogDir
from stratalog.bulk import backup_cut
from stratalog.bulk.backup import backup, list_backups
from stratalog.bulk.restore import restore
from stratalog.bulk.workers import ThreadWorkers
from stratalog.maintenance.cleaning.cleaner import Cleaner
from stratalog.partitions.view import open_dirs
from tests.bulk.backups import assert_nothing_to_repair
from tests.effort import scaled

if TYPE_CHECKING:
    from pathlib import Path

    from tests.stores import S3Server

CONFIG = {"log.segment.bytes": "4000", "log.index.interval.bytes": "200"}


class Writer:
    """Appends, rolls, truncates, deletes, compacts and commits transactions in a thread.

    A record of `plain` is `generation offset`; a truncation begins a new generation, so along a
    log offsets have no gap and generations never fall. A transaction writes its number to both
    partitions of `pairs`.
    """

    def __init__(self, path: Path, seed: int) -> None:
        self._path = path
        self._random = random.Random(seed)
        self._is_over = threading.Event()
        self.is_ready = threading.Event()
        self.error: BaseException | None = None
        self.steps = 0
        self.keys: set[bytes] = set()
        self._generation = 0
        self._cleaner = Cleaner(1 << 20)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writer:
        self._thread.start()
        assert self.is_ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(60)
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            with LogDir.open(self._path, config=CONFIG, background=False) as logs:
                logs.create_topic("plain", 2)
                logs.create_topic("pairs", 2)
                logs.create_topic("latest", 1, config={"cleanup.policy": "compact"})
                self._append(logs)
                self.is_ready.set()
                while not self._is_over.is_set():
                    self._step(logs)
                    self.steps += 1
                    time.sleep(0.002)  # else the other threads hardly run
        except BaseException as error:
            self.error = error
            self.is_ready.set()

    def _step(self, logs: LogDir) -> None:
        kinds = (self._append, self._commit, self._truncate, self._delete, self._compact)
        (step,) = self._random.choices(kinds, (20, 6, 2, 2, 1))
        step(logs)

    def _append(self, logs: LogDir) -> None:
        for number in (0, 1):
            log = logs.partition("plain", number)
            for _ in range(self._random.randrange(1, 6)):
                value = b"%d %d " % (self._generation, log.log_end_offset)
                logs.append("plain", value.ljust(100, b"."), partition=number)
        key = b"%d" % self._random.randrange(9)
        logs.append("latest", b"x" * self._random.randrange(200), key=key)
        self.keys.add(key)

    def _commit(self, logs: LogDir) -> None:
        with logs.transaction("writer") as transaction:
            for number in (0, 1):
                transaction.append("pairs", b"%d" % self.steps, partition=number)

    def _truncate(self, logs: LogDir) -> None:
        log = logs.partition("plain", self._random.randrange(2))
        back = self._random.randrange(1, 60)
        self._generation += 1
        log.truncate_to(max(log.log_start_offset, log.log_end_offset - back))

    def _delete(self, logs: LogDir) -> None:
        for topic, number in itertools.product(("plain", "pairs"), (0, 1)):
            log = logs.partition(topic, number)
            if len(log.segments) > 6:
                log.maintenance.delete_oldest(2)
                log.maintenance.remove_discarded(0, at_once=True)

    def _compact(self, logs: LogDir) -> None:
        log = logs.partition("latest", 0)
        log.roll()
        logs.cleaning.clean_dirtiest(self._cleaner)
        log.maintenance.remove_discarded(0, at_once=True)


def check_plain(rows: list[tuple[int, bytes | None]]) -> None:
    generation, expected = 0, rows[0][0] if rows else 0
    for offset, value in rows:
        assert offset == expected
        assert value is not None
        found, written_at = map(int, value.split(b" ")[:2])
        assert written_at == offset
        assert found >= generation
        generation, expected = found, offset + 1


def check(path: Path, keys: set[bytes], *, is_settled: bool) -> None:
    """What a restored directory must have, whenever the backup was taken."""
    assert_nothing_to_repair(path)
    with open_dirs(path) as logs:
        for view in logs.partitions_of("plain"):
            check_plain([(record.offset, record.value) for record in view.read()])
        assert keys <= {record.key for record in logs.partition("latest", 0).read()}
    with LogDir.open(path, background=False) as opened:
        assert opened.recovery == ()
        pairs = [
            [int(record.value or 0) for record in log.read(isolation="read_committed")]
            for log in opened.partitions_of("pairs")
        ]
    if is_settled and all(pairs):  # of one partition more may have been deleted
        first = max(numbers[0] for numbers in pairs)
        assert [n for n in pairs[0] if n >= first] == [n for n in pairs[1] if n >= first]


def run_rounds(tmp_path: Path, where: Path, rounds: int, seed: int) -> None:
    logs, out = tmp_path / "logs", tmp_path / "out"
    workers = ThreadWorkers(2)
    with Writer(logs, seed) as writer:
        for number in range(rounds):
            before, keys = writer.steps, set(writer.keys)
            result = backup([logs], where, keep=3, workers=workers)
            assert result.dirs[0].is_live
            restore(where, [out], workers=workers)
            check(out, keys, is_settled=result.dirs[0].is_settled)
            shutil.rmtree(out)
            assert writer.error is None, number
            assert writer.steps > before
    backup([logs], where)
    restore(where, [out])
    check(out, writer.keys, is_settled=True)
    assert len(list_backups(where)) == min(rounds, 3) + 1


@pytest.mark.slow
def test_each_backup_is_consistent(tmp_path: Path) -> None:
    run_rounds(tmp_path, tmp_path / "backups", scaled(10), seed=1)


@pytest.mark.slow
def test_each_backup_in_a_store_is_consistent(tmp_path: Path, seaweed: S3Server) -> None:
    run_rounds(tmp_path, seaweed.path("backup-live"), scaled(2), seed=2)


class CompactedLog:
    """A log with a segment that is closed and another that is not. Each time, all keys are written
    again and what was there is compacted."""

    def __init__(self, logs: LogDir) -> None:
        self._logs = logs
        self._cleaner = Cleaner()
        self.rounds = 0
        config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        logs.create_topic("latest", 1, config=config)
        self.compact()
        self._append()

    def _append(self) -> None:
        for key in range(9):
            self._logs.append("latest", b"%d" % self.rounds, key=b"%d" % key)

    def compact(self) -> None:
        self.rounds += 1
        self._append()
        log = self._logs.partition("latest", 0)
        log.roll()
        self._logs.cleaning.clean_dirtiest(self._cleaner)
        log.maintenance.remove_discarded(0, at_once=True)


class CompactingWorkers(ThreadWorkers):
    """Compacts a log before anything is copied, up to `times`."""

    def __init__(self, log: CompactedLog, times: int) -> None:
        super().__init__(1)
        self._log, self._times = log, times

    def run(self, *args: Any, **named: Any) -> Any:
        if self._times:
            self._times -= 1
            self._log.compact()
        return super().run(*args, **named)


def values_of(path: Path) -> list[tuple[bytes | None, bytes | None]]:
    with open_dirs(path) as logs:
        return [(each.key, each.value) for each in logs.partition("latest", 0).read()]


@pytest.mark.parametrize("times", [1, 7], ids=["once", "again and again"])
def test_no_key_is_lost_by_compaction_while_files_are_copied(times: int, tmp_path: Path) -> None:
    with LogDir.open(tmp_path / "logs", config=CONFIG, background=False) as logs:
        log = CompactedLog(logs)
        result = backup([tmp_path / "logs"], tmp_path / "b", workers=CompactingWorkers(log, times))
    assert result.dirs[0].is_settled == (times == 1)
    restore(tmp_path / "b", [tmp_path / "out"])
    assert_nothing_to_repair(tmp_path / "out")
    assert {key for key, _ in values_of(tmp_path / "out")} == {b"%d" % key for key in range(9)}


def test_no_key_is_lost_by_compaction_after_the_ends_were_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LogDir.open(tmp_path / "logs", config=CONFIG, background=False) as logs:
        log, bounds = CompactedLog(logs), backup_cut._bounds

        def compacted(path: Path) -> Any:
            found = bounds(path)
            if log.rounds < 3:
                log.compact()
            return found

        monkeypatch.setattr(backup_cut, "_bounds", compacted)
        assert backup([tmp_path / "logs"], tmp_path / "b").dirs[0].is_settled
    restore(tmp_path / "b", [tmp_path / "out"])
    assert_nothing_to_repair(tmp_path / "out")
    assert dict(values_of(tmp_path / "out")) == {b"%d" % key: b"3" for key in range(9)}
