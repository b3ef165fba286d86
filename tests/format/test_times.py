from __future__ import annotations

import pytest

from stratalog.format.times import InvalidTimeError, format_time, parse_time

NOW_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z

TIMES = [
    ("now", NOW_MS),
    ("NOW", NOW_MS),
    ("-1h", NOW_MS - 3_600_000),
    ("1h", NOW_MS - 3_600_000),
    ("-1h30m", NOW_MS - 5_400_000),
    ("-2d", NOW_MS - 172_800_000),
    ("-1w", NOW_MS - 604_800_000),
    ("-250ms", NOW_MS - 250),
    ("-90s", NOW_MS - 90_000),
    ("-99999999w", 0),
    ("1700000000000", 1_700_000_000_000),
    ("-1", -1),
    ("1970-01-01", 0),
    ("2023-11-14T22:13:20", NOW_MS),
    ("2023-11-14 22:13:20", NOW_MS),
    ("2023-11-14T22:13:20Z", NOW_MS),
    ("2023-11-14T22:13:20.123456Z", NOW_MS + 123),
    ("2023-11-15T00:13:20+02:00", NOW_MS),
    ("2023-11-14T17:13:20-05:00", NOW_MS),
    ("1969-12-31T23:59:59.999", -1),
    ("0001-01-01T00:00:00+14:00", -62_135_647_200_000),
]


@pytest.mark.parametrize(("text", "expected"), TIMES)
def test_times(text: str, expected: int) -> None:
    assert parse_time(text, now_ms=NOW_MS) == expected


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "-1x", "1x", "2023-13-01", "2023-11-14T25:00", "--1h", "9" * 20, "-", "@"],
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(InvalidTimeError):
        parse_time(text, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (NOW_MS + 5, "2023-11-14T22:13:20.005Z"),
        (-1, "-"),
        (-2, "1969-12-31T23:59:59.998Z"),
        (-62_135_596_800_000, "0001-01-01T00:00:00.000Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, "253402300800000"),
        ((1 << 63) - 1, "9223372036854775807"),
        (-(1 << 63), "-9223372036854775808"),
    ],
)
def test_format_time(timestamp: int, expected: str) -> None:
    assert format_time(timestamp) == expected
