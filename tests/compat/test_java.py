"""Kafka's own Java clients, if KAFKA_CLIENTS_JARS names a directory that has `kafka-clients-*.jar`
and what it depends on (slf4j-api, lz4, snappy, zstd)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from stratalog.broker.broker import Broker

JARS = os.environ.get("KAFKA_CLIENTS_JARS")
SOURCE = Path(__file__).parent / "java" / "JavaClients.java"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(JARS is None, reason="KAFKA_CLIENTS_JARS is not set"),
    pytest.mark.skipif(shutil.which("javac") is None, reason="there is no Java compiler"),
]


def test_what_java_clients_do(tmp_path: Path) -> None:
    jars = sorted(Path(str(JARS)).glob("*.jar"))
    classpath = os.pathsep.join(map(str, [tmp_path, *jars]))
    protocols = "classic,consumer" if _knows_both_protocols(jars) else "classic"
    compiler = ["javac", "-nowarn", "-cp", classpath, "-d", str(tmp_path), str(SOURCE)]
    subprocess.run(compiler, check=True, timeout=120)
    with Broker(tmp_path / "data") as broker:
        command = ["java", "-cp", classpath, "JavaClients", broker.bootstrap_servers, protocols]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "done\n", done.stderr


def _knows_both_protocols(jars: list[Path]) -> bool:
    """Since 4.0, which is 8.0 in Confluent's numbers."""
    (name,) = (jar.name for jar in jars if jar.name.startswith("kafka-clients-"))
    match = re.search(r"-(\d+)\.", name)
    assert match is not None, name
    return int(match[1]) >= (8 if "-ccs" in name else 4)
