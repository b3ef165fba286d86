"""Recovery truncates nothing silently, and nothing that a command does not work on."""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Any

import pytest

from stratalog.format.names import TopicPartition
from stratalog.format.record import BatchFields, encode_batch
from stratalog.log_dir import LogDir
from tests.cli.command import stratalog
from tests.handmade import Head, Rec, batch, plain, write_segment
from tests.log.building import batches_of, plain_records, write_partition

if TYPE_CHECKING:
    from pathlib import Path

LOG = f"{0:020d}.log"
BATCHES = 40
BAD = 12
"""Which batch of `hurt` is corrupt."""
RECORDS_IN_BATCH = 3


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """After an unclean stop: `table` is sound, `hurt` has a flipped byte in its only segment."""
    path = tmp_path / "data"
    config = {"cleanup.policy": "compact", "segment.bytes": 2000, "min.cleanable.dirty.ratio": 0}
    with LogDir.open(path, background=False) as logs:
        logs.create_topic("table", 1, config=config)
        logs.create_topic("hurt", 1)
        for number in range(60):
            logs.append("table", b"v" * 50, key=b"k%d" % (number % 5))
        with logs.producer(linger_ms=60_000) as producer:
            for _ in range(BATCHES):
                for number in range(RECORDS_IN_BATCH):
                    producer.append("hurt", b"value", key=b"k%d" % number)
                producer.flush()
    (path / ".kafka_cleanshutdown").unlink()
    (path / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    hurt = path / "hurt-0" / LOG
    raw = bytearray(hurt.read_bytes())
    batches = batches_of(bytes(raw))
    assert len(batches) == BATCHES
    raw[batches[BAD].position + 70] ^= 0xFF
    hurt.write_bytes(raw)
    return path


def fingerprint(path: Path) -> dict[str, str]:
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def truncations(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["kind"] == "truncation"]


def check_truncation(row: dict[str, Any], log_dir: Path, raw: bytes) -> None:
    assert (row["topic"], row["partition"]) == ("hurt", 0)
    assert row["path"] == str(log_dir / "hurt-0" / LOG)
    assert row["firstOffset"] == BAD * RECORDS_IN_BATCH
    assert row["endOffset"] == BATCHES * RECORDS_IN_BATCH
    assert row["readableBatches"] == BATCHES - BAD - 1
    assert row["readableRecords"] == (BATCHES - BAD - 1) * RECORDS_IN_BATCH
    assert row["droppedBytes"] == len(raw) - row["position"]
    assert "CRC" in row["reason"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        ("compact", "{}", "table", "--force"),
        ("compact", "{}"),
        ("retain", "{}", "table", "-c", "retention.bytes=1", "-c", "cleanup.policy=delete"),
    ],
    ids=["compact-topic", "compact-all", "retain"],
)
def test_a_command_leaves_other_logs_alone(log_dir: Path, args: tuple[str, ...]) -> None:
    before = fingerprint(log_dir / "hurt-0")
    result = stratalog(*(arg.format(log_dir) for arg in args), "--json")
    assert result.status == 0
    assert fingerprint(log_dir / "hurt-0") == before
    assert truncations(result.rows) == []
    assert "warning" not in result.stderr
    assert not (log_dir / ".kafka_cleanshutdown").exists()
    points = (log_dir / "recovery-point-offset-checkpoint").read_text()
    assert "table 0 60" in points
    assert "hurt 0" not in points
    # What was not recovered still is, by whoever opens all of it.
    (row,) = truncations(stratalog("recover", log_dir, "--dry-run", "--json").rows)
    assert row["topic"] == "hurt"


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        ("compact", "{}", "hurt", "-c", "cleanup.policy=compact", "--force"),
        ("maintain", "{}", "--once"),
        ("recover", "{}"),
        ("recover", "{}", "hurt"),
    ],
    ids=["compact", "maintain", "recover", "recover-topic"],
)
def test_what_recovery_truncates_is_reported(log_dir: Path, args: tuple[str, ...]) -> None:
    raw = (log_dir / "hurt-0" / LOG).read_bytes()
    result = stratalog(*(arg.format(log_dir) for arg in args), "--json")
    (row,) = truncations(result.rows)
    check_truncation(row, log_dir, raw)
    assert row["isDone"]
    (line,) = [line for line in result.stderr.splitlines() if "warning" in line]
    assert line.startswith(f"stratalog: warning: {log_dir / 'hurt-0' / LOG}: truncated at byte ")
    assert (
        f"{(BATCHES - BAD - 1) * RECORDS_IN_BATCH} readable records in "
        f"{BATCHES - BAD - 1} batches, up to offset {BATCHES * RECORDS_IN_BATCH - 1}" in line
    )
    assert (log_dir / "hurt-0" / LOG).stat().st_size == row["position"]


