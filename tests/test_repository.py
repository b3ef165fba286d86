"""Rules about the repository as a whole that no linter knows."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FILE_BYTES_MAX = 1_000_000
PACKAGE_BYTES_MAX = 15_000_000


def _tracked_files() -> list[Path]:
    try:
        listing = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    names = listing.stdout.decode().split("\0")
    return [path for name in names if name and (path := ROOT / name).is_file()]


def _pins(requirements: list[str]) -> dict[str, str]:
    """Name to version; anything not pinned exactly is an error."""
    return dict(requirement.split("==") for requirement in requirements)


def test_direct_dependencies_are_pinned_and_the_constraints_agree() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    constraints = _pins([line for line in lines if not line.startswith("#")])
    direct = _pins(PROJECT["project"]["dependencies"])
    for extra in PROJECT["project"]["optional-dependencies"].values():
        direct |= _pins(extra)
    assert direct.items() <= constraints.items()


def test_constraints_are_sorted_and_name_each_package_once() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()[1:]
    names = [line.split("==")[0] for line in lines]
    assert names == sorted(set(names))


def test_no_file_is_too_large() -> None:
    sizes = {path: path.stat().st_size for path in _tracked_files()}
    assert [path for path, size in sizes.items() if size > FILE_BYTES_MAX] == []
    assert sum(sizes.values()) < PACKAGE_BYTES_MAX


def test_text_files_end_with_one_newline() -> None:
    golden = ROOT / "tests" / "golden"
    suffixes = {".py", ".md", ".toml", ".txt", ".yaml"}
    for path in _tracked_files():
        if path.suffix in suffixes and golden not in path.parents and path.stat().st_size:
            assert re.search(r"[^\n]\n\Z", path.read_bytes().decode()), path


def test_scripts_are_executable() -> None:
    for path in _tracked_files():
        with path.open("rb") as file:
            if file.read(2) == b"#!":
                assert path.stat().st_mode & 0o111, path


def test_no_module_is_a_drawer_for_everything() -> None:
    drawers = {"utils.py", "util.py", "helpers.py", "common.py", "misc.py"}
    assert [path for path in (ROOT / "src").rglob("*.py") if path.name in drawers] == []
