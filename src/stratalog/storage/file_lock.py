"""The lock on a log directory: Kafka's own, so that a broker and a writer here exclude each other.

Java locks a file for the process (`fcntl` F_SETLK). Here the lock belongs to the open file
(F_OFD_SETLK): the kernel lets neither pass the other, a second writer in the same process is
refused too, and closing another handle of the file does not drop the lock.

A forked child has the same open file, so it has the lock as well: unlocking there would unlock the
parent. The child only closes its descriptor, right after the fork: then it neither drops the lock
nor keeps it when the parent is gone.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from stratalog.errors import LockedError
from stratalog.storage.forking import detach_in_children

if TYPE_CHECKING:
    from pathlib import Path

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
    """An exclusive lock on an open file, until `release` or the end of the process."""

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
