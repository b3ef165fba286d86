"""A segment on its way into a log: what is left at each stop, and what a loader makes of it."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import (
    CleaningAbortedError,
    CorruptBatchError,
    LogOfflineError,
    OffsetOverflowError,
    StorageError,
)
from stratalog.format.batch_table import scan_batches
from stratalog.format.legacy import encode_legacy
from stratalog.format.names import FileKind, FileState
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.maintenance.cleaning.cleaner import Cleaner
from stratalog.maintenance.cleaning.plan import cleaner_log, plan_cleaning
from stratalog.maintenance.cleaning.rewriting import CleanedSegment, RewrittenBatches
from stratalog.maintenance.interrupted_changes import finish_swaps
from stratalog.maintenance.recovery import LoadPoint, open_log
from stratalog.storage.disk import SystemCalls
from tests.crash.cleaned_history import CONFIG, START_MS, UNSYNCED, open_at, write_history
from tests.disks import FaultyDisk
from tests.log.building import log_name, write_partition

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog


def batch(offset: int, key: bytes = b"k", size: int = 50) -> bytes:
    return encode_batch([Record(offset, START_MS + offset, key, b"v" * size)], BatchFields())


def written(*batches: bytes) -> RewrittenBatches:
    data = b"".join(batches)
    return RewrittenBatches(data, scan_batches(data).rows)


def names_in(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


@pytest.mark.parametrize("data", [b"", batch(70)], ids=["empty", "of other offsets"])
def test_a_replacement_takes_the_place_of_all_files_of_its_segment(
    tmp_path: Path, data: bytes
) -> None:
    """Also when it has no records, and when its own indexes were lost with the power."""
    path = write_partition(tmp_path / "t-0", {64: batch(64) + batch(65), 80: batch(80)})
    for suffix in (".index", ".timeindex", ".txnindex"):
        (path / log_name(64, suffix)).write_bytes(b"stale")
    (path / log_name(64, ".log.swap")).write_bytes(data)
    finish_swaps(UNSYNCED, path)
    assert names_in(path) == [log_name(64), log_name(80)]
    assert (path / log_name(64)).read_bytes() == data


def test_it_is_removed_when_it_is_given_up(tmp_path: Path) -> None:
    cleaned = CleanedSegment(UNSYNCED, tmp_path, 5, CONFIG)
    cleaned.append(written(batch(5), batch(7)))
    cleaned.discard()
    assert names_in(tmp_path) == []


def test_it_begins_afresh_over_what_an_earlier_one_left(tmp_path: Path) -> None:
    for suffix in (".log", ".index", ".timeindex", ".txnindex"):
        (tmp_path / log_name(5, suffix + ".cleaned")).write_bytes(b"left over" * 100)
    cleaned = CleanedSegment(UNSYNCED, tmp_path, 5, CONFIG)
    cleaned.append(written(batch(5)))
    segment = cleaned.finish(3000)
    assert segment.path.read_bytes() == batch(5)
    assert not segment.sibling(FileKind.TXN_INDEX).exists()
    assert segment.sibling(FileKind.OFFSET_INDEX).read_bytes() == b""
    assert segment.size_bytes == len(batch(5))


def test_offsets_must_fit(tmp_path: Path) -> None:
    cleaned = CleanedSegment(UNSYNCED, tmp_path, 5, CONFIG)
    cleaned.append(written(batch(5 + (1 << 31) - 1)))
    with pytest.raises(OffsetOverflowError):
        cleaned.append(written(batch(5 + (1 << 31))))
    cleaned.discard()


def test_an_index_has_no_more_entries_than_the_topic_allows(tmp_path: Path) -> None:
    """Groups are made by the sizes of indexes that may be sparser than ours. Such a segment can
    become the active one again."""
    path = tmp_path / "t-0"
    with open_at(path, UNSYNCED) as log:
        for n in range(300):
            log.append(batch(0, b"%d" % n, size=1))
            if n % 20 == 19:
                log.roll()
    config = CONFIG.parse({"segment.bytes": 1_000_000, "segment.index.bytes": 96}, CONFIG)
    for file in path.glob("*index"):
        file.write_bytes(b"")
    with open_log(
        path, config, disk=UNSYNCED, now_ms=lambda: START_MS, point=LoadPoint(0, 300, True)
    ) as log:
        log.append(batch(0))
        log.roll()
        clean(log)
        assert len(log.maintenance.segments) == 2
        index = log.maintenance.segments[0].sibling(FileKind.OFFSET_INDEX)
        assert index.stat().st_size == 96
        assert [record.offset for record in log.read(290)] == list(range(290, 301))
        log.truncate_to(250)
        log.append(batch(0))
        assert [record.offset for record in log.read(240)] == list(range(240, 251))


def clean(log: PartitionLog, checkpoint: int | None = None) -> int:
    plan = plan_cleaning(cleaner_log(log, checkpoint), log.config, START_MS)
    return Cleaner(24 * 1000).clean(log, plan).end_offset


def test_nothing_to_clean_leaves_the_checkpoint(tmp_path: Path) -> None:
    with open_at(tmp_path / "t-0", UNSYNCED) as log:
        write_history(log, segments=2)
        end = clean(log)
        assert end == log.maintenance.segments[-1].base_offset
        assert clean(log, end) == end


def test_readers_go_on_when_the_last_renaming_fails(tmp_path: Path) -> None:
    """The log has its new name by then, and its indexes have not."""
    faulty = FaultyDisk(SystemCalls(fsync=lambda _fd: None))
    with open_at(tmp_path / "t-0", faulty.disk) as log:
        write_history(log, segments=3)
        before = list(log.read())
        renames = [n for n, name in enumerate(record_calls(log, faulty)) if name == "rename"]
    assert len(renames) > 3
    path = tmp_path / "again" / "t-0"
    path.parent.mkdir()
    with open_at(path, faulty.disk) as log:
        write_history(log, segments=3)
        faulty.fail_next(errno.EIO, skip=renames[-2])
        with pytest.raises(StorageError):
            clean(log)
        assert not log.is_usable
        found = list(log.read())
        assert {record.key for record in found} == {record.key for record in before}
        assert log.locate(0) is not None
        assert log.find_time(START_MS) is not None


def record_calls(log: PartitionLog, faulty: FaultyDisk) -> list[str]:
    start = len(faulty.history)
    clean(log)
    return faulty.history[start:]


def test_a_replacement_for_segments_that_are_gone_is_refused(tmp_path: Path) -> None:
    with open_at(tmp_path / "t-0", UNSYNCED) as log:
        write_history(log, segments=4)
        bases = [segment.base_offset for segment in log.maintenance.segments]
        size = [segment.size_bytes for segment in log.maintenance.segments]
        now, before = log.truncation_epoch, log.truncation_epoch - 2
        for of, old_bytes, epoch, reason in [
            (bases[:2], size[0], now, "deleted or truncated meanwhile"),
            ([bases[0], bases[2]], size[0] + size[2], now, "deleted or truncated meanwhile"),
            ([bases[0] + 1], size[1], now, "deleted or truncated meanwhile"),
            (bases[-1:], size[-1], now, "deleted or truncated meanwhile"),
            (bases[3:], size[3] + size[4], now, "deleted or truncated meanwhile"),
            ([bases[-1] + 1], 0, now, "deleted or truncated meanwhile"),
            (bases[:1], size[0], before, "the log was truncated meanwhile"),
        ]:
            new = CleanedSegment(log.maintenance.disk, log.path, 0, CONFIG).finish(0)
            assert new.path.exists()
            with pytest.raises(CleaningAbortedError, match=reason):
                log.maintenance.replace_segments(
                    of, new, old_bytes=old_bytes, truncation_epoch=epoch
                )
            assert not [*log.path.glob(f"*{FileState.CLEANED.value}")]
        assert log.is_usable
        assert [segment.base_offset for segment in log.maintenance.segments] == bases


def test_a_replacement_in_a_log_that_is_offline_is_removed(tmp_path: Path) -> None:
    log = open_at(tmp_path / "t-0", UNSYNCED)
    write_history(log, segments=2)
    old, epoch = log.maintenance.segments[0], log.truncation_epoch
    new = CleanedSegment(log.maintenance.disk, log.path, 0, CONFIG).finish(0)
    log.close()
    with pytest.raises(LogOfflineError):
        log.maintenance.replace_segments([0], new, old_bytes=old.size_bytes, truncation_epoch=epoch)
    assert not [*log.path.glob(f"*{FileState.CLEANED.value}")]


@pytest.mark.parametrize("is_dirty", [True, False])
def test_damage_in_a_message_of_an_old_format_is_told(tmp_path: Path, is_dirty: bool) -> None:
    """Rewriting it would make it look sound."""
    records = [Record(n, START_MS, b"k%d" % n, b"value") for n in range(3)]
    raw = bytearray(encode_legacy(records[:1], 1) + encode_legacy(records[1:], 1))
    path = write_partition(tmp_path / "t-0", {0: bytes(raw), 3: batch(3), 4: batch(4)})
    with open_at(path, UNSYNCED) as log:
        raw[-1] ^= 1
        (path / log_name(0)).write_bytes(raw)
        with pytest.raises(CorruptBatchError, match="CRC") as caught:
            clean(log, None if is_dirty else 3)
        assert caught.value.path == path / log_name(0)
        assert caught.value.position == len(raw) // 3 * 2
        assert log.is_usable
        assert (path / log_name(0)).read_bytes() == bytes(raw)
        assert not [*path.glob("*.cleaned")]


@pytest.mark.parametrize(
    ("batches", "position"),
    [
        ([batch(0), batch(2), batch(1)], 2),
        ([batch(0), batch(1), batch(1)], 2),
        ([batch(7), batch(1), batch(2)], 1),
    ],
    ids=["fall", "repeat", "begin too high"],
)
def test_offsets_that_do_not_rise_are_damage(
    tmp_path: Path, batches: list[bytes], position: int
) -> None:
    """Nothing says which of two records is the newer one."""
    good = batch(0) + batch(1) + batch(2)
    path = write_partition(tmp_path / "t-0", {0: good, 3: batch(3), 4: batch(4)})
    with open_at(path, UNSYNCED) as log:
        (path / log_name(0)).write_bytes(b"".join(batches))
        with pytest.raises(CorruptBatchError, match="offsets do not increase") as caught:
            clean(log)
        assert caught.value.position == position * len(batches[0])
        assert not [*path.glob("*.cleaned")]


def test_a_segment_that_ends_inside_a_batch_is_damage(tmp_path: Path) -> None:
    good = batch(0) + batch(1)
    path = write_partition(tmp_path / "t-0", {0: good, 3: batch(3), 4: batch(4)})
    with open_at(path, UNSYNCED) as log:
        torn = batch(0) + batch(1, size=51)
        (path / log_name(0)).write_bytes(torn[: len(good)])
        with pytest.raises(CorruptBatchError, match="ends inside a batch") as caught:
            clean(log)
        assert caught.value.position == len(batch(0))
