"""Failures of background tasks: where, when, and the error. None may go unnoticed.

A task over many partitions handles each of them inside `Health.guarded`: an error there is logged
and kept, and the task continues with the next partition.
"""

from __future__ import annotations

import logging
import threading
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from stratalog.errors import StorageError
from stratalog.format.names import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stratalog.partitions.catalog import TopicCatalog
    from stratalog.partitions.root import LogContext

_log = logging.getLogger(__name__)

Subject: TypeAlias = TopicPartition | Path
"""A partition, or a log directory as a whole."""


@dataclass(frozen=True)
class Failure:
    """The last failure of one task on one partition or directory."""

    task: str
    at_ms: int
    message: str
    traceback: str
    count: int
    """How often the task has failed here since the directory was opened."""
    is_resolved: bool = False
    """Whether the task has succeeded here since."""

    @classmethod
    def of(cls, task: str, at_ms: int, error: BaseException, count: int = 1) -> Failure:
        """From a caught error."""
        message = str(error) or type(error).__name__
        text = "".join(traceback.format_exception(error))
        return cls(task, at_ms, message, text, count)


class Health:
    """The last failure of each task, for each partition and directory. Thread-safe."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._failures: dict[tuple[Subject, str], Failure] = {}

    @contextmanager
    def guarded(
        self, task: str, subject: Subject, *, matters: Callable[[], bool] = lambda: True
    ) -> Iterator[None]:
        """Catch and record errors of the block. One that does not matter, because the partition is
        being deleted, is ignored."""
        try:
            yield
        except Exception as error:  # the other partitions must still be handled
            if matters():
                self.record(task, subject, error)
        else:
            self.record_success(task, subject)

    def record(self, task: str, subject: Subject, error: BaseException) -> None:
        """Log an error and keep it as the last failure. Disk errors are logged without a traceback,
        because the task is repeated over and over."""
        if isinstance(error, StorageError):
            _log.error("%s: %s failed: %s", subject, task, error)
        else:
            _log.error("%s: %s failed", subject, task, exc_info=error)
        with self._lock:
            before = self._failures.get((subject, task))
            count = 1 if before is None else before.count + 1
            self._failures[subject, task] = Failure.of(task, self._now_ms(), error, count)

    def record_success(self, task: str, subject: Subject) -> None:
        """Mark an earlier failure as resolved."""
        with self._lock:
            failure = self._failures.get((subject, task))
            if failure is not None and not failure.is_resolved:
                self._failures[subject, task] = replace(failure, is_resolved=True)

    def failures_of(self, subject: Subject) -> tuple[Failure, ...]:
        """The last failure of each task, oldest first."""
        with self._lock:
            found = [failure for (of, _), failure in self._failures.items() if of == subject]
        return tuple(sorted(found, key=lambda failure: failure.at_ms))

    def unresolved(self) -> list[tuple[Subject, Failure]]:
        """The failures after which the task has not succeeded, oldest first."""
        with self._lock:
            found = [
                (subject, failure)
                for (subject, _), failure in self._failures.items()
                if not failure.is_resolved
            ]
        return sorted(found, key=lambda each: each[1].at_ms)


class ServedDirs(NamedTuple):
    """What background tasks work on: the partitions, the settings and disk, and the failures."""

    catalog: TopicCatalog
    context: LogContext
    health: Health
