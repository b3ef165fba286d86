"""Backs up log directories, as of one point in time, into an object store or a directory.

First the *cut*: a quick pass over all partitions that notes which files there are and up to which
batch each log goes. Then tasks copy these files; a log is copied up to its cut, however far it has
grown since. The manifest is written last (`backup_store`).

A directory that nobody has open is copied file by file, as it is. In one that is being written to:

* checkpoints are read before the logs, so they never promise more than the logs hold. Logs of
  `__consumer_offsets` are cut before all others, so every committed offset is of a record that is
  in the backup;
* the ends of all logs are looked up in a few milliseconds, again and again until no transaction has
  changed its state meanwhile: a transaction is open, ending or over in all partitions alike;
* the last segment of a log is copied up to its last complete batch, without its indexes, which are
  still growing; restoring builds them. It is read twice, and both must be equal, since a
  truncation and new appends could otherwise be mixed;
* closed segments that are deleted or compacted before they are copied are looked for again: their
  partition is cut a second time, at the same offset. If compaction may have removed records before
  that offset because of records after it, then at the log's end by then (`_Look`);
* logs of `__remote_log_metadata` are copied again when all else is copied, up to their end by then
  (`_Run.save_all`).
"""

from __future__ import annotations

import logging
import os
import time
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.bulk.backup_store import (
    CHUNK_BYTES,
    INLINE_BYTES_MAX,
    BackupStore,
    Manifest,
    Pruned,
    SavedDir,
    SavedFile,
    SavedPartition,
    UnreadableBackup,
    new_backup_id,
    object_name,
)
from stratalog.bulk.workers import Clock, JobResult, ThreadWorkers, pack
from stratalog.commits.journal import JOURNAL_FILE
from stratalog.errors import (
    BackupError,
    InvalidNameError,
    NotALogDirError,
    PartitionGoneError,
    SegmentGoneError,
)
from stratalog.format.names import (
    CONSUMER_OFFSETS_TOPIC,
    TEMPORARY_SUFFIX,
    TRANSACTION_STATE_TOPIC,
    DirState,
    FileKind,
    FileState,
    RootFile,
    parse_partition_file,
)
from stratalog.log.listing import list_partition
from stratalog.partitions.lock import is_locked
from stratalog.partitions.saved_state import STATE_FILE
from stratalog.partitions.tiered import METADATA_TOPIC
from stratalog.storage.log_dir_scan import scan_log_dir
from stratalog.storage.log_file import FileIdentity, open_file, read_file
from stratalog.storage.remote_path import RemotePath, location
from stratalog.storage.store import fetch_pool

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from stratalog.bulk.workers import Workers
    from stratalog.log.listing import ListedFile, Listing
    from stratalog.storage.log_dir_scan import ListedPartition
    from stratalog.storage.log_file import LogFile
    from stratalog.storage.segment_view import SegmentView

_log: Final = logging.getLogger(__name__)

PART_BYTES: Final = 8 * CHUNK_BYTES
"""A task copies at most this many bytes of a file."""
UPLOADS_IN_FLIGHT: Final = 4
CUTS_MAX: Final = 100
"""How often to look again for a moment in which no transaction changes its state."""
OVERTAKEN_CUTS_MAX: Final = 5
"""How often to cut all logs again because compaction was ahead of the copying of one."""
PASSES_MAX: Final = 20
"""How often to look again for files that were replaced before they were copied."""
_ENDINGS_SKIPPED: Final = (TEMPORARY_SUFFIX, FileState.DELETED.value)
_GROWING: Final = {FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX}
_MS_NS: Final = 1_000_000
_CLOCK_STEP_NS: Final = 20 * _MS_NS
"""File systems use a clock that lags this far behind, at most."""


@dataclass(frozen=True)
class BackupResult(JobResult):
    """What was backed up."""

    backup_id: str = ""
    dirs: tuple[SavedDir, ...] = ()
    files: int = 0
    sent_objects: int = 0
    sent_bytes: int = 0
    """What was not in the store yet."""
    verified_objects: int | None = None
    pruned: Pruned | None = None


class _Planned(NamedTuple):
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


