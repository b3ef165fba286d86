"""What has failed in the background: where, when, with what. Nothing there may fail silently.

A task that is done for many partitions does each of them inside `Health.guarded`. There an error
ends that one attempt, is logged and is kept to be looked at; the next partition has its turn.
"""

from __future__ import annotations

import logging
import threading
import traceback
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from stratalog.format.names import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    """How often it has failed here since the directory was opened."""
    is_over: bool = False
    """It has succeeded since."""

    @classmethod
    def of(cls, task: str, at_ms: int, error: BaseException, count: int = 1) -> Failure:
        """From an error as it was caught."""
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
        """Errors end here. One that does not matter, as of a partition that is being deleted, is
        forgotten."""
        try:
            yield
        except Exception as error:  # whatever it is, the others still have their turn
            if matters():
                self.note(task, subject, error)
        else:
            self.note_success(task, subject)

    def note(self, task: str, subject: Subject, error: BaseException) -> None:
        """Log an error and keep it."""
        _log.error("%s: %s failed", subject, task, exc_info=error)
        with self._lock:
            before = self._failures.get((subject, task))
            count = 1 if before is None else before.count + 1
            self._failures[subject, task] = Failure.of(task, self._now_ms(), error, count)

    def note_success(self, task: str, subject: Subject) -> None:
        """What failed before is over."""
        with self._lock:
            failure = self._failures.get((subject, task))
            if failure is not None and not failure.is_over:
                over = (failure.at_ms, failure.message, failure.traceback, failure.count)
                self._failures[subject, task] = Failure(task, *over, is_over=True)

    def failures_of(self, subject: Subject) -> tuple[Failure, ...]:
        """The last one of each task, oldest first."""
        with self._lock:
            found = [failure for (of, _), failure in self._failures.items() if of == subject]
        return tuple(sorted(found, key=lambda failure: failure.at_ms))
