"""Kafka's `.lock` in each log directory: its holder may write, everybody else only reads.

The error names the process that holds the lock. The kernel knows the process of a lock that Java
took; our own lock belongs to an open file, so it is the process that has this file open.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stratalog.errors import LockedError, LogDirLockedError, UnsupportedError
from stratalog.format.names import RootFile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.storage.disk import Disk

_log: Final = logging.getLogger(__name__)

_POLL_S: Final = 0.05
_SILENT_S: Final = 1.0
"""A wait is reported if it takes longer."""
_PROCESSES: Final = Path("/proc")
_FLOCK: Final = struct.Struct(
    "h"  # l_type
    "h"  # l_whence
    "q"  # l_start
    "q"  # l_len: 0 is the whole file
    "i"  # l_pid: set by the kernel; not positive for an open-file lock, or another container's
    "4x"
)


def lock_dirs(disk: Disk, paths: Sequence[Path], *, wait_ms: int = 0) -> ExitStack:
    """Lock all of the log directories or none, waiting up to `wait_ms` for another writer. Closing
    the returned stack releases them. Raises LogDirLockedError."""
    started = time.monotonic()
    is_reported = False
    while True:
        try:
            return _lock_now(disk, paths)
        except LogDirLockedError as error:
            waited_s = time.monotonic() - started
            left_s = wait_ms / 1000 - waited_s
            if left_s <= 0:
                raise
            if waited_s >= _SILENT_S and not is_reported:
                is_reported = True
                holder = error.holder or "another writer"
                text = "%s: waiting up to %.0f s until %s releases the lock"
                _log.warning(text, error.path, left_s, holder)
            time.sleep(_POLL_S)


def _lock_now(disk: Disk, paths: Sequence[Path]) -> ExitStack:
    with ExitStack() as locks:
        for path in paths:
            lock_path = path / RootFile.LOCK.value
            try:
                locks.enter_context(disk.lock(lock_path))
            except LockedError:
                raise LogDirLockedError(path, find_holder(lock_path)) from None
        return locks.pop_all()


def find_holder(lock_path: Path) -> str | None:
    """The process that has locked the file; None if there is none or it cannot be found."""
    with suppress(OSError):
        lock = _lock_on(lock_path)
        if lock is None:
            return None
        process_id = lock or _process_with_open(lock_path)
        if process_id == os.getpid():
            return "another LogDir in this process"
        if process_id is not None:
            name = (_PROCESSES / str(process_id) / "comm").read_text().strip()
            return f"process {process_id} ({name})"
    return None


def is_locked(log_dir: Path) -> bool:
    """Whether somebody has locked the log directory for writing. Takes no lock, never writes. In an
    object store nobody can."""
    with suppress(OSError, UnsupportedError):
        return _lock_on(log_dir / RootFile.LOCK.value) is not None
    return False


def _lock_on(path: Path) -> int | None:
    """The id of the process that holds a lock on the file, 0 if the kernel does not tell; None if
    there is no lock."""
    with path.open("rb") as file:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_, process_id = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_OFD_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else max(0, process_id)


def _process_with_open(path: Path) -> int | None:
    wanted = path.stat()
    ids = (int(process.name) for process in _PROCESSES.iterdir() if process.name.isdigit())
    return next((process_id for process_id in ids if _has_open(process_id, wanted)), None)


def _has_open(process_id: int, wanted: os.stat_result) -> bool:
    with suppress(OSError):  # it has ended, or belongs to another user
        for descriptor in (_PROCESSES / str(process_id) / "fd").iterdir():
            with suppress(OSError):
                if os.path.samestat(descriptor.stat(), wanted):
                    return True
    return False
