"""Periodic and delayed tasks: checkpoints, file removal, timeouts, lingering batches.

`run_pending` runs overdue tasks on the caller's thread; `start` runs them on a thread of its own.
A task that fails is logged, and runs again at its next time: nobody waits for its result.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

_NEVER_MS: Final = 1 << 52
"""Longer intervals are Kafka's way to disable a task."""


class _Entry(NamedTuple):
    at_ms: int
    number: int
    task: Task


class Task:
    """Something to run once or periodically."""

    def __init__(self, name: str, action: Callable[[], None], period_ms: int | None) -> None:
        self.name = name
        self.action = action
        self.period_ms = period_ms
        self.is_cancelled = False

    def cancel(self) -> None:
        """Do not run it again. A run in progress is not interrupted."""
        self.is_cancelled = True


class Schedule:
    """Tasks in the order of their times, by the given clock. Thread-safe."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._entries: list[_Entry] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_stopping = False

    def every(
        self, period_ms: int, name: str, action: Callable[[], None], *, delay_ms: int | None = None
    ) -> Task:
        """Run it every `period_ms`, first after `delay_ms` (None: after a period). A period of 0
        disables it."""
        task = Task(name, action, period_ms)
        if 0 < period_ms < _NEVER_MS:
            self._add(self._now_ms() + (period_ms if delay_ms is None else delay_ms), task)
        return task

    def after(self, delay_ms: int, name: str, action: Callable[[], None]) -> Task:
        """Run it once, after `delay_ms`."""
        task = Task(name, action, None)
        if delay_ms < _NEVER_MS:
            self._add(self._now_ms() + delay_ms, task)
        return task

    def _add(self, at_ms: int, task: Task) -> None:
        with self._changed:
            heapq.heappush(self._entries, _Entry(at_ms, next(self._numbers), task))
            if self._entries[0].task is task:
                self._changed.notify_all()

    def run_pending(self) -> int:
        """Run all overdue tasks. Returns how many there were."""
        count = 0
        now_ms = self._now_ms()
        while (task := self._take_overdue(now_ms)) is not None:
            self._run(task)
            count += 1
        return count

    def _take_overdue(self, now_ms: int) -> Task | None:
        with self._changed:
            while self._entries and self._entries[0].at_ms <= now_ms:
                task = heapq.heappop(self._entries).task
                if task.is_cancelled:
                    continue
                if task.period_ms is not None:
                    entry = _Entry(now_ms + task.period_ms, next(self._numbers), task)
                    heapq.heappush(self._entries, entry)
                return task
        return None

    def _run(self, task: Task) -> None:
        try:
            task.action()
        except Exception:  # the other tasks must still run on this thread
            _log.exception("%s failed", task.name)

    def start(self, name: str) -> None:
        """Run tasks on a daemon thread from now on."""
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        while True:
            self.run_pending()
            with self._changed:
                if self._is_stopping:
                    return
                if self._entries:
                    wait_ms = self._entries[0].at_ms - self._now_ms()
                    self._changed.wait(max(wait_ms, 0) / 1000)
                else:
                    self._changed.wait()

    def stop(self) -> None:
        """Start no other task. Returns when the running one, if any, has ended."""
        with self._changed:
            self._is_stopping = True
            self._entries.clear()
            self._changed.notify_all()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
