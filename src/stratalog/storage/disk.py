"""All I/O of the writer: files that grow, mappings, replacements, renames, and their fsyncs.

Every call that changes the disk or makes changes durable is one of the `SystemCalls`, so tests can
make each of them fail, or lose changes that no fsync covers, and still run the code below. Reading
bypasses them.

Invariants:

* an `OSError` never leaves this module: it becomes a StorageError that names file and operation;
* `write_atomically` leaves the old content or the new one, whenever the power fails;
* a failed fsync is a FsyncError, and `on_failed_fsync` is called before anybody else learns of it.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Final, NoReturn

from stratalog.errors import DiskFullError, FsyncError, StorageError
from stratalog.format.names import TEMPORARY_SUFFIX
from stratalog.format.times import NS_PER_MS
from stratalog.storage.closeable import Closeable
from stratalog.storage.locks import FileLock, detach_in_children, inherited_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from stratalog.format.buffers import Buffer

_SYNC_FILE_RANGE_WRITE: Final = 2
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def _drop_cache(fd: int) -> None:
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def _utime(path: Path, mtime_ns: int) -> None:
    os.utime(path, ns=(mtime_ns, mtime_ns))


def _start_writing(fd: int, position: int, count: int) -> None:
    call = _sync_file_range()
    if call is not None:
        call(fd, position, count, _SYNC_FILE_RANGE_WRITE)


@cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Linux has this call; Python does not."""
    import ctypes  # noqa: PLC0415

    call: Callable[[int, int, int, int], int] | None
    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return call


@dataclass(frozen=True, kw_only=True)
class SystemCalls:
    """The calls that change a disk, or make changes durable. Each raises OSError.

    After `drop_cache`, the next read of the file comes from the disk, except for data not yet
    written back. `start_writing` starts the write-back of a part of a file; nothing is durable
    before an `fsync`.
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
    start_writing: Callable[[int, int, int], None] = _start_writing


@contextmanager
def storage_errors(operation: str, path: Path) -> Iterator[None]:
    """Turn an OSError into a StorageError that says what was tried, and with which file."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, operation, path) from error


def storage_error(error: OSError, operation: str, path: Path) -> StorageError:
    """What `storage_errors` raises, for hot paths where a context manager is too slow."""
    number = error.errno or errno.EIO
    kind = DiskFullError if number in _FULL else StorageError
    return kind(path, operation, number, error.strerror or str(error))


def fsync_error(error: OSError, path: Path) -> FsyncError:
    """The error to raise. Never a DiskFullError, even if space is short: a retry does not help."""
    return FsyncError(path, "fsync", error.errno or errno.EIO, error.strerror or str(error))


