"""Incremental exports: what they have exported so far, and the files that they add.

`_stratalog_export.json` in the target has the next offset of each partition. It is replaced
atomically, and that is the commit of an export:

1. Tasks have written files below a staging directory; these are synced.
2. A new state is written, with the new offsets and the names of these files.
3. The files are moved into place, and the state is written again, without the names.

An export that ends before step 2 has changed nothing, and the next one removes its staging
directory. After step 2 the next export first moves what is left. So each record is in one file,
once, whenever an export is killed; and a file that readers have seen is never removed.

The target is locked meanwhile, so that two exports cannot add the same records. A target in a store
cannot be locked: there an export looks again before step 2, and ends if the state has changed or
its files are gone.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from stratalog.bulk.read_planning import (
    batch_range,
    ending_offset,
    recreated,
    topic_id_of,
    visible_end,
)
from stratalog.bulk.splits import OffsetRange
from stratalog.errors import ConfigError, CorruptCheckpointError, DataLossError, LockedError
from stratalog.format.json_files import as_count, as_text, decode_json, encode_json, id_of, id_text
from stratalog.format.names import TopicPartition
from stratalog.storage.log_file import read_decoded
from stratalog.storage.remote_disk import disk_of, locked
from stratalog.storage.remote_path import RemotePath, location

if TYPE_CHECKING:
    import uuid
    from collections.abc import Mapping, Sequence

    from stratalog.bulk.options import ReadOptions
    from stratalog.log.partition_view import PartitionView
    from stratalog.storage.remote_disk import Files

_log: Final = logging.getLogger(__name__)

STATE_FILE: Final = "_stratalog_export.json"
LOCK_FILE: Final = "_stratalog_export.lock"
STAGING_PREFIX: Final = "_stratalog-"
"""Prefix of staging directories. Spark and others ignore names that start with an underscore."""
VERSION: Final = 1


class StagedFile(NamedTuple):
    """A file that is to be moved, by its paths below the target."""

    staged: str
    path: str


class ExportedUpTo(NamedTuple):
    """Where the exports of a partition have stopped."""

    topic_id: uuid.UUID | None
    """None if the log directory did not have it; then it is not compared."""
    next_offset: int


@dataclass(frozen=True)
class ExportState:
    """What `_stratalog_export.json` holds."""

    layout: Mapping[str, object]
    """The options that all files of the target have in common."""
    partitions: Mapping[TopicPartition, ExportedUpTo] = field(default_factory=dict)
    moving: tuple[StagedFile, ...] = ()
    """Files of the last export that are not known to be in place."""

    def knows(self, topic: str) -> bool:
        return any(known.topic == topic for known in self.partitions)


class LostRecords(NamedTuple):
    """Records that can no longer be exported."""

    topic_partition: TopicPartition
    start: int
    """The first offset that was not exported."""
    end: int | None
    """The first offset that is there; None if the topic is another one."""
    reason: str

    def report(self, *, fails: bool) -> None:
        """Raise DataLossError, or log a warning."""
        if fails:
            raise DataLossError(
                f"{self.reason}. Nothing was exported; use fail_on_data_loss=False to continue "
                "with the data that is available"
            )
        _log.warning("%s", self.reason)


# -- the state as JSON


def encode_state(state: ExportState) -> bytes:
    rows = [
        {
            "topic": topic,
            "partition": number,
            "topicId": id_text(saved.topic_id),
            "nextOffset": saved.next_offset,
        }
        for (topic, number), saved in sorted(state.partitions.items())
    ]
    moving = [list(file) for file in state.moving]
    content = {"version": VERSION, "layout": state.layout, "partitions": rows, "moving": moving}
    return encode_json(content)


def decode_state(data: bytes) -> ExportState:
    """Raises CorruptCheckpointError, or UnsupportedError for a version that is not known here."""
    return decode_json(
        data, _state_of, "the state of an export", file=STATE_FILE, versions=(VERSION,)
    )


def _state_of(content: Any) -> ExportState:
    partitions = {
        TopicPartition(as_text(row["topic"]), as_count(row["partition"])): ExportedUpTo(
            id_of(row["topicId"]), as_count(row["nextOffset"])
        )
        for row in content["partitions"]
    }
    moving = tuple(StagedFile(as_text(old), as_text(new)) for old, new in content["moving"])
    return ExportState(dict(content["layout"]), partitions, moving)


# -- the target


class IncrementalTarget:
    """The directory that incremental exports write to, locked. Use it as a context manager."""

    def __init__(
        self, path: Path | str, layout: Mapping[str, object], *, disk: Files | None = None
    ) -> None:
        """Lock the directory, and finish what a killed export has left.

        Raises LockedError while another export writes to it, and ConfigError if it has files of
        other exports, or files with another `layout`.
        """
        self.path = location(path).absolute()
        self._disk = disk or disk_of(self.path)
        _create(self._disk, self.path)
        _check_files(self.path)
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self._disk, self.path / LOCK_FILE))
            except LockedError:
                raise LockedError(
                    f"{self.path}: another incremental export is writing to it; wait until it ends"
                ) from None
            self.state = self._read(layout)
            self._finish()
            self._lock = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def _read(self, layout: Mapping[str, object]) -> ExportState:
        state = read_decoded(self.path / STATE_FILE, decode_state)
        if state is None:
            return ExportState(layout)
        for name, value in layout.items():
            if state.layout.get(name) != value:
                raise ConfigError(
                    name,
                    f"{self.path} has files that were exported with {state.layout.get(name)!r}, "
                    f"not {value!r}; use the same options, or another directory",
                )
        return state

    def _finish(self) -> None:
        """Move the files of an export that was killed, and remove what others have staged."""
        self._move()
        for name in self._disk.list_names(self.path):
            if name.startswith(STAGING_PREFIX):
                self._disk.remove_tree(self.path / name)

    def commit(
        self, partitions: Mapping[TopicPartition, ExportedUpTo], files: Sequence[StagedFile]
    ) -> None:
        """Add these files, and remember these offsets: both or, if this is interrupted, at last
        when the next export starts."""
        if isinstance(self.path, RemotePath):
            self._check_alone(self.path / STATE_FILE, files)
        else:
            for path in _with_directories([file.staged for file in files]):
                self._sync(self.path / path)
        merged = {**self.state.partitions, **partitions}
        self._write(replace(self.state, partitions=merged, moving=tuple(files)))
        self._move()

    def _check_alone(self, state: RemotePath, files: Sequence[StagedFile]) -> None:
        """Raise LockedError if another export has used the target since it was opened."""
        state.store.forget(state.key)  # another state may have its size, and its time in seconds
        is_same = self._read(self.state.layout) == self.state
        if not is_same or not all(self._disk.exists(self.path / file.staged) for file in files):
            raise LockedError(
                f"{self.path}: another incremental export has written to it meanwhile; nothing was "
                "exported. A store has no locks: run one export at a time"
            )

    def _move(self) -> None:
        files = self.state.moving
        if not files:
            return
        for file in files:
            target = self.path / file.path
            staged = self.path / file.staged
            if self._disk.exists(staged):
                self._disk.mkdir(target.parent.parent, exist_ok=True)
                self._disk.mkdir(target.parent, exist_ok=True)
                self._disk.rename(staged, target)
            elif not self._disk.exists(target):
                raise CorruptCheckpointError(
                    f"the exported file {file.path} is missing, and so is {file.staged}; remove "
                    "the directory, and export everything again",
                    path=self.path / STATE_FILE,
                )
        if not isinstance(self.path, RemotePath):
            for path in _with_directories([file.path for file in files]):
                if (self.path / path).is_dir():
                    self._disk.fsync_dir(self.path / path)
        self._write(replace(self.state, moving=()))

    def _write(self, state: ExportState) -> None:
        self._disk.write_atomically(self.path / STATE_FILE, encode_state(state))
        self.state = state

    def _sync(self, path: Path) -> None:
        if path.is_dir():
            self._disk.fsync_dir(path)
        else:
            self._disk.fsync(path)


def _create(disk: Files, path: Path) -> None:
    if isinstance(path, RemotePath):
        return
    if path.exists() and not path.is_dir():
        raise ConfigError("target", f"{path} is not a directory")
    for directory in reversed([path, *path.parents]):
        if not directory.exists():
            disk.mkdir(directory, exist_ok=True)
            disk.fsync_dir(directory.parent)


def _check_files(path: Path) -> None:
    is_used = has_files if isinstance(path, RemotePath) else _has_any
    if not is_incremental(path) and is_used(path):
        raise ConfigError(
            "target",
            f"{path} is not empty, and was not written by incremental exports; use an "
            "empty directory",
        )


def _has_any(path: Path) -> bool:
    return any(path.iterdir())


def is_incremental(path: Path) -> bool:
    """Whether incremental exports write to this directory. In a store there is no lock file: a
    first export that was killed leaves staged files only, and any other may follow it."""
    names = {STATE_FILE, LOCK_FILE}
    if isinstance(path, RemotePath):
        found = path.listed(age_max_s=0.0)
        return bool(names & found.keys())
    return any((path / name).exists() for name in names)


def has_files(path: Path) -> bool:
    """Whether a directory has more than what a killed export has staged."""
    return any(not each.name.startswith(STAGING_PREFIX) for each in path.iterdir())


def _with_directories(paths: Sequence[str]) -> list[Path]:
    """The paths and all directories above them, up to that of the target; deepest first."""
    found = {Path(path): None for path in paths}
    for path in list(found):
        found |= dict.fromkeys(path.parents)
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


# -- ranges of offsets


def next_range(
    topic_partition: TopicPartition, view: PartitionView, options: ReadOptions, state: ExportState
) -> tuple[OffsetRange, LostRecords | None]:
    """What the next export reads of a partition, and what is lost."""
    saved = state.partitions.get(topic_partition)
    first = view.log_start_offset
    if saved is None:
        if state.knows(topic_partition.topic):  # a partition that was added
            return _range_from(first, topic_partition, view, options), None
        return batch_range(topic_partition, view, options), None
    start = saved.next_offset
    topic_id = topic_id_of(view)
    if topic_id is not None and saved.topic_id not in {None, topic_id}:
        assert saved.topic_id is not None
        what = recreated(topic_partition.topic, saved.topic_id, topic_id)
        what = (
            f"{what}, or this is another log directory; {topic_partition} was exported up to offset"
        )
        lost = LostRecords(topic_partition, start, None, f"{what} {start}")
        return _range_from(first, topic_partition, view, options), lost
    if start < first:
        what = (
            f"offsets {start} to {first - 1} of {topic_partition} were deleted before they were "
            "exported"
        )
        lost = LostRecords(topic_partition, start, first, what)
        return _range_from(first, topic_partition, view, options), lost
    if start > view.log_end_offset:
        end = view.log_end_offset
        what = (
            f"{topic_partition} ends at offset {end}, but was exported up to {start}: it was "
            "truncated, or restored from an older copy"
        )
        return OffsetRange(end, end), LostRecords(topic_partition, start, end, what)
    return _range_from(start, topic_partition, view, options), None


def _range_from(
    start: int, topic_partition: TopicPartition, view: PartitionView, options: ReadOptions
) -> OffsetRange:
    last = visible_end(view, options.isolation)
    end = min(last, ending_offset(topic_partition, view, options, last))
    return OffsetRange(start, max(start, end))
