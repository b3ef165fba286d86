"""What tasks hand to the commit: values that are pickled from one machine to another."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.format.names import TopicPartition
    from stratalog.log.appends import AppendRules
    from stratalog.log_dir.commits.journal import CommitIdentity

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
    """Of the rows, whatever their order and partition: `format.row_checksums`. None: unknown."""


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
