"""Disks that fail and disks that forget, for everything that writes.

Both work on a real directory through the code of `storage.disk`: only the system calls beneath it
are replaced. So readers, which open files themselves, see what the writer wrote.

* `SimulatedDisk` remembers what was fsynced. `crash` turns the directory into one of the states
  that a power loss may leave: unsynced bytes are there, gone, zero or torn, in any mixture of
  sectors; unsynced creations, renames and removals have happened or not, in order or not. An
  fsync may fail (`fail_fsync_of`) as it does on Linux: what was to be written is dropped, yet
  reads return it from the cache, until that is dropped too; later fsyncs succeed without it.
* `FaultyDisk` lets the n-th changing call fail, once or from then on, a write perhaps halfway.
"""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from stratalog.storage.disk import Disk, SystemCalls

if TYPE_CHECKING:
    import mmap
    import random
    from collections.abc import Callable, Iterator

    from stratalog.format.buffers import Buffer

SECTOR_BYTES = 512


@dataclass
class _File:
    durable: bytes = b""
    """As of the last fsync."""
    live: bytes = b""
    """As of now, once the file has lost its name or the power is gone."""
    cached: bytes | None = None
    """As of the last fsync, if one has failed since the cache was dropped: sectors that are still
    so count as written, though they may not be on the disk."""

    def on_disk(self, live: bytes) -> bytes:
        """What an fsync leaves on the disk of a file that is read as `live`."""
        if self.cached is None:
            return live
        sectors = []
        for start in range(0, len(live), SECTOR_BYTES):
            end = start + SECTOR_BYTES
            is_dirty = live[start:end] != self.cached[start:end]
            sector = live[start:end] if is_dirty else self.durable[start:end]
            sectors.append(sector.ljust(SECTOR_BYTES, b"\0"))
        return b"".join(sectors)[: len(live)]

    def sync(self, live: bytes) -> None:
        self.durable = self.on_disk(live)
        if self.cached is not None:
            self.cached = live

    def after_crash(self, rng: random.Random) -> bytes:
        old, new = self.durable, self.live
        how = rng.randrange(4)
        if how == 0 or old == new:
            return old
        if how == 1:
            return new
        if how == 2 and new.startswith(old):
            return new[: rng.randint(len(old), len(new))]
        return self._mixed_sectors(rng)

    def _mixed_sectors(self, rng: random.Random) -> bytes:
        """Each sector and the length as one of the two versions has it."""
        low, high = sorted((len(self.durable), len(self.live)))
        size = rng.choice([low, high, rng.randint(low, high)])
        sectors = []
        for start in range(0, size, SECTOR_BYTES):
            chosen = rng.choice([self.durable, self.live])[start : start + SECTOR_BYTES]
            sectors.append(chosen.ljust(SECTOR_BYTES, b"\0"))
        return b"".join(sectors)[:size]


@dataclass
class _Dir:
    durable: dict[str, _Node] = field(default_factory=dict)
    """Names as of the last fsync of the directory."""
    live: dict[str, _Node] = field(default_factory=dict)
    journal: list[Callable[[dict[str, _Node]], None]] = field(default_factory=list)
    """What was done to `live` since."""

    def do(self, change: Callable[[dict[str, _Node]], None]) -> None:
        change(self.live)
        self.journal.append(change)

    def sync(self) -> None:
        self.durable = dict(self.live)
        self.journal.clear()

    def after_crash(self, rng: random.Random) -> dict[str, _Node]:
        names = dict(self.durable)
        kept = rng.randint(0, len(self.journal))
        is_ordered = rng.random() < 0.5
        for number, change in enumerate(self.journal):
            if number < kept if is_ordered else rng.random() < 0.5:
                change(names)
        return names


_Node: TypeAlias = _File | _Dir


def _link(name: str, node: _Node, names: dict[str, _Node]) -> None:
    names[name] = node


def _unlink(name: str, names: dict[str, _Node]) -> None:
    names.pop(name, None)


def _rename(source: str, target: str, node: _Node, names: dict[str, _Node]) -> None:
    names.pop(source, None)
    names[target] = node


