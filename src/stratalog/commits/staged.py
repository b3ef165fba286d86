"""Staged files: batches that tasks write, without the lock, for a later commit to install.

A task writes one file (a run) of complete batches for each partition. A run's offsets start at 0,
so a staged file is a log of its own that any tool can dump. It is in the directory of its
partition, from where it can be installed without crossing file systems, under a name that Kafka's
loader ignores. Every attempt of a task has its own files, and nobody uses them before the commit
names them. `StagedRun` and `StagedCommit` describe them; they are pickled between machines.

Files of aborted jobs, lost attempts and dead drivers are removed by the `sweep_…` functions.
"""

from __future__ import annotations

import logging
import secrets
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from stratalog.errors import StorageError, UnknownTopicOrPartitionError
from stratalog.format.names import FileKind, TopicPartition
from stratalog.storage.staged_names import StagedName, parse_staged_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from stratalog.commits.journal import CommitIdentity
    from stratalog.format.buffers import Buffer
    from stratalog.log.offset_assignment import AppendRules
    from stratalog.storage.disk import Disk

STALE_MS: Final = 24 * 60 * 60 * 1000
"""When staged files of other jobs are removed. Whether such a job still runs cannot be seen from
here. Removing them is safe even if it does: a commit with a missing file is refused before anything
is decided."""
SYNC_THREADS: Final = 4
_LOG_SUFFIX: Final = FileKind.LOG.value
_CHECKSUM_VALUES: Final = 1 << 62

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StagedTopic:
    """A topic as it was when its batches were staged. If it was recreated or its settings changed
    before the commit, its log might not accept the batches."""

    name: str
    topic_id: uuid.UUID | None
    rules: AppendRules
    dirs: tuple[tuple[int, Path], ...] = field(compare=False)
    """Partition numbers and their directories, in order."""

    @property
    def partition_count(self) -> int:
        """Number of partitions of the whole topic, as Kafka's partitioner uses it."""
        return self.dirs[-1][0] + 1


@dataclass(frozen=True)
class StagedRun:
    """A staged file: complete batches of one partition, checked and durable."""

    topic: StagedTopic
    topic_partition: TopicPartition
    task: int
    name: str
    size_bytes: int
    record_count: int
    checksum: int | None = None
    """Checksum of the rows, whatever their order and partition: `format.hashing`. None: unknown."""
    is_synced: bool = True
    """Whether its content is durable. Else the commit makes it so, on the same machine."""


@dataclass(frozen=True)
class StagedCommit:
    """Runs that are committed together, or not at all."""

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
        """The number of rows of each topic, and their checksum if every run has one."""
        found: dict[str, tuple[int, int | None]] = {}
        for run in self.runs:
            count, checksum = found.get(run.topic_partition.topic, (0, 0))
            if checksum is not None:
                checksum = add_checksums(checksum, run.checksum)
            found[run.topic_partition.topic] = (count + run.record_count, checksum)
        return found


def add_checksums(first: int, second: int | None) -> int | None:
    """The checksum of the rows of both; None if one is unknown."""
    return None if second is None else (first + second) % _CHECKSUM_VALUES


@dataclass
class _StagedRun:
    topic: StagedTopic
    path: Path
    size_bytes: int = 0
    record_count: int = 0
    checksum: int | None = 0


