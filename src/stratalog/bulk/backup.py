"""Backs up log directories, as of one point in time, into an object store or a directory.

First the *cut* (`backup_cut`) decides which files are copied, and up to which batch of each log.
Then tasks copy these files; a log is copied up to its cut, however far it has grown since. The
manifest is written last (`backup_store`).

In a directory that is being written to, files may change before they are copied:

* the last segment of a log is read twice, and both must be equal, since a truncation and new
  appends could otherwise be mixed;
* closed segments that are deleted or compacted before they are copied are looked for again: their
  partition is cut a second time, at the same offset. If compaction may have removed records before
  that offset because of records after it, then at the log's end by then (`EndLookup`);
* logs of `__remote_log_metadata` are copied again when all else is copied, up to their end by then
  (`_BackupJob.save_all`).
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.bulk.backup_cut import (
    PASSES_MAX,
    DirCut,
    OvertakenError,
    PlannedFile,
    cut_dirs,
    cut_live_dir,
    cut_partition,
    is_remote_metadata,
)
from stratalog.bulk.backup_store import (
    CHUNK_BYTES,
    INLINE_BYTES_MAX,
    BackupJobResult,
    BackupStore,
    Manifest,
    Pruned,
    SavedDir,
    SavedFile,
    UnreadableBackup,
    new_backup_id,
    object_name,
)
from stratalog.bulk.workers import Clock, ThreadWorkers, pack
from stratalog.errors import BackupError, NotALogDirError, PartitionGoneError, SegmentGoneError
from stratalog.format.names import FileState
from stratalog.format.times import NS_PER_MS, current_time_ms
from stratalog.storage.log_dir_scan import scan_log_dir
from stratalog.storage.log_file import open_file
from stratalog.storage.remote_path import RemotePath, location
from stratalog.storage.store import fetch_pool

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from stratalog.bulk.workers import Workers
    from stratalog.storage.log_file import LogFile

_log: Final = logging.getLogger(__name__)

PART_BYTES: Final = 8 * CHUNK_BYTES
"""A task copies at most this many bytes of a file."""
UPLOADS_IN_FLIGHT: Final = 4
OVERTAKEN_CUTS_MAX: Final = 5
"""How often to cut all logs again because compaction was ahead of the copying of one."""


@dataclass(frozen=True)
class BackupResult(BackupJobResult):
    """What was backed up."""

    dirs: tuple[SavedDir, ...] = ()
    sent_objects: int = 0
    sent_bytes: int = 0
    """Bytes that were not in the store yet."""
    verified_objects: int | None = None
    pruned: Pruned | None = None


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
    run = _BackupJob(store, workers, reads_all=reads_all, checks=reads_all or verifies)
    now_ms = current_time_ms()
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
        job="backup",
        records=0,
        size_bytes=manifest.size_bytes,
        seconds=clock.seconds,
        tasks=run.tasks,
        backup_id=manifest.backup_id,
        files=sum(len(each.files) for each in saved),
        dirs=saved,
        sent_objects=run.sent_objects,
        sent_bytes=run.sent_bytes,
        verified_objects=verified,
        pruned=pruned,
    )


def _save(run: _BackupJob, dirs: Sequence[Path]) -> tuple[SavedDir, ...]:
    """Cut and copy. If compaction overtakes a cut, all of it again, which copies only what has
    changed. In the end, a log that is compacted all the time is cut later than the others."""
    for _ in range(OVERTAKEN_CUTS_MAX):
        with suppress(OvertakenError):
            return run.save_all(cut_dirs(dirs), may_cut_later=False)
    return run.save_all(cut_dirs(dirs, may_cut_later=True), may_cut_later=True)


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


# -- copying


class _CopyTask(NamedTuple):
    """A part of a file."""

    planned: PlannedFile
    start: int
    end: int


class _CopyResult(NamedTuple):
    path: str
    start: int
    objects: tuple[str, ...]
    sent: tuple[int, ...]
    """Sizes of the objects that were not in the store yet."""
    is_gone: bool = False
    """The file was removed, replaced or truncated."""


class _BackupJob:
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

    def save_all(self, cuts: Sequence[DirCut], *, may_cut_later: bool) -> tuple[SavedDir, ...]:
        """Copy all files of the cuts, then remote log metadata as they are by now.

        A closed segment may go to remote storage and be deleted here before it is copied. The event
        that says so is then after the cut of `__remote_log_metadata`, and the segment would be in
        neither. Later events do no harm: what brokers serve of remote segments is limited by the
        leader epochs of the log, so by the end of the log as it was cut."""
        saved = [self.save(each, may_cut_later=may_cut_later) for each in cuts]
        return tuple(self._with_later_metadata(each) if each.is_live else each for each in saved)

    def _with_later_metadata(self, saved: SavedDir) -> SavedDir:
        cut = DirCut(Path(saved.path), [], is_live=True)
        for listed in scan_log_dir(cut.path).partitions:
            if is_remote_metadata(listed):
                with suppress(PartitionGoneError):  # then what was copied before stays
                    cut.partitions[listed.path.name] = cut_partition(listed)
        if not cut.partitions:
            return saved
        later = self.save(cut, may_cut_later=True)
        names = set(later.directories)
        files = [each for each in saved.files if each.directory not in names]
        ends = later.ends
        earlier = [each for each in saved.partitions if each[:2] not in ends]
        return replace(
            saved,
            files=tuple(sorted((*files, *later.files), key=lambda file: file.path)),
            partitions=tuple(sorted((*earlier, *later.partitions))),
            directories=tuple(sorted({*saved.directories, *names})),
        )

    def save(self, cut: DirCut, *, may_cut_later: bool) -> SavedDir:
        """Copy all files of the cut. What is gone meanwhile is cut again, if need be at a later end
        (`may_cut_later`), else OvertakenError is raised."""
        saved: dict[str, SavedFile] = {}
        for _ in range(PASSES_MAX):
            gone = self._copy([each for each in cut.files if each.path not in saved], saved, cut)
            if not gone:
                break
            self._remember(cut, saved)
            cut = self._cut_again(cut, gone, saved, may_cut_later=may_cut_later)
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
            path=str(cut.path),
            files=files,
            partitions=ends,
            directories=names,
            is_live=cut.is_live,
            is_clean=is_clean,
            is_settled=cut.is_settled,
        )

    def _remember(self, cut: DirCut, saved: Mapping[str, SavedFile]) -> None:
        """Files of which the content is known now, should they be in the next cut as well."""
        self._known |= {
            (str(cut.path), path): file for path, file in saved.items() if file.identity is not None
        }

    def _cut_again(
        self, cut: DirCut, gone: set[str], saved: dict[str, SavedFile], *, may_cut_later: bool
    ) -> DirCut:
        """Cut the partitions of files that are gone again, up to the same offsets if compaction
        permits."""
        if not cut.is_live:  # somebody has begun to write
            saved.clear()
            return cut_live_dir(cut.path)
        directories = {path.rpartition("/")[0] for path in gone}
        listed = {each.path.name: each for each in scan_log_dir(cut.path).partitions}
        for name in directories:
            before = cut.partitions.pop(name, None)
            for path in [path for path in saved if path.startswith(f"{name}/")]:
                del saved[path]
            if name in listed:
                end_max = (
                    None if before is None or before.saved is None else before.saved.end_offset
                )
                lookup = None if before is None else before.lookup
                cut.add(listed[name], end_max=end_max, lookup=lookup, may_cut_later=may_cut_later)
        return cut

    def _copy(
        self, files: Sequence[PlannedFile], saved: dict[str, SavedFile], cut: DirCut
    ) -> set[str]:
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
        groups = pack(tasks, lambda task: task.end - task.start, slots=self._workers.slots)
        work = partial(_copy_part, store=self._store, present=frozenset(self._present))
        title = f"stratalog backup: {len(tasks)} parts of {cut.path} to {self._store.path}"
        done = self._workers.run(work, groups, title=title)
        self.tasks += len(groups)
        return self._take(files, done, saved)

    def _send_data(self, planned: PlannedFile) -> SavedFile:
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
        self,
        files: Sequence[PlannedFile],
        done: Sequence[_CopyResult],
        saved: dict[str, SavedFile],
    ) -> set[str]:
        parts: dict[str, list[_CopyResult]] = {}
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


def _saved(planned: PlannedFile, objects: tuple[str, ...]) -> SavedFile:
    is_whole = planned.size_bytes == planned.identity.size_bytes
    data = None if objects or planned.data is None else planned.data
    return SavedFile(
        planned.path,
        planned.size_bytes,
        planned.identity.mtime_ns // NS_PER_MS,
        objects,
        b"" if not planned.size_bytes else data,
        planned.identity if is_whole and planned.data is None else None,
    )


def _is_same(known: SavedFile, planned: PlannedFile) -> bool:
    return known.identity == planned.identity and known.size_bytes == planned.size_bytes


def _parts(planned: PlannedFile) -> list[_CopyTask]:
    end = planned.size_bytes
    starts = range(0, max(1, end), PART_BYTES)
    return [_CopyTask(planned, start, min(end, start + PART_BYTES)) for start in starts]


def _copy_part(task: _CopyTask, *, store: BackupStore, present: frozenset[str]) -> _CopyResult:
    """Runs in a worker."""
    try:
        with _opened(task) as file:
            copied = _send(task, file, store, present)
            is_same = not task.planned.is_growing or copied.objects == tuple(
                object_name(piece) for piece in _pieces(file, task)
            )
            _check(task, file)
        return copied if is_same else copied._replace(is_gone=True)
    except SegmentGoneError:
        return _CopyResult(task.planned.path, task.start, (), (), is_gone=True)


def _opened(task: _CopyTask) -> LogFile:
    """The file that was cut, whatever its name is by now. Raises SegmentGoneError."""
    plain = task.planned.source.name.removesuffix(FileState.SWAP.value)
    for name in (task.planned.source.name, plain, plain + FileState.DELETED.value):
        try:
            file = open_file(task.planned.source.with_name(name))
        except FileNotFoundError:
            continue
        try:
            _check(task, file)
        except SegmentGoneError:
            file.close()
            continue
        return file
    raise SegmentGoneError(task.planned.source)


def _check(task: _CopyTask, file: LogFile) -> None:
    """Raise SegmentGoneError if this is another file than the one that was cut."""
    found = file.identity
    is_same = found == task.planned.identity
    if task.planned.is_growing:
        is_same = found.inode == task.planned.identity.inode and found.size_bytes >= task.end
    if not is_same:
        raise SegmentGoneError(task.planned.source)


def _pieces(file: LogFile, task: _CopyTask) -> Iterator[bytes]:
    """Raises SegmentGoneError if the file ends before."""
    for position in range(task.start, task.end, CHUNK_BYTES):
        size_bytes = min(CHUNK_BYTES, task.end - position)
        piece = file.read(position, size_bytes)
        if len(piece) != size_bytes:
            raise SegmentGoneError(task.planned.source)
        yield piece


def _send(
    task: _CopyTask, file: LogFile, store: BackupStore, present: frozenset[str]
) -> _CopyResult:
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
    return _CopyResult(task.planned.path, task.start, tuple(names), tuple(sent))


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
