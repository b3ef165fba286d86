"""`stratalog retain`: what it deletes, what it prints, and what it does not touch."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.cli.tables import duration_text
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log_dir import LogDir
from tests.cli.command import Result, inside, on_terminal, stratalog
from tests.golden.cases import GoldenCase
from tests.opening import NOW_MS, SMALL, Clock

if TYPE_CHECKING:
    from pathlib import Path

MULTISEG = GoldenCase("multiseg").partition_dir
DAY_MS = 86_400_000
NOW = "2027-01-15T08:00:00.000Z"
"""NOW_MS, as a time."""


def make(path: Path, **topics: dict[str, Any]) -> None:
    """Topics with their settings, and `at`: a segment for each list of days before now."""
    with LogDir.open(path, config=SMALL, background=False, now_ms=Clock()) as logs:
        for name, settings in topics.items():
            ages = settings.pop("at")
            logs.create_topic(name, 1, config=settings)
            log = logs.partition(name, 0)
            for segment in ages:
                log.roll()
                for days in segment:
                    record = Record(0, NOW_MS - int(days * DAY_MS), b"k", b"v" * 30)
                    log.append(encode_batch([record], BatchFields()))


def contents(path: Path) -> dict[str, bytes | None]:
    return {
        str(file.relative_to(path)): file.read_bytes() if file.is_file() else None
        for file in sorted(path.rglob("*"))
    }


def bases(path: Path) -> list[int]:
    return sorted(int(file.stem) for file in path.glob("*.log"))


def rows(result: Result, kind: str) -> list[dict[str, Any]]:
    return [row for row in result.rows if row["kind"] == kind]


# -- explaining


@pytest.mark.slow
def test_every_segment_with_what_takes_or_keeps_it() -> None:
    when = "2023-11-21T22:13:27.5Z"
    result = stratalog("retain", MULTISEG, "--explain", "--now", when, "--defaults")
    assert (result.stderr, result.status) == ("", 0)
    table = """\
