"""`stratalog topic`: topics are created, altered, described and deleted from the command line."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
import typer

from stratalog import LogDir, open_dirs
from stratalog.errors import (
    BrokerDirectoryError,
    ConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    LogDirLockedError,
    NotALogDirError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from tests.cli.command import COMMAND, inside, on_terminal, stratalog
from tests.golden.cases import GOLDEN_DIR

if TYPE_CHECKING:
    from pathlib import Path

BROKER_DIR = GOLDEN_DIR / "_logdir-run1"


def create(path: Path, topic: str = "orders", *more: str) -> None:
    inside("topic", "create", topic, "-d", path, *more)


def content(path: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in path.rglob("*") if each.is_file()}


# -- create


def test_a_topic_is_created_with_its_settings(tmp_path: Path) -> None:
    args = ("-d", tmp_path / "new", "-p", "3", "-c", "cleanup.policy=compact")
    result = inside("topic", "create", "orders", *args)
    assert result.lines == [f"created topic orders with 3 partitions in {tmp_path / 'new'}"]
    assert result.stderr == ""
    with LogDir.open(tmp_path / "new") as logs:
        assert logs.topics["orders"].partitions == (0, 1, 2)
        assert logs.topics["orders"].overrides == {"cleanup.policy": "compact"}
        assert logs.recovery == ()


def test_a_topic_by_its_path_as_json(tmp_path: Path) -> None:
    rows = inside("topic", "create", f"{tmp_path}/orders", "--json").rows
    assert [row["kind"] for row in rows] == ["topic", "partition"]
    assert rows[0]["topic"] == "orders"
    assert rows[0]["settings"] == {}
    assert len(rows[0]["topicId"]) == 22
    assert rows[1]["path"] == str(tmp_path / "orders-0")
    assert (rows[1]["logStartOffset"], rows[1]["logEndOffset"]) == (0, 0)


def test_creating_a_topic_again(tmp_path: Path) -> None:
    create(tmp_path)
    with pytest.raises(TopicAlreadyExistsError, match="Topic 'orders' already exists"):
        create(tmp_path)
    result = inside("topic", "create", "orders", "-d", tmp_path, "--if-not-exists", "-p", "5")
    assert result.lines == [f"topic orders already exists in {tmp_path}"]
    assert open_dirs(tmp_path).partition_numbers == {"orders": [0]}


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        (("a b",), InvalidTopicError, "characters other than"),
        (("t", "-c", "retention.mss=1"), ConfigError, "did you mean 'retention.ms'"),
        (("t", "-c", "retention.ms=soon"), ConfigError, "use milliseconds, or a duration"),
        (("t", "-c", "retention.bytes=10x"), ConfigError, "use bytes, or with a unit: 64KiB"),
        (("t", "-c", "retention.ms=-5"), ConfigError, "retention.ms: '-5'"),
        (("t", "-c", "retention.ms"), typer.BadParameter, "not in the form KEY=VALUE"),
    ],
    ids=["name", "unknown", "time", "size", "value", "form"],
)
def test_what_is_wrong_is_found_before_anything_is_created(
    args: tuple[str, ...], error: type[Exception], text: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=text):
        inside("topic", "create", *args, "-d", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_only_a_log_directory_gets_a_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "letter.txt").touch()
    with pytest.raises(NotALogDirError):
        create(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotALogDirError, match="give the log directory with --log-dir"):
        inside("topic", "create", "orders")
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    create(tmp_path / "logs")
    monkeypatch.chdir(tmp_path / "logs")
    inside("topic", "create", "payments")
    assert set(open_dirs(tmp_path / "logs").topics) == {"orders", "payments"}


def test_small_segments_are_noted(tmp_path: Path) -> None:
    result = inside("topic", "create", "t", "-d", tmp_path, "-c", "segment.bytes=1000")
    assert result.stderr.startswith("stratalog: note: segment.bytes is 1000; Kafka 4.1 and later")


def test_the_directory_of_a_broker(tmp_path: Path) -> None:
    path = shutil.copytree(BROKER_DIR, tmp_path / "broker")
    with pytest.raises(BrokerDirectoryError, match="belongs to node 1 of a Kafka cluster"):
        create(path)
    create(path, "orders", "--create-in-broker-dir")
    inside("topic", "delete", "orders", "-d", path, "--yes")


@pytest.mark.slow
def test_a_locked_directory_is_one_line(tmp_path: Path) -> None:
    with LogDir.open(tmp_path) as logs:
        logs.create_topic("orders")
        for args in (("create", "t"), ("alter", "orders", "-c", "retention.ms=1")):
            with pytest.raises(LogDirLockedError):
                inside("topic", *args, "-d", tmp_path)
        result = stratalog("topic", "create", "t", "-d", tmp_path)
        assert result.status == 1
        assert result.stderr.count("\n") == 1
        assert f"{tmp_path}: locked by process {os.getpid()}" in result.stderr


# -- alter


def test_settings_are_changed_and_removed(tmp_path: Path) -> None:
    create(tmp_path, "orders", "-c", "retention.ms=5", "-c", "segment.ms=7")
    args = ("-c", "retention.ms=9", "--delete-config", "segment.ms")
    result = inside("topic", "alter", "orders", "-d", tmp_path, *args)
    assert result.lines == [f"altered topic orders in {tmp_path}"]
    with LogDir.open(tmp_path) as logs:
        assert logs.topics["orders"].overrides == {"retention.ms": "9"}


@pytest.mark.parametrize(
    ("args", "error", "text"),
    [
        ((), typer.BadParameter, "nothing to change"),
        (("-c", "retention.mss=1"), ConfigError, "did you mean 'retention.ms'"),
        (("--delete-config", "retention.mss"), ConfigError, "did you mean 'retention.ms'"),
        (("--delete-config", "segment.ms"), typer.BadParameter, "does not have this setting"),
        (
            ("-c", "retention.ms=1", "--delete-config", "retention.ms"),
            typer.BadParameter,
            "in both",
        ),
    ],
    ids=["nothing", "unknown", "unknown-deleted", "absent", "both"],
)
def test_a_wrong_change_changes_nothing(
    args: tuple[str, ...], error: type[Exception], text: str, tmp_path: Path
) -> None:
    create(tmp_path, "orders", "-c", "retention.ms=5")
    before = content(tmp_path)
    with pytest.raises(error, match=text):
        inside("topic", "alter", "orders", "-d", tmp_path, *args)
    assert content(tmp_path) == before


@pytest.mark.parametrize("command", ["alter", "add-partitions", "delete", "describe"])
def test_a_topic_that_does_not_exist(command: str, tmp_path: Path) -> None:
    create(tmp_path)
    more = {"alter": ("-c", "retention.ms=1"), "add-partitions": ("-p", "2"), "delete": ("--yes",)}
    before = content(tmp_path)
    with pytest.raises(UnknownTopicOrPartitionError, match="no topic 'none'; topics here: orders"):
        inside("topic", command, "none", "-d", tmp_path, *more.get(command, ()))
    with pytest.raises(NotALogDirError):
        inside("topic", command, "orders", "-d", tmp_path / "no", *more.get(command, ()))
    assert content(tmp_path) == before
    assert not (tmp_path / "no").exists()


# -- add-partitions


def test_partitions_are_added(tmp_path: Path) -> None:
    create(tmp_path)
    result = inside("topic", "add-partitions", "orders", "-d", tmp_path, "-p", "3")
    assert result.lines == [f"topic orders has 3 partitions now in {tmp_path}"]
    with pytest.raises(InvalidPartitionsError, match="3 would not be an increase"):
        inside("topic", "add-partitions", "orders", "-d", tmp_path, "-p", "3")
    assert open_dirs(tmp_path).partition_numbers == {"orders": [0, 1, 2]}


# -- delete


def test_a_topic_is_deleted_with_its_files(tmp_path: Path) -> None:
    create(tmp_path, "orders", "-p", "2")
    create(tmp_path, "payments")
    with LogDir.open(tmp_path) as logs:
        logs.append("orders", b"x")
    result = inside("topic", "delete", "orders", "-d", tmp_path, "--yes")
    assert result.lines == ["deleted topic orders: 2 partitions, 1 offset, 69 B"]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["payments-0"]
    assert inside("topic", "delete", "orders", "-d", tmp_path, "--if-exists").lines == []
    (row,) = inside("topic", "delete", "payments", "-d", tmp_path, "--yes", "--json").rows
    assert row == {"kind": "deleted", "topic": "payments", "partitions": 1, "sizeBytes": 0}


@pytest.mark.slow
def test_without_a_terminal_nobody_can_confirm(tmp_path: Path) -> None:
    create(tmp_path)
    result = stratalog("topic", "delete", "orders", "-d", tmp_path)
    assert result.status == 2
    assert "use --yes" in result.stderr
    assert open_dirs(tmp_path).partition_numbers == {"orders": [0]}


@pytest.mark.slow
@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("n", 1), ("", 1)])
def test_a_terminal_is_asked(answer: str, status: int, tmp_path: Path) -> None:
    create(tmp_path)
    ours, theirs = pty.openpty()
    os.write(ours, f"{answer}\n".encode())
    done = subprocess.run(
        [*COMMAND, "topic", "delete", "orders", "-d", str(tmp_path)],
        stdin=theirs, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    os.close(ours)
    os.close(theirs)
    assert f"Delete topic orders in {tmp_path}: 1 partition, 0 offsets, 0 B? [y/N]" in done.stderr
    assert done.returncode == status
    assert ("orders" in open_dirs(tmp_path).topics) is (status == 1)
    assert ("nothing was deleted" in done.stderr) is (status == 1)


def test_a_topic_of_a_cluster_is_deleted_there(tmp_path: Path) -> None:
    path = shutil.copytree(BROKER_DIR, tmp_path / "broker")
    shutil.copytree(GOLDEN_DIR / "txn" / "txn-0", path / "txn-0")
    before = content(path)
    with pytest.raises(BrokerDirectoryError, match="belongs to a Kafka cluster: delete it there"):
        inside("topic", "delete", "txn", "-d", path, "--yes")
    assert content(path) == before


# -- describe


def test_topics_are_described(tmp_path: Path) -> None:
    create(tmp_path, "orders", "-p", "2", "-c", "retention.ms=5")
    create(tmp_path, "payments")
    with LogDir.open(tmp_path) as logs:
        logs.append("orders", b"x", partition=1)
    before = content(tmp_path)
    lines = inside("topic", "describe", "-d", tmp_path).lines
    assert lines[0].startswith("orders: id ")
    assert lines[0].endswith(", 2 partitions, 1 offset, 69 B")
    assert lines[1:] == [
        "SETTING       VALUE  SOURCE",
        "retention.ms  5      topic",
        "PARTITION  START  END  SEGMENTS  SIZE  PATH",
        f"        0      0    0         1   0 B  {tmp_path / 'orders-0'}",
        f"        1      0    1         1  69 B  {tmp_path / 'orders-1'}",
        "",
        *lines[7:8],
        "PARTITION  START  END  SEGMENTS  SIZE  PATH",
        f"        0      0    0         1   0 B  {tmp_path / 'payments-0'}",
    ]
    assert lines[7].startswith("payments: id ")
    (topic, *partitions) = inside("topic", "describe", f"{tmp_path}/orders", "--json").rows
    assert topic["settings"] == {"retention.ms": {"value": "5", "source": "DYNAMIC_TOPIC_CONFIG"}}
    assert [row["logEndOffset"] for row in partitions] == [0, 1]
    assert content(tmp_path) == before


def test_a_directory_without_topics(tmp_path: Path) -> None:
    LogDir.open(tmp_path).close()
    assert inside("topic", "describe", "-d", tmp_path).lines == [f"no topics in {tmp_path}"]
    assert inside("topic", "describe", "-d", tmp_path, "--json").lines == []


def test_all_settings_are_described(tmp_path: Path) -> None:
    create(tmp_path)
    (topic, _) = inside("topic", "describe", "orders", "-d", tmp_path, "--all", "--json").rows
    assert topic["settings"]["retention.ms"] == {"value": "604800000", "source": "DEFAULT_CONFIG"}


def test_unknown_settings_are_described(tmp_path: Path) -> None:
    path = shutil.copytree(BROKER_DIR, tmp_path / "broker")
    shutil.copytree(GOLDEN_DIR / "txn" / "txn-0", path / "txn-0")
    shutil.rmtree(path / "__cluster_metadata-0")
    lines = inside("topic", "describe", "txn", "-d", path).lines
    assert lines[1].startswith("settings unknown: ")


@pytest.mark.slow
def test_a_table_on_a_terminal(tmp_path: Path) -> None:
    create(tmp_path)
    shown = on_terminal("topic", "describe", "orders", "-d", tmp_path)
    assert "\x1b[1m" in shown


# -- help


@pytest.mark.slow
def test_help_of_the_group_and_of_its_commands() -> None:
    text = stratalog("topic", "--help").stdout.decode()
    for name in ("create", "alter", "add-partitions", "delete", "describe"):
        assert f"\n  {name} " in text
        result = stratalog("topic", name, "--help")
        shown = result.stdout.decode()
        assert shown.startswith(f"Usage: stratalog topic {name} [OPTIONS] ")
        assert f"\n    stratalog topic {name} " in shown
        assert "Exit status:" in shown
        assert max(map(len, shown.splitlines())) <= 100
    assert stratalog("topic").status == 2
    assert "did you mean" in stratalog("topic", "creat").stderr.lower()
