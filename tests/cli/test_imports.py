"""Commands on small data load nothing heavy; rich is loaded only on a terminal."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.golden.cases import GoldenCase

HEAVY = {"numpy", "pyarrow", "numba", "pyspark", "pandas", "rich", "asyncio"}
CODE = """
import sys
from stratalog.cli.main import app
app(sys.argv[1:], standalone_mode=False)
print(*{name.split(".")[0] for name in sys.modules}, file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        ["ls", "--all"],
        ["ls", "--all", "--json"],
        ["read"],
        ["read", "--json", "--isolation-level", "read_committed"],
        ["find", "--offset", "100"],
        ["explain", "--time", "1700000001000"],
    ],
    ids=" ".join,
)
def test_nothing_heavy_is_loaded(args: list[str]) -> None:
    command, *options = args
    partition = str(GoldenCase("txn").partition_dir)
    done = subprocess.run(
        [sys.executable, "-c", CODE, command, partition, *options],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert HEAVY & set(done.stderr.split()) == set()


@pytest.mark.slow
def test_advice_from_numbers_loads_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, "tune", "--rate", "1", "--message-bytes", "1k"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert HEAVY & set(done.stderr.split()) == set()
