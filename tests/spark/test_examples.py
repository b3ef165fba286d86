"""The demo and the examples that need Spark run, and what they claim is so."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import stratalog
from tests.cli.command import inside
from tests.docs.test_readme import python_blocks, starts_spark
from tests.report.browser import Browser
from tests.report.pages import check_page
from tests.spark import examples_program

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
RECORDS = 10_000
"""Of the demo."""
SCRIPTS = (
    "backfill_to_parquet",
    "from_kafka_connector",
    "exactly_once_stream",
    "first_half_hour",
)
BLOCKS = {name: code for name, code in python_blocks().items() if starts_spark(code)}
"""Of pages."""


def python(*arguments: object, given: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )


def example(name: str, *arguments: object) -> dict[str, object]:
    path = EXAMPLES / f"{name}.py"
    return {"name": name, "arguments": [*map(str, arguments)], "path": str(path), "code": ""}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="module")
def printed(directory: Path) -> dict[str, list[str]]:
    """What each program has printed. One process runs them all: a JVM takes long to start."""
    programs = [
        *(example(name, directory / name) for name in SCRIPTS),
        example("demo", "--records", RECORDS, "--dir", directory / "demo"),
        *({"name": name, "arguments": [], "code": code} for name, code in BLOCKS.items()),
    ]
    done = python(examples_program.__file__, given=json.dumps(programs))
    assert done.returncode == 0, done.stdout + done.stderr
    parts = re.split(r"^== ([\w-]+)\n", done.stdout, flags=re.MULTILINE)[1:]
    return {name: text.splitlines() for name, text in zip(parts[::2], parts[1::2], strict=True)}


def test_backfill_takes_everything_then_what_is_new(printed: dict[str, list[str]]) -> None:
    first, second, last = printed["backfill_to_parquet"]
    assert first.startswith("3000 orders: 2023-11-14 107, 2023-11-15 1440,")
    assert second.startswith("4000 orders: 2023-11-14 107, 2023-11-15 1440,")
    assert sum(json.loads(last.partition(" at ")[2])["orders"].values()) == 4000


def test_a_job_moved_from_the_kafka_connector(printed: dict[str, list[str]]) -> None:
    lines = printed["from_kafka_connector"]
    assert lines[0] == (
        "columns: key, value, topic, partition, offset, timestamp, timestampType, headers"
    )
    counts = [line.split() for line in lines[1:]]
    # Partition 0 is read from offset 100 on: 900 of its 1,000 records, and all of the other.
    assert sum(int(count.strip("b'")) for kind, _, count in counts if kind == "batch:") == 1900
    assert lines[4:] == ["stream: /cart 667", "stream: /help 666", "stream: /home 667"]


def test_a_stream_writes_back_exactly_once(printed: dict[str, list[str]], directory: Path) -> None:
    *stops, done, readings = printed["exactly_once_stream"]
    assert [line.startswith("stopped; windows so far: ") for line in stops] == [True, True]
    assert done == "done; windows: 198, each of them once: True"
    assert readings == "readings in each: [60]"
    logs = stratalog.open_dirs(directory / "exactly_once_stream" / "kafka")
    assert sum(log.log_end_offset for log in logs.partitions_of("by-minute")) == 198


def test_the_first_half_hour(printed: dict[str, list[str]]) -> None:
    lines = printed["first_half_hour"]
    assert [line for line in lines if line.startswith(("stream", "SQL", "polars", "pandas"))] == [
        "pandas: 200 orders appended",
        "stream: 335 orders of apple, 1000 pieces",
        "stream: 330 orders of melon, 990 pieces",
        "stream: 335 orders of pear, 1010 pieces",
        "SQL: apple 1250.00",
        "SQL: melon 3712.50",
        "SQL: pear 2525.00",
        "polars: 336 orders of apple, 1001 pieces",
        "polars: 330 orders of melon, 990 pieces",
        "polars: 335 orders of pear, 1010 pieces",
    ]
    assert [line for line in lines if line.startswith("  ")] == ["  1,000 records", "  1 record"]
    days = [f"DuckDB: 2026-05-0{day} 200 orders, 600 pieces" for day in range(4, 8)]
    assert [line for line in lines if line.startswith("DuckDB")] == days


def test_a_declarative_pipeline(tmp_path: Path) -> None:
    done = python("examples/declarative_pipeline/run.py", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-3:] == [
        f"NL: {sum(range(0, 1000, 2))} cents",
        f"PT: {sum(range(1, 1000, 2))} cents",
        "large orders: 100, each of them once: True",
    ]


@pytest.mark.parametrize("name", BLOCKS)
def test_code_of_pages(printed: dict[str, list[str]], name: str) -> None:
    assert len(BLOCKS) >= 2
    assert printed[name]


def test_demo(printed: dict[str, list[str]], directory: Path) -> None:
    lines = printed["demo"]
    assert [
        line for line in lines if re.fullmatch(r"1\d claims checked, \d+ seconds in all\.", line)
    ]
    start = "$ .venv/bin/stratalog "
    commands = [line.removeprefix(start) for line in lines if line.startswith(start)]
    assert [command.split()[0] for command in commands] == [
        "ls", "explain", "read", "compact", "compact", "retain", "stats", "verify", "report"
    ]  # fmt: skip
    for command in commands:
        tried = inside(*shlex.split(command))
        assert tried.status == 0, (command, tried.stderr)
        assert tried.stdout, command
    with Browser() as browser:
        check_page(browser, directory / "demo" / "report.html")


def has_records(root: Path) -> bool:
    """A job is done then, so that all of Spark's threads and processes are there."""
    return any(path.stat().st_size for path in root.rglob("*.log"))


def test_an_interrupted_demo_ends_with_a_line(tmp_path: Path) -> None:
    with subprocess.Popen(
        [
            sys.executable,
            "examples/demo.py",
            "--records",
            "100000",
            "--dir",
            str(tmp_path / "demo"),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        while process.poll() is None and not has_records(tmp_path):
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        printed, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (130, "")
    assert printed.splitlines()[-1] == "The demo was interrupted; run it again to start again."


def test_demo_deletes_only_what_it_made(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    done = python("examples/demo.py", "--dir", tmp_path)
    assert done.returncode == 1
    assert done.stdout == (
        f"The demo has failed: {tmp_path} is not empty, and not from an earlier run\n"
    )
    assert (tmp_path / "mine").read_text() == "precious"
