"""Restores log directories from a backup, whole or in part, up to an offset or a time.

Everything is built in `restore.incomplete`, a directory inside the one that is restored. No Kafka
broker starts on a directory that has such a thing in it, and `stratalog` does not write to it:

1. Tasks fetch the files and check every piece against its checksum.
2. If the directory was not closed cleanly when it was backed up, or logs are truncated, the logs
   are opened as a broker does at its start, which builds missing indexes and snapshots, truncated
   where that was asked for, and closed: checkpoints and the clean-shutdown marker are written.
   Committed offsets above the new end of a log are set back to it.
3. All is moved to its place, `meta.properties` last, and `restore.incomplete` is removed.

`stratalog-restore.json` beside it says what is restored, and whether step 3 has begun. A restore
that was killed is repeated with the same arguments: files that are there and right are not fetched
again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stratalog.bulk.backup_cut import end_of_batches
from stratalog.bulk.backup_store import BackupJobResult, find_backup
from stratalog.bulk.clamped_offsets import ClampedOffset, clamp_offsets
from stratalog.bulk.workers import Clock, ThreadWorkers, pack
from stratalog.config import BrokerConfig
from stratalog.errors import BackupError, InvalidNameError, StratalogError
from stratalog.format import names
from stratalog.format.checkpoint import decode_offsets, encode_offsets
from stratalog.format.messages.remote_log_records import read_remote_log_record
from stratalog.format.times import current_time_ms
from stratalog.format.uuids import encode_id
from stratalog.log.partition_view import read_topic_id
from stratalog.log.remote_segments import TopicIdPartition, replay_remote_log
from stratalog.partitions.opening import OpenLogDirs, OpenOptions, raise_first
from stratalog.partitions.root import LogContext
from stratalog.storage.disk import Disk, storage_errors
from stratalog.storage.log_file import read_file
from stratalog.storage.remote_path import RemotePath, location

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from stratalog.bulk.backup_store import BackupStore, Manifest, SavedDir, SavedFile, StoredBackup
    from stratalog.bulk.workers import Workers
    from stratalog.format.names import TopicPartition
    from stratalog.log.partition_log import PartitionLog
    from stratalog.log.remote_segments import RemoteLog
    from stratalog.partitions.partition_table import PartitionSlot

_log: Final = logging.getLogger(__name__)

STAGING: Final = "restore.incomplete"
"""The name does not have the form topic-partition, so a Kafka broker refuses to start."""
MARKER: Final = "stratalog-restore.json"
_ALLOWED: Final = frozenset({"lost+found", MARKER + names.TEMPORARY_SUFFIX})
"""What an empty directory may have: a marker that was never completed among them."""
_OFFSET_FILES: Final = (
    names.RootFile.RECOVERY_POINTS,
    names.RootFile.LOG_START_OFFSETS,
    names.RootFile.HIGH_WATERMARKS,
    names.RootFile.CLEANER_OFFSETS,
)
_NEVER_TRUNCATED: Final = frozenset({names.CLUSTER_METADATA_TOPIC, names.REMOTE_METADATA_TOPIC})
"""Their records about topics and remote segments describe the present, whatever time is restored: a
remote segment that its log no longer lists would be lost. `__consumer_offsets` and
`__transaction_state` are truncated: groups and transactions are as they were at that time, like the
data."""


@dataclass(frozen=True)
class Selection:
    """What is restored."""

    topics: tuple[tuple[str, int | None], ...] = ()
    """Topics, or partitions of them; all if there are none."""
    until_ms: int | None = None
    """Records from this time on are dropped, in every log but those of `_NEVER_TRUNCATED`."""
    to_offsets: tuple[tuple[TopicPartition, int], ...] = ()
    """Records from this offset on are dropped."""

    def has(self, topic_partition: TopicPartition) -> bool:
        topic, number = topic_partition
        if not self.topics or topic == names.CLUSTER_METADATA_TOPIC:
            return True
        return (topic, number) in self.topics or (topic, None) in self.topics

    @property
    def truncates(self) -> bool:
        return self.until_ms is not None or bool(self.to_offsets)

    def as_json(self) -> dict[str, Any]:
        offsets = [[*tp, offset] for tp, offset in self.to_offsets]
        topics = [list(each) for each in self.topics]
        return {"topics": topics, "untilMs": self.until_ms, "toOffsets": offsets}


class RestoredPartition(NamedTuple):
    """A log after the restore."""

    topic: str
    partition: int
    end_offset: int
    backup_end_offset: int
    has_open_transaction: bool = False
    """A truncation has left a transaction without its end."""
    may_have_later_remote_records: bool = False
    """Remote storage, which a restore does not change, has or may have records that a truncation
    by time drops from the local log."""


class _RestoredLogs(NamedTuple):
    partitions: tuple[RestoredPartition, ...]
    clamped: tuple[ClampedOffset, ...]


@dataclass(frozen=True)
class RestoreResult(BackupJobResult):
    """What was restored."""

    dirs: tuple[str, ...] = ()
    fetched_files: int = 0
    """Fewer than `files` if an interrupted restore was continued."""
    is_recovered: bool = False
    """The logs were opened and closed, since the backup was of a directory that was in use."""
    partitions: tuple[RestoredPartition, ...] = ()
    clamped: tuple[ClampedOffset, ...] = ()


@dataclass(frozen=True)
class RestorePlan:
    """Which files of a backup go where."""

    backup: StoredBackup
    selection: Selection
    targets: tuple[Path, ...]
    files: tuple[tuple[SavedFile, ...], ...]
    """The files of each target."""
    as_is: bool = False

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for files in self.files for file in files)

    @property
    def needs_opening(self) -> bool:
        """Whether the files as they were copied are not yet what a broker leaves behind."""
        if self.as_is:
            return False
        return self.selection.truncates or not all(
            each.is_clean for each in self.backup.manifest.dirs
        )


def restore(
    where: Path | str,
    dirs: Sequence[Path | str],
    selection: Selection | None = None,
    *,
    backup_id: str | None = None,
    as_is: bool = False,
    workers: Workers | None = None,
) -> RestoreResult:
    """Restore a backup (the newest, unless `backup_id` names another) into new or empty
    directories, one for each log directory of the backup, in its order.

    With `as_is`, the files are left as they were copied, and a broker recovers the logs when it
    starts. Raises BackupError.
    """
    clock = Clock()
    plan = plan_restore(find_backup(where, backup_id), dirs, selection, as_is=as_is)
    return run_restore(plan, workers, clock=clock)


def plan_restore(
    backup: StoredBackup,
    dirs: Sequence[Path | str],
    selection: Selection | None = None,
    *,
    as_is: bool = False,
) -> RestorePlan:
    """Check that the backup can be restored as asked for. Changes nothing."""
    manifest = backup.manifest
    selection = selection or Selection()
    targets = tuple(location(each).absolute() for each in dirs)
    if len(targets) != len(manifest.dirs):
        paths = ", ".join(each.path for each in manifest.dirs)
        raise BackupError(
            f"the backup has {len(manifest.dirs)} log directories ({paths}): give one directory "
            f"for each, not {len(targets)}"
        )
    if as_is and selection.truncates:
        raise BackupError("as_is cannot be combined with a truncation by time or offset")
    _check_selection(manifest, selection)
    _check_remote_parts(backup, selection)
    files = tuple(tuple(_selected(each, selection)) for each in manifest.dirs)
    plan = RestorePlan(backup, selection, targets, files, as_is)
    for target in targets:
        _check_target(plan, target)
    return plan


def _check_selection(manifest: Manifest, selection: Selection) -> None:
    known = {tp for saved in manifest.dirs for tp in saved.ends}
    for topic, number in selection.topics:
        if not any(tp.topic == topic and number in {None, tp.partition} for tp in known):
            name = topic if number is None else f"{topic}:{number}"
            raise BackupError(f"backup {manifest.backup_id} has no {name}")
    for tp, offset in selection.to_offsets:
        if tp.topic in _NEVER_TRUNCATED:
            raise BackupError(
                f"{tp.topic}:{tp.partition}:{offset}: this log cannot be truncated, since brokers "
                "would no longer know their topics or remote segments; truncate logs of other "
                "topics only"
            )
        if tp not in known or not selection.has(tp):
            raise BackupError(
                f"{tp.topic}:{tp.partition} is to be truncated, but is not among "
                "the restored partitions"
            )
        if offset < 0:
            raise BackupError(f"{tp.topic}:{tp.partition}:{offset}: the offset must be 0 or more")


def _check_remote_parts(backup: StoredBackup, selection: Selection) -> None:
    """Raise BackupError for a log that would have to be truncated in remote storage."""
    for saved in backup.manifest.dirs:
        bases = _first_bases(saved)
        wanted = [
            (tp, offset) for tp, offset in selection.to_offsets if offset < bases.get(str(tp), 0)
        ]
        starts = _saved_starts(backup, saved) if wanted else {}
        for tp, offset in wanted:
            base = bases[str(tp)]
            # A lower log start is that of a tiered log, as for a broker that starts.
            if starts.get(tp, base) < base:
                raise BackupError(
                    f"{tp.topic}:{tp.partition}:{offset}: the log cannot be truncated there: its "
                    f"records below offset {base} are in remote storage, which a restore does not "
                    f"change, and would still be read; give offset {base} or a higher one (with "
                    f"{base}, no local record is kept)"
                )


def _saved_starts(backup: StoredBackup, saved: SavedDir) -> dict[TopicPartition, int]:
    """The checkpointed log start offsets."""
    for file in saved.files:
        if file.path == names.RootFile.LOG_START_OFFSETS.value:
            data = backup.read_file(file)
            try:
                return decode_offsets(data)
            except StratalogError as error:  # as in Kafka, it counts as missing
                _log.warning("%s: %s", file.path, error)
    return {}


def _selected(saved: SavedDir, selection: Selection) -> Iterable[SavedFile]:
    ends = {str(tp): offset for tp, offset in selection.to_offsets}
    firsts = _first_bases(saved)
    for file in saved.files:
        directory = file.directory
        if directory and not _is_wanted(directory, selection):
            continue
        end = ends.get(directory)
        if end is None or not _is_after(file.name, end, firsts.get(directory, 0)):
            yield file


def _is_wanted(directory: str, selection: Selection) -> bool:
    if not selection.topics:
        return True
    try:
        found = names.parse_partition_dir(directory)
    except InvalidNameError:
        return False
    return (
        found is not None
        and found.state is names.DirState.LIVE
        and selection.has(found.topic_partition)
    )


def _first_bases(saved: SavedDir) -> dict[str, int]:
    """The base offset of the first segment of each log."""
    found: dict[str, int] = {}
    for file in saved.files:
        if file.name.endswith(names.FileKind.LOG.value):
            base = int(file.name.removesuffix(names.FileKind.LOG.value))
            found[file.directory] = min(base, found.get(file.directory, base))
    return found


def _is_after(name: str, end: int, first_base: int) -> bool:
    """Whether a file of a segment is not needed for a log that ends at an offset."""
    file = names.parse_partition_file(name)
    if file is None or file.base_offset is None or file.kind is names.FileKind.METADATA_SNAPSHOT:
        return False
    if file.kind is names.FileKind.PRODUCER_SNAPSHOT:
        return file.base_offset > end
    return file.base_offset >= end and file.base_offset > first_base


def _check_target(plan: RestorePlan, target: Path) -> None:
    if isinstance(target, RemotePath):
        raise BackupError(f"{target}: log directories can be restored only to a local disk")
    if not target.exists():
        return
    if not target.is_dir():
        raise BackupError(f"{target}: a file, not a directory")
    found = _read_marker(target)
    if found is not None:
        if found["restore"] != _identity(plan, target):
            raise BackupError(
                f"{target}: another restore was interrupted here; finish it, or remove the "
                "directory"
            )
        return
    if _is_used(target) and not _is_finished(plan):
        raise BackupError(f"{target}: not empty; restore into a new directory")


def _is_used(target: Path) -> bool:
    return target.is_dir() and any(each.name not in _ALLOWED for each in target.iterdir())


def _is_finished(plan: RestorePlan) -> bool:
    """Whether an interrupted restore of the same directories only had markers left to remove: one
    without a marker is complete."""
    dirs = list(map(str, plan.targets))
    return any(
        marker is not None and marker.get("dirs") == dirs
        for marker in map(_read_marker, plan.targets)
    )


def _identity(plan: RestorePlan, target: Path) -> dict[str, Any]:
    """What an interrupted restore must have in common with its repetition."""
    return {
        "backup": plan.backup.manifest.backup_id,
        "dir": plan.targets.index(target),
        "asIs": plan.as_is,
        **plan.selection.as_json(),
    }


def _read_marker(target: Path) -> dict[str, Any] | None:
    try:
        content = json.loads((target / MARKER).read_bytes())
        if isinstance(content["restore"], dict):
            return dict(content)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        pass
    raise BackupError(f"{target / MARKER}: not written by a restore")


def _write_marker(
    disk: Disk, plan: RestorePlan, target: Path, restored: _RestoredLogs | None = None
) -> None:
    """Write the marker. It has the `restored` logs once they only have to be moved into place."""
    content: dict[str, Any] = {"restore": _identity(plan, target)}
    if restored is not None:
        content["partitions"], content["clamped"] = map(list, restored)
        content["dirs"] = list(map(str, plan.targets))
    disk.write_atomically(target / MARKER, (json.dumps(content) + "\n").encode())


# -- running


class _FetchTask(NamedTuple):
    file: SavedFile
    target: Path
    pieces: tuple[tuple[str, int], ...]

    @property
    def size_bytes(self) -> int:
        return self.file.size_bytes


def run_restore(
    plan: RestorePlan, workers: Workers | None = None, *, clock: Clock | None = None
) -> RestoreResult:
    """Restore what was planned."""
    clock = clock or Clock()
    workers = workers or ThreadWorkers()
    disk = Disk()
    restored, fetched, groups = _completed_logs(plan), 0, 0
    if restored is None:
        stagings = [_begin(disk, plan, target) for target in plan.targets]
        fetched, groups = _fetch(plan, stagings, workers)
        restored = _RestoredLogs(_untruncated_logs(plan), ())
        if plan.needs_opening:
            restored = _open_and_close(plan, stagings)
        elif plan.selection.topics:
            _limit_checkpoints(disk, plan, stagings)
        for target in plan.targets:
            _write_marker(disk, plan, target, restored)
    for target in plan.targets:
        _move_into_place(disk, target)
    for target in plan.targets:
        disk.unlink(target / MARKER, missing_ok=True)
        disk.fsync_dir(target)
    return RestoreResult(
        job="restore",
        records=0,
        size_bytes=plan.size_bytes,
        seconds=clock.seconds,
        tasks=groups,
        backup_id=plan.backup.manifest.backup_id,
        files=sum(map(len, plan.files)),
        dirs=tuple(map(str, plan.targets)),
        fetched_files=fetched,
        is_recovered=plan.needs_opening,
        partitions=restored.partitions,
        clamped=restored.clamped,
    )


def _completed_logs(plan: RestorePlan) -> _RestoredLogs | None:
    """The logs of an interrupted restore that only have to be moved into place, if there is one."""
    markers = {target: _read_marker(target) for target in plan.targets}
    ready = [each for each in markers.values() if each is not None and "partitions" in each]
    if not ready:
        return None
    for target, marker in markers.items():
        if marker is None and not _is_used(target):
            raise BackupError(
                f"{target}: this directory was already restored, but is missing or empty now; "
                f"remove {', '.join(str(each) for each in markers if each != target)} as well, and "
                "restore again"
            )
    return _RestoredLogs(
        tuple(RestoredPartition(*each) for each in ready[0]["partitions"]),
        tuple(ClampedOffset(*each) for each in ready[0]["clamped"]),
    )


def _begin(disk: Disk, plan: RestorePlan, target: Path) -> Path:
    """Create the directory in which everything is built, or continue with the one that is there,
    without what does not belong in it."""
    staging = target / STAGING
    with storage_errors("create", target):
        target.mkdir(parents=True, exist_ok=True)
    _write_marker(disk, plan, target)
    disk.mkdir(staging, exist_ok=True)
    disk.fsync_dir(target)
    number = plan.targets.index(target)
    wanted = {file.path for file in plan.files[number]}
    directories = set(_directories(plan, number))
    for name in disk.list_names(staging):
        path = staging / name
        if not path.is_dir():
            if name not in wanted:
                disk.unlink(path)
        elif name not in directories:
            disk.remove_tree(path)
        else:
            for each in disk.list_names(path):
                if f"{name}/{each}" not in wanted:
                    disk.unlink(path / each)
    for name in directories:
        disk.mkdir(staging / name, exist_ok=True)
    return staging


def _directories(plan: RestorePlan, number: int) -> list[str]:
    found = plan.backup.manifest.dirs[number].directories
    return [each for each in found if _is_wanted(each, plan.selection)]


def _fetch(plan: RestorePlan, stagings: Sequence[Path], workers: Workers) -> tuple[int, int]:
    """Fetch all files; returns how many were not there yet, and the number of groups of tasks."""
    tasks = [
        _FetchTask(file, staging / file.path, tuple(plan.backup.manifest.pieces(file)))
        for files, staging in zip(plan.files, stagings, strict=True)
        for file in files
    ]
    groups = pack(tasks, lambda task: task.size_bytes, slots=workers.slots)
    title = f"stratalog restore: {len(tasks)} files from {plan.backup.store.path}"
    done = workers.run(partial(_fetch_file, store=plan.backup.store), groups, title=title)
    disk = Disk()
    for number, staging in enumerate(stagings):
        for name in _directories(plan, number):
            disk.fsync_dir(staging / name)
        disk.fsync_dir(staging)
    return sum(done), len(groups)


def _fetch_file(task: _FetchTask, *, store: BackupStore) -> int:
    """Runs in a worker. Returns 0 if the file was there already."""
    if _is_fetched(task):
        return 0
    disk = Disk()
    temporary = task.target.with_name(f"{task.target.name}.{secrets.token_hex(4)}.fetching")
    disk.write_file(temporary, task.file.data or b"", is_synced=False)
    with disk.open_append(temporary) as file:
        for name, size_bytes in task.pieces:
            file.write(store.read_object(name, size_bytes))
        if file.size_bytes != task.file.size_bytes:
            raise BackupError(
                f"{task.file.path}: the backup has {file.size_bytes} of its "
                f"{task.file.size_bytes} bytes"
            )
        file.fsync()
    disk.set_mtime_ms(temporary, task.file.mtime_ms)
    disk.rename(temporary, task.target)
    return 1


def _is_fetched(task: _FetchTask) -> bool:
    """Whether an interrupted restore has fetched the file already."""
    try:
        with task.target.open("rb") as file:
            if os.fstat(file.fileno()).st_size != task.file.size_bytes:
                return False
            if task.file.data is not None:
                return file.read() == task.file.data
            return all(
                hashlib.sha256(file.read(size)).hexdigest() == name for name, size in task.pieces
            )
    except FileNotFoundError:
        return False


def _untruncated_logs(plan: RestorePlan) -> tuple[RestoredPartition, ...]:
    return tuple(
        RestoredPartition(*tp, end, end)
        for saved in plan.backup.manifest.dirs
        for tp, end in saved.ends.items()
        if plan.selection.has(tp)
    )


def _limit_checkpoints(disk: Disk, plan: RestorePlan, stagings: Sequence[Path]) -> None:
    """Remove the partitions that are not restored from the offset checkpoints."""
    for staging in stagings:
        for file in _OFFSET_FILES:
            path = staging / file.value
            if not path.exists():
                continue
            try:
                offsets = decode_offsets(read_file(path))
            except StratalogError as error:  # as in Kafka, it counts as missing
                _log.warning("%s: %s", path, error)
                continue
            kept = {tp: offset for tp, offset in offsets.items() if plan.selection.has(tp)}
            if kept != offsets:
                disk.write_atomically(path, encode_offsets(kept))


# -- opening, truncating and closing the logs


def _open_and_close(plan: RestorePlan, stagings: Sequence[Path]) -> _RestoredLogs:
    config = BrokerConfig()
    config = replace(config, log_config=replace(config.log_config, file_delete_delay_ms=0))
    options = OpenOptions(create=False, missing_dirs="offline")
    dirs = OpenLogDirs(stagings, LogContext.of(config, Disk()), options)
    try:
        dirs.start()
        dirs.recover()
        slots = sorted(dirs.catalog.slots(), key=lambda slot: slot.topic_partition)
        logs = {slot.topic_partition: slot.log() for slot in slots}
        before = {each[:2]: each.backup_end_offset for each in _untruncated_logs(plan)}
        ends = _ends(logs, plan.selection)
        for slot in slots:
            if slot.topic_partition in ends:
                _truncate(slot, ends[slot.topic_partition])
        clamped: tuple[ClampedOffset, ...] = ()
        if plan.selection.truncates:
            clamped = clamp_offsets(logs)
        rests = _later_remote_parts(slots, plan.selection)
        opened = {
            tp: _restored(tp, log, before.get(tp, 0), may_have_more=tp in rests)
            for tp, log in logs.items()
        }
        # Logs of cluster metadata are not opened.
        others = [each for each in _untruncated_logs(plan) if each[:2] not in opened]
        restored = tuple(sorted([*opened.values(), *others]))
        for log in logs.values():
            log.maintenance.remove_discarded(current_time_ms(), at_once=True)
    except BaseException:
        dirs.abandon()
        raise
    raise_first(dirs.close())
    for staging in stagings:
        _sweep(staging)
    return _RestoredLogs(restored, clamped)


def _truncate(slot: PartitionSlot, offset: int) -> None:
    """Batches are dropped as a whole. The log must end with its last batch, as the next opening
    will find it; `PartitionLog.truncate_to` would continue at `offset`, as a broker does. If the
    log start is inside a dropped batch, the log is empty and continues there."""
    log = slot.log()
    log.truncate_to(offset)
    end = end_of_batches(log.path)
    if end < log.log_start_offset:
        log.truncate_fully_and_start_at(log.log_start_offset)
    elif end < log.log_end_offset:
        log.truncate_to(end)
    # Segments after the end were not even fetched, so truncating may have had nothing to do.
    slot.root.lower_cleaner_offset(slot, log.log_end_offset)


def _restored(
    tp: TopicPartition, log: PartitionLog, end_before: int, *, may_have_more: bool
) -> RestoredPartition:
    end = log.log_end_offset
    is_open = end < end_before and log.last_stable_offset < end
    return RestoredPartition(*tp, end, end_before, is_open, may_have_more)


def _ends(
    logs: Mapping[TopicPartition, PartitionLog], selection: Selection
) -> dict[TopicPartition, int]:
    """Where logs are truncated."""
    ends: dict[TopicPartition, int] = {}
    if selection.until_ms is not None:
        for tp, log in logs.items():
            if tp.topic in _NEVER_TRUNCATED:
                continue
            found = log.find_time(selection.until_ms)
            if found is not None:
                ends[tp] = found.offset
    for tp, offset in selection.to_offsets:
        ends[tp] = min(offset, ends.get(tp, offset))
    return {tp: max(end, logs[tp].log_start_offset) for tp, end in ends.items()}


def _later_remote_parts(
    slots: Sequence[PartitionSlot], selection: Selection
) -> set[TopicPartition]:
    """Truncated logs whose remote part has, or may have, records from the limit of time on."""
    tiered = [slot for slot in slots if slot.remote_start is not None]
    if selection.until_ms is None or not tiered:
        return set()
    remote = _remote_logs(slots)
    found = set()
    for slot in tiered:
        tp, log = slot.topic_partition, slot.log()
        topic_id = read_topic_id(slot.path)
        place = None if topic_id is None else TopicIdPartition(tp.topic, encode_id(topic_id), tp[1])
        known = None if place is None else remote.get(place)
        first = log.segments.bases[0]
        if known is None:  # the metadata are on another broker
            is_later = log.log_end_offset == first
        else:
            is_later = any(
                each.max_timestamp_ms >= selection.until_ms
                for each in known.live
                if each.start_offset < first
            )
        if is_later:
            found.add(tp)
    return found


def _remote_logs(slots: Sequence[PartitionSlot]) -> dict[TopicIdPartition, RemoteLog]:
    """As far as this broker has the metadata."""
    records = (
        read_remote_log_record(record.value)
        for slot in slots
        if slot.topic_partition.topic == names.REMOTE_METADATA_TOPIC
        for record in slot.log().read()
        if record.value is not None
    )
    try:
        return replay_remote_log(records)
    except StratalogError as error:
        _log.warning("%s: cannot be read: %s", names.REMOTE_METADATA_TOPIC, error)
        return {}


def _sweep(staging: Path) -> None:
    """What opening the logs has left beside them."""
    disk = Disk()
    disk.unlink(staging / names.RootFile.LOCK.value, missing_ok=True)
    for path in staging.glob(f"*/*{names.FileState.DELETED.value}"):
        disk.unlink(path, missing_ok=True)


# -- into place


def _move_into_place(disk: Disk, target: Path) -> None:
    """A broker does not start before the last step."""
    staging = target / STAGING
    if not staging.exists():
        return
    last = names.RootFile.META_PROPERTIES.value
    for name in sorted(disk.list_names(staging), key=lambda name: name == last):
        disk.rename(staging / name, target / name)
    disk.fsync_dir(target)
    disk.remove_tree(staging)
    disk.fsync_dir(target)
