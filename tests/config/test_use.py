"""Every setting is either acted upon or marked as carried: the documents say which."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import stratalog
from stratalog.config.broker import BROKER_DEFINITIONS
from stratalog.config.topic import TOPIC_DEFINITIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stratalog.config.definitions import Definition

PACKAGE = Path(stratalog.__file__).parent
ATTRIBUTE = re.compile(r"\.([a-z_][a-z0-9_]*)\b")
METHOD = re.compile(r"    def ([a-z_0-9]+)\(self[^\n]*\n((?:        [^\n]*\n|\n)+)")


def read_outside_config() -> set[str]:
    """Names of attributes that something outside `config` reads."""
    names: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        if "config" not in path.relative_to(PACKAGE).parts[:1]:
            names |= set(ATTRIBUTE.findall(path.read_text()))
    return names


def read_settings() -> set[str]:
    """Those, and what methods of a config that are called go by."""
    names = read_outside_config()
    for path in (PACKAGE / "config").glob("*.py"):
        for name, body in METHOD.findall(path.read_text()):
            if name in names:
                names |= set(ATTRIBUTE.findall(body))
    return names


@pytest.mark.parametrize("definitions", [TOPIC_DEFINITIONS, BROKER_DEFINITIONS])
def test_settings_are_read_or_marked_as_carried(definitions: Mapping[str, Definition]) -> None:
    read = read_settings()
    carried = {definition.field for definition in definitions.values() if definition.is_carried}
    settings = {definition.field for definition in definitions.values()}
    assert len(settings) > 20
    assert sorted(settings - read - carried) == []  # documented as active, and read by nothing
    assert sorted(carried & read) == []  # acted upon, and documented as carried