class _Look(NamedTuple):
    """When the end of a log was looked up, and which segment was active then.

    Compaction never reads the active segment. Once there is a newer one, it may remove a record
    before that end because of one after it: in a log that ends there, the key would be missing.
    """

    time_ns: int
    active_base: int
    inode: int


class _Partition(NamedTuple):
    """The cut of a partition."""

    files: tuple[_Planned, ...]
    saved: SavedPartition | None
    look: _Look | None = None


class _OvertakenError(Exception):
    """A log was compacted beyond the end at which it was to be cut."""


@dataclass
class _Cut:
    """One log directory at one moment."""

    path: Path
    root_files: list[_Planned]
    partitions: dict[str, _Partition] = field(default_factory=dict)
    """By the names of their directories."""
    is_live: bool = False
    is_clean: bool = False
    is_settled: bool = True

    @property
    def files(self) -> Iterator[_Planned]:
        yield from self.root_files
        for partition in self.partitions.values():
            yield from partition.files

    def take_later(self, listed: ListedPartition) -> None:
        """Cut a partition at its end as it is now."""
        _log.warning(
            "%s: the log was compacted while it was backed up, so its end in the backup is later "
            "than that of other logs; to have all ends of one moment, run another backup",
            listed.path,
        )
        self.partitions[listed.path.name] = _cut_partition(listed)
        self.is_settled = False


def backup(
    paths: Sequence[Path | str],
    where: Path | str,
    *,
    workers: Workers | None = None,
    keep: int | None = None,
    reads_all: bool = False,
    verifies: bool = False,
) -> BackupResult:
    """Back up log directories, live or stopped, into a store or a directory.

    Only what is not there yet is sent. Files that have not changed since the last backup, by inode,
    size and time, are not read either, unless `reads_all`. With `keep`, older backups are removed
    afterwards, and objects that no backup needs any longer. With `verifies`, every object of the
    backup is read back and compared with its checksum. With `reads_all` or `verifies`, an object
    that is in the store but corrupt is sent again; else its name and size are trusted.

    Every worker must see the log directories and the target under the same paths. Raises
    NotALogDirError, BackupError and StorageError; whatever happens, earlier backups stay valid.
    """
    clock = Clock()
    workers = workers or ThreadWorkers()
    if keep is not None and keep < 1:
        raise BackupError(f"keep is {keep}; it must be 1 or more")
    dirs = [_checked_dir(each) for each in paths]
    store = BackupStore.at(where)
    _check_target(store.path, dirs)
    earlier = [] if keep is None else store.backup_ids()
    run = _Run(store, workers, reads_all=reads_all, checks=reads_all or verifies)
    now_ms = time.time_ns() // _MS_NS
    saved = _save(run, dirs)
    manifest = Manifest(new_backup_id(now_ms), now_ms, saved, CHUNK_BYTES)
    verified = None
    if verifies:
        objects = manifest.objects()
        _verify_objects(store, {n: objects[n] for n in objects if n not in run.checked}, workers)
        verified = len(objects)
    store.write_manifest(manifest)
    pruned = None if keep is None else store.prune(keep, [*earlier, manifest.backup_id])
    return BackupResult(
        "backup",
        0,
        manifest.size_bytes,
        clock.seconds,
        run.tasks,
        manifest.backup_id,
        saved,
        sum(len(each.files) for each in saved),
        run.sent_objects,
        run.sent_bytes,
        verified,
        pruned,
    )


def _save(run: _Run, dirs: Sequence[Path]) -> tuple[SavedDir, ...]:
    """Cut and copy. If compaction overtakes a cut, all of it again, which copies only what has
    changed. In the end, a log that is compacted all the time is cut later than the others."""
    for _ in range(OVERTAKEN_CUTS_MAX):
        with suppress(_OvertakenError):
            return run.save_all(_cuts(dirs), takes_later=False)
    return run.save_all(_cuts(dirs, takes_later=True), takes_later=True)


def size_of_dirs(paths: Iterable[Path | str]) -> int:
    """Bytes in log directories, roughly: for a progress bar."""
    total = 0
    for path in map(location, paths):
        for each in path.glob("*/*.log"):
            try:
                total += each.stat().st_size
            except OSError:  # removed meanwhile
                continue
    return total


