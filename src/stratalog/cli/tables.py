"""Tables: aligned plain text in a pipe, a rich table on a terminal.

In a pipe nothing is wrapped, cut or coloured, so `awk` and `grep` see whole rows. A terminal may be
too narrow: then columns of a high rank are left out, and a line says which. Times lose their
milliseconds there.
"""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.cli.when import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

NOTHING: Final = "-"
_GAP: Final = 2
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class Column(NamedTuple):
    """One column. A rank above 0 allows leaving it out of a narrow terminal."""

    title: str
    is_number: bool = False
    rank: int = 0
    style: str = ""
    fold_at: int | None = None
    """A column of prose may take more than this only where there is room."""


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
    """The numbers of the columns that fit `width`: all of rank 0, then by rank what has room."""
    widths = [
        width if column.fold_at is None else min(width, column.fold_at)
        for column, width in zip(columns, _widths(columns, rows), strict=True)
    ]
    kept: list[int] = []
    left = width + _GAP  # none after the last
    for at in sorted(range(len(columns)), key=lambda at: columns[at].rank):
        if not columns[at].rank or widths[at] + _GAP <= left:
            kept.append(at)
            left -= widths[at] + _GAP
    return sorted(kept)


def table_time(timestamp: int) -> str:
    """Whole in a pipe; to the second on a terminal, where room is scarce."""
    text = format_time(timestamp)
    if not sys.stdout.isatty() or not text.endswith("Z"):
        return text
    return text[: -len(".000Z")].replace("T", " ")


def human_size(size_bytes: int) -> str:
    """`1.4 MiB`: at most four digits; bytes are exact."""
    size, unit = float(size_bytes), 0
    while round(size, 1) >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size_bytes} B" if not unit else f"{size:.1f} {_UNITS[unit]}"


def counted(number: int, noun: str) -> str:
    """`1 record`, `1,500 records`, `2 batches`, `2 entries`."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y"):
        return f"{number:,} {noun[:-1]}ies"
    return f"{number:,} {noun}es" if noun.endswith("ch") else f"{number:,} {noun}s"


def _widths(columns: Sequence[Column], rows: Sequence[Row]) -> list[int]:
    return [
        max(len(column.title), *(len(row[at]) for row in rows)) if rows else len(column.title)
        for at, column in enumerate(columns)
    ]


def rich_table(columns: Sequence[Column], rows: Sequence[Row]) -> Table:
    """For a terminal. Numbers are never cut; text that does not fit folds."""
    from rich.table import Table  # noqa: PLC0415  # only a terminal pays for rich
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            style=column.style,
            no_wrap=column.is_number,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _print_rich(columns: Sequence[Column], rows: Sequence[Row], width: int) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    kept = fitting(columns, rows, width)
    console = Console(highlight=False)
    console.print(
        rich_table([columns[at] for at in kept], [tuple(row[at] for at in kept) for row in rows])
    )
    hidden = [column.title for at, column in enumerate(columns) if at not in kept]
    if hidden:
        console.print(Text(f"({', '.join(hidden)}: in a wider terminal)", style="dim"))
