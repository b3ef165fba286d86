"""Every byte of a segment's files turned over, one at a time; and files of junk."""

from __future__ import annotations

import dataclasses
import random
from typing import TYPE_CHECKING

import pytest

from stratalog.maintenance.verify.directory import VerifyPlan, run_plan, verify_directory
from stratalog.maintenance.verify.findings import Severity
from stratalog.maintenance.verify.partition import plan_partition
from stratalog.maintenance.verify.segment import verify_segment
from tests.golden.cases import GOLDEN_DIR, GoldenCase
from tests.log.building import copy_partition

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.maintenance.verify.segment import VerifyTask

SEGMENT = "00000000000000000011"
NEXT_SNAPSHOT = "00000000000000000039.snapshot"


@pytest.fixture
def task(tmp_path: Path) -> VerifyTask:
    """A segment with transactions of two producers, three of them aborted. Whatever file is there
    is verified: a file that changes between listing and reading counts as another one."""
    (source,) = (GOLDEN_DIR / "txn").glob("*-0")
    plan = plan_partition(copy_partition(source, tmp_path))
    (found,) = (task for task in plan.tasks if task.path.name == f"{SEGMENT}.log")
    assert verify_segment(found).findings == ()
    return dataclasses.replace(found, identity=None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "step"),
    [
        (f"{SEGMENT}.log", 5),
        (f"{SEGMENT}.index", 1),
        (f"{SEGMENT}.timeindex", 1),
        (f"{SEGMENT}.txnindex", 1),
        (NEXT_SNAPSHOT, 1),
    ],
)
def test_no_byte_can_be_turned_over_unnoticed(
    name: str, step: int, task: VerifyTask, tmp_path: Path
) -> None:
    path = tmp_path / "txn-0" / name
    whole = path.read_bytes()
    unnoticed = []
    for position in range(0, len(whole), step):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        found = verify_segment(task).findings
        if not any(finding.severity is not Severity.NOTE for finding in found):
            unnoticed.append(position)
    assert unnoticed == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [f"{SEGMENT}.log", f"{SEGMENT}.txnindex", NEXT_SNAPSHOT])
def test_no_file_can_be_cut_unnoticed(name: str, task: VerifyTask, tmp_path: Path) -> None:
    path = tmp_path / "txn-0" / name
    whole = path.read_bytes()
    for length in range(0, len(whole), 11):
        path.write_bytes(whole[:length])
        assert verify_segment(task).findings, length


@pytest.mark.parametrize("seed", range(6))
def test_junk_gives_findings_never_an_exception(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    root = GoldenCase("txn").copy_to(tmp_path)
    for path in sorted(root.rglob("*")):
        if path.is_file() and rng.random() < 0.5:
            size = rng.choice([0, 1, 17, 61, 500, path.stat().st_size])
            path.write_bytes(rng.randbytes(size))
    report = verify_directory(root)
    assert report.has_errors
    for finding in report.findings:
        assert finding.what
        assert finding.advice


def test_a_file_that_may_not_be_read_is_told(task: VerifyTask, tmp_path: Path) -> None:
    """A directory in its place stands for any error of the system."""
    path = tmp_path / "txn-0" / f"{SEGMENT}.index"
    path.unlink()
    path.mkdir()
    (finding,) = verify_segment(task).findings
    assert finding.code == "unreadable"
    assert finding.path == str(path)


def test_the_empty_plan() -> None:
    assert run_plan(VerifyPlan()).findings == ()
