from __future__ import annotations

import pytest

from stratalog.cli.offset_spec import EARLIEST, LATEST, Point, parse_offset, parse_point
from stratalog.format.times import InvalidTimeError
from stratalog.partitions.view import open_partition
from tests.golden.cases import GoldenCase

NOW_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z

POINTS = [
    ("42", Point("offset", 42)),
    ("0", Point("offset", 0)),
    ("-5", Point("from_end", 5)),
    ("earliest", EARLIEST),
    ("Beginning", EARLIEST),
    ("latest", LATEST),
    ("end", LATEST),
    ("@1700000000000", Point("time", NOW_MS)),
    ("2023-11-14T22:13:20", Point("time", NOW_MS)),
    ("-1h", Point("time", NOW_MS - 3_600_000)),
    ("now", Point("time", NOW_MS)),
    ("1d", Point("time", NOW_MS - 86_400_000)),
    ("1h30m", Point("time", NOW_MS - 5_400_000)),
    ("22:13", Point("time", NOW_MS - 20_000)),
    ("22:13:20", Point("time", NOW_MS)),
    ("22:13:21", Point("time", NOW_MS - 86_399_000)),
    ("9:05", Point("time", NOW_MS - 47_300_000)),
]


@pytest.mark.parametrize(("text", "expected"), POINTS)
def test_points(text: str, expected: Point) -> None:
    assert parse_point(text, now_ms=NOW_MS) == expected


@pytest.mark.parametrize(
    "text", ["", "first", "1.5", "9223372036854775808", "0x10", "\u0663", "24:00", "9:5", "d"]
)
def test_what_is_no_point(text: str) -> None:
    with pytest.raises(InvalidTimeError):
        parse_point(text, now_ms=NOW_MS)


def test_an_offset_is_no_time() -> None:
    assert parse_offset("-1") == Point("from_end", 1)
    with pytest.raises(InvalidTimeError):
        parse_offset("2023-11-14")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", 0),
        ("latest", 1500),
        ("-10", 1490),
        ("-9999", 0),
        ("77", 77),
        ("@1700000000000", 0),
        ("@1700000001555", 156),
        ("@1700000014990", 1499),
        ("@1700000014991", 1500),
    ],
)
def test_a_point_in_a_log(text: str, expected: int) -> None:
    with open_partition(GoldenCase("multiseg").partition_dir) as view:
        assert parse_point(text, now_ms=NOW_MS).resolve(view) == expected
