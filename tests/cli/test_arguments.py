"""Settings as operators write them, and options that commands share."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import pytest
import typer
from typer.testing import CliRunner

from stratalog.cli.arguments import flag, option, repeatable, setting_values, with_groups
from stratalog.errors import ConfigError


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
    ],
)
def test_units(given: str, expected: str | None) -> None:
    name = given.partition("=")[0]
    if expected is None:
        with pytest.raises(typer.BadParameter, match="not a whole number of minutes"):
            setting_values("--config", [given])
    else:
        assert setting_values("--config", [given]) == {name: expected}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("retention.ms=7x", "retention.ms: '7x' is not valid; use milliseconds, or a duration "),
        ("log.retention.hours=x", "'x' is not valid; use hours, or a duration such as 90s"),
        ("max.message.bytes=1d", "max.message.bytes: '1d' is not valid; use bytes, or with a unit"),
    ],
)
def test_an_error_shows_which_units_there_are(given: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        setting_values("--config", [given])


class Shared(NamedTuple):
    """Options that two commands could share."""

    name: Annotated[str, typer.Argument()]
    size: Annotated[str | None, option("--size", "N", "How large.", short="-s")] = None
    tags: Annotated[list[str] | None, repeatable("--tag", "TAG", "A tag.")] = None


@with_groups
def command(
    first: Annotated[bool, flag("--first", "Comes first.")] = False,
    *,
    shared: Shared,
    last: Annotated[bool, flag("--last", "Comes last.", short="-l")] = False,
) -> None:
    """Print what was given."""
    typer.echo(f"{first} {tuple(shared)} {last}")


def run(*args: str) -> str:
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, args).output


def test_a_group_gets_its_options() -> None:
    assert run("a", "-s", "3", "--tag", "x", "--tag", "y", "-l") == (
        "False ('a', '3', ['x', 'y']) True\n"
    )
    assert run("b", "--first") == "True ('b', None, None) False\n"


def test_a_required_field_of_a_group_is_required() -> None:
    assert "Missing argument" in run("--first")


def test_the_options_of_a_group_are_where_the_group_is() -> None:
    text = run("--help")
    places = [text.index(name) for name in ("--first", "--size", "--tag", "--last")]
    assert places == sorted(places)
    assert "A tag. Repeatable." in text
