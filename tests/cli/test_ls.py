from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import fsspec
import pytest

from stratalog.log_dir import LogDir
from tests.cli.command import inside, on_terminal, stratalog
from tests.golden.cases import GoldenCase, all_cases, log_dir_case
from tests.looping import for_each

MULTISEG = GoldenCase("multiseg").partition_dir
UNIQUE = "0123456789abcdef0123456789abcdef"
CLEAN_CASES = [case for case in all_cases() if not case.is_unclean]


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Two topics, two disks' worth of oddities."""
    shutil.copytree(MULTISEG, tmp_path / "multiseg-0")
    for name in ("txn-0", "txn-1", f"gone-3.{UNIQUE}-delete", f"move-4.{UNIQUE}-future"):
        shutil.copytree(GoldenCase("txn").partition_dir, tmp_path / name)
    (tmp_path / "lost+found").mkdir()
    checkpoint = "0\n2\nmultiseg 0 1500\ntxn 0 130\n"
    (tmp_path / "replication-offset-checkpoint").write_text(checkpoint)
    return tmp_path


def _kinds(rows: list[dict[str, Any]]) -> list[str]:
    return [row["kind"] for row in rows]


@pytest.mark.slow
def test_topics_of_a_log_dir() -> None:
    result = stratalog("ls", log_dir_case().root)
    assert result.stderr == ""
    assert result.status == 0
    head, *table = result.lines
    assert head == (
        f"{log_dir_case().root}: 3 partitions, node 1, cluster L_0Za8S1S7WFAosY2JyK9g, "
        "clean shutdown"
    )
    shown = [" ".join(line.split()) for line in table]
    assert shown[0] == (
        "TOPIC PARTITIONS SEGMENTS SIZE DISK OTHER START END RECORDS OLDEST NEWEST CODEC"
    )
    assert [re.sub(r"(?<=B )(.*? [KM]iB ){2}", "", line) for line in shown[1:]] == [
        "__cluster_metadata 1 1 45.9 KiB 0 687 - 2026-11-15T18:57:49.367Z "
        "2026-11-15T19:01:51.046Z none",
        "__consumer_offsets 1 1 0 B 0 0 0 - - -",
        "__transaction_state 1 1 12.4 KiB 0 103 - 2026-11-15T19:00:37.931Z "
        "2026-11-15T19:00:40.270Z none",
    ]


@pytest.mark.slow
def test_json_of_a_log_dir() -> None:
    rows = stratalog("ls", log_dir_case().root, "--json").rows
    assert rows[0] == {
        "kind": "log-dir",
        "path": str(log_dir_case().root),
        "clusterId": "L_0Za8S1S7WFAosY2JyK9g",
        "nodeId": 1,
        "directoryId": "MtYdq_KPCbmiow0LcoAMAw",
        "isCleanShutdown": True,
        "isUnclean": False,
        "isInUse": False,
        "holder": None,
        "partitions": 3,
    }
    assert rows[3] == {
        "kind": "topic",
        "topic": "__transaction_state",
        "topicId": rows[3]["topicId"],
        "partitions": 1,
        "unreadablePartitions": 0,
        "segments": 1,
        "sizeBytes": (log_dir_case().root / "__transaction_state-0" / f"{0:020d}.log")
        .stat()
        .st_size,
        "logStartOffsetMin": 0,
        "logEndOffsetMax": 103,
        "offsets": 103,
        "records": None,
        **{name: value for name, value in rows[3].items() if name.startswith("disk")},
        "firstTimestamp": 1794769237931,
        "largestTimestamp": 1794769240270,
        "codecs": ["none"],
        "settings": {
            name: {"value": value, "source": "DYNAMIC_TOPIC_CONFIG"}
            for name, value in {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": "1",
                "segment.bytes": "104857600",
                "unclean.leader.election.enable": "false",
            }.items()
        },
        "settingsUnknown": None,
        "clusterPartitions": 1,
    }


@pytest.mark.slow
def test_other_directories_are_listed(log_dir: Path) -> None:
    result = stratalog("ls", log_dir, "--json")
    assert _kinds(result.rows) == [
        "log-dir",
        "topic",
        "topic",
        "directory",
        "directory",
        "directory",
    ]
    states = {Path(row["path"]).name: row["state"] for row in result.rows[3:]}
    assert states == {
        f"gone-3.{UNIQUE}-delete": "delete",
        f"move-4.{UNIQUE}-future": "future",
        "lost+found": "unknown",
    }
    assert "not a partition; a broker does not start with it" in stratalog("ls", log_dir).lines[-1]


