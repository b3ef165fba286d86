"""Tables that the page can sort: a cell shows text and sorts by a value."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.format.batch import NO_TIMESTAMP
from stratalog.format.quantities import duration_text, human_size
from stratalog.format.times import format_time

if TYPE_CHECKING:
    from collections.abc import Sequence


WRAPS_AT: Final = 32
SHORT_AXIS_MS: Final = 600_000


class Cell(NamedTuple):
    """What a cell shows, and what it sorts by; a number is set flush right."""

    text: str
    value: float | str | None = None
    kind: str = ""
    """A class of the style sheet: error, warning, note, mark."""


def table(
    caption: str, titles: Sequence[str], rows: Sequence[Sequence[Cell]], *, can_filter: bool = False
) -> str:
    """The table, or nothing if it has no rows. A title that begins with `#` heads a column of
    numbers."""
    if not rows:
        return ""
    head = "".join(
        f'<th scope="col"{_number(title)}><button type="button">{escape(title.lstrip("#"))}'
        "</button></th>"
        for title in titles
    )
    body = "".join(
        f"<tr>{''.join(_cell(cell, title) for cell, title in zip(row, titles, strict=True))}</tr>"
        for row in rows
    )
    search = (
        f'<input type="search" placeholder="Filter" aria-label="Filter: {escape(caption)}">'
        if can_filter
        else ""
    )
    return (
        f'<div class="tabular"><div class="over"><h3>{escape(caption)}</h3>{search}</div>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></div>"
    )


def _number(title: str) -> str:
    return ' class="n"' if title.startswith("#") else ""


def _cell(cell: Cell, title: str) -> str:
    """Long texts may wrap."""
    value = "" if cell.value is None else f' data-v="{escape(str(cell.value))}"'
    if len(cell.text) > WRAPS_AT:
        value += ' class="w"'
    text = escape(cell.text)
    shown = f'<span class="badge {cell.kind}">{text}</span>' if cell.kind else text
    return f"<td{_number(title)}{value}>{shown}</td>"


# -- cells


def words(text: str) -> Cell:
    return Cell(text, text.lower())


def number(value: float, text: str | None = None) -> Cell:
    return Cell(f"{value:,}" if text is None else text, value)


def size(size_bytes: float) -> Cell:
    return Cell(human_size(round(size_bytes)), round(size_bytes))


def share(value: float | None) -> Cell:
    return Cell("–", -1) if value is None else Cell(f"{value:.1%}", value)  # noqa: RUF001 - a dash


def moment(timestamp: int) -> Cell:
    return Cell(short_time(timestamp), timestamp)


def duration(ms: float) -> Cell:
    return Cell(duration_text(round(ms)), ms)


def axis_time(timestamp: float, span_ms: float) -> str:
    """To the minute; to the second on a short axis."""
    return short_time(timestamp)[: 16 if span_ms >= SHORT_AXIS_MS else 19]


def short_time(timestamp: float) -> str:
    """To the second."""
    if timestamp == NO_TIMESTAMP:
        return "–"  # noqa: RUF001 - a dash
    text = format_time(int(timestamp))
    return text[:19].replace("T", " ") if text.endswith("Z") else text
