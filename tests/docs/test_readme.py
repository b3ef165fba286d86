"""What the README shows has to run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\.venv/bin/stratalog (.+)$", README, re.MULTILINE)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stratalog", *shlex.split(command)],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 9


@pytest.mark.parametrize("code", blocks("python"))
def test_python_runs(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout


def test_the_map_names_what_is_there() -> None:
    tree = README[README.index("src/stratalog/\n") :]
    package = ROOT / "src" / "stratalog"
    for name in re.findall(r"^  (\w+(?:/|\.py)) ", tree, re.MULTILINE):
        assert (package / name).exists(), name
    there = {path.name for path in package.iterdir() if path.is_dir()} - {"__pycache__"}
    assert there == set(re.findall(r"^  (\w+)/ ", tree, re.MULTILINE))
