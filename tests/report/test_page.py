"""Reports in a real browser."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.bulk.report_data import collect
from stratalog.config import BrokerConfig
from stratalog.format.names import TopicPartition
from stratalog.partitions.settings import SettingsFinder
from stratalog.report.charts import Bar, bars
from stratalog.report.page import render
from stratalog.report.tables import axis_time
from tests.cli.command import inside
from tests.golden.cases import GOLDEN_DIR
from tests.report.browser import Browser
from tests.report.pages import BACKGROUND, DESKTOP, SECTIONS, check_page

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.bulk.report_data import ReportFacts

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("chromium")]

NOW = "2026-11-17T15:00"
NOW_MS = 1_795_000_000_000
GOLDEN = ["txn", "u-badcrc/before", "compact", "_logdir-run1"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


def report_of(path: Path, target: Path, *options: str) -> Path:
    page = target / "report.html"
    assert inside("report", path, "-o", page, "--now", NOW, *options).status == 0
    return page


@pytest.mark.parametrize("name", GOLDEN)
def test_what_kafka_wrote(name: str, browser: Browser, tmp_path: Path) -> None:
    check_page(browser, report_of(GOLDEN_DIR / name, tmp_path))


def test_a_quick_report_has_the_same_sections(browser: Browser, tmp_path: Path) -> None:
    page = report_of(GOLDEN_DIR / "multiseg", tmp_path, "--quick")
    browser.open(page, width=DESKTOP)
    found = browser.evaluate("[...document.querySelectorAll('section')].map(s => s.id)")
    assert found == SECTIONS
    assert "not verified" in browser.evaluate("document.querySelector('#findings').textContent")
    assert browser.complaints == []


def many_partitions(count: int) -> ReportFacts:
    """A directory with so many partitions of one topic, and so many of topics of their own."""
    path = GOLDEN_DIR / "multiseg" / "multiseg-0"
    facts = collect([path], SettingsFinder(BrokerConfig()), now_ms=NOW_MS)
    (topic,) = facts.topics
    (partition,) = topic.partitions

    def named(name: str, number: int) -> Any:
        size_bytes = partition.size_bytes + number
        place = TopicPartition(name, number)
        return replace(partition, topic_partition=place, size_bytes=size_bytes)

    half = count // 2
    large = replace(topic, topic="a", partitions=tuple(named("a", n) for n in range(half)))
    small = [replace(topic, topic=f"b{n}", partitions=(named(f"b{n}", 0),)) for n in range(half)]
    return replace(facts, topics=(large, *small))


def test_a_thousand_partitions_open_in_under_two_seconds(tmp_path: Path) -> None:
    """In seconds of work, of a browser that has done nothing else: here other tests run, too."""
    page = tmp_path / "large.html"
    page.write_text(render(many_partitions(1000)), encoding="utf-8")
    assert page.stat().st_size < 3_000_000
    with Browser() as browser:
        browser.open(page, width=DESKTOP)
        assert browser.busy_seconds() < 1.5
        check_large_tables(browser)


def check_large_tables(browser: Browser) -> None:
    assert browser.evaluate("document.querySelectorAll('#topics tbody tr').length") == 501 + 1000
    visible = "[...document.querySelectorAll('#topics tbody tr')].filter(r => !r.hidden).length"
    assert browser.evaluate(visible) == 100
    assert browser.complaints == []
    click_all = "[...document.querySelectorAll('#topics .all')].forEach(b => b.click())"
    browser.evaluate(click_all)
    assert browser.evaluate(visible) == 1501


def first_column(browser: Browser) -> list[str]:
    code = (
        "[...document.querySelectorAll('#topics .tabular')].at(-1)"
        ".querySelectorAll('tbody tr:not([hidden]) td:first-child')"
    )
    found: list[str] = browser.evaluate(f"[...{code}].map(cell => cell.textContent)")
    return found


def test_tables_are_sorted_and_filtered_with_the_keyboard(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "some.html"
    page.write_text(render(many_partitions(40)), encoding="utf-8")
    browser.open(page, width=DESKTOP)
    assert first_column(browser)[:2] == ["a-0", "a-1"]
    head = "[...document.querySelectorAll('#topics .tabular')].at(-1).querySelectorAll('th')[1]"
    browser.evaluate(f"{head}.querySelector('button').focus()")
    browser.press("Enter", 13)  # by size, the largest first
    assert browser.evaluate(f"{head}.getAttribute('aria-sort')") == "descending"
    assert first_column(browser)[0] == "a-19"
    browser.press("Enter", 13)
    assert browser.evaluate(f"{head}.getAttribute('aria-sort')") == "ascending"
    assert first_column(browser)[-1] == "a-19"
    browser.evaluate(
        "(() => { const box = [...document.querySelectorAll('#topics input')].at(-1);"
        "box.value = 'b7'; box.dispatchEvent(new Event('input')); })()"
    )
    assert first_column(browser) == ["b7-0"]


def test_everything_can_be_reached_with_the_keyboard(browser: Browser, tmp_path: Path) -> None:
    browser.open(report_of(GOLDEN_DIR / "txn", tmp_path), width=DESKTOP)
    browser.press("Tab", 9)
    assert browser.evaluate("document.activeElement.className") == "skip"
    browser.press("Tab", 9)
    assert browser.evaluate("document.activeElement.id") == "theme"
    before = browser.evaluate(BACKGROUND)
    browser.press("Enter", 13)
    assert browser.evaluate(BACKGROUND) != before
    for _ in SECTIONS:
        browser.press("Tab", 9)
    browser.press("Enter", 13)
    assert browser.evaluate("location.hash") == "#advice"


def test_it_prints(browser: Browser, tmp_path: Path) -> None:
    browser.open(report_of(GOLDEN_DIR / "txn", tmp_path), width=DESKTOP)
    assert browser.pdf().startswith(b"%PDF-")
    browser.call("Emulation.setEmulatedMedia", media="print")
    for name in ("nav", "#theme"):
        shown = browser.evaluate(f"getComputedStyle(document.querySelector('{name}')).display")
        assert shown == "none", name
    browser.call("Emulation.setEmulatedMedia", media="")


def test_partitions_of_a_topic_with_a_long_name_can_be_told_apart() -> None:
    shown = bars([Bar(f"a-topic-with-a-very-long-name-{number}", 1, "1") for number in (10, 11)])
    assert "<s>a-topic-with-a-very-long-n</s>ame-10</span>" in shown
    assert "ame-11</span>" in shown


def test_a_short_axis_has_seconds() -> None:
    assert axis_time(1_700_000_000_000, 2000) == "2023-11-14 22:13:20"
    assert axis_time(1_700_000_000_000, 3_600_000) == "2023-11-14 22:13"


def test_names_cannot_inject_anything(browser: Browser, tmp_path: Path) -> None:
    facts = many_partitions(2)
    hostile = "<script>console.log(1)</script><img src=x onerror=console.log(2)>\"'"
    topics = (replace(facts.topics[0], topic=hostile), facts.topics[1])
    page = tmp_path / "hostile.html"
    page.write_text(render(replace(facts, topics=topics)), encoding="utf-8")
    browser.open(page, width=DESKTOP)
    assert browser.complaints == []
    assert hostile in browser.evaluate("document.querySelector('#topics').textContent")


def test_the_page_names_no_other_file() -> None:
    text = render(many_partitions(2))
    assert re.findall(r'(?:src|href)="(?!#)', text) == []
    assert "http" not in text.replace("http-equiv", "")
