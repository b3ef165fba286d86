"""Tables and rates as text; sizes, counts and durations are those of `format.quantities`.

A table is aligned plain text in a pipe, and a rich table on a terminal. In a pipe nothing is
wrapped, shortened or coloured, so `awk` and `grep` see complete rows. On a narrow terminal,
columns with a rank are left out, and a line names them; times lose their milliseconds.
"""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.format.quantities import counted, duration_text, human_size
from stratalog.format.times import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

__all__ = [
    "NOTHING",
    "Column",
    "Row",
    "columns_of",
    "counted",
    "duration_text",
    "fitting",
    "human_size",
    "number_or_dash",
    "plain_lines",
    "print_table",
    "rate_text",
    "rich_table",
    "table_time",
]

NOTHING: Final = "-"
_GAP: Final = 2


class Column(NamedTuple):
    """One column. Those with the highest rank are left out first; rank 0 always stays."""

    title: str
    is_number: bool = False
    rank: int = 0
    fold_at: int | None = None
    """Width at which a column of prose wraps if the terminal is narrow."""


Row = tuple[str, ...]


def columns_of(header: str, *prose: Column) -> list[Column]:
    """Columns by a header such as `TOPIC | SIZE# | CODEC/6`, then columns of prose.

    `#` marks a column of numbers, `/6` is a rank.
    """
    return [*map(_column, header.split("|")), *prose]


def _column(text: str) -> Column:
    title, _, rank = text.strip().partition("/")
    return Column(title.removesuffix("#"), title.endswith("#"), int(rank or 0))


def print_table(columns: Sequence[Column], rows: Sequence[Row]) -> None:
    """To standard output. Columns with a rank that are empty in every row are left out."""
    filled = [
        at
        for at, column in enumerate(columns)
        if not column.rank or any(row[at] != NOTHING for row in rows)
    ]
    columns = [columns[at] for at in filled]
    rows = [tuple(row[at] for at in filled) for row in rows]
    if sys.stdout.isatty():
        _print_rich(columns, rows, shutil.get_terminal_size().columns)
        return
    for line in plain_lines(columns, rows):
        print(line)


def plain_lines(columns: Sequence[Column], rows: Sequence[Row]) -> Iterator[str]:
    """Header and rows, columns aligned, without trailing blanks."""
    widths = _widths(columns, rows)
    for row in ([column.title for column in columns], *rows):
        cells = (
            cell.rjust(width) if column.is_number else cell.ljust(width)
            for column, cell, width in zip(columns, row, widths, strict=True)
        )
        yield (" " * _GAP).join(cells).rstrip()


def fitting(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[int]:
    """Numbers of the columns that fit into `width`: all of rank 0, then others by rank."""
    widths = [
        width if column.fold_at is None else min(width, column.fold_at)
        for column, width in zip(columns, _widths(columns, rows), strict=True)
    ]
    chosen: list[int] = []
    left = width + _GAP  # no gap after the last column
    for at in sorted(range(len(columns)), key=lambda at: columns[at].rank):
        if not columns[at].rank or widths[at] + _GAP <= left:
            chosen.append(at)
            left -= widths[at] + _GAP
    return sorted(chosen)


def _widths(columns: Sequence[Column], rows: Sequence[Row]) -> list[int]:
    return [
        max(len(column.title), *(len(row[at]) for row in rows)) if rows else len(column.title)
        for at, column in enumerate(columns)
    ]


def rich_table(columns: Sequence[Column], rows: Sequence[Row], first_style: str = "") -> Table:
    """For a terminal. Numbers are never wrapped; long text folds."""
    from rich.table import Table  # noqa: PLC0415  # only a terminal needs rich
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for at, column in enumerate(columns):
        table.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            style="" if at else first_style,
            no_wrap=column.is_number,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _print_rich(columns: Sequence[Column], rows: Sequence[Row], width: int) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    chosen = fitting(columns, rows, width)
    console = Console(highlight=False)
    console.print(
        rich_table(
            [columns[at] for at in chosen], [tuple(row[at] for at in chosen) for row in rows]
        )
    )
    hidden = [column.title for at, column in enumerate(columns) if at not in chosen]
    if hidden:
        console.print(Text(f"(use a wider terminal to see {', '.join(hidden)})", style="dim"))


# -- values as text


def table_time(timestamp: int) -> str:
    """With milliseconds in a pipe; to the second on a terminal, where space is scarce."""
    text = format_time(timestamp)
    if not sys.stdout.isatty() or not text.endswith("Z"):
        return text
    return text[: -len(".000Z")].replace("T", " ")


def number_or_dash(value: int | None) -> str:
    return NOTHING if value is None else str(value)


def rate_text(records: int, size_bytes: int, seconds: float) -> str:
    """`1,500 records, 144.1 KiB in 0.3 s (5,000 records/s, 480.2 KiB/s)`."""
    parts = [counted(records, "record")] if records else []
    parts.append(human_size(size_bytes))
    rates = [f"{records / seconds:,.0f} records/s"] if records and seconds else []
    if seconds:
        rates.append(f"{human_size(round(size_bytes / seconds))}/s")
    return f"{', '.join(parts)} in {seconds:.1f} s ({', '.join(rates)})"
