"""An inventory of log directories: topics, partitions, segments and their files, as values.

This is what `stratalog ls` prints. It is cheap on purpose: a directory listing and a few small
reads per segment (the first batch header, the ends of the indexes). Logs are not scanned, except
where an index is missing or wrong and has to be rebuilt in memory.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from stratalog.errors import AccessDeniedError, StratalogError
from stratalog.format.batch import (
    HEADER_BYTES,
    MAGIC_2,
    NO_TIMESTAMP,
    BatchHeader,
    Codec,
    TimestampType,
    peek,
)
from stratalog.format.counts import added
from stratalog.format.legacy import LegacyHeader
from stratalog.format.names import CLUSTER_METADATA_TOPIC, DirState, FileKind, FileState, RootFile
from stratalog.format.txn_index import ENTRY_BYTES as TXN_ENTRY_BYTES
from stratalog.log.partition_view import identity_of
from stratalog.partitions.lock import find_holder, is_locked
from stratalog.partitions.view import LogDirView
from stratalog.storage.remote_path import RemotePath
from stratalog.storage.staged_names import STAGED_SUFFIX

if TYPE_CHECKING:
    import uuid
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from stratalog.format.checkpoint import EpochEntry
    from stratalog.format.directory_metadata import MetaProperties
    from stratalog.format.names import TopicPartition
    from stratalog.format.producer_snapshot import ProducerEntry
    from stratalog.format.txn_index import AbortedTxn
    from stratalog.log.aborted_transactions import MissingIndex
    from stratalog.log.partition_listing import ListedFile
    from stratalog.log.partition_view import PartitionView
    from stratalog.partitions.settings import EffectiveConfig, SettingsFinder
    from stratalog.storage.index_view import IndexView
    from stratalog.storage.segment_view import SegmentView

_BLOCK_BYTES: Final = 512
"""The unit of `st_blocks`."""
_DISK_USE: Final = {
    ".log": "log_bytes",
    ".index": "index_bytes",
    ".timeindex": "index_bytes",
    ".txnindex": "index_bytes",
    FileState.DELETED.value: "deleted_bytes",
    FileState.CLEANED.value: "staged_bytes",
    FileState.SWAP.value: "staged_bytes",
    STAGED_SUFFIX: "staged_bytes",
}

CHECKPOINTS: Final = {
    "high_watermark": RootFile.HIGH_WATERMARKS,
    "recovery_point": RootFile.RECOVERY_POINTS,
    "cleaner_offset": RootFile.CLEANER_OFFSETS,
}


# -- one segment


@dataclass(frozen=True)
class FirstBatch:
    """Facts from the header of the first batch of a segment."""

    timestamp: int
    """Timestamp of its first record if the header has it, else its largest timestamp."""
    codec: str
    magic: int

    @classmethod
    def of(cls, segment: SegmentView) -> Self | None:
        """None if there is no complete batch. The CRC is not checked."""
        raw = segment.file.read(0, HEADER_BYTES)
        found = peek(raw)
        if found is None or not found.is_plausible(
            offset_min=segment.base_offset, bytes_left=segment.size_bytes
        ):
            return None
        if len(raw) < min(HEADER_BYTES, found.size_bytes):  # the file shrank
            return None
        if found.magic < MAGIC_2:
            legacy = LegacyHeader.unpack(raw)
            return cls(legacy.max_timestamp, codec_name(legacy.codec_id), legacy.magic)
        header = BatchHeader.unpack(raw)
        is_record_time = (
            header.timestamp_type is TimestampType.CREATE_TIME and header.delete_horizon_ms is None
        )
        timestamp = header.base_timestamp if is_record_time else header.max_timestamp
        return cls(timestamp, codec_name(header.codec_id), header.magic)


@dataclass(frozen=True)
class IndexSummary:
    """One sparse index of a segment."""

    entries: int
    size_bytes: int | None
    """Size of the file; None if there is no file."""
    origin: str
    """`file`, or why the file was not used."""

    @classmethod
    def of(cls, index: IndexView, sizes: Mapping[Path, int]) -> Self:
        return cls(index.entries, sizes.get(index.path), index.origin)


@dataclass(frozen=True)
class SegmentSummary:
    """One segment."""

    path: Path
    base_offset: int
    next_offset: int
    """Base offset of the next segment, or the log end offset."""
    size_bytes: int
    offset_index: IndexSummary
    time_index: IndexSummary
    aborted_transactions: int
    has_snapshot: bool
    """Whether there is a producer snapshot at its base offset."""
    first: FirstBatch | None
    largest_timestamp: int


def summarize_segments(view: PartitionView) -> list[SegmentSummary]:
    """Every segment of one partition."""
    segments = view.segments
    snapshots = {offset for offset, _ in view.listing.snapshots}
    sizes = {listed.path: listed.size_bytes for listed in view.listing.files}
    ends = [*segments.bases[1:], view.log_end_offset]
    found = []
    for slot, segment in enumerate(segments):
        segment.read_index_files()
        largest = segments.largest_timestamp(slot).timestamp  # checks the time index, too
        last = segment.offset_index.last()
        if last is not None:
            segment.seek(last[1])  # checks the offset index
        found.append(
            SegmentSummary(
                path=segment.path,
                base_offset=segment.base_offset,
                next_offset=ends[slot],
                size_bytes=segment.size_bytes,
                time_index=IndexSummary.of(segment.times.index, sizes),
                offset_index=IndexSummary.of(segment.offset_index, sizes),
                aborted_transactions=sizes.get(segment.sibling(FileKind.TXN_INDEX), 0)
                // TXN_ENTRY_BYTES,
                has_snapshot=segment.base_offset in snapshots,
                first=FirstBatch.of(segment),
                largest_timestamp=largest,
            )
        )
    return found


def codec_name(codec_id: int) -> str:
    """Kafka's name of a codec, or its number if there is no such codec."""
    try:
        return Codec(codec_id).name.lower()
    except ValueError:
        return f"unknown({codec_id})"


