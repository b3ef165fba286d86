from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.errors import LogDirLockedError, StratalogError
from stratalog.format.checkpoint import decode_offsets
from stratalog.format.names import RootFile, TopicPartition
from stratalog.log_dir import LogDir
from tests.cli.command import inside, on_terminal, stratalog
from tests.opening import NOW_MS, Clock, open_logs

if TYPE_CHECKING:
    from pathlib import Path

COMPACTED = {"cleanup.policy": "compact", "segment.bytes": 500}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`orders` is compacted, `plain` is not. Times are those of a clock that stands still."""
    path = tmp_path_factory.mktemp("made")
    with open_logs(path, clock=Clock()) as logs:
        logs.create_topic("orders", 1, config=COMPACTED)
        logs.create_topic("plain", 1)
        for number in range(30):
            value = None if number == 20 else b"value %d" % number
            logs.append("orders", value, key=b"key %d" % (9 if number == 25 else number % 5))
        logs.append("plain", b"x", key=b"key 1")
    return path


@pytest.fixture
def directory(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "data")


def snapshot(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


@pytest.mark.slow
def test_a_plan_in_a_table(made: Path) -> None:
    before = snapshot(made)
    result = stratalog("compact", made, "--dry-run")
    assert (result.stderr, result.status) == ("", 0)
    header, row, plain, total = result.lines
    assert plain.split()[:2] == ["plain-0", "no"]
    assert plain.endswith("cleanup.policy is delete, so the log is not compacted")
    assert total.startswith("2 partitions: 1 eligible; compaction would free 1.5 KiB of ")
    assert header.split()[:2] == ["PARTITION", "ELIGIBLE"]
    assert row.split()[:4] == ["orders-0", "yes", "0", "24"]
    assert row.endswith("dirty ratio 1 is above min.cleanable.dirty.ratio 0.5")
    assert snapshot(made) == before


def test_a_plan_as_json(made: Path) -> None:
    row, summary = inside("compact", made, "orders:0", "--dry-run", "--json").rows
    assert row["isEligible"] is True
    assert (row["firstDirtyOffset"], row["firstUncleanableOffset"]) == (0, 24)
    assert row["bound"]["kind"] == "active segment"
    assert (row["cleanBytes"], row["dirtyRatio"]) == (0, 1.0)
    assert row["cleanableBytes"] > 0
    assert row["groups"][0][0] == 0
    assert summary == {
        "kind": "summary",
        "isDryRun": True,
        "partitions": 1,
        "failed": 0,
        "eligible": 1,
        "cleanBytes": 0,
        "cleanableBytes": row["cleanableBytes"],
        "freedBytes": row["freedBytes"],
    }


def test_a_named_topic_is_listed_whatever_its_policy(made: Path) -> None:
    row, _ = inside("compact", made, "plain", "--dry-run", "--json").rows
    assert row["isEligible"] is False
    assert row["reasons"] == ["cleanup.policy is delete, so the log is not compacted"]


def test_settings_for_this_run(made: Path) -> None:
    settings = ["-c", "min.compaction.lag.ms=1000", "--now", str(NOW_MS + 10)]
    row, plain, _ = inside("compact", made, "--explain", "--json", *settings).rows
    assert plain["topic"] == "plain"
    assert row["isEligible"] is False
    assert row["bound"]["kind"] == "min.compaction.lag.ms"
    assert row["bound"]["cleanableFromMs"] == NOW_MS + 1000
    text = "\n".join(inside("compact", made, "--explain", *settings).lines)
    assert "orders-0: not eligible for compaction" in text
    assert "younger than min.compaction.lag.ms until 2027-01-15T08:00:01.000Z" in text


def test_an_explanation(made: Path) -> None:
    lines = inside("compact", made, "--explain").lines
    assert lines[0] == "orders-0: eligible for compaction"
    assert lines[1] == "  dirty     from offset 0"
    assert lines[2] == "  up to     offset 24: the active segment is never cleaned"
    assert any(line.startswith("  rewrites  ") for line in lines)


@pytest.mark.slow
def test_compacting(directory: Path) -> None:
    result = stratalog("compact", directory)
    assert (result.stderr, result.status) == ("", 0)
    header, row, total = result.lines
    assert header.split()[:3] == ["PARTITION", "BEFORE", "AFTER"]
    assert row.startswith("orders-0 ")
    assert total.startswith("1 of 1 partition compacted: 24 records before, 5 after; ")
    assert not list(directory.rglob("*.deleted"))
    cleaned = decode_offsets((directory / RootFile.CLEANER_OFFSETS.value).read_bytes())
    assert cleaned == {TopicPartition("orders", 0): 24}
    with LogDir.open(directory) as logs:
        offsets = [record.offset for record in logs.partition("orders", 0).read()]
    assert offsets == [19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29]
    assert inside("compact", directory).lines[1].endswith("can be cleaned")


def test_the_result_as_json(directory: Path) -> None:
    row, summary = inside("compact", directory, "--json").rows
    assert row["error"] is None
    (done,) = row["passes"]
    assert (done["endOffset"], done["recordsRead"], done["recordsKept"]) == (24, 24, 5)
    assert row["afterBytes"] < row["beforeBytes"]
    assert (row["kind"], summary["kind"]) == ("partition", "summary")
    assert (summary["partitions"], summary["compacted"], summary["failed"]) == (1, 1, 0)
    assert (summary["records"], summary["recordsKept"]) == (24, 5)
    assert summary["sizeBytes"] == done["bytesRead"]
    for name in ("beforeBytes", "afterBytes"):
        assert summary[name] == row[name]
    assert summary["recordsPerSecond"] == pytest.approx(24 / summary["seconds"], rel=0.1)
    assert summary["bytesPerSecond"] > 0


@pytest.mark.slow
def test_a_small_offset_map_takes_several_passes(directory: Path) -> None:
    memory = "log.cleaner.dedupe.buffer.size=1048577"  # 43,690 keys, of which a tenth are put in
    part = "log.cleaner.io.buffer.load.factor=0.1"
    with LogDir.open(directory) as logs:
        logs.alter_config("orders", {"segment.bytes": 50_000})
        with logs.producer() as producer:
            for number in range(10_000):
                producer.append("orders", b"v", key=b"%d" % number)
    row, _ = inside("compact", directory, "--json", "-c", memory, "-c", part).rows
    assert len(row["passes"]) > 1
    assert row["passes"][0]["isMemoryFull"]
    assert row["passes"][-1]["endOffset"] == row["firstUncleanableOffset"]


def test_what_is_not_eligible_is_not_compacted_unless_forced(directory: Path) -> None:
    ratio = "min.cleanable.dirty.ratio=1"
    lines = inside("compact", directory, "-c", ratio).lines
    assert len(lines) == 2
    assert "not above" in lines[1]
    row, _ = inside("compact", directory, "-c", ratio, "--force", "--json").rows
    assert len(row["passes"]) == 1


def test_force_does_not_compact_what_is_not_compacted(directory: Path) -> None:
    before = snapshot(directory / "plain-0")
    row, _ = inside("compact", directory, "plain", "--force", "--json").rows
    assert row["passes"] == []
    assert snapshot(directory / "plain-0").items() >= before.items()


def test_nothing_to_compact(directory: Path) -> None:
    shutil.rmtree(directory / "orders-0")
    (line,) = inside("compact", directory).lines
    assert line.startswith("No topic is known to have cleanup.policy=compact.")
    *_, total = inside("compact", directory, "--dry-run").lines
    assert total.startswith("1 partition: 0 eligible; compaction would free 0 B of ")


def test_what_a_dry_run_and_what_if_would_free_is_what_compaction_frees(directory: Path) -> None:
    row, summary = inside("compact", directory, "orders", "--dry-run", "--json").rows
    what_if = ("--what-if", "cleanup.policy=compact")
    *_, totals = inside("stats", directory / "orders-0", *what_if, "--json").rows
    done, _ = inside("compact", directory, "orders", "--json").rows
    freed = done["beforeBytes"] - done["afterBytes"]
    assert freed > 0
    assert (row["freedBytes"], summary["freedBytes"]) == (freed, freed)
    assert totals["freedBy"] == {"cleanup.policy=compact": freed}


@pytest.mark.parametrize(
    "setting", ["retention.ms=1", "retention.bytes=600", "retention.ms=30000d"]
)
def test_what_if_agrees_with_retain(setting: str, tmp_path: Path) -> None:
    with open_logs(tmp_path, clock=Clock()) as logs:
        small = {"segment.bytes": 500}
        logs.create_topic("a", 2, config=small)
        logs.create_topic("b", 1, config={**small, "retention.bytes": 1500})
        logs.create_topic("c", 1, config=COMPACTED)
        for number in range(60):
            for topic in ("a", "b", "c"):
                logs.append(topic, b"value %d" % number, key=b"%d" % (number % 7))
    *_, planned = inside("retain", tmp_path, "-c", setting, "--dry-run", "--json").rows
    *found, totals = inside("stats", tmp_path, "--what-if", setting, "--json").rows
    (freed,) = totals["freedBy"].values()
    assert freed == planned["deletedBytes"]
    by_topic = {row["topic"] for row in found if any(row["freedBy"].values())}
    assert by_topic == ({"a", "b"} if "bytes" in setting else {"b"})  # b has a limit of its own


@pytest.mark.slow
def test_corruption_in_one_partition(directory: Path) -> None:
    with LogDir.open(directory) as logs:
        logs.create_topic("sound", 1, config=COMPACTED)
        for number in range(30):
            logs.append("sound", b"v", key=b"%d" % (number % 2))
    log = directory / "orders-0" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[70] ^= 1
    log.write_bytes(data)
    result = stratalog("compact", directory, "--json")
    assert result.status == 1
    assert "orders-0" in result.stderr
    assert "CRC" in result.stderr
    assert "Traceback" not in result.stderr
    broken, sound, summary = result.rows
    assert (summary["failed"], summary["compacted"]) == (1, 1)
    assert broken["error"] is not None
    assert sound["error"] is None
    assert len(sound["passes"]) == 1


# -- one key


def test_a_key(made: Path) -> None:
    lines = inside("compact", made, "--key", "key 0").lines
    assert lines[0] == "orders-0: 5 records with key key 0"
    assert "removes it: superseded by a newer record of its key at 20" in lines[2]
    assert "keeps it: tombstone that readers may still need" in lines[6]
    assert lines[6].endswith("gets its delete horizon from the next pass")
    assert lines[-1].startswith("The partition is eligible for compaction: ")


def test_a_key_after_compaction(directory: Path) -> None:
    inside("compact", directory, "-c", "delete.retention.ms=5000")
    (row,) = inside(
        "compact", directory, "--key", "6b65792030", "--key-format", "hex", "--json"
    ).rows
    (record,) = row["records"]
    assert record["valueBytes"] is None
    assert record["isKept"] is True
    assert record["next"] == "dropped by the first pass after its delete horizon"
    assert record["nextFromMs"] > 1_700_000_000_000
    later = ["--now", str(record["nextFromMs"])]
    (row,) = inside("compact", directory, "--key", "a2V5IDA=", "--key-format", "base64",
                    "--json", *later).rows  # fmt: skip
    assert row["records"][0]["reason"] == "tombstone past its delete horizon"
    assert row["isEligible"] is False


@pytest.mark.slow
def test_a_key_that_nobody_has(made: Path) -> None:
    result = stratalog("compact", made, "--key", "nobody")
    assert (result.stdout, result.status) == (b"", 1)
    assert "no record with this key" in result.stderr


# -- mistakes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-c", "cleanup.policy"], "is not in the form KEY=VALUE"),
        (["--now", "tomorrow-ish", "--dry-run"], "is not a time"),
        (["--now", "now"], "--now requires --dry-run"),
        (["--key", "zz", "--key-format", "hex"], "is not hex"),
    ],
)
def test_usage(made: Path, args: list[str], message: str) -> None:
    result = stratalog("compact", made, *args)
    assert result.status == 2
    assert message in " ".join(result.stderr.split())


@pytest.mark.slow
def test_clear_errors(made: Path, tmp_path: Path) -> None:
    for args, message in (
        ([tmp_path / "missing"], "no such directory"),
        ([made, "nothing"], "no topic 'nothing'"),
        ([made, "orders:7", "--dry-run"], "not 7"),
        ([made, "--dry-run", "-c", "min.cleanable.dirty.ratoi=1"], "min.cleanable.dirty.ratoi"),
    ):
        with pytest.raises(StratalogError, match=message):
            inside("compact", *args)
    result = stratalog("compact", tmp_path)
    assert result.status == 1
    assert "not a log directory" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_locked_directory_is_read_only(directory: Path) -> None:
    with LogDir.open(directory):
        assert inside("compact", directory, "--dry-run").status == 0
        with pytest.raises(LogDirLockedError):
            inside("compact", directory)


@pytest.mark.slow
def test_on_a_terminal(directory: Path) -> None:
    shown = on_terminal("compact", directory, "--dry-run", columns=70)
    assert "orders-0" in shown
    assert "wider terminal" in shown
    shown = on_terminal("compact", directory, columns=120)
    assert "1 of 1 partition compacted" in shown


@pytest.mark.slow
def test_a_dry_run_loads_nothing_heavy(made: Path) -> None:
    import subprocess  # noqa: PLC0415
    import sys  # noqa: PLC0415

    code = (
        "import sys\nfrom stratalog.cli.main import app\n"
        "app(sys.argv[1:], standalone_mode=False)\n"
        "print(*{name.split('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done: Any = subprocess.run(
        [sys.executable, "-c", code, "compact", str(made), "--explain"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert not {"numpy", "pyarrow", "numba", "rich"} & set(done.stderr.split())