@pytest.mark.slow
def test_other_warnings_name_their_command_too(log_dir: Path) -> None:
    checkpoint = log_dir / "recovery-point-offset-checkpoint"
    checkpoint.write_text("junk")
    lines = stratalog("recover", log_dir).stderr.splitlines()
    assert (
        f"stratalog: warning: {checkpoint}: ignored, because it cannot be read: line 1: 'junk' "
        in (lines[0])
    )
    assert all(line.startswith("stratalog: warning: ") for line in lines)


@pytest.mark.slow
def test_ingest_reports_it_too(log_dir: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("one\ntwo\n")
    result = stratalog(
        "ingest", lines, "--to", log_dir, "--topic", "new", "--partitions", "1", "--json"
    )
    assert result.status == 0, result.stderr
    (row,) = truncations(result.rows)
    assert row["topic"] == "hurt"
    assert "stratalog: warning: " in result.stderr


@pytest.mark.slow
def test_a_dry_run_shows_what_recovery_does_and_never_writes(log_dir: Path) -> None:
    raw = (log_dir / "hurt-0" / LOG).read_bytes()
    before = fingerprint(log_dir)
    dry = stratalog("recover", log_dir, "--dry-run", "--json")
    assert fingerprint(log_dir) == before
    assert (dry.status, dry.stderr) == (0, "")
    (planned,) = truncations(dry.rows)
    check_truncation(planned, log_dir, raw)
    assert dry.rows[-1]["isDryRun"]
    done = stratalog("recover", log_dir, "--json")
    (truncated,) = truncations(done.rows)
    assert truncated == {**planned, "isDone": True}
    assert (log_dir / ".kafka_cleanshutdown").exists()
    again = stratalog("recover", log_dir, "--dry-run")
    assert again.lines == ["2 partitions after a clean shutdown: nothing to truncate"]


@pytest.mark.slow
def test_a_dry_run_says_where_opening_is_refused(log_dir: Path) -> None:
    """A cleanly closed log is not truncated."""
    (log_dir / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')
    (log_dir / "recovery-point-offset-checkpoint").write_text("0\n1\nhurt 0 120\n")
    result = stratalog("recover", log_dir, "--dry-run")
    assert result.status == 1
    assert "closed cleanly" in result.stderr
    assert "nothing to truncate" in result.stdout.decode()


@pytest.mark.slow
def test_later_segments_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with LogDir.open(path, background=False) as logs:
        logs.create_topic("t", 1, config={"segment.bytes": 1000})
        for _ in range(60):
            logs.append("t", b"v" * 50)
    (path / ".kafka_cleanshutdown").unlink()
    (path / "recovery-point-offset-checkpoint").unlink()
    segments = sorted((path / "t-0").glob("*.log"))
    assert len(segments) > 3
    raw = bytearray(segments[1].read_bytes())
    raw[70] ^= 0xFF
    segments[1].write_bytes(raw)
    first = int(segments[1].stem)
    (planned,) = truncations(stratalog("recover", path, "--dry-run", "--json").rows)
    assert planned["path"] == str(segments[1])
    assert (planned["firstOffset"], planned["endOffset"]) == (first, 60)
    assert planned["readableRecords"] == 60 - first - 1
    assert planned["deletedSegments"] == len(segments) - 2
    assert planned["droppedBytes"] == sum(each.stat().st_size for each in segments[1:])
    (done,) = truncations(stratalog("recover", path, "--json").rows)
    assert done == {**planned, "isDone": True}


@pytest.mark.slow
def test_a_torn_tail_has_nothing_readable(log_dir: Path) -> None:
    table = max((log_dir / "table-0").glob("*.log"))
    with table.open("ab") as file:
        file.write(table.read_bytes()[:30])
    result = stratalog("recover", log_dir, "table", "--dry-run")
    assert "30 bytes dropped; no readable record is lost" in result.lines[0]


def test_a_log_dir_lists_what_it_recovered(log_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), LogDir.open(log_dir, background=False) as logs:
        (truncation,) = logs.recovery
        assert truncation.topic_partition == TopicPartition("hurt", 0)
        assert truncation.readable_records == (BATCHES - BAD - 1) * RECORDS_IN_BATCH
        assert str(truncation) in caplog.text


def test_logs_that_are_not_used_are_recovered_when_they_are(log_dir: Path) -> None:
    with LogDir.open(log_dir, background=False, recover_all=False) as logs:
        assert list(logs.recovery) == []
        logs.append("table", b"more", key=b"k")
        assert list(logs.recovery) == []
        assert logs.partition("hurt", 0).log_end_offset == BAD * RECORDS_IN_BATCH
        assert len(logs.recovery) == 1
    assert not (log_dir / ".kafka_cleanshutdown").exists()


REACH = 1 << 31


def far_log_dir(root: Path, *offsets: int, flips: int | None = None, point: int = 0) -> Path:
    """After an unclean stop: a segment of two records at each of the offsets, one batch of them
    corrupt, and another segment after it."""
    raw = bytearray(
        b"".join(encode_batch(plain_records(offset, 2), BatchFields()) for offset in offsets)
    )
    if flips is not None:
        raw[batches_of(bytes(raw))[flips].position + 70] ^= 0xFF
    after = encode_batch(plain_records(9 * REACH, 2), BatchFields())
    write_partition(root / "far-0", {0: bytes(raw), 9 * REACH: after})
    (root / "recovery-point-offset-checkpoint").write_text(f"0\n1\nfar 0 {point}\n")
    return root


@pytest.mark.slow
def test_a_marker_that_cannot_be_read(tmp_path: Path) -> None:
    """Kafka's recovery keeps its batch, and truncates the log after it."""
    marker = batch(2, [Rec(0, 0, b"", b"")], Head(1000, 0x30, 7, 0))
    write_segment(tmp_path / "data" / "t-0", 0, plain(0), marker, plain(3))
    dry = stratalog("recover", tmp_path / "data", "--dry-run", "--json").rows[0]
    done = stratalog("recover", tmp_path / "data", "--json").rows[0]
    assert dry == {**done, "isDone": False}
    assert (done["position"], done["firstOffset"]) == (len(plain(0) + marker), 3)
    assert (done["readableBatches"], done["readableRecords"]) == (1, 2)


def test_a_dry_run_shows_what_would_be_split(tmp_path: Path) -> None:
    path = far_log_dir(tmp_path / "data", 0, REACH, REACH + 2, 3 * REACH)
    before = fingerprint(path)
    (split, summary) = stratalog("recover", path, "--dry-run", "--json").rows
    assert split == {
        "kind": "split",
        "topic": "far",
        "partition": 0,
        "path": str(path / "far-0" / LOG),
        "baseOffsets": [0, REACH, 3 * REACH],
        "isDone": False,
    }
    assert (summary["splits"], summary["truncations"]) == (1, 0)
    line, last = stratalog("recover", path, "--dry-run").lines
    assert line.startswith(f"{path / 'far-0' / LOG}: would be split into 3 segments, at base offs")
    assert last.endswith("nothing to truncate; 1 segment would be split")
    assert fingerprint(path) == before
    assert stratalog("recover", path).status == 0
    bases = sorted(int(file.stem) for file in (path / "far-0").glob("*.log"))
    assert bases == [*split["baseOffsets"], 9 * REACH]


@pytest.mark.slow
@pytest.mark.parametrize("point", [0, 3 * REACH], ids=["unflushed", "partly flushed"])
@pytest.mark.parametrize("flips", [0, 1, 2, 3])
def test_a_dry_run_shows_what_is_truncated_of_a_split_segment(
    tmp_path: Path, flips: int, point: int
) -> None:
    offsets = (0, REACH, REACH + 2, 3 * REACH)
    path = far_log_dir(tmp_path / "data", *offsets, flips=flips, point=point)
    *planned, _ = stratalog("recover", path, "--dry-run", "--json").rows
    done = stratalog("recover", path, "--json")
    assert done.status == 0, done.stderr
    truncated = truncations(done.rows)
    assert truncated
    assert truncated == [{**row, "isDone": True} for row in truncations(planned)]


@pytest.mark.slow
def test_an_intact_last_segment_of_a_clean_log_is_not_split(tmp_path: Path) -> None:
    path = far_log_dir(tmp_path / "data", 0, REACH)
    assert stratalog("recover", path).status == 0
    far = encode_batch(plain_records(20 * REACH, 2), BatchFields())
    with max((path / "far-0").glob("*.log")).open("ab") as file:
        file.write(far)
    closed_at = 20 * REACH + 2
    (path / "recovery-point-offset-checkpoint").write_text(f"0\n1\nfar 0 {closed_at}\n")
    result = stratalog("recover", path, "--dry-run")
    assert (result.status, result.stderr) == (0, "")
    assert result.lines == ["1 partition after a clean shutdown: nothing to truncate"]
