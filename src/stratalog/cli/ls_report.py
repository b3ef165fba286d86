"""All that one `ls` found, gathered before anything is printed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from stratalog.errors import StratalogError
from stratalog.format.batch import NO_TIMESTAMP
from stratalog.format.names import DirState

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from stratalog.cli.inventory import PartitionFacts
    from stratalog.format.metadata import MetaProperties
    from stratalog.format.names import TopicPartition
    from stratalog.partitions.settings import EffectiveConfig
    from stratalog.partitions.view import LogDirView

Level: TypeAlias = Literal["topics", "partitions"]


@dataclass(frozen=True)
class LogDirFacts:
    """The root of one log directory."""

    path: Path
    meta: MetaProperties | None
    is_clean_shutdown: bool
    partitions: int


@dataclass(frozen=True)
class DirectoryFacts:
    """A directory that is no live partition."""

    path: Path
    state: str
    """`delete`, `stray`, `future`, or `unknown`: then no broker starts on this log directory."""
    topic_partition: TopicPartition | None
    size_bytes: int


@dataclass(frozen=True)
class UnreadablePartition:
    """A partition of which only the name is known."""

    topic_partition: TopicPartition
    path: Path
    problem: str


@dataclass(frozen=True)
class TopicFacts:
    """The partitions of one topic taken together."""

    topic: str
    topic_id: uuid.UUID | None
    partitions: int
    segment_count: int
    size_bytes: int
    log_start_offset_min: int | None
    """None, like the next one, when no partition of it can be read."""
    log_end_offset_max: int | None
    offsets: int
    """Sum over the partitions of log end minus log start."""
    first_timestamp: int | None
    largest_timestamp: int
    codecs: Sequence[str]
    unreadable: int = 0
    """So many of its partitions could not be read: sizes and offsets are of the others."""

    @classmethod
    def of(cls, topic: str, partitions: Sequence[PartitionFacts], unreadable: int) -> TopicFacts:
        first = [found.first for found in partitions if found.first is not None]
        times = [batch.timestamp for batch in first if batch.timestamp != NO_TIMESTAMP]
        return cls(
            topic=topic,
            topic_id=partitions[0].topic_id if partitions else None,
            partitions=len(partitions) + unreadable,
            segment_count=sum(found.segment_count for found in partitions),
            size_bytes=sum(found.size_bytes for found in partitions),
            log_start_offset_min=min(
                (found.log_start_offset for found in partitions), default=None
            ),
            log_end_offset_max=max((found.log_end_offset for found in partitions), default=None),
            offsets=sum(found.log_end_offset - found.log_start_offset for found in partitions),
            first_timestamp=min(times, default=None),
            largest_timestamp=max(
                (found.largest_timestamp for found in partitions), default=NO_TIMESTAMP
            ),
            codecs=sorted({batch.codec for batch in first}),
            unreadable=unreadable,
        )


@dataclass(frozen=True)
class Report:
    """Everything, in the order it is to be shown."""

    level: Level
    log_dirs: Sequence[LogDirFacts]
    topics: Sequence[TopicFacts]
    partitions: Sequence[PartitionFacts]
    other_directories: Sequence[DirectoryFacts]
    unreadable: Sequence[UnreadablePartition] = ()
    settings: Mapping[str, EffectiveConfig] = field(default_factory=dict)
    """By topic."""
    shows_settings: bool = False
    """Whether tables have the settings of topics."""


def log_dir_facts(log_dir: LogDirView, on_problem: Callable[[str], None]) -> LogDirFacts:
    """Look at the root of one log directory."""
    meta = None
    try:
        meta = log_dir.meta_properties
    except StratalogError as error:
        on_problem(f"{log_dir.path}: meta.properties: {error}")
    live = sum(listed.directory.state is DirState.LIVE for listed in log_dir.partitions)
    return LogDirFacts(log_dir.path, meta, log_dir.has_clean_shutdown, live)


def other_directories(log_dirs: Iterable[LogDirView]) -> list[DirectoryFacts]:
    """Directories that are no live partition."""
    found = []
    for log_dir in log_dirs:
        for path, directory in log_dir.partitions:
            if directory.state is not DirState.LIVE:
                state = directory.state.value.removeprefix("-")
                found.append(DirectoryFacts(path, state, directory.topic_partition, _size_of(path)))
        for path in log_dir.invalid_directories:
            found.append(DirectoryFacts(path, "unknown", None, _size_of(path)))
    return found


def _size_of(path: Path) -> int:
    """Of the files in it, as far as they can be seen."""
    size_bytes = 0
    try:
        for entry in path.iterdir():
            size_bytes += entry.stat().st_size if entry.is_file() else 0
    except OSError:  # removed or closed to us meanwhile: what was counted stands
        return size_bytes
    return size_bytes
