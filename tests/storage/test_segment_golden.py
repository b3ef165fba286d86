"""Segments written and recovered here are Kafka's, byte for byte."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from stratalog.config import LogConfig
from stratalog.format.batch import BatchHeader
from stratalog.storage.disk import Disk
from stratalog.storage.segment import Segment
from stratalog.storage.segment_view import SegmentView
from tests.golden.cases import GoldenCase, all_cases
from tests.looping import for_each
from tests.storage.segments import DERIVED, files_of, ignore, opened, remove_derived, span_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.storage.segment_view import LoadedBatch

LEGACY = {"segment.bytes": "3000", "index.interval.bytes": "150"}
"""The manifests of `v0-*` and `v1-*` do not tell their config; sizes and entries do."""

OTHER_INDEX_RULE = {
    "real09-gzip": "0.9 had another rule, and no time index",
    "real09-none": "0.9 had another rule, and no time index",
    "real09-snappy": "0.9 had another rule, and no time index",
    "v0-none": "several messages in an append shared one entry",
    "v1-none": "several messages in an append shared one entry",
    "v1-logappend": "several messages in an append shared one entry",
}
RESTARTED_BEFORE = {"epochs": {60}}
"""The broker was restarted there: it forgot how many bytes had passed since the last entry."""


def config_of(case: GoldenCase) -> LogConfig:
    return LogConfig.parse(case.manifest.get("topic_config") or LEGACY)


REPLAYED = [
    case
    for case in all_cases()
    # What the cleaner rewrote was not appended batch by batch.
    if not (case.is_unclean or case.name in OTHER_INDEX_RULE or case.name.startswith("compact"))
]
UNINTERRUPTED = [case for case in REPLAYED if case.name not in RESTARTED_BEFORE]
UNCLEAN = [case for case in all_cases() if case.is_unclean]


def base_offsets(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in directory.glob("*.log"))


def batches_of(directory: Path) -> Iterator[LoadedBatch]:
    for base_offset in base_offsets(directory):
        path = directory / f"{base_offset:020d}.log"
        view = SegmentView(path, base_offset, path.stat().st_size)
        yield from view.batches(0, view.size_bytes)


def replay(case: GoldenCase, directory: Path) -> list[Segment]:
    """Append every batch of the case by itself and roll where the rules say so."""
    source, config, disk = case.partition_dir, config_of(case), Disk()
    now_ms = 0
    segments = [Segment.create(disk, directory, base_offsets(source)[0], config, now_ms=now_ms)]
    for loaded in batches_of(source):
        active, header = segments[-1], loaded.header
        data = loaded.buf[loaded.entry.position : loaded.entry.end]
        span = span_of(loaded.entry, header)._replace(position=0)
        if span.base_offset in RESTARTED_BEFORE.get(case.name, ()):
            active.close()
            active.become_active(now_ms=now_ms)
        if active.roll_reason(len(data), span.last_offset, span.max_timestamp, now_ms):
            active.become_inactive()
            # A compressed legacy set does not tell its first offset; the log's end then names.
            base = span.base_offset if isinstance(header, BatchHeader) else active.next_offset
            segments.append(Segment.create(disk, directory, base, config, now_ms=now_ms))
            active = segments[-1]
        active.append(data, [span])
    return segments


@pytest.mark.slow
@for_each("case", REPLAYED)
def test_appending_gives_kafkas_files(case: GoldenCase, tmp_path: Path) -> None:
    segments = replay(case, tmp_path)
    config, active = config_of(case), segments[-1]
    index_bytes = config.segment_index_bytes
    sizes = {path.suffix: path.stat().st_size for path in tmp_path.glob(f"{active.path.stem}.*")}
    assert sizes == {
        ".log": config.segment_bytes if config.preallocate else active.size_bytes,
        ".index": index_bytes // 8 * 8,
        ".timeindex": index_bytes // 12 * 12,
    }
    active.close()
    assert files_of(tmp_path) == files_of(case.partition_dir, ".log", *DERIVED)


@pytest.mark.slow
@for_each("case", UNINTERRUPTED)
def test_many_batches_in_one_append_give_the_same_files(case: GoldenCase, tmp_path: Path) -> None:
    """As long as no index runs full in the middle, it does not matter how batches come."""
    source, config = case.partition_dir, config_of(case)
    for base_offset in base_offsets(source):
        path = source / f"{base_offset:020d}.log"
        segment = Segment.create(Disk(), tmp_path, base_offset, config, now_ms=0)
        view = SegmentView(path, base_offset, path.stat().st_size)
        spans = [
            span_of(loaded.entry, loaded.header)._replace(position=loaded.position)
            for loaded in view.batches(0, view.size_bytes)
        ]
        if spans:
            segment.append(path.read_bytes(), spans)
        segment.close()
    assert files_of(tmp_path) == files_of(source, ".log", *DERIVED)


@pytest.mark.slow
@for_each("case", UNINTERRUPTED)
def test_recovery_gives_kafkas_indexes(case: GoldenCase, tmp_path: Path) -> None:
    directory = tmp_path / "partition"
    shutil.copytree(case.partition_dir, directory)
    remove_derived(directory)
    for base_offset in base_offsets(directory):
        segment = opened(directory, base_offset, config_of(case))
        valid_part = segment.recover(ignore)
        assert valid_part.corruption is None
        assert valid_part.valid_bytes == segment.size_bytes
    expected = files_of(case.partition_dir, ".log", *DERIVED)
    assert files_of(directory, ".log", *DERIVED) == expected


@for_each("case", UNCLEAN)
def test_recovery_does_what_kafkas_did(case: GoldenCase, tmp_path: Path) -> None:
    """Up to the first segment that lost bytes; what comes after it, Kafka deleted."""
    before, after = case.partition_dirs()
    directory = tmp_path / "partition"
    shutil.copytree(before, directory)
    config, recovered = config_of(case), []
    for base_offset in base_offsets(directory):
        size_bytes = (directory / f"{base_offset:020d}.log").stat().st_size
        segment = opened(directory, base_offset, config)
        valid_part = segment.recover(ignore)
        recovered.append(base_offset)
        if valid_part.valid_bytes < size_bytes:
            assert valid_part.corruption is not None
            assert valid_part.corruption.position == valid_part.valid_bytes
            break
    assert recovered == base_offsets(after)
    names = {f"{base:020d}{suffix}" for base in recovered for suffix in (".log", *DERIVED)}
    found = {name: raw for name, raw in files_of(directory).items() if name in names}
    assert found == files_of(after, ".log", *DERIVED)


@pytest.mark.slow
@for_each("case", UNINTERRUPTED)
def test_becoming_active_and_closing_changes_nothing(case: GoldenCase, tmp_path: Path) -> None:
    directory = tmp_path / "partition"
    shutil.copytree(case.partition_dir, directory)
    segment = opened(directory, base_offsets(directory)[-1], config_of(case))
    next_offset, largest = segment.next_offset, segment.largest_timestamp
    segment.become_active(now_ms=0)
    assert (segment.next_offset, segment.largest_timestamp) == (next_offset, largest)
    segment.close()
    assert files_of(directory) == files_of(case.partition_dir)
