"""The journal of a commit: `stratalog-commit.json`, in the first of the log directories.

Its existence is the decision: every staged run that it names will be appended to its log, in this
order. It is replaced atomically and removed last, so after a crash it is complete or absent. There
is at most one, because a commit holds the lock of the directories, and first finishes the commit
that a predecessor left unfinished.

Its offsets are those that the runs get if nothing else is appended before. A Kafka broker that is
started on the directory meanwhile does not know the journal; `install` finds out what it appended.

The journal also records progress: `is_installed` is written once a partition has all its runs and
they are flushed. Only then may its staged files be removed.
"""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stratalog.errors import CorruptError
from stratalog.format.json_files import as_count, as_text, decode_json, encode_json, id_of, id_text
from stratalog.format.names import TopicPartition
from stratalog.storage.disk import storage_error
from stratalog.storage.log_file import read_file
from stratalog.storage.staged_names import parse_staged_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from stratalog.commits.staged import StagedCommit, StagedRun
    from stratalog.storage.disk import Disk

JOURNAL_FILE: Final = "stratalog-commit.json"
VERSION: Final = 1
_VERSIONS: Final = (0, 1)
"""Version 0 recorded no progress, and no checksums."""


class CommitIdentity(NamedTuple):
    """Identifies a commit, so that a repeated one is recognized."""

    writer: str
    """The id of a streaming query, or the name that an application chose."""
    number: int
    """Increases with each commit of a writer: the number of the micro-batch."""


class JournalRun(NamedTuple):
    """One staged file."""

    name: str
    size_bytes: int
    record_count: int


@dataclass(frozen=True)
class PartitionCommit:
    """The runs of one partition, one after the other, from record number `skip_records` on."""

    topic_partition: TopicPartition
    topic_id: uuid.UUID | None
    start_offset: int
    """Start offset of the first record that is not skipped."""
    runs: tuple[JournalRun, ...]
    skip_records: int = 0
    """How many of the runs' records are already in the log, before `start_offset`."""
    is_installed: bool = False
    """Whether all runs are in the log and durable; the staged files may be removed then."""

    @property
    def record_count(self) -> int:
        """All records of the runs, including skipped ones."""
        return sum(run.record_count for run in self.runs)

    @property
    def end_offset(self) -> int:
        """The log end offset once all runs are installed."""
        return self.start_offset + self.record_count - self.skip_records


@dataclass(frozen=True)
class Journal:
    """A decided commit."""

    job: str
    number: int
    identity: CommitIdentity | None
    """None for a job that is never repeated."""
    dir_count: int
    """How many log directories were open: all of them are needed to finish it."""
    partitions: tuple[PartitionCommit, ...]
    checksums: Mapping[str, int] = field(default_factory=dict)
    """Checksums of the rows of each topic, where known; see `staged.StagedRun`."""

    @property
    def run_names(self) -> set[str]:
        """The staged files that are still needed."""
        parts = (part for part in self.partitions if not part.is_installed)
        return {run.name for part in parts for run in part.runs}


def plan_commit(
    commit: StagedCommit, end_offsets: Mapping[TopicPartition, int], dir_count: int
) -> Journal:
    """The place of every staged run, from the current end offsets of the logs on.

    Runs are in the order of their tasks, so the rows of one source partition stay in order.
    """
    by_partition: dict[TopicPartition, list[StagedRun]] = {}
    for run in sorted(commit.runs, key=lambda run: (run.topic_partition, run.task)):
        if run.record_count:
            by_partition.setdefault(run.topic_partition, []).append(run)
    partitions = tuple(
        PartitionCommit(
            topic_partition,
            runs[0].topic.topic_id,
            end_offsets[topic_partition],
            tuple(JournalRun(run.name, run.size_bytes, run.record_count) for run in runs),
        )
        for topic_partition, runs in by_partition.items()
    )
    checksums = {
        topic: checksum
        for topic, (_, checksum) in commit.rows_by_topic().items()
        if checksum is not None
    }
    return Journal(commit.job, commit.number, commit.identity, dir_count, partitions, checksums)


