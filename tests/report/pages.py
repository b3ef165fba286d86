"""What every report must have, as a browser sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from tests.report.browser import Browser

SECTIONS: Final = [
    "overview",
    "findings",
    "topics",
    "segments",
    "times",
    "indexes",
    "compression",
    "sizes",
    "keys",
    "compaction",
    "producers",
    "advice",
]
DESKTOP, PHONE = 1280, 390

UNDRAWN: Final = """[...document.querySelectorAll("figure.chart")].filter(figure => {
  const marks = figure.querySelectorAll("svg rect, svg polyline, svg polygon, .bars em i");
  const isDrawn = [...marks].some(mark => {
    const box = mark.getBoundingClientRect();
    return box.width > 0 || box.height > 0;
  });
  return !isDrawn && !figure.querySelector(".empty");
}).map(figure => figure.querySelector("figcaption").textContent)"""

BACKGROUND: Final = "getComputedStyle(document.body).backgroundColor"


def check_page(browser: Browser, page: Path) -> None:
    """All sections and charts are there at both widths and in both colours; nothing complains,
    nothing is asked for, nothing is wider than the screen."""
    shown = {}
    for width in (DESKTOP, PHONE):
        for is_dark in (False, True):
            browser.open(page, width=width, is_dark=is_dark)
            where = (page.name, width, is_dark)
            found = browser.evaluate("[...document.querySelectorAll('section')].map(s => s.id)")
            assert found == SECTIONS, where
            assert browser.evaluate(UNDRAWN) == [], where
            assert browser.evaluate("document.querySelectorAll('figure.chart').length") >= 10
            assert browser.evaluate("document.documentElement.scrollWidth") <= width, where
            assert browser.complaints == [], where
            assert browser.requests == [page.as_uri()], where
            shown[is_dark] = browser.evaluate(BACKGROUND)
            assert len(browser.picture()) > 10_000, where
    assert shown[False] != shown[True]
