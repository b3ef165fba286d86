"""All I/O of the writer: files that grow, mappings, replacements, renames, and their fsyncs.

Whatever changes the disk or makes it durable is one of the `SystemCalls`, so tests can fail any of
them or forget what no fsync covers, and still run the code below. Reading needs no such door.

Invariants:

* an `OSError` never leaves this module: it becomes a StorageError that names file and operation;
* `write_atomically` leaves the old content or the new one, whenever the power goes;
* a failed fsync is a FsyncError, and `on_failed_fsync` has heard of it before anybody else.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final, NoReturn

from stratalog.errors import AccessDeniedError, StorageError
from stratalog.format.names import TEMPORARY_SUFFIX
from stratalog.storage.append_file import AppendFile
from stratalog.storage.file_lock import FileLock
from stratalog.storage.forking import detach_in_children, inherited_reason
from stratalog.storage.system_calls import SystemCalls, fsync_error, storage_error, told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from stratalog.errors import FsyncError
    from stratalog.format.buffers import Buffer

_CANNOT_RESERVE: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
_FILE_MODE: Final = 0o644
_DIR_MODE: Final = 0o755
_MS_NS: Final = 1_000_000


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
        """Open a file to append to, behind its first `size_bytes` bytes (all of them if None).

        With `is_new` the file must not exist yet.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | (os.O_EXCL if is_new else 0)
        with told("open", path):
            fd = self._calls.open(path, flags, _FILE_MODE)
            allocated = os.fstat(fd).st_size
        end = allocated if size_bytes is None else min(size_bytes, allocated)
        file = AppendFile(self._calls, path, fd, end, allocated)
        file.on_failed_fsync = self.on_failed_fsync
        return file

    # -- files that are written at once

    def write_file(self, path: Path, data: Buffer, *, is_synced: bool = True) -> None:
        """Give the file this content. A crash before the end may leave a part of it."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        with told("write", path):
            fd = self._calls.open(path, flags, _FILE_MODE)
            try:
                written = 0
                while written < len(data):
                    rest = memoryview(data)[written:]
                    written += self._calls.pwrite(fd, rest, written)
                if is_synced:
                    self._sync(fd, path)
            finally:
                self._calls.close(fd)

    def write_atomically(self, path: Path, data: Buffer) -> None:
        """Replace the content of a file, durably: after a crash it has the old or the new one."""
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        try:
            self.write_file(temporary, data)
            self.rename(temporary, path)
        except StorageError:
            with suppress(OSError):
                self._calls.unlink(temporary)
            raise
        self.fsync_dir(path.parent)

    def read_bytes(self, path: Path) -> bytes:
        """All of the content. Raises FileNotFoundError, AccessDeniedError or StorageError."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise
        except PermissionError:
            raise AccessDeniedError(path) from None
        except OSError as error:
            raise storage_error(error, "read", path) from error

    # -- files in memory

    def map_file(self, path: Path, size_bytes: int) -> memoryview:
        """The file, made to be `size_bytes` long, as memory that writes through to it.

        Zeros fill what is new; no space is taken for them until they are touched or reserved.
        Nobody may cut the file below what is still used: touching the rest would be a SIGBUS.
        """
        with told("map", path):
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
        with told("reserve space", path):
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
        with told("truncate", path):
            self._calls.truncate(path, size_bytes)

    def fsync(self, path: Path) -> None:
        """Everything in the file is on disk afterwards, what was written through mappings too."""
        self._fsync(path, os.O_RDONLY)

    def fsync_dir(self, path: Path) -> None:
        """Names in the directory are on disk afterwards: files created, renamed and removed."""
        self._fsync(path, os.O_RDONLY | os.O_DIRECTORY)

    def _fsync(self, path: Path, flags: int) -> None:
        with told("fsync", path):
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
        """Have the next read come from the disk. After a failed fsync, what the kernel could not
        write is still in its memory and looks as if it were on the disk."""
        with told("drop the cache of", path):
            fd = self._calls.open(path, os.O_RDONLY | os.O_CLOEXEC, _FILE_MODE)
            try:
                self._calls.drop_cache(fd)
            finally:
                self._calls.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Durable only after `fsync_dir`. Replaces the target, if there is one."""
        with told(f"rename to {target.name}", source):
            self._calls.rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name. Durable only after `fsync_dir`; the target must not exist."""
        with told(f"link to {target.name}", source):
            self._calls.link(source, target)

    def patch(self, path: Path, parts: Iterable[tuple[int, bytes]]) -> None:
        """Overwrite parts of a file, each at its position. Durable only after `fsync`."""
        with told("write", path):
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
        """Remove a file; whether there was one."""
        with told("remove", path):
            try:
                self._calls.unlink(path)
            except FileNotFoundError:
                if not missing_ok:
                    raise
                return False
        return True

    def mtime_ms(self, path: Path) -> int:
        with told("stat", path):
            return path.stat().st_mtime_ns // _MS_NS

    def set_mtime_ms(self, path: Path, mtime_ms: int) -> None:
        with told("set the time of", path):
            self._calls.utime(path, mtime_ms * _MS_NS)

    def mode_of(self, path: Path) -> int:
        """The permission bits of a file."""
        with told("stat", path):
            return stat.S_IMODE(path.stat().st_mode)

    def can_stand_for(self, path: Path, other: Path) -> bool:
        """Whether a file has one name only, and the owner and mode of the other one."""
        with told("stat", path):
            mine, theirs = path.stat(), other.stat()
        owners = (mine.st_uid, mine.st_gid) == (theirs.st_uid, theirs.st_gid)
        return mine.st_nlink == 1 and owners and mine.st_mode == theirs.st_mode

    def set_mode(self, path: Path, mode: int) -> None:
        with told("set the mode of", path):
            self._calls.chmod(path, mode)

    def exists(self, path: Path) -> bool:
        return path.exists()

    def size_of(self, path: Path) -> int | None:
        """None when there is no such file."""
        with told("stat", path):
            try:
                return path.stat().st_size
            except FileNotFoundError:
                return None

    # -- directories

    def list_names(self, path: Path) -> list[str]:
        """Names in the directory, sorted."""
        with told("list", path):
            return sorted(os.listdir(path))  # noqa: PTH208 - names, not paths

    def mkdir(self, path: Path, *, exist_ok: bool = False) -> None:
        """Durable only after `fsync_dir` of the parent."""
        with told("create", path):
            try:
                self._calls.mkdir(path, _DIR_MODE)
            except FileExistsError:
                if not (exist_ok and path.is_dir()):
                    raise

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and all it holds. What is gone already is no error."""
        with told("remove", path):
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
        with told("lock", path):
            fd = self._calls.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
            return FileLock(path, fd)

    # -- one writer

    def for_this_process(self) -> Disk:
        """The same disk, but in a forked child it refuses all changes: it is the parent's there."""
        disk = Disk(self._calls)
        detach_in_children(disk)
        return disk

    def detach(self) -> None:
        """In a forked child: refuse all changes."""
        changing = [each.name for each in fields(self._calls) if each.name != "close"]
        self._calls = replace(self._calls, **dict.fromkeys(changing, _refuse))


def _refuse(*_: object) -> NoReturn:
    raise OSError(errno.EPERM, inherited_reason())
