"""Which segments a partition directory has, by its file names, as Kafka's loader decides it.

Compaction may be under way, or was interrupted: `.cleaned` files are unfinished and do not count;
`.swap` files are complete and replace every segment in their offset range, whether the old ones
are gone yet or not. Kafka renames the files when it loads the log; a reader only decides, and never
writes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from stratalog.errors import (
    AccessDeniedError,
    PartitionGoneError,
    SegmentGoneError,
)
from stratalog.format.names import FileKind, FileState, PartitionFile, known_partition_file
from stratalog.storage.log_file import FileIdentity
from stratalog.storage.remote_path import RemotePath
from stratalog.storage.segment_view import SegmentView

RETRIES_MAX: Final = 10
"""If a directory changes more often while it is read, its last listing is used."""


class ListedFile(NamedTuple):
    """One recognized file of a partition directory. Most are only counted, so the path, which is
    slower to build than the name, is built on demand."""

    directory: Path
    name: str
    file: PartitionFile
    identity: FileIdentity

    @property
    def path(self) -> Path:
        return self.directory / self.name

    @property
    def size_bytes(self) -> int:
        return self.identity.size_bytes


class Listing(NamedTuple):
    """A partition directory at one moment."""

    files: tuple[ListedFile, ...]
    segments: tuple[SegmentView, ...]
    """In offset order; an interrupted compaction is resolved."""
    snapshots: tuple[tuple[int, Path], ...]
    """Producer snapshots by their offset, oldest first."""


def list_partition(path: Path, *, age_max_s: float = 0.0) -> Listing:
    """The directory at one moment, without names that Kafka would refuse. In a store, a cached
    listing that is no older than `age_max_s` is used."""
    for _ in range(RETRIES_MAX - 1):
        try:
            return _list_once(path, age_max_s)
        except SegmentGoneError:
            age_max_s = 0.0  # compaction finished meanwhile
    return _list_once(path, 0.0)


def _list_once(path: Path, age_max_s: float) -> Listing:
    files = tuple(sorted(_scan(path, age_max_s), key=lambda listed: listed.name))
    snapshots = tuple(
        (listed.file.base_offset, listed.path)
        for listed in files
        if listed.file.kind is FileKind.PRODUCER_SNAPSHOT
        and listed.file.state is FileState.LIVE
        and listed.file.base_offset is not None
    )
    return Listing(files, _resolve_swaps(files), snapshots)


def _scan(path: Path, age_max_s: float) -> list[ListedFile]:
    """The files of the directory, with sizes.

    Reading a directory is not atomic: a file that is renamed meanwhile may be listed twice or not
    at all. So it is read until nothing has changed. Sizes are read after names: a segment that has
    a successor no longer grows, so its size is final. A store lists names and sizes at once.
    """
    if isinstance(path, RemotePath):
        return _scan_store(path, age_max_s)
    changed_at, entries = _changed_at(path), _entries(path)
    for _ in range(RETRIES_MAX):
        found = [
            ListedFile(path, entry.name, file, FileIdentity.of(status))
            for entry, file in entries
            if (status := _status(entry)) is not None
        ]
        again = _entries(path)
        changed_again_at = _changed_at(path)
        # The clock of a file system may tick slowly, so names are compared too.
        if changed_again_at == changed_at and _log_names(again) == _log_names(entries):
            break
        changed_at, entries = changed_again_at, again
    return found


def _scan_store(path: RemotePath, age_max_s: float) -> list[ListedFile]:
    names = path.listed(age_max_s=age_max_s)
    if not names:
        raise PartitionGoneError(path)
    return [
        ListedFile(path, name, file, FileIdentity(0, found.size_bytes, found.mtime_ns))
        for name, found in names.items()
        if not found.is_dir and (file := known_partition_file(name)) is not None
    ]


def _changed_at(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _entries(path: Path) -> list[tuple[os.DirEntry[str], PartitionFile]]:
    try:
        with os.scandir(path) as entries:
            return [
                (entry, file)
                for entry in entries
                if (file := known_partition_file(entry.name)) is not None
            ]
    except (FileNotFoundError, NotADirectoryError):
        raise PartitionGoneError(path) from None
    except PermissionError:
        raise AccessDeniedError(path) from None


def _log_names(entries: list[tuple[os.DirEntry[str], PartitionFile]]) -> set[str]:
    return {entry.name for entry, file in entries if file.kind is FileKind.LOG}


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    """None for a directory, or a file that a broker removed since the directory was read."""
    try:
        return entry.stat() if entry.is_file() else None
    except FileNotFoundError:
        return None
    except PermissionError:
        raise AccessDeniedError(Path(entry.path).parent) from None


def _resolve_swaps(files: tuple[ListedFile, ...]) -> tuple[SegmentView, ...]:
    live = _logs(files, FileState.LIVE)
    unfinished = _bases(files, FileState.CLEANED)
    # A swap file at or above an unfinished one belongs to a replacement that never completed.
    complete = {
        base: segment
        for base, segment in _logs(files, FileState.SWAP).items()
        if not unfinished or base < min(unfinished)
    }
    if complete:
        first = min(complete)
        next_offset = max(segment.end.next_offset for segment in complete.values())
        live = {base: s for base, s in live.items() if not first <= base < next_offset}
    merged = {**live, **complete}
    return tuple(merged[base] for base in sorted(merged))


def _logs(files: tuple[ListedFile, ...], state: FileState) -> dict[int, SegmentView]:
    return {
        base: SegmentView(listed.path, base, listed.size_bytes, listed.identity)
        for listed in files
        if listed.file.kind is FileKind.LOG
        and listed.file.state is state
        and (base := listed.file.base_offset) is not None
    }


def _bases(files: tuple[ListedFile, ...], state: FileState) -> list[int]:
    return [
        listed.file.base_offset
        for listed in files
        if listed.file.state is state and listed.file.base_offset is not None
    ]
