"""What goes wrong with a disk: the process dies, or a call fails, at the n-th change."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.disks import Fault, FaultyDisk
from tests.opening import UNSYNCED

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.format.buffers import Buffer

KILL, FULL, FULL_FOR_GOOD, BAD_FSYNC = "kill", "full", "full for good", "bad fsync"
DISK_BYTES: Final = 24 << 20


@dataclass(frozen=True)
class Trap:
    """One thing that goes wrong, at a changing call (of those of its kind) counted from 1."""

    kind: str
    at: int
    step: int
    """It is armed when the process begins its n-th step; the first is to open the directory."""

    @property
    def is_deadly(self) -> bool:
        return self.kind == KILL


def choose_trap(rng: random.Random, kinds: tuple[str, ...], steps_max: int) -> Trap:
    """Early more often than late: what one step does is short."""
    step = rng.choice([0, int(steps_max ** rng.random())])
    return Trap(rng.choice(kinds), int(2 ** rng.uniform(0, 8)), step)


class TrappedDisk(FaultyDisk):
    """A disk with one trap in it, or none. Any thread may step into it.

    It does not wait for the disk: killing a process loses nothing that was written.
    """

    def __init__(self, trap: Trap | None) -> None:
        fault = None
        if trap is not None and not trap.is_deadly:
            number = errno.EIO if trap.kind == BAD_FSYNC else errno.ENOSPC
            fault = Fault(trap.at, number, is_lasting=trap.kind == FULL_FOR_GOOD, written=0.5)
        super().__init__(UNSYNCED, fault)
        self._trap = trap
        self._steps = -1
        self._is_armed = False
        self._counting = threading.Lock()
        self._fsyncs = 0

    def step(self) -> None:
        """The process begins something new."""
        self._steps += 1
        self._is_armed = self._trap is not None and self._steps >= self._trap.step

    def _is_due(self, name: str) -> bool:
        trap = self._trap
        if trap is None or not self._is_armed:
            return False
        with self._counting:
            if trap.kind == BAD_FSYNC:
                self._fsyncs += name == "fsync"
                return name == "fsync" and self._fsyncs == trap.at
            if trap.kind in {FULL, FULL_FOR_GOOD} and name not in _TAKE_SPACE:
                return False
            is_due = super()._is_due(name)
            if trap.is_deadly and len(self.history) == trap.at:
                os.kill(os.getpid(), signal.SIGKILL)
            return is_due

    def _pwrite(self, fd: int, data: Buffer, position: int) -> int:
        trap = self._trap
        is_next = trap is not None and self._is_armed and len(self.history) + 1 == trap.at
        if trap is not None and trap.is_deadly and is_next:
            os.pwrite(fd, memoryview(data)[: len(data) // 2], position)
        return super()._pwrite(fd, data, position)


_TAKE_SPACE: Final = frozenset({"open", "pwrite", "posix_fallocate", "mkdir", "rename"})


@contextmanager
def small_disk(path: Path) -> Iterator[bool]:
    """A real disk that is soon full, if this process may mount one; whether it may."""
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "stratalog-torture", str(path)]
    try:
        is_mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        is_mounted = False
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(path)], check=False)


class Ballast:
    """Takes all the space that a small disk has left."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def fill(self, left_bytes: int) -> None:
        free = os.statvfs(self._path.parent)
        size = max(0, free.f_bavail * free.f_frsize - left_bytes)
        with self._path.open("wb") as file:
            if size:
                try:
                    os.posix_fallocate(file.fileno(), 0, size)
                except OSError as error:  # somebody else was faster
                    if error.errno != errno.ENOSPC:
                        raise

    def drop(self) -> None:
        self._path.unlink(missing_ok=True)