class AppendFile(Closeable):
    """A file held open for appending by its only writer.

    An append is in the file completely or not at all, as far as this process can see. After a
    failed fsync nobody knows what the disk holds (the kernel drops the pages it could not write),
    so the file refuses every write until it is opened again.
    """

    def __init__(
        self, calls: SystemCalls, path: Path, fd: int, size_bytes: int, allocated_bytes: int
    ) -> None:
        self.path = path
        self.size_bytes = size_bytes
        """Size of the content; zeros follow it in a preallocated file."""
        self.on_failed_fsync: Callable[[FsyncError], None] = lambda _error: None
        self._calls = calls
        self._fd = fd
        self._allocated_bytes = allocated_bytes
        self._pwrite = calls.pwrite
        self._is_failed = False
        self._closing = Lock()  # keeps the file open, and its descriptor in use, during an fsync

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
        """Write the rest after a short write: the kernel takes less than asked for when space runs
        out, or above 2 GiB."""
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

    def start_writing(self, position: int) -> None:
        """Start the write-back of what was appended from `position` on, so that a later `fsync` has
        less to wait for. A failure is left to that `fsync`."""
        with suppress(OSError):
            self._calls.start_writing(self._fd, position, self.size_bytes - position)

    def fsync(self) -> bool:
        """Make everything that was written durable. A failure is final for this handle.

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
            with storage_errors("preallocate", self.path):
                self._calls.ftruncate(self._fd, size_bytes)
            self._allocated_bytes = size_bytes

    def truncate(self, size_bytes: int) -> None:
        """Keep the first `size_bytes` bytes and drop the rest, preallocated zeros too."""
        size_bytes = min(size_bytes, self.size_bytes)
        with storage_errors("truncate", self.path):
            self._calls.ftruncate(self._fd, size_bytes)
        self.size_bytes = self._allocated_bytes = size_bytes

    def trim(self) -> None:
        """Drop whatever follows: preallocated zeros, or what an interrupted write left."""
        if self._fd < 0:
            return
        with storage_errors("stat", self.path):
            file_bytes = os.fstat(self._fd).st_size
        if file_bytes > self.size_bytes:
            self.truncate(self.size_bytes)

    def close(self) -> None:
        """Close the file without truncating it: call `trim` first if zeros may follow."""
        with self._closing, storage_errors("close", self.path):
            fd, self._fd = self._fd, -1
            if fd >= 0:
                self._calls.close(fd)


_CANNOT_RESERVE: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
_FILE_MODE: Final = 0o644
_DIR_MODE: Final = 0o755


class Disk:
    """Files and directories by path. Holds no state, so one serves any number of logs."""

    def __init__(self, calls: SystemCalls | None = None) -> None:
        self._calls = SystemCalls() if calls is None else calls
        self.on_failed_fsync: Callable[[FsyncError], None] = lambda _error: None
        """Called with each failed fsync, on the thread that it failed on."""

    # -- files that grow

    def open_append(
        self, path: Path, *, size_bytes: int | None = None, is_new: bool = False
    ) -> AppendFile:
        """Open a file to append to, after its first `size_bytes` bytes (all of them if None).

        With `is_new` the file must not exist yet.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if is_new else 0)
        with storage_errors("open", path):
            fd = self._calls.open(path, flags, _FILE_MODE)
            allocated = os.fstat(fd).st_size
        end = allocated if size_bytes is None else min(size_bytes, allocated)
        file = AppendFile(self._calls, path, fd, end, allocated)
        file.on_failed_fsync = self.on_failed_fsync
        return file

    # -- files that are written at once

    def write_file(
        self, path: Path, data: Buffer, *, is_synced: bool = True, mode: int = _FILE_MODE
    ) -> None:
        """Give the file this content. A crash before the end may leave a part of it. `mode` is for
        a file that does not exist yet."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with storage_errors("write", path):
            fd = self._calls.open(path, flags, mode)
            try:
                written = 0
                while written < len(data):
                    rest = memoryview(data)[written:]
                    written += self._calls.pwrite(fd, rest, written)
                if is_synced:
                    self._sync(fd, path)
            finally:
                self._calls.close(fd)

    def write_atomically(self, path: Path, data: Buffer, *, mode: int = _FILE_MODE) -> None:
        """Replace the content of a file, durably: after a crash it has the old or the new one."""
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        try:
            self.write_file(temporary, data, mode=mode)
            self.rename(temporary, path)
        except StorageError:
            with suppress(OSError):
                self._calls.unlink(temporary)
            raise
        self.fsync_dir(path.parent)

    # -- files in memory

    def map_file(self, path: Path, size_bytes: int) -> memoryview:
        """The file, resized to `size_bytes`, as memory that writes through to it.

        Zeros fill what is new; they take no space until they are written or reserved. Nobody may
        truncate the file below what is still used: touching the rest would be a SIGBUS.
        """
        with storage_errors("map", path):
            fd = self._calls.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
            try:
                self._calls.ftruncate(fd, size_bytes)
                if size_bytes == 0:
                    return memoryview(bytearray())
                return memoryview(self._calls.map(fd, size_bytes))
            finally:
                self._calls.close(fd)

    def reserve(self, path: Path, start: int, end: int) -> None:
        """Take space for bytes [start, end) of a file, so that mapped writes there cannot fail.

        A mapped write for which the disk has no space would end the process with SIGBUS. File
        systems that cannot reserve are left to that risk.
        """
        with storage_errors("reserve space", path):
            fd = self._calls.open(path, os.O_RDWR | os.O_CLOEXEC, _FILE_MODE)
            try:
                self._calls.posix_fallocate(fd, start, end - start)
            except OSError as error:
                if error.errno not in _CANNOT_RESERVE:
                    raise
            finally:
                self._calls.close(fd)

    # -- any file

    def truncate(self, path: Path, size_bytes: int) -> None:
        with storage_errors("truncate", path):
            self._calls.truncate(path, size_bytes)

    def fsync(self, path: Path) -> None:
        """Make everything in the file durable, also what was written through mappings."""
        self._fsync(path, os.O_RDONLY)

    def fsync_dir(self, path: Path) -> None:
        """Make the names in the directory durable: files created, renamed and removed."""
        self._fsync(path, os.O_RDONLY | os.O_DIRECTORY)

    def _fsync(self, path: Path, flags: int) -> None:
        with storage_errors("fsync", path):
            fd = self._calls.open(path, flags | os.O_CLOEXEC, _FILE_MODE)
            try:
                self._sync(fd, path)
            finally:
                self._calls.close(fd)

    def _sync(self, fd: int, path: Path) -> None:
        try:
            self._calls.fsync(fd)
        except OSError as error:
            failure = fsync_error(error, path)
            self.on_failed_fsync(failure)
            raise failure from error

    def drop_cache(self, path: Path) -> None:
        """Drop the file from the page cache, so that the next read comes from the disk. After a
        failed fsync, the cache may have data that was never written."""
        with storage_errors("drop the cache of", path):
            fd = self._calls.open(path, os.O_RDONLY | os.O_CLOEXEC, _FILE_MODE)
            try:
                self._calls.drop_cache(fd)
            finally:
                self._calls.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, and replace the target if there is one. Durable only after `fsync_dir`."""
        with storage_errors(f"rename to {target.name}", source):
            self._calls.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name. Durable only after `fsync_dir`; the target must not exist."""
        with storage_errors(f"link to {target.name}", source):
            self._calls.link(source, target)

    def patch(self, path: Path, parts: Iterable[tuple[int, bytes]]) -> None:
        """Overwrite parts of a file, each at its position. Durable only after `fsync`."""
        with storage_errors("write", path):
            fd = self._calls.open(path, os.O_RDWR | os.O_CLOEXEC, _FILE_MODE)
            try:
                for position, data in parts:
                    written = 0
                    while written < len(data):
                        rest = memoryview(data)[written:]
                        written += self._calls.pwrite(fd, rest, position + written)
            finally:
                self._calls.close(fd)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> bool:
        """Remove a file; returns whether there was one."""
        with storage_errors("remove", path):
            try:
                self._calls.unlink(path)
            except FileNotFoundError:
                if not missing_ok:
                    raise
                return False
        return True

    def mtime_ms(self, path: Path) -> int:
        with storage_errors("stat", path):
            return path.stat().st_mtime_ns // NS_PER_MS

    def set_mtime_ms(self, path: Path, mtime_ms: int) -> None:
        with storage_errors("set the time of", path):
            self._calls.utime(path, mtime_ms * NS_PER_MS)

    def mode_of(self, path: Path) -> int:
        """The permission bits of a file."""
        with storage_errors("stat", path):
            return stat.S_IMODE(path.stat().st_mode)

    def can_stand_for(self, path: Path, other: Path) -> bool:
        """Whether a file has one name only, and the owner and mode of the other one."""
        with storage_errors("stat", path):
            mine, theirs = path.stat(), other.stat()
        owners = (mine.st_uid, mine.st_gid) == (theirs.st_uid, theirs.st_gid)
        return mine.st_nlink == 1 and owners and mine.st_mode == theirs.st_mode

    def set_mode(self, path: Path, mode: int) -> None:
        with storage_errors("set the mode of", path):
            self._calls.chmod(path, mode)

    def exists(self, path: Path) -> bool:
        return path.exists()

    def size_of(self, path: Path) -> int | None:
        """None when there is no such file."""
        with storage_errors("stat", path):
            try:
                return path.stat().st_size
            except FileNotFoundError:
                return None

    # -- directories

    def list_names(self, path: Path) -> list[str]:
        """Names in the directory, sorted."""
        with storage_errors("list", path):
            return sorted(os.listdir(path))  # noqa: PTH208 - names, not paths

    def mkdir(self, path: Path, *, exist_ok: bool = False) -> None:
        """Create a directory. Durable only after `fsync_dir` of the parent."""
        with storage_errors("create", path):
            try:
                self._calls.mkdir(path, _DIR_MODE)
            except FileExistsError:
                if not (exist_ok and path.is_dir()):
                    raise

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and its content. What is already gone is no error."""
        with storage_errors("remove", path):
            try:
                names = os.listdir(path)  # noqa: PTH208 - names, not paths
            except FileNotFoundError:
                return
            for name in names:
                child = path / name
                if stat.S_ISDIR(child.lstat().st_mode):
                    self.remove_tree(child)
                else:
                    self.unlink(child, missing_ok=True)
            self._calls.rmdir(path)

    def lock(self, path: Path) -> FileLock:
        """Take the lock that a Kafka broker takes on its `.lock`, or raise LockedError.

        The kernel drops it when the process ends, however it ends.
        """
        with storage_errors("lock", path):
            fd = self._calls.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
            return FileLock(path, fd)

    # -- one writer

    def for_this_process(self) -> Disk:
        """The same disk, which refuses all changes in a forked child."""
        disk = Disk(self._calls)
        detach_in_children(disk)
        return disk

    def detach(self) -> None:
        """In a forked child: refuse all changes."""
        changing = [each.name for each in fields(self._calls) if each.name != "close"]
        self._calls = replace(self._calls, **dict.fromkeys(changing, _refuse))


def _refuse(*_: object) -> NoReturn:
    raise OSError(errno.EPERM, inherited_reason())
