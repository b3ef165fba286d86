"""The files to dump, and the entries of indexes and snapshots, checked against the log.

As in Kafka's tool, the kind of a file is what follows the last dot of its name. Indexes and
snapshots are read completely (10 MiB by default, never more than the file), logs in windows. Paths
stay the strings that the user wrote, since they are printed: `./x` is not `x`."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from os.path import lexists
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from stratalog.errors import (
    CorruptError,
    CorruptIndexError,
    InvalidNameError,
    LimitExceededError,
    NotALogDirError,
    StratalogError,
    UnknownTopicOrPartitionError,
)
from stratalog.format import offset_index, time_index
from stratalog.format.batch import (
    CLASSIFY_BYTES,
    HEADER_BYTES,
    LEGACY_MESSAGE_BYTES_MIN,
    MAGIC_2,
    MAGIC_AT,
    NO_TIMESTAMP,
    PREFIX_BYTES,
    BatchHeader,
    Entry,
)
from stratalog.format.checkpoint import (
    CheckpointedOffset,
    EpochEntry,
    decode_leader_epochs,
    decode_offsets,
)
from stratalog.format.java_text import parse_int
from stratalog.format.log_entry import records_of
from stratalog.format.names import (
    DirState,
    FileKind,
    RootFile,
    TopicPartition,
    known_partition_file,
)
from stratalog.format.offset_index import OffsetEntry
from stratalog.format.producer_snapshot import ProducerEntry, decode_snapshot
from stratalog.format.time_index import TimeEntry
from stratalog.format.txn_index import AbortedTxn, read_entries
from stratalog.format.varint import wrapped_long
from stratalog.storage.log_dir_scan import list_log_dir, read_offset_checkpoint
from stratalog.storage.log_file import LogFile, list_directory, open_file
from stratalog.storage.remote_path import location

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from stratalog.dump.log_contents import DumpOptions
    from stratalog.dump.problems import DumpReport

E = TypeVar("E", OffsetEntry, TimeEntry)

BATCH_BYTES_MAX: Final = 128 << 20


class BatchPosition(NamedTuple):
    """The position, size and last offset of a batch."""

    position: int
    size_bytes: int
    last_offset: int


class LogHeaders:
    """A `.log` file as an index refers to it: by position."""

    def __init__(self, file: LogFile) -> None:
        self._file = file
        self._size_bytes = file.size_bytes
        self._found_from = -1
        self._found: BatchPosition | None = None
        self._past_from = self._size_bytes
        self._past_offset = -1

    def at(self, position: int, bytes_max: int) -> BatchPosition:
        """The batch that starts at `position` and ends within `bytes_max` bytes."""
        if position < 0:
            raise CorruptIndexError(f"index points to position {position}")
        if position > self._size_bytes:
            raise CorruptIndexError(
                f"index points to position {position}, past the {self._size_bytes} bytes of the log"
            )
        seen = self._read(position, min(self._size_bytes, position + bytes_max))
        if seen is None:
            raise CorruptIndexError(
                f"index points to position {position}, where there is no complete batch of at most "
                f"{bytes_max} bytes"
            )
        return seen

    def first_ending_at_or_after(self, offset: int, position: int) -> BatchPosition | None:
        """The first batch from `position` on whose last offset is at least `offset`.

        Entries are in order and usually far apart. With a missing or corrupt `.index` every search
        would begin at the start of the log: then it continues where the last one ended.
        """
        if position < 0 or position > self._size_bytes:
            raise CorruptIndexError(f"offset index points to position {position}")
        if position >= self._past_from and offset > self._past_offset:
            return None
        start, found = position, self._found
        if found and self._found_from == position and offset >= found.last_offset:
            start = found.position
        highest = self._past_offset
        for seen in self._walk(start):
            if seen.last_offset >= offset:
                self._found_from, self._found = position, seen
                return seen
            highest = max(highest, seen.last_offset)
        if position <= self._past_from:
            self._past_from, self._past_offset = position, highest
        return None

    def max_timestamp(self, seen: BatchPosition) -> int:
        """Max timestamp of the batch's records; -1 when it has none."""
        if seen.size_bytes > BATCH_BYTES_MAX:
            raise CorruptIndexError(f"batch of {seen.size_bytes} bytes at {seen.position}")
        data = self._file.read(seen.position, seen.size_bytes)
        entry = Entry(0, seen.last_offset, len(data), data[MAGIC_AT] if len(data) > MAGIC_AT else 0)
        records = records_of(data, entry, check_crc=False)
        return max((record.timestamp for record in records), default=NO_TIMESTAMP)

    def _walk(self, position: int) -> Iterator[BatchPosition]:
        while (seen := self._read(position, self._size_bytes)) is not None:
            yield seen
            position += seen.size_bytes

    def _read(self, position: int, end: int) -> BatchPosition | None:
        """As Kafka reads a batch of a file: None when it does not end by `end`."""
        if end - position <= CLASSIFY_BYTES:
            return None
        data = self._file.read(position, HEADER_BYTES)
        if len(data) <= CLASSIFY_BYTES:
            return None
        offset = int.from_bytes(data[:8], signed=True)
        length = int.from_bytes(data[8:PREFIX_BYTES], signed=True)
        if length < LEGACY_MESSAGE_BYTES_MIN:
            raise CorruptIndexError(f"invalid batch length {length} at position {position}")
        size = PREFIX_BYTES + length
        if size > end - position:
            return None
        if not MAGIC_2 <= data[MAGIC_AT] < 0x80:
            return BatchPosition(position, size, offset)
        if len(data) < HEADER_BYTES:
            raise CorruptIndexError(f"log ends inside the batch header at position {position}")
        return BatchPosition(position, size, wrapped_long(BatchHeader.unpack(data).last_offset))


