"""Decides which files of log directories a backup copies, and up to which batch of each log: the
cut.

A directory that nobody has open is cut file by file, as it is. In one that is being written to:

* checkpoints are read before the logs, so they never promise more than the logs hold. Logs of
  `__consumer_offsets` are cut before all others, so every committed offset is of a record that is
  in the backup;
* the ends of all logs are looked up in a few milliseconds, again and again until no transaction has
  changed its state meanwhile: a transaction is open, ending or over in all partitions alike;
* the last segment of a log is cut after its last complete batch, without its indexes, which are
  still growing; restoring builds them.
"""

from __future__ import annotations

import logging
import os
import time
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.bulk.backup_store import INLINE_BYTES_MAX, SavedPartition
from stratalog.commits.journal import JOURNAL_FILE
from stratalog.errors import BackupError, PartitionGoneError, SegmentGoneError
from stratalog.format import names
from stratalog.format.names import DirState, FileKind, FileState, RootFile
from stratalog.log.partition_listing import list_partition
from stratalog.partitions.lock import is_locked
from stratalog.partitions.saved_state import STATE_FILE
from stratalog.storage.log_dir_scan import scan_log_dir
from stratalog.storage.log_file import FileIdentity, read_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from stratalog.log.partition_listing import ListedFile, Listing
    from stratalog.storage.log_dir_scan import ListedPartition
    from stratalog.storage.segment_view import SegmentView

_log: Final = logging.getLogger(__name__)

CUTS_MAX: Final = 100
"""How often to look up the log ends again, until no transaction changes its state meanwhile."""
PASSES_MAX: Final = 20
"""How often to search again for files that were replaced before they were copied."""
_ENDINGS_SKIPPED: Final = (names.TEMPORARY_SUFFIX, FileState.DELETED.value)
_GROWING: Final = {FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX}
_CLOCK_STEP_NS: Final = 20_000_000
"""File systems use a clock that lags this far behind, at most."""


class PlannedFile(NamedTuple):
    """A file of the cut."""

    path: str
    """Below the log directory, by the name that it has when it is restored."""
    source: Path
    size_bytes: int
    """What is copied; the file may be larger by now."""
    identity: FileIdentity
    is_growing: bool = False
    data: bytes | None = None
    """The content, of a small file."""


class EndLookup(NamedTuple):
    """The time at which the end of a log was looked up, and the segment that was active then.

    Compaction never reads the active segment. Once there is a newer one, it may remove a record
    before that end because of one after it: in a log that ends there, the key would be missing.
    """

    time_ns: int
    active_base: int
    inode: int


class PartitionCut(NamedTuple):
    """The cut of a partition."""

    files: tuple[PlannedFile, ...]
    saved: SavedPartition | None
    lookup: EndLookup | None = None


class OvertakenError(Exception):
    """A log was compacted beyond the offset at which it is to be cut."""


@dataclass
class DirCut:
    """The cut of one log directory."""

    path: Path
    root_files: list[PlannedFile]
    partitions: dict[str, PartitionCut] = field(default_factory=dict)
    """By the names of their directories."""
    is_live: bool = False
    is_clean: bool = False
    is_settled: bool = True

    @property
    def files(self) -> Iterator[PlannedFile]:
        yield from self.root_files
        for partition in self.partitions.values():
            yield from partition.files

    def add(
        self,
        listed: ListedPartition,
        *,
        end_max: int | None = None,
        bound: _LogEnd | None = None,
        lookup: EndLookup | None,
        may_cut_later: bool,
    ) -> None:
        """Cut a partition at this end. If the log was compacted beyond it meanwhile, cut it at its
        end as it is now, or raise OvertakenError. A partition of a deleted topic is left out."""
        try:
            self.partitions[listed.path.name] = cut_partition(listed, end_max, bound, lookup)
        except PartitionGoneError:
            return
        except OvertakenError:
            if not may_cut_later:
                raise
            self._cut_later(listed)

    def _cut_later(self, listed: ListedPartition) -> None:
        _log.warning(
            "%s: the log was compacted while it was backed up, so its end in the backup is later "
            "than that of other logs; to have all ends of one moment, run another backup",
            listed.path,
        )
        self.partitions[listed.path.name] = cut_partition(listed)
        self.is_settled = False


