"""Log directories, read-only: their partitions and root files. No lock is taken.

Kafka spreads a broker's partitions over `log.dirs`; `LogDirsView` over all of them is what it sees.
Listing costs one `scandir` per directory; a partition is opened only when it is asked for.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import defaultdict
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Final

from stratalog.errors import (
    InconsistentLogDirsError,
    InvalidNameError,
    NoSegmentError,
    NotALogDirError,
    PartitionGoneError,
    UnknownTopicOrPartitionError,
)
from stratalog.format.directory_metadata import MetaProperties, decode_meta_properties
from stratalog.format.names import DirState, RootFile, TopicPartition, is_topic_name
from stratalog.log.partition_view import PartitionView
from stratalog.partitions.topic_reading import TopicReader
from stratalog.storage.log_dir_scan import list_log_dir, read_offset_checkpoint, scan_log_dir
from stratalog.storage.log_file import read_decoded
from stratalog.storage.remote_path import RemotePath, location

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from stratalog.partitions.tiered import RemoteTier
    from stratalog.partitions.topics import TopicInfo
    from stratalog.storage.tiered_store import TieredStore


class LogDirView:
    """One log directory: its partition directories and its root files."""

    def __init__(self, path: Path, *, may_be_new: bool = False) -> None:
        """Raises NotALogDirError if it does not look like a log directory. With `may_be_new` any
        directory will do: a writer is about to make it one."""
        self.path = path
        self._listing = list_log_dir(path) if may_be_new else scan_log_dir(path)
        self.partitions = self._listing.partitions
        """Live ones, and those being deleted or moved (`-delete`, `-stray`, `-future`)."""
        self.root_files = self._listing.root_files

    @property
    def invalid_directories(self) -> list[Path]:
        """Directories that are no partition; each stops a Kafka broker from starting."""
        return [invalid.path for invalid in self._listing.invalid]

    @property
    def has_clean_shutdown(self) -> bool:
        """Whether the last broker shut down cleanly and none has started since."""
        return RootFile.CLEAN_SHUTDOWN in self.root_files

    def check_writable(self) -> None:
        """Raise where a Kafka broker would not start: on directories that are no partition."""
        if self._listing.has_segments:
            raise NotALogDirError(
                f"{self.path}: has segments in it, so it is a partition; use its parent directory"
            )
        names = [path.name for path in self.invalid_directories]
        names += [
            path.name
            for path, directory in self.partitions
            if not is_topic_name(directory.topic_partition.topic)
        ]
        if names:
            shown = ", ".join(map(repr, sorted(names)[:10]))
            raise InvalidNameError(
                f"{self.path}: not in the form topic-partition: {shown}; move such directories "
                "elsewhere; a Kafka broker does not start with them either"
            )

    @cached_property
    def meta_properties(self) -> MetaProperties | None:
        """The cluster and node that the directory belongs to; None if it belongs to no cluster."""
        return read_decoded(self.path / RootFile.META_PROPERTIES.value, decode_meta_properties)

    def checkpoint(self, file: RootFile) -> dict[TopicPartition, int]:
        """One of the four offset checkpoints; as in Kafka, a corrupt one counts as empty."""
        return read_offset_checkpoint(self.path, file)

    @cached_property
    def log_start_offsets(self) -> dict[TopicPartition, int]:
        return self.checkpoint(RootFile.LOG_START_OFFSETS)


class LogDirsView(TopicReader):
    """Several log directories as one: what a broker with these `log.dirs` would serve.

    Use it as a context manager, or `close` it, to close the files of its partitions.
    """

    def __init__(self, paths: Iterable[Path], remote: TieredStore | None = None) -> None:
        """`remote` is the store of tiered topics; with one there need not be a directory."""
        self.dirs = _listed(tuple(paths))
        store = remote or default_tiered_store()
        if not self.dirs and store is None:
            raise NotALogDirError("no log directory given")
        self._live = live_partitions(self.dirs)
        self.tier: RemoteTier | None = None
        if store is not None:
            from stratalog.partitions.tiered import (  # noqa: PLC0415
                LocalFacts,
                RemoteTier,
                metadata_dirs,
            )

            facts = LocalFacts(self.paths, metadata_dirs(self._live), lambda: self.topics)
            self.tier = RemoteTier(store, facts)
            for tp in self.tier.topic_partitions:
                self._live.setdefault(tp, [])
        self._views: weakref.WeakSet[PartitionView] = weakref.WeakSet()
        self._views_lock = threading.Lock()

    def __repr__(self) -> str:
        return f"LogDirsView({', '.join(repr(str(path)) for path in self.paths)})"

    def close(self) -> None:
        """Close the open files of all partitions. They may still be used and open them again."""
        with self._views_lock:  # another thread may be opening one
            views = list(self._views)
        for view in views:
            view.close()

    @property
    def paths(self) -> list[Path]:
        """The log directories."""
        return [log_dir.path for log_dir in self.dirs]

    @cached_property
    def topics(self) -> dict[str, TopicInfo]:
        """Topics by name, internal ones (`is_internal`) included. If settings cannot be read,
        `TopicInfo.unknown` says why."""
        from stratalog.partitions.topics import read_topics  # noqa: PLC0415  # it imports this

        return read_topics(self.paths, self._live)

    def topic(self, name: str) -> TopicInfo:
        """One topic. Raises UnknownTopicOrPartitionError."""
        found = self.topics.get(name)
        if found is None:
            raise UnknownTopicOrPartitionError(self._unknown(TopicPartition(name, 0)))
        return found

    @cached_property
    def partition_numbers(self) -> dict[str, list[int]]:
        """The numbers of each topic's partitions, both sorted. Reads no settings."""
        return numbers_by_topic(self._live)

    @property
    def topic_partitions(self) -> list[TopicPartition]:
        return sorted(self._live)

    def partition(self, topic: str, partition: int) -> PartitionView:
        """Open one partition."""
        local = self._path_of(TopicPartition(topic, partition))
        if self.tier is not None:
            view = self.tier.view(TopicPartition(topic, partition), local)
        else:
            view = open_partition_of(self.path_of(topic, partition), self.paths)
        with self._views_lock:
            self._views.add(view)
        return view

    def path_of(self, topic: str, partition: int) -> Path:
        """The directory of one partition."""
        found = self._path_of(TopicPartition(topic, partition))
        if found is None:
            raise UnknownTopicOrPartitionError(
                f"{topic}-{partition} is only in the store of tiered topics"
            )
        return found

    def _path_of(self, topic_partition: TopicPartition) -> Path | None:
        """None for a partition that only the store of tiered topics has."""
        found = self._live.get(topic_partition)
        if found is None:
            raise UnknownTopicOrPartitionError(self._unknown(topic_partition))
        if len(found) > 1:
            *places, last = map(str, found)
            count = "two" if len(found) == 2 else len(found)
            raise InconsistentLogDirsError(
                f"{topic_partition} is in {count} places: {', '.join(places)} and {last}; give one "
                "of them"
            )
        return found[0] if found else None

    def partitions_of(self, topic: str) -> Iterator[PartitionView]:
        """Open every partition of a topic, in order."""
        numbers = self.partition_numbers.get(topic)
        if numbers is None:
            raise UnknownTopicOrPartitionError(self._unknown(TopicPartition(topic, 0)))
        return (self.partition(topic, number) for number in numbers)

    def _opened(self, tp: TopicPartition) -> tuple[PartitionView, PartitionView]:
        view = self.partition(*tp)
        return view, view

    def _unknown(self, wanted: TopicPartition) -> str:
        where = ", ".join(map(str, self.paths))
        numbers = self.partition_numbers.get(wanted.topic)
        if numbers is not None:
            return f"{where}: topic {wanted.topic} has partitions {numbers}, not {wanted.partition}"
        known = ", ".join(list(self.partition_numbers)[:10]) or "none"
        return f"{where}: no topic {wanted.topic!r}; topics here: {known}"


