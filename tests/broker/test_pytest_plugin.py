"""The fixture `kafka_broker`, as a project that has Stratalog installed uses it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

PLUGIN = "stratalog.broker.pytest_plugin"
TESTS = """
import pytest
import confluent_kafka


def test_a_record(kafka_broker):
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
    producer.produce("orders", b"two apples")
    assert producer.flush(10) == 0
    (record,) = kafka_broker.log_dir.partition("orders", 0).read()
    assert record.value == b"two apples"


@pytest.mark.kafka_broker(config={"num.partitions": 3})
def test_another_broker(kafka_broker):
    assert list(kafka_broker.log_dir.topics) == []
    assert kafka_broker.log_dir.config.num_partitions == 3
"""


def test_the_entry_point_is_declared() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"stratalog": PLUGIN}


@pytest.mark.slow
def test_each_test_gets_a_broker(tmp_path: Path) -> None:
    assert "2 passed" in _output(tmp_path, TESTS)


@pytest.mark.slow
def test_arguments_without_names_are_refused(tmp_path: Path) -> None:
    tests = TESTS.replace("kafka_broker(config=", "kafka_broker(")
    output = _output(tmp_path, tests)
    assert "1 passed, 1 error" in output
    assert "the marker kafka_broker takes arguments by name, such as config={...}" in output


def _output(directory: Path, tests: str) -> str:
    """What pytest prints about these tests."""
    (directory / "test_mine.py").write_text(tests)
    is_installed = any(point.value == PLUGIN for point in entry_points(group="pytest11"))
    plugin = [] if is_installed else ["-p", PLUGIN]
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *plugin, "test_mine.py"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return done.stdout + done.stderr