# -- one partition


@dataclass(frozen=True)
class Details:
    """What to read of each partition besides its summary. Each costs a few more reads."""

    segments: bool = False
    epochs: bool = False
    producers: bool = False
    transactions: bool = False
    records: bool = False
    """Count the records; this reads the logs."""


class DiskUse(NamedTuple):
    """Space on the disk, as `du` counts it: allocated blocks, the directory itself included."""

    total_bytes: int
    log_bytes: int = 0
    """Bytes of `.log` files."""
    index_bytes: int = 0
    """Bytes of indexes and transaction indexes."""
    deleted_bytes: int = 0
    """Bytes of `.deleted` files, which the broker removes after a delay."""
    staged_bytes: int = 0
    """Bytes of files that are not part of the log yet: those of bulk commits and of compaction."""

    @property
    def other_bytes(self) -> int:
        """Bytes of everything except `.log` files."""
        return self.total_bytes - self.log_bytes

    @classmethod
    def sum(cls, found: Iterable[DiskUse]) -> DiskUse:
        return added(_NO_DISK_USE, *found)


_NO_DISK_USE: Final = DiskUse(0)


def disk_use(directory: Path) -> DiskUse:
    """Disk use of the files in a partition directory. Files that are removed meanwhile do not
    count. In an object store, the sizes of objects count."""
    total_bytes, found = 0, Counter[str]()
    for name, size_bytes in _allocated(directory):
        total_bytes += size_bytes
        found[_DISK_USE.get(PurePath(name).suffix, "")] += size_bytes
    found.pop("", None)
    return DiskUse(total_bytes, **found)


