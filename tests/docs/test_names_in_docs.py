"""Modules and files that documents name exist."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING

import pytest

from scripts.transcripts import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PACKAGE = ROOT / "src" / "stratalog"
BASES = (ROOT, ROOT / "src", PACKAGE, PACKAGE / "maintenance")
SOURCE_WORDS = {
    word for path in PACKAGE.rglob("*.py") for word in re.findall(r"\w+", path.read_text("utf-8"))
}
FOREIGN_CLASSES = {"ArrowColumnVector", "PushedFilters", "UnsafeRow"}  # Spark's


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    files = re.findall(r"`((?:\w+/)+\w+\.py)`", text)
    modules = re.findall(r"(?:`|import |from )(stratalog(?:\.\w+)+)", text)
    missing = {path for path in files if not any((base / path).exists() for base in BASES)}
    assert missing | {name for name in modules if not _exists(name)} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_classes_exist(page: Path) -> None:
    spans = " ".join(re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")))
    named = set(re.findall(r"\b(?:[A-Z][a-z]+){2,}\b", spans))
    assert named - SOURCE_WORDS - FOREIGN_CLASSES == set()


def test_architecture_describes_every_package() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `(\w+)(?:\.py)?` \|", text, re.MULTILINE))
    drawn = set(re.findall(r"<b>(\w+)(?:\.py)?</b>", text))
    there = {path.stem for path in PACKAGE.iterdir() if not path.name.startswith("_")}
    assert rows == drawn == there - {"py"}


def test_every_decision_is_in_the_list() -> None:
    directory = ROOT / "docs" / "decisions"
    rows = [
        f"| [{path.name[:4]}]({path.name}) | {title.removeprefix(f'# {path.name[:4]}: ')} |"
        for path in sorted(directory.glob("0*.md"))
        for title in path.read_text(encoding="utf-8").splitlines()[:1]
    ]
    listed = (directory / "README.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in listed if line.startswith("| [")] == rows


def _exists(name: str) -> bool:
    """A module, or an attribute of one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[length:]:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False
