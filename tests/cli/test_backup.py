"""`stratalog backup` and `stratalog restore` as their users run them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.storage.remote_path import set_default_options
from tests.bulk.backups import fill, tree
from tests.cli.command import inside, stratalog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.stores import CountingServer


@pytest.fixture(autouse=True)
def _no_defaults() -> Iterator[None]:
    yield
    set_default_options({})


def test_there_and_back(tmp_path: Path, counting: CountingServer) -> None:
    logs, uri, out = tmp_path / "logs", counting.uri("cli"), tmp_path / "out"
    fill(logs, 60)
    options = [f"--storage-option={name}={value}" for name, value in counting.options.items()]
    shown = inside("backup", logs, uri, *options)
    (line,) = shown.lines
    assert "2 partitions, 32 files" in line
    assert f" sent to {uri}, in " in line
    fill(logs, 2, start=60)
    *partitions, pruned, summary = inside(
        "backup", logs, uri, "--keep", "2", "--verify", "--json", *options
    ).rows
    assert [(row["topic"], row["partition"], row["endOffset"]) for row in partitions] == [
        ("orders", 0, 31),
        ("orders", 1, 31),
    ]
    assert pruned == {"kind": "pruned", "backups": [], "objects": 0, "sizeBytes": 0}
    assert 0 < summary["sentObjects"] < summary["verifiedObjects"]
    listed = inside("backup", uri, "--list", "--json", *options).rows
    assert [row["dirs"][0]["path"] for row in listed] == [str(logs), str(logs)]
    assert listed[1]["id"] == summary["id"]
    table = inside("backup", uri, "--list", *options)
    assert [line.split()[0] for line in table.lines] == ["BACKUP", *(row["id"] for row in listed)]
    *_, done = inside("restore", uri, out, "--json", *options).rows
    assert (done["id"], done["isRecovered"]) == (summary["id"], False)
    assert tree(out) == tree(logs)
    for result in (shown, table):
        assert b"strata-secret" not in result.stdout
        assert "strata-secret" not in result.stderr


def test_a_part_of_it(tmp_path: Path) -> None:
    logs, where = tmp_path / "logs", tmp_path / "backups"
    fill(logs, 60)
    inside("backup", logs, f"file://{where}")
    args = ("--topic", "orders:0", "--to-offset", "orders:0:12", "--until", "1970-01-01T00:00:20Z")
    first, summary = inside("restore", where, tmp_path / "a", *args, "--json").rows
    assert (first["partition"], first["endOffset"], first["backupEndOffset"]) == (0, 10, 30)
    assert summary["isRecovered"]
    shown = inside("restore", where, tmp_path / "b", *args)
    assert shown.lines[0] == "orders-0: ends at offset 10, in the backup at 30"
    assert "1 partition, " in shown.lines[1]


@pytest.mark.slow
def test_mistakes(tmp_path: Path) -> None:
    logs, where = tmp_path / "logs", tmp_path / "backups"
    fill(logs, 4)
    for args, status, what in (
        (("backup", logs), 2, "give log directories and the URI"),
        (("backup", logs, where, "--list"), 2, "--list takes a URI"),
        (("backup", where, "--list"), 1, "no backup found"),
        (("backup", logs, where, "--conf", "a=b"), 2, "--conf requires --master"),
        (("backup", tmp_path / "none", where), 1, "no such directory"),
        (("restore", where, tmp_path / "out"), 1, "no backup found"),
        (("restore", where, tmp_path / "out", "--to-offset", "x"), 2, "TOPIC:PARTITION:OFFSET"),
    ):
        result = stratalog(*args)
        assert (result.status, what in result.stderr) == (status, True), result


def test_only_removing_and_verifying(tmp_path: Path) -> None:
    logs, where = tmp_path / "logs", tmp_path / "backups"
    for number in range(3):
        fill(logs, 40, start=40 * number)
        inside("backup", logs, where)
    verified, pruned = inside("backup", where, "--verify", "--keep", "1", "--json").rows
    assert verified["objects"] > 0
    assert len(pruned["backups"]) == 2
    assert len(inside("backup", where, "--list").lines) == 2


def test_a_backup_that_cannot_be_read_is_listed(tmp_path: Path) -> None:
    logs, where = tmp_path / "logs", tmp_path / "backups"
    fill(logs, 4)
    for _ in range(2):
        inside("backup", logs, where)
    first, second = sorted((where / "manifests").iterdir())
    first.write_bytes(b"{}")
    row, other = inside("backup", where, "--list", "--json").rows
    assert (row["kind"], row["id"]) == ("unreadable", first.stem)
    assert str(first) in row["reason"]
    assert (other["kind"], other["id"]) == ("backup", second.stem)
    _, line, _ = inside("backup", where, "--list").lines
    assert line.split()[:2] == [first.stem, "unreadable"]
