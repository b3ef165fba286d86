"""Random lives of a log on a disk that forgets what was not synced, and reorders what it keeps.

A failure names its seed: `STRATALOG_CRASH_SEED=<seed>` runs that one alone, and
`STRATALOG_CRASH_RUNS=<n>` more or fewer of them.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from tests.effort import scaled
from tests.model.driven_log import PREALLOCATED, PRODUCER_IDS, SMALL, Draft
from tests.model.log_driver import LogDriver

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STEPS = 40
SEED = os.environ.get("STRATALOG_CRASH_SEED")
SEEDS = range(scaled(30)) if SEED is None else [int(SEED)]


class Life:
    """Operations drawn from a seed."""

    def __init__(self, root: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.driver = LogDriver(root, self.rng.choice([SMALL, SMALL, PREALLOCATED]))
        self.story: list[str] = []

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
        self.note("crash")
        self.driver.crash(self.rng)
        self.driver.check()
        self.driver.check_files()

    def step(self) -> None:
        rng, driver = self.rng, self.driver
        name = rng.choices(list(OPERATIONS), [weight for weight, _ in OPERATIONS.values()])[0]
        do = OPERATIONS[name][1]
        chance = rng.random()
        if chance < 0.12:
            calls = rng.randrange(12)
            self.note(f"{name} interrupted after {calls} calls")
            driver.interrupt(lambda: do(self), calls, rng)
        else:
            self.note(name)
            do(self)
        driver.check()
        if chance > 0.8:
            driver.check_files()

    def note(self, what: str) -> None:
        model = self.driver.model
        self.story.append(f"{model.log_start_offset}..{model.end}: {what}")

    def draft(self) -> Draft:
        rng = self.rng
        return Draft(
            producer_id=rng.choice([-1, *PRODUCER_IDS]),
            record_count=rng.randint(1, 4),
            value_bytes=rng.choice([0, 5, 60, 150]),
            is_transactional=rng.random() < 0.5,
            step_ms=rng.choice([7, 7, -500, 3000]),
        )

    def offset(self) -> int:
        model = self.driver.model
        return self.rng.randint(max(0, model.end - 30), model.end + 2)

    def load_again(self) -> None:
        if self.rng.random() < 0.5:
            self.driver.interrupt_loading(self.rng.randrange(20), self.rng)
        else:
            self.driver.crash(self.rng)


OPERATIONS: dict[str, tuple[int, Callable[[Life], None]]] = {
    "append": (12, lambda life: life.driver.append(life.draft())),
    "append_many": (2, lambda life: life.driver.append_many([life.draft() for _ in range(3)])),
    "follow": (
        2,
        lambda life: life.driver.append_as_follower(
            [life.draft(), life.draft()], life.rng.choice([0, 0, 5])
        ),
    ),
    "commit": (
        3,
        lambda life: life.driver.end_transaction(life.rng.choice(PRODUCER_IDS), commit=True),
    ),
    "abort": (
        3,
        lambda life: life.driver.end_transaction(life.rng.choice(PRODUCER_IDS), commit=False),
    ),
    "bump": (1, lambda life: life.driver.bump_epoch(life.rng.choice(PRODUCER_IDS))),
    "roll": (2, lambda life: life.driver.roll()),
    "flush": (4, lambda life: life.driver.flush()),
    "checkpoint": (3, lambda life: life.driver.checkpoint()),
    "truncate": (2, lambda life: life.driver.truncate_to(life.offset())),
    "start over": (1, lambda life: life.driver.start_over_at(life.offset())),
    "delete": (
        1,
        lambda life: life.driver.delete_records(min(life.offset(), life.driver.model.end)),
    ),
    "retain": (
        2,
        lambda life: life.driver.delete_oldest(life.rng.choice([0.3, 0.6, 1])),
    ),
    "remove": (1, lambda life: life.driver.remove_discarded()),
    "lead": (1, lambda life: life.driver.become_leader()),
    "reopen": (1, lambda life: life.driver.reopen_cleanly()),
    "crash": (3, lambda life: life.load_again()),
}


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_flushed_survives(seed: int, tmp_path: Path) -> None:
    life = Life(tmp_path, seed)
    try:
        life.run()
    except BaseException as error:
        error.add_note(f"STRATALOG_CRASH_SEED={seed}\n" + "\n".join(life.story))
        raise
