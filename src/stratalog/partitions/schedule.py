"""What has to be done from time to time: checkpoints, removals, timeouts, lingering batches.

`Schedule` knows what is due; `run_due` does it on the caller's thread, and `start` has a thread of
its own do so as the clock goes on. A task that fails is logged and tried again when it is due next:
nobody waits for its result.
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
"""Intervals from here on are Kafka's way of switching a task off."""


class _Entry(NamedTuple):
    due_ms: int
    number: int
    task: Task


class Task:
    """Something that is done once or again and again."""

    def __init__(self, name: str, action: Callable[[], None], period_ms: int | None) -> None:
        self.name = name
        self.action = action
        self.period_ms = period_ms
        self.is_cancelled = False

    def cancel(self) -> None:
        """Do it no more. If it is being done right now, that is not interrupted."""
        self.is_cancelled = True


class Schedule:
    """Tasks in the order in which they are due, by the clock that is given."""

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
        """Do it each `period_ms`, first after `delay_ms` (a period if None). No period: never."""
        task = Task(name, action, period_ms)
        if 0 < period_ms < _NEVER_MS:
            self._add(self._now_ms() + (period_ms if delay_ms is None else delay_ms), task)
        return task

    def after(self, delay_ms: int, name: str, action: Callable[[], None]) -> Task:
        """Do it once."""
        task = Task(name, action, None)
        if delay_ms < _NEVER_MS:
            self._add(self._now_ms() + delay_ms, task)
        return task

    def _add(self, due_ms: int, task: Task) -> None:
        with self._changed:
            heapq.heappush(self._entries, _Entry(due_ms, next(self._numbers), task))
            if self._entries[0].task is task:
                self._changed.notify_all()

    def run_due(self) -> int:
        """Do everything that is due by now; how many tasks that were."""
        count = 0
        now_ms = self._now_ms()
        while (task := self._take_due(now_ms)) is not None:
            self._run(task)
            count += 1
        return count

    def _take_due(self, now_ms: int) -> Task | None:
        with self._changed:
            while self._entries and self._entries[0].due_ms <= now_ms:
                task = heapq.heappop(self._entries).task
                if task.is_cancelled:
                    continue
                if task.period_ms is not None:
                    due_ms = now_ms + task.period_ms
                    heapq.heappush(self._entries, _Entry(due_ms, next(self._numbers), task))
                return task
        return None

    def _run(self, task: Task) -> None:
        try:
            task.action()
        except Exception:
            # Whatever it is, the other tasks still have to be done, on this thread.
            _log.exception("%s failed", task.name)

    def start(self, name: str) -> None:
        """Do tasks on a thread of its own from now on. The thread does not keep a program alive."""
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    def _loop(self) -> None:
        while True:
            self.run_due()
            with self._changed:
                if self._is_stopping:
                    return
                if self._entries:
                    wait_ms = self._entries[0].due_ms - self._now_ms()
                    self._changed.wait(max(wait_ms, 0) / 1000)
                else:
                    self._changed.wait()

    def stop(self) -> None:
        """Begin no other task. Returns when the one that is being done, if any, is done."""
        with self._changed:
            self._is_stopping = True
            self._entries.clear()
            self._changed.notify_all()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
