"""Removing staged files that no commit will use: of aborted jobs, lost attempts and dead drivers.

Whether a job still runs somewhere cannot be seen from here, so the files of others are left until
they are a day old. Sweeping is safe even if that is wrong: a commit that misses one of its files is
refused before anything is decided.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from stratalog.errors import StorageError
from stratalog.format.staged_names import parse_staged_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from stratalog.format.staged_names import StagedName
    from stratalog.storage.disk import Disk

STALE_MS: Final = 24 * 60 * 60 * 1000

_log = logging.getLogger(__name__)


def has_staged_files(disk: Disk, directory: Path) -> bool:
    """Whether a partition has files that a commit, decided or not, may still need."""
    return any(parse_staged_name(name) is not None for name in disk.list_names(directory))


def sweep_stale(
    disk: Disk, directory: Path, now_ms: int, kept: Collection[str] = (), stale_ms: int = STALE_MS
) -> int:
    """Remove the staged files of a partition that nobody has written to for `stale_ms`.

    Those that are `kept` stay: a journal names them. How many were removed.
    """

    def is_stale(path: Path, _: StagedName) -> bool:
        return path.name not in kept and now_ms - disk.mtime_ms(path) >= stale_ms

    return _sweep(disk, directory, is_stale)


def sweep_commit(disk: Disk, directories: Iterable[Path], job: str, number: int) -> int:
    """Remove the staged files of a commit that is over, and of earlier ones of the same job.

    No commit can use them any more, not even one of another driver of the same query: their number
    is taken.
    """

    def is_over(_: Path, name: StagedName) -> bool:
        return name.job == job and name.number <= number

    return sum(_sweep(disk, directory, is_over) for directory in directories)


def sweep_own(
    disk: Disk,
    directories: Iterable[Path],
    job: str | None,
    names: Collection[str],
    decided: Collection[str],
) -> int:
    """Remove the staged files of a job that failed, and those in `names`; never what is decided."""

    def is_own(path: Path, name: StagedName) -> bool:
        return (name.job == job or path.name in names) and path.name not in decided

    return sum(_sweep(disk, directory, is_own) for directory in directories)


def _sweep(disk: Disk, directory: Path, is_due: Callable[[Path, StagedName], bool]) -> int:
    """What cannot be removed stays for the next time: it does no harm but to the disk's space."""
    removed = 0
    try:
        for file_name in disk.list_names(directory):
            name = parse_staged_name(file_name)
            if name is not None and is_due(directory / file_name, name):
                removed += disk.unlink(directory / file_name, missing_ok=True)
    except StorageError as error:
        _log.warning("%s", error)
    return removed