SEGMENT                     SIZE  NEWEST                    ACTION  REASON
00000000000000000000    15.9 KiB  2023-11-14T22:13:21.550Z  delete  expired 5 s 950 ms ago
00000000000000000156    16.0 KiB  2023-11-14T22:13:23.110Z  delete  expired 4 s 390 ms ago
00000000000000000312    15.9 KiB  2023-11-14T22:13:24.520Z  delete  expired 2 s 980 ms ago
00000000000000000453    15.7 KiB  2023-11-14T22:13:26.010Z  delete  expired 1 s 490 ms ago
00000000000000000602    15.9 KiB  2023-11-14T22:13:27.590Z  keep    expires in 91 ms
00000000000000000760    15.9 KiB  2023-11-14T22:13:29.190Z  keep    expires in 1 s 691 ms
00000000000000000920    15.7 KiB  2023-11-14T22:13:31.040Z  keep    expires in 3 s 541 ms
00000000000000001105    15.8 KiB  2023-11-14T22:13:32.940Z  keep    expires in 5 s 441 ms
00000000000000001295    15.9 KiB  2023-11-14T22:13:34.840Z  keep    expires in 7 s 341 ms
00000000000000001485 *   1.4 KiB  2023-11-14T22:13:34.990Z  keep    expires in 7 s 491 ms"""
    assert result.lines == [
        "multiseg-0: would delete 4 of 10 segments, 63.5 KiB of 144.1 KiB; "
        "log start offset 0 -> 602",
        "  as of 2023-11-21T22:13:27.500Z, with cleanup.policy=delete (assumed), "
        "retention.ms=604800000 (7 d; Kafka's default), retention.bytes=-1 (Kafka's default)",
        "  cleanup.policy is assumed; nothing is deleted unless --config sets it: the topic "
        "was not created here, and no cluster metadata was found",
        *table.splitlines(),
        "  * the active segment",
        "  the next segment expires at 2023-11-21T22:13:27.591Z",
        "",
        "1 partition: would delete 4 segments, 63.5 KiB; 80.6 KiB kept",
    ]


def whys(path: Path, topic: str, *more: str) -> list[str]:
    result = inside("retain", path, topic, "--explain", "--now", NOW, "--json", *more)
    assert (result.stderr, result.status) == ("", 0)
    return [row["why"] for row in rows(result, "segment")]


def test_a_future_timestamp_is_named_with_its_record(tmp_path: Path) -> None:
    late = {"message.timestamp.after.max.ms": 3 * DAY_MS, "segment.ms": 30 * DAY_MS}
    ages = [[9], [9, -1, 9], [8], [1], [-2], [7], []]
    make(tmp_path, orders={"at": ages, **late})
    until = "which is kept until 2027-01-23T08:00:00.001Z"
    assert whys(tmp_path, "orders:0") == [
        "expired 2 d ago",
        "has a timestamp 1 d in the future (offset 2), which keeps this and all later segments "
        "until 2027-01-23T08:00:00.001Z",
        f"after 00000000000000000001, {until}; this one expired 1 d ago",
        f"after 00000000000000000001, {until}; this one expires in 6 d 1 ms",
        "has a timestamp 2 d in the future (offset 6)",
        "after 00000000000000000006, which is kept until 2027-01-24T08:00:00.001Z; "
        "this one expires in 1 ms",
        "after 00000000000000000001, which is kept",
    ]


def test_the_reasons_as_text(tmp_path: Path) -> None:
    make(
        tmp_path,
        forever={"at": [[9], [1]], "retention.ms": -1},
        small={"at": [[9], [9], [1], [1]], "retention.ms": -1, "retention.bytes": 250},
        keyed={"at": [[9], [1]], "cleanup.policy": "compact"},
        tiered={"at": [[9], [1]], "remote.storage.enable": True},
        empty={"at": []},
    )
    behind = "after 00000000000000000000, which is kept"
    assert whys(tmp_path, "forever") == ["there is no limit by age", behind]
    assert whys(tmp_path, "small") == [  # four of 99 bytes
        "with it the log exceeds retention.bytes by 146 B",
        "52 B below the size at which retention.bytes deletes it; there is no limit by age",
        "after 00000000000000000001, which is kept",
        "after 00000000000000000001, which is kept",
    ]
    assert whys(tmp_path, "keyed") == ["cleanup.policy does not include delete", behind]
    assert whys(tmp_path, "tiered")[0] == (
        "remote.storage.enable is set; only Kafka knows what is already copied"
    )
    assert whys(tmp_path, "empty") == ["empty active segment"]
    with LogDir.open(tmp_path, background=False) as logs:
        logs.delete_records("keyed", 0, 1)
    assert whys(tmp_path, "keyed")[0] == "below the log start offset 1"


def test_segments_whose_records_have_no_time_go_by_their_file() -> None:
    case = GoldenCase("v0-none")
    result = inside("retain", case.partition_dir, "--explain")
    assert (
        "  ~ the modification time of the file, because no record has a timestamp" in result.lines
    )
    found = rows(inside("retain", case.partition_dir, "--explain", "--json"), "segment")
    assert found
    for row in found:
        path = case.partition_dir / f"{row['baseOffset']:020d}.log"
        assert row["largestTimestamp"] is None
        assert row["modifiedMs"] == path.stat().st_mtime_ns // 1_000_000


def test_json(tmp_path: Path) -> None:
    make(tmp_path, orders={"at": [[9], [1]]})
    result = inside("retain", tmp_path, "--dry-run", "--now", NOW, "--json")
    first, second, partition, total = result.rows
    assert first == {
        "kind": "segment",
        "topic": "orders",
        "partition": 0,
        "path": str(tmp_path / "orders-0" / "00000000000000000000.log"),
        "baseOffset": 0,
        "endOffset": 1,
        "sizeBytes": 99,
        "isActive": False,
        "largestTimestamp": NOW_MS - 9 * DAY_MS,
        "timestampOffset": 0,
        "modifiedMs": None,
        "action": "delete",
        "findings": [{"pass": "time", "reason": "expired", "amount": 2 * DAY_MS}],
        "leavesMs": None,
        "why": "expired 2 d ago",
    }
    assert (second["action"], second["leavesMs"]) == ("keep", NOW_MS + 6 * DAY_MS + 1)
    assert [finding["reason"] for finding in second["findings"]] == [
        "above-log-start",
        "no-limit",
        "not-expired",
    ]
    assert partition == {
        "kind": "partition",
        "topic": "orders",
        "partition": 0,
        "path": str(tmp_path / "orders-0"),
        "nowMs": NOW_MS,
        "isDryRun": True,
        "config": {
            "cleanup.policy": "delete",
            "retention.ms": "604800000",
            "retention.bytes": "-1",
        },
        "configSources": {
            "cleanup.policy": "DEFAULT_CONFIG",
            "retention.ms": "DEFAULT_CONFIG",
            "retention.bytes": "DEFAULT_CONFIG",
        },
        "settingsUnknown": None,
        "segments": 2,
        "deletedSegments": 1,
        "deletedBytes": 99,
        "keptBytes": 99,
        "logStartOffset": 0,
        "newLogStartOffset": 1,
        "highWatermark": 2,
        "logEndOffset": 2,
        "rollsActiveSegment": False,
        "error": None,
    }
    assert total == {
        "kind": "summary",
        "isDryRun": True,
        "partitions": 1,
        "failed": 0,
        "deletedSegments": 1,
        "deletedBytes": 99,
        "keptBytes": 99,
    }


@pytest.mark.slow
def test_a_narrow_terminal() -> None:
    shown = on_terminal(
        "retain", MULTISEG, "--explain", "--defaults", "--now", "2023-11-21T22:13:27.5Z"
    )
    assert "expires in 91 ms" in shown
    assert all(len(line) < 90 for line in shown.splitlines() if line.startswith("0000"))


# -- changing nothing


def test_dry_runs_never_write_and_take_no_lock(tmp_path: Path) -> None:
    make(tmp_path, orders={"at": [[9], [1]]})
    before = contents(tmp_path)
    for flag in ("--dry-run", "--explain"):
        assert inside("retain", tmp_path, flag, "--now", NOW).status == 0
    assert contents(tmp_path) == before
    with LogDir.open(tmp_path, background=False):
        result = inside("retain", tmp_path, "orders", "--dry-run", "--now", NOW)
        assert result.lines == [
            "orders-0: would delete 1 of 2 segments, 99 B of 198 B; log start offset 0 -> 1",
            "1 partition: would delete 1 segment, 99 B; 99 B kept",
        ]


def test_a_directory_in_use_is_not_touched(tmp_path: Path) -> None:
    make(tmp_path, orders={"at": [[900_000], [1]]}, payments={"at": [[900_000], [1]]})
    with LogDir.open(tmp_path, background=False):
        all_of_it = inside("retain", tmp_path, "-c", "retention.ms=1")
        assert all_of_it.stderr.count("locked by") == 1
        before = contents(tmp_path)
        result = inside("retain", tmp_path, "orders", "-c", "retention.ms=1")
        assert result.status == 1
        assert result.stderr.count("\n") == 1
        assert result.stderr.endswith("; stop that process first, or use --dry-run\n")
        found = rows(inside("retain", tmp_path, "--json", "-c", "retention.ms=1"), "partition")
        assert [row["topic"] for row in found] == ["orders", "payments"]
        assert all(row["error"] for row in found)
        assert contents(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-c", "retention.ms"], "is not in the form KEY=VALUE"),
        (["--now", "tomorrow", "--dry-run"], "is not a time"),
        (["--now", NOW], "--now requires --dry-run or --explain"),
    ],
)
def test_a_wrong_command_line(tmp_path: Path, args: list[Path | str], message: str) -> None:
    make(tmp_path, orders={"at": [[9], [1]]})
    result = stratalog("retain", tmp_path, *args)
    assert result.status == 2
    assert message in result.stderr
    assert bases(tmp_path / "orders-0") == [0, 1]


@pytest.mark.slow
def test_a_segment_alone_is_refused(tmp_path: Path) -> None:
    make(tmp_path, orders={"at": [[9], [1]]})
    segment = tmp_path / "orders-0" / f"{0:020d}.log"
    result = stratalog("retain", segment)
    assert result.stderr == (
        f"stratalog: error: {segment}: a single segment; give its partition directory, "
        f"{segment.parent}\n"
    )
    assert (result.stdout, result.status) == (b"", 1)


@pytest.mark.slow
def test_settings_are_checked(tmp_path: Path) -> None:
    make(tmp_path, orders={"at": [[9], [1]]})
    for setting in ("retention.mss=1", "retention.ms=soon", "retention.ms=-2"):
        result = stratalog("retain", tmp_path, "-c", setting)
        assert result.status == 2
        assert result.stderr.startswith("stratalog: error: ")
        assert result.stderr.count("\n") == 1
    assert bases(tmp_path / "orders-0") == [0, 1]


# -- deleting


@pytest.mark.slow
def test_deleting(tmp_path: Path) -> None:
    """By the clock of the machine, which is before the records' time: size counts here."""
    limit = {"retention.ms": -1, "retention.bytes": 100}
    make(tmp_path, orders={"at": [[9], [8], [7]], **limit}, other={"at": [[9], [8]], **limit})
    result = stratalog("retain", tmp_path, "orders")
    assert (result.stderr, result.status) == ("", 0)
    assert result.lines == [
        "orders-0: deleted 1 of 3 segments, 99 B of 297 B; log start offset 0 -> 1",
        "1 partition: deleted 1 segment, 99 B; 198 B kept",
    ]
    assert bases(tmp_path / "orders-0") == [1, 2]
    assert bases(tmp_path / "other-0") == [0, 1]
    assert not [*tmp_path.rglob("*.deleted")]
    result = stratalog("retain", tmp_path)
    assert result.lines == ["2 partitions: nothing to delete; 396 B kept"]
    result = stratalog("retain", tmp_path, "-c", "retention.bytes=0", "--json")
    assert [row["rollsActiveSegment"] for row in rows(result, "partition")] == [True, True]
    (total,) = rows(result, "summary")
    assert (total["deletedSegments"], total["isDryRun"]) == (4, False)
    with LogDir.open(tmp_path, background=False) as logs:
        assert bases(tmp_path / "orders-0") == [3]
        assert list(logs.partition("orders", 0).read()) == []
        assert logs.append("orders", b"v").offset == 3
        assert logs.topic("orders").overrides == {"retention.ms": "-1", "retention.bytes": "100"}


