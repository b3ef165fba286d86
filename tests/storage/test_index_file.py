from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from stratalog.errors import CorruptIndexError, DiskFullError
from stratalog.storage.disk import Disk, SystemCalls
from stratalog.storage.index_file import OffsetIndexFile, TimeIndexFile
from tests.disks import FaultyDisk

BASE = 100
OFFSET_ENTRY = bytes.fromhex("0000003700001068")  # offset 155 at position 4200
TIME_ENTRY = bytes.fromhex("0000018bcfe5680000000037")  # 1700000000000 reached at offset 155
TIMESTAMP = 1_700_000_000_000


def open_offsets(path: Path, bytes_max: int = 96, disk: Disk | None = None) -> OffsetIndexFile:
    return OffsetIndexFile(disk or Disk(), path / "index", BASE, bytes_max)


def open_times(path: Path, bytes_max: int = 96, disk: Disk | None = None) -> TimeIndexFile:
    return TimeIndexFile(disk or Disk(), path / "timeindex", BASE, bytes_max)


def content(path: Path) -> bytes:
    return next(path.iterdir()).read_bytes()


# -- bytes and sizes


def test_an_active_offset_index_is_preallocated_and_trimmed_to_its_entries(tmp_path: Path) -> None:
    index = open_offsets(tmp_path, 100)
    assert content(tmp_path) == bytes(96)
    index.append(55, 4200)
    assert content(tmp_path) == OFFSET_ENTRY + bytes(88)
    index.trim()
    assert content(tmp_path) == OFFSET_ENTRY


def test_an_active_time_index_is_preallocated_and_trimmed_to_its_entries(tmp_path: Path) -> None:
    index = open_times(tmp_path, 100)
    assert content(tmp_path) == bytes(96)
    index.append(TIMESTAMP, 55)
    assert content(tmp_path) == TIME_ENTRY + bytes(84)
    index.trim()
    assert content(tmp_path) == TIME_ENTRY


def test_default_sizes_are_kafkas_and_take_no_space(tmp_path: Path) -> None:
    open_offsets(tmp_path, 10 << 20)
    open_times(tmp_path, 10 << 20)
    sizes = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    assert sizes == {"index": 10_485_760, "timeindex": 10_485_756}
    assert all(file.stat().st_blocks == 0 for file in tmp_path.iterdir())


