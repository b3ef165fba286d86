"""A process that cleans a log killed with SIGKILL, over and over, on the same log.

After each kill a copy of the directory is opened and examined. A failure names its seed:
`STRATALOG_KILL_SEED=<seed>` runs that one alone.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from typing import TYPE_CHECKING

import pytest

from stratalog.log.reader import IsolationLevel
from stratalog.maintenance.cleaning.cleaner import Cleaner
from stratalog.maintenance.cleaning.plan import cleaner_log, plan_cleaning
from stratalog.maintenance.recovery import open_log
from stratalog.storage.disk import Disk
from tests.crash import cleaner_process
from tests.crash.cleaner_process import ABORTED, CONFIG, START_MS, value_at
from tests.crash.nursery import Nursery
from tests.effort import scaled
from tests.model.index_checks import check_indexes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog

KILLS_A_LOG = 15
SEED = os.environ.get("STRATALOG_KILL_SEED")
SEEDS = range(scaled(2)) if SEED is None else [int(SEED)]
EVENTS_MAX = 150


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    started = Nursery(cleaner_process.__file__)
    yield started
    started.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_no_live_key_is_lost(seed: int, nursery: Nursery, tmp_path: Path) -> None:
    rng = random.Random(seed)
    path = tmp_path / "t-0"
    newest: dict[bytes, int] = {}
    rounds = 0
    for run in range(KILLS_A_LOG):
        request: dict[str, object] = {"path": str(path), "seed": seed, "run": run}
        status, lines = nursery.kill_after(
            rng.choice([1, rng.randrange(EVENTS_MAX)]), rng.uniform(0, 0.02), request
        )
        for kind, _, rest in (line.partition(" ") for line in lines.splitlines()):
            assert kind != "X", rest.replace("\\n", "\n")
            rounds += kind == "R"
            if kind == "A":
                offset, key = rest.split()
                newest[key.encode()] = int(offset)
        assert status == signal.SIGKILL
        if path.exists():
            copy = shutil.copytree(path, tmp_path / f"copy-{run}" / "t-0")
            try:
                examine(copy, newest)
            except BaseException as error:
                error.add_note(f"STRATALOG_KILL_SEED={seed}, run {run}")
                raise
            shutil.rmtree(copy.parent)
    assert rounds > 0


def examine(path: Path, newest: dict[bytes, int]) -> None:
    with open_log(path, CONFIG, disk=Disk(), now_ms=lambda: START_MS) as log:
        check_records(log, newest)
        check_indexes(path)
        now_ms = START_MS + log.log_end_offset
        plan = plan_cleaning(cleaner_log(log, None), CONFIG, now_ms)
        if plan.is_selected:
            Cleaner(24 * 40).clean(log, plan)
        check_records(log, newest)


def check_records(log: PartitionLog, newest: dict[bytes, int]) -> None:
    """The last record of each key is the last that is known of, or a newer one."""
    found: dict[bytes, int] = {}
    for record in log.read(isolation=IsolationLevel.READ_COMMITTED):
        assert record.key is not None
        assert record.value != ABORTED
        assert record.value == value_at(record.offset)
        assert record.offset > found.get(record.key, -1)
        found[record.key] = record.offset
    for key, offset in newest.items():
        assert found.get(key, -1) >= offset or (key not in found and value_at(offset) is None)
