"""Log directories opened for writing, without any service: locked, checked and recovered.

Kafka's `.lock` is held from opening to closing, so that no broker and no other writer changes the
directories meanwhile; readers need no lock. As when a broker starts and stops, logs are recovered
after an unclean shutdown, and checkpoints and the clean-shutdown marker are written at the end.

`LogDir` adds producers, transactions and background work; `commits` needs no more than this.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, get_args

from stratalog.errors import (
    InconsistentLogDirsError,
    LogOfflineError,
    NotALogDirError,
    StratalogError,
)
from stratalog.format.arguments import word_of
from stratalog.partitions.catalog import TopicCatalog
from stratalog.partitions.lock import lock_dirs
from stratalog.partitions.partition_table import PartitionSlot
from stratalog.partitions.saved_state import MissingDirs
from stratalog.partitions.topics import TopicsView
from stratalog.partitions.view import LogDirView
from stratalog.storage.locks import detach_in_children, inherited_reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from stratalog.partitions.root import LogContext, LogRoot
    from stratalog.storage.disk import Disk


@dataclass(frozen=True)
class OpenOptions:
    """How to open log directories for writing. See `LogDir.open`."""

    create: bool = True
    missing_dirs: MissingDirs = "refuse"
    assumed_config: Mapping[str, object] = field(default_factory=dict)
    create_in_broker_dir: bool = False
    lock_wait_ms: int = 0
    """How long to wait for another writer to release the lock."""

    def __post_init__(self) -> None:
        word = word_of(self.missing_dirs, get_args(MissingDirs), "missing_dirs")
        object.__setattr__(self, "missing_dirs", word)


class OpenLogDirs:
    """Log directories whose lock this process holds: roots, topics and logs. Thread-safe."""

    def __init__(
        self, paths: Sequence[Path], context: LogContext, options: OpenOptions | None = None
    ) -> None:
        """Lock and read the directories. Nothing in them changes before `start`."""
        options = options or OpenOptions()
        self.paths = list(paths)
        self.context = context
        _prepare_dirs(context.disk, paths, create=options.create)
        with lock_dirs(context.disk, paths, wait_ms=options.lock_wait_ms) as locks:
            view = TopicsView(
                [LogDirView(path, may_be_new=True) for path in paths],
                context.config,
                options.missing_dirs,
                assumed=options.assumed_config,
                disk=context.disk,
            )
            self.catalog = TopicCatalog(
                view, context, creates_in_broker_dir=options.create_in_broker_dir
            )
            context.disk.on_failed_fsync = self.catalog.on_failed_fsync
            self._locks = locks.pop_all()
        self.is_detached = False
        detach_in_children(self)

    @property
    def roots(self) -> list[LogRoot]:
        return self.catalog.roots

    @property
    def unclean_roots(self) -> list[LogRoot]:
        """Directories whose last writer did not shut down cleanly. Known after `start`."""
        return [root for root in self.roots if not root.last_shutdown.was_clean]

    def start(self) -> None:
        """Become the writer: from here on a crash is an unclean shutdown."""
        for root in self.roots:
            root.start()

    def recover(self) -> None:
        """Open every log of the directories that were not cleanly shut down, several at a time.
        Raises the first error."""
        unclean = self.unclean_roots
        if unclean:
            threads = self._threads * len(unclean)
            slots = [slot for root in unclean for slot in root.slots.values()]
            with ThreadPoolExecutor(threads, thread_name_prefix="stratalog-load") as pool:
                for _ in pool.map(PartitionSlot.log, slots):
                    pass

    @property
    def _threads(self) -> int:
        return self.context.config.num_recovery_threads_per_data_dir

    def abandon(self) -> None:
        """Opening failed: close what is open and release the lock. The next writer recovers."""
        with self._locks:
            for slot in self.catalog.slots():
                log = slot.retire()
                if log is not None:
                    with suppress(StratalogError):
                        log.close()

    def close(self) -> list[Exception]:
        """Close all logs, mark the shutdown as clean where it is, and release the lock."""
        errors = []
        self.catalog.close()
        with self._locks:
            for root in self.roots:
                errors += root.close(self._threads)
        return errors

    def detach(self) -> None:
        """In a forked child: the directories belong to the parent. Never blocks."""
        self.is_detached = True
        self.catalog.detach()
        for root in self.roots:
            root.take_offline(inherited_reason())

    def check_process(self) -> None:
        """Raise LogOfflineError in a forked child."""
        if self.is_detached:
            raise LogOfflineError(self.paths[0], inherited_reason())


def raise_first(errors: list[Exception]) -> None:
    """Raise the first error, if there is one, with the others as notes."""
    if errors:
        for other in errors[1:]:
            errors[0].add_note(f"also: {other}")
        raise errors[0]


def _prepare_dirs(disk: Disk, dirs: Sequence[Path], *, create: bool) -> None:
    """Check that the log directories exist, each given once. With `create`, create missing ones."""
    if not dirs:
        raise NotALogDirError("no log directory given")
    resolved = [path.resolve() for path in dirs]
    for path in resolved:
        if resolved.count(path) > 1:
            raise InconsistentLogDirsError(f"{path} is given twice")
    for path in dirs:
        if path.is_dir():
            continue
        if not create:
            raise NotALogDirError(f"{path}: no such directory")
        _create_with_parents(disk, path)


def _create_with_parents(disk: Disk, path: Path) -> None:
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    for directory in reversed(missing):
        disk.mkdir(directory, exist_ok=True)
        disk.fsync_dir(directory.parent)