def verify_backup(store: BackupStore, manifest: Manifest, workers: Workers) -> int:
    """Read every object of a backup; returns how many. Raises BackupError for one that is missing
    or corrupt."""
    objects = manifest.objects()
    _verify_objects(store, objects, workers)
    return len(objects)


def _verify_objects(store: BackupStore, objects: Mapping[str, int], workers: Workers) -> None:
    groups = pack(list(objects.items()), lambda each: each[1], slots=workers.slots)
    title = f"stratalog backup: verify {len(objects)} objects in {store.path}"
    workers.run(partial(_read_back, store=store), groups, title=title)


def _read_back(task: tuple[str, int], *, store: BackupStore) -> None:
    """Runs in a worker."""
    store.read_object(*task)


def _compare(task: tuple[str, int], *, store: BackupStore) -> tuple[str, str | None]:
    """Runs in a worker. Returns the name of the object, and what is wrong with it."""
    try:
        store.read_object(*task)
    except BackupError as error:
        return task[0], str(error)
    return task[0], None


def _checked_dir(where: Path | str) -> Path:
    path = location(where).absolute()
    if isinstance(path, RemotePath):
        raise NotALogDirError(f"{path}: only log directories on a local disk can be backed up")
    scan_log_dir(path)
    return path


def _check_target(target: Path, dirs: Sequence[Path]) -> None:
    if isinstance(target, RemotePath):
        return
    for path in dirs:
        if target.resolve().is_relative_to(path.resolve()):
            raise BackupError(f"{target}: a backup cannot be inside the log directory {path}")


# -- the cut


class _Bound(NamedTuple):
    """Up to where a log goes: the last segment, and its size. Later ones do not count."""

    base_offset: int
    size_bytes: int
    inode: int


@dataclass(frozen=True)
class _Moment:
    """A live directory at one moment."""

    path: Path
    time_ns: int
    root_files: tuple[_Planned, ...]
    bounds: Mapping[str, _Bound]
    """By the names of partition directories."""

    def look(self, name: str) -> _Look | None:
        """At a partition; None if it had no segment."""
        bound = self.bounds.get(name)
        return None if bound is None else _Look(self.time_ns, bound.base_offset, bound.inode)

    @classmethod
    def now(cls, path: Path, root_files: Sequence[_Planned]) -> _Moment:
        """The moment after `root_files` were read."""
        return cls(path, time.time_ns(), tuple(root_files), _bounds(path))


def _cuts(dirs: Sequence[Path], *, takes_later: bool = False) -> list[_Cut]:
    """All directories at one moment, as far as transactions are concerned. A log that has been
    compacted beyond that moment is cut later, or _OvertakenError is raised."""
    live = [path for path in dirs if is_locked(path)]
    moments, is_settled = _settled(live)
    cuts = []
    for path in dirs:
        if path in live:
            cut = _cut_live(path, moments[path], takes_later=takes_later)
            cuts.append(replace(cut, is_settled=cut.is_settled and is_settled))
        else:
            cuts.append(_cut_unlocked(path))
    return cuts


def _settled(live: Sequence[Path]) -> tuple[dict[Path, _Moment], bool]:
    """A moment in which no transaction changes its state. Finding the ends of all logs takes a
    few milliseconds, so there mostly is one; the files are looked at afterwards."""
    moments: dict[Path, _Moment] = {}
    for attempt in range(1, CUTS_MAX + 1):
        roots = {path: tuple(_retried(path)) for path in live}
        before = [_states(path) for path in live]
        moments = {path: _Moment.now(path, roots[path]) for path in live}
        if before == [_states(path) for path in live] and all(map(_is_current, moments.values())):
            return moments, True
        time.sleep(0.0002 * attempt)
    _log.warning(
        "%s: transactions started or ended each time the logs were listed, so transactions that "
        "were ending may be incomplete in this backup; to be safe, run another backup at a "
        "quieter time",
        ", ".join(map(str, live)),
    )
    return moments, False


