"""Read-only access to files: the bytes at a position, the content of a directory.

`open_file`, `read_file` and `list_directory` take any path, of a disk or of a store
(`remote_path`). What they return is the same for both.

Files of a live broker shrink (index trimming, truncation), and touching a mapped page that is gone
kills the process with SIGBUS. So nothing here maps: every read of a disk is a `pread` into memory
of its own, and a short result means the file ended.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from errno import ENOENT
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeVar

from stratalog.errors import AccessDeniedError, CorruptError, StoreError, UnsupportedError
from stratalog.format.batch import HEADER_BYTES, MAGIC_2, PEEK_BYTES, BatchHeader, Peek, peek
from stratalog.format.resync import FoundBatch, IncompleteBatch, find_next_batch
from stratalog.storage.closeable import Closeable
from stratalog.storage.disk import storage_error
from stratalog.storage.remote_path import RemotePath

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

T = TypeVar("T")

WALK_WINDOW_BYTES = 4096
ZERO_CHECK_BYTES: Final = 1 << 20


def read_file(
    path: Path, *, has_checksum: bool = False, is_complete: Callable[[bytes], bool] | None = None
) -> bytes:
    """The content of a small file. Raises FileNotFoundError, NotADirectoryError (a part of the path
    is a file), AccessDeniedError or StorageError.

    With `has_checksum`, or if it `is_complete`, there is no request to a store to find out whether
    the file was replaced meanwhile."""
    try:
        if isinstance(path, RemotePath):
            if has_checksum:
                is_complete = _is_anything
            return path.store.read_file(path.key, path, is_complete=is_complete)
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, AccessDeniedError):
        raise
    except PermissionError:
        raise AccessDeniedError(path) from None
    except OSError as error:
        raise storage_error(error, "read", path) from error


def _is_anything(_: bytes) -> bool:
    return True


def check_absent(path: Path) -> None:
    """For a file that was not found. Raises StoreError if a store has listed it: it was removed
    since, or the store is inconsistent, so it must not count as absent."""
    if isinstance(path, RemotePath) and path.is_listed:
        reason = "the store has listed this object, but does not have it; try again"
        raise StoreError(path, "read", ENOENT, reason)


def read_decoded(path: Path, decode: Callable[[bytes], T]) -> T | None:
    """The decoded content of a small file; None if there is no such file. An error for a corrupt
    file names it."""
    try:
        return decode(read_file(path))
    except FileNotFoundError:
        check_absent(path)
        return None
    except CorruptError as error:
        raise error.located(path) from None


class FileIdentity(NamedTuple):
    """Distinguishes a file from one that gets its name later.

    The inode alone does not: the number of a removed file is reused for the next one, and that may
    be what compaction puts in the place of a segment. Renaming changes none of these.
    """

    inode: int
    size_bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)

    def may_have_grown_to(self, other: FileIdentity) -> bool:
        """Whether `other` may be this file after some appends."""
        return self.inode == other.inode and self.size_bytes <= other.size_bytes


class LogFile(Closeable):
    """A file held open for reading."""

    path: Path

    def fileno(self) -> int:
        """For system calls on the open file, which closes with the last reference to this. Only
        a file of a disk has one."""
        raise UnsupportedError(f"{self.path}: only local files can be sent without a copy")

    @property
    @abstractmethod
    def identity(self) -> FileIdentity:
        """Identity of the open file as it is now, whatever its name."""

    @property
    def size_bytes(self) -> int:
        """Now; a live file grows."""
        return self.identity.size_bytes

    @abstractmethod
    def read(self, position: int, size_bytes: int) -> bytes:
        """Up to `size_bytes` bytes; fewer only at the end of the file."""

    @abstractmethod
    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill `buffer` from `position` on; returns how many bytes, fewer only at the end."""

    def expect(self, position: int, end: int) -> None:  # nothing to do on a disk
        """The bytes in [position, end) will be read in order: a store fetches them ahead."""

    def check_unchanged(self) -> None:  # as above
        """Raise SegmentGoneError if the file was replaced while it was read. A file of a disk is
        not, as long as it is open."""

    def check_one_version(self) -> None:
        """Like `check_unchanged`, unless all that was read came with one request: then it is of one
        version, that of the listing or a later one."""
        self.check_unchanged()

    def peek(self, position: int) -> Peek | None:
        """The first bytes of the entry at `position`, decoded; None at the end of the file."""
        return peek(self.read(position, PEEK_BYTES))

    def is_zero(self, position: int, end: int) -> bool:
        """Whether there is nothing but zeros in [position, end), as far as the file goes."""
        for start in range(position, end, ZERO_CHECK_BYTES):
            data = self.read(start, min(ZERO_CHECK_BYTES, end - start))
            if data.count(0) != len(data):
                return False
        return True

    def walk(self, position: int, end: int, *, offset_min: int) -> Iterator[tuple[int, Peek]]:
        """Position and peek of each complete, plausible entry in [position, end), headers only.

        Ends at the first entry that is incomplete or implausible. Small batches share one read; of
        large ones only the headers are read.
        """
        window, window_at, window_bytes = b"", position, PEEK_BYTES
        while 0 <= position < end:
            at = position - window_at
            found = peek(window, at) if at < len(window) else None
            if found is None:
                window, window_at = self.read(position, window_bytes), position
                found = peek(window)
            if found is None or not found.is_plausible(offset_min, end - position):
                return
            yield position, found
            position += found.size_bytes
            window_bytes = WALK_WINDOW_BYTES if found.size_bytes < WALK_WINDOW_BYTES else PEEK_BYTES

    def headers_of(self, walk: Iterable[tuple[int, Peek]]) -> Iterator[tuple[int, BatchHeader]]:
        """The complete headers of the magic-2 batches that a walk passes."""
        window, window_at = b"", 0
        for found_at, found in walk:
            if found.magic != MAGIC_2:
                continue
            if not window_at <= found_at <= window_at + len(window) - HEADER_BYTES:
                window, window_at = self.read(found_at, WALK_WINDOW_BYTES), found_at
            if len(window) - (found_at - window_at) < HEADER_BYTES:
                return  # the file shrank
            yield found_at, BatchHeader.unpack(window, found_at - window_at)


