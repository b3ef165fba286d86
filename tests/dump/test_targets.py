from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.dump.files import absolute_path, files_of, files_of_topic, java_path
from stratalog.errors import NotALogDirError, UnknownTopicOrPartitionError

if TYPE_CHECKING:
    from pathlib import Path

FIRST, SECOND = "00000000000000000000", "00000000000000000007"


@pytest.fixture
def log_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for partition, names in {
        "orders-0": [f"{FIRST}.log", f"{FIRST}.index", f"{FIRST}.timeindex"],
        "orders-10": [f"{FIRST}.log"],
        "orders-2": [
            f"{SECOND}.log", f"{FIRST}.log", f"{SECOND}.snapshot", f"{FIRST}.txnindex",
            f"{FIRST}.index", f"{FIRST}.log.deleted", "leader-epoch-checkpoint", "7.log",
            "00000000000000000042-0000000003.checkpoint",
        ],
        "a-b-0": [f"{FIRST}.log"],
        "gone-0.0123456789abcdef0123456789abcdef-delete": [f"{FIRST}.log"],
        "stranger": ["x.log"],
    }.items():  # fmt: skip
        (tmp_path / partition).mkdir()
        for name in names:
            (tmp_path / partition / name).touch()
    (tmp_path / "orders-2" / "00000000000000000009.log").mkdir()
    (tmp_path / "meta.properties").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_is_itself(log_dir: Path) -> None:
    assert files_of("orders-0//" + FIRST + ".log") == [f"orders-0/{FIRST}.log"]
    assert files_of("./meta.properties") == ["./meta.properties"]


def test_a_partition_directory_is_its_files_by_segment(log_dir: Path) -> None:
    expected = [
        f"{FIRST}.log", f"{FIRST}.index", f"{FIRST}.txnindex", f"{SECOND}.log",
        f"{SECOND}.snapshot", "00000000000000000042-0000000003.checkpoint",
    ]  # fmt: skip
    assert files_of("orders-2/") == [f"orders-2/{name}" for name in expected]
    assert files_of(f"{log_dir}/orders-2", [".log"]) == [
        f"{log_dir}/orders-2/{FIRST}.log", f"{log_dir}/orders-2/{SECOND}.log",
    ]  # fmt: skip


def test_a_log_directory_is_its_partitions_in_order(log_dir: Path) -> None:
    assert files_of(".", [".log"]) == [
        f"a-b-0/{FIRST}.log",
        f"orders-0/{FIRST}.log",
        f"orders-2/{FIRST}.log",
        f"orders-2/{SECOND}.log",
        f"orders-10/{FIRST}.log",
    ]
    assert files_of(f"{log_dir}/")[0] == f"{log_dir}/a-b-0/{FIRST}.log"


@pytest.mark.parametrize(
    ("topic", "partitions"),
    [
        ("orders", ["orders-0", "orders-2", "orders-2", "orders-10"]),
        ("orders:10", ["orders-10"]),
        ("orders-10", ["orders-10"]),
        ("a-b", ["a-b-0"]),
    ],
)
def test_a_topic_is_its_partitions(log_dir: Path, topic: str, partitions: list[str]) -> None:
    found = files_of_topic(str(log_dir), topic, [".log"])
    assert [path.split("/")[-2] for path in found] == partitions
    if topic != "orders-10":  # which is a directory there
        assert [
            path.split("/")[-2] for path in files_of(f"{log_dir}/{topic}", [".log"])
        ] == partitions


@pytest.mark.parametrize("topic", ["order", "orders:1", "orders:", "gone", "stranger", "missing/x"])
def test_what_is_nowhere(log_dir: Path, topic: str) -> None:
    with pytest.raises(UnknownTopicOrPartitionError):
        files_of_topic(str(log_dir), topic)
    with pytest.raises((UnknownTopicOrPartitionError, NotALogDirError)):
        files_of(f"{log_dir}/{topic}")


def test_paths_are_as_java_writes_them(log_dir: Path) -> None:
    assert java_path("a//b/./c///") == "a/b/./c"
    assert java_path("///") == "/"
    assert absolute_path("./x") == f"{log_dir}/./x"
    assert absolute_path("/x") == "/x"