def test_a_broker_s_settings_too(tmp_path: Path) -> None:
    make(tmp_path, orders={"at": [[9], [8]]}, own={"at": [[9], [8]], "retention.ms": -1})
    result = inside("retain", tmp_path, "--dry-run", "--now", NOW, "-c", "log.retention.hours=1")
    assert result.lines == [
        "orders-0: would delete 2 of 2 segments, 198 B of 198 B; log start offset 0 -> 2; "
        "the active segment is rolled first",
        "2 partitions: would delete 2 segments, 198 B; 198 B kept",
    ]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """What Kafka wrote, without the settings of its topics."""
    shutil.copytree(MULTISEG, tmp_path / "multiseg-0")
    return tmp_path


def test_what_kafka_wrote_has_no_limit_that_nobody_has_given(copied: Path) -> None:
    """Least of all the default of seven days, when only a size is given."""
    before = contents(copied)
    result = inside("retain", copied)
    assert (result.lines, result.status) == (["1 partition: nothing to delete; 144.1 KiB kept"], 0)
    assert result.stderr == (
        "stratalog: note: retention.ms and retention.bytes are unknown for 1 partition, and not "
        "applied; give --config or --server-properties, or apply Kafka's defaults with --defaults\n"
    )
    (row,) = rows(inside("retain", copied, "--explain", "--json"), "partition")
    policy = {"cleanup.policy": "delete"}
    assert row["config"] == {**policy, "retention.ms": None, "retention.bytes": None}
    result = inside("retain", copied, "--explain", "-c", "log.retention.hours=1")
    assert (
        ", with cleanup.policy=delete (assumed), retention.ms=3600000 (1 h; broker config), "
        "retention.bytes unknown" in result.lines[1]
    )
    assert contents(copied) == before