class JournalFile:
    """The journal of a set of log directories, in whichever of them it is."""

    def __init__(self, disk: Disk, dirs: Sequence[Path]) -> None:
        self._disk = disk
        self._dirs = dirs

    def read(self) -> list[tuple[Path, Journal]]:
        """The decided commits that are not finished: at most one, unless several directories had
        one each before they were first opened together."""
        found = []
        for directory in self._dirs:
            path = directory / JOURNAL_FILE
            try:
                found.append((path, decode_journal(read_file(path))))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise storage_error(error, "read", path) from error
            except CorruptError as error:
                raise error.located(path) from None
        return found

    def run_names(self) -> set[str]:
        """The staged files that decided commits still need."""
        return {name for _, journal in self.read() for name in journal.run_names}

    def write(self, journal: Journal, path: Path | None = None) -> Path:
        """Write a new journal, which decides the commit; with a `path`, replace one. Durable."""
        path = path or self._dirs[0] / JOURNAL_FILE
        self._disk.write_atomically(path, encode_journal(journal))
        return path

    def remove(self, path: Path) -> None:
        """Remove the journal of a finished commit. Durable."""
        self._disk.unlink(path)
        self._disk.fsync_dir(path.parent)


class CommitProgress:
    """Rewrites the journal while its commit is carried out: progress, and new offsets."""

    def __init__(self, file: JournalFile, path: Path, journal: Journal) -> None:
        self.path = path
        self.journal = journal
        self._file = file
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._changes = 0
        self._written = 0

    def record(self, part: PartitionCommit) -> None:
        """Replace one partition's part of the journal. Durable when it returns. Thread-safe;
        changes of several threads share one write."""
        with self._lock:
            self._changes += 1
            mine = self._changes
            parts = tuple(
                part if other.topic_partition == part.topic_partition else other
                for other in self.journal.partitions
            )
            self.journal = replace(self.journal, partitions=parts)
        with self._writing:
            if self._written >= mine:
                return
            with self._lock:
                journal, changes = self.journal, self._changes
            self._file.write(journal, self.path)
            self._written = changes


def encode_journal(journal: Journal) -> bytes:
    """The content of the file: JSON, which people can read too."""
    identity = journal.identity
    content = {
        "version": VERSION,
        "job": journal.job,
        "number": journal.number,
        "identity": None if identity is None else identity._asdict(),
        "dir_count": journal.dir_count,
        "checksums": dict(sorted(journal.checksums.items())),
        "partitions": [
            {
                "topic": part.topic_partition.topic,
                "topic_id": id_text(part.topic_id),
                "partition": part.topic_partition.partition,
                "start_offset": part.start_offset,
                "skip_records": part.skip_records,
                "is_installed": part.is_installed,
                "runs": [list(run) for run in part.runs],
            }
            for part in journal.partitions
        ],
    }
    return encode_json(content)


def decode_journal(data: bytes) -> Journal:
    """Strict: a commit whose journal is not understood cannot be finished."""
    return decode_json(
        data, _journal_of, "the journal of a commit", file=JOURNAL_FILE, versions=_VERSIONS
    )


def _journal_of(content: Any) -> Journal:
    identity = content["identity"]
    if identity is not None:
        identity = CommitIdentity(as_text(identity["writer"]), as_count(identity["number"]))
    job = as_text(content["job"])
    if uuid.UUID(job).hex != job:
        raise ValueError(f"invalid job id {job!r}")
    return Journal(
        job=job,
        number=as_count(content["number"]),
        identity=identity,
        dir_count=as_count(content["dir_count"]),
        partitions=tuple(_partition_of(part) for part in content["partitions"]),
        checksums={as_text(t): as_count(c) for t, c in content.get("checksums", {}).items()},
    )


def _partition_of(content: Any) -> PartitionCommit:
    part = PartitionCommit(
        TopicPartition(as_text(content["topic"]), as_count(content["partition"])),
        id_of(content["topic_id"]),
        as_count(content["start_offset"]),
        tuple(_run_of(*run) for run in content["runs"]),
        as_count(content["skip_records"]),
        _flag(content.get("is_installed", False)),
    )
    if part.skip_records > part.record_count:
        raise ValueError(f"skips {part.skip_records} of {part.record_count} records")
    return part


def _run_of(name: Any, size_bytes: Any, record_count: Any) -> JournalRun:
    if parse_staged_name(as_text(name)) is None:  # it becomes part of a path
        raise ValueError(f"{name!r} is not the name of a staged file")
    return JournalRun(name, as_count(size_bytes), as_count(record_count))


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError(f"{value!r} is not a boolean")
    return value
