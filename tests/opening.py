"""Log directories for tests: with a clock that is set by hand, and an end like a kill's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stratalog.log_dir import LogDir
from stratalog.storage.disk import SystemCalls

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.partitions.saved_state import MissingDirs
    from stratalog.storage.disk import Disk

NOW_MS = 1_800_000_000_000

SMALL = {"transaction.state.log.num.partitions": 1, "log.index.size.max.bytes": 8000}
"""Kafka's fifty partitions, and indexes of ten megabytes, take their time to be made."""

UNSYNCED = SystemCalls(fsync=lambda _fd: None)
"""For tests of kills, which lose nothing that was written."""


class Clock:
    """Milliseconds that pass when a test says so."""

    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> None:
        self.now_ms += ms


def open_logs(
    *paths: Path,
    clock: Clock | None = None,
    disk: Disk | None = None,
    missing_dirs: MissingDirs = "refuse",
    **properties: Any,
) -> LogDir:
    """A LogDir without a thread. Properties are a broker's, with `_` for `.`."""
    config = {name.replace("_", "."): value for name, value in properties.items()}
    return LogDir.open(
        *paths,
        config={**SMALL, **config},
        background=False,
        missing_dirs=missing_dirs,
        disk=disk,
        now_ms=clock or Clock(),
    )


def kill(logs: LogDir) -> None:
    """Leave the directories as a process that was killed does: nothing more is written, also not by
    timers, and the kernel gives the lock back."""
    logs.maintenance.stop()
    logs._schedule.stop()
    logs._dirs._locks.close()
    logs._is_closed = True