def test_nothing_is_deleted_from_a_topic_whose_policy_is_unknown(copied: Path) -> None:
    """It may be compacted in its cluster; neither a limit nor Kafka's defaults tell."""
    before = contents(copied)
    for options in (["-c", "retention.bytes=100000"], ["--defaults"], ["-c", "retention.ms=1000"]):
        result = inside("retain", copied, *options)
        assert result.status == 1
        assert "the cleanup.policy of 'multiseg' is unknown, so nothing is deleted" in result.stderr
        (row,) = rows(inside("retain", copied, *options, "--json"), "partition")
        assert "cleanup.policy of 'multiseg' is unknown" in row["error"]
        result = inside("retain", copied, "--dry-run", *options)
        assert result.status == 0
        assert result.lines[0].endswith("; requires --config cleanup.policy=..., which is unknown")
    assert contents(copied) == before

    policy = ("-c", "cleanup.policy=delete")
    partition = copied / "multiseg-0"
    assert inside("retain", partition, *policy, "-c", "retention.bytes=100000").status == 0
    assert bases(copied / "multiseg-0") == [312, 453, 602, 760, 920, 1105, 1295, 1485]
    assert inside("retain", copied, "multiseg:0", *policy, "--defaults").status == 0
    assert bases(copied / "multiseg-0") == [1500]


