from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from rich.text import Text

from stratalog.cli.explain import ASCII, search_bars
from stratalog.storage.trace import IndexStep, Probe
from tests.cli.command import inside, on_terminal, stratalog
from tests.golden.cases import GoldenCase
from tests.golden.expected import loaded, undamaged_cases

if TYPE_CHECKING:
    from pathlib import Path

MULTISEG = GoldenCase("multiseg").partition_dir
DAMAGED = GoldenCase("u-badcrc").root / "before" / "u-badcrc-0"
CASES = [case for case in undamaged_cases() if not case.is_unclean and loaded(case)]


def _steps(rows: list[dict[str, Any]]) -> list[str]:
    return [row["step"] for row in rows]


@pytest.mark.slow
def test_an_offset_step_by_step() -> None:
    result = stratalog("explain", MULTISEG, "--offset", "734")
    assert (result.stderr, result.status) == ("", 0)
    text = result.stdout.decode()
    assert text.startswith(
        "multiseg-0: 10 segments, 144.1 KiB, log start offset 0, log end offset 1500\n\n"
        "1. Choose the segment\n"
    )
    for part in (
        "     BASE      TARGET  SEGMENT\n"
        "      760  >      734  an earlier one\n"
        "      312  <=     734  this or a later one\n"
        "      602  <=     734  this or a later one\n"
        "   -> 00000000000000000602.log: the greatest base offset at or below the target\n",
        "2. Search the offset index for 734\n",
        "     SLOT  OFFSET       BYTE  OF 42 entries\n"
        "        0     605  <=    294  o===============================\n"
        "       21     680  <=   8109  ================o===============\n"
        "       31     715  <=  11695  ................=======o========\n"
        "       36     739  >   13797  .......................====o====\n"
        "       33     719  <=  12230  .......................==o=.....\n"
        "       34     725  <=  12849  .........................o=.....\n"
        "       35     730  <=  13325  .........................=o.....\n"
        "   -> 00000000000000000602.index: slot 35, so scan from byte 13325 on\n",
        "      BYTE  SIZE  FIRST  LAST  BATCH\n"
        "     13325   129    730   730  ends before 734\n"
        "     13454   343    731   734  contains 734\n",
        "   -> offset 734, 2023-11-14T22:13:27.340Z (1700000007340), after skipping 3 records\n",
        "multiseg-0: offset 734\n  file      ",
    ):
        assert part in text
    # 7 entries of 8 bytes, 2 headers of 61, a batch of 343.
    assert result.lines[-1] == (
        "Total: 3 segments and 7 index entries compared, 2 batch headers scanned, 3 records "
        "skipped: read 521 B of a log of 144.1 KiB (0.35 %)."
    )


@pytest.mark.slow
def test_a_time_step_by_step() -> None:
    lines = stratalog("explain", MULTISEG, "--time", "2023-11-14T22:13:27.333").lines
    titles = [line for line in lines if line[:1].isdigit()]
    assert titles == [
        "1. Choose the segment",
        "2. Search the time index for 2023-11-14T22:13:27.333Z",
        "3. Search the offset index for 730",
        "4. Scan batch headers for offset 730",
        "5. Scan batch headers for 2023-11-14T22:13:27.333Z",
        "6. Decode the records of the batch",
    ]
    assert "      602  2023-11-14T22:13:27.590Z  >=  the first that is new enough" in lines
    assert "   -> 00000000000000000602.timeindex: slot 35, so search from offset 730 on" in lines


@pytest.mark.slow
def test_json_has_all_steps() -> None:
    rows = stratalog("explain", MULTISEG, "--offset", "734", "--json").rows
    assert _steps(rows) == ["segment", "index", "scan", "record", "total", "found"]
    segment, index, scan, record, total, found = rows
    assert segment["compared"] == [760, 312, 602]
    assert index["index"] == "offset"
    assert [probe["slot"] for probe in index["probes"]] == [0, 21, 31, 36, 33, 34, 35]
    assert index["found"] == {"slot": 35, "key": 730, "value": 13325}
    assert [batch["position"] for batch in scan["batches"]] == [13325, 13454]
    assert record["recordsPassed"] == 3
    assert (total["indexProbes"], total["batchBytes"], total["logBytes"]) == (7, 343, 147513)
    assert found["record"]["offset"] == 734


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_case_is_explained_like_it_is_found(case: GoldenCase) -> None:
    record = loaded(case)[len(loaded(case)) // 2].record
    questions = [["-o", str(record.offset)]]
    if record.timestamp >= 0:
        questions.append(["--time", str(record.timestamp)])
    for question in questions:
        (found,) = inside("find", case.partition_dir, *question, "--json").rows
        rows = inside("explain", case.partition_dir, *question, "--json").rows
        assert {key: rows[-1][key] for key in found} == found
        scanned = {batch["position"] for row in rows for batch in row.get("batches", ())}
        assert found["batch"]["position"] in scanned
        assert inside("explain", case.partition_dir, *question).status == 0


def test_a_missing_index_is_reported(tmp_path: Path) -> None:
    partition = GoldenCase("multiseg").copy_to(tmp_path) / "multiseg-0"
    (partition / "00000000000000000602.index").unlink()
    rows = inside("explain", partition, "-o", "734", "--json").rows
    assert rows[1]["origin"] == "built from the log: no file"
    text = inside("explain", partition, "-o", "734").stdout.decode()
    assert "This index was built from the log: no file." in text


def test_a_wrong_index_is_reported() -> None:
    before = GoldenCase("u-badindex").root / "before" / "u-badindex-0"
    rows = inside("explain", before, "-o", "100", "--json").rows
    assert [row.get("origin") for row in rows[1:3]] == [
        "file",
        "built from the log: the file contradicts the log",
    ]
    text = inside("explain", before, "-o", "100").stdout.decode()
    assert (
        ".index: the log has no such batch there, so the index file is wrong and not used\n" in text
    )
    assert rows[-1]["record"]["offset"] == 100


def test_an_empty_segment_leads_to_the_next() -> None:
    lines = inside("explain", GoldenCase("compact").partition_dir, "-o", "3").lines
    assert "   -> 00000000000000000000.log: no batch from byte 0 on" in lines
    assert "   -> 00000000000000000000.index: it has no entries, so scan from byte 0 on" in lines
    assert "5. Scan batch headers for offset 1072" in lines


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "text"),
    [(["-o", "1501"], "out of range"), (["--time", "now"], "no record at or after")],
)
def test_nothing_there(args: list[str], text: str) -> None:
    result = stratalog("explain", MULTISEG, *args)
    assert result.status == 1
    (line,) = result.stderr.splitlines()
    assert text in line