def _states(path: Path) -> dict[str, _Bound]:
    """Changes with every step of a transaction."""
    names = [name for name in os.listdir(path) if name.startswith(f"{TRANSACTION_STATE_TOPIC}-")]  # noqa: PTH208 - names, not paths
    return _bounds_of(path, names)


def _bounds(path: Path) -> dict[str, _Bound]:
    """The end of each log; consumer offsets come first."""
    order = f"{CONSUMER_OFFSETS_TOPIC}-"
    names = sorted(os.listdir(path), key=lambda name: not name.startswith(order))  # noqa: PTH208
    return _bounds_of(path, names)


def _bounds_of(path: Path, names: Iterable[str]) -> dict[str, _Bound]:
    ending = FileKind.LOG.value
    found: dict[str, _Bound] = {}
    for name in names:
        try:
            files = os.listdir(f"{path}/{name}")  # noqa: PTH208
            last = max((each for each in files if each.endswith(ending)), default=None)
            if last is not None:
                status = os.stat(f"{path}/{name}/{last}")  # noqa: PTH116 - fast
                base_offset = int(last.removesuffix(ending))
                found[name] = _Bound(base_offset, status.st_size, status.st_ino)
        except (OSError, ValueError):  # a file, or gone meanwhile
            continue
    return found


def _is_current(moment: _Moment) -> bool:
    """Whether what writers record about topics and commits is still what was read."""
    for name in (STATE_FILE, JOURNAL_FILE):
        read = {each.identity for each in moment.root_files if each.path == name}
        status = _status(moment.path / name)
        if read != (set() if status is None else {FileIdentity.of(status)}):
            return False
    return True


def _cut_unlocked(path: Path) -> _Cut:
    try:
        return _cut_stopped(path)
    except (SegmentGoneError, PartitionGoneError, FileNotFoundError):  # somebody writes
        return _cut_live(path)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _cut_stopped(path: Path) -> _Cut:
    """Every file as it is."""
    listing = scan_log_dir(path)
    cut = _Cut(path, _all_files(path, ""))
    cut.is_clean = RootFile.CLEAN_SHUTDOWN in listing.root_files
    for listed in _kept_partitions(listing.partitions):
        name = listed.path.name
        saved = None
        if listed.directory.state is DirState.LIVE:
            saved = SavedPartition(*listed.directory.topic_partition, end_of_batches(listed.path))
        cut.partitions[name] = _Partition(tuple(_all_files(listed.path, f"{name}/")), saved)
    return cut


def end_of_batches(path: Path) -> int:
    """Where the last batch in the files of a partition ends, whatever its log start is."""
    listing = list_partition(path)
    try:
        return listing.segments[-1].end.next_offset if listing.segments else 0
    finally:
        _release(listing.segments)


def _all_files(directory: Path, prefix: str) -> list[_Planned]:
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_file() and not _is_skipped(entry.name):
                found.append(_planned(prefix + entry.name, Path(entry.path), entry.stat()))
    return sorted(found)


def _is_skipped(name: str) -> bool:
    return name == RootFile.LOCK.value or name.endswith(_ENDINGS_SKIPPED)


def _planned(path: str, source: Path, status: os.stat_result) -> _Planned:
    planned = _Planned(path, source, status.st_size, FileIdentity.of(status))
    return _with_data(planned) if status.st_size <= INLINE_BYTES_MAX else planned


def _with_data(planned: _Planned) -> _Planned:
    """With the content as it is now. Raises SegmentGoneError if there is no such file now."""
    try:
        data = read_file(planned.source)
    except FileNotFoundError:
        raise SegmentGoneError(planned.source) from None
    if len(data) > INLINE_BYTES_MAX:
        return planned
    return planned._replace(data=data, size_bytes=len(data))


def _kept_partitions(partitions: Sequence[ListedPartition]) -> list[ListedPartition]:
    """Consumer offsets first, then transactions, then all others; not those that are deleted."""
    order = {CONSUMER_OFFSETS_TOPIC: 0, TRANSACTION_STATE_TOPIC: 1}
    kept = [each for each in partitions if each.directory.state is not DirState.DELETE]
    return sorted(
        kept, key=lambda each: (order.get(each.directory.topic_partition.topic, 2), each.path)
    )