class _LogEnd(NamedTuple):
    """The end of a log: its last segment, and the size of that. Later segments are not part of the
    cut."""

    base_offset: int
    size_bytes: int
    inode: int


@dataclass(frozen=True)
class _LiveDirState:
    """The ends of all logs in a live directory at one time."""

    path: Path
    time_ns: int
    root_files: tuple[PlannedFile, ...]
    bounds: Mapping[str, _LogEnd]
    """By the names of partition directories."""

    def lookup(self, name: str) -> EndLookup | None:
        """The lookup of one partition; None if it had no segment."""
        bound = self.bounds.get(name)
        return None if bound is None else EndLookup(self.time_ns, bound.base_offset, bound.inode)

    @classmethod
    def now(cls, path: Path, root_files: Sequence[PlannedFile]) -> _LiveDirState:
        """The state after `root_files` were read."""
        return cls(path, time.time_ns(), tuple(root_files), _bounds(path))


def cut_dirs(dirs: Sequence[Path], *, may_cut_later: bool = False) -> list[DirCut]:
    """Cut all directories at one time, as far as transactions are concerned. A log that was
    compacted beyond its end at that time is cut later, or OvertakenError is raised."""
    live = [path for path in dirs if is_locked(path)]
    states, is_settled = _settled_states(live)
    cuts = []
    for path in dirs:
        if path in live:
            cut = cut_live_dir(path, states[path], may_cut_later=may_cut_later)
            cuts.append(replace(cut, is_settled=cut.is_settled and is_settled))
        else:
            cuts.append(_cut_unlocked(path))
    return cuts


def _settled_states(live: Sequence[Path]) -> tuple[dict[Path, _LiveDirState], bool]:
    """The ends of all logs at a time at which no transaction changes its state. Looking them up
    takes a few milliseconds, so there usually is such a time; files are listed afterwards."""
    states: dict[Path, _LiveDirState] = {}
    for attempt in range(1, CUTS_MAX + 1):
        roots = {path: tuple(_root_files(path)) for path in live}
        before = [_states(path) for path in live]
        states = {path: _LiveDirState.now(path, roots[path]) for path in live}
        if before == [_states(path) for path in live] and all(map(_is_current, states.values())):
            return states, True
        time.sleep(0.0002 * attempt)
    _log.warning(
        "%s: transactions started or ended each time the logs were listed, so transactions that "
        "were ending may be incomplete in this backup; to be safe, run another backup at a "
        "quieter time",
        ", ".join(map(str, live)),
    )
    return states, False


def _states(path: Path) -> dict[str, _LogEnd]:
    """The ends of the transaction logs, which change with every step of a transaction."""
    prefix = f"{names.TRANSACTION_STATE_TOPIC}-"
    listed = os.listdir(path)  # noqa: PTH208 - names, not paths
    return _bounds_of(path, [name for name in listed if name.startswith(prefix)])


def _bounds(path: Path) -> dict[str, _LogEnd]:
    """The end of each log; consumer offsets come first."""
    prefix = f"{names.CONSUMER_OFFSETS_TOPIC}-"
    listed = os.listdir(path)  # noqa: PTH208
    return _bounds_of(path, sorted(listed, key=lambda name: not name.startswith(prefix)))


def _bounds_of(path: Path, directories: Iterable[str]) -> dict[str, _LogEnd]:
    ending = FileKind.LOG.value
    found: dict[str, _LogEnd] = {}
    for name in directories:
        try:
            files = os.listdir(f"{path}/{name}")  # noqa: PTH208
            last = max((each for each in files if each.endswith(ending)), default=None)
            if last is not None:
                status = os.stat(f"{path}/{name}/{last}")  # noqa: PTH116 - fast
                base_offset = int(last.removesuffix(ending))
                found[name] = _LogEnd(base_offset, status.st_size, status.st_ino)
        except (OSError, ValueError):  # a file, or gone meanwhile
            continue
    return found


