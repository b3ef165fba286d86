"""What a broker does to a partition directory while others look: one system call at a time.

Each function yields after every change that another process could see, so that a test can look at
the directory in between, or a thread can go through it all while a reader reads.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tests.log.building import log_name

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")  # in the order in which Kafka renames


def delete_segment(path: Path, base_offset: int) -> Iterator[None]:
    """Retention: rename to `.deleted`, and some time later remove."""
    for suffix in (*SUFFIXES, ".snapshot"):
        file = path / log_name(base_offset, suffix)
        if file.exists():
            file.rename(f"{file}.deleted")
            yield


def purge(path: Path) -> Iterator[None]:
    """What was renamed goes for good."""
    for file in sorted(path.glob("*.deleted")):
        file.unlink()
        yield


def replace_group(path: Path, cleaned: Path, group: Sequence[int]) -> Iterator[None]:
    """Compaction of the segments in `group` into one; `cleaned` is a directory that has it."""
    base_offset = group[0]
    names = [
        name for suffix in SUFFIXES if (cleaned / (name := log_name(base_offset, suffix))).exists()
    ]
    for name in names:
        shutil.copyfile(cleaned / name, path / f"{name}.cleaned")
        yield
    for name in names:
        (path / f"{name}.cleaned").rename(path / f"{name}.swap")
        yield
    for old in group:
        for suffix in SUFFIXES:
            file = path / log_name(old, suffix)
            if file.exists():
                file.rename(f"{file}.deleted")
                yield
    for name in names:
        (path / f"{name}.swap").rename(path / name)
        yield


def append(path: Path, base_offset: int, raw: bytes, rng: random.Random) -> Iterator[None]:
    """Bytes at the end of a segment, in writes of any size: batches come torn."""
    with (path / log_name(base_offset)).open("ab", buffering=0) as log:
        at = 0
        while at < len(raw):
            step = rng.choice([1, 7, 61, 200, 1000, len(raw)])
            at += log.write(raw[at : at + step])
            yield


def preallocate_indexes(path: Path, base_offset: int, size_bytes: int = 4096) -> Iterator[None]:
    for suffix, entry_bytes in ((".index", 8), (".timeindex", 12)):
        with (path / log_name(base_offset, suffix)).open("wb") as index:
            index.truncate(size_bytes // entry_bytes * entry_bytes)
        yield


def fill_index(path: Path, base_offset: int, entries: dict[str, bytes]) -> Iterator[None]:
    """Entries go to the front of the preallocated files, then the files are trimmed."""
    for suffix, raw in entries.items():
        with (path / log_name(base_offset, suffix)).open("r+b", buffering=0) as index:
            index.write(raw)
            yield
            index.truncate(len(raw))
            yield
