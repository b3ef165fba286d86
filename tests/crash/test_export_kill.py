"""Incremental exports killed with SIGKILL at every step: no record is lost, none is there twice."""

from __future__ import annotations

import os
import shutil
import signal
from typing import TYPE_CHECKING

import pytest

from stratalog import LogDir
from tests.bulk.test_incremental_export import expected, exported, run
from tests.crash import exporter_process
from tests.crash.exporter_process import SPECS
from tests.crash.nursery import Nursery

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STEPS_MAX = 200
STRIDES = {"jsonl": 1, "parquet": 5, "text": 5}
"""The steps are those of every format, so only one of them is killed at each."""
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    started = Nursery(exporter_process.__file__)
    yield started
    started.close()


def append(path: Path, start: int, count: int) -> None:
    """Records of two days, in two partitions."""
    with LogDir.open(path) as logs:
        if "t" not in logs.topics:
            logs.create_topic("t", 2)
        for number in range(start, start + count):
            at = number % 4 // 2 * DAY_MS
            logs.append("t", b"%d" % number, partition=number % 2, timestamp=at)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECS)
def test_a_killed_export_neither_loses_nor_repeats(
    name: str, nursery: Nursery, tmp_path: Path
) -> None:
    logs, first = tmp_path / "logs", tmp_path / "first"
    append(logs, 0, 12)
    run(logs, first, SPECS[name])
    append(logs, 12, 12)
    older = expected(("t", 0, 0, 6), ("t", 1, 0, 6))
    everything = expected(("t", 0, 0, 12), ("t", 1, 0, 12))
    survived = False
    for step in range(0, STEPS_MAX, STRIDES[name]):
        target = shutil.copytree(first, tmp_path / f"out-{step}")
        request = {"logs": str(logs), "target": str(target), "format": name, "step": step}
        status, lines = nursery.run(request)
        assert not lines, lines
        found = exported(target)
        assert len(found) == len(set(found))  # readers never see a record twice
        assert set(older) <= set(found) <= set(everything)
        assert run(logs, target, SPECS[name]).lost == ()
        assert exported(target) == everything, step
        if step % 5 == 0:
            assert run(logs, target, SPECS[name]).records == 0
        assert not list(target.glob("_stratalog-*"))
        shutil.rmtree(target)
        if os.WIFEXITED(status):
            survived = os.WEXITSTATUS(status) == 0
            break
        assert os.WTERMSIG(status) == signal.SIGKILL
    assert survived
    assert step > 20


@pytest.mark.slow
def test_killed_again_while_the_next_one_finishes(nursery: Nursery, tmp_path: Path) -> None:
    """The second run is killed, too, wherever the first one was."""
    logs = tmp_path / "logs"
    append(logs, 0, 12)
    everything = expected(("t", 0, 0, 6), ("t", 1, 0, 6))
    for first in range(4, STEPS_MAX, 6):
        target = tmp_path / f"out-{first}"
        request = {"logs": str(logs), "target": str(target), "format": "jsonl"}
        status, _ = nursery.run({**request, "step": first})
        for second in range(3, 40, 12):
            nursery.run({**request, "step": second})
            found = exported(target)
            assert len(found) == len(set(found))
        run(logs, target, SPECS["jsonl"])
        assert exported(target) == everything
        if os.WIFEXITED(status):
            return
    raise AssertionError("every run was killed")
