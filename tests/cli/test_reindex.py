"""`stratalog reindex` as its users run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.errors import LogDirLockedError, UnsupportedError
from stratalog.partitions.lock import lock_dirs
from stratalog.storage.disk import Disk
from tests.cli.command import inside, stratalog
from tests.golden.cases import GoldenCase
from tests.storage.segments import files_of

if TYPE_CHECKING:
    from pathlib import Path

INTERVAL = ("--index-interval-bytes", "256")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return GoldenCase("multiseg").copy_to(tmp_path)


def test_what_is_missing_comes_back(root: Path) -> None:
    partition = root / "multiseg-0"
    before = files_of(partition)
    (partition / "00000000000000000156.index").unlink()
    (partition / "00000000000000000312.timeindex").write_bytes(b"junk")
    lines = inside("reindex", root, *INTERVAL).lines
    assert lines[0] == f"{partition / '00000000000000000156.index'}: created (0 to 360 bytes)"
    assert lines[1].endswith("312.timeindex: replaced (4 to 612 bytes)")
    assert lines[2].startswith("10 segments, 144.1 KiB in ")
    assert lines[2].endswith(": 2 files changed")
    assert files_of(partition) == before


def test_a_dry_run_changes_nothing_and_takes_no_lock(root: Path) -> None:
    path = root / "multiseg-0" / "00000000000000000156.index"
    path.unlink()
    with lock_dirs(Disk(), [root]):
        result = inside("reindex", path.parent, "--dry-run", *INTERVAL)
    assert result.lines[0] == f"{path}: would be created (0 to 360 bytes)"
    assert result.lines[1].endswith(": 1 file to change")
    assert not path.exists()


def test_a_log_in_a_store_is_refused(root: Path) -> None:
    with pytest.raises(UnsupportedError, match="logs in a store can be read, not changed"):
        inside("reindex", f"local://{root}", "--dry-run")


def test_a_directory_in_use_is_refused(root: Path) -> None:
    with lock_dirs(Disk(), [root]), pytest.raises(LogDirLockedError):
        inside("reindex", root)


@pytest.mark.slow
def test_a_corrupt_segment_is_reported_and_the_status_is_1(root: Path) -> None:
    log = root / "multiseg-0" / "00000000000000000156.log"
    raw = bytearray(log.read_bytes())
    raw[5000] ^= 1
    log.write_bytes(raw)
    result = stratalog("reindex", root, *INTERVAL)
    assert result.status == 1
    (line,) = result.stderr.splitlines()
    assert "00000000000000000156.log at byte " in line
    assert line.endswith(f"; for details run stratalog verify {log.parent}")


def test_json(root: Path) -> None:
    (root / "multiseg-0" / "00000000000000000156.index").unlink()
    file, summary = inside("reindex", "multiseg", "-d", root, "--json", *INTERVAL).rows
    assert file["change"] == "created"
    assert (file["bytesBefore"], file["bytesAfter"]) == (0, 360)
    assert summary["segments"] == 10
    assert summary["changedFiles"] == 1
    assert summary["sizeBytes"] == 147_513
    assert summary["dryRun"] is False


def test_right_indexes_of_another_interval_stay_unless_forced(root: Path) -> None:
    before = files_of(root / "multiseg-0")
    (line,) = inside("reindex", root, "--dry-run").lines
    assert line.endswith(
        ": 0 files to change, 20 valid but not as recovery would write them (see --force)"
    )
    *files, summary = inside("reindex", root, "--json").rows
    assert {file["change"] for file in files} == {"kept"}
    assert (summary["changedFiles"], summary["keptFiles"]) == (0, 20)
    assert files_of(root / "multiseg-0") == before
    *_, line = inside("reindex", root, "--force").lines
    assert line.endswith(": 20 files changed")
    assert files_of(root / "multiseg-0") != before
    inside("reindex", root, "--force", *INTERVAL)
    assert files_of(root / "multiseg-0") == before
