"""docs/migrating-from-the-kafka-connector.md says what the code does with each option."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stratalog.errors import ConfigError
from stratalog.spark.connector_options import CONNECTOR_OPTIONS, IGNORED_CLIENT_SETTINGS, Treatment
from stratalog.spark.options import (
    READ_OPTIONS,
    WRITE_OPTIONS,
    parse_read_options,
    parse_write_options,
)

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
PAGE = (DOCS / "migrating-from-the-kafka-connector.md").read_text()
SECTION = PAGE.split("\n## Every option\n")[1].split("\n## ")[0]


def test_the_table_is_that_of_the_code() -> None:
    rows = dict(re.findall(r"^\| `([^`]+)` \| (\w+) \|", SECTION, re.MULTILINE))
    assert rows == {name: each.value for name, each in CONNECTOR_OPTIONS.items()}


def test_the_lists_are_those_of_the_code() -> None:
    lists = re.findall(r"^- of (?:all )?(\w+): (.+)[;.]$", SECTION, re.MULTILINE)
    found = {whose: tuple(re.findall(r"`([^`]+)`", names)) for whose, names in lists}
    assert found == IGNORED_CLIENT_SETTINGS


@pytest.mark.parametrize("name", CONNECTOR_OPTIONS)
def test_options_are_treated_so(name: str) -> None:
    treatment = CONNECTOR_OPTIONS[name]
    is_known = name in READ_OPTIONS or name in WRITE_OPTIONS
    assert is_known is (treatment in (Treatment.SAME, Treatment.DIFFERENT))
    reading, writing = {"path": "/l", "subscribe": "t"}, {"path": "/l", "topic": "t"}
    if treatment is Treatment.REFUSED:
        for parse, base in ((parse_read_options, reading), (parse_write_options, writing)):
            with pytest.raises(ConfigError, match=f"^{name}: is not supported; "):
                parse({**base, name: "x"})
    elif treatment is Treatment.IGNORED:
        assert parse_read_options({**reading, name: "x"}) == parse_read_options(reading)
        assert parse_write_options({**writing, name: "x"}) == parse_write_options(writing)


def test_settings_of_clients_are_ignored() -> None:
    names = [name for names in IGNORED_CLIENT_SETTINGS.values() for name in names]
    given = {f"kafka.{name.replace('*', 'any.thing')}": "x" for name in names}
    base = {"path": "/l", "subscribe": "t"}
    assert parse_read_options({**base, **given}) == parse_read_options(base)