class LocalFile(LogFile):
    """A file of a disk. It stays readable after a rename or delete."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except PermissionError:
            raise AccessDeniedError(path) from None

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            os.close(fd)

    def fileno(self) -> int:
        return self._fd

    @property
    def identity(self) -> FileIdentity:
        return FileIdentity.of(os.fstat(self._fd))

    @property
    def size_bytes(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, position: int, size_bytes: int) -> bytes:
        data = os.pread(self._fd, size_bytes, position)
        if len(data) == size_bytes or not data:
            return data
        return self._read_on(data, position, size_bytes)

    def _read_on(self, data: bytes, position: int, size_bytes: int) -> bytes:
        """Read the remaining bytes: Linux limits a read to 2 GiB, and a signal may interrupt it."""
        parts = [data]
        done = len(data)
        while more := os.pread(self._fd, size_bytes - done, position + done):
            parts.append(more)
            done += len(more)
        return b"".join(parts)

    def read_into(self, buffer: memoryview, position: int) -> int:
        done = 0
        while done < len(buffer):
            count = os.preadv(self._fd, [buffer[done:]], position + done)
            if not count:
                break
            done += count
        return done


def open_file(path: Path, identity: FileIdentity | None = None) -> LogFile:
    """Open a file of a disk or a store. Raises FileNotFoundError and AccessDeniedError.

    `identity` is that of the file that was listed: a store then needs no request to learn its size.
    """
    if isinstance(path, RemotePath):
        from stratalog.storage.remote_file import RemoteFile  # noqa: PLC0415  # it imports this

        return RemoteFile(path, identity)
    return LocalFile(path)


class DirectoryEntry(NamedTuple):
    """A name in a directory."""

    path: Path
    is_dir: bool

    @property
    def name(self) -> str:
        return self.path.name


def list_directory(path: Path) -> list[DirectoryEntry]:
    """What a directory contains, by name. Raises FileNotFoundError, NotADirectoryError and
    AccessDeniedError. In a store, a directory without files does not exist."""
    if isinstance(path, RemotePath):
        found = path.listed()
        if not found:
            is_file = path.is_file()
            kind = NotADirectoryError if is_file else FileNotFoundError
            raise kind(2, "no such directory", str(path))
        return [DirectoryEntry(path / name, found[name].is_dir) for name in sorted(found)]
    try:
        with os.scandir(path) as entries:
            listed = sorted((entry.name, entry.is_dir()) for entry in entries)
    except PermissionError:
        raise AccessDeniedError(path) from None
    return [DirectoryEntry(path / name, is_dir) for name, is_dir in listed]


def list_names(path: Path) -> list[str]:
    """The names in a directory, in order. Raises as `list_directory` does."""
    if isinstance(path, RemotePath):
        return [entry.name for entry in list_directory(path)]
    try:
        return sorted(os.listdir(path))  # noqa: PTH208 - names, not paths
    except PermissionError:
        raise AccessDeniedError(path) from None


RESYNC_WINDOW_BYTES: Final = 1024 * 1024


def next_valid_batch(file: LogFile, position: int, end: int, *, offset_min: int) -> int | None:
    """Position of the first complete batch with a valid CRC in [position, end), or None: where a
    corrupt log continues. Reads windows of bounded size."""
    window_bytes = RESYNC_WINDOW_BYTES
    while position < end:
        window = file.read(position, min(window_bytes, end - position))
        if not window:
            return None
        search = find_next_batch(
            window, 0, len(window), offset_min=offset_min, log_end=end - position
        )
        if isinstance(search, FoundBatch):
            return position + search.entry.position
        if isinstance(search, IncompleteBatch):
            # A false candidate may declare any length, so the window grows for this candidate only.
            window_bytes = max(RESYNC_WINDOW_BYTES, search.end - search.position)
            if search.position == 0 and search.end <= len(window):
                return None
            position += search.position
            continue
        if position + len(window) >= end:
            return None
        position += max(1, search.resume_at)
        window_bytes = RESYNC_WINDOW_BYTES
    return None
