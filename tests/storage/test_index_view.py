"""Index files as hints: copied in parts, cut to what is used, and allowed to change meanwhile."""

from __future__ import annotations

import os
import random
import struct
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import CorruptIndexError
from stratalog.storage.index_view import LOAD_WHOLE_BYTES, OFFSET_INDEX, TIME_INDEX, IndexView

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.storage.index_view import IndexFormat

BASE = 5000
FORMATS = pytest.mark.parametrize("of", [OFFSET_INDEX, TIME_INDEX], ids=lambda of: of.kind)
COUNTS = pytest.mark.parametrize("count", [0, 1, 2, 1000, LOAD_WHOLE_BYTES // 8 + 1, 30_000])


def entries_of(of: IndexFormat, count: int) -> list[tuple[int, int]]:
    """Key and value of each entry, as a lookup gives them."""
    if of is OFFSET_INDEX:
        return [(BASE + 3 * at + 1, 100 * at + 7) for at in range(count)]
    return [(10**12 + 5 * at, BASE + 2 * at + 1) for at in range(count)]


def packed(of: IndexFormat, entries: list[tuple[int, int]]) -> bytes:
    if of is OFFSET_INDEX:
        return b"".join(struct.pack(">ii", key - BASE, value) for key, value in entries)
    return b"".join(struct.pack(">qi", key, value - BASE) for key, value in entries)


def expected_at(of: IndexFormat, entries: list[tuple[int, int]], target: int) -> tuple[int, ...]:
    below = [slot for slot, (key, _) in enumerate(entries) if key <= target]
    if not below:
        return (-1, BASE, 0) if of is OFFSET_INDEX else (-1, -1, BASE)
    return (below[-1], *entries[below[-1]])


def targets_of(entries: list[tuple[int, int]]) -> list[int]:
    keys = [key for key, _ in entries]
    rng = random.Random(len(keys))
    sample = rng.sample(keys, min(8, len(keys))) + keys[:2] + keys[-2:]
    return [0, 1 << 62, *(near for key in sample for near in (key - 1, key, key + 1))]


@pytest.mark.slow
@FORMATS
@COUNTS
@pytest.mark.parametrize("zeros", [0, 5, 1_000_000])
def test_lookups(of: IndexFormat, count: int, zeros: int, tmp_path: Path) -> None:
    """Short files, files of which the end is copied first, and preallocated ones."""
    entries = entries_of(of, count)
    path = tmp_path / f"index{of.file_kind.value}"
    path.write_bytes(packed(of, entries) + bytes(zeros))
    for targets in (targets_of(entries), targets_of(entries)[::-1]):
        view = IndexView.load(of, path, BASE)
        assert view.entries == count
        assert view.last() == ((count - 1, *entries[-1]) if entries else None)
        for target in targets:
            assert view.lookup(target) == expected_at(of, entries, target), target
        for slot in {0, count // 2, count - 1} if count else ():
            assert view.entry(slot) == (slot, *entries[slot])


@pytest.mark.slow
@FORMATS
def test_many_lookups(of: IndexFormat, tmp_path: Path) -> None:
    """After a thousand of them the entries are kept in another form."""
    entries = entries_of(of, 3000)
    path = tmp_path / f"index{of.file_kind.value}"
    path.write_bytes(packed(of, entries))
    view = IndexView.load(of, path, BASE)
    targets = targets_of(entries)
    for _ in range(1200 // len(targets) + 2):
        for target in targets:
            assert view.lookup(target) == expected_at(of, entries, target), target


@FORMATS
def test_partial_entry_at_the_end(of: IndexFormat, tmp_path: Path) -> None:
    entries = entries_of(of, 10)
    path = tmp_path / f"index{of.file_kind.value}"
    path.write_bytes(packed(of, entries) + b"\x01\x02\x03")
    assert IndexView.load(of, path, BASE).entries == 10


@FORMATS
@pytest.mark.parametrize("left_bytes", [0, 8, 12, 1000, 100_000])
def test_file_that_shrinks_after_its_end_was_copied(
    of: IndexFormat, left_bytes: int, tmp_path: Path
) -> None:
    """A broker trims. What is left may be anything, but nothing breaks."""
    entries = entries_of(of, 30_000)
    path = tmp_path / f"index{of.file_kind.value}"
    path.write_bytes(packed(of, entries))
    view = IndexView.load(of, path, BASE)
    os.truncate(path, left_bytes)
    slot, key, value = view.lookup(entries[3][0])
    kept = left_bytes // of.entry_bytes
    assert (slot, key, value) == expected_at(of, entries[:kept], entries[3][0])
    assert view.entries == kept


@FORMATS
def test_file_that_goes_after_its_end_was_copied(of: IndexFormat, tmp_path: Path) -> None:
    entries = entries_of(of, 30_000)
    path = tmp_path / f"index{of.file_kind.value}"
    path.write_bytes(packed(of, entries))
    view = IndexView.load(of, path, BASE)
    path.unlink()
    assert view.lookup(entries[-1][0]) == (29_999, *entries[-1])
    assert view.lookup(entries[0][0])[0] == -1
    with pytest.raises(CorruptIndexError):
        view.entry(5)
    with pytest.raises(FileNotFoundError):
        IndexView.load(of, path, BASE)


@FORMATS
@pytest.mark.parametrize("seed", range(4))
def test_junk(of: IndexFormat, seed: int, tmp_path: Path) -> None:
    """An answer, always; whether it is true is for the segment to find out."""
    rng = random.Random(seed)
    path = tmp_path / f"index{of.file_kind.value}"
    for size in (0, 1, 7, 8, 12, 100, 5000, 200_000):
        path.write_bytes(rng.randbytes(size))
        view = IndexView.load(of, path, BASE)
        for _ in range(5):
            slot, _, _ = view.lookup(rng.randrange(1 << 40))
            assert -1 <= slot < max(1, view.entries)
        if view.entries:
            assert view.last() == view.entry(view.entries - 1)


@FORMATS
def test_newer_entries_told_from_the_log(of: IndexFormat, tmp_path: Path) -> None:
    entries = entries_of(of, 12_000)
    path = tmp_path / f"index{of.file_kind.value}"
    path.write_bytes(packed(of, entries[:11_990]) + bytes(40_000))
    view = IndexView.load(of, path, BASE).extended(packed(of, entries[11_990:]))
    assert view.entries == 12_000
    assert "newer entries" in view.origin
    for target in targets_of(entries):
        assert view.lookup(target) == expected_at(of, entries, target)
