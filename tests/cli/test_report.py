"""`stratalog report` as its users run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import typer

from stratalog.errors import NotALogDirError
from tests.cli.command import inside
from tests.golden.cases import GOLDEN_DIR

if TYPE_CHECKING:
    from pathlib import Path

NOW = ("--now", "2026-11-17T15:00")


@pytest.mark.slow
def test_a_page_is_written(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = inside("report", GOLDEN_DIR / "txn", "-o", page, *NOW)
    assert result.lines[0].startswith(f"{page}: ")
    assert result.lines[0].endswith("KiB, 1 partition")
    text = page.read_text(encoding="utf-8")
    assert "overdue" in text  # a transaction that has been open since 2023
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.slow
def test_corruption_is_reported_and_does_not_stop_it(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = inside("report", GOLDEN_DIR / "u-badcrc" / "before", "-o", page, *NOW, "--json")
    (row,) = result.rows
    assert (row["kind"], row["partitions"], row["pageBytes"]) == (
        "summary", 1, page.stat().st_size
    )  # fmt: skip
    assert "CRC mismatch" in row["problems"][0]
    assert "CRC mismatch" in result.stderr
    assert "bad-batch" in page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_page_is_replaced_whole(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text("old")
    inside("report", GOLDEN_DIR / "empty", "-o", page, "--quick", *NOW)
    assert page.read_text(encoding="utf-8").endswith("</html>\n")


def test_where_it_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="is a directory"):
        inside("report", GOLDEN_DIR / "txn", "-o", tmp_path)
    with pytest.raises(typer.BadParameter, match="does not exist"):
        inside("report", GOLDEN_DIR / "txn", "-o", tmp_path / "no" / "report.html")


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotALogDirError):
        inside("report", tmp_path / "nowhere", "-o", tmp_path / "report.html")