class RunStager:
    """Writes the staged files of one task attempt. An exception in its block removes them."""

    def __init__(self, disk: Disk, job: str, number: int, task: int, *, syncs: bool = True) -> None:
        """`job`, `number` and `task` are those of `StagedName`. Without `syncs` the files are left
        to the commit to sync: only where tasks and commit share the memory of one kernel."""
        self._disk = disk
        self.task = task
        self._syncs = syncs
        self._name = str(StagedName(job, number, task, secrets.token_hex(8)))
        self._runs: dict[TopicPartition, _StagedRun] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.discard()

    def next_offset(self, topic: str, partition: int) -> int:
        """The offset of the next record staged for the partition, counted from 0."""
        run = self._runs.get(TopicPartition(topic, partition))
        return 0 if run is None else run.record_count

    def write(
        self,
        topic: StagedTopic,
        partition: int,
        data: Buffer,
        record_count: int,
        checksum: int | None = None,
    ) -> None:
        """Append complete batches with offsets from `next_offset` on. `checksum` is that of their
        rows, if known.

        The file is not kept open: a task may write to more partitions than it may open files.
        """
        topic_partition = TopicPartition(topic.name, partition)
        run = self._runs.get(topic_partition)
        if run is None:
            run = _StagedRun(topic, _directory(topic, partition) / self._name)
            self._runs[topic_partition] = run
        size_bytes = run.size_bytes
        with self._disk.open_append(run.path, size_bytes=size_bytes, is_new=not size_bytes) as file:
            file.write(data)
            file.start_writing(size_bytes)  # the disk is idle while the task waits for rows
        if not size_bytes:
            self._copy_mode_of_segments(run.path)
        run.size_bytes += len(data)
        run.record_count += record_count
        if run.checksum is not None:
            run.checksum = add_checksums(run.checksum, checksum)

    def _copy_mode_of_segments(self, path: Path) -> None:
        """Give the staged file the permissions of the log, whatever the umask: another user may
        commit it, and a broker does not start if it finds a file that it cannot read."""
        logs = [name for name in self._disk.list_names(path.parent) if name.endswith(_LOG_SUFFIX)]
        if logs:
            self._disk.set_mode(path, self._disk.mode_of(path.parent / logs[-1]))

    def finish(self) -> tuple[StagedRun, ...]:
        """Make the content of all files durable, unless the commit does, and return their
        descriptions."""
        paths = [run.path for run in self._runs.values()]
        if paths and self._syncs:
            with ThreadPoolExecutor(min(SYNC_THREADS, len(paths))) as pool:
                list(pool.map(self._disk.fsync, paths))
        return tuple(
            StagedRun(
                run.topic,
                topic_partition,
                self.task,
                self._name,
                run.size_bytes,
                run.record_count,
                run.checksum,
                self._syncs,
            )
            for topic_partition, run in self._runs.items()
        )

    def discard(self) -> None:
        """Remove the files. Those that cannot be removed are swept when they are stale."""
        for run in self._runs.values():
            with suppress(StorageError):
                self._disk.unlink(run.path, missing_ok=True)
        self._runs.clear()


def _directory(topic: StagedTopic, partition: int) -> Path:
    for number, path in topic.dirs:
        if number == partition:
            return path
    here = ", ".join(str(number) for number, _ in topic.dirs[:10])
    raise UnknownTopicOrPartitionError(
        f"no partition {topic.name}-{partition}; topic {topic.name!r} has partitions {here} in "
        "this directory"
    )


# -- removing staged files that no commit will use


def has_staged_files(disk: Disk, directory: Path) -> bool:
    """Whether a partition has files that a commit may still need, decided or not."""
    return any(parse_staged_name(name) is not None for name in disk.list_names(directory))


def sweep_stale(
    disk: Disk, directory: Path, now_ms: int, needed: Collection[str] = (), stale_ms: int = STALE_MS
) -> int:
    """Remove staged files of a partition that were not written to for `stale_ms`, except those in
    `needed`, which a journal names. Returns how many were removed."""

    def is_stale(path: Path, _: StagedName) -> bool:
        return path.name not in needed and now_ms - disk.mtime_ms(path) >= stale_ms

    return _sweep(disk, directory, is_stale)


def sweep_commit(disk: Disk, directories: Iterable[Path], job: str, number: int) -> int:
    """Remove the staged files of a finished commit, and of earlier commits of the same job.

    No commit can use them any longer, not even one of another driver of the same query: their
    commit number is used up.
    """

    def is_finished(_: Path, name: StagedName) -> bool:
        return name.job == job and name.number <= number

    return sum(_sweep(disk, directory, is_finished) for directory in directories)


def sweep_job(
    disk: Disk,
    directories: Iterable[Path],
    job: str | None,
    names: Collection[str],
    decided: Collection[str],
) -> int:
    """Remove the staged files of a failed job, and those in `names`, but never those in
    `decided`."""

    def is_own(path: Path, name: StagedName) -> bool:
        return (name.job == job or path.name in names) and path.name not in decided

    return sum(_sweep(disk, directory, is_own) for directory in directories)


def _sweep(disk: Disk, directory: Path, is_unused: Callable[[Path, StagedName], bool]) -> int:
    """Remove unused staged files. Those that cannot be removed only cost disk space, and are tried
    again the next time."""
    removed = 0
    try:
        for file_name in disk.list_names(directory):
            name = parse_staged_name(file_name)
            if name is not None and is_unused(directory / file_name, name):
                removed += disk.unlink(directory / file_name, missing_ok=True)
    except StorageError as error:
        _log.warning("%s", error)
    return removed