# Entries of `.index` and `.timeindex` files are read up to the zero tail of a preallocated file:
# the first slot after slot 0 whose offset is the base offset. Mismatches with the log are reported;
# an entry that points outside the log is an error and ends the file.


@contextmanager
def _at_slot(slot: int, entry_bytes: int) -> Iterator[None]:
    """Raise errors for the index entry, not for the log."""
    try:
        yield
    except CorruptError as error:
        raise CorruptIndexError(error.reason, position=slot * entry_bytes) from None


@dataclass(frozen=True)
class SegmentIndexes:
    """The bytes of a segment's indexes, and the log that they refer to.

    Without a log nothing can be checked, and entries are only listed.
    """

    base_offset: int
    log: LogHeaders | None
    offset_index: bytes = b""
    time_index: bytes = b""

    def offset_entries(
        self, path: str, bytes_max: int, report: DumpReport
    ) -> Iterator[OffsetEntry]:
        """Entries of `.index`. A batch must end within `bytes_max` bytes of where it starts."""
        name = report.absolute(path)
        slots = len(self.offset_index) // offset_index.ENTRY_BYTES
        entries = offset_index.read_entries(self.offset_index, slots, self.base_offset)
        for slot, entry in self._used(entries):
            if self.log is not None:
                with _at_slot(slot, offset_index.ENTRY_BYTES):
                    found = self.log.at(entry.position, bytes_max).last_offset
                if found != entry.offset:
                    report.index_mismatches[name].add(entry.offset, found)
            yield entry

    def time_entries(self, path: str, report: DumpReport) -> Iterator[TimeEntry]:
        """Entries of `.timeindex`."""
        slots = len(self.time_index) // time_index.ENTRY_BYTES
        before = NO_TIMESTAMP
        entries = time_index.read_entries(self.time_index, slots, self.base_offset)
        for slot, entry in self._used(entries):
            if self.log is not None:
                with _at_slot(slot, time_index.ENTRY_BYTES):
                    self._check_time(entry, before, report.absolute(path), report)
            yield entry
            before = entry.timestamp

    def _used(self, entries: Iterable[E]) -> Iterator[tuple[int, E]]:
        """The entries before the zeros of a preallocated file, with their slots."""
        for slot, entry in enumerate(entries):
            if slot and entry.offset == self.base_offset:
                return
            yield slot, entry

    def _check_time(self, entry: TimeEntry, before: int, name: str, report: DumpReport) -> None:
        assert self.log is not None
        slots = len(self.offset_index) // offset_index.ENTRY_BYTES
        # With a trace the search is Kafka's own, which matters if entries are not in order.
        hit = offset_index.lookup(
            self.offset_index, slots, self.base_offset, entry.offset, trace=[]
        )
        batch = self.log.first_ending_at_or_after(entry.offset, hit.position)
        if batch is None:
            report.offsets_not_found[name].add(entry.offset, -1)
            return
        if batch.last_offset != entry.offset:
            report.offsets_not_found[name].add(entry.offset, batch.last_offset)
            return
        newest = self.log.max_timestamp(batch)
        if newest != entry.timestamp:
            report.time_mismatches[name].add(entry.timestamp, newest)
        if before >= entry.timestamp:
            report.time_disorders[name].add(entry.timestamp, before)


