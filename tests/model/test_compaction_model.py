"""Hypothesis writes a compacted log, and cleans it now and then: no last value is ever lost.

`STRATALOG_MODEL_EXAMPLES=<n>` tries more or fewer lives.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stratalog.format.batch import Codec
from tests.effort import scaled
from tests.model.compaction_life import (
    CONFIG,
    EXPIRATION_MS,
    NO_PRODUCER,
    Advance,
    Bump,
    Clean,
    CompactionLife,
    DeleteRecords,
    End,
    Rebuild,
    Reopen,
    Roll,
    Step,
    Write,
    new_cleaners,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.config import LogConfig
    from stratalog.maintenance.cleaning.cleaner import Cleaner

PRODUCERS = (11, 12, 13)
CONFIGS = (
    CONFIG,
    replace(CONFIG, segment_bytes=5000),
    replace(CONFIG, delete_retention_ms=0),
    replace(CONFIG, min_compaction_lag_ms=500),
)

keys = st.integers(0, 11)
values = st.one_of(st.integers(0, 99), st.integers(0, 99), st.none())
writes = st.builds(
    Write,
    producer=st.sampled_from([NO_PRODUCER, NO_PRODUCER, *PRODUCERS]),
    records=st.lists(st.tuples(keys, values), min_size=1, max_size=5).map(tuple),
    codec=st.sampled_from([Codec.NONE, Codec.NONE, *Codec]),
    is_transactional=st.booleans(),
    step_ms=st.sampled_from([1, 0, 40, -30]),
)
steps = st.one_of(
    writes,
    writes,
    writes,
    st.builds(End, st.sampled_from(PRODUCERS), st.booleans()),
    st.builds(Bump, st.sampled_from(PRODUCERS)),
    st.builds(Advance, st.sampled_from([1, 500, 1000, 2000, EXPIRATION_MS])),
    st.builds(Roll),
    st.builds(Reopen),
    st.builds(Rebuild),
    st.builds(DeleteRecords, st.floats(0, 0.6)),
    st.builds(Clean, st.sampled_from(["small", "large"])),
)


@pytest.fixture(scope="module")
def cleaners() -> dict[str, Cleaner]:
    return new_cleaners()


def live(steps: Sequence[Step], config: LogConfig, cleaners: dict[str, Cleaner]) -> int:
    with tempfile.TemporaryDirectory(prefix="stratalog-model-") as root:
        life = CompactionLife(Path(root), cleaners, config)
        life.run(steps)
        return life.rounds


@settings(
    max_examples=scaled(30),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(steps=st.lists(steps, max_size=40), config=st.sampled_from(CONFIGS))
def test_short_lives(steps: list[Step], config: LogConfig, cleaners: dict[str, Cleaner]) -> None:
    live(steps, config, cleaners)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(scaled(3)))
def test_long_lives(seed: int, cleaners: dict[str, Cleaner]) -> None:
    """Hundreds of steps: markers and tombstones through all of their ages."""
    rng = random.Random(seed)
    made = [_step(rng) for _ in range(300)]
    assert live(made, CONFIGS[seed % len(CONFIGS)], cleaners) >= 4


def _step(rng: random.Random) -> Step:
    if rng.random() < 0.6:
        records = tuple(
            (rng.randrange(12), None if rng.random() < 0.3 else rng.randrange(100))
            for _ in range(rng.randint(1, 5))
        )
        producer = rng.choice([NO_PRODUCER, *PRODUCERS])
        codec = rng.choice([Codec.NONE, Codec.NONE, *Codec])
        return Write(producer, records, codec, rng.random() < 0.5, rng.choice([1, 0, 40]))
    others: list[Step] = [
        End(rng.choice(PRODUCERS), rng.random() < 0.5),
        End(rng.choice(PRODUCERS), rng.random() < 0.5),
        Bump(rng.choice(PRODUCERS)),
        Advance(rng.choice([1, 500, 1000, 2000, EXPIRATION_MS])),
        Roll(),
        Reopen(),
        Rebuild(),
        DeleteRecords(rng.random() * 0.1),
        Clean("small"),
        Clean("large"),
    ]
    return rng.choice(others)
