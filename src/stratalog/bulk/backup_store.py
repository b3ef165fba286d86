"""The store of backups: manifests and objects below one URI or directory, and their formats.

    manifests/20261118T093000.123Z-5f3a9c01.json    one per backup
    objects/<sha256>                                a piece of a file, at most `CHUNK_BYTES`

An object is named by the SHA-256 of its content, so it is never overwritten by another content, and
what is there is not sent again. A manifest is written when all objects that it names are there: a
backup without one does not exist. It lists every file with its size and the objects it consists of;
a file of up to `INLINE_BYTES_MAX` is in the manifest itself. Its last field is a checksum of all
the others.

Invariants:

* a manifest is never changed, and an object is removed only when no manifest names it;
* manifests are removed before objects, so an interrupted removal leaves objects that nobody needs,
  never a backup that lacks some.

`find_backup` returns one of its backups, for restores.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stratalog.bulk.workers import JobResult
from stratalog.errors import BackupError, UnsupportedError
from stratalog.format.json_files import as_count, as_text
from stratalog.format.names import TEMPORARY_SUFFIX, TopicPartition
from stratalog.storage.disk import Disk
from stratalog.storage.log_file import FileIdentity, read_file
from stratalog.storage.remote_disk import disk_of, sizes_in
from stratalog.storage.remote_path import location
from stratalog.storage.store import fetch_pool

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

_log: Final = logging.getLogger(__name__)

MANIFESTS: Final = "manifests"
OBJECTS: Final = "objects"
VERSION: Final = 1
CHUNK_BYTES: Final = 16 << 20
INLINE_BYTES_MAX: Final = 1024
_SUFFIX: Final = ".json"


@dataclass(frozen=True)
class BackupJobResult(JobResult):
    """What backups and restores report: which backup it was, and how many files it has."""

    backup_id: str = ""
    files: int = 0


class SavedFile(NamedTuple):
    """One file of a log directory."""

    path: str
    """Below the log directory."""
    size_bytes: int
    mtime_ms: int
    objects: tuple[str, ...] = ()
    """The pieces of its content, in order, each of `chunk_bytes` but the last."""
    data: bytes | None = None
    """The content of a small file."""
    identity: FileIdentity | None = None
    """Identity of the file that was copied. A file with the same identity need not be read
    again."""

    @property
    def directory(self) -> str:
        """The partition directory, or nothing for a file of the log directory itself."""
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class SavedPartition(NamedTuple):
    """A partition, and the offset up to which it was copied."""

    topic: str
    partition: int
    end_offset: int


@dataclass(frozen=True)
class SavedDir:
    """One log directory at one point in time."""

    path: str
    """Where it was."""
    files: tuple[SavedFile, ...]
    partitions: tuple[SavedPartition, ...] = ()
    directories: tuple[str, ...] = ()
    """All partition directories, also those without files."""
    is_live: bool = False
    """It was being written to: the last segment of each log has no indexes here."""
    is_clean: bool = False
    """It was closed cleanly, so nothing has to be recovered."""
    is_settled: bool = True
    """Whether no transaction changed its state while the ends of the logs were looked up."""

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """The offset up to which each log was copied."""
        return {TopicPartition(topic, number): end for topic, number, end in self.partitions}

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True)
class Manifest:
    """One backup."""

    backup_id: str
    created_ms: int
    dirs: tuple[SavedDir, ...]
    chunk_bytes: int = CHUNK_BYTES

    @property
    def files(self) -> Iterator[SavedFile]:
        return (file for each in self.dirs for file in each.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def objects(self) -> dict[str, int]:
        """Every object that the backup needs, with its size."""
        return {name: size for file in self.files for name, size in self.pieces(file)}

    def pieces(self, file: SavedFile) -> Iterator[tuple[str, int]]:
        """The objects of a file with their sizes, in order."""
        for number, name in enumerate(file.objects):
            yield name, min(self.chunk_bytes, file.size_bytes - number * self.chunk_bytes)


class UnreadableBackup(NamedTuple):
    """A backup whose manifest is corrupt, or of a version that is not known here."""

    backup_id: str
    reason: str


def new_backup_id(now_ms: int) -> str:
    """Ids sort by time."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    return f"{now:%Y%m%dT%H%M%S}.{now_ms % 1000:03d}Z-{secrets.token_hex(4)}"


def object_name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# -- manifests as JSON


def encode_manifest(manifest: Manifest) -> bytes:
    content = {
        "version": VERSION,
        "id": manifest.backup_id,
        "createdMs": manifest.created_ms,
        "chunkBytes": manifest.chunk_bytes,
        "dirs": [_dir_json(each) for each in manifest.dirs],
    }
    body = json.dumps(content, separators=(",", ":"))
    checksum = object_name(body.encode())
    return f'{body[:-1]},"checksum":"{checksum}"}}\n'.encode()


def _dir_json(saved: SavedDir) -> dict[str, Any]:
    return {
        "path": saved.path,
        "isLive": saved.is_live,
        "isClean": saved.is_clean,
        "isSettled": saved.is_settled,
        "directories": saved.directories,
        "partitions": [list(each) for each in saved.partitions],
        "files": [_file_json(each) for each in saved.files],
    }


