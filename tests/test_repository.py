"""Rules about the repository as a whole that no linter knows."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

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


def _constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def _requirements() -> list[Requirement]:
    project = PROJECT["project"]
    extras = project["optional-dependencies"].values()
    lists = [PROJECT["build-system"]["requires"], project["dependencies"], *extras]
    return [Requirement(text) for requirements in lists for text in requirements]


def test_every_dependency_is_pinned_in_the_constraints_and_fits_its_range() -> None:
    constraints = _constraints()
    for requirement in _requirements():
        assert requirement.specifier.contains(constraints[requirement.name]), requirement


def test_dependencies_are_ranges_so_that_others_can_be_installed_beside() -> None:
    project = PROJECT["project"]
    for text in (*project["dependencies"], *project["optional-dependencies"]["spark"]):
        operators = {specifier.operator for specifier in Requirement(text).specifier}
        assert ">=" in operators, text
        assert operators <= {">=", "<"}, text


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