def _allocated(directory: Path) -> Iterator[tuple[str, int]]:
    """Name and size of each entry in a directory, after the directory itself, whose name is empty.
    A directory in an object store has no size of its own, so only its files are listed."""
    if isinstance(directory, RemotePath):
        yield from ((file.name, file.size_bytes) for file in directory.listed().values())
        return
    seen: set[int] = set()
    with suppress(OSError):
        yield "", directory.stat().st_blocks * _BLOCK_BYTES
        with os.scandir(directory) as entries:
            for entry in entries:
                yield entry.name, _allocated_bytes(entry, seen)


def _allocated_bytes(entry: os.DirEntry[str], seen: set[int]) -> int:
    """Allocated bytes of a file, or of a directory with its content. Of several hard links, only
    the first counts."""
    try:
        status = entry.stat(follow_symlinks=False)
        if status.st_nlink > 1 and status.st_ino in seen:
            return 0
        seen.add(status.st_ino)
        size_bytes = status.st_blocks * _BLOCK_BYTES
        if entry.is_dir(follow_symlinks=False):
            with os.scandir(entry) as entries:
                size_bytes += sum(_allocated_bytes(each, seen) for each in entries)
    except OSError:
        return 0
    return size_bytes


@dataclass(frozen=True)
class FoundPartition:
    """The directory of a partition."""

    topic_partition: TopicPartition
    path: Path

    @property
    def label(self) -> str:
        return label_of(self.topic_partition)


@dataclass(frozen=True)
class UnreadablePartition(FoundPartition):
    """A partition that could not be read."""

    problem: str


@dataclass(frozen=True)
class PartitionSummary(FoundPartition):
    """One partition. Details that were not asked for are empty or None."""

    topic_id: uuid.UUID | None
    segment_count: int
    size_bytes: int
    log_start_offset: int
    log_end_offset: int
    first: FirstBatch | None
    """None if the log has no batch."""
    largest_timestamp: int
    checkpoints: Mapping[str, int | None]
    """By the names of `CHECKPOINTS`; None if the log directory has no entry."""
    segments: Sequence[SegmentSummary] = ()
    in_transit: Sequence[ListedFile] = ()
    """Files being deleted, or being swapped in by compaction."""
    epochs: Sequence[EpochEntry] = ()
    producers: Sequence[ProducerEntry] = ()
    aborted: Sequence[AbortedTxn] = ()
    last_stable_offset: int | None = None
    missing_indexes: Sequence[MissingIndex] = ()
    """Missing transaction indexes; these are always looked for."""
    disk_use: DiskUse = _NO_DISK_USE
    record_count: int | None = None
    """Without control records; None if it was not counted."""


def label_of(topic_partition: TopicPartition) -> str:
    """`orders-3`, or the name of the directory if it is not named like a partition."""
    return str(topic_partition) if topic_partition.partition >= 0 else topic_partition.topic


class Checkpoints:
    """The offset checkpoints at the root of one log directory, read once."""

    def __init__(self, log_dir: LogDirView | None) -> None:
        self._offsets = {
            name: log_dir.checkpoint(file) if log_dir else {} for name, file in CHECKPOINTS.items()
        }

    def of(self, topic_partition: TopicPartition) -> dict[str, int | None]:
        return {name: offsets.get(topic_partition) for name, offsets in self._offsets.items()}


def summarize_partition(
    view: PartitionView, checkpoints: Checkpoints, details: Details
) -> PartitionSummary:
    """One partition, with the details asked for."""
    segments = view.segments
    in_transit = (file for file in view.listing.files if file.file.state is not FileState.LIVE)
    return PartitionSummary(
        topic_partition=view.topic_partition,
        path=view.path,
        topic_id=view.topic_id,
        segment_count=len(segments),
        size_bytes=view.size_bytes,
        log_start_offset=view.log_start_offset,
        log_end_offset=view.log_end_offset,
        first=next(filter(None, map(FirstBatch.of, segments)), None),
        largest_timestamp=max(
            segments.largest_timestamp(slot).timestamp for slot in range(len(segments))
        ),
        checkpoints=checkpoints.of(view.topic_partition),
        segments=summarize_segments(view) if details.segments else (),
        in_transit=tuple(in_transit) if details.segments else (),
        epochs=view.leader_epochs if details.epochs else (),
        producers=view.producers if details.producers else (),
        aborted=view.aborted_transactions() if details.transactions else (),
        last_stable_offset=view.last_stable_offset if details.transactions else None,
        missing_indexes=view.missing_txn_indexes(),
        disk_use=disk_use(view.path),
        record_count=_count_records(view, is_wanted=details.records),
    )


