"""Files that this user may not read: reported as such, with the path, and never as lost data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.log_dir import LogDir
from tests.cli.command import stratalog, without_privileges

if TYPE_CHECKING:
    from pathlib import Path

LOG = f"{0:020d}.log"


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Three partitions, flushed and closed; `t-1` has records."""
    path = tmp_path / "data"
    with LogDir.open(path, background=False) as logs:
        logs.create_topic("t", 3)
        for number in range(3):
            logs.append("t", b"value", partition=number)
    return path


@pytest.mark.slow
def test_it_is_the_mode_that_makes_the_difference(log_dir: Path) -> None:
    assert without_privileges("ls", log_dir).status == 0
    assert without_privileges("verify", log_dir).status == 0


@pytest.mark.slow
@pytest.mark.parametrize("where", [f"t-1/{LOG}", "t-1"])
def test_verify_reports_a_missing_permission_and_nothing_else(log_dir: Path, where: str) -> None:
    (log_dir / where).chmod(0)
    result = without_privileges("verify", log_dir, "--json")
    (log_dir / where).chmod(0o755)
    *findings, summary = result.rows
    errors = [row for row in findings if row["severity"] != "note"]
    assert [(row["code"], row["path"]) for row in errors] == [
        ("no-permission", str(log_dir / where))
    ]
    assert (summary["errors"], result.status) == (1, 1)
    assert stratalog("verify", log_dir).status == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "t-1/leader-epoch-checkpoint",
        "t-1/partition.metadata",
        f"t-1/{0:020d}.index",
        f"t-1/{1:020d}.snapshot",
        "recovery-point-offset-checkpoint",
    ],
)
def test_verify_does_not_call_an_unreadable_side_file_corrupt(log_dir: Path, name: str) -> None:
    (log_dir / name).chmod(0)
    result = without_privileges("verify", log_dir, "--json")
    *findings, _ = result.rows
    errors = [row for row in findings if row["severity"] != "note"]
    assert [(row["code"], row["path"]) for row in errors] == [
        ("no-permission", str(log_dir / name))
    ]
    assert result.status == 1


@pytest.mark.slow
@pytest.mark.parametrize("where", [f"t-1/{LOG}", "t-1"])
@pytest.mark.parametrize("named", [[], ["t"]])
def test_ls_lists_an_unreadable_partition(log_dir: Path, where: str, named: list[str]) -> None:
    (log_dir / where).chmod(0)
    listed = without_privileges("ls", log_dir, *named, "--partitions")
    rows = without_privileges("ls", log_dir, *named, "--partitions", "--json").rows
    topics = without_privileges("ls", log_dir)
    (log_dir / where).chmod(0o755)
    cells = [line.split()[:2] for line in listed.lines]
    assert [row for row in cells if row and row[0].startswith("t-")] == [
        ["t-0", "1"],
        ["t-2", "1"],
        ["t-1", "unreadable"],
    ]
    assert listed.status == topics.status == 1
    assert "no permission to read it" in listed.stderr
    assert str(log_dir / where) in listed.stderr
    (unreadable,) = [row for row in rows if row["kind"] == "unreadable-partition"]
    assert (unreadable["topic"], unreadable["partition"]) == ("t", 1)
    assert unreadable["path"] == str(log_dir / "t-1")
    assert "3 (1 unreadable)" in topics.stdout.decode()


@pytest.mark.slow
def test_read_says_which_file_may_not_be_read(log_dir: Path) -> None:
    (log_dir / "t-1" / LOG).chmod(0)
    result = without_privileges("read", log_dir / "t-1")
    assert result.status == 1
    assert result.stderr == (
        f"stratalog: error: {log_dir / 't-1' / LOG}: no permission to read it; "
        "run as its owner, or change its mode\n"
    )
