"""What belongs to one process: the lock on a log directory, and what a forked child must not use.

A child shares the open files of its parent, its mapped files and its lock on the log directory. If
it used them, two processes would append to one log; if it cleaned up on exit, it would drop the
lock of its parent, or mark as cleanly closed what is still being written. So whatever writes for
one process registers with `detach_in_children`, and is detached in every child right after the
fork, before any other code runs there. A process that begins with `exec` inherits nothing: every
file is opened with O_CLOEXEC.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, Self

from stratalog.errors import LockedError, LogOfflineError

if TYPE_CHECKING:
    from pathlib import Path


class Detachable(Protocol):
    """Something that writes, or holds a lock, on behalf of the process that created it."""

    def detach(self) -> None:
        """Called in a forked child. Must not wait for a lock, whose holder does not exist here."""


_parent_id = 0
_owned: Final[weakref.WeakSet[Detachable]] = weakref.WeakSet()


def detach_in_children(owned: Detachable) -> None:
    """Have `owned.detach()` called in processes that are forked from this one."""
    _owned.add(owned)


def inherited_reason() -> str:
    """Why something that was detached cannot be used."""
    return f"it was opened by the parent process {_parent_id}, and cannot be used after a fork"


class ProcessOwned:
    """What only the process that created it may use, and the lock that guards it."""

    def __init__(self, path: Path) -> None:
        """`path` is what an error names in a forked child."""
        self._lock = threading.RLock()
        self._is_detached = False
        self._owned_path = path
        detach_in_children(self)

    def detach(self) -> None:
        """In a forked child: what waits here belongs to the parent."""
        self._lock = threading.RLock()  # a thread that does not exist here may hold the other
        self._is_detached = True

    def check_process(self) -> None:
        """Raise LogOfflineError in a forked child."""
        if self._is_detached:
            raise LogOfflineError(self._owned_path, inherited_reason())


def _detach_all() -> None:
    global _parent_id  # noqa: PLW0603 - of this process; it does not change
    _parent_id = os.getppid()
    for owned in list(_owned):
        owned.detach()


os.register_at_fork(after_in_child=_detach_all)


_HELD_BY_OTHERS: Final = frozenset({errno.EAGAIN, errno.EACCES})
_FLOCK: Final = struct.Struct(
    "h"  # l_type
    "h"  # l_whence
    "q"  # l_start
    "q"  # l_len: 0 is the whole file, however long it gets
    "i"  # l_pid: must be 0
    "4x"
)


class FileLock:
    """An exclusive lock on an open file, until `release` or the end of the process.

    It is Kafka's own, so a broker and a writer here exclude each other. Java locks a file for the
    process (`fcntl` F_SETLK). Here the lock belongs to the open file (F_OFD_SETLK): the two exclude
    each other, a second writer in the same process is refused too, and closing another handle of
    the file does not drop the lock.

    A forked child shares the open file, and so the lock: unlocking it there would unlock the
    parent's. The child only closes its descriptor, right after the fork; then it neither drops the
    lock nor holds it after the parent has ended.
    """

    def __init__(self, path: Path, fd: int) -> None:
        """Owns `fd` from here on. Raises LockedError, or OSError where locks do not work."""
        self.path = path
        self._fd = -1
        try:
            _set_lock(fd, fcntl.F_WRLCK)
        except OSError as error:
            os.close(fd)
            if error.errno in _HELD_BY_OTHERS:
                raise LockedError(f"{path} is locked by another writer or a broker") from None
            raise
        self._fd = fd
        self._process_id = os.getpid()
        detach_in_children(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        """Let others have it. In any process but the one that took it, only closes the file."""
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd < 0:
            return
        if os.getpid() == self._process_id:
            # Not only closed: another process may have the same open file, which keeps the lock.
            with suppress(OSError):
                _set_lock(fd, fcntl.F_UNLCK)
        os.close(fd)

    def detach(self) -> None:
        """In a forked child: close the file and leave the lock to the parent."""
        self.release()


def _set_lock(fd: int, kind: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0))
