"""A writer killed with SIGKILL, over and over, on the same log.

Each writer has to recover what the one before left behind, and may be killed while it does. After
each kill a copy of the directory is opened and examined. A failure names its seed:
`STRATALOG_KILL_SEED=<seed>` runs that one alone.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from stratalog.format.producer_snapshot import decode_snapshot
from stratalog.log.aborted_transactions import replay_producers
from stratalog.log.partition_view import PartitionView
from stratalog.maintenance.recovery import LoadPoint, open_log
from stratalog.storage.disk import Disk
from tests.crash import writer_process
from tests.crash.nursery import Nursery
from tests.crash.writer_process import CONFIG, record_at
from tests.effort import scaled
from tests.golden.replaying import known
from tests.log.building import batches_of
from tests.model.index_checks import check_indexes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog

KILLS_A_LOG = 20
SEED = os.environ.get("STRATALOG_KILL_SEED")
SEEDS = range(scaled(3)) if SEED is None else [int(SEED)]
EVENTS_MAX = 80
NOW_MS = writer_process.START_MS


@dataclass
class Reported:
    """What the writers have told, all in all."""

    appended: int = 0
    flushed: int = 0
    is_closed: bool = False
    errors: list[str] = field(default_factory=list)

    def take(self, lines: str) -> None:
        for line in lines.splitlines():
            kind, _, rest = line.partition(" ")
            if kind == "A":
                self.appended = int(rest)
            elif kind == "O":
                self.is_closed = False
            elif kind in {"F", "C"}:
                self.flushed, self.is_closed = int(rest), kind == "C"
            elif kind == "X":
                self.errors.append(rest.replace("\\n", "\n"))

    @property
    def point(self) -> LoadPoint:
        return LoadPoint(0, self.flushed, self.is_closed)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    started = Nursery(writer_process.__file__)
    yield started
    started.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_acknowledged_is_lost(seed: int, nursery: Nursery, tmp_path: Path) -> None:
    rng = random.Random(seed)
    path = tmp_path / "t-0"
    reported = Reported()
    for run in range(KILLS_A_LOG):
        try:
            request: dict[str, object] = {
                "path": str(path),
                "seed": seed,
                "run": run,
                "point": list(reported.point),
            }
            events = rng.choice([0, 1, rng.randrange(EVENTS_MAX)])  # 1: it is about to open
            status, lines = nursery.kill_after(events, rng.uniform(0, 0.004), request)
            reported.take(lines)
            assert not reported.errors, reported.errors[0]
            assert status == signal.SIGKILL
            if path.exists():
                copy = shutil.copytree(path, tmp_path / f"copy-{run}" / "t-0")
                examine(copy, seed, reported, rng)
                shutil.rmtree(copy.parent)
        except BaseException as error:
            error.add_note(f"STRATALOG_KILL_SEED={seed}, run {run}: {reported}")
            raise
    assert reported.flushed > 0


def examine(path: Path, seed: int, reported: Reported, rng: random.Random) -> None:
    """What another process finds after the kill."""
    point = reported.point
    if not point.was_clean and rng.random() < 0.3:
        point = LoadPoint()  # the checkpoint may lag behind as far as it likes
    with open_log(path, CONFIG, disk=Disk(), now_ms=lambda: NOW_MS, point=point) as log:
        assert log.log_end_offset >= max(reported.appended, reported.flushed)
        check_content(path, log, seed)
        check_indexes(path)
        check_producers(path, log)
    check_indexes(path, is_closed=True)


def check_content(path: Path, log: PartitionLog, seed: int) -> None:
    """Whole batches without a hole between them, each with the records that belong there."""
    due = 0
    for file in sorted(path.glob("*.log")):
        assert int(file.stem) == due
        for batch in batches_of(file.read_bytes()):
            assert batch.first_offset == due
            due = batch.next_offset
    assert due == log.log_end_offset
    for record in log.read():
        assert record == record_at(seed, record.offset)


def check_producers(path: Path, log: PartitionLog) -> None:
    """As all batches tell it, without any snapshot."""
    with PartitionView(path, log_start_offset=0) as view:
        replay = replay_producers(view.segments, (), log.log_end_offset)
    assert known(log.producers) == frozenset(replay.producers.values())
    first_open = replay.first_open_offset
    assert log.last_stable_offset == (log.log_end_offset if first_open is None else first_open)
    assert log.aborted_transactions() == replay.aborted
    for snapshot in sorted(path.glob("*.snapshot"))[-3:]:
        with PartitionView(path, log_start_offset=0) as view:
            state = replay_producers(view.segments, (), int(snapshot.stem))
        assert frozenset(decode_snapshot(snapshot.read_bytes())) == frozenset(
            state.producers.values()
        )