def _is_current(state: _LiveDirState) -> bool:
    """Whether the state files of writers have not changed since they were read."""
    for name in (STATE_FILE, JOURNAL_FILE):
        read = {each.identity for each in state.root_files if each.path == name}
        status = _status(state.path / name)
        if read != (set() if status is None else {FileIdentity.of(status)}):
            return False
    return True


def _cut_unlocked(path: Path) -> DirCut:
    try:
        return _cut_stopped_dir(path)
    except (SegmentGoneError, PartitionGoneError, FileNotFoundError):  # somebody writes
        return cut_live_dir(path)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _cut_stopped_dir(path: Path) -> DirCut:
    """Cut a directory that nobody has open: every file as it is."""
    listing = scan_log_dir(path)
    cut = DirCut(path, _all_files(path, ""))
    cut.is_clean = RootFile.CLEAN_SHUTDOWN in listing.root_files
    for listed in _kept_partitions(listing.partitions):
        name = listed.path.name
        saved = None
        if listed.directory.state is DirState.LIVE:
            saved = SavedPartition(*listed.directory.topic_partition, end_of_batches(listed.path))
        cut.partitions[name] = PartitionCut(tuple(_all_files(listed.path, f"{name}/")), saved)
    return cut


def end_of_batches(path: Path) -> int:
    """Where the last batch in the files of a partition ends, whatever its log start is."""
    listing = list_partition(path)
    try:
        return listing.segments[-1].end.next_offset if listing.segments else 0
    finally:
        _release(listing.segments)


def _all_files(directory: Path, prefix: str) -> list[PlannedFile]:
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_file() and not _is_skipped(entry.name):
                found.append(_planned(prefix + entry.name, Path(entry.path), entry.stat()))
    return sorted(found)


def _is_skipped(name: str) -> bool:
    return name == RootFile.LOCK.value or name.endswith(_ENDINGS_SKIPPED)


def _planned(path: str, source: Path, status: os.stat_result) -> PlannedFile:
    planned = PlannedFile(path, source, status.st_size, FileIdentity.of(status))
    return _with_data(planned) if status.st_size <= INLINE_BYTES_MAX else planned


def _with_data(planned: PlannedFile) -> PlannedFile:
    """The file with its present content. Raises SegmentGoneError if it does not exist any more."""
    try:
        data = read_file(planned.source)
    except FileNotFoundError:
        raise SegmentGoneError(planned.source) from None
    if len(data) > INLINE_BYTES_MAX:
        return planned
    return planned._replace(data=data, size_bytes=len(data))


def _kept_partitions(partitions: Sequence[ListedPartition]) -> list[ListedPartition]:
    """Consumer offsets first, then transactions, then all others; not those that are deleted."""
    order = {names.CONSUMER_OFFSETS_TOPIC: 0, names.TRANSACTION_STATE_TOPIC: 1}
    kept = [each for each in partitions if each.directory.state is not DirState.DELETE]
    return sorted(
        kept, key=lambda each: (order.get(each.directory.topic_partition.topic, 2), each.path)
    )


def cut_live_dir(
    path: Path, state: _LiveDirState | None = None, *, may_cut_later: bool = True
) -> DirCut:
    state = state or _LiveDirState.now(path, _root_files(path))
    cut = DirCut(path, list(state.root_files), is_live=True)
    for listed in _kept_partitions(scan_log_dir(path).partitions):
        name = listed.path.name
        bound, lookup = state.bounds.get(name), state.lookup(name)
        cut.add(listed, bound=bound, lookup=lookup, may_cut_later=may_cut_later)
    return cut