def _file_json(file: SavedFile) -> dict[str, Any]:
    row: dict[str, Any] = {"path": file.path, "size": file.size_bytes, "mtimeMs": file.mtime_ms}
    if file.data is None:
        row["objects"] = file.objects
    else:
        row["data"] = b64encode(file.data).decode()
    if file.identity is not None:
        row["identity"] = list(file.identity)
    return row


def decode_manifest(data: bytes) -> Manifest:
    """Raises BackupError, or UnsupportedError for a version that is not known here."""
    try:
        body, _, end = data.decode().rpartition(',"checksum":"')
        content = json.loads(body + "}")
        if content["version"] != VERSION:
            raise UnsupportedError(f"backup version {content['version']!r} is not supported")
        if end != f'{object_name(f"{body}}}".encode())}"}}\n':
            raise BackupError("its checksum does not match its content")
        return Manifest(
            as_text(content["id"]),
            as_count(content["createdMs"]),
            tuple(map(_dir_of, content["dirs"])),
            as_count(content["chunkBytes"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise BackupError(f"not the manifest of a backup ({error})") from None


def _dir_of(row: Any) -> SavedDir:
    return SavedDir(
        as_text(row["path"]),
        tuple(map(_file_of, row["files"])),
        tuple(SavedPartition(*each) for each in row["partitions"]),
        tuple(map(_checked_path, row["directories"])),
        bool(row["isLive"]),
        bool(row["isClean"]),
        bool(row["isSettled"]),
    )


def _file_of(row: Any) -> SavedFile:
    data = b64decode(row["data"]) if "data" in row else None
    identity = FileIdentity(*row["identity"]) if "identity" in row else None
    path = _checked_path(row["path"])
    objects = tuple(map(_checked_name, row.get("objects", ())))
    return SavedFile(path, as_count(row["size"]), row["mtimeMs"], objects, data, identity)


def _checked_path(path: Any) -> str:
    """A manifest must not name files outside the directory that is restored."""
    parts = as_text(path).split("/")
    if len(parts) > 2 or any(part in {"", ".", ".."} for part in parts):
        raise ValueError(f"{path!r} is not the path of a file in a log directory")
    return "/".join(parts)


def _checked_name(name: Any) -> str:
    if len(as_text(name)) != 64 or "/" in name:
        raise ValueError(f"{name!r} is not the name of an object")
    return str(name)


# -- the store


@dataclass(frozen=True)
class Pruned:
    """What was removed."""

    backups: tuple[str, ...] = ()
    objects: int = 0
    size_bytes: int = 0


@dataclass(frozen=True)
class BackupStore:
    """The place of backups: a directory of a disk or of a store. Pickles, for workers."""

    path: Path
    _made: set[Path] = field(default_factory=set, compare=False, repr=False)

    @classmethod
    def at(cls, where: Path | str) -> BackupStore:
        return cls(location(where).absolute())

    # -- manifests

    def backup_ids(self) -> list[str]:
        """All backups, oldest first."""
        names = sizes_in(self.path / MANIFESTS)
        return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))

    def read_manifest(self, backup_id: str) -> Manifest:
        """Raises BackupError if there is no such backup, or its manifest is corrupt."""
        path = self.path / MANIFESTS / f"{backup_id}{_SUFFIX}"
        try:
            return decode_manifest(read_file(path, has_checksum=True))
        except (FileNotFoundError, NotADirectoryError):
            raise BackupError(f"{self.path}: no backup {backup_id!r}") from None
        except (BackupError, UnsupportedError) as error:
            raise type(error)(f"{path}: {error}") from None

    def find_manifest(self, backup_id: str) -> Manifest | UnreadableBackup:
        """A manifest, or why it cannot be read. Raises StorageError."""
        try:
            return self.read_manifest(backup_id)
        except (BackupError, UnsupportedError) as error:
            return UnreadableBackup(backup_id, str(error))

    def latest(self) -> Manifest | None:
        """The newest backup. Raises BackupError if it cannot be read: nobody asked for an older
        one."""
        ids = self.backup_ids()
        found = self.find_manifest(ids[-1]) if ids else None
        if not isinstance(found, UnreadableBackup):
            return found
        older = self._newest_readable(ids[:-1])
        others = "no other backup can be read"
        if older is not None:
            others = f"the newest readable backup is {older.backup_id} (--backup {older.backup_id})"
        raise BackupError(f"the newest backup cannot be read: {found.reason}; {others}")

    def latest_readable(self) -> Manifest | None:
        """The newest backup that can be read; for what may be skipped, not for what is restored."""
        return self._newest_readable(self.backup_ids())

    def _newest_readable(self, ids: Sequence[str]) -> Manifest | None:
        for each in reversed(ids):
            found = self.find_manifest(each)
            if not isinstance(found, UnreadableBackup):
                return found
            _log.warning("skipped a backup that cannot be read: %s", found.reason)
        return None

    def write_manifest(self, manifest: Manifest) -> None:
        """The backup exists from here on. Raises BackupError if an object is missing."""
        self._check_complete(manifest)
        self._write(MANIFESTS, f"{manifest.backup_id}{_SUFFIX}", encode_manifest(manifest))

    def _check_complete(self, manifest: Manifest) -> None:
        found = self.object_sizes()
        for name, size_bytes in manifest.objects().items():
            if found.get(name) != size_bytes:
                raise BackupError(
                    f"{self.path}: object {name} is missing or incomplete; was it removed while "
                    "the backup was running? Run one backup at a time, and try again"
                )

    # -- objects

    def object_sizes(self) -> dict[str, int]:
        return sizes_in(self.path / OBJECTS)

    def write_object(self, name: str, data: bytes) -> None:
        self._write(OBJECTS, name, data)

    def read_object(self, name: str, size_bytes: int) -> bytes:
        """Raises BackupError unless the content is what its name says."""
        path = self.path / OBJECTS / name
        try:
            data = read_file(path, has_checksum=True)
        except (FileNotFoundError, NotADirectoryError):
            raise BackupError(f"{path}: this object of a backup is missing") from None
        if len(data) != size_bytes or object_name(data) != name:
            raise BackupError(
                f"{path}: checksum mismatch: the content is not what was backed up; a backup with "
                "--verify sends it again, if the log directory still has this content"
            )
        return data

    def _write(self, directory: str, name: str, data: bytes) -> None:
        disk, parent = disk_of(self.path), self.path / directory
        if not isinstance(disk, Disk):
            disk.write_atomically(parent / name, data)
            return
        if parent not in self._made:
            for each in (*reversed(parent.parents), parent):
                if not each.exists():
                    disk.mkdir(each, exist_ok=True)
            self._made.add(parent)
        # Several threads may write the same object.
        temporary = parent / f"{name}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}"
        disk.write_file(temporary, data)
        disk.rename(temporary, parent / name)
        disk.fsync_dir(parent)

    # -- removing

    def prune(self, keep: int, known: Iterable[str] = ()) -> Pruned:
        """Remove all but the newest `keep` backups, and objects that none of those needs.

        A backup that cannot be read does not count. If it is newer than the oldest that is kept, it
        stays, and so do all objects, since nobody knows which ones it needs. Raises BackupError,
        and removes nothing, if one of the `known` backups is not listed."""
        ids = self.backup_ids()
        unlisted = sorted(set(known).difference(ids))
        if unlisted:  # a stale listing: objects of this backup would seem unneeded
            raise BackupError(
                f"{self.path}: backup {unlisted[-1]} is not listed, although it was written; "
                "nothing was removed. Run one backup at a time, and try again"
            )
        kept: list[Manifest] = []
        unreadable: list[UnreadableBackup] = []
        while ids and len(kept) < keep:
            found = self.find_manifest(ids.pop())
            if isinstance(found, UnreadableBackup):
                unreadable.append(found)
            else:
                kept.append(found)
        self._remove_manifests(ids)
        if unreadable:
            _log.warning(
                "objects are not removed, since it is not known which of them this backup needs: "
                "%s; remove its manifest if it cannot be restored from a copy",
                "; ".join(each.reason for each in unreadable),
            )
            return Pruned(tuple(ids))
        needed = {name for manifest in kept for name in manifest.objects()}
        unneeded = {n: size for n, size in self.object_sizes().items() if n not in needed}
        self._remove_objects(unneeded)
        return Pruned(tuple(ids), len(unneeded), sum(unneeded.values()))

    def _remove_manifests(self, ids: Sequence[str]) -> None:
        disk = disk_of(self.path)
        for each in ids:
            disk.unlink(self.path / MANIFESTS / f"{each}{_SUFFIX}", missing_ok=True)
        if not ids:
            return
        disk.fsync_dir(self.path / MANIFESTS)
        left = sorted(set(ids).intersection(self.backup_ids()))
        if left:  # a backup that is listed must not lack objects
            raise BackupError(
                f"{self.path}: backup {left[0]} is still listed, although it was removed; its "
                "objects were not removed. Try again"
            )

    def _remove_objects(self, names: Iterable[str]) -> None:
        disk = disk_of(self.path)

        def remove(name: str) -> None:
            disk.unlink(self.path / OBJECTS / name, missing_ok=True)

        for _ in fetch_pool().map(remove, names):
            pass


# -- one of its backups


class StoredBackup(NamedTuple):
    """A backup, and the store that it is in."""

    store: BackupStore
    manifest: Manifest

    def read_file(self, file: SavedFile) -> bytes:
        """The content of a file. Raises BackupError."""
        if file.data is not None:
            return file.data
        return b"".join(self.store.read_object(*each) for each in self.manifest.pieces(file))


def find_backup(where: Path | str, backup_id: str | None = None) -> StoredBackup:
    """The newest backup, or the one with this id. Raises BackupError."""
    store = BackupStore.at(where)
    manifest = store.latest() if backup_id is None else store.read_manifest(backup_id)
    if manifest is None:
        raise BackupError(f"{store.path}: no backup found")
    return StoredBackup(store, manifest)
