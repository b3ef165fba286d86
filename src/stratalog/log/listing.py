"""What a partition directory holds, told from its file names as Kafka's loader would.

A directory may be caught in the middle of compaction: `.cleaned` files are unfinished and worth
nothing; `.swap` files are complete and stand for every segment in their offset range, whether the
old ones are gone yet or not. Kafka settles this by renaming at load; a reader, in its head.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from stratalog.errors import InvalidNameError, NotALogDirError
from stratalog.format.names import FileKind, FileState, PartitionFile, parse_partition_file
from stratalog.storage.segment_view import SegmentView


class ListedFile(NamedTuple):
    """One recognised file of a partition directory."""

    path: Path
    file: PartitionFile
    size_bytes: int


class Listing(NamedTuple):
    """A partition directory at one moment."""

    files: tuple[ListedFile, ...]
    segments: tuple[SegmentView, ...]
    """In offset order, compaction in flight already settled."""
    snapshots: tuple[tuple[int, Path], ...]
    """Producer snapshots by their offset, oldest first."""


def list_partition(path: Path) -> Listing:
    """Look at the directory once. Names that Kafka would refuse are left out."""
    files = tuple(sorted(_scan(path), key=lambda listed: listed.path.name))
    snapshots = tuple(
        (listed.file.base_offset, listed.path)
        for listed in files
        if listed.file.kind is FileKind.PRODUCER_SNAPSHOT
        and listed.file.state is FileState.LIVE
        and listed.file.base_offset is not None
    )
    return Listing(files, _settle(files), snapshots)


def _scan(path: Path) -> list[ListedFile]:
    found = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                file = _classify(entry.name)
                if file is not None:
                    size_bytes = _size_of(entry)
                    if size_bytes is not None:
                        found.append(ListedFile(Path(entry.path), file, size_bytes))
    except (FileNotFoundError, NotADirectoryError):
        raise NotALogDirError(f"{path}: no such directory") from None
    return found


def _size_of(entry: os.DirEntry[str]) -> int | None:
    """None for a directory, or a file that a broker removed since the directory was read."""
    try:
        return entry.stat().st_size if entry.is_file() else None
    except FileNotFoundError:
        return None


def _classify(name: str) -> PartitionFile | None:
    try:
        return parse_partition_file(name)
    except InvalidNameError:
        return None


def _settle(files: tuple[ListedFile, ...]) -> tuple[SegmentView, ...]:
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
        base: SegmentView(listed.path, base, listed.size_bytes)
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
