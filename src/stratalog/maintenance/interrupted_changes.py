"""Completes or rolls back what a crash interrupted: deletions, compaction, splitting a segment.

Files that replace segments are renamed twice: they are `.cleaned` while they are written, `.swap`
once all of them are complete, and get their final names when the replaced segments are deleted.
Each step is durable before the next one where the order matters, so running this again after an
interruption has the same result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stratalog.format.index_search import RELATIVE_OFFSET_MAX
from stratalog.format.names import (
    FileKind,
    FileState,
    PartitionFile,
    known_partition_file,
    segment_file_name,
)
from stratalog.storage.log_file import LocalFile, LogFile
from stratalog.storage.segment_view import SegmentView

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from stratalog.storage.disk import Disk

COPY_BYTES: Final = 1024 * 1024
CLEANING_DIRECTORY: Final = "cleaning.work"
"""Inside a partition directory: the files of a cleaning pass that runs in several processes.
Kafka's loader ignores directories."""


def create_directory(disk: Disk, path: Path) -> None:
    """Create the directory of a partition, durably, unless it exists."""
    if not disk.exists(path):
        disk.mkdir(path, exist_ok=True)
        disk.fsync_dir(path.parent)


def finish_swaps(disk: Disk, path: Path) -> None:
    """Finish or undo what a crash interrupted: deletions, and replacements of segments.

    Incomplete (`.cleaned`) files are deleted, but first the `.swap` files at or above their offset:
    they belong to the same replacement. Other `.swap` files are complete: they replace the segments
    whose offsets they cover.
    """
    if disk.exists(path / CLEANING_DIRECTORY):
        disk.remove_tree(path / CLEANING_DIRECTORY)
    files = _files(disk, path)
    _unlink(
        disk,
        [
            path / name
            for name, file in files
            if file.state is FileState.DELETED and file.kind is not FileKind.METADATA_SNAPSHOT
        ],
    )
    cleaned = [(name, file) for name, file in files if file.state is FileState.CLEANED]
    swaps = [(name, file) for name, file in files if file.state is FileState.SWAP]
    if cleaned:
        first = min(file.base_offset or 0 for _, file in cleaned)
        undone = [path / name for name, file in swaps if (file.base_offset or 0) >= first]
        if _unlink(disk, undone):
            disk.fsync_dir(path)  # a `.swap` that outlived its `.cleaned` would pass for complete
        _unlink(disk, [path / name for name, _ in cleaned])
    _install_swaps(disk, path)


def _install_swaps(disk: Disk, path: Path) -> None:
    files = _files(disk, path)
    swaps = [(name, file) for name, file in files if file.state is FileState.SWAP]
    if not swaps:
        return
    covered = _range_of(disk, path, swaps)
    replaced = [
        path / name
        for name, file in files
        if file.state is FileState.LIVE
        and file.kind is not FileKind.METADATA_SNAPSHOT
        and file.base_offset is not None  # `None in range` would search all of it
        and file.base_offset in covered
    ]
    if _unlink(disk, replaced):
        disk.fsync_dir(path)  # a segment must not come back beside the one that replaces it
    for name, _ in swaps:
        disk.rename(path / name, path / name.removesuffix(FileState.SWAP.value))
    disk.fsync_dir(path)


def _range_of(disk: Disk, path: Path, swaps: Iterable[tuple[str, PartitionFile]]) -> range:
    """The offsets that complete replacements cover."""
    found = []
    for name, file in swaps:
        if file.kind is FileKind.LOG and file.base_offset is not None:
            log = path / name
            view = SegmentView(log, file.base_offset, disk.size_of(log) or 0)
            # An empty one still takes the place of a segment, whose indexes must not stay with it.
            end = max(view.end.next_offset, file.base_offset + 1)
            found.append(range(file.base_offset, end))
    if not found:
        return range(0)
    return range(min(r.start for r in found), max(r.stop for r in found))


def split_segment(disk: Disk, path: Path, base_offset: int) -> None:
    """Split a segment whose offsets are too far above its base offset for an index.

    Old brokers could write such segments. The parts are written as `.swap` files for `finish_swaps`
    to install. They have no indexes and must be recovered.
    """
    source = path / segment_file_name(base_offset, FileKind.LOG)
    with LocalFile(source) as log:
        starts = split_points(log, base_offset)
        ends = [*(position for _, position in starts[1:]), log.size_bytes]
        for (base, start), end in zip(starts, ends, strict=True):
            _copy(disk, log, (start, end), _part(path, base, FileState.CLEANED))
    disk.fsync_dir(path)
    for base, _ in reversed(starts):
        disk.rename(_part(path, base, FileState.CLEANED), _part(path, base, FileState.SWAP))
    disk.fsync_dir(path)
    for kind in (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX):
        disk.unlink(path / segment_file_name(base_offset, kind), missing_ok=True)
    disk.fsync_dir(path)


def _part(path: Path, base_offset: int, state: FileState) -> Path:
    return path / segment_file_name(base_offset, FileKind.LOG, state)


def split_points(log: LogFile, base_offset: int) -> list[tuple[int, int]]:
    """Base offset and position of each part of a segment that must be split. Corrupt batches stay
    in the last part, where recovery truncates them."""
    starts = [(base_offset, 0)]
    for position, batch in log.walk(0, log.size_bytes, offset_min=base_offset):
        if batch.last_offset - starts[-1][0] > RELATIVE_OFFSET_MAX:
            base = (batch.base_offset, position)
            starts = [*starts, base] if position else [base]
    return starts


def _copy(disk: Disk, log: LogFile, span: tuple[int, int], target: Path) -> None:
    position, end = span
    disk.unlink(target, missing_ok=True)
    with disk.open_append(target, is_new=True) as file:
        while position < end:
            data = log.read(position, min(COPY_BYTES, end - position))
            file.write(data)
            position += len(data)
        file.fsync()


def _unlink(disk: Disk, paths: Iterable[Path]) -> bool:
    """Delete files; whether there were any."""
    is_changed = False
    for path in paths:
        disk.unlink(path, missing_ok=True)
        is_changed = True
    return is_changed


def _files(disk: Disk, path: Path) -> list[tuple[str, PartitionFile]]:
    found = ((name, known_partition_file(name)) for name in sorted(disk.list_names(path)))
    return [(name, file) for name, file in found if file is not None]