def is_remote_metadata(listed: ListedPartition) -> bool:
    directory = listed.directory
    return (
        directory.state is DirState.LIVE
        and directory.topic_partition.topic == names.REMOTE_METADATA_TOPIC
    )


def _root_files(path: Path) -> list[PlannedFile]:
    """The files of the log directory itself; they are replaced all the time."""
    for _ in range(PASSES_MAX):
        try:
            return [
                each if each.data is not None else each._replace(data=read_file(each.source))
                for each in _all_files(path, "")
                if each.path != RootFile.CLEAN_SHUTDOWN.value
            ]
        except (SegmentGoneError, FileNotFoundError):
            continue
    raise BackupError(
        f"{path}: its files were replaced faster than they could be copied; run the backup again"
    )


def cut_partition(
    listed: ListedPartition,
    end_max: int | None = None,
    bound: _LogEnd | None = None,
    lookup: EndLookup | None = None,
) -> PartitionCut:
    """The files of a partition up to its last complete batch, below an offset or a bound that was
    found by a `lookup`. Raises OvertakenError."""
    for _ in range(PASSES_MAX):
        now_ns = time.time_ns()
        listing = list_partition(listed.path)
        try:
            if lookup is not None and _is_overtaken(listing.segments, lookup):
                raise OvertakenError
            if lookup is None and listing.segments:
                active = listing.segments[-1]
                lookup = EndLookup(now_ns, active.base_offset, _status_of(active).st_ino)
            return _cut_listing(listed, listing, end_max, bound)._replace(lookup=lookup)
        except SegmentGoneError:
            continue
        finally:
            _release(listing.segments)
    raise BackupError(
        f"{listed.path}: its files were replaced faster than they could be copied; "
        "run the backup again"
    )


def _is_overtaken(segments: Sequence[SegmentView], lookup: EndLookup) -> bool:
    """Whether compaction may have used records that were appended after the lookup."""
    if not segments or segments[-1].base_offset <= lookup.active_base:
        return False
    older = [each for each in segments if each.base_offset <= lookup.active_base]
    if not older:
        return False  # all of them were deleted, and later records are not wanted
    last = _status_of(older.pop())
    return last.st_ino != lookup.inode or any(
        _status_of(each).st_ctime_ns > lookup.time_ns - _CLOCK_STEP_NS for each in older
    )


def _status_of(segment: SegmentView) -> os.stat_result:
    try:
        return segment.path.stat()
    except FileNotFoundError:
        raise SegmentGoneError(segment.path) from None


def _release(segments: Iterable[SegmentView]) -> None:
    for segment in segments:
        segment.release()


def _cut_listing(
    listed: ListedPartition, listing: Listing, end_max: int | None, bound: _LogEnd | None
) -> PartitionCut:
    name = listed.path.name
    segments = list(listing.segments)
    if end_max is not None:
        segments = [each for each in segments if each.base_offset < end_max] or segments[:1]
    if bound is not None:
        last_base = bound.base_offset
        segments = [each for each in segments if each.base_offset <= last_base] or segments[:1]
    bases = {each.base_offset for each in segments}
    files = [
        _planned_segment(name, each, each.size_bytes, is_growing=False) for each in segments[:-1]
    ]
    end_offset = 0
    if segments:
        last = segments[-1]
        size_bytes, end_offset = _end_up_to(last, end_max, bound)
        files.append(_planned_segment(name, last, size_bytes, is_growing=True))
    closed = bases - {segments[-1].base_offset} if segments else bases
    swapped = {each.base_offset for each in segments if each.path.suffix == FileState.SWAP.value}
    for each in listing.files:
        if _belongs(each, closed, swapped, end_offset):
            plain = each.path.name.removesuffix(FileState.SWAP.value)
            files.append(_small_or_listed(f"{name}/{plain}", each.path, each.identity))
    files += _unknown_files(listed.path)
    is_live = listed.directory.state is DirState.LIVE
    tp = listed.directory.topic_partition
    return PartitionCut(tuple(files), SavedPartition(*tp, end_offset) if is_live else None)


