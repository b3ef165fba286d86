"""Reading one file by position: what is there, less at its end, nothing behind it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import StorageError
from stratalog.format.batch import BatchHeader
from stratalog.partitions.view import LogDirView
from stratalog.storage.log_file import (
    RESYNC_WINDOW_BYTES,
    WALK_WINDOW_BYTES,
    FileIdentity,
    LocalFile,
    next_valid_batch,
    read_file,
)
from tests.log.building import batches_of, plain_segment

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.write_bytes(bytes(range(100)))
    return path


def test_reads(path: Path) -> None:
    with LocalFile(path) as file:
        assert file.size_bytes == 100
        assert file.read(0, 100) == bytes(range(100))
        assert file.read(10, 3) == b"\x0a\x0b\x0c"
        assert file.read(98, 10) == b"\x62\x63"
        assert file.read(100, 1) == b""
        assert file.read(5000, 1) == b""
        assert file.read(7, 0) == b""


def test_size_is_that_of_now(path: Path) -> None:
    with LocalFile(path) as file:
        with path.open("ab") as other:
            other.write(b"more")
        assert (file.size_bytes, file.read(100, 9)) == (104, b"more")
        os.truncate(path, 3)
        assert (file.size_bytes, file.read(0, 9)) == (3, b"\x00\x01\x02")


def test_reads_that_the_kernel_cuts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read may return less than there is."""
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: real(fd, min(size, 7), at))
    with LocalFile(path) as file:
        assert file.read(3, 50) == bytes(range(3, 53))
        assert file.read(90, 50) == bytes(range(90, 100))


def test_file_outlives_its_name(path: Path) -> None:
    with LocalFile(path) as file:
        identity = FileIdentity.of(path.stat())
        path.unlink()
        assert file.identity == identity
        assert file.read(0, 2) == b"\x00\x01"


def test_closing(path: Path) -> None:
    file = LocalFile(path)
    before = len(list(path.parent.parent.glob("*")))
    file.close()
    file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read(0, 1)
    assert len(list(path.parent.parent.glob("*"))) == before
    with pytest.raises(FileNotFoundError):
        LocalFile(path.with_name("nowhere"))


@pytest.mark.parametrize("records", [1, 40, 300], ids=["small", "window", "large"])
def test_walk(records: int, tmp_path: Path) -> None:
    """Batches that share a window, and batches larger than one."""
    raw = plain_segment(50, 60, records=records)
    batches = batches_of(raw)
    assert records != 300 or len(batches[0].raw) > WALK_WINDOW_BYTES
    path = tmp_path / "log"
    path.write_bytes(raw)
    with LocalFile(path) as file:
        walked = list(file.walk(0, len(raw), offset_min=50))
        assert [(at, peek.base_offset, peek.last_offset + 1) for at, peek in walked] == [
            (batch.position, batch.first_offset, batch.next_offset) for batch in batches
        ]
        headers = list(file.headers_of(iter(walked)))
        assert [header for _, header in headers] == [BatchHeader.unpack(b.raw) for b in batches]
        for batch in batches[::7]:
            rest = list(file.walk(batch.position, len(raw), offset_min=50))
            assert rest == walked[batches.index(batch) :]
            cut = list(file.walk(0, batch.end - 1, offset_min=50))
            assert cut == walked[: batches.index(batch)]
        assert list(file.walk(0, len(raw), offset_min=51)) == []
        assert list(file.walk(1, len(raw), offset_min=50)) == []
        assert list(file.walk(-5, len(raw), offset_min=50)) == []


def test_walk_of_a_file_that_shrinks(tmp_path: Path) -> None:
    raw = plain_segment(0, 300)
    path = tmp_path / "log"
    path.write_bytes(raw)
    with LocalFile(path) as file:
        walk = file.walk(0, len(raw), offset_min=0)
        first = [next(walk) for _ in range(3)]
        os.truncate(path, 10_000)
        rest = list(walk)
        assert len(first) + len(rest) < 300
        assert list(file.headers_of(iter(rest)))[-1][0] < 10_000


@pytest.mark.parametrize(
    "junk_bytes", [1, 60, 5000, RESYNC_WINDOW_BYTES - 30, RESYNC_WINDOW_BYTES + 70_000]
)
def test_next_valid_batch_across_windows(junk_bytes: int, tmp_path: Path) -> None:
    """Wherever the windows of the search end: before, in or behind the batch."""
    path = tmp_path / "log"
    raw = plain_segment(9, 1, records=30)
    path.write_bytes(b"\x55" * junk_bytes + raw)
    with LocalFile(path) as file:
        end = file.size_bytes
        for start in {0, junk_bytes // 2, junk_bytes}:
            assert next_valid_batch(file, start, end, offset_min=0) == junk_bytes
        assert next_valid_batch(file, junk_bytes + 1, end, offset_min=0) is None
        assert next_valid_batch(file, 0, end - 1, offset_min=0) is None
        assert next_valid_batch(file, 0, end, offset_min=10) is None


def test_a_small_file_that_cannot_be_read_is_a_typed_error(tmp_path: Path) -> None:
    """A directory in its place raises an OSError for every user."""
    name = "log-start-offset-checkpoint"
    (tmp_path / name).mkdir()
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / f"{0:020d}.log").touch()
    with pytest.raises(StorageError, match=f"{name}: cannot read"):
        read_file(tmp_path / name)
    with pytest.raises(StorageError, match=f"{name}: cannot read"):
        _ = LogDirView(tmp_path).log_start_offsets
    with pytest.raises(FileNotFoundError):
        read_file(tmp_path / "missing")
