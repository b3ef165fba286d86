"""Tables: aligned plain text in a pipe, a rich table on a terminal.

In a pipe nothing is wrapped, cut or coloured, so `awk` and `grep` see whole rows. A terminal may be
too narrow: then the columns of the highest rank are left out first, and a line says which.
"""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NOTHING: Final = "-"
_GAP: Final = 2
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class Column(NamedTuple):
    """One column. A rank above 0 allows leaving it out of a narrow terminal."""

    title: str
    is_number: bool = False
    rank: int = 0
    style: str = ""


Row = tuple[str, ...]


def print_table(columns: Sequence[Column], rows: Sequence[Row]) -> None:
    """To standard output. A column of some rank that says nothing in any row is left out."""
    told = [
        at
        for at, column in enumerate(columns)
        if not column.rank or any(row[at] != NOTHING for row in rows)
    ]
    columns = [columns[at] for at in told]
    rows = [tuple(row[at] for at in told) for row in rows]
    if sys.stdout.isatty():
        _print_rich(columns, rows, shutil.get_terminal_size().columns)
        return
    for line in plain_lines(columns, rows):
        print(line)


def plain_lines(columns: Sequence[Column], rows: Sequence[Row]) -> Iterator[str]:
    """Header and rows, columns aligned, no blanks at the end of a line."""
    widths = _widths(columns, rows)
    for row in ([column.title for column in columns], *rows):
        cells = (
            cell.rjust(width) if column.is_number else cell.ljust(width)
            for column, cell, width in zip(columns, row, widths, strict=True)
        )
        yield (" " * _GAP).join(cells).rstrip()


def fitting(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[int]:
    """The numbers of the columns that fit `width`; those of rank 0 always stay."""
    widths = _widths(columns, rows)
    kept = list(range(len(columns)))
    while sum(widths[at] + _GAP for at in kept) > width:
        highest = max(kept, key=lambda at: (columns[at].rank, at))
        if not columns[highest].rank:
            break
        kept.remove(highest)
    return kept


def human_size(size_bytes: int) -> str:
    """`1.4 MiB`: at most four digits; bytes are exact."""
    size, unit = float(size_bytes), 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size_bytes} B" if not unit else f"{size:.1f} {_UNITS[unit]}"


def _widths(columns: Sequence[Column], rows: Sequence[Row]) -> list[int]:
    return [
        max(len(column.title), *(len(row[at]) for row in rows)) if rows else len(column.title)
        for at, column in enumerate(columns)
    ]


def _print_rich(columns: Sequence[Column], rows: Sequence[Row], width: int) -> None:
    from rich.console import Console  # noqa: PLC0415 only a terminal pays for rich
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    kept = fitting(columns, rows, width)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for at in kept:
        column = columns[at]
        table.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            style=column.style,
            no_wrap=column.is_number,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(row[at]) for at in kept))
    console = Console(highlight=False)
    console.print(table)
    hidden = [column.title for at, column in enumerate(columns) if at not in kept]
    if hidden:
        console.print(Text(f"({', '.join(hidden)}: in a wider terminal)", style="dim"))