LOG: Final = ".log"
CHECKPOINT: Final = ".checkpoint"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"
KINDS: Final = (LOG, OFFSET_INDEX, TIME_INDEX, TXN_INDEX, SNAPSHOT, CHECKPOINT)
LOG_KINDS: Final = frozenset({LOG, CHECKPOINT})
INDEX_KINDS: Final = frozenset({OFFSET_INDEX, TIME_INDEX})

WHOLE_FILE_BYTES_MAX: Final = 1 << 30  # far above any index or snapshot that Kafka writes

OFFSET_CHECKPOINTS: Final = frozenset(
    file.value
    for file in (
        RootFile.RECOVERY_POINTS,
        RootFile.LOG_START_OFFSETS,
        RootFile.HIGH_WATERMARKS,
        RootFile.CLEANER_OFFSETS,
    )
)
"""Text files at the root of a log directory. Kafka's tool does not know them."""
EPOCH_CHECKPOINT: Final = FileKind.LEADER_EPOCHS.value


EntryValue: TypeAlias = (
    OffsetEntry | TimeEntry | ProducerEntry | AbortedTxn | EpochEntry | CheckpointedOffset
)


def kind_of(path: str) -> str | None:
    """What follows the last dot of the name, dot included, if it is a kind that can be dumped; the
    whole name for a text checkpoint."""
    name = path.rpartition("/")[2]
    if name in OFFSET_CHECKPOINTS or name == EPOCH_CHECKPOINT:
        return name
    suffix = name[name.rfind(".") :] if "." in name else ""
    return suffix if suffix in KINDS else None


def base_offset_of(path: str) -> int:
    """The number before the first dot of a segment file's name."""
    name = path.rpartition("/")[2]
    offset = parse_int(name.partition(".")[0], bits=64)
    if offset is None:
        raise InvalidNameError(f"{name!r} does not begin with an offset")
    return offset


def is_done(options: DumpOptions, report: DumpReport) -> bool:
    """Whether the limit of what to show is reached."""
    return options.limit is not None and report.shown >= options.limit


@contextmanager
def errors_reported(path: str, report: DumpReport) -> Iterator[None]:
    """An error ends the dump of the file, and is reported as a problem."""
    try:
        yield
    except CorruptError as error:
        report.problem(f"{path} at byte {error.position}: {error.reason}")
    except StratalogError as error:
        report.problem(f"{path}: {error}")
    except OSError as error:
        report.problem(f"{path}: {error.strerror}")


def shown_entries(path: str, options: DumpOptions, report: DumpReport) -> Iterator[EntryValue]:
    """The entries of an index, transaction index or snapshot; none of an index that is only to be
    verified."""
    is_hidden = options.index_checks.verify_only and kind_of(path) in INDEX_KINDS
    for entry in _entries_of(path, options, report):
        if options.filters.accepts_entry(entry):
            report.shown += 1
            if not is_hidden:
                yield entry
            if is_done(options, report):
                return


def _entries_of(path: str, options: DumpOptions, report: DumpReport) -> Iterable[EntryValue]:
    kind = kind_of(path)
    if kind == SNAPSHOT:
        return decode_snapshot(read_whole(path))
    if kind == TXN_INDEX:
        return read_entries(read_whole(path))
    if kind == EPOCH_CHECKPOINT:
        return decode_leader_epochs(read_whole(path))
    if kind in OFFSET_CHECKPOINTS:
        offsets = decode_offsets(read_whole(path))
        return [CheckpointedOffset(*each, offset) for each, offset in offsets.items()]
    return _index_entries(path, options, report)


def _index_entries(
    path: str, options: DumpOptions, report: DumpReport
) -> Iterator[OffsetEntry | TimeEntry]:
    try:
        log = open_file(location(sibling_of(path, LOG)))
    except FileNotFoundError:
        report.problem(f"{path}: its .log file is missing, so entries are not checked")
        yield from _index_entries_of(path, None, options, report)
        return
    with log:
        yield from _index_entries_of(path, LogHeaders(log), options, report)


def _index_entries_of(
    path: str, log: LogHeaders | None, options: DumpOptions, report: DumpReport
) -> Iterator[OffsetEntry | TimeEntry]:
    base_offset, data = base_offset_of(path), read_whole(path)
    if kind_of(path) == OFFSET_INDEX:
        indexes = SegmentIndexes(base_offset, log, offset_index=data)
        return indexes.offset_entries(path, options.index_checks.max_message_bytes, report)
    offsets_path = sibling_of(path, OFFSET_INDEX)
    offsets = read_whole(offsets_path) if location(offsets_path).is_file() else b""
    indexes = SegmentIndexes(base_offset, log, offset_index=offsets, time_index=data)
    return indexes.time_entries(path, report)


