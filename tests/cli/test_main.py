"""The command itself, without a subcommand."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.cli.command import COMMAND, stratalog

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
CODE = """
import sys
from stratalog.cli.main import app
app(["--version"], standalone_mode=False)
print(*{name.split(".")[0] for name in sys.modules}, file=sys.stderr)
"""


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_the_version_is_that_of_the_package(flag: str) -> None:
    """And an interpreter of its own runs as those do that are forked (forking.py)."""
    version = tomllib.loads(PROJECT.read_text())["project"]["version"]
    started = subprocess.run([*COMMAND, flag], capture_output=True, check=True)
    assert (started.stdout, started.stderr) == (f"stratalog {version}\n".encode(), b"")
    assert stratalog(flag) == (started.stdout, "", 0)


@pytest.mark.slow
def test_the_version_counts_before_a_command_only() -> None:
    assert stratalog("--version", "read", "nowhere").status == 0
    done = stratalog("read", "--version")
    assert done.status == 2
    assert "No such option: --version" in done.stderr


def test_the_version_loads_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True, text=True)
    heavy = {"numpy", "pyarrow", "numba", "pyspark", "rich", "pydantic"}
    assert heavy & set(done.stderr.split()) == set()


@pytest.mark.slow
def test_an_invalid_choice_is_reported_without_the_type_of_an_exception() -> None:
    done = stratalog("ingest", "a.txt", "--to", "logs", "--codec", "zst")
    assert done.status == 2
    assert "Error: Invalid value for '--codec': 'zst' is not one of 'none', " in done.stderr


def test_help_mentions_the_version() -> None:
    done = stratalog("--help")
    assert done.status == 0
    assert "-V, --version" in done.stdout.decode()