class SimulatedDisk:
    """The directory `root` and all below it, on a disk that forgets what was not synced."""

    def __init__(self, root: Path) -> None:
        """What is there already counts as synced."""
        self.root = root
        self.calls = SystemCalls(
            open=self._open,
            close=self._close,
            fsync=self._fsync,
            rename=self._rename,
            link=self._link_file,
            unlink=self._unlink,
            mkdir=self._mkdir,
            rmdir=self._rmdir,
            drop_cache=self._drop_cache,
        )
        self.disk = Disk(self.calls)
        self.fail_fsync_of = ""
        """The next fsync of a path that ends so fails."""
        self._fds: dict[int, _Node] = {}
        self._left: dict[int, bytes] = {}
        self._tree = self._load(root)

    def crash(self, rng: random.Random) -> None:
        """Lose power, and come up again. Whatever was open before must not be used any more."""
        self._fds.clear()
        self._note_live(self._tree, self.root)
        self._left.clear()
        contents = dict(self._contents_after_crash(self._tree, Path(), rng))
        for child in self.root.iterdir():
            shutil.rmtree(child) if child.is_dir() else child.unlink()
        for path, content in contents.items():
            if content is None:
                (self.root / path).mkdir(exist_ok=True)
            else:
                (self.root / path).write_bytes(content)
        self._tree = self._load(self.root)

    def forget_missing(self) -> None:
        """Files that somebody has removed without this disk are gone for good."""
        self._forget(self._tree, self.root)

    def _forget(self, directory: _Dir, path: Path) -> None:
        for name, node in list(directory.live.items()):
            if isinstance(node, _Dir):
                self._forget(node, path / name)
            elif not (path / name).exists():
                directory.do(partial(_unlink, name))
                directory.sync()

    def _load(self, path: Path) -> _Dir:
        names: dict[str, _Node] = {}
        for child in path.iterdir():
            if child.is_dir():
                names[child.name] = self._load(child)
            else:
                names[child.name] = _File(child.read_bytes())
        return _Dir(dict(names), names)

    def _note_live(self, directory: _Dir, path: Path) -> None:
        for name, node in directory.live.items():
            if isinstance(node, _Dir):
                self._note_live(node, path / name)
            else:
                node.live = node.on_disk((path / name).read_bytes())

    def _contents_after_crash(
        self, directory: _Dir, path: Path, rng: random.Random
    ) -> Iterator[tuple[Path, bytes | None]]:
        for name, node in sorted(directory.after_crash(rng).items(), key=lambda item: item[0]):
            if isinstance(node, _Dir):
                yield path / name, None
                yield from self._contents_after_crash(node, path / name, rng)
            else:
                if id(node) not in self._left:  # it may have two names
                    self._left[id(node)] = node.after_crash(rng)
                yield path / name, self._left[id(node)]

    # -- the calls

    def _node(self, path: Path) -> _Node | None:
        node: _Node | None = self._tree
        for part in path.relative_to(self.root).parts:
            node = node.live.get(part) if isinstance(node, _Dir) else None
        return node

    def _parent(self, path: Path) -> _Dir:
        parent = self._node(path.parent)
        assert isinstance(parent, _Dir), f"{path} was not made through this disk"
        return parent

    def _open(self, path: Path, flags: int, mode: int) -> int:
        fd = os.open(path, flags, mode)
        node = self._node(path)
        if node is None:
            node = _File()
            self._parent(path).do(partial(_link, path.name, node))
        self._fds[fd] = node
        return fd

    def _close(self, fd: int) -> None:
        self._fds.pop(fd, None)
        os.close(fd)

    def _fsync(self, fd: int) -> None:
        node, opened = self._fds[fd], Path(f"/proc/self/fd/{fd}")
        # A handle that only appends cannot read: go by its entry in /proc.
        live = b"" if isinstance(node, _Dir) else opened.read_bytes()
        if self.fail_fsync_of and str(opened.readlink()).endswith(self.fail_fsync_of):
            self.fail_fsync_of = ""
            if isinstance(node, _File):
                node.cached = live
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if isinstance(node, _Dir):
            node.sync()
        else:
            node.sync(live)

    def _drop_cache(self, fd: int) -> None:
        node, path = self._fds[fd], Path(f"/proc/self/fd/{fd}").readlink()
        if isinstance(node, _File) and node.cached is not None:
            live = path.read_bytes()
            with path.open("r+b") as file:
                file.write(node.on_disk(live))
            node.cached = None

    def _rename(self, source: Path, target: Path) -> None:
        node, replaced = self._node(source), self._node(target)
        if isinstance(replaced, _File):
            replaced.live = target.read_bytes()
        os.replace(source, target)  # noqa: PTH105 - the call itself is the subject
        assert node is not None
        if source.parent == target.parent:
            self._parent(target).do(partial(_rename, source.name, target.name, node))
        else:
            self._parent(target).do(partial(_link, target.name, node))
            self._parent(source).do(partial(_unlink, source.name))

    def _link_file(self, source: Path, target: Path) -> None:
        node = self._node(source)
        assert node is not None
        os.link(source, target)
        self._parent(target).do(partial(_link, target.name, node))

    def _unlink(self, path: Path) -> None:
        node = self._node(path)
        live = path.read_bytes()
        path.unlink()
        if isinstance(node, _File):
            node.live = live
        self._parent(path).do(partial(_unlink, path.name))

    def _mkdir(self, path: Path, mode: int) -> None:
        path.mkdir(mode)
        self._parent(path).do(partial(_link, path.name, _Dir()))

    def _rmdir(self, path: Path) -> None:
        path.rmdir()
        self._parent(path).do(partial(_unlink, path.name))


