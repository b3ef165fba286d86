"""Log directories for tests of backups, calls that end in a kill, and comparisons."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stratalog import LogDir
from stratalog.bulk.verify import verify
from stratalog.bulk.workers import ThreadWorkers
from stratalog.format.names import RootFile
from stratalog.maintenance.recovery_plan import LoadPoint, plan_recovery
from stratalog.maintenance.verify.findings import Severity
from stratalog.partitions.view import open_dirs
from stratalog.storage.disk import Disk, SystemCalls
from tests.kafka_loader import changes_on_start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pytest

SMALL_SEGMENTS = {"log.segment.bytes": "3000"}
_CHANGES = ("open", "pwrite", "fsync", "ftruncate", "rename", "unlink", "mkdir", "rmdir", "utime")


def fill(path: Path, count: int, *, start: int = 0, topic: str = "orders") -> None:
    """Two partitions with several segments each; a record a batch, a second apart."""
    with LogDir.open(path, config=SMALL_SEGMENTS, background=False) as logs:
        if topic not in logs.topics:
            logs.create_topic(topic, 2)
        append(logs, range(start, start + count), topic)


def append(logs: LogDir, numbers: range, topic: str = "orders") -> None:
    for number in numbers:
        key = b"key-%d" % (number % 5)
        value = b"%d" % number * 100
        logs.append(topic, value, key=key, partition=number % 2, timestamp=number * 1000)


def tree(path: Path) -> dict[str, bytes]:
    """Every file but the lock."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name != RootFile.LOCK.value
    }


def assert_nothing_to_repair(path: Path) -> None:
    """Neither `verify` nor a loader finds anything, and the shutdown was clean."""
    assert_loads(path)
    assert changes_on_start(path) == changes_on_start(path, is_clean=False) == []
    result = verify([path], workers=ThreadWorkers(1))
    found = [each for each in result.findings if each.severity is not Severity.NOTE]
    # A log that was compacted after the cleaner's checkpoint was read has gaps that it does not
    # explain; no record is missing.
    assert [each for each in found if each.code != "offset-gap"] == []


def assert_loads(path: Path) -> None:
    """The shutdown was clean, and even after an unclean one the loader would find nothing."""
    logs = open_dirs(path)
    (log_dir,) = logs.dirs
    assert log_dir.has_clean_shutdown
    log_dir.check_writable()
    points = log_dir.checkpoint(RootFile.RECOVERY_POINTS)
    starts = log_dir.log_start_offsets
    for at in logs.topic_partitions:
        for is_clean in (True, False):
            point = LoadPoint(max(0, starts.get(at, 0)), points.get(at, 0), is_clean)
            plan = plan_recovery(path / str(at), point)
            assert plan.truncations == ()
            assert plan.splits == ()


class KilledError(BaseException):
    """The process ends here."""


class Kill:
    """Lets so many calls happen; the next one and all later ones end the process."""

    def __init__(self, after: int) -> None:
        self._left = itertools.count(after, -1)
        self.has_struck = False

    def __call__(self) -> None:
        if next(self._left) <= 0:
            self.has_struck = True
            raise KilledError

    def disk(self) -> Disk:
        plain = SystemCalls()
        return Disk(
            replace(plain, **{name: partial(self._call, getattr(plain, name)) for name in _CHANGES})
        )

    def _call(self, call: Callable[..., Any], *args: Any) -> Any:
        self()
        return call(*args)


@contextmanager
def kills_on_disk(monkeypatch: pytest.MonkeyPatch, module: str, kill: Kill) -> Iterator[None]:
    """Every change of a disk by a module counts."""
    with monkeypatch.context() as patch:
        if module.endswith("backup_store"):
            patch.setattr(f"{module}.disk_of", lambda _path: kill.disk())
        else:
            patch.setattr(f"{module}.Disk", kill.disk)
        yield


@contextmanager
def kills_in_store(monkeypatch: pytest.MonkeyPatch, kill: Kill, *, is_done: bool) -> Iterator[None]:
    """Every change in a store counts; the last one has reached the store or not."""
    from stratalog.storage.store import Store  # noqa: PLC0415

    with monkeypatch.context() as patch:
        for name in ("write", "move", "delete", "delete_tree"):
            real = getattr(Store, name)

            def call(*args: Any, _real: Callable[..., Any] = real) -> Any:
                if is_done:
                    _real(*args)
                kill()
                return None if is_done else _real(*args)

            patch.setattr(Store, name, call)
        yield
