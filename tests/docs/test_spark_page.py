"""docs/spark.md names every option of a read, and no other; docs/spark-writing.md of a write."""

from __future__ import annotations

import re
from pathlib import Path

from stratalog.bulk.options import SPLIT_BYTES_DEFAULT, TRIGGER_DELAY_MS_DEFAULT
from stratalog.spark.options import READ_OPTIONS, WRITE_OPTIONS, parse_bytes, parse_duration_ms

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "spark.md"


def _options() -> dict[str, str]:
    """Name and default of each row of the table."""
    section = PAGE.read_text().split("\n## Options of a read\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \|", section, re.MULTILINE)
    return {name: default.strip().strip("`") for name, default in rows}


def test_every_option_is_explained() -> None:
    assert tuple(_options()) == READ_OPTIONS


def test_every_option_of_a_write_is_explained() -> None:
    page = PAGE.with_name("spark-writing.md").read_text()
    section = page.split("\n## Options\n")[1].split("\n## ")[0]
    first_cells = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    names = re.findall(r"`([^`]+)`", " ".join(first_cells))
    found = {name.replace("….", "kafka.compression.") for name in names}
    assert found == {*WRITE_OPTIONS, "topicConfig.<setting>"}


def test_the_defaults_are_those_of_the_code() -> None:
    options = _options()
    assert parse_bytes("splitBytes", options["splitBytes"]) == SPLIT_BYTES_DEFAULT
    assert (
        parse_duration_ms("maxTriggerDelay", options["maxTriggerDelay"]) == TRIGGER_DELAY_MS_DEFAULT
    )


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE.read_text()):
        assert (PAGE.parent / target).exists(), target
