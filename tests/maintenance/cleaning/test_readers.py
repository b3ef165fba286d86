"""Readers that are under way while the log beneath them is compacted go forward, without damage."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from stratalog.config import LogConfig
from stratalog.config.topic import CleanupPolicy
from stratalog.errors import SegmentGoneError
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log.partition_view import PartitionView
from stratalog.log.segment_list import OPEN_SEGMENTS_MAX
from stratalog.maintenance.cleaning.cleaner import Cleaner
from stratalog.maintenance.cleaning.plan import cleaner_log, plan_cleaning
from stratalog.maintenance.recovery import LoadPoint, open_log
from stratalog.storage.disk import Disk, SystemCalls

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog
    from stratalog.log.reader import LogReader

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(
    segment_bytes=650,
    segment_index_bytes=240,
    index_interval_bytes=100,
    cleanup_policy=frozenset({CleanupPolicy.COMPACT}),
)
KEYS, RECORDS = 100, 500


def opened(path: Path, point: LoadPoint) -> PartitionLog:
    disk = Disk(SystemCalls(fsync=lambda _fd: None))
    return open_log(path, CONFIG, disk=disk, now_ms=lambda: NOW_MS, point=point)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More segments than a reader keeps open; the last hundred records are what compaction keeps,
    and of every fifth key the first one too: it has no later one."""
    path = tmp_path_factory.mktemp("made") / "t-0"
    with opened(path, LoadPoint()) as log:
        for n in range(RECORDS):
            key = b"once-%d" % n if n < KEYS and n % 5 == 0 else b"key-%d" % (n % KEYS)
            record = Record(0, NOW_MS - RECORDS + n, key, b"v" * 20)
            log.append(encode_batch([record], BatchFields()))
        assert len(log.segments) > OPEN_SEGMENTS_MAX
    return path


@pytest.fixture
def log(made: Path, tmp_path: Path) -> Iterator[PartitionLog]:
    path = shutil.copytree(made, tmp_path / "t-0")
    with opened(path, LoadPoint(was_clean=True)) as log:
        yield log


SURVIVORS = {n for n in range(KEYS) if n % 5 == 0} | set(range(RECORDS - KEYS, RECORDS))


def compact(log: PartitionLog) -> None:
    """Into segments of several old ones each, so that names are used again by larger files."""
    log.roll()
    config = replace(CONFIG, segment_bytes=4000)
    log.update_config(config)
    before = len(log.segments)
    Cleaner(1 << 20).clean(log, plan_cleaning(cleaner_log(log, 0), config, NOW_MS))
    assert len(log.segments) < before / 3


@pytest.mark.slow
@pytest.mark.parametrize("is_removed", [False, True], ids=["kept", "removed"])
@pytest.mark.parametrize("is_view", [False, True], ids=["log", "view"])
@pytest.mark.parametrize("at", [0, 20, 77, 250, 499])
def test_a_reading_goes_on_through_compaction(
    log: PartitionLog, at: int, is_view: bool, is_removed: bool
) -> None:
    reader: LogReader = PartitionView(log.path) if is_view else log
    reading = reader.read()
    offsets = [next(reading).offset for _ in range(at + 1)]
    compact(log)
    if is_removed:
        log.maintenance.remove_discarded(0, at_once=True)
    offsets += [record.offset for record in reading]
    assert offsets == sorted(set(offsets))
    assert set(offsets) >= SURVIVORS
    assert {record.offset for record in reader.read()} <= set(offsets)
    if not is_removed:
        assert offsets == list(range(RECORDS)), "the files of before are still there"


def reuse_inodes(path: Path) -> int:
    """Let new segments have the inodes of the old ones that had their names, as file systems do
    once those are removed. How many that were."""
    count = 0
    for old in path.glob("*.log.deleted"):
        new = old.with_suffix("")
        if new.exists():
            data, status = new.read_bytes(), new.stat()
            old.write_bytes(data)
            os.utime(old, ns=(status.st_atime_ns, status.st_mtime_ns))
            old.replace(new)
            count += 1
        else:
            old.unlink()
    return count


@pytest.mark.slow
@pytest.mark.parametrize("is_view", [False, True], ids=["log", "view"])
@pytest.mark.parametrize("at", [0, 77, 250])
def test_an_inode_that_is_used_again_is_another_file(
    log: PartitionLog, at: int, is_view: bool
) -> None:
    reader: LogReader = PartitionView(log.path) if is_view else log
    reading = reader.read()
    columns = reader.read_columns(columns=["offset"])
    offsets = [next(reading).offset for _ in range(at + 1)]
    compact(log)
    assert reuse_inodes(log.path) > 5
    for offset in (0, 101, 333):
        found = reader.locate(offset)
        assert found is not None
        assert found.record.offset >= offset
    hit = reader.find_time(NOW_MS - RECORDS + 103)
    assert hit is not None
    offsets += [record.offset for record in reading]
    assert offsets == sorted(set(offsets))
    assert set(offsets) >= SURVIVORS
    decoded = [n for batch in columns for n in batch.column(0).to_pylist()]
    assert decoded == sorted(set(decoded))
    assert set(decoded) >= SURVIVORS


@pytest.mark.parametrize("is_removed", [False, True], ids=["kept", "removed"])
def test_columns_too(log: PartitionLog, is_removed: bool) -> None:
    reading = log.read_columns(columns=["offset"])
    compact(log)
    if is_removed:
        log.maintenance.remove_discarded(0, at_once=True)
    offsets = [n for batch in reading for n in batch.column(0).to_pylist()]
    assert offsets == sorted(set(offsets))
    assert set(offsets) >= SURVIVORS


@pytest.mark.parametrize("is_removed", [False, True], ids=["kept", "removed"])
def test_a_list_of_segments_from_before(log: PartitionLog, is_removed: bool) -> None:
    """Views that were opened and closed find their own file again, or say that it is gone."""
    views = list(log.segments)
    ends = [view.end for view in views]
    for view in views[:10]:
        view.release()
    compact(log)
    if is_removed:
        log.maintenance.remove_discarded(0, at_once=True)
    for view, end in zip(views[:10], ends, strict=False):
        if is_removed:
            with pytest.raises(SegmentGoneError):
                list(view.walk())
        else:
            walked = [batch.last_offset for _, batch in view.walk()]
            assert walked[-1] + 1 == end.next_offset


def test_lookups_after_compaction(log: PartitionLog) -> None:
    hit = log.find_time(NOW_MS - RECORDS + 3)
    assert hit is not None
    assert hit.offset == 3
    compact(log)
    log.maintenance.remove_discarded(0, at_once=True)
    for reader in (log, PartitionView(log.path)):
        hit = reader.find_time(NOW_MS - RECORDS + 3)
        assert hit is not None
        assert hit.offset == 5
        found = reader.locate(101)
        assert found is not None
        assert found.record.offset == RECORDS - KEYS