def _cut_live(path: Path, moment: _Moment | None = None, *, takes_later: bool = True) -> _Cut:
    moment = moment or _Moment.now(path, _retried(path))
    cut = _Cut(path, list(moment.root_files), is_live=True)
    for listed in _kept_partitions(scan_log_dir(path).partitions):
        name = listed.path.name
        try:
            cut.partitions[name] = _cut_partition(
                listed, bound=moment.bounds.get(name), look=moment.look(name)
            )
        except PartitionGoneError:  # its topic was deleted
            continue
        except _OvertakenError:
            if not takes_later:
                raise
            cut.take_later(listed)
    return cut


def _is_remote_metadata(listed: ListedPartition) -> bool:
    directory = listed.directory
    return directory.state is DirState.LIVE and directory.topic_partition.topic == METADATA_TOPIC


def _retried(path: Path) -> list[_Planned]:
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


def _cut_partition(
    listed: ListedPartition,
    end_max: int | None = None,
    bound: _Bound | None = None,
    look: _Look | None = None,
) -> _Partition:
    """The files of a partition up to its last complete batch, below an offset or a bound that was
    found by a `look`. Raises _OvertakenError."""
    for _ in range(PASSES_MAX):
        now_ns = time.time_ns()
        listing = list_partition(listed.path)
        try:
            if look is not None and _is_overtaken(listing.segments, look):
                raise _OvertakenError
            if look is None and listing.segments:
                active = listing.segments[-1]
                look = _Look(now_ns, active.base_offset, _status_of(active).st_ino)
            return _cut_listing(listed, listing, end_max, bound)._replace(look=look)
        except SegmentGoneError:
            continue
        finally:
            _release(listing.segments)
    raise BackupError(
        f"{listed.path}: its files were replaced faster than they could be copied; "
        "run the backup again"
    )


def _is_overtaken(segments: Sequence[SegmentView], look: _Look) -> bool:
    """Whether compaction may have used records that were appended after the look."""
    if not segments or segments[-1].base_offset <= look.active_base:
        return False
    older = [each for each in segments if each.base_offset <= look.active_base]
    if not older:
        return False  # all of them were deleted, and later records are not wanted
    last = _status_of(older.pop())
    return last.st_ino != look.inode or any(
        _status_of(each).st_ctime_ns > look.time_ns - _CLOCK_STEP_NS for each in older
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
    listed: ListedPartition, listing: Listing, end_max: int | None, bound: _Bound | None
) -> _Partition:
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
    return _Partition(tuple(files), SavedPartition(*tp, end_offset) if is_live else None)


def _end_up_to(last: SegmentView, end_max: int | None, bound: _Bound | None) -> tuple[int, int]:
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
) -> _Planned:
    assert segment.identity is not None
    plain = segment.path.name.removesuffix(FileState.SWAP.value)
    return _Planned(f"{name}/{plain}", segment.path, size_bytes, segment.identity, is_growing)


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


def _small_or_listed(path: str, source: Path, identity: FileIdentity) -> _Planned:
    planned = _Planned(path, source, identity.size_bytes, identity)
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
    try:
        found = parse_partition_file(name)
    except InvalidNameError:
        return None
    return None if found is None else found.kind


def _unknown_files(directory: Path) -> list[_Planned]:
    """Files that Kafka ignores, such as what a bulk commit has staged."""
    found = []
    for each in _all_files_or_gone(directory):
        name = each.source.name
        is_state = name.endswith((FileState.CLEANED.value, FileState.SWAP.value, ".part"))
        if parse_or_none(name) is None and not is_state:
            found.append(each)
    return found


def _all_files_or_gone(directory: Path) -> list[_Planned]:
    try:
        return _all_files(directory, f"{directory.name}/")
    except FileNotFoundError:
        raise SegmentGoneError(directory) from None


# -- copying


class _CopyTask(NamedTuple):
    path: str
    source: Path
    start: int
    end: int
    identity: FileIdentity
    is_growing: bool

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


class _Copied(NamedTuple):
    path: str
    start: int
    objects: tuple[str, ...]
    sent: tuple[int, ...]
    """Sizes of the objects that were not in the store yet."""
    is_gone: bool = False
    """The file was removed, replaced or truncated."""


