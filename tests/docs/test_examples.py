"""The examples run, and print what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import stratalog

ROOT = Path(__file__).resolve().parent.parent.parent


def run(name: str, *arguments: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / name), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.slow
def test_write_and_read(tmp_path: Path) -> None:
    lines = run("write_and_read.py", str(tmp_path / "data"))
    assert lines[0] == "alice's order is in partition 0 at offset 0"
    assert "  offset 0: b'alice' wants b'2 apples'" in lines
    assert [line for line in lines if line.endswith(" records")] == [
        "orders-0: 201 records",
        "orders-1: 500 records",
        "orders-2: 300 records",
    ]
    view = stratalog.open_dirs(tmp_path / "data")
    assert view.partition_numbers == {"orders": [0, 1, 2]}
    assert run("write_and_read.py") == lines


@pytest.mark.slow
def test_transactions() -> None:
    assert run("transactions.py") == [
        "after a transfer: {b'alice': 70, b'bob': 30}",
        "alice does not have that much; nothing has changed: {b'alice': 70, b'bob': 30}",
        "a producer that was replaced cannot write: {b'alice': 75, b'bob': 25}",
    ]


@pytest.mark.slow
def test_dataframes(tmp_path: Path) -> None:
    lines = run("dataframes.py", str(tmp_path))
    assert lines[:4] == [
        "DuckDB: 480 orders of apple, 1439 pieces",
        "DuckDB: 480 orders of melon, 1440 pieces",
        "DuckDB: 480 orders of pear, 1436 pieces",
        "polars: 60 orders at noon, most of them by customer-20",
    ]
    assert [line.rpartition(", offset ")[0] for line in lines[4:-1]] == [
        f"pandas: orders-{partition}" for partition in (0, 0, 1, 1, 2, 2)
    ]
    assert lines[-1] == "Parquet: 1440 rows in 3 files"


@pytest.mark.slow
def test_maintenance() -> None:
    lines = run("maintenance.py")
    records = [int(line.split()[1]) for line in lines if line.endswith(" MB")]
    assert records[:2] == [5000, 5000]
    assert 1250 <= records[2] < 5000  # six hours of a day, and what shares a segment with them
    assert 50 <= records[3] < 5000  # a record for each product, and the active segment
    assert lines[-1] == "  50 products, the last price of product-7: 4957"


@pytest.mark.slow
def test_tour() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "tour.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("$ stratalog ") == 10