_default_stores: list[TieredStore] = []


def set_default_tiered_store(store: TieredStore | None) -> None:
    """The store of log directories that are opened without one: that of a command line."""
    _default_stores[:] = [] if store is None else [store]


def default_tiered_store() -> TieredStore | None:
    return _default_stores[0] if _default_stores else None


LISTINGS_MAX: Final = 8
MOVE_PAUSE_S: Final = 0.02


def _listed(paths: Sequence[Path]) -> list[LogDirView]:
    """The log directories. They are listed again if a broker seems to be moving a partition from
    one to another: it is live in none, beside the copy that was to be it, or live in both. The
    latter lasts while the broker writes checkpoints of the cleaner."""
    dirs = [LogDirView(path) for path in paths]
    if _unfinished_copies(dirs):
        dirs = [LogDirView(path) for path in paths]
    is_local = not any(isinstance(path, RemotePath) for path in paths)
    for _ in range(LISTINGS_MAX if is_local else 0):
        if all(len(places) == 1 for places in live_partitions(dirs).values()):
            break
        time.sleep(MOVE_PAUSE_S)
        dirs = [LogDirView(path) for path in paths]
    return dirs


def _unfinished_copies(dirs: Sequence[LogDirView]) -> set[TopicPartition]:
    """Partitions that are live in no directory, and of which one has a copy."""
    copies = {
        directory.topic_partition
        for log_dir in dirs
        for _, directory in log_dir.partitions
        if directory.state is DirState.FUTURE
    }
    return copies - live_partitions(dirs).keys()


