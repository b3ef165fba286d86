"""Settings as operators write them."""

from __future__ import annotations

import pytest
import typer

from stratalog.cli.arguments import setting_values


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("retention.ms=7d", "604800000"),
        ("retention.ms=1h30m", "5400000"),
        ("retention.ms=604800000", "604800000"),
        ("retention.ms=-1", "-1"),
        ("log.retention.hours=2d", "48"),
        ("log.retention.minutes=90s", None),
        ("retention.bytes=10GiB", "10737418240"),
        ("segment.bytes=512M", "536870912"),
        ("log.cleaner.dedupe.buffer.size=1k", "1024"),
        ("cleanup.policy=1d", "1d"),
        ("max.message.bytes=1d", "1d"),
    ],
)
def test_units(given: str, expected: str | None) -> None:
    name = given.partition("=")[0]
    if expected is None:
        with pytest.raises(typer.BadParameter, match="not a whole number of minutes"):
            setting_values("--config", [given])
    else:
        assert setting_values("--config", [given]) == {name: expected}
