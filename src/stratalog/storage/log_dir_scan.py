"""Recognises a log directory, and says what is missing in any other directory.

Names alone prove little: `/etc` has directories called `dbus-1`. So a log directory contains one of
Kafka's root files, or a directory that is named like a partition and contains a partition's files.
The lock file counts only if it is the only file: an opening that failed may have left it elsewhere.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

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
    PartitionFile,
    RootFile,
    parse_partition_dir,
    parse_partition_file,
    parse_root_file,
)
from stratalog.storage.log_file import read_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stratalog.format.names import TopicPartition


def scan_log_dir(path: Path) -> list[os.DirEntry[str]]:
    """What is in a log directory, by name. Raises NotALogDirError where it does not look like one.

    A directory with a root file costs one listing; without, those of partitions are listed until
    one of them has files.
    """
    try:
        with os.scandir(path) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except FileNotFoundError:
        raise NotALogDirError(f"{path}: no such directory") from None
    except PermissionError:
        raise AccessDeniedError(path) from None
    except NotADirectoryError:
        raise NotALogDirError(
            f"{path}: a file, not a log directory; give the directory around those of the "
            "partitions"
        ) from None
    is_new = [entry.name for entry in entries] == [RootFile.LOCK.value]
    if not is_new and not any(map(_is_mark, entries)) and not any(map(_is_partition, entries)):
        raise NotALogDirError(_what_is_missing(path, entries))
    return entries


def read_offset_checkpoint(
    log_dir: Path,
    file: RootFile,
    *,
    read: Callable[[Path], bytes] = read_file,
    on_corrupt: Callable[[StratalogError], None] = lambda _: None,
) -> dict[TopicPartition, int]:
    """One of the four offset files of a log directory.

    As for Kafka, a file that is missing or corrupt counts as empty; `on_corrupt` is called with
    what is wrong with it. Raises AccessDeniedError or StorageError if it cannot be read.
    """
    try:
        return decode_offsets(read(log_dir / file.value))
    except (AccessDeniedError, StorageError):
        raise
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except StratalogError as error:
        on_corrupt(error)
        return {}


def _what_is_missing(path: Path, entries: list[os.DirEntry[str]]) -> str:
    if any(_is_segment(_file_of(entry.name)) for entry in entries):
        return (
            f"{path}: not a log directory but a partition, with segments in it; give the directory "
            "around it"
        )
    return (
        f"{path}: not a log directory (no meta.properties or checkpoint file in it, and no "
        "directory TOPIC-NUMBER with segments); give one of the directories in log.dirs"
    )


def _is_mark(entry: os.DirEntry[str]) -> bool:
    file = parse_root_file(entry.name)
    return file is not None and file[0] is not RootFile.LOCK and not entry.is_dir()


def _is_partition(entry: os.DirEntry[str]) -> bool:
    try:
        if not entry.is_dir() or parse_partition_dir(entry.name) is None:
            return False
        with os.scandir(entry.path) as files:
            return any(_file_of(file.name) is not None for file in files)
    except (InvalidNameError, OSError):  # OSError: removed meanwhile, or closed to us
        return False


def _file_of(name: str) -> PartitionFile | None:
    try:
        return parse_partition_file(name)
    except InvalidNameError:
        return None


def _is_segment(file: PartitionFile | None) -> bool:
    return file is not None and file.kind is FileKind.LOG
