"""The page around the sections: style, script, navigation."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from stratalog.format.quantities import human_size
from stratalog.report.sections import sections_of
from stratalog.report.tables import short_time

if TYPE_CHECKING:
    from stratalog.bulk.report_data import ReportFacts

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""The browser refuses any request, should a page ever ask for one."""


def render(facts: ReportFacts) -> str:
    """The report as one HTML document."""
    sections = sections_of(facts)
    where = ", ".join(str(path) for path in facts.directories) or "no partitions"
    links = "".join(f'<a href="#{section.name}">{escape(section.link)}</a>' for section in sections)
    body = "".join(
        f'<section id="{section.name}" aria-labelledby="h-{section.name}">'
        f'<h2 id="h-{section.name}">{escape(section.title)}</h2>{section.body}</section>'
        for section in sections
    )
    when = short_time(facts.now_ms)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(where)} – Kafka logs</title>"  # noqa: RUF001 - a dash
        f"<style>{_resource('page.css')}</style></head>\n<body>"
        '<a class="skip" href="#overview">Skip to the report</a>'
        f"<header><h1>{escape(where)}</h1><p>{human_size(facts.size_bytes)} of Kafka logs, as of "
        f"{when} UTC, by Stratalog</p>"
        '<button type="button" id="theme" aria-label="Switch between light and dark">◐</button>'
        f'</header><nav aria-label="Sections">{links}</nav>\n<main>{body}</main>\n'
        f"<script>{_resource('page.js')}</script></body></html>\n"
    )


def _resource(name: str) -> str:
    return (files("stratalog.report") / name).read_text(encoding="utf-8")