def _count_records(view: PartitionView, *, is_wanted: bool) -> int | None:
    """0 for an empty log; any other has to be read, and gives None unless `is_wanted`."""
    if view.log_start_offset == view.log_end_offset:
        return 0
    if not is_wanted:
        return None
    return sum(int(batch.num_rows) for batch in view.read_columns(columns=("offset",)))


# -- one topic


@dataclass(frozen=True)
class TopicSummary:
    """The partitions of one topic taken together."""

    topic: str
    topic_id: uuid.UUID | None
    partitions: int
    segment_count: int
    size_bytes: int
    log_start_offset_min: int | None
    """None, like the next one, if no partition can be read."""
    log_end_offset_max: int | None
    offsets: int
    """Sum over the partitions of log end offset minus log start offset."""
    first_timestamp: int | None
    largest_timestamp: int
    codecs: Sequence[str]
    disk_use: DiskUse
    record_count: int | None
    """None unless it is known for all partitions."""
    unreadable: int = 0
    """How many partitions could not be read. They count in `partitions` and nowhere else."""

    @classmethod
    def of(
        cls, topic: str, partitions: Sequence[PartitionSummary], unreadable: int
    ) -> TopicSummary:
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
            disk_use=DiskUse.sum(found.disk_use for found in partitions),
            record_count=_sum_or_none([found.record_count for found in partitions]),
        )


