"""Stores: S3, Google Cloud Storage, Azure, HDFS and those of fsspec, through `pyarrow.fs`.

A store lists directories, reads ranges of files and writes whole files. Every request goes through
`Store._request`. It repeats requests that may succeed later (a busy server, a dropped connection, a
timeout) with growing delays, and turns final failures into a typed error with the URI:
FileNotFoundError, AccessDeniedError or StoreError. A range that arrives incomplete is requested
again, never returned.

Listings are cached for a while, so that one request returns the sizes of all files of a directory,
and shows which files are missing. Small files are cached too, as long as a listing confirms their
size and time.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections import OrderedDict
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

from stratalog.errors import AccessDeniedError, ConfigError, StoreError, StratalogError
from stratalog.storage.store_options import (
    S3_SCHEMES,
    StoreKey,
    attempts_of,
    azure_arguments,
    fsspec_arguments,
    gcs_arguments,
    redacted,
    s3_arguments,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import ThreadPoolExecutor
    from pathlib import Path

T = TypeVar("T")

ATTEMPTS: Final = 5
FIRST_DELAY_S: Final = 0.1
DELAY_MAX_S: Final = 5.0
FETCH_THREADS: Final = 16
LISTING_AGE_MAX_S: Final = 5.0
"""A listing that is not older is used to open files of the directory."""
LISTED_FILES_MAX: Final = 200_000
KEPT_FILE_BYTES_MAX: Final = 1 << 20
KEPT_BYTES_MAX: Final = 32 << 20
_MARKS: Final = (0xE7, 0x18)
NS_PER_S: Final = 1_000_000_000

_SCHEMES_WITHOUT_RENAME: Final = frozenset({"gs", "gcs", "abfs", "abfss"})
"""These and S3 have no directories either."""
_FILE_OPERATIONS: Final = frozenset({"open", "read", "delete", "copy", "rename"})
"""Operations on a file that should be there."""
_FINAL: Final = re.compile(
    r"ACCESS_DENIED|NO_SUCH_BUCKET|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|"
    r"INVALID_CLIENT_TOKEN_ID|EXPIRED_TOKEN|HTTP status 4(?!08|29)\d\d|No credentials|"
    r"AuthorizationFailure|AuthenticationFailed"
)
_DENIED: Final = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|INVALID_CLIENT_TOKEN_ID|"
    r"EXPIRED_TOKEN|HTTP status 40[13]|AuthorizationFailure|AuthenticationFailed|Forbidden"
)
_MISSING: Final = re.compile(
    r"NO_SUCH_KEY|RESOURCE_NOT_FOUND|HTTP status 404|BlobNotFound|No such file"
)


class FileContent(NamedTuple):
    """A small file as it was received."""

    data: bytes
    written_s: int
    """When it was written; 0: unknown. It may be newer than the listing."""
    version: tuple[bytes, ...] = ()
    """Version of the object that existed before the bytes were requested; empty if there was
    none."""
    is_checked: bool = True
    """Whether the bytes certainly are of that version."""


class StoredFile(NamedTuple):
    """One name in a listing."""

    name: str
    is_dir: bool
    size_bytes: int = 0
    mtime_ns: int = 0


@dataclass(frozen=True)
class Fetch:
    """One request, as `explain` shows it."""

    what: Literal["list", "open", "range"]
    path: Path
    position: int = 0
    size_bytes: int = 0


def _read_exactly(file: Any, position: int, size_bytes: int) -> memoryview:
    """Read this many bytes. Raises OSError if fewer bytes arrive.

    `pyarrow.fs.S3FileSystem` does not notice a short response: the end of the buffer then has its
    old content. So the last byte is set to a mark before the read. If it is the mark afterwards, it
    was not written, or it happens to be equal; a second read with another mark shows which.
    """
    from pyarrow import allocate_buffer  # noqa: PLC0415

    count = 0
    for mark in _MARKS:
        data = memoryview(allocate_buffer(size_bytes)).cast("B")
        data[-1] = mark
        count = file.get_stream(position, size_bytes).readinto(data)
        if count == size_bytes and data[-1] != mark:
            return data
    raise OSError(f"less than {size_bytes} bytes at {position} were received")


def modified_s(handle: Any) -> int:
    """When an open object was written, in seconds; 0 if the store does not say. Costs no request:
    it came with the size."""
    found = handle.metadata() or {}
    text = found.get("Last-Modified", found.get(b"Last-Modified", b""))
    try:
        return int(datetime.fromisoformat(text.decode()).timestamp())
    except (ValueError, AttributeError):
        return 0


def version_of(handle: Any) -> tuple[bytes, ...]:
    """What changes with the content of an open object: the ETag of S3, or else size and time."""
    found = handle.metadata() or {}
    names = ("ETag", "Last-Modified")
    said = (found.get(name, found.get(name.encode(), b"")) for name in names)
    return (*said, str(handle.size()).encode())


def is_same_time(written_s: int, listed_ns: int) -> bool:
    """Whether an object may be the listed one, by its time. True for a store that does not return
    times."""
    listed_s = listed_ns // NS_PER_S
    return not written_s or not listed_s or written_s == listed_s


_noted = threading.local()


@contextmanager
def noted_fetches() -> Iterator[list[Fetch]]:
    """The requests of this thread in this block, in order."""
    before = getattr(_noted, "fetches", None)
    fetches: list[Fetch] = []
    _noted.fetches = fetches
    try:
        yield fetches
    finally:
        _noted.fetches = before


def note_fetch(fetch: Fetch) -> None:
    fetches = getattr(_noted, "fetches", None)
    if fetches is not None:
        fetches.append(fetch)


class Store:
    """One bucket, container or host. Any number of threads may use it."""

    def __init__(self, key: StoreKey) -> None:
        self._key = key
        self._lock = threading.Lock()  # guards the caches
        self._listings: OrderedDict[str, tuple[float, dict[str, StoredFile]]] = OrderedDict()
        self._kept: OrderedDict[str, tuple[StoredFile, FileContent]] = OrderedDict()

    @cached_property
    def filesystem(self) -> Any:
        """The `pyarrow.fs.FileSystem`. Raises ConfigError for wrong options."""
        return _file_system(self._key)

    @cached_property
    def _attempts(self) -> int:
        return attempts_of(dict(self._key.options), self._key.authority, ATTEMPTS)

    # -- listing

    def list(self, key: str, path: Path, *, age_max_s: float = 0.0) -> dict[str, StoredFile]:
        """The names in a directory; none if there is no such directory, as a store without
        directories cannot tell."""
        with self._lock:
            held = self._listings.get(key)
        if held is not None and time.monotonic() - held[0] <= age_max_s:
            return held[1]
        from pyarrow.fs import FileSelector, FileType  # noqa: PLC0415

        note_fetch(Fetch("list", path))
        selector = FileSelector(key, recursive=False, allow_not_found=True)
        listed_at = time.monotonic()
        found: dict[str, StoredFile] = {}
        for info in self._request("list", path, lambda: self.filesystem.get_file_info(selector)):
            is_dir = info.type == FileType.Directory
            if info.base_name and (is_dir or not info.path.endswith("/")):
                size, mtime_ns = (0, 0) if is_dir else (info.size, info.mtime_ns or 0)
                found[info.base_name] = StoredFile(info.base_name, is_dir, size, mtime_ns)
        self._keep_listing(key, (listed_at, found))
        return found

    def _keep_listing(self, key: str, listing: tuple[float, dict[str, StoredFile]]) -> None:
        with self._lock:
            self._listings[key] = listing
            self._listings.move_to_end(key)
            count = sum(len(names) for _, names in self._listings.values())
            while count > LISTED_FILES_MAX and len(self._listings) > 1:
                count -= len(self._listings.popitem(last=False)[1][1])

    def known(self, key: str) -> tuple[StoredFile | None, bool]:
        """What the last listing of its directory says of a file, and whether there is one."""
        directory, _, name = key.rpartition("/")
        with self._lock:
            held = self._listings.get(directory)
        return (None, False) if held is None else (held[1].get(name), True)

    def status(self, key: str, path: Path) -> StoredFile | None:
        """A file or directory as it is now; None if there is none."""
        from pyarrow.fs import FileType  # noqa: PLC0415

        note_fetch(Fetch("open", path))
        info = self._request("get the status of", path, lambda: self.filesystem.get_file_info(key))
        if info.type == FileType.NotFound:
            return None
        is_dir = info.type == FileType.Directory
        size, mtime_ns = (0, 0) if is_dir else (info.size, info.mtime_ns or 0)
        return StoredFile(info.base_name, is_dir, size, mtime_ns)

    # -- reading

    def open(self, key: str, path: Path) -> Any:
        """A `pyarrow.NativeFile`. Raises FileNotFoundError."""
        note_fetch(Fetch("open", path))
        return self._request("open", path, lambda: self.filesystem.open_input_file(key))

    def read_range(self, file: Any, path: Path, position: int, size_bytes: int) -> memoryview:
        """Exactly this many bytes, at least one, of an open file; raises StoreError if fewer
        arrive."""
        return self._request("read", path, lambda: _read_exactly(file, position, size_bytes))

    def read_file(
        self, key: str, path: Path, *, is_complete: Callable[[bytes], bool] | None = None
    ) -> bytes:
        """The content of a small file, in one version. All bytes are of one version, but with the
        size of another they may be truncated: `is_complete` returns whether they are certainly not.
        Raises FileNotFoundError."""
        for _ in range(self._attempts):
            found = self.read_content(key, path)
            if found.is_checked or (is_complete is not None and is_complete(found.data)):
                return found.data
            if self.has_version(key, path, found.version):
                self.note_checked(key, found.version)
                return found.data
            self.forget_content(key)
        reason = "the object was replaced each time it was read"
        raise StoreError(path, "read", 0, reason, self._attempts)

    def read_content(self, key: str, path: Path) -> FileContent:
        """A small file: its size, time and version come with one request, the bytes with the next.
        Raises FileNotFoundError."""
        listed, is_listed = self.known(key)
        if is_listed and (listed is None or listed.is_dir):
            raise FileNotFoundError(2, "No such file", str(path))
        with self._lock:
            kept = self._kept.get(key)
        if kept is not None and kept[0] == listed:
            return kept[1]
        if listed is not None and not listed.size_bytes:
            return FileContent(b"", listed.mtime_ns // NS_PER_S)
        file = self.open(key, path)
        size_bytes, written_s = file.size(), modified_s(file)
        note_fetch(Fetch("range", path, 0, size_bytes))
        data = bytes(self.read_range(file, path, 0, size_bytes)) if size_bytes else b""
        content = FileContent(data, written_s, version_of(file), is_checked=False)
        is_same = listed is not None and size_bytes == listed.size_bytes
        if listed is not None and is_same and is_same_time(written_s, listed.mtime_ns):
            self._keep_file(key, listed, content)
        return content

    def has_version(self, key: str, path: Path, version: tuple[bytes, ...]) -> bool:
        """Whether the object is the one of this version. Raises FileNotFoundError."""
        return version_of(self.open(key, path)) == version

    def note_checked(self, key: str, version: tuple[bytes, ...]) -> None:
        """What is kept of the object of this version need not be checked again."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None and kept[1].version == version:
                self._kept[key] = (kept[0], kept[1]._replace(is_checked=True))

    def _keep_file(self, key: str, listed: StoredFile, content: FileContent) -> None:
        if len(content.data) > KEPT_FILE_BYTES_MAX:
            return
        with self._lock:
            self._kept[key] = (listed, content)
            self._kept.move_to_end(key)
            size_bytes = sum(len(each.data) for _, each in self._kept.values())
            while size_bytes > KEPT_BYTES_MAX:
                size_bytes -= len(self._kept.popitem(last=False)[1][1].data)

    def forget_content(self, key: str) -> None:
        """It was replaced while it was read."""
        with self._lock:
            self._kept.pop(key, None)

    # -- writing

    def write(self, key: str, path: Path, data: bytes) -> None:
        """A whole file, visible when it is complete."""

        def write() -> None:
            with self.filesystem.open_output_stream(key) as stream:
                stream.write(data)

        self._request("write", path, write)
        self.forget(key)

    def open_output(self, key: str, path: Path) -> Any:
        """A `pyarrow.NativeFile` to write to; the file is visible when it is closed. Closed it is
        complete for the store, whatever was written: give it a name that counts only later."""
        return self._request("write", path, lambda: self.filesystem.open_output_stream(key))

    @contextmanager
    def writing(self, key: str, path: Path) -> Iterator[None]:
        """Around what is done with an `open_output`: errors of the store become typed ones."""
        try:
            yield
        except StratalogError:  # some are an OSError as well
            raise
        except OSError as error:
            reason = redacted(str(error), self._key)
            if isinstance(error, PermissionError) or _DENIED.search(reason):
                raise AccessDeniedError(path, reason) from None
            raise StoreError(path, "write", error.errno or 0, reason) from None
        self.forget(key)

    def move(self, key: str, target: str, path: Path) -> None:
        """Rename a file. Stores without renaming copy it, on their own side, and remove the first:
        if that is interrupted, both are there. Raises FileNotFoundError."""
        if self._key.scheme in S3_SCHEMES | _SCHEMES_WITHOUT_RENAME:
            self._request("copy", path, lambda: self.filesystem.copy_file(key, target))
            self.delete(key, path)
        else:
            self.create_dir(target.rpartition("/")[0], path)
            self._request("rename", path, lambda: self.filesystem.move(key, target))
        self.forget(key)
        self.forget(target)

    def delete_tree(self, key: str, path: Path) -> None:
        """Remove a directory and all below; nothing happens if there is none."""
        with suppress(FileNotFoundError):
            self._request("delete", path, lambda: self.filesystem.delete_dir(key))
        with self._lock:
            below = [each for each in self._listings if each == key or each.startswith(f"{key}/")]
            for each in below:
                del self._listings[each]
        self.forget(key)

    def delete(self, key: str, path: Path) -> None:
        """Remove a file; nothing happens if there is none."""
        with suppress(FileNotFoundError):
            self._request("delete", path, lambda: self.filesystem.delete_file(key))
        self.forget(key)

    def create_dir(self, key: str, path: Path) -> None:
        """A directory, where the store has such a thing."""
        if self._key.scheme not in S3_SCHEMES | _SCHEMES_WITHOUT_RENAME:
            self._request("create", path, lambda: self.filesystem.create_dir(key, recursive=True))

    def forget(self, key: str) -> None:
        """Drop cached listings of a changed file's directory and of those above it."""
        with self._lock:
            self._kept.pop(key, None)
            while key:
                key = key.rpartition("/")[0]
                self._listings.pop(key, None)

    # -- requests

    def _request(self, operation: str, path: Path, call: Callable[[], T]) -> T:
        delay_s = FIRST_DELAY_S
        for attempt in range(1, self._attempts + 1):
            try:
                return call()
            except FileNotFoundError:
                raise FileNotFoundError(2, "No such file", str(path)) from None
            except OSError as error:
                reason = redacted(str(error), self._key)
                if _MISSING.search(reason) and operation in _FILE_OPERATIONS:
                    raise FileNotFoundError(2, "No such file", str(path)) from None
                if isinstance(error, PermissionError) or _DENIED.search(reason):
                    raise AccessDeniedError(path, reason) from None
                if attempt == self._attempts or _FINAL.search(reason):
                    raise StoreError(path, operation, error.errno or 0, reason, attempt) from None
            time.sleep(delay_s * (0.5 + time.perf_counter() % 0.5))  # clients do not retry at once
            delay_s = min(delay_s * 2, DELAY_MAX_S)
        raise AssertionError("the last attempt returns or raises")


