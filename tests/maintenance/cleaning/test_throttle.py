from __future__ import annotations

import pytest

from stratalog.maintenance.cleaning.plan import Throttle


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def test_reading_keeps_to_the_rate() -> None:
    time = Time()
    throttle = Throttle(1000, clock=time, sleep=time.sleep)
    for _ in range(10):
        throttle.pay(500, lambda: True)
    assert time.now == pytest.approx(105)


def test_idle_time_is_not_saved_up() -> None:
    time = Time()
    throttle = Throttle(1000, clock=time, sleep=time.sleep)
    time.now += 60
    throttle.pay(2000, lambda: True)
    assert time.now == pytest.approx(162)


def test_no_limit_never_waits() -> None:
    time = Time()
    Throttle(clock=time, sleep=time.sleep).pay(1 << 60, lambda: True)
    Throttle(1.7976931348623157e308, clock=time, sleep=time.sleep).pay(1 << 60, lambda: True)
    assert time.now == 100


def test_waiting_ends_when_told_to_stop() -> None:
    time = Time()
    throttle = Throttle(1, clock=time, sleep=time.sleep)
    throttle.pay(1000, lambda: time.now < 103)
    assert time.now == pytest.approx(103, abs=0.2)
