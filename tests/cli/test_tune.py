"""`stratalog tune` as its users run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import typer

from stratalog.errors import ConfigError
from tests.cli.command import inside
from tests.golden.cases import GOLDEN_DIR
from tests.opening import NOW_MS, Clock, open_logs

if TYPE_CHECKING:
    from pathlib import Path

MULTISEG = GOLDEN_DIR / "multiseg"
OUT_OF_ORDER = GOLDEN_DIR / "ooo-createtime"
COMPACT = GOLDEN_DIR / "compact"


def test_numbers_alone_need_no_log() -> None:
    lines = inside("tune", "--message-bytes", "300", "--rate", "5000", "--retention", "3d").lines
    assert lines[0] == "A topic like this: 1 partition, records of 300 B, 5,000 records/s"
    assert "  segment.bytes=1073741824, 1.0 GiB" in lines
    start = "    sum  1.4 MiB/s * 3 d = 362.1 GiB retained in a partition; / 10 = 36.2 GiB, more "
    assert any(line.startswith(start) for line in lines)
    assert "  retention.ms=259200000, 3 d" in lines


def test_numbers_as_json() -> None:
    rows = inside("tune", "--segment-bytes", "6GiB", "--json").rows
    found = {row["setting"]: row["value"] for row in rows if row["kind"] == "recommendation"}
    assert found["segment.bytes"] == "2147483647"
    traps = [row["code"] for row in rows if row["kind"] == "trap"]
    assert traps == ["index-full-early", "time-index-first", "segment-over-2gib"]


def test_a_directory_is_measured() -> None:
    rows = inside("tune", MULTISEG, "--lookups", "5", "--json").rows
    assert {row["topic"] for row in rows[:-1]} == {"multiseg"}
    assert rows[-1]["records"] == 1500
    now = {row["setting"]: row["now"] for row in rows if row["kind"] == "recommendation"}
    assert now["index.interval.bytes"] == "4096"


def test_late_records_are_a_trap() -> None:
    text = inside("tune", OUT_OF_ORDER, "--now", "2026-11-17").stdout.decode()
    assert "[create-time-disorder]" in text


def test_two_configs_side_by_side() -> None:
    config = "segment.bytes=8KiB,index.interval.bytes=512"
    lines = inside("tune", MULTISEG, "--simulate", "current", "--simulate", config).lines
    start = lines.index("multiseg: 1 partition, simulated")
    assert lines[start + 1].split() == ["current", config]
    table = {line[:19].strip(): line[19:] for line in lines[start + 2 : start + 14]}
    few, many = table["segments"].split()
    assert int(few) == 1 < int(many)
    assert "size" in table["rolled by"]
    assert {"scanned per lookup", "time lookup error", "retention lag", "disk use"} <= set(table)


def test_the_trigger_of_each_roll_is_in_json() -> None:
    args = ("--simulate", "segment.ms=1,segment.bytes=64KiB", "--json")
    (row,) = (row for row in inside("tune", MULTISEG, *args).rows if row["kind"] == "simulation")
    assert row["config"] == {"segment.bytes": "65536", "segment.ms": "1"}
    assert {each["rolledBy"] for each in row["segments"]} >= {None}
    assert row["segments"][0]["rolledBy"] in {"time", "size"}
    assert sum(each["offsetEntries"] for each in row["segments"]) == row["offsetEntries"]


def test_the_advice_can_be_simulated() -> None:
    rows = inside("tune", MULTISEG, "--simulate", "advised", "--lookups", "9", "--json").rows
    advised = {row["setting"]: row["value"] for row in rows if row["kind"] == "recommendation"}
    (simulated,) = (row for row in rows if row["kind"] == "simulation")
    assert simulated["config"]["segment.bytes"] == advised["segment.bytes"]


def test_compaction_is_simulated_and_keys_are_counted() -> None:
    config = "cleanup.policy=compact,delete,segment.bytes=16KiB"
    rows = inside("tune", COMPACT, "--keys", "--simulate", config, "--json").rows
    (simulated,) = (row for row in rows if row["kind"] == "simulation")
    assert simulated["config"]["cleanup.policy"] == "compact,delete"
    assert simulated["compaction"]["segmentsBefore"] == len(simulated["segments"])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--simulate", "segment.byte=1"], "segment.bytes"),
        (["--simulate", "segment.bytes=13"], "segment.bytes"),
        (["--simulate", "segment.bytes=big"], "segment.bytes"),
        (["--simulate", "segment.ms=soon"], "segment.ms"),
    ],
)
def test_settings_that_kafka_rejects(args: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        inside("tune", MULTISEG, *args)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--simulate", "segment.bytes"], "KEY=VALUE"),
        (["--simulate", "current"] * 3, "once or twice"),
        (["--message-bytes", "much"], "not a size"),
        (["--retention", "long"], "not a duration"),
    ],
)
def test_what_cannot_be_understood(args: list[str], message: str) -> None:
    with pytest.raises(typer.BadParameter, match=message):
        inside("tune", MULTISEG, *args)


def test_it_agrees_with_retain_and_compact_on_what_they_would_do(tmp_path: Path) -> None:
    with open_logs(tmp_path, clock=Clock()) as logs:
        settings = {"segment.bytes": "16384", "index.interval.bytes": "512"}
        logs.create_topic("old", partitions=2, config={**settings, "retention.ms": str(3_600_000)})
        logs.create_topic("last", config={**settings, "cleanup.policy": "compact"})
        for number in range(400):
            sent_ms = NOW_MS - 86_400_000 + number * 200_000
            key = b"k%d" % (number % 7)
            logs.append("old", b"v" * 150, timestamp=sent_ms, partition=number % 2)
            logs.append("last", b"v" * 150, key=key, timestamp=sent_ms)
    now = ("--now", str(NOW_MS), "--json")
    rows = inside("tune", tmp_path, "--simulate", "current", *now).rows
    found = {(row["topic"], row["partition"]): row for row in rows if row["kind"] == "simulation"}
    retained = inside("retain", tmp_path, "--dry-run", *now).rows
    freed = {
        (row["topic"], row["partition"]): row["deletedBytes"]
        for row in retained
        if row["kind"] == "partition"
    }
    assert freed["old", 0] > 0
    assert {place: row["retention"]["deletedBytes"] for place, row in found.items()} == freed
    planned = inside("compact", tmp_path, "--dry-run", *now).rows
    (plan,) = (row for row in planned if row.get("topic") == "last")
    compaction = found["last", 0]["compaction"]
    assert compaction["isEligible"] == plan["isEligible"]
    assert compaction["cleanableBytes"] == plan["cleanableBytes"] > 0