def live_partitions(dirs: Iterable[LogDirView]) -> dict[TopicPartition, list[Path]]:
    """The directories of each live partition: one, unless the log directories are inconsistent."""
    live: dict[TopicPartition, list[Path]] = defaultdict(list)
    for log_dir in dirs:
        for path, directory in log_dir.partitions:
            if directory.state is DirState.LIVE:
                live[directory.topic_partition].append(path)
    return live


def numbers_by_topic(topic_partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Topics and the numbers of their partitions, both sorted."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(topic_partitions):
        topics.setdefault(topic, []).append(partition)
    return topics


def open_partition_of(path: Path, log_dirs: Iterable[Path]) -> PartitionView:
    """Open the partition at `path`. If a broker has moved it since then, look for it in the other
    log directories."""
    try:
        return PartitionView(path)
    except PartitionGoneError:
        for log_dir in log_dirs:
            with suppress(PartitionGoneError, NoSegmentError):
                return PartitionView(log_dir / path.name)
        raise


def open_dirs(
    *paths: Path | str,
    storage_options: Mapping[str, str] | None = None,
    remote: Path | str | None = None,
    remote_layout: str | None = None,
    remote_keys: Sequence[str] = (),
) -> LogDirsView:
    """Open log directories for reading. Takes no lock and never writes.

    A path may be a URI: `s3://bucket/logs`, `gs://…`, `abfss://…`, `hdfs://…`, or one of fsspec.
    `storage_options` are the settings of its store, such as `{"s3.endpoint": "http://minio:9000"}`.

    `remote` is the store of tiered topics, a path or URI: their logs then include what brokers have
    moved there. Without any log directory, the store alone is read. `remote_layout` is "aiven" or
    "local" and is found out if it is not given; `remote_keys` are files with the private keys of
    encrypted segments.

    The result is a context manager: leaving it closes the files of all partitions.
    """
    store = None
    if remote is not None:
        from stratalog.storage.tiered_store import TieredStore  # noqa: PLC0415

        root = location(remote, storage_options)
        store = TieredStore.found_at(root, remote_layout, remote_keys)
    return LogDirsView((location(path, storage_options) for path in paths), store)


def open_partition(
    path: Path | str, *, storage_options: Mapping[str, str] | None = None
) -> PartitionView:
    """Open one partition directory for reading. Takes no lock and never writes. Paths and options
    are those of `open_dirs`."""
    where = location(path, storage_options)
    view = PartitionView(where)
    if default_tiered_store() is None or view.topic_partition.partition < 0:
        return view
    return LogDirsView([where.absolute().parent]).partition(*view.topic_partition)
