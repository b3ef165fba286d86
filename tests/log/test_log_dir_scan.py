"""What is taken for a log directory, and what is said of all else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.errors import NotALogDirError
from stratalog.format.checkpoint import decode_offsets
from stratalog.format.names import RootFile, TopicPartition
from stratalog.storage import log_dir_scan
from stratalog.storage.log_dir_scan import scan_log_dir

if TYPE_CHECKING:
    from pathlib import Path

SEGMENT = f"{0:020d}.log"


def _touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


@pytest.mark.parametrize(
    "file",
    [
        "meta.properties",
        "recovery-point-offset-checkpoint",
        ".kafka_cleanshutdown",
        f"orders-0/{SEGMENT}",
        "orders-0/leader-epoch-checkpoint",
        "orders-0/partition.metadata",
        f"orders-0.0123456789abcdef0123456789abcdef-delete/{SEGMENT}.deleted",
    ],
)
def test_a_root_file_or_a_partition_with_files_tells(tmp_path: Path, file: str) -> None:
    _touch(tmp_path / file)
    (tmp_path / "a-1").mkdir()
    (tmp_path / "strange").mkdir()
    listing = scan_log_dir(tmp_path)
    names = {listed.path.name for listed in listing.partitions}
    assert names | {found.value for found in listing.root_files} == {"a-1", file.partition("/")[0]}
    assert [invalid.path.name for invalid in listing.invalid] == ["strange"]


@pytest.mark.parametrize(
    "file", ["dbus-1/session.conf", "polkit-1/rules.d/50.rules", f"orders/{SEGMENT}", "notes.txt"]
)
def test_a_name_with_a_number_is_no_proof(tmp_path: Path, file: str) -> None:
    _touch(tmp_path / file)
    with pytest.raises(NotALogDirError, match=r"no directory TOPIC-NUMBER with segments"):
        scan_log_dir(tmp_path)


def test_a_directory_called_like_a_root_file_is_no_proof(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").mkdir()
    with pytest.raises(NotALogDirError, match="not a log directory"):
        scan_log_dir(tmp_path)


@pytest.mark.parametrize("other", ["notes.txt", ".git/config", "dbus-1/session.conf"])
def test_a_lock_beside_other_things_is_no_proof(tmp_path: Path, other: str) -> None:
    _touch(tmp_path / ".lock")
    assert scan_log_dir(tmp_path).root_files == {RootFile.LOCK}  # a writer has just begun
    _touch(tmp_path / other)
    with pytest.raises(NotALogDirError, match="not a log directory"):
        scan_log_dir(tmp_path)


def test_what_is_wrong_with_the_path_is_said(tmp_path: Path) -> None:
    _touch(tmp_path / "orders-0" / SEGMENT)
    with pytest.raises(NotALogDirError, match=r"nowhere: no such directory$"):
        scan_log_dir(tmp_path / "nowhere")
    with pytest.raises(NotALogDirError, match=r"\.log: a file, not a log directory; give the dir"):
        scan_log_dir(tmp_path / "orders-0" / SEGMENT)
    with pytest.raises(NotALogDirError, match=r"orders-0: not a log directory but a partition"):
        scan_log_dir(tmp_path / "orders-0")


def test_a_checkpoint_is_decoded_once_for_all_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the work grows with the square of the number of partitions."""
    path = tmp_path / RootFile.RECOVERY_POINTS.value
    path.write_text("0\n2\na 0 7\nb 0 8\n")
    decoded: list[bytes] = []

    def decode(data: bytes) -> dict[TopicPartition, int]:
        decoded.append(data)
        return decode_offsets(data)

    monkeypatch.setattr(log_dir_scan, "decode_offsets", decode)
    log_dir_scan._decoded_offsets.cache_clear()
    for _ in range(100):
        found = log_dir_scan.read_offset_checkpoint(tmp_path, RootFile.RECOVERY_POINTS)
        assert found == {TopicPartition("a", 0): 7, TopicPartition("b", 0): 8}
        found.clear()  # a copy
    assert len(decoded) == 1
    path.write_text("0\n1\na 0 9\n")
    found = log_dir_scan.read_offset_checkpoint(tmp_path, RootFile.RECOVERY_POINTS)
    assert found == {TopicPartition("a", 0): 9}
