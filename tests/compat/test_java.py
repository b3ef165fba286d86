"""Kafka's own Java clients: what they do with a broker, and their reader of logs on what was
restored.

`scripts/ensure_test_tools` fetches the jars. `KAFKA_CLIENTS_JARS` may name another directory that
has `kafka-clients-*.jar` and what it depends on (slf4j-api, lz4, snappy, zstd).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stratalog.broker.broker import Broker
from tests.cli.command import inside
from tests.golden.cases import all_cases

if TYPE_CHECKING:
    from collections.abc import Sequence

HOME = Path(os.environ.get("KAFKA_CLIENTS_JARS") or Path(sys.prefix) / "kafka-clients")
JARS = sorted(HOME.glob("*.jar"))
SOURCES = Path(__file__).parent / "java"
WHY = "Kafka's Java clients are not here: `make test-tools` fetches them, or set KAFKA_CLIENTS_JARS"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not JARS, reason=WHY),
    pytest.mark.skipif(shutil.which("javac") is None, reason="there is no Java compiler"),
]


def test_what_java_clients_do(tmp_path: Path) -> None:
    protocols = "classic,consumer" if _knows_both_protocols(_clients()) else "classic"
    program = _compiled("JavaClients", tmp_path)
    with Broker(tmp_path / "data") as broker:
        assert _run([*program, broker.bootstrap_servers, protocols]) == ["done"]


def test_kafkas_reader_accepts_restored_logs(tmp_path: Path) -> None:
    """Of every format and codec; those of killed and corrupt logs as well, after the recovery."""
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    ends = {}
    for case in all_cases():
        (partition,) = (path for path in case.partition_dirs() if path.parent.name != "after")
        shutil.copytree(partition, data / partition.name)
        ends[partition.name] = case.loaddir["logEndOffset"]
    assert len(ends) == len(all_cases())
    assert inside("backup", data, tmp_path / "store").status == 0
    assert inside("restore", tmp_path / "store", out).status == 0
    logs = sorted(out.glob("*/*.log"))
    program = _compiled("RestoredLogs", tmp_path)
    found = [line.split(" ", 2) for line in _run([*program, *logs])]
    assert [name for *_, name in found] == list(map(str, logs))
    read = {}
    for log, (next_offset, size_bytes, _) in zip(logs, found, strict=True):
        assert int(size_bytes) == log.stat().st_size, log
        read[log.parent.name] = int(next_offset) if int(size_bytes) else int(log.stem)
    assert read == ends
    corrupt = sorted((data / "u-badcrc-0").glob("*.log"))
    with pytest.raises(AssertionError, match="CorruptRecordException"):  # before the recovery
        _run([*program, *corrupt])


def _compiled(name: str, into: Path) -> list[str | Path]:
    """The command that runs a program."""
    source = (SOURCES / f"{name}.java").read_text()
    if not _has_class("org/apache/kafka/common/record/FileRecords.class"):  # since Kafka 4.2
        source = source.replace("kafka.common.record.", "kafka.common.record.internal.")
    file = into / f"{name}.java"
    file.write_text(source)
    classpath = os.pathsep.join(map(str, [into, *JARS]))
    compiler = ["javac", "-nowarn", "-cp", classpath, "-d", str(into), str(file)]
    subprocess.run(compiler, check=True, timeout=120)
    return ["java", "-cp", classpath, name]


def _run(command: Sequence[str | Path]) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def _clients() -> Path:
    (clients,) = (jar for jar in JARS if jar.name.startswith("kafka-clients-"))
    return clients


def _has_class(name: str) -> bool:
    with zipfile.ZipFile(_clients()) as jar:
        return name in jar.namelist()


def _knows_both_protocols(clients: Path) -> bool:
    """Since 4.0, which is 8.0 in Confluent's numbers."""
    match = re.search(r"-(\d+)\.", clients.name)
    assert match is not None, clients.name
    return int(match[1]) >= (8 if "-ccs" in clients.name else 4)