def test_what_kafka_has_compacted_is_not_deleted_by_age(copied: Path) -> None:
    (copied / "cleaner-offset-checkpoint").write_text("0\n1\nmultiseg 0 602\n")
    result = inside("retain", copied, "--defaults", "-c", "retention.ms=1", "--json")
    (row,) = rows(result, "partition")
    assert (row["config"]["cleanup.policy"], row["deletedSegments"]) == ("compact", 0)
    result = inside("retain", copied, "-c", "cleanup.policy=delete", "-c", "retention.ms=1")
    assert result.lines[-1] == "1 partition: deleted 10 segments, 144.1 KiB; 0 B kept"


def test_one_partition_that_cannot_be_read_stops_no_other(copied: Path) -> None:
    (copied / "hollow-0").mkdir()
    result = inside("retain", copied, "--defaults", "-c", "cleanup.policy=delete")
    assert result.status == 1
    assert "hollow-0: no segment" in result.stderr
    assert result.lines[-1] == "1 partition: deleted 10 segments, 144.1 KiB; 0 B kept"
    assert bases(copied / "multiseg-0") == [1500]


def test_the_metadata_of_a_cluster_is_not_touched(copied: Path) -> None:
    (copied / "multiseg-0").rename(copied / "__cluster_metadata-0")
    result = inside("retain", copied, "--defaults")
    assert result.lines == ["0 partitions: nothing to delete; 0 B kept"]
    assert len(bases(copied / "__cluster_metadata-0")) == 10


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1000, "1 s"),
        (61_001, "1 min 1 s"),
        (60_001, "1 min 1 ms"),
        (3_600_000 * 26, "1 d 2 h"),
        (DAY_MS * 400 + 3_600_000, "400 d"),
    ],
)
def test_durations(ms: int, text: str) -> None:
    assert duration_text(ms) == text
