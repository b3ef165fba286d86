"""A minute of `make torture` in less than half of one: its rounds are shorter, so that there are as
many kills, faults and checks. Half of them have a seed that never changes, half another one.

In CI both are fixed, as are the examples of Hypothesis: new ones are for who runs tests by hand.
"""

from __future__ import annotations

import os
import random
import sys
from typing import TYPE_CHECKING

import pytest

from tests.effort import scaled
from tests.torture.run import torture

if TYPE_CHECKING:
    from pathlib import Path

SECONDS = float(os.environ.get("TORTURE_SECONDS", scaled(12)))
PACE = 2.5


@pytest.mark.slow
@pytest.mark.parametrize("is_fixed", [True, False], ids=["fixed", "random"])
def test_nothing_acknowledged_is_lost(tmp_path: Path, *, is_fixed: bool) -> None:
    seed = 1 if is_fixed else 2
    if not is_fixed and "CI" not in os.environ:
        seed = random.SystemRandom().randrange(1 << 32)
    torture(tmp_path / "run", seed, SECONDS, _say, pace=PACE)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
