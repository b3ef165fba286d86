"""A file that grows: held open by its only writer, appended to, synced, cut.

Invariants:

* an append is there as a whole or not at all, as far as this process can see;
* after an fsync failed, nobody knows what the disk holds (the kernel drops the pages it could not
  write), so the file refuses everything until it is opened again.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, NoReturn, Self

from stratalog.storage.system_calls import fsync_error, storage_error, told

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stratalog.errors import FsyncError
    from stratalog.format.buffers import Buffer
    from stratalog.storage.system_calls import SystemCalls


class AppendFile:
    """A file held open for appending by its only writer."""

    def __init__(
        self, calls: SystemCalls, path: Path, fd: int, size_bytes: int, allocated_bytes: int
    ) -> None:
        self.path = path
        self.size_bytes = size_bytes
        """Up to here the content is good. A preallocated file goes on with zeros."""
        self.on_failed_fsync: Callable[[FsyncError], None] = lambda _error: None
        self._calls = calls
        self._fd = fd
        self._allocated_bytes = allocated_bytes
        self._pwrite = calls.pwrite
        self._is_failed = False
        self._closing = Lock()  # nobody may close the file, and give its number away, in an fsync

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            with suppress(OSError):
                self._calls.close(fd)

    def write(self, data: Buffer) -> None:
        """Append all of `data`, or raise and leave the file as it was."""
        position = self.size_bytes
        try:
            written = self._pwrite(self._fd, data, position)
            if written != len(data):
                self._write_rest(data, position, written)
        except OSError as error:
            self._undo()
            raise storage_error(error, "write", self.path) from error
        self.size_bytes = position + len(data)

    def _write_rest(self, data: Buffer, position: int, written: int) -> None:
        """The kernel takes less than asked for when space runs out, or above 2 GiB."""
        rest = memoryview(data)
        while written < len(data):
            written += self._pwrite(self._fd, rest[written:], position + written)

    def _undo(self) -> None:
        """Remove what a failed write left. If that fails as well, the next write tries again."""
        if self._is_failed:
            return
        try:
            self._clear_tail()
        except OSError:
            self._pwrite = self._pwrite_after_clearing

    def _pwrite_after_clearing(self, fd: int, data: Buffer, position: int, /) -> int:
        self._clear_tail()
        self._pwrite = self._calls.pwrite
        return self._pwrite(fd, data, position)

    def _clear_tail(self) -> None:
        self._calls.ftruncate(self._fd, self.size_bytes)
        if self._allocated_bytes > self.size_bytes:
            self._calls.ftruncate(self._fd, self._allocated_bytes)

    def fsync(self) -> bool:
        """All that was written is on disk afterwards. A failure is final for this handle.

        Any thread may call it, while others write or close; False if the file is closed already.
        """
        with self._closing:
            if self._fd < 0:
                return False
            try:
                self._calls.fsync(self._fd)
            except OSError as error:
                self._is_failed = True
                self._pwrite = self._refuse
                failure = fsync_error(error, self.path)
                self.on_failed_fsync(failure)
                raise failure from error
        return True

    def _refuse(self, _fd: int, _data: Buffer, _position: int, /) -> NoReturn:
        raise OSError(errno.EIO, "an fsync failed before; the file must be opened again")

    def preallocate(self, size_bytes: int) -> None:
        """Let zeros follow the content up to `size_bytes`, as Kafka does: sparsely."""
        if size_bytes > self._allocated_bytes:
            with told("preallocate", self.path):
                self._calls.ftruncate(self._fd, size_bytes)
            self._allocated_bytes = size_bytes

    def truncate(self, size_bytes: int) -> None:
        """Keep the first `size_bytes` bytes and drop the rest, preallocated zeros too."""
        size_bytes = min(size_bytes, self.size_bytes)
        with told("truncate", self.path):
            self._calls.ftruncate(self._fd, size_bytes)
        self.size_bytes = self._allocated_bytes = size_bytes

    def trim(self) -> None:
        """Drop whatever follows: preallocated zeros, or what an interrupted write left."""
        if self._fd < 0:
            return
        with told("stat", self.path):
            file_bytes = os.fstat(self._fd).st_size
        if file_bytes > self.size_bytes:
            self.truncate(self.size_bytes)

    def close(self) -> None:
        """Cuts nothing: `trim` first if zeros may follow."""
        with self._closing, told("close", self.path):
            fd, self._fd = self._fd, -1
            if fd >= 0:
                self._calls.close(fd)
