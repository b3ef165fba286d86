from __future__ import annotations

import pytest

from stratalog.cli.tables import Column, counted, fitting, human_size, plain_lines, rate_text

COLUMNS = [
    Column("NAME"),
    Column("SIZE", is_number=True),
    Column("FIRST", rank=2),
    Column("LAST", rank=1),
    Column("NOTE", fold_at=6),
]
ROWS = [
    ("a", "1", "2023-11-14", "2023-11-15", "fine"),
    ("longer", "12345", "-", "-", "much to say"),
]


def test_plain_lines_are_aligned_and_end_with_text() -> None:
    assert list(plain_lines(COLUMNS, ROWS)) == [
        "NAME     SIZE  FIRST       LAST        NOTE",
        "a           1  2023-11-14  2023-11-15  fine",
        "longer  12345  -           -           much to say",
    ]


def test_a_table_without_rows_has_its_titles() -> None:
    assert list(plain_lines(COLUMNS[:2], [])) == ["NAME  SIZE"]


@pytest.mark.parametrize(
    ("width", "kept"),
    [
        (200, [0, 1, 2, 3, 4]),
        (45, [0, 1, 2, 3, 4]),  # 6 + 5 + 10 + 10 + 6, and 4 gaps of 2
        (44, [0, 1, 3, 4]),
        (33, [0, 1, 3, 4]),
        (32, [0, 1, 4]),
        (10, [0, 1, 4]),
    ],
)
def test_which_columns_fit(width: int, kept: list[int]) -> None:
    assert fitting(COLUMNS, ROWS, width) == kept


def test_a_narrow_column_may_stay_where_a_wider_one_is_left_out() -> None:
    columns = [Column("A"), Column("WIDE", rank=1), Column("B", rank=2)]
    assert fitting(columns, [("a", "w" * 20, "b")], 10) == [0, 2]


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1_023_999, "1.0 MiB"),
        (1 << 30, "1.0 GiB"),
        (1 << 62, "4096.0 PiB"),
    ],
)
def test_human_size(size_bytes: int, expected: str) -> None:
    assert human_size(size_bytes) == expected


def test_counting() -> None:
    assert counted(1, "record") == "1 record"
    assert counted(0, "record") == "0 records"
    assert counted(1500, "record") == "1,500 records"
    assert [counted(2, noun) for noun in ("batch", "index entry")] == [
        "2 batches",
        "2 index entries",
    ]
    assert rate_text(1, 99, 1.0) == "1 record, 99 B in 1.0 s (1 records/s, 99 B/s)"
