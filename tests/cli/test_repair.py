"""The command: a plan first, then the repair, then back again."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import LogDirLockedError
from stratalog.log_dir import LogDir
from stratalog.partitions.lock import lock_dirs
from stratalog.storage.disk import Disk
from tests.cli.command import inside, stratalog
from tests.golden.cases import GoldenCase
from tests.log.damaging import flip

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = GoldenCase("multiseg").copy_to(tmp_path / "a")
    flip(path / "multiseg-0" / f"{453:020d}.log", 5000, 1)
    return path


def _contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def test_plan_repair_and_undo(root: Path) -> None:
    before = _contents(root)
    plan = inside("repair", root)
    assert plan.status == 1
    assert plan.lines[0] == f"multiseg-0 ({root / 'multiseg-0'}):"
    assert "  quarantine  00000000000000000453.log at byte " in plan.lines[1]
    assert "  LOST        offsets " in plan.lines[2]
    assert plan.lines[-1].endswith(f"To repair: stratalog repair {root} --yes")
    assert _contents(root) == before

    done = inside("repair", root, "--yes")
    assert done.status == 1  # records are lost
    assert done.lines[:-2] == plan.lines[:-1]
    assert f"To undo: stratalog repair {root / 'multiseg-0'} --undo" in done.lines[-2]
    assert inside("verify", root).status == 0
    assert inside("repair", root).lines == ["1 partition: nothing to repair"]
    assert inside("repair", root, "--yes").status == 0

    undone = inside("repair", root, "--undo")
    assert (undone.status, len(undone.lines)) == (0, 1)
    assert _contents(root) == before
    assert inside("repair", root, "--undo").status == 1


def test_restore_from_a_log_directory(root: Path, tmp_path: Path) -> None:
    copy = GoldenCase("multiseg").copy_to(tmp_path / "b")
    lost = inside("repair", root, "--from", copy, "--yes", "--json")
    assert lost.status == 0
    kinds = [row["kind"] for row in lost.rows]
    assert kinds[:2] == ["quarantined", "restored"]
    assert kinds[-2:] == ["partition", "summary"]
    assert "lost" not in kinds
    whole = inside("read", GoldenCase("multiseg").partition_dir, "--json").stdout
    assert inside("read", root / "multiseg-0", "--json").stdout == whole
    assert inside("repair", root, "--forget").status == 0
    assert list((root / "multiseg-0").glob("repair-*")) == []


def test_a_directory_in_use_is_not_changed(root: Path) -> None:
    before = _contents(root)
    with lock_dirs(Disk(), [root]):
        result = inside("repair", root, "--yes")
        assert result.status == 1
        assert "locked by" in result.stderr
        assert inside("repair", root).status == 1  # planning takes no lock
        with pytest.raises(LogDirLockedError):
            LogDir.open(root)
    assert _contents(root) == before


def test_a_lock_is_reported_once(root: Path) -> None:
    shutil.copytree(root / "multiseg-0", root / "multiseg-1")
    with lock_dirs(Disk(), [root]):
        result = inside("repair", root, "--yes")
        assert inside("repair", root, "--yes", "--json").rows[-1]["failed"] == 2
    assert (result.status, result.lines) == (1, ["2 partitions: 2 failed"])
    (line,) = result.stderr.splitlines()
    assert line.endswith("stop that process first, or leave out --yes to see the plan")


def test_a_partition_without_segments_is_restored(tmp_path: Path) -> None:
    root, copy = (GoldenCase("multiseg").copy_to(tmp_path / name) for name in "ab")
    (root / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    for path in (root / "multiseg-0").glob("0*"):
        path.unlink()
    assert inside("repair", root, "--from", copy, "--yes").status == 0
    assert inside("diff", root / "multiseg-0", copy / "multiseg-0", "--records").status == 0


def test_losses_are_listed_by_kind(root: Path, tmp_path: Path) -> None:
    for path in (root / "multiseg-0").glob(f"{602:020d}.*"):
        path.unlink()
    plan = inside("repair", root)
    assert plan.status == 1
    assert any(line.startswith("  missing     offsets 602 to ") for line in plan.lines)
    rows = inside("repair", root, "--json").rows
    assert [row["kind"] for row in rows][:3] == ["quarantined", "lost", "missing"]


@pytest.mark.slow
def test_usage(root: Path) -> None:
    assert stratalog("repair", root, "--undo", "--yes").status == 2
    assert stratalog("repair", root / "none").status == 1
    assert stratalog("repair", root, "--from", root / "none").status == 1
