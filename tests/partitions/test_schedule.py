from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from stratalog.partitions.schedule import Schedule
from tests.opening import Clock

if TYPE_CHECKING:
    import pytest


def test_periods_and_delays() -> None:
    clock = Clock(0)
    schedule = Schedule(clock)
    done: list[tuple[int, str]] = []
    schedule.every(10, "ten", lambda: done.append((clock(), "ten")))
    schedule.every(10, "later", lambda: done.append((clock(), "later")), delay_ms=15)
    schedule.after(12, "once", lambda: done.append((clock(), "once")))
    for _ in range(40):
        schedule.run_pending()
        clock.advance(1)
    assert done == [
        (10, "ten"),
        (12, "once"),
        (15, "later"),
        (20, "ten"),
        (25, "later"),
        (30, "ten"),
        (35, "later"),
    ]


def test_what_was_missed_is_done_once() -> None:
    clock = Clock(0)
    schedule = Schedule(clock)
    done: list[int] = []
    schedule.every(10, "task", lambda: done.append(clock()))
    clock.advance(95)
    assert schedule.run_pending() == 1
    clock.advance(9)
    assert schedule.run_pending() == 0
    clock.advance(1)
    assert schedule.run_pending() == 1
    assert done == [95, 105]


def test_intervals_that_mean_never() -> None:
    clock = Clock(0)
    schedule = Schedule(clock)
    for period_ms in ((1 << 63) - 1, 0, -1):
        schedule.every(period_ms, "never", lambda: 1 / 0)  # type: ignore[arg-type]
    clock.advance(1 << 60)
    assert schedule.run_pending() == 0


def test_a_cancelled_task_is_not_done() -> None:
    clock = Clock(0)
    schedule = Schedule(clock)
    done: list[str] = []
    task = schedule.every(10, "task", lambda: done.append("x"))
    clock.advance(10)
    schedule.run_pending()
    task.cancel()
    clock.advance(10)
    schedule.run_pending()
    assert done == ["x"]


def test_a_failure_is_logged_and_the_rest_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock(0)
    schedule = Schedule(clock)
    done: list[str] = []

    def fail() -> None:
        raise OSError("no disk")

    schedule.every(10, "the one that fails", fail)
    schedule.every(10, "other", lambda: done.append("x"))
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            clock.advance(10)
            schedule.run_pending()
    assert done == ["x", "x"]
    assert [record.message for record in caplog.records] == ["the one that fails failed"] * 2


def test_a_thread_keeps_time() -> None:
    schedule = Schedule(lambda: time.monotonic_ns() // 1_000_000)
    done = threading.Event()
    schedule.start("test-schedule")
    schedule.after(60_000, "much later", lambda: None)
    schedule.after(5, "soon", done.set)  # wakes the thread, which waits for the other
    assert done.wait(60)
    schedule.stop()
    assert "test-schedule" not in [thread.name for thread in threading.enumerate()]


def test_stopping_waits_for_the_task_at_work() -> None:
    schedule = Schedule(lambda: time.monotonic_ns() // 1_000_000)
    started, finished = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        time.sleep(0.05)
        finished.set()

    schedule.start("test-schedule")
    schedule.after(0, "work", work)
    assert started.wait(60)
    schedule.stop()
    assert finished.is_set()
