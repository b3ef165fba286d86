from __future__ import annotations

import logging
import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from stratalog.broker.reactor import READABLE, Reactor

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    reactor = Reactor()
    yield reactor
    reactor.close()


def test_timers_are_called_in_order_and_cancelled_ones_are_not(reactor: Reactor) -> None:
    called: list[str] = []
    reactor.call_later(20, lambda: called.append("second"))
    reactor.call_later(1, lambda: called.append("first"))
    reactor.call_later(5, lambda: called.append("never")).cancel()
    reactor.call_later(30, reactor.stop)
    reactor.run()
    assert called == ["first", "second"]


def test_cancelled_timers_do_not_pile_up(reactor: Reactor) -> None:
    for _ in range(50_000):
        reactor.call_later(1_000_000, reactor.stop).cancel()
    assert len(reactor._timers) < 5_000


def test_other_threads_hand_over_calls(reactor: Reactor) -> None:
    called: list[int] = []

    def hand_over() -> None:
        for number in range(100):
            reactor.call_soon(partial(called.append, number))
        reactor.call_soon(reactor.stop)

    thread = threading.Thread(target=hand_over)
    thread.start()
    reactor.run()
    thread.join()
    assert called == list(range(100))


def _fail() -> None:
    raise ZeroDivisionError


def test_a_callback_that_fails_is_logged_and_the_others_go_on(
    reactor: Reactor, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[str] = []
    reactor.call_later(1, _fail)
    reactor.call_later(2, lambda: called.append("after"))
    reactor.call_later(10, reactor.stop)
    with caplog.at_level(logging.ERROR):
        reactor.run()
    assert called == ["after"]
    assert "ZeroDivisionError" in caplog.text


def test_files_are_watched_until_they_are_forgotten(reactor: Reactor) -> None:
    read, write = os.pipe()
    seen: list[bytes] = []

    def on_readable(_: int) -> None:
        seen.append(os.read(read, 1))
        if len(seen) == 2:
            reactor.forget(read)

    reactor.watch(read, READABLE, on_readable)
    os.write(write, b"abc")
    reactor.call_later(20, reactor.stop)
    started = time.monotonic()
    reactor.run()
    assert seen == [b"a", b"b"]
    assert time.monotonic() - started < 5
    os.close(read)
    os.close(write)