def test_partitions_of_a_topic(log_dir: Path) -> None:
    rows = inside("ls", log_dir, "txn", "--json").rows
    assert [(row["topic"], row["partition"]) for row in rows] == [("txn", 0), ("txn", 1)]
    assert [row["highWatermark"] for row in rows] == [130, None]
    assert rows == inside("ls", "-d", log_dir, "--topic", "txn", "--json").rows
    assert rows == inside("ls", log_dir / "txn", "--json").rows


def test_a_partition_is_shown_by_segments(log_dir: Path) -> None:
    by_name = inside("ls", log_dir, "txn:1", "--json").rows
    assert _kinds(by_name) == ["partition"] + ["segment"] * 8
    assert by_name == inside("ls", log_dir / "txn-1", "--json").rows
    assert by_name == inside("ls", log_dir, "txn-1", "--json").rows
    segment = inside("ls", log_dir / "txn-1" / f"{11:020d}.log", "--json").rows
    assert _kinds(segment) == ["partition", "segment"]
    assert segment[1] == by_name[2]


def test_the_current_directory_is_the_default(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(log_dir)
    assert [row.get("topic") for row in inside("ls", "--json").rows[:3]] == [
        None,
        "multiseg",
        "txn",
    ]
    assert len(inside("ls", "txn", "--json").rows) == 2


def test_sorting(log_dir: Path) -> None:
    def names(*args: str) -> list[str]:
        rows = inside("ls", log_dir, "--partitions", "--json", *args).rows
        return [f"{row['topic']}-{row['partition']}" for row in rows if row["kind"] == "partition"]

    assert names() == ["multiseg-0", "txn-0", "txn-1"]
    assert names("--sort", "size") == ["multiseg-0", "txn-0", "txn-1"]
    assert names("--sort", "newest") == ["txn-0", "txn-1", "multiseg-0"]
    assert names("--sort", "offsets")[0] == "multiseg-0"


@pytest.mark.parametrize("case", CLEAN_CASES, ids=str)
def test_facts_agree_with_kafkas_loader(case: GoldenCase) -> None:
    expected = case.loaddir
    rows = inside("ls", case.partition_dir, "--all", "--json").rows
    (partition,) = [row for row in rows if row["kind"] == "partition"]
    if case.name != "deleterecords":  # its log start is in a checkpoint that the case lacks
        assert partition["logStartOffset"] == expected["logStartOffset"]
    assert partition["logEndOffset"] == expected["logEndOffset"]
    assert partition["lastStableOffset"] == expected["lastStableOffset"]
    segments = [row for row in rows if row["kind"] == "segment"]
    assert [(row["baseOffset"], row["sizeBytes"], row["largestTimestamp"]) for row in segments] == [
        (found["baseOffset"], found["size"], _largest_timestamp(found))
        for found in expected["segments"]
    ]
    aborted = [row for row in rows if row["kind"] == "aborted-transaction"]
    keys = ("producerId", "firstOffset", "lastOffset", "lastStableOffset")
    assert [[row[key] for key in keys] for row in aborted] == [
        [txn[key] for key in keys] for txn in expected["abortedTxns"]
    ]
    epochs = [[row["epoch"], row["startOffset"]] for row in rows if row["kind"] == "leader-epoch"]
    # Kafka's loader drops an epoch that begins at the log end: nothing was written in it yet.
    assert [entry for entry in epochs if entry[1] < partition["logEndOffset"]] == expected["epochs"]


def _largest_timestamp(segment: dict[str, Any]) -> int:
    """Kafka falls back to the time of the file where no record has a timestamp."""
    return int(segment["largestTimestamp"]) if segment["timeIndexEntries"] else -1


def test_index_entries_agree_with_kafkas_loader() -> None:
    case = GoldenCase("txn")
    rows = [row for row in inside("ls", case.partition_dir, "--json").rows if "offsetIndex" in row]
    entries = [(row["offsetIndex"]["entries"], row["timeIndex"]["entries"]) for row in rows]
    assert entries == [
        (found["indexEntries"], found["timeIndexEntries"]) for found in case.loaddir["segments"]
    ]
    assert {row["offsetIndex"]["origin"] for row in rows} == {"file"}


@pytest.mark.slow
def test_the_state_of_indexes(tmp_path: Path) -> None:
    partition = GoldenCase("multiseg").copy_to(tmp_path) / "multiseg-0"
    (partition / f"{0:020d}.index").unlink()
    (partition / f"{156:020d}.timeindex").write_bytes(b"")
    (partition / f"{312:020d}.index").write_bytes(b"\x7f" * 400)
    with (partition / f"{453:020d}.index").open("ab") as index:
        index.write(bytes(8000))
    table = stratalog("ls", partition).lines[5:9]
    notes = [line[line.index("none") + 4 :].strip() for line in table]
    assert notes == [
        "index: no file",
        "time index: the file has no entries",
        "index: the file contradicts the log",
        "index: preallocated to 8.2 KiB",
    ]


@pytest.mark.slow
@for_each("case", all_cases())
def test_reindex_changes_what_verify_finds_wrong(case: GoldenCase) -> None:
    """One meaning of a right index: verify has no finding, and reindex does not touch it. What it
    finds wrong, reindex replaces; of what it only notes, reindex leaves all that is right."""
    for partition in case.partition_dirs():
        found = [row for row in inside("verify", partition, "--json").rows if "severity" in row]
        indexes = [row for row in found if row["path"].endswith("index")]
        changed = {
            row["path"]
            for row in inside("reindex", partition, "--dry-run", "--json").rows
            if row["kind"] == "file" and row["change"] != "kept"
        }
        assert changed <= {row["path"] for row in indexes}
        assert changed >= {row["path"] for row in indexes if row["severity"] != "note"}


def test_disk_use_is_that_of_du(log_dir: Path) -> None:
    (log_dir / "txn-0" / f"{0:020d}.log.deleted").write_bytes(bytes(10_000))
    (log_dir / "txn-0" / "0-0-0-0.staged").write_bytes(bytes(10_000))
    with (log_dir / "txn-0" / f"{9999:020d}.index").open("wb") as index:
        index.truncate(10 << 20)  # sparse
    kept = log_dir / "multiseg-0" / "repair-x" / "old"
    kept.mkdir(parents=True)
    os.link(log_dir / "multiseg-0" / f"{0:020d}.log", kept / f"{0:020d}.log")
    (kept / "other.log").write_bytes(bytes(50_000))
    for row in inside("ls", log_dir, "--partitions", "--json").rows:
        if row["kind"] == "partition":
            du = subprocess.run(["du", "-sB1", row["path"]], capture_output=True, check=True).stdout
            assert row["diskBytes"] == int(du.split()[0])
            if row["topic"] == "txn" and row["partition"] == 0:
                assert row["diskDeletedBytes"] >= 10_000
                assert row["diskStagedBytes"] >= 10_000
                assert row["diskBytes"] < 1 << 20
            else:
                assert row["diskDeletedBytes"] == row["diskStagedBytes"] == 0


def test_an_object_store_has_no_blocks_and_no_lock() -> None:
    store = fsspec.filesystem("memory")
    for file in MULTISEG.iterdir():
        store.pipe_file(f"/ls-test/multiseg-0/{file.name}", file.read_bytes())
    store.pipe_file("/ls-test/.lock", b"")
    head, topic = inside("ls", "memory://ls-test", "--json").rows
    assert (head["isInUse"], head["isUnclean"]) == (False, True)
    assert topic["diskBytes"] == sum(file.stat().st_size for file in MULTISEG.iterdir())
    assert topic["diskLogBytes"] == topic["sizeBytes"]
    rows = inside("read", "memory://ls-test", "multiseg", "--key", "k0007", "--json").rows
    assert [row["offset"] for row in rows] == [7]


def test_who_uses_a_directory(tmp_path: Path) -> None:
    def head() -> str:
        return inside("ls", tmp_path).lines[0].partition(": ")[2]

    with LogDir.open(tmp_path, background=False) as logs:
        logs.create_topic("t")
        used = inside("ls", tmp_path, "--json").rows[0]
        assert head() == "1 partition, in use by another LogDir in this process"
        assert (used["isInUse"], used["isUnclean"]) == (True, False)
    assert head() == "1 partition, clean shutdown"
    (tmp_path / ".kafka_cleanshutdown").unlink()
    assert head() == "1 partition, not shut down cleanly"
    assert inside("ls", tmp_path, "--json").rows[0]["isUnclean"]


def test_counted_records(log_dir: Path) -> None:
    topics = {
        row["topic"]: row["records"]
        for row in inside("ls", log_dir, "--count", "--json").rows
        if row["kind"] == "topic"
    }
    txn = len(inside("read", log_dir / "txn-0", "--json").rows)
    assert topics == {"multiseg": 1500, "txn": 2 * txn}
    assert "RECORDS" not in inside("ls", log_dir).lines[1]


def test_files_in_transit(tmp_path: Path) -> None:
    partition = GoldenCase("multiseg").copy_to(tmp_path) / "multiseg-0"
    shutil.copy(partition / f"{0:020d}.log", partition / f"{0:020d}.log.deleted")
    rows = inside("ls", partition, "--json").rows
    (file,) = [row for row in rows if row["kind"] == "file"]
    assert (Path(file["path"]).name, file["state"]) == (f"{0:020d}.log.deleted", "deleted")


@pytest.mark.slow
def test_properties_of_a_broker_that_had_no_id_yet(log_dir: Path) -> None:
    (log_dir / "meta.properties").write_text("version=0\ncluster.id=abc\n")
    head = stratalog("ls", log_dir).lines[0]
    assert head == f"{log_dir}: 3 partitions, cluster abc, not shut down cleanly"


@pytest.mark.slow
def test_one_bad_partition_does_not_hide_the_others(log_dir: Path) -> None:
    (log_dir / "hollow-0").mkdir()
    (log_dir / "txn-1" / "leader-epoch-checkpoint").write_text("0\n1\nnonsense\n")
    result = stratalog("ls", log_dir, "--epochs", "--json")
    assert [row["topic"] for row in result.rows if row["kind"] == "partition"] == [
        "multiseg",
        "txn",
    ]
    assert result.status == 1
    errors = result.stderr.splitlines()
    assert len(errors) == 2
    assert all(line.startswith("stratalog: error: ") for line in errors)
    assert "hollow-0: no segment" in errors[0]
    assert "leader-epoch-checkpoint" in errors[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "status", "text"),
    [
        (["/does/not/exist"], 1, "/does/not/exist: no such file or directory"),
        (["."], 1, "not a log directory"),
        (["--sort", "colour"], 2, "colour"),
        (["--nonsense"], 2, "--nonsense"),
    ],
)
def test_errors_are_one_line(tmp_path: Path, args: list[str], status: int, text: str) -> None:
    result = stratalog("ls", *args, cwd=tmp_path)
    assert result.status == status
    assert result.stdout == b""
    assert text in result.stderr.splitlines()[-1]
    if status == 1:
        assert len(result.stderr.splitlines()) == 1


