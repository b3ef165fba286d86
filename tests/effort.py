"""How much the tests try beyond the cases that are written down: seeds, kills and examples.

`make test` tries each of them once; `make test-long` sets `STRATALOG_TEST_EFFORT` and tries many
times as many.
"""

from __future__ import annotations

import os

EFFORT = int(os.environ.get("STRATALOG_TEST_EFFORT", "1"))
IS_LONG = EFFORT > 1


def scaled(count: int) -> int:
    """A number of seeds, kills or examples, by the effort of this run."""
    return count * EFFORT
