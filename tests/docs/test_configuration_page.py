"""docs/configuration.md says what the code does: both tables and the example are compared."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stratalog.config.broker import BROKER_DEFINITIONS
from stratalog.config.topic import TOPIC_DEFINITIONS

if TYPE_CHECKING:
    from stratalog.config.definitions import Definition

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "configuration.md"


def rows_below(heading: str) -> list[list[str]]:
    """The cells of the first table below `heading`, without its head."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def type_of(definition: Definition) -> str:
    kind = definition.kind
    is_plain = not kind.allowed or kind.type_name == "boolean"
    return kind.type_name if is_plain else f"{kind.type_name}: {kind.allowed}"


def default_of(definition: Definition) -> str:
    text = definition.kind.text(definition.default)
    return f"`{text}`" if text else "empty"


def meaning_of(definition: Definition) -> str:
    return definition.doc + (" (carried)" if definition.is_carried else "")


def quoted(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def test_topic_settings() -> None:
    expected = [
        [
            f"`{definition.name}`",
            type_of(definition),
            default_of(definition),
            quoted([synonym.name for synonym in definition.synonyms]) or "none",
            meaning_of(definition),
        ]
        for definition in TOPIC_DEFINITIONS.values()
    ]
    assert rows_below("Topic settings") == expected


def test_broker_settings() -> None:
    expected = [
        [
            quoted([synonym.name for synonym in definition.synonyms]),
            type_of(definition),
            default_of(definition),
            meaning_of(definition),
        ]
        for definition in BROKER_DEFINITIONS.values()
    ]
    assert rows_below("Broker settings") == expected


def test_the_example_runs_and_gives_what_it_says() -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    names: dict[str, Any] = {}
    compared = 0
    for line in example.splitlines():
        code, _, said = line.partition("  # ")
        if said:
            assert eval(code.strip(), names) == eval(said), line
            compared += 1
        else:
            exec(line, names)
    assert compared == 4
