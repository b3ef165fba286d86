"""Directories that wait to be removed: renamed to `-delete`, kept for a while for their readers.

The time of the rename is the directory's own modification time, so that the wait is over at the
right time even if the process ends before.
"""

from __future__ import annotations

import logging
import threading
import uuid
from typing import TYPE_CHECKING, NamedTuple

from stratalog.errors import StorageError
from stratalog.format.names import DirState, directory_name

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.format.names import TopicPartition
    from stratalog.storage.disk import Disk

_log = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    path: Path
    since_ms: int


class Trash:
    """The partition directories that are on their way out."""

    def __init__(self, disk: Disk, delay_ms: int) -> None:
        self._disk = disk
        self._delay_ms = delay_ms
        self._waiting: list[_Waiting] = []
        self._lock = threading.Lock()

    @property
    def paths(self) -> list[Path]:
        """What is still there."""
        return [waiting.path for waiting in self._waiting]

    def take_over(self, path: Path) -> None:
        """Remove a directory that somebody has renamed before."""
        with self._lock:
            self._waiting.append(_Waiting(path, self._disk.mtime_ms(path)))

    def throw(self, path: Path, topic_partition: TopicPartition, now_ms: int) -> None:
        """Rename a partition's directory, to be removed after the delay. Durable once the directory
        around it is synced."""
        name = directory_name(topic_partition, DirState.DELETE, uuid.uuid4().hex)
        target = path.with_name(name)
        self._disk.rename(path, target)
        self._disk.set_mtime_ms(target, now_ms)
        with self._lock:
            self._waiting.append(_Waiting(target, now_ms))

    def remove_due(self, now_ms: int) -> None:
        """Remove what has waited long enough. What cannot be removed stays for the next time."""
        with self._lock:
            due = [item for item in self._waiting if now_ms - item.since_ms >= self._delay_ms]
            for waiting in due:
                try:
                    self._disk.remove_tree(waiting.path)
                except StorageError as error:
                    _log.warning("%s", error)
                else:
                    self._waiting.remove(waiting)
