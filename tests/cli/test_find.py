from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.cli.command import inside, on_terminal, stratalog
from tests.golden.cases import GoldenCase
from tests.golden.expected import loaded, log_start_offset, undamaged_cases
from tests.handmade import Head, Rec, batch
from tests.log.building import write_partition

if TYPE_CHECKING:
    from pathlib import Path

MULTISEG = GoldenCase("multiseg").partition_dir
TXN = GoldenCase("txn").partition_dir
CASES = [case for case in undamaged_cases() if not case.is_unclean]
TIMED_CASES = [case for case in CASES if case.offsets_for_times is not None]


@pytest.mark.slow
def test_an_offset_as_text() -> None:
    result = stratalog("find", MULTISEG, "--offset", "734")
    assert (result.stderr, result.status) == ("", 0)
    assert result.lines == [
        "multiseg-0: offset 734",
        f"  file      {MULTISEG}/00000000000000000602.log",
        "  batch     at byte 13454, 343 bytes, offsets 731 to 734, 4 records",
        "            CreateTime up to 2023-11-14T22:13:27.340Z (1700000007340)",
        "            magic 2, codec none, CRC b355ce89, leader epoch 0",
        "  record    offset 734, 2023-11-14T22:13:27.340Z (1700000007340)",
        "  key       k0734",
        f"  value     {'00734':x<47}",
    ]


@pytest.mark.slow
def test_json() -> None:
    (row,) = stratalog("find", MULTISEG, "--offset", "734", "--json").rows
    assert list(row) == ["topic", "partition", "asked", "file", "batch", "record"]
    assert row["asked"] == {"offset": 734}
    assert row["file"].endswith("/00000000000000000602.log")
    assert row["batch"]["position"] == 13454
    assert row["batch"]["crc"] == 0xB355CE89
    assert row["record"] == {
        "offset": 734,
        "timestampType": "CreateTime",
        "timestamp": 1700000007340,
        "key": "k0734",
        "value": f"{'00734':x<47}",
        "headers": [],
    }


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_last_record_of_every_case(case: GoldenCase) -> None:
    records = loaded(case)
    if not records:
        assert inside("find", case.partition_dir, "--offset", "latest").status == 1
        return
    last = records[-1]
    (row,) = inside(
        "find", case.partition_dir, "-o", str(last.record.offset), "--value-format", "hex", "--json"
    ).rows
    assert row["record"]["offset"] == last.record.offset
    assert row["record"]["timestamp"] == last.record.timestamp
    assert row["batch"]["compresscodec"] == last.codec
    assert row["batch"]["magic"] == last.magic
    assert row["batch"]["isControl"] == last.is_control
    if not last.is_control:
        value = last.record.value
        assert row["record"]["value"] == (None if value is None else value.hex())


@pytest.mark.parametrize("case", TIMED_CASES, ids=str)
def test_times_as_the_broker_found_them(case: GoldenCase, tmp_path: Path) -> None:
    answers = case.offsets_for_times
    assert answers is not None
    partition = case.partition_dir
    start = log_start_offset(case)
    if start is not None:
        partition = case.copy_to(tmp_path) / partition.name
        checkpoint = f"0\n1\n{case.manifest['topic']} 0 {start}\n"
        (partition.parent / "log-start-offset-checkpoint").write_text(checkpoint)
    end = case.loaddir["logEndOffset"]
    # Then Kafka takes the time of the file for its largest timestamp, looks there and gives up.
    is_first_emptied = case.loaddir["segments"][0]["size"] == 0
    for answer in answers["offsets_for_times"][:6]:
        (row,) = inside("find", partition, "--time", str(answer["query"]), "--json").rows
        expected = answer["offset"]
        if expected is not None and 0 <= expected < end:
            assert row["record"]["offset"] == expected
        elif not is_first_emptied:
            assert row["record"] is None


