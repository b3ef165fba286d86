"""The event loop of the broker: one thread that waits for sockets and timers, and runs callbacks.

All state of the broker is touched by this thread only, so nothing in it needs a lock. Another
thread hands over work with `call_soon`. If a callback raises, the error is logged and the others
still run.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import os
import select
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)

READABLE: Final = select.EPOLLIN
WRITABLE: Final = select.EPOLLOUT
GONE: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
"""The other side has closed the connection, or the network has."""

OnEvents: TypeAlias = "Callable[[int], None]"

_CANCELLED_MIN: Final = 1000
_EVENTS_MAX: Final = 256


class Timer:
    """A call that is due later. Compared by time only."""

    __slots__ = ("_reactor", "call", "due_ms")

    def __init__(self, reactor: Reactor, due_ms: float, call: Callable[[], None]) -> None:
        self._reactor = reactor
        self.due_ms = due_ms
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Do not call. Does nothing once it was called."""
        if self.call is not None:
            self.call = None
            self._reactor.note_cancelled()


class Reactor:
    """Waits with epoll. `run` returns after `stop`."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._callbacks: dict[int, OnEvents] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._cancelled = 0
        self._soon: deque[Callable[[], None]] = deque()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.watch(self._wake_read, READABLE, self._drain_wake_ups)
        self._is_stopping = False
        self._thread: int | None = None

    # -- sockets

    def watch(self, fd: int, events: int, on_events: OnEvents) -> None:
        """Call `on_events` with what happened whenever one of `events` does."""
        self._poll.register(fd, events)
        self._callbacks[fd] = on_events

    def change(self, fd: int, events: int) -> None:
        """Wait for other events of a watched file."""
        self._poll.modify(fd, events)

    def forget(self, fd: int) -> None:
        """Stop watching; before the file is closed."""
        if self._callbacks.pop(fd, None) is not None:
            self._poll.unregister(fd)

    # -- time

    @staticmethod
    def now_ms() -> float:
        """A clock that never goes back; it has nothing to do with the time of day."""
        return time.monotonic_ns() / 1e6

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> Timer:
        """Call once, after `delay_ms`. Only from the reactor's thread, or before it runs."""
        timer = Timer(self, self.now_ms() + delay_ms, call)
        heapq.heappush(self._timers, (timer.due_ms, next(self._order), timer))
        return timer

    def note_cancelled(self) -> None:
        """Cancelled timers leave the heap when they are due, or when they are most of it."""
        self._cancelled += 1
        if self._cancelled > _CANCELLED_MIN and self._cancelled * 2 > len(self._timers):
            self._timers = [entry for entry in self._timers if entry[2].call is not None]
            heapq.heapify(self._timers)
            self._cancelled = 0

    # -- other threads

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call from the reactor's thread, as soon as it is free. Safe from any thread."""
        self._soon.append(call)
        if threading.get_ident() != self._thread:
            self._wake()

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller is in the reactor's thread."""
        return threading.get_ident() == self._thread

    def stop(self) -> None:
        """Let `run` return. Safe from any thread and from a signal handler."""
        self._is_stopping = True
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # the pipe is full: it wakes up anyway; or the reactor is closed
            os.write(self._wake_write, b"\0")

    def _drain_wake_ups(self, _: int) -> None:
        os.read(self._wake_read, 4096)

    # -- running

    def run(self) -> None:
        """Wait and call, until `stop`."""
        self._thread = threading.get_ident()
        try:
            while not self._is_stopping:
                self._run_once()
        finally:
            self._thread = None

    def close(self) -> None:
        """Release the files. The reactor can no longer be used."""
        self._poll.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run_once(self) -> None:
        for fd, events in self._poll.poll(self._wait_s(), _EVENTS_MAX):
            on_events = self._callbacks.get(fd)
            if on_events is not None:  # an earlier callback may have closed it
                self._guarded(on_events, events)
        for _ in range(len(self._soon)):
            self._guarded(self._soon.popleft())
        self._call_due()

    def _wait_s(self) -> float:
        if self._soon:
            return 0
        if not self._timers:
            return -1
        # epoll waits whole milliseconds; a fraction too early would spin until the timer is due.
        return max(0.0, (self._timers[0][0] - self.now_ms() + 1) / 1000)

    def _call_due(self) -> None:
        if not self._timers or self._timers[0][0] > (now_ms := self.now_ms()):
            return
        while self._timers and self._timers[0][0] <= now_ms:
            timer = heapq.heappop(self._timers)[2]
            call, timer.call = timer.call, None
            if call is None:
                self._cancelled -= 1
            else:
                self._guarded(call)

    @staticmethod
    def _guarded(call: Callable[..., None], *args: int) -> None:
        try:
            call(*args)
        except Exception:
            _log.exception("a callback of the broker failed")
