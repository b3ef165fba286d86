"""Kafka's `.lock` in each log directory: whoever holds it writes, everybody else may read.

A refusal should say who is in the way. The kernel knows the process of a lock that Java took; a
lock of ours belongs to an open file, so the process is the one that has the file open.
"""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stratalog.errors import LockedError, LogDirLockedError
from stratalog.format.names import RootFile

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stratalog.storage.disk import Disk

_PROCESSES: Final = Path("/proc")
_FLOCK: Final = struct.Struct(
    "h"  # l_type
    "h"  # l_whence
    "q"  # l_start
    "q"  # l_len: 0 is the whole file
    "i"  # l_pid: the answer; not positive if the lock is no process's, or of another container's
    "4x"
)


def lock_dirs(disk: Disk, paths: Iterable[Path]) -> ExitStack:
    """Lock all of the log directories or none; closing what is returned gives them back."""
    with ExitStack() as locks:
        for path in paths:
            lock_path = path / RootFile.LOCK.value
            try:
                locks.enter_context(disk.lock(lock_path))
            except LockedError:
                raise LogDirLockedError(path, find_holder(lock_path)) from None
        return locks.pop_all()


def find_holder(lock_path: Path) -> str | None:
    """Who has locked the file, or None if nobody has or the system does not tell."""
    with suppress(OSError):
        process_id = _locking_process(lock_path) or _process_with_open(lock_path)
        if process_id == os.getpid():
            return "another LogDir in this process"
        if process_id is not None:
            name = (_PROCESSES / str(process_id) / "comm").read_text().strip()
            return f"process {process_id} ({name})"
    return None


def _locking_process(path: Path) -> int | None:
    with path.open("r+b") as file:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        *_, process_id = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked))
    return process_id if process_id > 0 else None


def _process_with_open(path: Path) -> int | None:
    wanted = path.stat()
    ids = (int(process.name) for process in _PROCESSES.iterdir() if process.name.isdigit())
    return next((process_id for process_id in ids if _has_open(process_id, wanted)), None)


def _has_open(process_id: int, wanted: os.stat_result) -> bool:
    with suppress(OSError):  # it has ended, or is another user's
        for descriptor in (_PROCESSES / str(process_id) / "fd").iterdir():
            with suppress(OSError):
                if os.path.samestat(descriptor.stat(), wanted):
                    return True
    return False
