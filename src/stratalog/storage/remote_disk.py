"""Changes files on a disk or in an object store, depending on the path.

`disk_of` returns a `Disk` for a local path and a `RemoteDisk` for one in a store. Both have the
methods of `Files`, so that what replaces a file atomically on a disk does so in a store.

A store has no directories, no fsync and no locks: an object is there, durable and complete, when
its write returns. What is renamed may be there under both names if the renaming is interrupted.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Final, Protocol

from stratalog.storage.disk import Disk
from stratalog.storage.log_file import list_directory
from stratalog.storage.remote_path import RemotePath

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from stratalog.format.buffers import Buffer


class Files(Protocol):
    """What changes files, on a disk or in a store."""

    def write_atomically(self, path: Path, data: Buffer) -> None:
        """Replace the content of a file, durably: after a crash it has the old or the new one."""
        ...

    def rename(self, source: Path, target: Path) -> None: ...

    def unlink(self, path: Path, *, missing_ok: bool = False) -> bool:
        """Remove a file; returns whether there was one."""
        ...

    def exists(self, path: Path) -> bool: ...

    def list_names(self, path: Path) -> list[str]:
        """Names in the directory, sorted."""
        ...

    def mkdir(self, path: Path, *, exist_ok: bool = False) -> None: ...

    def remove_tree(self, path: Path) -> None: ...

    def fsync(self, path: Path) -> None: ...

    def fsync_dir(self, path: Path) -> None: ...


class RemoteDisk:
    """Files of stores, by `RemotePath`."""

    def write_atomically(self, path: Path, data: Buffer) -> None:
        at = _remote(path)
        at.store.create_dir(at.parent.key, at.parent)
        at.store.write(at.key, at, bytes(data))

    def rename(self, source: Path, target: Path) -> None:
        at = _remote(source)
        at.store.move(at.key, _remote(target).key, at)

    def unlink(self, path: Path, *, missing_ok: bool = False) -> bool:
        """Remove a file. Returns True even if there was none: finding out would take a request."""
        del missing_ok
        at = _remote(path)
        at.store.delete(at.key, at)
        return True

    def exists(self, path: Path) -> bool:
        at = _remote(path)
        return at.store.status(at.key, at) is not None

    def list_names(self, path: Path) -> list[str]:
        return sorted(_remote(path).listed(age_max_s=0.0))

    def mkdir(self, path: Path, *, exist_ok: bool = False) -> None:
        del exist_ok
        at = _remote(path)
        at.store.create_dir(at.key, at)

    def remove_tree(self, path: Path) -> None:
        at = _remote(path)
        at.store.delete_tree(at.key, at)

    def fsync(self, path: Path) -> None:
        """What was written is durable."""

    def fsync_dir(self, path: Path) -> None:
        """What was written is durable."""


def _remote(path: Path) -> RemotePath:
    assert isinstance(path, RemotePath), path
    return path


_REMOTE: Final = RemoteDisk()


def disk_of(path: Path) -> Files:
    """What changes files at this path."""
    return _REMOTE if isinstance(path, RemotePath) else Disk()


def locked(disk: Files, path: Path) -> AbstractContextManager[object]:
    """Hold the lock on a file of a disk. Raises LockedError. In a store nobody can lock."""
    return disk.lock(path) if isinstance(disk, Disk) else nullcontext()


def sizes_in(path: Path) -> dict[str, int]:
    """The files of a directory with their sizes; none if there is no such directory."""
    if isinstance(path, RemotePath):
        listed = path.listed(age_max_s=0.0)
        return {name: each.size_bytes for name, each in listed.items() if not each.is_dir}
    try:
        entries = list_directory(path)
    except FileNotFoundError:
        return {}
    return {each.name: each.path.stat().st_size for each in entries if not each.is_dir}
