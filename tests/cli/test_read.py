from __future__ import annotations

import base64
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from stratalog.format.record import Record
from stratalog.log.reader import IsolationLevel
from tests.cli.command import COMMAND, inside, on_terminal, stratalog
from tests.golden.cases import GoldenCase
from tests.golden.expected import consumed, directory_to_read, is_consumed, undamaged_cases

if TYPE_CHECKING:
    from pathlib import Path

MULTISEG = GoldenCase("multiseg").partition_dir
CASES = [case for case in undamaged_cases() if is_consumed(case)]


def _offsets(*args: str | Path) -> list[int]:
    return [row["offset"] for row in inside("read", *args, "--json").rows]


def _json_row(record: Record) -> dict[str, object]:
    def text(data: bytes | None) -> str | None:
        return None if data is None else base64.b64encode(data).decode()

    return {
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestampType": record.timestamp_type.kafka_name,
        "key": text(record.key),
        "value": text(record.value),
        "headers": [{"key": name, "value": text(data)} for name, data in record.headers],
    }


@pytest.mark.slow
@pytest.mark.parametrize("isolation", list(IsolationLevel), ids=lambda level: level.value)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_records_that_a_consumer_gets(case: GoldenCase, isolation: IsolationLevel) -> None:
    arguments = ["--key-format", "base64", "--value-format", "base64", "--json"]
    start = case.manifest.get("delete_records_to", "earliest")
    result = inside(
        "read", directory_to_read(case), "--from", str(start),
        "--isolation-level", isolation.value, *arguments,
    )  # fmt: skip
    expected = [_json_row(record) for record in consumed(case, isolation)]
    assert [{key: row[key] for key in _json_row(_ANY)} for row in result.rows] == expected
    assert result.status == 0


_ANY = Record(0, 0, None, None)


@pytest.mark.slow
def test_values_go_out_as_they_are() -> None:
    case = GoldenCase("rdk-none")
    records = consumed(case, IsolationLevel.READ_UNCOMMITTED)
    result = stratalog("read", case.partition_dir)
    assert result.stdout == b"".join(
        (b"null" if record.value is None else record.value) + b"\n" for record in records
    )
    assert (result.stderr, result.status) == ("", 0)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--from", "1498"], [1498, 1499]),
        (["--from", "-2"], [1498, 1499]),
        (["--from-offset", "1498"], [1498, 1499]),
        (["-o", "latest"], []),
        (["--from", "10", "--to", "13"], [10, 11, 12]),
        (["--from", "13", "--to", "10"], []),
        (["--to", "2"], [0, 1]),
        (["--to", "-1498"], [0, 1]),
        (["-n", "2"], [0, 1]),
        (["--max-messages", "0"], []),
        (["--from", "155", "-n", "3"], [155, 156, 157]),
        (["--from", "2023-11-14T22:13:34.971"], [1498, 1499]),
        (["--from", "@1700000014980"], [1498, 1499]),
        (["--from-time", "1700000014980"], [1498, 1499]),
        (["--from-time", "2023-11-14", "--to-time", "2023-11-14T22:13:20.020"], [0, 1]),
        (["--from", "now"], []),
    ],
)
def test_where_to_begin_and_end(args: list[str], expected: list[int]) -> None:
    assert _offsets(MULTISEG, *args) == expected


def test_all_partitions_of_a_topic_in_order(tmp_path: Path) -> None:
    for place, number in (("a", 10), ("b", 2), ("a", 0)):
        shutil.copytree(MULTISEG, tmp_path / place / f"orders-{number}")
    dirs: list[str | Path] = ["-d", tmp_path / "a", "-d", tmp_path / "b"]
    rows = inside("read", "orders", *dirs, "--from", "-2", "--json").rows
    assert [(row["partition"], row["offset"]) for row in rows] == [
        (0, 1498), (0, 1499), (2, 1498), (2, 1499), (10, 1498), (10, 1499),
    ]  # fmt: skip
    limited = inside("read", "orders", *dirs, "--from", "-2", "-n", "3", "--json").rows
    assert limited == rows[:3]
    one = inside("read", "orders:2", *dirs, "--from", "-2", "--json").rows
    assert one == rows[2:4]


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--key", "k0007"], [("multiseg", 7), ("rdk-none", 7)]),
        (["--key", "6b30303037", "--key-format", "hex"], [("multiseg", 7), ("rdk-none", 7)]),
        (["--grep", "k0007", "-n", "1"], [("multiseg", 7)]),
        (["--grep", "K0007", "-i", "--from", "8"], []),
        (["--grep", "h1", "--to", "8"], [("rdk-none", 6), ("rdk-none", 7)]),
    ],
)
def test_search_all_topics(
    args: list[str], expected: list[tuple[str, int]], tmp_path: Path
) -> None:
    for name in ("multiseg", "rdk-none"):
        (tmp_path / f"{name}-0").symlink_to(GoldenCase(name).partition_dir)
    rows = inside("read", tmp_path, *args, "--json").rows
    assert [(row["topic"], row["offset"]) for row in rows] == expected
    named = inside("read", tmp_path, "rdk-none", *args, "--json").rows
    assert [row["topic"] for row in named] == ["rdk-none"] * len(named)


