"""`stratalog export` as its users run it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
import typer

from stratalog import LogDir
from stratalog.errors import ConfigError, UnknownTopicOrPartitionError
from tests.cli.command import inside, stratalog
from tests.golden.cases import GOLDEN_DIR

if TYPE_CHECKING:
    from pathlib import Path

MULTISEG = GOLDEN_DIR / "multiseg"


@pytest.mark.slow
def test_a_log_directory_to_parquet(tmp_path: Path) -> None:
    result = stratalog("export", MULTISEG, "--to", tmp_path / "out", "--text")
    (line,) = result.lines
    assert line.startswith("1,500 records, 144.1 KiB in ")
    assert line.endswith(f"KiB, in {tmp_path / 'out'}")
    (file,) = (tmp_path / "out").rglob("*.parquet")
    table = pq.ParquetFile(file).read()
    assert table.column("key")[0].as_py() == "k0000"
    assert table.num_rows == 1500


@pytest.mark.parametrize(
    ("args", "records"),
    [
        (("--since", "1700000000100", "--until", "1700000000200"), 10),
        (("--option", 'startingOffsets={"multiseg":{"0":1490}}'), 10),
        (("--since", "2030-01-01"), 0),
    ],
)
def test_a_part_of_it(args: tuple[str, ...], records: int, tmp_path: Path) -> None:
    path = MULTISEG / "multiseg-0"
    *_, summary = inside("export", path, "--to", tmp_path / "out", *args, "--json").rows
    assert summary["records"] == records


def test_committed_records_only(tmp_path: Path) -> None:
    path = GOLDEN_DIR / "txn"
    *_, everything = inside("export", path, "--to", tmp_path / "1", "--json").rows
    *_, committed = inside(
        "export", path, "--to", tmp_path / "2", "--json", "--read-committed"
    ).rows
    assert committed["records"] < everything["records"]


def test_lines_of_json_by_topic_alone(tmp_path: Path) -> None:
    args = ("--format", "jsonl", "--no-by-date", "--headers", "--json")
    file, partition, summary = inside(
        "export", "multiseg", "-d", MULTISEG, "--to", tmp_path, *args
    ).rows
    assert (tmp_path / file["path"]).read_bytes().count(b"\n") == 1500
    assert file["path"].startswith("topic=multiseg/part-00000-")
    assert partition == {
        "kind": "partition",
        "topic": "multiseg",
        "partition": 0,
        "startOffset": 0,
        "endOffset": 1500,
    }
    assert summary["files"] == 1
    assert summary["outputBytes"] == (tmp_path / file["path"]).stat().st_size
    assert summary["records"] == 1500
    assert summary["recordsPerSecond"] > 0 < summary["bytesPerSecond"]


def test_internal_topics_only_when_named(tmp_path: Path) -> None:
    path = GOLDEN_DIR / "_logdir-run1"
    with pytest.raises(UnknownTopicOrPartitionError, match="only internal topics"):
        inside("export", path, "--to", tmp_path / "1")
    *_, summary = inside(
        "export", "__cluster_metadata", "-d", path, "--to", tmp_path / "2", "--json"
    ).rows
    assert summary["records"] > 0


def test_an_internal_topic_of_several_partitions_when_named(tmp_path: Path) -> None:
    partition = GOLDEN_DIR / "_logdir-run1" / "__cluster_metadata-0"
    for number in range(2):
        shutil.copytree(partition, tmp_path / "logs" / f"__internal-{number}")
    args = ("-d", tmp_path / "logs", "--to", tmp_path / "out", "--json")
    *_, summary = inside("export", "__internal", *args).rows
    *_, single = inside("export", partition, "--to", tmp_path / "one", "--json").rows
    assert summary["records"] == 2 * single["records"]


@pytest.mark.slow
def test_what_is_wrong_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        ConfigError, match="is not empty; choose another directory, or set appends=True"
    ):
        inside("export", MULTISEG, "--to", tmp_path)
    result = stratalog("export", MULTISEG, "--to", tmp_path / "o", "--option", "splitByte=1")
    assert result.status == 2
    assert result.stderr.splitlines() == [
        "stratalog: error: splitByte: unknown option; did you mean 'splitBytes'?"
    ]
    assert stratalog("export", MULTISEG, "--to", tmp_path, "--since", "tea time").status == 2


@pytest.mark.slow
@pytest.mark.parametrize("args", [("--codec", "zstd"), ("--text",)], ids=["codec", "text"])
def test_options_of_parquet_are_refused_for_json(args: tuple[str, ...], tmp_path: Path) -> None:
    result = stratalog("export", MULTISEG, "--to", tmp_path / "o", "--format", "jsonl", *args)
    assert result.status == 2
    assert f"{args[0]} requires --format parquet" in result.stderr
    assert not (tmp_path / "o").exists()


# -- incremental


def test_only_what_is_new(tmp_path: Path) -> None:
    logs, to = tmp_path / "logs", tmp_path / "out"
    args = ("export", logs, "--to", to, "--incremental", "--json")
    with LogDir.open(logs) as opened:
        opened.create_topic("t")
        opened.append("t", b"1")
    *_, partition, summary = inside(*args).rows
    assert (partition["startOffset"], partition["endOffset"], summary["records"]) == (0, 1, 1)
    with LogDir.open(logs) as opened:
        opened.append("t", b"2")
    *_, partition, summary = inside(*args).rows
    assert (partition["startOffset"], partition["endOffset"], summary["records"]) == (1, 2, 1)
    assert [row["kind"] for row in inside(*args).rows] == ["partition", "summary"]
    (line,) = inside(*args[:-1]).lines
    assert line.startswith("no new records to export, in ")


@pytest.mark.slow
def test_what_was_deleted_before_it_was_exported(tmp_path: Path) -> None:
    logs, to = tmp_path / "logs", tmp_path / "out"
    args = ("export", logs, "--to", to, "--incremental")
    with LogDir.open(logs) as opened:
        opened.create_topic("t")
        opened.append("t", b"1")
        inside(*args)
        for _ in range(3):
            opened.append("t", b"2")
        opened.delete_records("t", 0, 3)
    result = stratalog(*args)
    assert result.status == 1
    lost = "offsets 1 to 2 of t-0 were deleted before they were exported"
    assert result.stderr == (
        f"stratalog: error: {lost}. Nothing was exported; use --skip-lost to continue with the "
        "data that is available\n"
    )
    result = stratalog(*args, "--skip-lost", "--json")
    assert result.status == 1
    assert result.stderr == f"stratalog: warning: {lost}\n"
    assert result.rows[2] == {
        "kind": "loss",
        "topic": "t",
        "partition": 0,
        "startOffset": 1,
        "endOffset": 3,
        "reason": lost,
    }
    assert stratalog(*args).status == 0


@pytest.mark.parametrize(
    "flags", [("--skip-lost",), ("--incremental", "--append")], ids=["lost", "append"]
)
def test_flags_that_do_not_go_together(flags: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="--incremental"):
        inside("export", MULTISEG, "--to", tmp_path / "out", *flags)
    assert not (tmp_path / "out").exists()
