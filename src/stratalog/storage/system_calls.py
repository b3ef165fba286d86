"""The door to the disk: every call that changes it, as a value, and how their failures are told."""

from __future__ import annotations

import errno
import mmap
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stratalog.errors import DiskFullError, FsyncError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from stratalog.format.buffers import Buffer

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def _drop_cache(fd: int) -> None:
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _utime(path: Path, mtime_ns: int) -> None:
    os.utime(path, ns=(mtime_ns, mtime_ns))


@dataclass(frozen=True, kw_only=True)
class SystemCalls:
    """The calls that change a disk, or make changes durable. Each raises OSError.

    `drop_cache` has the next read of the file come from the disk, but for what is not written yet.
    """

    open: Callable[[Path, int, int], int] = os.open
    close: Callable[[int], None] = os.close
    pwrite: Callable[[int, Buffer, int], int] = os.pwrite
    fsync: Callable[[int], None] = os.fsync
    ftruncate: Callable[[int, int], None] = os.ftruncate
    truncate: Callable[[Path, int], None] = os.truncate
    posix_fallocate: Callable[[int, int, int], None] = os.posix_fallocate
    rename: Callable[[Path, Path], None] = os.replace
    link: Callable[[Path, Path], None] = os.link
    unlink: Callable[[Path], None] = os.unlink
    mkdir: Callable[[Path, int], None] = os.mkdir
    rmdir: Callable[[Path], None] = os.rmdir
    utime: Callable[[Path, int], None] = _utime
    chmod: Callable[[Path, int], None] = os.chmod
    map: Callable[[int, int], mmap.mmap] = mmap.mmap
    drop_cache: Callable[[int], None] = _drop_cache


@contextmanager
def told(operation: str, path: Path) -> Iterator[None]:
    """An OSError in here is told as a StorageError: what was tried, and with which file."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, operation, path) from error


def storage_error(error: OSError, operation: str, path: Path) -> StorageError:
    """What `told` raises, for where the time counts that a context manager takes."""
    number = error.errno or errno.EIO
    kind = DiskFullError if number in _FULL else StorageError
    return kind(path, operation, number, error.strerror or str(error))


def fsync_error(error: OSError, path: Path) -> FsyncError:
    """Of an fsync. Never a DiskFullError, also where space is short: trying again is no remedy."""
    return FsyncError(path, "fsync", error.errno or errno.EIO, error.strerror or str(error))
