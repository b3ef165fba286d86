"""The content of a log directory: partition directories, Kafka's root files, and everything else.

`list_log_dir` lists any directory. `scan_log_dir` also checks that it is a log directory. Names
alone prove little: `/etc` has directories called `dbus-1`. So a log directory has one of Kafka's
root files, or a directory with the name and the files of a partition. The lock file alone proves
it only in an otherwise empty directory: a refused writer may have left it anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from stratalog.errors import (
    AccessDeniedError,
    InvalidNameError,
    NotALogDirError,
    StorageError,
    StratalogError,
)
from stratalog.format.checkpoint import decode_offsets
from stratalog.format.names import (
    FileKind,
    PartitionDir,
    RootFile,
    known_partition_file,
    parse_partition_dir,
    parse_root_file,
)
from stratalog.storage.log_file import check_absent, list_directory, read_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stratalog.format.names import TopicPartition


class ListedPartition(NamedTuple):
    """A partition directory, not opened."""

    path: Path
    directory: PartitionDir


class InvalidDirectory(NamedTuple):
    """A directory that is no partition; it stops a Kafka broker from starting."""

    path: Path
    reason: str


@dataclass(frozen=True)
class LogDirListing:
    """One listing of a log directory, each part sorted by name."""

    path: Path
    partitions: list[ListedPartition] = field(default_factory=list)
    """Live ones, and those being deleted or moved (`-delete`, `-stray`, `-future`)."""
    invalid: list[InvalidDirectory] = field(default_factory=list)
    root_files: set[RootFile] = field(default_factory=set)
    has_segments: bool = False
    """Whether there are segment files: then this is a partition, not a log directory."""
    is_empty: bool = True
    """Whether there is nothing, or nothing but a lock file."""


def list_log_dir(path: Path) -> LogDirListing:
    """List a directory. Raises NotALogDirError if it does not exist or is a file."""
    try:
        entries = list_directory(path)
    except FileNotFoundError:
        raise NotALogDirError(f"{path}: no such directory") from None
    except NotADirectoryError:
        raise NotALogDirError(
            f"{path}: a file, not a log directory; give the directory that contains the partition "
            "directories"
        ) from None
    listing = LogDirListing(
        path,
        has_segments=any(_is_segment(entry.name) for entry in entries),
        is_empty=all(entry.name == RootFile.LOCK.value for entry in entries),
    )
    for entry in entries:
        if entry.is_dir:
            _add_directory(listing, entry.path)
        elif (root_file := parse_root_file(entry.name)) is not None:
            listing.root_files.add(root_file[0])
    return listing


def scan_log_dir(path: Path) -> LogDirListing:
    """List a log directory. Raises NotALogDirError if it does not look like one.

    A directory with a root file costs one listing. Without one, partition directories are listed
    until one of them has files.
    """
    listing = list_log_dir(path)
    root_files = listing.root_files
    is_new = listing.is_empty and root_files == {RootFile.LOCK}
    is_marked = bool(root_files - {RootFile.LOCK})
    if not is_new and not is_marked and not any(map(_has_files, listing.partitions)):
        raise NotALogDirError(_not_a_log_dir_reason(listing))
    return listing


def read_offset_checkpoint(
    log_dir: Path,
    file: RootFile,
    *,
    on_corrupt: Callable[[StratalogError], None] = lambda _: None,
) -> dict[TopicPartition, int]:
    """One of the four offset checkpoints of a log directory.

    As in Kafka, a file that is missing or corrupt counts as empty; `on_corrupt` is called with the
    error. Raises AccessDeniedError or StorageError if it cannot be read, or if a store has listed
    it and does not have it.
    """
    try:
        return dict(_decoded_offsets(read_file(log_dir / file.value, is_complete=_is_complete)))
    except (AccessDeniedError, StorageError):
        raise
    except (FileNotFoundError, NotADirectoryError):
        check_absent(log_dir / file.value)
        return {}
    except StratalogError as error:
        on_corrupt(error)
        return {}


def _is_complete(data: bytes) -> bool:
    """Whether a checkpoint is certainly not truncated: its header has the number of lines."""
    try:
        _decoded_offsets(data)
    except StratalogError:
        return False
    return data.count(b"\n") > 1 and data.endswith(b"\n")


@lru_cache(maxsize=8)
def _decoded_offsets(data: bytes) -> dict[TopicPartition, int]:
    """Every partition of a directory reads the same file, so the decoded content is cached."""
    return decode_offsets(data)


def _add_directory(listing: LogDirListing, path: Path) -> None:
    try:
        directory = parse_partition_dir(path.name)
    except InvalidNameError as error:
        listing.invalid.append(InvalidDirectory(path, str(error)))
        return
    if directory is not None:
        listing.partitions.append(ListedPartition(path, directory))


def _not_a_log_dir_reason(listing: LogDirListing) -> str:
    if listing.has_segments:
        return (
            f"{listing.path}: not a log directory but a partition, with segments in it; use "
            "its parent directory"
        )
    return (
        f"{listing.path}: not a log directory (no meta.properties or checkpoint file in it, and no "
        "directory TOPIC-NUMBER with segments); give one of the directories in log.dirs"
    )


def _has_files(partition: ListedPartition) -> bool:
    try:
        names = (file.name for file in list_directory(partition.path))
        return any(known_partition_file(name) is not None for name in names)
    except OSError:  # removed meanwhile, or not accessible
        return False


def _is_segment(name: str) -> bool:
    file = known_partition_file(name)
    return file is not None and file.kind is FileKind.LOG
