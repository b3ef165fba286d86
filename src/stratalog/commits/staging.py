"""The files that one task stages: a run of whole batches for each partition it writes to.

A run's offsets count from zero, so a staged file is a log of its own that any tool can dump. The
file lies in the directory of its partition, from where it is installed without crossing file
systems, under a name that Kafka's loader passes over. No lock is needed: every attempt of a task
has files of its own, and nobody looks at them before the commit names them.
"""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from stratalog.commits.staged import StagedRun, add_checksums
from stratalog.errors import StorageError, UnknownTopicOrPartitionError
from stratalog.format.names import FileKind, TopicPartition
from stratalog.storage.staged_names import StagedName

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.commits.staged import StagedTopic
    from stratalog.format.buffers import Buffer
    from stratalog.storage.disk import AppendFile, Disk

SYNCERS: Final = 4
WRITEBACK_BYTES: Final = 1 << 20
"""Of a run, to be written to the disk while the task goes on: the fsync at its end, for which two
cores would be idle, then finds little to do. A multiple of the page size, so no page is written
twice."""
_LOG_SUFFIX: Final = FileKind.LOG.value


@dataclass
class _Run:
    topic: StagedTopic
    path: Path
    size_bytes: int = 0
    record_count: int = 0
    checksum: int | None = 0
    written_back_bytes: int = 0

    def start_writeback(self, file: AppendFile) -> None:
        start, end = self.written_back_bytes, file.size_bytes // WRITEBACK_BYTES * WRITEBACK_BYTES
        if end > start:
            file.start_writeback(start, end)
            self.written_back_bytes = end


class RunStager:
    """Stages the batches of one attempt of one task. Removes them if it is left by an error."""

    def __init__(self, disk: Disk, job: str, number: int, task: int) -> None:
        """`job`, `number` and `task` are those of `StagedName`."""
        self._disk = disk
        self._task = task
        self._name = str(StagedName(job, number, task, secrets.token_hex(8)))
        self._runs: dict[TopicPartition, _Run] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.discard()

    def next_offset(self, topic: str, partition: int) -> int:
        """Of the next record that is staged for the partition, counted from zero."""
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
        """Add whole batches, whose offsets go on from `next_offset`. `checksum` is that of their
        rows, if it is known.

        The file is not kept open: a task may write to more partitions than it may open files.
        """
        topic_partition = TopicPartition(topic.name, partition)
        run = self._runs.get(topic_partition)
        if run is None:
            run = _Run(topic, _directory(topic, partition) / self._name)
            self._runs[topic_partition] = run
        size_bytes = run.size_bytes
        with self._disk.open_append(run.path, size_bytes=size_bytes, is_new=not size_bytes) as file:
            file.write(data)
            run.start_writeback(file)
        if not size_bytes:
            self._give_mode_of_segments(run.path)
        run.size_bytes += len(data)
        run.record_count += record_count
        if run.checksum is not None:
            run.checksum = add_checksums(run.checksum, checksum)

    def _give_mode_of_segments(self, path: Path) -> None:
        """Whoever may read the log may read the staged file, whatever the umask here: another user
        may commit it, and a broker does not start where it finds a file that it cannot read."""
        logs = [name for name in self._disk.list_names(path.parent) if name.endswith(_LOG_SUFFIX)]
        if logs:
            self._disk.set_mode(path, self._disk.mode_of(path.parent / logs[-1]))

    def finish(self) -> tuple[StagedRun, ...]:
        """Make the content of all files durable, and tell what they are."""
        paths = [run.path for run in self._runs.values()]
        if paths:
            with ThreadPoolExecutor(min(SYNCERS, len(paths))) as pool:
                list(pool.map(self._disk.fsync, paths))
        return tuple(
            StagedRun(
                run.topic,
                topic_partition,
                self._task,
                self._name,
                run.size_bytes,
                run.record_count,
                run.checksum,
            )
            for topic_partition, run in self._runs.items()
        )

    def discard(self) -> None:
        """Remove the files. What cannot be removed is swept one day."""
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
        f"no partition {topic.name}-{partition}; of {topic.name!r} there are here: {here}"
    )