def _end_up_to(last: SegmentView, end_max: int | None, bound: _LogEnd | None) -> tuple[int, int]:
    """Where the last complete batch ends, below an offset or a bound."""
    position, next_offset = last.end
    if end_max is not None and next_offset > end_max:
        found = last.seek(end_max)
        if found.batch is not None:
            return found.position, end_max
    if bound is not None and bound.base_offset == last.base_offset and position > bound.size_bytes:
        return _end_by_size(last, bound.size_bytes)
    return position, next_offset


def _end_by_size(last: SegmentView, size_bytes: int) -> tuple[int, int]:
    """Where the last batch ends that is complete within this many bytes."""
    index = last.offset_index
    slot = bisect_right(range(index.entries), size_bytes, key=lambda slot: index.entry(slot)[2]) - 1
    start = last.seek(index.entry(slot)[1]).position if slot >= 0 else 0
    found = (start if start <= size_bytes else 0, last.base_offset)
    for position, batch in last.walk(found[0]):
        if position + batch.size_bytes > size_bytes:
            if position == found[0] and position:  # the batch before it is not known
                return _end_by_walk(last, size_bytes)
            return found
        found = (position + batch.size_bytes, batch.last_offset + 1)
    return found


def _end_by_walk(last: SegmentView, size_bytes: int) -> tuple[int, int]:
    found = (0, last.base_offset)
    for position, batch in last.walk():
        if position + batch.size_bytes > size_bytes:
            break
        found = (position + batch.size_bytes, batch.last_offset + 1)
    return found


def _planned_segment(
    name: str, segment: SegmentView, size_bytes: int, *, is_growing: bool
) -> PlannedFile:
    assert segment.identity is not None
    plain = segment.path.name.removesuffix(FileState.SWAP.value)
    return PlannedFile(f"{name}/{plain}", segment.path, size_bytes, segment.identity, is_growing)


def _belongs(each: ListedFile, closed: set[int], swapped: set[int], end_offset: int) -> bool:
    """Whether a file is copied beside the segments, which are planned already."""
    kind, base, state = each.file.kind, each.file.base_offset, each.file.state
    if kind is FileKind.LOG:
        return False
    if kind in _GROWING:
        wanted = FileState.SWAP if base in swapped else FileState.LIVE
        return base in closed and state is wanted
    if state is not FileState.LIVE:
        return False
    return kind is not FileKind.PRODUCER_SNAPSHOT or (base or 0) <= end_offset


def _small_or_listed(path: str, source: Path, identity: FileIdentity) -> PlannedFile:
    planned = PlannedFile(path, source, identity.size_bytes, identity)
    is_replaced = parse_or_none(source.name) in {FileKind.LEADER_EPOCHS, FileKind.QUORUM_STATE}
    if is_replaced or identity.size_bytes <= INLINE_BYTES_MAX:
        try:
            data = read_file(source)
        except FileNotFoundError:
            raise SegmentGoneError(source) from None
        return planned._replace(data=data, size_bytes=len(data))
    return planned


def parse_or_none(name: str) -> FileKind | None:
    """The kind of a file in a partition directory; None if Kafka ignores or refuses it."""
    found = names.known_partition_file(name)
    return None if found is None else found.kind


def _unknown_files(directory: Path) -> list[PlannedFile]:
    """Files that Kafka ignores, such as what a bulk commit has staged."""
    found = []
    for each in _all_files_or_gone(directory):
        name = each.source.name
        is_state = name.endswith((FileState.CLEANED.value, FileState.SWAP.value, ".part"))
        if parse_or_none(name) is None and not is_state:
            found.append(each)
    return found


def _all_files_or_gone(directory: Path) -> list[PlannedFile]:
    try:
        return _all_files(directory, f"{directory.name}/")
    except FileNotFoundError:
        raise SegmentGoneError(directory) from None
