"""What tasks hand to the commit: values that are pickled from one machine to another."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.format.names import TopicPartition
    from stratalog.log.appends import AppendRules
    from stratalog.log_dir.commits.journal import CommitIdentity


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