def _sum_or_none(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if counts and len(known) == len(counts) else None


# -- one log directory

_WRITER_FILES: Final = (RootFile.LOCK, RootFile.META_PROPERTIES, RootFile.RECOVERY_POINTS)
"""A directory with one of them has had a writer. Others are copies of partitions."""


@dataclass(frozen=True)
class LogDirSummary:
    """The root of one log directory."""

    path: Path
    meta: MetaProperties | None
    is_clean_shutdown: bool
    partitions: int
    is_in_use: bool = False
    """A broker or another writer has locked it."""
    holder: str | None = None
    """Which process that is, if it can be found."""
    is_unclean: bool = False
    """Nobody uses it, and the last writer did not shut down: the next one recovers its logs."""


@dataclass(frozen=True)
class OtherDirectory:
    """A directory that is not a live partition."""

    path: Path
    state: str
    """`delete`, `stray`, `future`, or `unknown`: a broker does not start with an unknown one."""
    topic_partition: TopicPartition | None
    size_bytes: int


def summarize_log_dir(log_dir: LogDirView, on_problem: Callable[[str], None]) -> LogDirSummary:
    """The root of one log directory."""
    meta = None
    try:
        meta = log_dir.meta_properties
    except StratalogError as error:
        on_problem(f"{log_dir.path}: meta.properties: {error}")
    live = sum(listed.directory.state is DirState.LIVE for listed in log_dir.partitions)
    is_in_use = is_locked(log_dir.path)
    has_writer = any((log_dir.path / file.value).exists() for file in _WRITER_FILES)
    return LogDirSummary(
        log_dir.path,
        meta,
        log_dir.has_clean_shutdown,
        live,
        is_in_use,
        find_holder(log_dir.path / RootFile.LOCK.value) if is_in_use else None,
        is_unclean=has_writer and not is_in_use and not log_dir.has_clean_shutdown,
    )


def other_directories(log_dirs: Iterable[LogDirView]) -> list[OtherDirectory]:
    """Directories that are not live partitions."""
    found = []
    for log_dir in log_dirs:
        for path, directory in log_dir.partitions:
            if directory.state is not DirState.LIVE:
                state = directory.state.value.removeprefix("-")
                found.append(OtherDirectory(path, state, directory.topic_partition, _size_of(path)))
        for path in log_dir.invalid_directories:
            found.append(OtherDirectory(path, "unknown", None, _size_of(path)))
    return found


def _size_of(path: Path) -> int:
    """Size of the files in a directory, as far as they are readable."""
    size_bytes = 0
    with suppress(OSError):  # removed or unreadable: return what was counted
        for entry in path.iterdir():
            size_bytes += entry.stat().st_size if entry.is_file() else 0
    return size_bytes


# -- all of it


@dataclass(frozen=True)
class Inventory:
    """Everything that was found."""

    log_dirs: Sequence[LogDirSummary]
    topics: Sequence[TopicSummary]
    partitions: Sequence[PartitionSummary]
    other_directories: Sequence[OtherDirectory]
    unreadable: Sequence[UnreadablePartition] = ()
    settings: Mapping[str, EffectiveConfig] = field(default_factory=dict)
    """By topic."""


class InventoryBuilder:
    """Reads partitions one by one. One that cannot be read does not stop the others."""

    def __init__(
        self, details: Details, settings: SettingsFinder, on_problem: Callable[[str], None]
    ) -> None:
        self._details = details
        self._finder = settings
        self._on_problem = on_problem
        self._checkpoints: dict[Path, Checkpoints] = {}
        self._found: list[PartitionSummary] = []
        self._unreadable: list[UnreadablePartition] = []
        self._settings: dict[str, EffectiveConfig] = {}

    def build(
        self,
        log_dirs: Sequence[LogDirView],
        openers: Iterable[Callable[[], Iterable[PartitionView]]],
    ) -> Inventory:
        """Inventory of `log_dirs`, and of the partitions that `openers` open."""
        self._checkpoints = {log_dir.path: Checkpoints(log_dir) for log_dir in log_dirs}
        for opener in openers:
            try:
                views = opener()
            except AccessDeniedError as error:
                self._note_unreadable(error.path, error)
                continue
            except StratalogError as error:
                self._on_problem(str(error))
                continue
            for view in views:
                self._add(view)
        return Inventory(
            log_dirs=[summarize_log_dir(log_dir, self._on_problem) for log_dir in log_dirs],
            topics=self._topics(),
            partitions=self._found,
            other_directories=other_directories(log_dirs),
            unreadable=self._unreadable,
            settings=self._settings,
        )

    def _add(self, view: PartitionView) -> None:
        root = view.path.parent
        if root not in self._checkpoints:
            self._checkpoints[root] = Checkpoints(_log_dir_at(root))
        try:
            with view:
                self._found.append(
                    summarize_partition(view, self._checkpoints[root], self._details)
                )
                topic = view.topic_partition.topic
                if topic not in self._settings and topic != CLUSTER_METADATA_TOPIC:
                    self._settings[topic] = self._finder.of(view)
        except (StratalogError, OSError) as error:  # OSError: removed meanwhile
            self._note_unreadable(view.path, error)

    def _note_unreadable(self, path: Path, error: Exception) -> None:
        has_path = getattr(error, "path", None) is not None  # then the message starts with it
        problem = str(error) if has_path else f"{path}: {error}"
        self._on_problem(problem)
        self._unreadable.append(UnreadablePartition(identity_of(path)[0], path, problem))

    def _topics(self) -> list[TopicSummary]:
        by_topic: dict[str, list[PartitionSummary]] = {}
        for found in self._found:
            by_topic.setdefault(found.topic_partition.topic, []).append(found)
        counts = Counter(each.topic_partition.topic for each in self._unreadable)
        names = sorted({*by_topic, *counts})
        return [TopicSummary.of(name, by_topic.get(name, []), counts[name]) for name in names]


def _log_dir_at(path: Path) -> LogDirView | None:
    try:
        return LogDirView(path)
    except StratalogError:
        return None
