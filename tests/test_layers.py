"""The layers that import-linter keeps, and what it cannot see.

`lint-imports` checks the graph of imports. These tests check that its contracts cover the code
there is, and that heavy packages are only loaded by those who need them.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "stratalog"
SANS_IO = ("format", "wire")
HEAVY = {"numba", "pyarrow", "pyspark", "pandas"}


def _contract(name: str) -> dict[str, Any]:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    by_id = {contract["id"]: contract for contract in config["tool"]["importlinter"]["contracts"]}
    found: dict[str, Any] = by_id[name]
    return found


def test_every_package_without_io_is_under_contract() -> None:
    present = {f"stratalog.{name}" for name in SANS_IO if (PACKAGE / name).is_dir()}
    assert set(_contract("sans-io")["source_modules"]) == present


def test_format_is_loaded_without_heavy_packages() -> None:
    names = ["stratalog.format.batch", "stratalog.format.record"]
    assert _loaded_by(names) & HEAVY == set()


def test_command_line_starts_without_heavy_packages() -> None:
    assert _loaded_by(["stratalog.cli.main"]) & HEAVY == set()


def test_no_two_classes_have_the_same_name() -> None:
    """A name that means two things makes every search and every traceback ambiguous."""
    names = Counter(
        name
        for path in PACKAGE.rglob("*.py")
        for name in re.findall(
            r"^ *class (\w+)[(:]", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    assert names["LogDir"] == 1
    assert [name for name, count in names.items() if count > 1] == []


def _loaded_by(modules: list[str]) -> set[str]:
    """Top-level packages in memory after importing `modules` in a fresh interpreter."""
    code = (
        f"import sys, {', '.join(modules)}; print(*{{name.split('.')[0] for name in sys.modules}})"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    )
    return set(answer.stdout.split())