DAMAGE = "00000000000000000240.log at byte 978 (offset 249): CRC mismatch: stored f3882c31"


def _titles(lines: list[str]) -> list[str]:
    return [line.partition(" for ")[0] for line in lines if line[:1].isdigit()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "titles"),
    [
        (
            ["-o", "249"],
            ["1. Choose the segment", "2. Search the offset index", "3. Scan batch headers"],
        ),
        (
            ["--time", "1700000002490"],
            [
                "1. Choose the segment",
                "2. Search the time index",
                "3. Search the offset index",
                "4. Scan batch headers",
                "5. Scan batch headers",
            ],
        ),
    ],
)
def test_corruption_is_printed_after_the_steps_that_found_it(
    args: list[str], titles: list[str]
) -> None:
    result = stratalog("explain", DAMAGED, *args)
    assert result.status == 1
    assert result.lines[0].startswith("u-badcrc-0: 5 segments, ")
    assert _titles(result.lines) == titles
    assert result.lines[-1].startswith("   -> 00000000000000000240.log: the batch at byte 978, ")
    (line,) = result.stderr.splitlines()
    assert line.startswith("stratalog: error: ")
    assert DAMAGE in line


@pytest.mark.parametrize(
    ("args", "steps"),
    [
        (["-o", "249"], ["segment", "index", "scan", "error"]),
        (["--time", "1700000002490"], ["segment", "index", "index", "scan", "scan", "error"]),
    ],
)
def test_json_of_corruption_ends_with_the_error(args: list[str], steps: list[str]) -> None:
    result = inside("explain", DAMAGED, *args, "--json")
    assert (result.status, _steps(result.rows)) == (1, steps)
    assert [batch["position"] for batch in result.rows[-2]["batches"]][-1] == 978
    assert result.rows[-1] == {
        "step": "error",
        "topic": "u-badcrc",
        "partition": 0,
        "file": str(DAMAGED / "00000000000000000240.log"),
        "position": 978,
        "reason": "CRC mismatch: stored f3882c31, computed d481628c",
    }
    assert DAMAGE in result.stderr


def test_corruption_of_one_partition_leaves_the_others_explained(tmp_path: Path) -> None:
    for number, source in enumerate((DAMAGED, MULTISEG)):
        shutil.copytree(source, tmp_path / f"orders-{number}")
    result = inside("explain", tmp_path / "orders", "-o", "249", "--json")
    assert [(row["partition"], row["step"]) for row in result.rows if "reason" not in row] == [
        (0, "index"), (0, "scan"),
        (1, "index"), (1, "scan"), (1, "record"), (1, "total"), (1, "found"),
    ]  # fmt: skip
    assert result.status == 1


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_gets_colours_and_lines_that_fit(columns: int) -> None:
    shown = on_terminal("explain", MULTISEG, "--time", "2023-11-14T22:13:27.333", columns=columns)
    plain = Text.from_ansi(shown).plain.splitlines()
    assert "\x1b[1;36m1. Choose the segment" in shown
    assert max(map(len, plain)) <= columns
    bars = [line.rstrip() for line in plain if "\u25cf" in line]
    assert len(bars) == 14
    assert bars[0].endswith("\u25cf" + "\u2501" * (27 if columns == 80 else 31))


def test_bars_narrow_down() -> None:
    probes = tuple(Probe(slot, slot * 10, 0) for slot in (0, 4, 6, 5))
    step = IndexStep(MULTISEG, "offset", "file", 8, 55, probes, probes[-1])
    assert search_bars(step, ASCII) == [
        "o=======",
        "====o===",
        "....==o=",
        "....=o..",
    ]


def test_bars_of_one_entry() -> None:
    probe = Probe(0, 10, 0)
    step = IndexStep(MULTISEG, "offset", "file", 1, 5, (probe, probe), None)
    assert search_bars(step, ASCII) == ["o", "o"]


@pytest.mark.slow
def test_it_names_only_its_own_options() -> None:
    result = stratalog("explain", MULTISEG)
    assert "give exactly one of --offset or --time" in result.stderr
    assert (result.stdout, result.status) == (b"", 2)