@dataclass(frozen=True)
class Fault:
    """Which changing call fails, counted from 1, and how."""

    at: int
    errno: int = errno.EIO
    is_lasting: bool = False
    """Every later call fails too, as on a disk that stays full."""
    written: float = 0.0
    """Part of the data that a failing write leaves in the file all the same."""
    is_short: bool = False
    """If it is a write, it takes that part and says so; the call after it fails."""


class FaultyDisk:
    """A disk whose changing calls are counted, and fail as told."""

    def __init__(self, calls: SystemCalls | None = None, fault: Fault | None = None) -> None:
        self._inner = SystemCalls() if calls is None else calls
        self.fault = fault
        self.history: list[str] = []
        """The names of the changing calls so far."""
        self.calls = SystemCalls(
            open=self._open,
            close=self._inner.close,
            pwrite=self._pwrite,
            fsync=self._counted("fsync"),
            ftruncate=self._counted("ftruncate"),
            truncate=self._counted("truncate"),
            posix_fallocate=self._counted("posix_fallocate"),
            rename=self._counted("rename"),
            link=self._counted("link"),
            unlink=self._counted("unlink"),
            mkdir=self._counted("mkdir"),
            rmdir=self._counted("rmdir"),
            utime=self._counted("utime"),
            chmod=self._counted("chmod"),
            map=self._map,
            drop_cache=self._inner.drop_cache,
        )
        self.disk = Disk(self.calls)

    @property
    def has_failed(self) -> bool:
        return self.fault is not None and len(self.history) >= self.fault.at

    def fail_next(self, number: int = errno.EIO, *, skip: int = 0) -> None:
        """Let the next changing call fail, or the one after `skip` others."""
        self.fault = Fault(len(self.history) + 1 + skip, number)

    def _is_due(self, name: str) -> bool:
        self.history.append(name)
        fault, count = self.fault, len(self.history)
        if fault is None:
            return False
        first = fault.at + fault.is_short
        return count == first or (fault.is_lasting and count > first)

    def _check(self, name: str) -> None:
        if self._is_due(name):
            raise self._error()

    def _error(self) -> OSError:
        assert self.fault is not None
        return OSError(self.fault.errno, os.strerror(self.fault.errno))

    def _counted(self, name: str) -> Callable[..., Any]:
        call = getattr(self._inner, name)

        def counted(*args: object) -> object:
            self._check(name)
            return call(*args)

        return counted

    def _open(self, path: Path, flags: int, mode: int) -> int:
        if flags & os.O_CREAT:
            self._check("open")
        return self._inner.open(path, flags, mode)

    def _map(self, fd: int, size_bytes: int) -> mmap.mmap:
        self._check("map")
        return self._inner.map(fd, size_bytes)

    def _pwrite(self, fd: int, data: Buffer, position: int) -> int:
        is_due, fault = self._is_due("pwrite"), self.fault
        is_short = fault is not None and fault.is_short and len(self.history) == fault.at
        if fault is None or not (is_due or is_short):
            return self._inner.pwrite(fd, data, position)
        kept = int(len(data) * fault.written)
        if kept:
            self._inner.pwrite(fd, memoryview(data)[:kept], position)
        if is_due:
            raise self._error()
        return kept
