"""Fixtures that many tests share."""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.effort import IS_LONG, scaled
from tests.golden.cases import GoldenCase, compaction_cases
from tests.spark import quick_jvm
from tests.stores import CountingServer, S3Server, counting_server, seaweed_server

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

# For all processes that tests start.
os.environ |= quick_jvm.variables()

# A busy machine makes no example slow for a reason worth failing for. `make test` tries the same
# examples each time, so that only a change decides whether it passes; `make test-long` tries new
# ones.
settings.register_profile(
    "stratalog", deadline=None, derandomize=not IS_LONG, max_examples=scaled(50)
)
settings.load_profile("stratalog")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is made while tests are collected stays: there is no garbage to look for."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist, which reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Spread the tests over processes so that all processes end at about the same time.

    Tests on the shared Spark session run in one process, one after the other. So do programs that
    users are shown, and other tests that start JVMs: no more than three of them run at once.
    pytest-xdist starts with such groups, the one with the most tests first; slow tests follow, so
    that none of them is left over when the other processes have finished.
    """
    for item in items:
        if {"seaweed", "counting"} & {*getattr(item, "fixturenames", ())}:
            item.add_marker(pytest.mark.slow)  # each starts a server, or stops one
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif "seaweed" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("seaweed"))
        elif item.get_closest_marker("spark") is not None:
            is_shown = {"docs", "test_examples"} & {*item.path.parts, item.path.stem}
            item.add_marker(pytest.mark.xdist_group("examples" if is_shown else "processes"))
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """Ten thousand tests live as long as the process: its garbage collector need not look at them
    again and again."""
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # modules look for what was leaked when the interpreter exits


@pytest.fixture(scope="session")
def golden() -> Callable[[str], GoldenCase]:
    """A golden case by name: `golden("txn").partition_dir`. Read only."""

    def by_name(name: str) -> GoldenCase:
        case = GoldenCase(name)
        if not case.root.is_dir():
            raise LookupError(f"no golden case is called {name!r}")
        return case

    return by_name


@pytest.fixture(scope="session")
def compaction_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """An unpacked compaction case by name. Unpacked once per process, on first use. Read only."""
    root = tmp_path_factory.mktemp("compaction")
    cases = {case.name: case for case in compaction_cases()}
    unpacked: dict[str, Path] = {}

    def by_name(name: str) -> Path:
        if name not in unpacked:
            unpacked[name] = cases[name].unpack(root)
        return unpacked[name]

    return by_name


@pytest.fixture(scope="session")
def seaweed() -> Iterator[S3Server]:
    """A real S3 server, for all tests of a process."""
    with seaweed_server() as server:
        yield server


@pytest.fixture
def counting() -> Iterator[CountingServer]:
    """An S3 server in this process that counts requests."""
    with counting_server() as server:
        yield server


@pytest.fixture
def impatient() -> Iterator[None]:
    """Switch threads as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)