def test_searching_reports_corruption() -> None:
    result = inside(
        "read", directory_to_read(GoldenCase("u-badcrc")), "--grep", "k", "--skip-corrupt"
    )
    assert result.status == 1
    assert ": skipped " in result.stderr


def test_a_segment_alone() -> None:
    assert _offsets(MULTISEG / f"{1295:020d}.log") == list(range(1295, 1485))


@pytest.mark.slow
def test_fields_and_templates() -> None:
    fields = stratalog(
        "read", MULTISEG, "-n", "1", "--print", "offset, time,key", "--separator", r"\x7c"
    )
    assert fields.stdout == b"0|2023-11-14T22:13:20.000Z|k0000\n"
    text = stratalog("read", MULTISEG, "-n", "2", "--format", r"%p/%o=%k;\n")
    assert text.stdout == b"0/0=k0000;\n0/1=k0001;\n"


def test_headers() -> None:
    partition = GoldenCase("rdk-none").partition_dir
    args: list[str | Path] = ["read", partition, "--from", "7", "-n", "1", "--headers"]
    assert inside(*args).stdout == b"h1=x,h1=y,h2=null,h3=\tv0007-1234567\n"
    assert inside(*args, "--print", "key").stdout == b"h1=x,h1=y,h2=null,h3=\tk0007\n"


@pytest.mark.slow
def test_a_terminal_shows_more() -> None:
    shown = on_terminal("read", MULTISEG, "--from", "-1")
    assert shown == (
        f"\x1b[2m1499 2023-11-14T22:13:34.990Z\x1b[0m \x1b[36mk1499\x1b[0m {'01499':x<62}\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--from", "1501"], "offset 1501 is out of range"),
        (["--from", "1501"], str(MULTISEG)),
    ],
)
def test_out_of_range(args: list[str], text: str) -> None:
    result = stratalog("read", MULTISEG, *args)
    assert (result.status, result.stdout) == (1, b"")
    (line,) = result.stderr.splitlines()
    assert line.startswith("stratalog: error: ")
    assert text in line


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        ["--from", "soon"],
        ["--from-time", "soon"],
        ["--from", "1", "--from-time", "now"],
        ["--to", "1", "--to-time", "now"],
        ["--json", "--print", "key"],
        ["--format", "%q"],
        ["--print", "size"],
        ["--print", ""],
        ["--value-format", "avro"],
        ["--isolation-level", "dirty"],
        ["-n", "-1"],
    ],
)
def test_usage_errors(args: list[str]) -> None:
    result = stratalog("read", MULTISEG, *args)
    assert (result.status, result.stdout) == (2, b"")
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_corruption_stops_with_one_line() -> None:
    case = GoldenCase("u-badcrc")
    result = stratalog("read", directory_to_read(case), "--print", "offset")
    assert result.status == 1
    (line,) = result.stderr.splitlines()
    assert "CRC mismatch: stored " in line
    assert ".log at byte " in line
    assert line.endswith(f"; for details run stratalog verify {directory_to_read(case)}")
    offsets = [int(line) for line in result.lines]
    assert offsets == list(range(len(offsets)))  # what came before was printed


@pytest.mark.slow
def test_corruption_is_skipped_and_reported() -> None:
    case = GoldenCase("u-badcrc")
    result = stratalog("read", directory_to_read(case), "--print", "offset", "--skip-corrupt")
    assert result.status == 1
    (line,) = result.stderr.splitlines()
    assert ": skipped " in line
    offsets = {int(line) for line in result.lines}
    whole = set(range(min(offsets), max(offsets) + 1))
    lost = sorted(whole - offsets)
    assert lost
    assert f"offsets {lost[0]} up to {lost[-1] + 1}: CRC mismatch: stored" in line


@pytest.mark.slow
def test_torn_tails_are_not_corruption() -> None:
    for name in ("u-torn", "u-garbage", "u-header"):
        result = stratalog("read", directory_to_read(GoldenCase(name)), "--print", "offset")
        assert (result.stderr, result.status) == ("", 0)


@pytest.mark.slow
def test_a_closed_pipe_ends_it_quietly() -> None:
    command = [*COMMAND, "read", str(MULTISEG)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.slow
def test_a_missing_transaction_index_is_reported(tmp_path: Path) -> None:
    path = GoldenCase("txn").copy_to(tmp_path) / "txn-0"
    args = ("read", path, "--isolation-level", "read_committed", "--json")
    before = stratalog(*args)
    for file in path.glob("*.txnindex"):
        file.unlink()
    after = stratalog(*args)
    assert (before.stderr, before.status, after.status) == ("", 0, 0)
    assert after.stdout == before.stdout
    assert f"stratalog: warning: {path}/00000000000000000048.txnindex: missing" in after.stderr
    listed = stratalog("ls", path, "--transactions")
    assert "00000000000000000048.txnindex: missing" in listed.stderr
