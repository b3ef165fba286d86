"""Log directories, read-only: every partition of one or several, with what their root files say.

Kafka spreads a broker's partitions over `log.dirs`; a view over all of them is what it sees.
Listing costs one `scandir` per directory; a partition is opened only when it is asked for.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stratalog.errors import (
    CorruptError,
    InvalidNameError,
    NotALogDirError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from stratalog.format.metadata import MetaProperties, decode_meta_properties
from stratalog.format.names import (
    DirState,
    PartitionDir,
    RootFile,
    TopicPartition,
    parse_partition_dir,
    parse_root_file,
)
from stratalog.log.partition_view import PartitionView
from stratalog.storage.log_dir_scan import read_offset_checkpoint, scan_log_dir
from stratalog.storage.log_file import read_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class ListedPartition(NamedTuple):
    """A partition directory, not opened yet."""

    path: Path
    directory: PartitionDir


class LogDirView:
    """One log directory: its partition directories and its root files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.partitions: list[ListedPartition] = []
        """Live ones and those on their way out or in (`-delete`, `-stray`, `-future`)."""
        self.strangers: list[Path] = []
        """Directories that are no partition; each stops a Kafka broker from starting."""
        self.root_files: set[RootFile] = set()
        self._scan()

    def _scan(self) -> None:
        for entry in scan_log_dir(self.path):
            if entry.is_dir():
                self._take_directory(Path(entry.path))
            elif (root_file := parse_root_file(entry.name)) is not None:
                self.root_files.add(root_file[0])

    def _take_directory(self, path: Path) -> None:
        try:
            directory = parse_partition_dir(path.name)
        except InvalidNameError:
            self.strangers.append(path)
            return
        if directory is not None:
            self.partitions.append(ListedPartition(path, directory))

    @property
    def has_clean_shutdown(self) -> bool:
        """Whether the last broker stopped in good order and none has started since."""
        return RootFile.CLEAN_SHUTDOWN in self.root_files

    @cached_property
    def meta_properties(self) -> MetaProperties | None:
        path = self.path / RootFile.META_PROPERTIES.value
        try:
            return decode_meta_properties(read_file(path))
        except FileNotFoundError:
            return None
        except CorruptError as error:
            raise error.located(path) from None

    def checkpoint(self, file: RootFile) -> dict[TopicPartition, int]:
        """One of the four offset files; empty if it is missing or, as for Kafka, corrupt."""
        return read_offset_checkpoint(self.path, file)

    @cached_property
    def log_start_offsets(self) -> dict[TopicPartition, int]:
        return self.checkpoint(RootFile.LOG_START_OFFSETS)


class LogDirsView:
    """Several log directories as one: what a broker with these `log.dirs` would serve."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.dirs = [LogDirView(path) for path in paths]
        if not self.dirs:
            raise NotALogDirError("no log directory given")
        self._live: dict[TopicPartition, list[ListedPartition]] = defaultdict(list)
        for log_dir in self.dirs:
            for listed in log_dir.partitions:
                if listed.directory.state is DirState.LIVE:
                    self._live[listed.directory.topic_partition].append(listed)

    @property
    def topics(self) -> dict[str, list[int]]:
        """Topic names and their partition numbers, in order."""
        topics: dict[str, list[int]] = {}
        for topic, partition in self.topic_partitions:
            topics.setdefault(topic, []).append(partition)
        return topics

    @property
    def topic_partitions(self) -> list[TopicPartition]:
        return sorted(self._live)

    def partition(self, topic: str, partition: int) -> PartitionView:
        """Open one partition."""
        topic_partition = TopicPartition(topic, partition)
        found = self._live.get(topic_partition)
        if found is None:
            raise UnknownTopicOrPartitionError(self._unknown(topic_partition))
        if len(found) > 1:
            *places, last = (str(listed.path) for listed in found)
            count = "two" if len(found) == 2 else len(found)
            raise StratalogError(
                f"{topic_partition} is in {count} places: {', '.join(places)} and {last}; give one "
                "of them"
            )
        return PartitionView(found[0].path)

    def partitions_of(self, topic: str) -> Iterator[PartitionView]:
        """Open every partition of a topic, in order."""
        numbers = self.topics.get(topic)
        if numbers is None:
            raise UnknownTopicOrPartitionError(self._unknown(TopicPartition(topic, 0)))
        return (self.partition(topic, number) for number in numbers)

    def _unknown(self, wanted: TopicPartition) -> str:
        where = ", ".join(str(log_dir.path) for log_dir in self.dirs)
        numbers = self.topics.get(wanted.topic)
        if numbers is not None:
            return f"{where}: topic {wanted.topic} has partitions {numbers}, not {wanted.partition}"
        known = ", ".join(list(self.topics)[:10]) or "none"
        return f"{where}: no topic {wanted.topic!r}; topics here: {known}"


def open_dirs(*paths: Path | str) -> LogDirsView:
    """Open log directories for reading. Takes no lock, writes nothing."""
    return LogDirsView(Path(path) for path in paths)


def open_partition(path: Path | str) -> PartitionView:
    """Open one partition directory for reading. Takes no lock, writes nothing."""
    return PartitionView(Path(path))