class _Run:
    """Copies what was cut, and counts."""

    def __init__(
        self, store: BackupStore, workers: Workers, *, reads_all: bool, checks: bool
    ) -> None:
        self._store = store
        self._workers = workers
        self._present = store.object_sizes()
        latest = store.latest_readable() if checks or not reads_all else None
        self.checked: frozenset[str] = frozenset()
        """Objects that this run has read back; they are not corrupt."""
        if checks:
            self._present = self._intact(latest)
            self.checked = frozenset(self._present)
        self._known = {} if reads_all else self._files_of(latest)
        self.tasks = 0
        self.sent_objects = 0
        self.sent_bytes = 0

    def _intact(self, latest: Manifest | None) -> dict[str, int]:
        """Objects of the last backup that have the right content. All others count as missing, so
        they are sent again if the backup needs them."""
        objects = {} if latest is None else latest.objects()
        present = {name: size for name, size in objects.items() if self._present.get(name) == size}
        groups = pack(list(present.items()), lambda each: each[1], slots=self._workers.slots)
        title = f"stratalog backup: compare {len(present)} objects in {self._store.path}"
        found = self._workers.run(partial(_compare, store=self._store), groups, title=title)
        for name, reason in found:
            if reason is not None:
                _log.warning("%s", reason)
                del present[name]
        return present

    def _files_of(self, manifest: Manifest | None) -> dict[tuple[str, str], SavedFile]:
        """Files of the last backup whose content is known without reading them."""
        if manifest is None or manifest.chunk_bytes != CHUNK_BYTES:
            return {}
        return {
            (each.path, file.path): file
            for each in manifest.dirs
            for file in each.files
            if file.identity is not None
            and all(self._present.get(name) == size for name, size in manifest.pieces(file))
        }

    def save_all(self, cuts: Sequence[_Cut], *, takes_later: bool) -> tuple[SavedDir, ...]:
        """Copy all files of the cuts, then remote log metadata as they are by now.

        A closed segment may go to remote storage and be deleted here before it is copied. The event
        that says so is then after the cut of `__remote_log_metadata`, and the segment would be in
        neither. Later events do no harm: what brokers serve of remote segments is limited by the
        leader epochs of the log, so by the end of the log as it was cut."""
        saved = [self.save(each, takes_later=takes_later) for each in cuts]
        return tuple(self._with_later_metadata(each) if each.is_live else each for each in saved)

    def _with_later_metadata(self, saved: SavedDir) -> SavedDir:
        cut = _Cut(Path(saved.path), [], is_live=True)
        for listed in scan_log_dir(cut.path).partitions:
            if _is_remote_metadata(listed):
                with suppress(PartitionGoneError):  # then what was copied before stays
                    cut.partitions[listed.path.name] = _cut_partition(listed)
        if not cut.partitions:
            return saved
        later = self.save(cut, takes_later=True)
        names = set(later.directories)
        files = [each for each in saved.files if each.directory not in names]
        ends = [each for each in saved.partitions if str(each.topic_partition) not in names]
        return replace(
            saved,
            files=tuple(sorted((*files, *later.files), key=lambda file: file.path)),
            partitions=tuple(sorted((*ends, *later.partitions))),
            directories=tuple(sorted({*saved.directories, *names})),
        )

    def save(self, cut: _Cut, *, takes_later: bool) -> SavedDir:
        """Copy all files of the cut. What is gone meanwhile is cut again, if need be at a later end
        (`takes_later`), else _OvertakenError is raised."""
        saved: dict[str, SavedFile] = {}
        for _ in range(PASSES_MAX):
            gone = self._copy([each for each in cut.files if each.path not in saved], saved, cut)
            if not gone:
                break
            self._remember(cut, saved)
            cut = self._cut_again(cut, gone, saved, takes_later=takes_later)
        else:
            raise BackupError(
                f"{cut.path}: its files were replaced faster than they could be "
                "copied; run the backup again"
            )
        planned = {each.path for each in cut.files}
        files = tuple(saved[path] for path in sorted(planned))
        ends = tuple(sorted(p.saved for p in cut.partitions.values() if p.saved is not None))
        names = tuple(sorted(cut.partitions))
        is_clean = cut.is_clean and not cut.is_live
        return SavedDir(
            str(cut.path), files, ends, names, cut.is_live, is_clean, cut.is_settled
        )  # fmt: skip

    def _remember(self, cut: _Cut, saved: Mapping[str, SavedFile]) -> None:
        """Files of which the content is known now, should they be in the next cut as well."""
        self._known |= {
            (str(cut.path), path): file for path, file in saved.items() if file.identity is not None
        }

    def _cut_again(
        self, cut: _Cut, gone: set[str], saved: dict[str, SavedFile], *, takes_later: bool
    ) -> _Cut:
        """A second look at the partitions of files that are gone, up to the same offsets if
        compaction permits."""
        if not cut.is_live:  # somebody has begun to write
            saved.clear()
            return _cut_live(cut.path)
        directories = {path.rpartition("/")[0] for path in gone}
        listed = {each.path.name: each for each in scan_log_dir(cut.path).partitions}
        for name in directories:
            before = cut.partitions.pop(name, None)
            for path in [path for path in saved if path.startswith(f"{name}/")]:
                del saved[path]
            if name in listed:
                end_max = None if before is None or before.saved is None else before.saved[2]
                look = None if before is None else before.look
                try:
                    cut.partitions[name] = _cut_partition(listed[name], end_max, look=look)
                except PartitionGoneError:
                    continue
                except _OvertakenError:
                    if not takes_later:
                        raise
                    cut.take_later(listed[name])
        return cut

    def _copy(self, files: Sequence[_Planned], saved: dict[str, SavedFile], cut: _Cut) -> set[str]:
        """Copy files into `saved`; returns those that are gone."""
        tasks: list[_CopyTask] = []
        for each in files:
            if each.data is not None and each.size_bytes <= INLINE_BYTES_MAX:
                saved[each.path] = _saved(each, ())
                continue
            known = self._known.get((str(cut.path), each.path))
            if known is not None and _is_same(known, each):
                saved[each.path] = known
            elif each.data is not None:
                saved[each.path] = self._send_data(each)
            else:
                tasks += _parts(each)
        groups = pack(tasks, lambda task: task.size_bytes, slots=self._workers.slots)
        work = partial(_copy_part, store=self._store, present=frozenset(self._present))
        title = f"stratalog backup: {len(tasks)} parts of {cut.path} to {self._store.path}"
        done = self._workers.run(work, groups, title=title)
        self.tasks += len(groups)
        return self._take(files, done, saved)

    def _send_data(self, planned: _Planned) -> SavedFile:
        """A file whose content was read with the cut."""
        assert planned.data is not None
        objects = []
        for start in range(0, len(planned.data), CHUNK_BYTES):
            piece = planned.data[start : start + CHUNK_BYTES]
            name = object_name(piece)
            if name not in self._present:
                self._store.write_object(name, piece)
                self._count(name, len(piece))
            objects.append(name)
        return _saved(planned, tuple(objects))

    def _count(self, name: str, size_bytes: int) -> None:
        if name not in self._present:
            self._present[name] = size_bytes
            self.sent_objects += 1
            self.sent_bytes += size_bytes

    def _take(
        self, files: Sequence[_Planned], done: Sequence[_Copied], saved: dict[str, SavedFile]
    ) -> set[str]:
        parts: dict[str, list[_Copied]] = {}
        for each in done:
            parts.setdefault(each.path, []).append(each)
            for name, size_bytes in zip(each.objects, each.sent, strict=True):
                if size_bytes:
                    self._count(name, size_bytes)
        gone = {each.path for each in done if each.is_gone}
        for planned in files:
            found = sorted(parts.get(planned.path, ()), key=lambda each: each.start)
            if planned.path not in gone and planned.path not in saved:
                objects = tuple(name for each in found for name in each.objects)
                saved[planned.path] = _saved(planned, objects)
        return gone