def test_the_largest_timestamp() -> None:
    case = GoldenCase("ooo-createtime")
    assert case.offsets_for_times is not None
    (row,) = inside("find", case.partition_dir, "--max-timestamp", "--json").rows
    expected = case.offsets_for_times["max_timestamp"]
    assert row["record"]["offset"] == expected["offset"]
    assert row["record"]["timestamp"] == expected["timestamp"]
    assert row["asked"] == {"maxTimestamp": True}


def test_a_control_record() -> None:
    lines = inside("find", TXN, "-o", "12").lines
    assert lines[-3:] == [
        "  producer  6, epoch 0, transactional",
        "  record    offset 12, 2026-11-15T19:00:38.162Z (1794769238162)",
        "  control   ABORT marker, coordinator epoch 0",
    ]


def test_a_hole_leads_to_the_next_record() -> None:
    result = inside("find", GoldenCase("compact").partition_dir, "-o", "3")
    assert result.lines[0] == (
        "compact-0: offset 3 has no record, as after compaction; the next record is at 1104"
    )
    assert result.status == 0


@pytest.mark.parametrize("command", ["find", "explain"])
def test_no_record_up_to_the_end(command: str, tmp_path: Path) -> None:
    """Compaction keeps the last batch of a producer without its records."""
    raw = batch(0, [Rec(0, 0, b"k", b"v")]) + batch(1, [], Head(last_offset_delta=9))
    result = inside(command, write_partition(tmp_path / "t-0", {0: raw}), "-o", "1")
    expected = (
        "t-0: offset 1 has no record, as after compaction, nor has a later one; the log end offset "
        "is 11"
    )
    assert expected in result.stderr
    assert result.status == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["-o", "1500"], "offset 1500 is the log end offset; the next record will have it"),
        (["-o", "latest"], "offset 1500 is the log end offset"),
        (["-o", "1501"], "offset 1501 is out of range"),
        (
            ["--time", "2023-11-15"],
            "no record at or after 2023-11-15T00:00:00.000Z (1700006400000)",
        ),
    ],
)
def test_nothing_there(args: list[str], text: str) -> None:
    result = stratalog("find", MULTISEG, *args)
    assert (result.status, result.stdout) == (1, b"")
    (line,) = result.stderr.splitlines()
    assert line.startswith("stratalog: error: multiseg-0: ")
    assert text in line
    as_json = inside("find", MULTISEG, *args, "--json")
    assert as_json.status == 1
    assert as_json.rows[0]["record"] is None


def test_no_timestamps_at_all() -> None:
    result = inside("find", GoldenCase("v0-none").partition_dir, "--max-timestamp")
    assert (result.status, result.stdout) == (1, b"")
    assert "no record has a timestamp" in result.stderr


def test_each_partition_is_searched(tmp_path: Path) -> None:
    shutil.copytree(MULTISEG, tmp_path / "orders-0")
    shutil.copytree(TXN, tmp_path / "orders-1")
    result = inside("find", "orders", "-d", tmp_path, "-o", "1000", "--json")
    assert [(row["partition"], row["record"] is None) for row in result.rows] == [
        (0, False),
        (1, True),
    ]
    assert "orders-1: offset 1000 is out of range" in result.stderr
    assert result.status == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        [],
        ["-o", "1", "--time", "now"],
        ["-o", "now"],
        ["--time", "soon"],
        ["-o", "1", "--max-timestamp"],
        ["-o", "1", "--key-format", "raw"],
    ],
)
def test_usage_errors(args: list[str]) -> None:
    result = stratalog("find", MULTISEG, *args)
    assert (result.status, result.stdout) == (2, b"")


@pytest.mark.slow
def test_long_and_hostile_values_are_shown_safely() -> None:
    shown = on_terminal("find", GoldenCase("rdk-none").partition_dir, "-o", "10")
    assert "\x1b" not in shown
    (value,) = [line for line in shown.splitlines() if line.startswith("  value")]
    assert value.startswith(r"  value     \xff\xfe\xfd")
    assert value.endswith("... (733 characters)")