def test_nothing_is_written(log_dir: Path) -> None:
    before = _fingerprint(log_dir)
    inside("ls", log_dir, "--all")
    assert _fingerprint(log_dir) == before


def _fingerprint(directory: Path) -> dict[str, tuple[int, str]]:
    return {
        str(path): (path.stat().st_mtime_ns, _digest(path)) for path in sorted(directory.rglob("*"))
    }


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


@pytest.mark.slow
@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_gets_a_table_that_fits(columns: int) -> None:
    shown = on_terminal("ls", MULTISEG, "--all", columns=columns)
    assert "\x1b[1m" in shown
    plain = _without_escapes(shown).splitlines()
    assert max(map(len, plain)) <= columns
    (last,) = [line for line in plain if line.lstrip().startswith("1485 ")]
    assert last.split()[:4] == ["1485", "1500", "1.4", "KiB"]


def _without_escapes(text: str) -> str:
    from rich.text import Text  # noqa: PLC0415  # its parser is the one to trust here

    return Text.from_ansi(text).plain


@pytest.mark.slow
def test_a_pipe_gets_no_escapes_and_complete_rows() -> None:
    lines = stratalog("ls", MULTISEG).lines
    assert not any("\x1b" in line for line in lines)
    assert " ".join(lines[4].split()) == (
        "BASE NEXT SIZE INDEX TIMEINDEX ABORTED SNAPSHOT OLDEST NEWEST CODEC INDEXES"
    )
    assert " ".join(lines[5].split()) == (
        "0 156 15.9 KiB 44 44 0 no 2023-11-14T22:13:20.000Z 2023-11-14T22:13:21.550Z none -"
    )