def _saved(planned: _Planned, objects: tuple[str, ...]) -> SavedFile:
    is_whole = planned.size_bytes == planned.identity.size_bytes
    data = None if objects or planned.data is None else planned.data
    return SavedFile(
        planned.path,
        planned.size_bytes,
        planned.identity.mtime_ns // _MS_NS,
        objects,
        b"" if not planned.size_bytes else data,
        planned.identity if is_whole and planned.data is None else None,
    )


def _is_same(known: SavedFile, planned: _Planned) -> bool:
    return known.identity == planned.identity and known.size_bytes == planned.size_bytes


def _parts(planned: _Planned) -> list[_CopyTask]:
    end = planned.size_bytes
    return [
        _CopyTask(
            planned.path,
            planned.source,
            start,
            min(end, start + PART_BYTES),
            planned.identity,
            planned.is_growing,
        )
        for start in range(0, max(1, end), PART_BYTES)
    ]


def _copy_part(task: _CopyTask, *, store: BackupStore, present: frozenset[str]) -> _Copied:
    """Runs in a worker."""
    try:
        with _opened(task) as file:
            copied = _send(task, file, store, present)
            is_same = not task.is_growing or copied.objects == tuple(
                object_name(piece) for piece in _pieces(file, task)
            )
            _check(task, file)
        return copied if is_same else copied._replace(is_gone=True)
    except SegmentGoneError:
        return _Copied(task.path, task.start, (), (), is_gone=True)


