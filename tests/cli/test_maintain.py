"""`stratalog maintain`: the service in the foreground, once or until a signal."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log_dir import LogDir
from tests.cli.command import COMMAND, inside, stratalog
from tests.golden.cases import GoldenCase
from tests.opening import SMALL

if TYPE_CHECKING:
    from pathlib import Path

HOUR_MS = 3_600_000
BUFFERS = [
    "-c",
    "log.cleaner.dedupe.buffer.size=2000000",
    "-c",
    "log.cleaner.io.buffer.size=100000",
]


def make(path: Path, **topics: dict[str, Any]) -> None:
    """Topics of three segments of one key: two days old, an hour old, and new."""
    now_ms = time.time_ns() // 1_000_000
    with LogDir.open(path, config=SMALL, background=False) as logs:
        for name, settings in topics.items():
            logs.create_topic(name, 1, config=settings)
            log = logs.partition(name, 0)
            for age_ms in (48 * HOUR_MS, HOUR_MS, 0):
                log.roll()
                record = Record(0, now_ms - age_ms, b"k", b"v" * 30)
                log.append(encode_batch([record], BatchFields()))


def bases(path: Path) -> list[int]:
    return sorted(int(file.stem) for file in path.glob("*.log"))


def test_once(tmp_path: Path) -> None:
    make(tmp_path, orders={}, forever={"retention.ms": -1}, keyed={"cleanup.policy": "compact"})
    result = inside("maintain", tmp_path, "--once", "-c", "log.retention.hours=24", *BUFFERS)
    assert (result.stderr, result.status) == ("", 0)
    hours = "retention.ms=86400000 (broker config), retention.bytes=-1 (Kafka's default)"
    settings = [
        "forever: cleanup.policy=delete (Kafka's default), retention.ms=-1 (topic), "
        "retention.bytes=-1 (Kafka's default)",
        f"keyed: cleanup.policy=compact (topic), {hours}",
        f"orders: cleanup.policy=delete (Kafka's default), {hours}",
    ]
    assert result.lines == [
        *settings,
        "keyed-0: compacted in 1 pass",
        "orders-0: deleted 1 segment, 99 B",
        "3 partitions: deleted 1 segment, 99 B; compacted in 1 pass",
    ]
    assert bases(tmp_path / "orders-0") == [1, 2]
    assert bases(tmp_path / "forever-0") == [0, 1, 2]
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    result = inside("maintain", tmp_path, "--once", "-c", "log.retention.hours=24", *BUFFERS)
    assert result.lines == [*settings, "3 partitions: nothing to do"]


def test_a_failure_is_reported_with_its_traceback(tmp_path: Path) -> None:
    make(tmp_path, damaged={"cleanup.policy": "compact"}, orders={})
    path = tmp_path / "damaged-0" / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    hours = ["-c", "log.retention.hours=24"]
    result = inside("maintain", tmp_path, "--once", "--json", *hours, *BUFFERS)
    assert result.status == 1
    assert "stratalog: error: damaged-0: cleaning failed at " in result.stderr
    *topics, damaged, orders, total = result.rows
    assert [(row["kind"], row["topic"], row["settingsUnknown"]) for row in topics] == [
        ("topic", "damaged", None),
        ("topic", "orders", None),
    ]
    assert topics[0]["settings"]["cleanup.policy"] == {
        "value": "compact",
        "source": "DYNAMIC_TOPIC_CONFIG",
    }
    assert topics[1]["settings"]["retention.ms"] == {
        "value": "86400000",
        "source": "STATIC_BROKER_CONFIG",
    }
    assert (damaged["topic"], damaged["isFailing"], damaged["cleaning"]) == (
        "damaged",
        True,
        "failed",
    )
    (failure,) = damaged["failures"]
    assert failure["task"] == "cleaning"
    assert str(path) in failure["message"]
    assert failure["traceback"].startswith("Traceback")
    assert (failure["count"], failure["isResolved"]) == (1, False)
    assert abs(failure["atMs"] - time.time_ns() // 1_000_000) < HOUR_MS
    assert orders["done"] == {"deletedSegments": 1, "deletedBytes": 99, "cleaningPasses": 0}
    assert (total["partitions"], total["failing"], total["deletedSegments"]) == (2, 1, 1)


@pytest.mark.slow
def test_a_failure_is_one_line_on_standard_error(tmp_path: Path) -> None:
    make(tmp_path, damaged={"cleanup.policy": "compact"})
    path = tmp_path / "damaged-0" / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    result = stratalog("maintain", tmp_path, "--once", *BUFFERS)
    (line,) = result.stderr.splitlines()
    assert line.startswith("stratalog: error: damaged-0: cleaning failed at ")


@pytest.mark.slow
def test_it_runs_until_a_signal(tmp_path: Path) -> None:
    make(tmp_path, orders={})
    settings = {
        "log.retention.hours": 24,
        "log.initial.task.delay.ms": 0,
        "log.retention.check.interval.ms": 50,
    }
    given = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    command = [*COMMAND, "maintain", str(tmp_path), "--every", "0.05", "--json", *given, *BUFFERS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        topic, row = (json.loads(process.stdout.readline()) for _ in range(2))
        assert topic["kind"] == "topic"
        assert (row["topic"], row["done"]["deletedSegments"]) == ("orders", 1)
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=120)
    assert process.returncode == 0
    assert json.loads(rest.splitlines()[-1])["kind"] == "summary"
    assert errors.decode() == f"stratalog: maintaining {tmp_path}\n"
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert bases(tmp_path / "orders-0") == [1, 2]


def test_what_kafka_wrote_does_not_go_by_guessed_settings(tmp_path: Path) -> None:
    shutil.copytree(GoldenCase("multiseg").partition_dir, tmp_path / "multiseg-0")
    result = inside("maintain", tmp_path, "--once")
    assert result.status == 0
    unknown = "stratalog: note: the cleanup.policy of 'multiseg' is unknown, so nothing is deleted"
    assert result.stderr.startswith(unknown)
    result = inside("maintain", tmp_path, "--once", "--defaults")
    assert (result.status, result.stderr.startswith(unknown)) == (0, True)
    policy = ("-c", "cleanup.policy=delete")
    assert inside("maintain", tmp_path, "--once", *policy).stderr == ""
    assert len(bases(tmp_path / "multiseg-0")) == 10
    assert inside("maintain", tmp_path, "--once", *policy, "--defaults").status == 0
    assert bases(tmp_path / "multiseg-0") == [1500]


@pytest.mark.slow
def test_what_cannot_be_maintained(tmp_path: Path) -> None:
    make(tmp_path / "logs", orders={})
    result = stratalog("maintain", tmp_path / "logs", "--once", "-c", "retention.ms=1")
    assert result.status == 2
    assert (
        "retention.ms: a topic setting applies only to topics whose own settings are unknown"
        in result.stderr
    )
    result = stratalog("maintain", tmp_path / "none", "--once")
    assert result.status == 1
    assert result.stderr == f"stratalog: error: {tmp_path / 'none'}: no such directory\n"
    (tmp_path / "empty").mkdir()
    result = stratalog("maintain", tmp_path / "empty", "--once")
    assert (result.status, list((tmp_path / "empty").iterdir())) == (1, [])
    assert "not a log directory" in result.stderr
    assert bases(tmp_path / "logs" / "orders-0") == [0, 1, 2]


@pytest.mark.slow
def test_log_directories_that_belong_together(tmp_path: Path) -> None:
    """`retain` and `compact` work on one directory; `maintain` has to be told what to do."""
    dirs = [tmp_path / "1", tmp_path / "2"]
    with LogDir.open(*dirs, config=SMALL, background=False) as logs:
        logs.create_topic("orders", 2, config={"cleanup.policy": "compact,delete"})
        for partition in range(2):
            for _ in range(2):
                logs.append("orders", b"v", key=b"k", partition=partition, timestamp=1)
                logs.partition("orders", partition).roll()
    result = stratalog("maintain", dirs[0], "--once", *BUFFERS)
    assert result.status == 1
    assert f"without {dirs[1]}: these log directories belong together" in result.stderr
    assert inside("maintain", dirs[0], "--once", "--missing-dirs", "offline", *BUFFERS).status == 0
    assert inside("compact", dirs[0], "orders", "--force", *BUFFERS).status == 0
    assert inside("retain", *dirs, "-c", "retention.ms=1000").status == 0
    assert inside("maintain", *dirs, "--once", *BUFFERS).status == 0
    shutil.rmtree(dirs[1])
    assert inside("maintain", dirs[0], "--once", "--missing-dirs", "forget", *BUFFERS).status == 0
    assert inside("maintain", dirs[0], "--once", *BUFFERS).status == 0
    assert {path.name for path in dirs[0].glob("orders-*")} == {"orders-0", "orders-1"}
