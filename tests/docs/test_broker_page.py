"""docs/broker.md says what the code does: tables are compared, examples run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from stratalog.broker.broker import Broker
from stratalog.broker.network_config import NETWORK_DEFINITIONS
from stratalog.broker.security.acls import parse_acls
from stratalog.wire.apis import SERVED

if TYPE_CHECKING:
    import pytest

PAGE = Path(__file__).parents[2] / "docs" / "broker.md"
TEXT = PAGE.read_text(encoding="utf-8")


def _section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def _rows(title: str) -> list[list[str]]:
    """The rows of the table in a section, without its head."""
    lines = [line for line in _section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_requests_are_those_that_are_served(tmp_path: Path) -> None:
    expected = [[str(int(api)), api.title, str(SERVED[api])] for api in sorted(SERVED)]
    assert _rows("What is served") == expected
    with Broker(tmp_path) as broker:
        assert broker._dispatcher.apis == sorted(SERVED)


def test_the_limits_are_those_of_the_code() -> None:
    expected = [
        [f"`{name}`", each.kind.text(each.default), each.doc[0].lower() + each.doc[1:].rstrip(".")]
        for name, each in NETWORK_DEFINITIONS.items()
    ]
    assert _rows("Limits") == expected


def test_the_rules_can_be_read() -> None:
    (rules,) = _blocks("acls")
    assert len(parse_acls(rules)) == 8


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = _blocks("python")
    assert len(blocks) == 3
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert (tmp_path / "data" / "orders-2").is_dir()
    assert callable(names["test_orders"])  # with the fixture: tests/broker/test_pytest_plugin.py


def test_the_settings_of_tls_are_read() -> None:
    source = Path(__file__).parents[2] / "src" / "stratalog" / "broker" / "security"
    code = "".join(path.read_text(encoding="utf-8") for path in source.glob("*.py"))
    for setting, *_ in _rows("TLS"):
        name = setting.strip("`")
        store = re.sub(r"\.(keystore|truststore)\.location", ".{store}.location", name)
        assert name in code or store in code, name
