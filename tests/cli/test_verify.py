"""`stratalog verify` as its users run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.errors import NotALogDirError, UnknownTopicOrPartitionError
from tests.cli.command import inside, on_terminal, stratalog
from tests.golden.cases import GOLDEN_DIR, GoldenCase

if TYPE_CHECKING:
    from pathlib import Path

MULTISEG = GOLDEN_DIR / "multiseg"


def test_a_sound_directory_has_its_settings_and_one_line() -> None:
    result = inside("verify", MULTISEG)
    settings, line = result.lines
    assert settings.startswith("multiseg: settings unknown: the topic was not created here")
    assert line.startswith("1 partition, 10 segments, 1,500 records, 144.1 KiB in ")
    assert line.endswith(": 0 errors, 0 warnings, 0 notes")
    assert result.status == 0


@pytest.mark.slow
def test_an_error_has_its_place_and_advice_and_the_status_is_1() -> None:
    result = stratalog("verify", GOLDEN_DIR / "u-badcrc" / "before")
    assert result.status == 1
    assert "00000000000000000240.log at byte 978: CRC mismatch: stored f3882c31" in result.lines[1]
    assert result.lines[1].endswith("[bad-batch]")
    assert result.lines[2].startswith("    a broker would truncate the log here")
    assert result.lines[-1].endswith("1 error, 0 warnings, 2 notes")
    assert result.stderr == ""


def test_notes_are_shown_when_asked_for() -> None:
    path = GOLDEN_DIR / "u-plain" / "before"
    plain, noted = inside("verify", path), inside("verify", path, "--notes")
    assert not [line for line in plain.lines if line.startswith("note")]
    assert [line for line in noted.lines if line.endswith("[index-untrimmed]")]


@pytest.mark.slow
def test_json_has_a_row_for_each_finding_and_a_summary() -> None:
    result = stratalog("verify", GOLDEN_DIR / "u-badcrc" / "before", "--json")
    *findings, summary = result.rows
    (error,) = [row for row in findings if row["severity"] == "error"]
    assert error["code"] == "bad-batch"
    assert error["position"] == 978
    assert error["path"].endswith("00000000000000000240.log")
    assert error["advice"]
    assert summary["kind"] == "summary"
    assert summary["errors"] == 1
    assert summary["segments"] == 5
    assert summary["records"] == 259
    assert result.status == 1


@pytest.mark.parametrize(
    "args",
    [
        (MULTISEG / "multiseg-0",),
        ("multiseg", "-d", MULTISEG),
        ("multiseg:0", "-d", MULTISEG),
        (MULTISEG / "multiseg",),
        ("-d", MULTISEG),
    ],
)
def test_what_may_be_named(args: tuple[str | Path, ...]) -> None:
    (summary,) = inside("verify", *args, "--json").rows
    assert summary["partitions"] == 1
    assert summary["records"] == 1500


def test_several_directories_are_summed_up() -> None:
    (summary,) = (
        row
        for row in inside("verify", MULTISEG, GOLDEN_DIR / "txn" / "txn-0", "--json").rows
        if row["kind"] == "summary"
    )
    assert summary["partitions"] == 2
    assert summary["segments"] == 18


@pytest.mark.slow
def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotALogDirError, match="not a log directory"):
        inside("verify", tmp_path)
    with pytest.raises(UnknownTopicOrPartitionError, match="no topic 'orders'"):
        inside("verify", "orders", "-d", MULTISEG)
    result = stratalog("verify", tmp_path / "nowhere")
    assert result.status == 1
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.slow
def test_colours_on_a_terminal_only(tmp_path: Path) -> None:
    partition = GoldenCase("multiseg").copy_to(tmp_path) / "multiseg-0"
    (partition / "00000000000000000156.index").unlink()
    assert "\x1b[33mwarning\x1b[0m: " in on_terminal("verify", partition)
    assert "\x1b" not in stratalog("verify", partition).stdout.decode()
