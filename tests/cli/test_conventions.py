"""What all commands have in common: names in JSON, short options, help."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.main import get_command

from stratalog.cli import output
from stratalog.cli.main import COMMANDS, LazyGroup, app, module_of
from stratalog.log_dir import LogDir
from tests.cli.command import inside
from tests.golden.cases import GOLDEN_DIR, GoldenCase

if TYPE_CHECKING:
    from collections.abc import Iterator

CAMEL = re.compile(r"[a-z]+([A-Z][a-z0-9]*)*")
MAPS = {"config", "configSources", "settings", "codecs", "freedBy"}
"""Objects whose keys are data: settings by Kafka's names, codecs."""
OTHERS = {"backup", "restore", "ingest", "export", "reindex", "compile-kernels", "report", "serve"}
"""Verbs that move data, write indexes or caches, or serve clients."""

TXN = GOLDEN_DIR / "txn" / "txn-0"
LOG_DIR = GOLDEN_DIR / "_logdir-run1"
COMPACT = GOLDEN_DIR / "compact"
POLICY = ("-c", "cleanup.policy=compact")
RUNS: list[tuple[str | Path, ...]] = [
    ("ls", LOG_DIR),
    ("ls", TXN, "--all"),
    ("read", TXN, "-n", "3"),
    ("find", TXN, "--offset", "100"),
    ("find", TXN, "--max-timestamp"),
    ("explain", TXN, "--offset", "100"),
    ("explain", TXN, "--time", "0"),
    ("dump", TXN, "--print-data-log"),
    ("stats", COMPACT, "--what-if", "retention.ms=1"),
    ("tune", COMPACT, "--simulate", "cleanup.policy=compact"),
    ("verify", GOLDEN_DIR / "u-badcrc" / "before"),
    ("diff", GOLDEN_DIR / "u-badcrc" / "before", GOLDEN_DIR / "u-badcrc" / "after"),
    ("repair", GOLDEN_DIR / "u-badcrc" / "before"),
    ("retain", COMPACT, "--explain", "--defaults"),
    ("recover", GOLDEN_DIR / "u-badcrc" / "before", "--dry-run"),
    ("compact", COMPACT, "compact", "--explain", *POLICY),
    ("compact", COMPACT, "compact", "--key", "k1", *POLICY),
    ("topic", "describe", "-d", COMPACT),
]


def keys_of(value: Any) -> Iterator[str]:
    """Every key of every object in it, but for maps."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            if name not in MAPS:
                yield from keys_of(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys_of(inner)


def wrong_keys(rows: list[dict[str, Any]]) -> set[str]:
    assert rows
    return {name for name in keys_of(rows) if not CAMEL.fullmatch(name)}


@pytest.mark.slow
@pytest.mark.parametrize("args", RUNS, ids=lambda args: "-".join(map(str, args[::2]))[-30:])
def test_names_in_json_are_in_camel_case(args: tuple[str | Path, ...]) -> None:
    assert wrong_keys(inside(*args, "--json").rows) == set()


@pytest.mark.slow
def test_so_they_are_where_something_is_done(tmp_path: Path) -> None:
    copied = GoldenCase("compact").copy_to(tmp_path / "a")
    assert wrong_keys(inside("compact", copied, "compact", *POLICY, "--json").rows) == set()
    with LogDir.open(tmp_path / "b") as logs:
        config = {"retention.ms": 1, "segment.bytes": 16384}
        logs.create_topic("old", config=config)
        for _ in range(20):
            logs.append("old", bytes(2000), timestamp=1_700_000_000_000)
    rows = inside("maintain", tmp_path / "b", "--once", "--json").rows
    assert wrong_keys(rows) == set()
    assert len(rows) > 1


def test_so_they_are_where_data_is_moved(tmp_path: Path) -> None:
    copied = GoldenCase("multiseg").copy_to(tmp_path / "a")
    next(copied.rglob("*.timeindex")).unlink()
    lines = tmp_path / "lines.txt"
    lines.write_text("one\ntwo\n")
    runs: tuple[tuple[str | Path, ...], ...] = (
        ("reindex", copied),
        ("export", copied, "--to", tmp_path / "out"),
        ("ingest", lines, "--to", tmp_path / "b", "--topic", "t", "--partitions", "1"),
        ("backup", copied, tmp_path / "c", "--keep", "1", "--verify"),
        ("backup", tmp_path / "c", "--list"),
        ("restore", tmp_path / "c", tmp_path / "d"),
    )
    for args in runs:
        assert wrong_keys(inside(*args, "--json").rows) == set()


def test_the_check_can_fail() -> None:
    assert wrong_keys([{"a": [{"size_bytes": 1}]}, {"config": {"retention.ms": 1}}]) == {
        "size_bytes"
    }


def test_all_inspecting_verbs_are_walked() -> None:
    assert {args[0] for args in RUNS} | OTHERS | {"maintain"} == set(COMMANDS)


# -- options and help


def command_of(name: str) -> Any:
    group = get_command(app)
    assert isinstance(group, LazyGroup)
    return group.get_command(None, name)


SHORT_OPTIONS = {
    "-a": "--all",
    "-c": "--config",
    "-d": "--log-dir",
    "-f": "--follow",
    "-g": "--grep",
    "-H": "--histograms",
    "-h": "--help",
    "-i": "--ignore-case",
    "-n": "--limit",
    "-o": "--offset",
    "-p": "--partitions",
    "-s": "--segments",
    "-t": "--topic",
    "-V": "--version",
    "-y": "--yes",
}
ALSO = {("read", "-o"): "--from", ("report", "-o"): "--output"}
"""The same under another name, an offset; and where everybody expects the file to write."""


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_letter_means_the_same_everywhere(name: str) -> None:
    command = command_of(name)
    commands = [command, *getattr(command, "commands", {}).values()]
    for parameter in (each for found in commands for each in found.params):
        for letter in (flag for flag in parameter.opts if re.fullmatch(r"-\w", flag)):
            assert ALSO.get((name, letter), SHORT_OPTIONS[letter]) in parameter.opts


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_and_what_each_option_does(name: str) -> None:
    text = inside(name, "--help").stdout.decode()
    assert f"\n    stratalog {name} " in text
    assert "Exit status:" in text
    assert "--json" in text
    assert max(map(len, text.splitlines())) <= 100
    command = command_of(name)
    assert [option.name for option in command.params if not option.help] == []
    assert f"`stratalog {name}`" in (import_module(module_of(name)).__doc__ or "")


@pytest.mark.parametrize("name", ["verify", "reindex", "stats", "export", "compact"])
def test_settings_of_spark_are_refused_without_spark(name: str, tmp_path: Path) -> None:
    more = ("--to", tmp_path / "out") if name == "export" else ()
    with pytest.raises(typer.BadParameter, match="--conf requires --master"):
        inside(name, COMPACT, *more, "--conf", "spark.driver.memory=1g")


def test_every_phrase_that_stands_for_a_flag_is_in_a_message() -> None:
    """Otherwise a message that is reworded keeps the name of a Python argument."""
    package = Path(output.__file__).parents[1]
    texts = [
        node.value
        for path in package.rglob("*.py")
        if path != Path(output.__file__)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    for phrase in output._FLAGS:
        option = phrase.removesuffix(": ")  # which ConfigError puts before its message
        if option == phrase:
            assert any(phrase in text for text in texts), phrase
        else:
            assert option in texts, phrase