def check_sanity(path: str) -> None:
    """Kafka's quick check of an index: raise if it fails."""
    check = offset_index if kind_of(path) == OFFSET_INDEX else time_index
    check.check_sanity(read_whole(path), base_offset_of(path))


def is_compacted(path: str) -> bool:
    """Whether a cleaner has worked on the log of this file: then it has offset gaps."""
    directory = location(path).absolute().parent
    try:
        place = TopicPartition.parse(directory.name)
    except InvalidNameError:
        return False
    return place in read_offset_checkpoint(directory.parent, RootFile.CLEANER_OFFSETS)


def sibling_of(path: str, kind: str) -> str:
    """The file of another kind that belongs to the same segment."""
    directory, slash, name = path.rpartition("/")
    return f"{directory}{slash}{name.partition('.')[0]}{kind}"


def read_whole(path: str) -> bytes:
    with open_file(location(path)) as file:
        size = file.size_bytes
        if size > WHOLE_FILE_BYTES_MAX:
            raise LimitExceededError(f"{size} bytes are too many for an index or a snapshot")
        return file.read(0, size)


# The files that a user names: a file, a partition directory, a topic, or a log directory.


class _FoundPartition(NamedTuple):
    """A partition's directory, ordered as it is to be shown."""

    topic_partition: TopicPartition
    path: str

    def is_named(self, text: str) -> bool:
        """By `topic`, `topic:partition` or `topic-partition`."""
        topic, partition = self.topic_partition
        return text in {topic, f"{topic}:{partition}", f"{topic}-{partition}"}


def java_path(path: str) -> str:
    """`path` as Java's File shows it: no doubled and no trailing slashes. A URI stays one."""
    if "://" in path:
        return path.rstrip("/")
    return re.sub(r"/+", "/", path).rstrip("/") or "/"


def absolute_path(path: str) -> str:
    """Java's File.getAbsolutePath: dots are not resolved."""
    return (
        path if path.startswith("/") or "://" in path else f"{str(Path.cwd()).rstrip('/')}/{path}"
    )


def files_of(target: str, kinds: Collection[str] = KINDS) -> list[str]:
    """The files that `target` names, by topic, partition and offset."""
    path = java_path(target)
    if not location(path).is_dir():
        if lexists(path) or location(path).is_file():
            return [path]
        directory, slash, name = path.rpartition("/")
        log_dir = directory or slash or "."
        if not location(log_dir).is_dir() or not _partitions_in(log_dir):
            raise NotALogDirError(f"{target}: no such file or directory")
        return files_of_topic(log_dir, name, kinds)
    if _files_in(path, KINDS):
        return _files_in(path, kinds)
    found = _partitions_in(path)
    if not any(_files_in(partition.path, KINDS) for partition in found):
        raise NotALogDirError(
            f"{target}: neither a partition directory (no segments in it) nor a log directory (no "
            "directories TOPIC-NUMBER with segments)"
        )
    return [file for partition in found for file in _files_in(partition.path, kinds)]


def files_of_topic(log_dir: str, topic: str, kinds: Collection[str] = KINDS) -> list[str]:
    """The files of a topic or of one of its partitions in a log directory."""
    if not location(log_dir).is_dir():
        what = "a file, not a directory" if lexists(log_dir) else "no such directory"
        raise NotALogDirError(f"{java_path(log_dir)}: {what}")
    found = _partitions_in(java_path(log_dir))
    wanted = [partition for partition in found if partition.is_named(topic)]
    if not wanted:
        raise UnknownTopicOrPartitionError(
            f"{java_path(log_dir)}: no file, directory or topic {topic!r} in it"
        )
    return [file for partition in wanted for file in _files_in(partition.path, kinds)]


def _partitions_in(log_dir: str) -> list[_FoundPartition]:
    return sorted(
        _FoundPartition(directory.topic_partition, _join(log_dir, path.name))
        for path, directory in list_log_dir(location(log_dir)).partitions
        if directory.state is DirState.LIVE
    )


def _files_in(directory: str, kinds: Collection[str]) -> list[str]:
    """Files of a partition directory that can be dumped, those of one segment together."""
    found = []
    for entry in list_directory(location(directory)):
        kind = kind_of(entry.name)
        if kind not in kinds or entry.is_dir:
            continue
        parsed = known_partition_file(entry.name)
        if parsed is not None and parsed.base_offset is not None:
            rank = (parsed.base_offset, KINDS.index(kind))
            found.append((rank, _join(directory, entry.name)))
    return [path for _, path in sorted(found)]


def _join(directory: str, name: str) -> str:
    if directory == ".":
        return name
    return f"{directory.rstrip('/')}/{name}"
