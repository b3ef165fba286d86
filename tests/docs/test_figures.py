"""Tables and chart of figures are those of the recorded runs."""

from __future__ import annotations

import json
import re

from benchmarks.figures import CHART, HIGHLIGHTS, PAGES, RESULTS, chart, record, render

RECORDED = json.loads(RESULTS.read_text(encoding="utf-8"))


def test_the_pages_show_the_recorded_figures() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert "<!-- figures: " in text, page
        assert render(text, RECORDED) == text, f"{page}: run `python -m benchmarks.figures`"


def test_the_chart_shows_the_recorded_figures() -> None:
    assert CHART.read_text(encoding="utf-8") == chart(RECORDED)
    assert CHART.read_text(encoding="utf-8").count("<rect ") == 2 * len(HIGHLIGHTS)


def test_every_recorded_benchmark_has_a_table() -> None:
    shown = re.findall(r"<!-- figures: (\w+) -->", PAGES[0].read_text(encoding="utf-8"))
    assert set(RECORDED) <= set(shown)
    modules = {
        path.stem for path in RESULTS.parent.glob("*.py") if "\ndef run(" in path.read_text()
    }
    assert sorted(shown) == sorted(modules)


def test_a_run_replaces_the_older_one_of_its_benchmarks() -> None:
    timing = {"case": "c", "who": "w", "seconds": 1.0, "rounds": 1, "records": 0, "size_bytes": 0}
    run = {
        "machine": "m",
        "python": "3.13",
        "timings": [{"benchmark": "decode", **timing}],
        "requirements": [],
    }
    recorded = record(RECORDED, run, "2026-01-01")
    assert recorded["decode"]["timings"] == [timing]
    assert recorded["compact"] == RECORDED["compact"]
