"""`RemotePath`: the place of a file in a store, as a `pathlib.Path`.

All reading code names files by `Path`. A `RemotePath` is one whose name is a URI and whose files
are in a `Store`, so the same code reads both; it asks `storage.log_file` for the bytes. Writing
code passes paths to the operating system: there a `RemotePath` raises, it never becomes a local
name.

`location` turns what users write into one or the other.
"""

from __future__ import annotations

import os
import re
import stat
from fnmatch import fnmatchcase
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Any, Final, NoReturn

from stratalog.errors import UnsupportedError
from stratalog.storage.store import LISTING_AGE_MAX_S, Store, StoredFile, store_of
from stratalog.storage.store_options import StoreKey, merged_options, split_uri

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

WHOLE_FILE_BYTES: Final = 2 << 20
"""A file of up to this size is fetched with one request."""
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_HTTP: Final = frozenset({"http", "https"})
_ROOTED: Final = frozenset({"hdfs", "viewfs"})

_defaults: dict[str, str] = {}


def set_default_options(options: Mapping[str, str]) -> None:
    """Options of every `location` that gets none: those of a command line."""
    _defaults.clear()
    _defaults.update(options)


def location(where: Path | str, options: Mapping[str, str] | None = None) -> Path:
    """A path on a disk, or in a store if `where` is a URI. `file:` URIs are on a disk.

    `options` are those of the store; by default those of the command line.
    """
    if isinstance(where, Path):
        return where
    if re.match(r"file:/", where, re.IGNORECASE):
        return Path(re.sub(r"\A//[^/]*", "", where[len("file:") :]))
    if _URI.match(where) is None:
        return Path(where)
    scheme, authority, rest, credentials = split_uri(where)
    given = merged_options(_defaults if options is None else options, credentials)
    key = StoreKey(scheme, authority, tuple(sorted(given.items())))
    return RemotePath(key, rest.strip("/"))


class RemotePath(PosixPath):
    """A file or directory of a store. Immutable; pickles with the options of its store."""

    def __new__(cls, store: StoreKey, inner: str) -> RemotePath:
        return object.__new__(cls)

    def __init__(self, store: StoreKey, inner: str) -> None:
        """`inner` is the path inside the bucket, container or host."""
        self._key = store
        self._inner = inner

    # -- as a path

    def __reduce__(self) -> tuple[Any, ...]:
        return (RemotePath, (self._key, self._inner))

    def __str__(self) -> str:
        root = f"{self._key.scheme}://{self._key.authority}"
        return f"{root}/{self._inner}" if self._inner else root

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __fspath__(self) -> NoReturn:
        raise UnsupportedError(
            f"{self}: this needs a directory on a disk; logs in a store can be read, not changed"
        )

    @property
    def _parts(self) -> NoReturn:
        """Used by `Path(path)`, up to Python 3.11."""
        self.__fspath__()

    @property
    def _raw_paths(self) -> NoReturn:
        """The same, from Python 3.12 on."""
        self.__fspath__()

    def __hash__(self) -> int:
        return hash((self._key, self._inner))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RemotePath):
            return False
        return (self._key, self._inner) == (other._key, other._inner)

    def __lt__(self, other: object) -> bool:
        return str(self) < str(other)

    def __gt__(self, other: object) -> bool:
        return str(self) > str(other)

    def __le__(self, other: object) -> bool:
        return str(self) <= str(other)

    def __ge__(self, other: object) -> bool:
        return str(self) >= str(other)

    def __truediv__(self, name: Any) -> RemotePath:
        inner = "/".join(part for part in (self._inner, str(name).strip("/")) if part)
        return RemotePath(self._key, inner)

    def joinpath(self, *names: Any) -> RemotePath:
        found = self
        for name in names:
            found = found / name
        return found

    def as_posix(self) -> str:
        return str(self)

    @property
    def name(self) -> str:
        return self._inner.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        stem, dot, ending = self.name.rpartition(".")
        return dot + ending if stem else ""

    @property
    def stem(self) -> str:
        return self.name.removesuffix(self.suffix)

    @property
    def parts(self) -> tuple[str, ...]:
        root = f"{self._key.scheme}://{self._key.authority}"
        return (root, *self._inner.split("/")) if self._inner else (root,)

    @property
    def parent(self) -> RemotePath:
        return RemotePath(self._key, self._inner.rpartition("/")[0])

    @property
    def parents(self) -> tuple[RemotePath, ...]:
        found = []
        path = self
        while path._inner:
            path = path.parent
            found.append(path)
        return tuple(found)

    def with_name(self, name: str) -> RemotePath:
        return self.parent / name

    def is_absolute(self) -> bool:
        return True

    def absolute(self) -> RemotePath:
        return self

    def resolve(self, strict: bool = False) -> RemotePath:
        del strict
        return self

    # -- in its store

    @property
    def store(self) -> Store:
        return store_of(self._key)

    @property
    def key(self) -> str:
        """The path as the file system of the store names it."""
        scheme, authority = self._key.scheme, self._key.authority
        if scheme in _HTTP:
            return str(self)
        if scheme in _ROOTED:
            return f"/{self._inner}"
        root = authority.rpartition("@")[0] or authority  # Azure: container@account
        return f"{root}/{self._inner}" if self._inner else root

    def listed(self, *, age_max_s: float = LISTING_AGE_MAX_S) -> dict[str, StoredFile]:
        """The names in this directory; none if it does not exist. Uses a cached listing of the last
        seconds, or of the last `age_max_s`."""
        return self.store.list(self.key, self, age_max_s=age_max_s)

    def status(self) -> StoredFile | None:
        """What the last listing of its directory says of this file, or else the store."""
        found, is_listed = self.store.known(self.key)
        return found if is_listed else self.store.status(self.key, self)

    @property
    def is_listed(self) -> bool:
        """Whether the last listing of its directory has this file. Costs no request."""
        found, _ = self.store.known(self.key)
        return found is not None and not found.is_dir

    def iterdir(self) -> Iterator[RemotePath]:  # type: ignore[override]  # of this class
        return (self / name for name in self.listed())

    def glob(self, pattern: str) -> Iterator[RemotePath]:  # type: ignore[override]
        return (self / name for name in self.listed() if fnmatchcase(name, pattern))

    def exists(self) -> bool:
        return self.is_dir() or self.is_file()

    def is_dir(self) -> bool:
        found, is_listed = self.store.known(self.key)
        return found.is_dir if is_listed and found is not None else bool(self.listed())

    def is_file(self) -> bool:
        found = self.parent.listed().get(self.name)
        return found is not None and not found.is_dir

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        del follow_symlinks
        found = self.status()
        if found is None:
            raise FileNotFoundError(2, "No such file", str(self))
        mode = stat.S_IFDIR | 0o555 if found.is_dir else stat.S_IFREG | 0o444
        seconds = found.mtime_ns // 1_000_000_000
        fields = (mode, 0, 0, 1, 0, 0, found.size_bytes, seconds, seconds, seconds)
        return os.stat_result(fields, {"st_mtime_ns": found.mtime_ns})

    def read_bytes(self) -> bytes:
        return self.store.read_file(self.key, self)