def _opened(task: _CopyTask) -> LogFile:
    """The file that was cut, whatever its name is by now. Raises SegmentGoneError."""
    plain = task.source.name.removesuffix(FileState.SWAP.value)
    for name in (task.source.name, plain, plain + FileState.DELETED.value):
        try:
            file = open_file(task.source.with_name(name))
        except FileNotFoundError:
            continue
        try:
            _check(task, file)
        except SegmentGoneError:
            file.close()
            continue
        return file
    raise SegmentGoneError(task.source)


def _check(task: _CopyTask, file: LogFile) -> None:
    """Raise SegmentGoneError if this is another file than the one that was cut."""
    found = file.identity
    is_same = found == task.identity
    if task.is_growing:
        is_same = found.inode == task.identity.inode and found.size_bytes >= task.end
    if not is_same:
        raise SegmentGoneError(task.source)


def _pieces(file: LogFile, task: _CopyTask) -> Iterator[bytes]:
    """Raises SegmentGoneError if the file ends before."""
    for position in range(task.start, task.end, CHUNK_BYTES):
        size_bytes = min(CHUNK_BYTES, task.end - position)
        piece = file.read(position, size_bytes)
        if len(piece) != size_bytes:
            raise SegmentGoneError(task.source)
        yield piece


def _send(task: _CopyTask, file: LogFile, store: BackupStore, present: frozenset[str]) -> _Copied:
    """The pieces of a part; several are sent while the next is read."""
    names: list[str] = []
    sent: list[int] = []
    waiting: list[Future[None]] = []
    for piece in _pieces(file, task):
        name = object_name(piece)
        is_new = name not in present and name not in names
        if is_new:
            while len(waiting) >= UPLOADS_IN_FLIGHT:
                waiting.pop(0).result()
            waiting.append(fetch_pool().submit(store.write_object, name, piece))
        names.append(name)
        sent.append(len(piece) if is_new else 0)
    for each in waiting:
        each.result()
    return _Copied(task.path, task.start, tuple(names), tuple(sent))


def list_backups(where: Path | str) -> list[Manifest]:
    """All backups at a place that can be read, oldest first. Raises BackupError if there is no
    backup."""
    return [each for each in find_backups(where) if isinstance(each, Manifest)]


def find_backups(where: Path | str) -> list[Manifest | UnreadableBackup]:
    """All backups at a place, oldest first, also those that cannot be read. Raises BackupError if
    there is none."""
    store = BackupStore.at(where)
    ids = store.backup_ids()
    if not ids:
        raise BackupError(f"{store.path}: no backup found")
    return [store.find_manifest(each) for each in ids]


def prune(where: Path | str, keep: int) -> Pruned:
    """Remove all but the newest `keep` backups, and objects that none of those needs."""
    if keep < 1:
        raise BackupError(f"keep is {keep}; it must be 1 or more")
    return BackupStore.at(where).prune(keep)
