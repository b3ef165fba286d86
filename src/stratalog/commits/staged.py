"""What tasks hand to the commit: values that are pickled from one machine to another."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from stratalog.errors import StorageError
from stratalog.storage.staged_names import parse_staged_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from stratalog.commits.journal import CommitIdentity
    from stratalog.format.names import TopicPartition
    from stratalog.log.appends import AppendRules
    from stratalog.storage.disk import Disk
    from stratalog.storage.staged_names import StagedName

_CHECKSUM_VALUES: Final = 1 << 62


@dataclass(frozen=True)
class StagedTopic:
    """A topic as it was when its batches were staged. If it is another by the time of the commit,
    or has other rules, the batches are not what its log would have taken."""

    name: str
    topic_id: uuid.UUID | None
    rules: AppendRules
    dirs: tuple[tuple[int, Path], ...] = field(compare=False)
    """Partition numbers and their directories, in order: those that are here."""

    @property
    def partition_count(self) -> int:
        """Of the whole topic: what Kafka's partitioner divides by."""
        return self.dirs[-1][0] + 1


@dataclass(frozen=True)
class StagedRun:
    """A staged file: whole batches of one partition, checked and durable."""

    topic: StagedTopic
    topic_partition: TopicPartition
    task: int
    name: str
    size_bytes: int
    record_count: int
    checksum: int | None = None
    """Of the rows, whatever their order and partition: `format.hashing`. None: unknown."""


@dataclass(frozen=True)
class StagedCommit:
    """All that is to be in the logs, or nothing of it."""

    runs: tuple[StagedRun, ...]
    job: str = field(default_factory=lambda: uuid.uuid4().hex)
    """32 hex digits, as in the names of the runs."""
    number: int = 0
    identity: CommitIdentity | None = None

    @property
    def record_count(self) -> int:
        return sum(run.record_count for run in self.runs)

    @property
    def size_bytes(self) -> int:
        return sum(run.size_bytes for run in self.runs)

    def rows_by_topic(self) -> dict[str, tuple[int, int | None]]:
        """How many rows each topic gets, and their checksum if every run has one."""
        found: dict[str, tuple[int, int | None]] = {}
        for run in self.runs:
            count, checksum = found.get(run.topic_partition.topic, (0, 0))
            if checksum is not None:
                checksum = add_checksums(checksum, run.checksum)
            found[run.topic_partition.topic] = (count + run.record_count, checksum)
        return found


def add_checksums(first: int, second: int | None) -> int | None:
    """The checksum of the rows of both."""
    return None if second is None else (first + second) % _CHECKSUM_VALUES


# Removing staged files that no commit will use: of aborted jobs, lost attempts and dead drivers.
#
# Whether a job still runs somewhere cannot be seen from here, so the files of others are left
# until they are a day old. Sweeping is safe even if that is wrong: a commit that misses one of its
# files is refused before anything is decided.

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
