"""A real Kafka broker starts on directories that were restored from backups of its own directories:
it finds nothing to repair, and serves every record."""

from __future__ import annotations

import shutil
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from stratalog import LogDir
from tests.bulk.backups import tree
from tests.cli.command import inside
from tests.compat import kafka_09
from tests.compat.kafka_09 import OldKafka, Row, ZooKeeper
from tests.golden.cases import GoldenCase, all_cases
from tests.kafka_loader import CLEAN_SHUTDOWN, batches_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WHY_NOT = kafka_09.why_not()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
    pytest.mark.xdist_group("kafka-0.9"),  # its fixtures start programs
]
NAMES = ("plain-0", "plain-1", "zipped-0", "zipped-1")
COUNT, ZIPPED_COUNT = 400, 1600
OLD_FORMAT = [case for case in all_cases() if case.name.startswith(("real09-", "v0-"))]


class Written(NamedTuple):
    """What the real broker left, backed up at three moments."""

    root: Path
    live: dict[str, int]
    """Log end offsets in the backup of the running broker."""
    clean: dict[str, list[Row]]
    """Records at the clean stop."""
    killed: dict[str, list[Row]]
    """And when the broker was killed."""


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper") / "program") as zookeeper:
        yield zookeeper


@pytest.fixture(scope="module")
def written(zookeeper: ZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Written:
    root = tmp_path_factory.mktemp("written")
    data = root / "data"
    with OldKafka(data, zookeeper, root / "first") as broker:
        kafka_09.produce(broker, "plain", range(COUNT))
        kafka_09.produce(broker, "zipped", range(ZIPPED_COUNT), codec="gzip")
        kafka_09.commit(broker, "group", {"plain-0": 350, "plain-1": 7})
        live, count = _back_up_while_it_writes(broker, data, root / "live")
        kafka_09.produce(broker, "plain", range(COUNT))
        clean = kafka_09.consume(broker, _ends_of(count + COUNT))
    _stratalog("backup", data, root / "clean")
    with OldKafka(data, zookeeper, root / "second", session_ms=1000) as broker:
        kafka_09.produce(broker, "plain", range(COUNT))
        killed = kafka_09.consume(broker, _ends_of(count + 2 * COUNT))
        broker.kill()
    with _active_log(data / "plain-1").open("ab") as file:  # half of a batch reached the disk
        file.write((data / "plain-1" / f"{0:020}.log").read_bytes()[:50])
    _stratalog("backup", data, root / "killed")
    return Written(root, live, clean, killed)


def _back_up_while_it_writes(
    broker: OldKafka, data: Path, where: Path
) -> tuple[dict[str, int], int]:
    """The end of each log in the backup, and how many records each partition of plain has then."""
    ended = threading.Event()
    rounds = 0

    def write() -> None:
        nonlocal rounds
        while not ended.is_set():
            kafka_09.produce(broker, "plain", range(50))
            rounds += 1

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        rows = _stratalog("backup", data, where)
    finally:
        ended.set()
        writer.join()
    return _ends(rows), COUNT + rounds * 50


def _ends_of(plain: int) -> dict[str, int]:
    return {name: plain if name.startswith("plain") else ZIPPED_COUNT for name in NAMES}


def _stratalog(*args: str | Path) -> list[dict[str, Any]]:
    result = inside(*args, "--json")
    assert result.status == 0, result.stderr
    return result.rows


def _ends(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Of each log that a backup or a restore reports."""
    partitions = [row for row in rows if row["kind"] == "partition"]
    return {f"{row['topic']}-{row['partition']}": row["endOffset"] for row in partitions}


def _active_log(partition: Path) -> Path:
    return max(partition.glob("*.log"))


def _check_start(
    log_dir: Path, zookeeper: ZooKeeper, scratch: Path, expected: dict[str, list[Row]]
) -> dict[str, int | None]:
    """The broker finds these records and nothing to repair, and changes no file of a log. Returns
    the committed offsets of the group."""
    before = tree(log_dir)
    with OldKafka(log_dir, zookeeper, scratch) as broker:
        assert {name: broker.log_ends[name] for name in expected} == {
            name: rows[-1].offset + 1 for name, rows in expected.items()
        }
        served = kafka_09.consume(broker, {name: len(rows) for name, rows in expected.items()})
        assert served == expected
        offsets = kafka_09.committed(broker, "group", [name for name in NAMES if name in expected])
        assert broker.repairs == []
    assert _changed(before, tree(log_dir)) == []
    return offsets


def _changed(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    """Files of logs that have changed or are gone. Those of the log directory do change."""
    return [name for name in before if "/" in name and after.get(name) != before[name]]


def test_a_backup_of_a_stopped_broker(
    written: Written, zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    _stratalog("restore", written.root / "clean", out)
    offsets = _check_start(out, zookeeper, tmp_path / "broker", written.clean)
    assert offsets == {"plain-0": 350, "plain-1": 7, "zipped-0": None, "zipped-1": None}


def test_a_backup_of_a_running_broker(
    written: Written, zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out_ends = _ends(_stratalog("restore", written.root / "live", out))
    assert out_ends == written.live
    for name in ("plain-0", "plain-1"):  # what was acknowledged before, not what came after
        assert COUNT <= out_ends[name] <= len(written.clean[name]) - COUNT
    expected = {name: rows[: out_ends[name]] for name, rows in written.clean.items()}
    _check_start(out, zookeeper, tmp_path / "broker", expected)


def test_a_backup_of_a_killed_broker(
    written: Written, zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    _stratalog("restore", written.root / "killed", out)
    _check_start(out, zookeeper, tmp_path / "broker", written.killed)


def test_a_restore_up_to_an_offset(written: Written, zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """Records of this format have no time, so a time drops none of them."""
    out = tmp_path / "out"
    limits = ["--to-offset", "plain:0:123", "--to-offset", "zipped:1:555", "--until", "2020-01-01"]
    ends = _ends(_stratalog("restore", written.root / "clean", out, *limits))
    assert ends["plain-0"] == 123
    assert 500 < ends["zipped-1"] <= 555  # a compressed batch is dropped as a whole
    expected = {name: written.clean[name][: ends[name]] for name in NAMES}
    assert expected["plain-1"] == written.clean["plain-1"]
    assert expected["zipped-0"] == written.clean["zipped-0"]
    offsets = _check_start(out, zookeeper, tmp_path / "broker", expected)
    assert (offsets["plain-0"], offsets["plain-1"]) == (123, 7)  # the first is reset to the end


def test_what_the_broker_repairs_itself(
    written: Written, zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    """Without a restore: it reports everything that these tests look for, and keeps what a restore
    keeps."""
    data, out = tmp_path / "data", tmp_path / "out"
    shutil.copytree(written.root / "data", data)
    index = data / "zipped-0" / f"{0:020}.index"
    index.write_bytes(bytes(index.stat().st_size))
    torn = _active_log(data / "plain-1")
    torn.with_suffix(".index").write_bytes(b"")  # sound, so that only the log itself is not
    with OldKafka(data, zookeeper, tmp_path / "broker") as broker:
        repairs = "\n".join(broker.repairs)
        ends = broker.log_ends
    assert f"Found a corrupted index file, {index}" in repairs
    assert "Recovering unflushed segment" in repairs
    assert f"Corruption found in segment {int(torn.stem)} of log plain-1" in repairs
    restored = _ends(_stratalog("restore", written.root / "killed", out))
    assert restored == ends
    assert _logs(out) == _logs(data)


def _logs(path: Path) -> dict[str, bytes]:
    """Segments with records; a restore may add an empty one."""
    return {name: data for name, data in tree(path).items() if name.endswith(".log") and data}


def test_kafkas_tool_verifies_the_indexes(written: Written, tmp_path: Path) -> None:
    for moment in ("live", "clean", "killed"):
        _stratalog("restore", written.root / moment, tmp_path / moment)
    indexes = sorted(tmp_path.glob("*/*/*.index"))
    done = kafka_09.dump(tmp_path / "dump", indexes, "--verify-index-only")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Dumping") == len(indexes) > 12
    # The indexes of a broker that did not stop cleanly are built again, and an entry names the last
    # offset of a compressed batch, as it does since Kafka 0.10.1, and not its first.
    named = [line for line in done.stderr.splitlines() if line.startswith("Mismatches in")]
    assert [line for line in named if "/clean/" in line or "/zipped-" not in line] == []


def test_other_directories_of_this_format(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """Written by other brokers, with every codec, and one that Stratalog wrote itself."""
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    (data / "meta.properties").write_text("version=0\nbroker.id=0\n")
    for case in OLD_FORMAT:
        shutil.copytree(case.partition_dir, data / case.partition_dir.name)
    _append_again(data, GoldenCase("v0-none"), "again")
    (data / CLEAN_SHUTDOWN).unlink()
    _stratalog("backup", data, tmp_path / "store")
    _stratalog("restore", tmp_path / "store", out)
    ends = {case.partition_dir.name: case.loaddir["logEndOffset"] for case in OLD_FORMAT}
    ends["again-0"] = ends["v0-none-0"]
    logs = sorted(out.glob("*/*.log"))
    before = tree(out)
    with OldKafka(out, zookeeper, tmp_path / "broker") as broker:
        assert broker.repairs == []
        assert {name: broker.log_ends[name] for name in ends} == ends
    assert _changed(before, tree(out)) == []
    dump = kafka_09.dump(tmp_path / "dump", logs, "--deep-iteration").stdout
    assert "isvalid: false" not in dump
    assert dump.count("isvalid: true") == sum(ends.values())


def _append_again(data: Path, case: GoldenCase, topic: str) -> None:
    """A copy of a log in small segments."""
    with LogDir.open(data, config={"log.segment.bytes": "2000"}, background=False) as logs:
        logs.create_topic(topic, 1, create_in_broker_dir=True)
        log = logs.partition(topic, 0)
        for file in sorted(case.partition_dir.glob("*.log")):
            content = file.read_bytes()
            for batch in batches_of(content):
                end = batch.position + batch.size_bytes
                log.append_as_follower(content[batch.position : end])
        assert len(log.segments) > 5
