"""One shape of JSON: what `read --json` and `export` print, `ingest` takes back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cli.command import Result, inside, stratalog
from tests.golden.cases import GOLDEN_DIR, GoldenCase

if TYPE_CHECKING:
    from pathlib import Path

CASES = ["rdk-none", "java-lz4", "logappend-none", "txn-simple"]


def _ingested(lines: bytes, to: Path, *args: str) -> Result:
    return stratalog("ingest", "-", "--to", to, *args, given=lines)


def _content(lines: bytes) -> list[bytes]:
    """Without offsets and the type of the timestamp: those are the new log's."""
    kept = []
    for line in lines.splitlines():
        before, _, after = line.partition(b',"offset":')
        _, _, rest = after.partition(b',"timestamp":')
        timestamp, _, more = rest.partition(b',"timestampType":')
        kept.append(before + timestamp + more.partition(b",")[2])
    return kept


@pytest.mark.parametrize("name", CASES)
def test_export_prints_the_lines_of_read(name: str) -> None:
    case = GoldenCase(name)
    read = inside("read", case.partition_dir, "--json")
    exported = inside("export", case.partition_dir, "--to", "-")
    assert exported.stdout == read.stdout
    assert read.rows


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_records_come_back(name: str, tmp_path: Path) -> None:
    case = GoldenCase(name)
    lines = inside("read", case.partition_dir, "--json").stdout
    done = _ingested(lines, tmp_path / "logs", "-p", "1")
    assert (done.status, done.stderr) == (0, "")
    again = inside("export", tmp_path / "logs", "--to", "-").stdout
    assert _content(again) == _content(lines)


@pytest.mark.slow
def test_bytes_that_are_not_text_come_back(tmp_path: Path) -> None:
    line = (
        b'{"topic":"t","partition":0,"offset":0,"timestamp":5,"timestampType":"CreateTime",'
        b'"key":{"base64":"/w=="},"value":null,"headers":[{"key":"h","value":{"base64":"gA=="}}]}\n'
    )
    assert _ingested(line, tmp_path / "logs", "-p", "1").status == 0
    assert inside("read", tmp_path / "logs" / "t-0", "--json").stdout == line
    assert inside("find", tmp_path / "logs", "t", "-o", "0", "--json").rows[0]["record"]["key"] == {
        "base64": "/w=="
    }


@pytest.mark.slow
def test_standard_input(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    assert _ingested(b"one\ntwo\n", logs, "-t", "t", "-p", "1", "--format", "text").status == 0
    assert _ingested(b'{"id":1}\n', logs, "-t", "t", "--key", "id").status == 0
    assert _ingested(b"", logs, "-t", "t").status == 0
    assert inside("read", logs, "t", "--print", "key,value").lines == [
        "null\tone", "null\ttwo", '1\t{"id":1}',
    ]  # fmt: skip
    unclear = _ingested(b"one\n", logs, "-t", "t")
    assert unclear.status == 2
    assert "cannot be detected from standard input; use json, text or records" in unclear.stderr
    broken = _ingested(b'{"id":1}\n{"id"\n', logs, "-t", "t", "--key", "id")
    assert broken.status == 1
    assert "line 2: not JSON" in broken.stderr


@pytest.mark.parametrize(
    "args", [("--format", "parquet"), ("--json",), ("--incremental",), ("--codec", "zstd")]
)
@pytest.mark.slow
def test_what_does_not_go_to_standard_output(args: tuple[str, ...]) -> None:
    result = stratalog("export", GOLDEN_DIR / "multiseg", "--to", "-", *args)
    assert (result.status, result.stdout) == (2, b"")


@pytest.mark.slow
def test_exports_skip_corruption_on_request(tmp_path: Path) -> None:
    broken = GOLDEN_DIR / "u-badcrc" / "before"
    read = stratalog("read", *broken.glob("*-0"), "--skip-corrupt", "--json")
    assert (read.status, len(read.stderr.splitlines())) == (1, 1)
    printed = stratalog("export", broken, "--to", "-", "--skip-corrupt")
    assert printed == read
    files = stratalog(
        "export", broken, "--to", tmp_path / "out", "--format", "jsonl", "--no-by-date",
        "--skip-corrupt", "--json",
    )  # fmt: skip
    assert (files.status, files.stderr) == (1, read.stderr)
    (skipped,) = [row for row in files.rows if row["kind"] == "corrupt"]
    assert skipped["sizeBytes"] > 0
    (file,) = (tmp_path / "out").rglob("*.jsonl")
    assert file.read_bytes() == read.stdout
    assert stratalog("export", broken, "--to", "-").status == 1