@cache
def store_of(key: StoreKey) -> Store:
    """The store of this key; one per process, so that connections and listings are shared."""
    return Store(key)


@cache
def fetch_pool() -> ThreadPoolExecutor:
    """Threads that wait for servers; reading releases the interpreter lock."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - not for local files

    return ThreadPoolExecutor(FETCH_THREADS, thread_name_prefix="stratalog-fetch")


def _forget_all() -> None:
    """Neither threads nor connections survive a fork."""
    store_of.cache_clear()
    fetch_pool.cache_clear()


os.register_at_fork(after_in_child=_forget_all)


def _file_system(key: StoreKey) -> Any:
    """Raises ConfigError for options that the file system does not take, and for a scheme that
    nobody knows."""
    from pyarrow import fs  # noqa: PLC0415

    options = dict(key.options)
    try:
        if key.scheme in S3_SCHEMES:
            return fs.S3FileSystem(**s3_arguments(options, key.authority))
        if key.scheme in {"gs", "gcs"}:
            return fs.GcsFileSystem(**gcs_arguments(options))
        if key.scheme in {"abfs", "abfss"}:
            return fs.AzureFileSystem(**azure_arguments(options, key.authority)[1])
        if key.scheme in {"hdfs", "viewfs"}:
            return fs.FileSystem.from_uri(f"{key.scheme}://{key.authority}/")[0]
        return _fsspec_file_system(key, options)
    except (ValueError, TypeError, NotImplementedError, ImportError, OSError) as error:
        reason = redacted(str(error), key).partition("\n")[0]
        if key.scheme in {"hdfs", "viewfs"}:  # the error lists each place that was searched
            reason += "; it needs Java, libhdfs and the Hadoop class path (HADOOP_HOME, CLASSPATH)"
        uri = f"{key.scheme}://{key.authority}"
        raise ConfigError(uri, f"cannot open the file system: {reason}") from None


def _fsspec_file_system(key: StoreKey, options: dict[str, str]) -> Any:
    from pyarrow import fs  # noqa: PLC0415

    try:
        import fsspec  # noqa: PLC0415
    except ImportError:
        raise ConfigError(
            key.scheme,
            "pyarrow has no file system for this scheme; install fsspec and its package for it",
        ) from None
    if key.scheme not in fsspec.available_protocols():
        reason = (
            "neither pyarrow nor fsspec has a file system for this scheme; check the URI, or "
            "install the fsspec package for it"
        )
        raise ConfigError(key.scheme, reason)
    found = fsspec.filesystem(key.scheme, **fsspec_arguments(options))
    return fs.PyFileSystem(fs.FSSpecHandler(found))