def test_space_is_taken_ahead_of_the_entries(tmp_path: Path) -> None:
    """A page first, then 16 KiB at a time, whether entries divide it evenly or not."""
    faulty = FaultyDisk()
    offsets = open_offsets(tmp_path, 10 << 20, faulty.disk)
    times = open_times(tmp_path, 10 << 20, faulty.disk)
    faulty.history.clear()
    for number in range(1, 5001):
        offsets.append(number, number)
        times.append(number, number)
        for index in (offsets, times):
            assert index.entries <= index.entries_ready
        used = (number * 8, (number + 1) * 12)
        taken = [(tmp_path / name).stat().st_blocks * 512 for name in ("index", "timeindex")]
        assert all(
            taken_bytes >= used_bytes for taken_bytes, used_bytes in zip(taken, used, strict=True)
        )
    assert [taken_bytes // 16_384 for taken_bytes in taken] == [3, 4]  # and the file system's own
    assert faulty.history == ["posix_fallocate"] * (4 + 5)


# -- what may be appended


def test_many_entries_at_once_are_single_ones_in_a_row(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "many").mkdir()
    offsets, times = open_offsets(tmp_path / "one", 80_000), open_times(tmp_path / "one", 80_000)
    for number in range(1, 2001):
        offsets.append(number, 7 * number)
        times.append(11 * number, number)
    found_offsets = open_offsets(tmp_path / "many", 80_000)
    found_times = open_times(tmp_path / "many", 80_000)
    first = 1
    for count in (1, 2, 97, 900, 1000):
        numbers = range(first, first + count)
        first += count
        assert (
            found_offsets.extend([n for number in numbers for n in (number, 7 * number)]) == count
        )
        assert found_times.extend([n for number in numbers for n in (11 * number, number)]) == count
    assert found_offsets.buffer == offsets.buffer
    assert found_times.buffer == times.buffer
    assert (found_offsets.entries, found_offsets.last_offset) == (2000, 2100)
    assert (found_times.last, found_times.last_timestamp) == ((22_000, 2100), 22_000)


def test_many_entries_at_once_fill_the_slots_there_are(tmp_path: Path) -> None:
    offsets, times = open_offsets(tmp_path, 24), open_times(tmp_path, 36)
    assert offsets.extend([1, 10, 2, 20, 3, 30, 4, 40]) == 3
    assert times.extend([10, 1, 20, 2, 30, 3, 40, 4]) == 2
    assert (offsets.last_offset, times.last, times.last_timestamp) == (103, (20, 102), 20)
    assert offsets.is_full
    assert times.is_full
    assert offsets.extend([5, 50]) == times.extend([50, 5]) == 0
    assert offsets.extend([]) == 0


def test_the_closing_entry_is_stored_if_it_is_newer(tmp_path: Path) -> None:
    index = open_times(tmp_path)
    index.close_with(-1, 100)
    assert index.entries == 0
    index.append(50, 10)
    index.close_with(50, 120)
    index.close_with(40, 130)
    assert (index.entries, index.last) == (1, (50, 110))
    index.close_with(60, 110)
    assert (index.entries, index.last) == (2, (60, 110))


def test_an_offset_index_is_full_when_it_is_full(tmp_path: Path) -> None:
    index = open_offsets(tmp_path, 24)
    for number in (1, 2):
        index.append(number, number)
        assert not index.is_full
    index.append(3, 3)
    assert index.is_full
    index.append(4, 4)
    assert (index.entries, index.last_offset) == (3, 103)
    assert len(content(tmp_path)) == 24


def test_a_time_index_keeps_a_slot_for_the_entry_that_closes_the_segment(tmp_path: Path) -> None:
    index = open_times(tmp_path, 96)  # eight slots
    for number in range(1, 8):
        assert not index.is_full
        index.append(number, number)
    assert index.is_full
    index.append(8, 8)
    assert index.entries == 7
    index.close_with(9, 109)
    index.close_with(10, 110)
    assert (index.entries, index.last_timestamp) == (8, 9)
    index.trim()
    assert len(content(tmp_path)) == 96


@pytest.mark.parametrize("bytes_max", [0, 4, 11])
def test_an_index_without_room_for_an_entry_is_always_full(tmp_path: Path, bytes_max: int) -> None:
    times = open_times(tmp_path, bytes_max)
    times.append(1, 1)
    times.close_with(1, 101)
    assert times.is_full
    assert times.lookup(5) == (-1, -1, BASE)
    times.trim()
    assert content(tmp_path) == b""


def test_no_space_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    faulty = FaultyDisk()
    index = open_offsets(tmp_path, disk=faulty.disk)
    faulty.fail_next(errno.ENOSPC)
    with pytest.raises(DiskFullError, match="reserve space"):
        index.append(55, 4200)
    assert (index.entries, content(tmp_path)) == (0, bytes(96))
    index.append(55, 4200)
    assert index.entries == 1


def test_closing_needs_no_space_that_was_not_taken_before(tmp_path: Path) -> None:
    """Seven entries of 12 bytes in a page: the eighth, which closes, lies in it too."""
    faulty = FaultyDisk()
    index = open_times(tmp_path, 10_000, disk=faulty.disk)
    entries = 4096 // 12
    for number in range(1, entries):
        index.append(number, number)
    assert faulty.history.count("posix_fallocate") == 1
    faulty.fail_next(errno.ENOSPC)
    with pytest.raises(DiskFullError):
        index.append(entries, entries)  # would leave no slot for the closing entry
    faulty.fail_next(errno.ENOSPC)
    index.close_with(entries, 100 + entries)
    assert index.entries == entries


# -- looking up


def test_lookups_find_the_greatest_entry_at_or_below(tmp_path: Path) -> None:
    offsets, times = open_offsets(tmp_path), open_times(tmp_path)
    assert offsets.lookup(500) == (-1, 100, 0)
    for number in (1, 2, 3):
        offsets.append(10 * number, 1000 * number)
        times.append(50 * number, 10 * number)
    assert offsets.lookup(109) == (-1, 100, 0)
    assert offsets.lookup(110) == (0, 110, 1000)
    assert offsets.lookup(129) == (1, 120, 2000)
    assert offsets.lookup(9999) == (2, 130, 3000)
    assert times.lookup(49) == (-1, -1, 100)
    assert times.lookup(101) == (1, 100, 120)
    assert [offsets.entries_below(offset) for offset in (110, 111, 131)] == [0, 1, 3]


# -- truncating


@pytest.mark.parametrize(
    ("offset", "kept"),
    [
        pytest.param(120, 1, id="an exact match goes too"),
        pytest.param(121, 2, id="between two entries"),
        pytest.param(110, 0, id="the first"),
        pytest.param(50, 0, id="below the base offset"),
        pytest.param(131, 3, id="above all"),
    ],
)
def test_truncation_keeps_smaller_offsets(tmp_path: Path, offset: int, kept: int) -> None:
    offsets, times = open_offsets(tmp_path), open_times(tmp_path)
    for number in (1, 2, 3):
        offsets.append(10 * number, 1000 * number)
        times.append(50 * number, 10 * number)
    offsets.truncate_to(offset)
    times.truncate_to(offset)
    assert (offsets.entries, times.entries) == (kept, kept)
    assert offsets.last_offset == 100 + 10 * kept
    assert times.last == (50 * kept or -1, 100 + 10 * kept)
    assert (tmp_path / "index").read_bytes()[8 * kept :] == bytes(96 - 8 * kept)
    assert (tmp_path / "timeindex").read_bytes()[12 * kept :] == bytes(96 - 12 * kept)
    offsets.append(40, 4000)
    times.append(200, 40)
    assert offsets.lookup(140) == (kept, 140, 4000)
    assert times.lookup(999) == (kept, 200, 140)


# -- opening what is there


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a file system in memory")
def test_opening_touches_only_what_was_there() -> None:
    """There, reading a hole takes space; on a full disk it is a SIGBUS."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        path = Path(name)
        (path / "index").write_bytes(OFFSET_ENTRY)
        (path / "timeindex").write_bytes(TIME_ENTRY)
        offsets, times = open_offsets(path, 10 << 20), open_times(path, 10 << 20)
        offsets.check(log_bytes=5000, next_offset=156)
        times.check(next_offset=156)
        assert [offsets.lookup(999).offset, times.lookup(TIMESTAMP).offset] == [155, 155]
        assert [file.stat().st_blocks * 512 for file in path.iterdir()] == [4096, 4096]


def test_a_trimmed_file_grows_back_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "index").write_bytes(OFFSET_ENTRY)
    index = open_offsets(tmp_path)
    assert (index.entries, index.last_offset, index.entries_max) == (1, 155, 12)
    assert content(tmp_path) == OFFSET_ENTRY + bytes(88)
    index.append(60, 9000)
    index.trim()
    assert content(tmp_path) == OFFSET_ENTRY + bytes.fromhex("0000003c00002328")


def test_a_preallocated_file_is_opened_at_its_entries(tmp_path: Path) -> None:
    (tmp_path / "timeindex").write_bytes(TIME_ENTRY + bytes(84))
    index = open_times(tmp_path)
    assert (index.entries, index.last) == (1, (TIMESTAMP, 155))


def test_a_partial_entry_at_the_end_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "index").write_bytes(OFFSET_ENTRY + b"\xff\xff\xff")
    index = open_offsets(tmp_path)
    assert index.entries == 1
    index.trim()
    assert content(tmp_path) == OFFSET_ENTRY


def test_an_entry_of_zeros_in_a_trimmed_file_is_an_entry(tmp_path: Path) -> None:
    """Timestamp 0 at the base offset: Kafka, too, counts it by the length of the file."""
    (tmp_path / "timeindex").write_bytes(bytes(12))
    index = open_times(tmp_path)
    assert (index.entries, index.last_timestamp) == (1, 0)
    index.append(5, 1)
    index.trim()
    assert content(tmp_path) == bytes(12) + bytes.fromhex("000000000000000500000001")


def test_more_entries_than_allowed_are_kept_and_make_it_full(tmp_path: Path) -> None:
    index = open_offsets(tmp_path, 96)
    for number in range(1, 6):
        index.append(number, number)
    index.trim()
    index = open_offsets(tmp_path, 16)
    assert index.entries == 5
    assert index.is_full
    index.append(10, 10)
    index.trim()
    assert len(content(tmp_path)) == 40


def test_entries_that_no_log_can_have_are_told(tmp_path: Path) -> None:
    offsets, times = open_offsets(tmp_path), open_times(tmp_path)
    offsets.append(55, 4200)
    times.append(TIMESTAMP, 55)
    offsets.check(log_bytes=4300, next_offset=156)
    times.check(next_offset=156)
    with pytest.raises(CorruptIndexError, match="past"):
        offsets.check(log_bytes=4200, next_offset=156)
    with pytest.raises(CorruptIndexError, match="past"):
        offsets.check(log_bytes=4300, next_offset=155)
    with pytest.raises(CorruptIndexError, match="past"):
        times.check(next_offset=155)


@pytest.mark.parametrize("junk", [b"\xff" * 24, bytes(range(1, 97)), b"\0" * 8 + b"\x80" * 16])
def test_junk_is_opened_and_told(tmp_path: Path, junk: bytes) -> None:
    (tmp_path / "index").write_bytes(junk)
    (tmp_path / "timeindex").write_bytes(junk)
    with pytest.raises(CorruptIndexError):
        open_offsets(tmp_path).check(log_bytes=1 << 30, next_offset=1 << 40)
    with pytest.raises(CorruptIndexError):
        open_times(tmp_path).check(next_offset=101)


def test_flushing_syncs_what_was_written_through_memory(tmp_path: Path) -> None:
    synced: list[bytes] = []
    disk = Disk(SystemCalls(fsync=lambda fd: synced.append((tmp_path / "index").read_bytes())))
    index = open_offsets(tmp_path, 16, disk)
    index.append(55, 4200)
    disk.fsync(index.path)
    assert synced == [OFFSET_ENTRY + bytes(8)]


OPEN_ON_A_FULL_DISK = """
import sys
from pathlib import Path
from stratalog.storage.disk import Disk
from stratalog.storage.index_file import OffsetIndexFile

path = Path(sys.argv[1])
OffsetIndexFile(Disk(), path / "index", 100, 1 << 20).append(55, 4200)
try:
    (path / "ballast").write_bytes(bytes(1 << 20))
except OSError:
    pass
index = OffsetIndexFile(Disk(), path / "index", 100, 1 << 20)
index.check(log_bytes=5000, next_offset=156)
assert index.entries == 1
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_an_index_with_holes_is_opened_on_a_full_disk(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "stratalog-test", str(tmp_path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this process may not mount")
    try:
        command = [sys.executable, "-c", OPEN_ON_A_FULL_DISK, str(tmp_path)]
        assert subprocess.run(command, check=False).returncode == 0  # -7 is a SIGBUS
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)
