"""Charts as HTML and inline SVG, drawn here, so that the page needs no script to show them.

Shapes stretch with the page, and texts are HTML beside them, so that they stay readable on a phone.
Colours are variables of the style sheet. Every mark has a title, and every chart a text for those
who do not see it.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    AxisText = Callable[[float, float], str]
    """A place on an axis as text, by its value and the length of the axis."""

COLOURS: Final = 8
MARKS_IN_LANE_MAX: Final = 160
LABELS_MAX: Final = 6
LABEL_END_CHARS: Final = 6


class LineSeries(NamedTuple):
    """A series: values by x, in order."""

    label: str
    points: Sequence[tuple[float, float]]


class Bar(NamedTuple):
    """A horizontal bar."""

    label: str
    value: float
    text: str
    marked: float | None = None
    """A second value, drawn inside the bar: what would be left, a mean."""


class Span(NamedTuple):
    """A mark in a lane, from one time to another."""

    start: float
    end: float
    title: str
    is_odd: bool = False


def chart(title: str, body: str, *, note: str = "", legend: Sequence[str] = ()) -> str:
    """A figure with its caption. A name of the legend has the colour of its position, if any."""
    keys = "".join(
        f'<li><i class="key c{number % COLOURS}"></i>{escape(name)}</li>'
        for number, name in enumerate(legend)
        if name
    )
    keys = f'<ul class="legend">{keys}</ul>' if keys else ""
    note = f'<p class="note">{escape(note)}</p>' if note else ""
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>{keys}{body}{note}</figure>'
    )


def bars(rows: Sequence[Bar], *, largest: float | None = None) -> str:
    """Horizontal bars, in the order given."""
    top = largest or max((row.value for row in rows), default=0) or 1
    found = []
    for row in rows:
        inner = ""
        if row.marked is not None:
            inner = f'<b style="width:{_percent(row.marked / top)}"></b>'
        found.append(
            f'<li title="{escape(row.label)}: {escape(row.text)}"><span>{_label(row.label)}</span>'
            f'<em><i style="width:{_percent(row.value / top)}"></i>{inner}</em>'
            f"<var>{escape(row.text)}</var></li>"
        )
    return f'<ul class="bars">{"".join(found)}</ul>'


def _label(label: str) -> str:
    """Where there is no room the middle is cut out: partitions of a topic differ in their ends."""
    cut = max(0, len(label) - LABEL_END_CHARS)
    return f"<s>{escape(label[:cut])}</s>{escape(label[cut:])}"


def stacks(rows: Sequence[tuple[str, Sequence[tuple[int, float, str]]]]) -> str:
    """Horizontal bars of shares that add up to one: (colour, share, title)."""
    found = []
    for label, parts in rows:
        marks = "".join(
            f'<i class="c{colour % COLOURS}" style="width:{_percent(share)}" '
            f'title="{escape(title)}"></i>'
            for colour, share, title in parts
        )
        text = "; ".join(title for _, _, title in parts)
        found.append(
            f'<li><span>{_label(label)}</span><em class="stack" role="img" '
            f'aria-label="{escape(text)}">{marks}</em></li>'
        )
    return f'<ul class="bars">{"".join(found)}</ul>'


def histogram(bins: Sequence[tuple[str, int]], unit: str) -> str:
    """Upright bars with their labels below."""
    if not bins:
        return _nothing()
    top = max(count for _, count in bins) or 1
    width = 100 / len(bins)
    marks = "".join(
        f'<rect x="{number * width + width * 0.08:.2f}" width="{width * 0.84:.2f}" '
        f'y="{100 - 100 * count / top:.2f}" height="{100 * count / top:.2f}">'
        f"<title>{escape(label)}: {count:,} {escape(unit)}</title></rect>"
        for number, (label, count) in enumerate(bins)
    )
    labels = _thinned([label for label, _ in bins])
    below = "".join(f"<span>{escape(label)}</span>" for label in labels)
    text = ", ".join(f"{label}: {count:,}" for label, count in bins)
    return _plot(marks, f"{top:,}", "0", f'<div class="x each">{below}</div>', text)


def lines(series: Sequence[LineSeries], *, x_text: AxisText, y_text: Callable[[float], str]) -> str:
    """Lines over a common x."""
    series = [line for line in series if line.points]
    if not series:
        return _nothing()
    xs = [x for line in series for x, _ in line.points]
    ys = [y for line in series for _, y in line.points]
    left, right, bottom, top = min(xs), max(xs), min(ys), max(ys)
    spread, height = (right - left) or 1, (top - bottom) or 1
    marks = []
    for number, line in enumerate(series):
        places = [((x - left) / spread, (y - bottom) / height) for x, y in line.points]
        if len(places) == 1:  # a line needs two
            places = [(0.0, places[0][1]), (1.0, places[0][1])]
        marks.append(
            f'<polyline class="c{number % COLOURS}" points="{_points(places)}">'
            f"<title>{escape(line.label)}</title></polyline>"
        )
    text = "; ".join(
        f"{line.label}: {y_text(line.points[0][1])} to {y_text(line.points[-1][1])}"
        for line in series
    )
    axis = _axis("x", left, right, x_text)
    return _plot("".join(marks), y_text(top), y_text(bottom), axis, text)


def areas(
    xs: Sequence[float],
    layers: Sequence[tuple[str, Sequence[float]]],
    *,
    x_text: AxisText,
    y_text: Callable[[float], str],
) -> str:
    """Layers on top of each other, the first at the bottom: the upper edge is their sum."""
    if len(xs) < 2 or not layers:
        return _nothing()
    left, spread = xs[0], (xs[-1] - xs[0]) or 1
    top = max(sum(column) for column in zip(*(values for _, values in layers), strict=True)) or 1
    below = [0.0] * len(xs)
    marks = []
    for number, (label, values) in enumerate(layers):
        above = [low + value for low, value in zip(below, values, strict=True)]
        edges = [*zip(xs, above, strict=True), *reversed([*zip(xs, below, strict=True)])]
        places = [((x - left) / spread, y / top) for x, y in edges]
        marks.append(
            f'<polygon class="c{number % COLOURS}" points="{_points(places)}">'
            f"<title>{escape(label)}: {escape(y_text(values[-1]))}</title></polygon>"
        )
        below = above
    text = "; ".join(f"{label}: {y_text(values[-1])}" for label, values in layers)
    axis = _axis("x", xs[0], xs[-1], x_text)
    return _plot("".join(marks), y_text(top), y_text(0), axis, text)


def _points(places: Sequence[tuple[float, float]]) -> str:
    """Shares of the width and height, as SVG counts them."""
    return " ".join(f"{100 * x:.2f},{100 - 100 * y:.2f}" for x, y in places)


def lanes(rows: Sequence[tuple[str, Sequence[Span]]], *, x_text: AxisText) -> str:
    """A lane for each row, with marks over a common time."""
    spans = [span for _, found in rows for span in found]
    if not spans:
        return _nothing()
    left, right = min(span.start for span in spans), max(span.end for span in spans)
    spread = (right - left) or 1
    found = []
    for label, marks in rows:
        shown = "".join(
            f'<i{" class=odd" if span.is_odd else ""} title="{escape(span.title)}" style="'
            f"left:{_percent((span.start - left) / spread)};"
            f'width:max(2px,{_percent((span.end - span.start) / spread)})"></i>'
            for span in _merged(marks)
        )
        found.append(
            f'<li><span>{_label(label)}</span><em class="lane" role="img" '
            f'aria-label="{len(marks)} segments">{shown}</em></li>'
        )
    axis = _axis("x lane-x", left, right, x_text)
    return f'<ul class="bars lanes">{"".join(found)}</ul>{axis}'


def _merged(spans: Sequence[Span]) -> Sequence[Span]:
    """Neighbours as one mark, if there are more than can be told apart."""
    step = -(-len(spans) // MARKS_IN_LANE_MAX)
    if step <= 1:
        return spans
    return [
        Span(
            min(span.start for span in part),
            max(span.end for span in part),
            f"{len(part)} segments, from {part[0].title}",
            any(span.is_odd for span in part),
        )
        for part in (spans[at : at + step] for at in range(0, len(spans), step))
    ]


def _plot(marks: str, top: str, bottom: str, axis: str, text: str) -> str:
    grid = '<path class="grid" d="M0 25H100M0 50H100M0 75H100"/>'
    return (
        f'<div class="plot"><div class="y"><span>{escape(top)}</span><span>{escape(bottom)}</span>'
        f'</div><svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(text[:600])}">{grid}{marks}</svg>{axis}</div>'
    )


def _axis(kind: str, left: float, right: float, text: AxisText) -> str:
    """Both ends and the middle; on a phone only the ends."""
    places = (left, (left + right) / 2, right)
    labels = "".join(f"<span>{escape(text(place, right - left))}</span>" for place in places)
    return f'<div class="{kind}">{labels}</div>'


def _thinned(labels: Sequence[str]) -> list[str]:
    """Every nth, so that they do not overlap; the others are empty."""
    step = -(-len(labels) // LABELS_MAX)
    return [label if number % step == 0 else "" for number, label in enumerate(labels)]


def _percent(share: float) -> str:
    return f"{100 * min(max(share, 0.0), 1.0):.2f}%"


def _nothing() -> str:
    return '<p class="empty">Nothing to show.</p>'