@pytest.mark.slow
def test_json_is_one_object_a_line(log_dir: Path) -> None:
    for line in stratalog("ls", log_dir, "--all", "--json").lines:
        assert isinstance(json.loads(line), dict)


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [(), ("--segments",), ("--partitions",), ("--transactions",), ("--all",), ("txn",), ("txn:0",)],
    ids=str,
)
def test_a_missing_transaction_index_is_a_warning(tmp_path: Path, args: tuple[str, ...]) -> None:
    """Once for each file, at every level of detail."""
    path = GoldenCase("txn").copy_to(tmp_path)
    before = stratalog("ls", path, *args)
    assert (before.stderr, before.status) == ("", 0)
    missing = sorted((path / "txn-0").glob("*.txnindex"))
    for file in missing:
        file.unlink()
    after = stratalog("ls", path, *args, "--json")
    assert after.status == 0
    lines = after.stderr.splitlines()
    assert [line.split(": missing, although ")[0] for line in lines] == [
        f"stratalog: warning: {file}" for file in missing
    ]
    assert all("read_committed" in line and "stratalog reindex" in line for line in lines)
    rows = [row for row in after.rows if row["kind"] == "missing-index"]
    assert [(row["topic"], row["partition"]) for row in rows] == [("txn", 0)] * len(missing)
    assert [row["path"] for row in rows] == list(map(str, missing))
    assert [f"stratalog: warning: {row['warning']}" for row in rows] == lines
    assert all(row["abortedTransactions"] > 0 for row in rows)
