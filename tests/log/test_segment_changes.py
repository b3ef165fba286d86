"""Dropping segments of a log: who goes on, what is left, and until when."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from stratalog.config import LogConfig
from stratalog.errors import LogOfflineError, OffsetOutOfRangeError, StorageError
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log.partition_view import PartitionView
from stratalog.maintenance.recovery import LoadPoint, open_log
from stratalog.storage.disk import SystemCalls
from tests.disks import FaultyDisk
from tests.log.building import log_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog

DELAY_MS = 1000
CONFIG = LogConfig(segment_index_bytes=240, file_delete_delay_ms=DELAY_MS)


class Setup:
    """A log of five segments, two records each; the last has one. A clock set by hand."""

    def __init__(self, root: Path) -> None:
        self.path = root / "t-0"
        self.disk = FaultyDisk(SystemCalls(fsync=lambda _fd: None))
        self.now_ms = 5000
        self.log = self.open()
        for offset in range(9):
            if offset and offset % 2 == 0:
                self.log.roll()
            self.append()

    def open(self, point: LoadPoint = LoadPoint()) -> PartitionLog:  # noqa: B008
        now_ms = lambda: self.now_ms  # noqa: E731
        self.log = open_log(self.path, CONFIG, disk=self.disk.disk, now_ms=now_ms, point=point)
        return self.log

    def append(self) -> int:
        record = Record(0, self.now_ms, b"k", b"v")
        return self.log.append(encode_batch([record], BatchFields())).first_offset

    def names(self, suffix: str = "") -> set[str]:
        return {file.name for file in self.path.iterdir() if file.name.endswith(suffix)}


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    made = Setup(tmp_path)
    yield made
    made.disk.fault = None
    made.log.close()


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.maintenance.segments]


def offsets(log: PartitionLog | PartitionView) -> list[int]:
    return [record.offset for record in log.read()]


def test_the_oldest_go(setup: Setup) -> None:
    log = setup.log
    assert log.maintenance.delete_oldest(0) == 0
    assert not log.maintenance.discarded
    assert log.maintenance.delete_oldest(2) == 4
    assert (bases(log), log.log_start_offset, log.log_end_offset) == ([4, 6, 8], 4, 9)
    assert offsets(log) == [4, 5, 6, 7, 8]
    with pytest.raises(OffsetOutOfRangeError):
        log.read(3)
    hit = log.find_time(0)
    assert hit is not None
    assert hit.offset == 4
    with PartitionView(setup.path) as view:
        assert offsets(view) == [4, 5, 6, 7, 8]
    assert setup.append() == 9


def test_all_go_and_the_log_goes_on(setup: Setup) -> None:
    log = setup.log
    assert log.maintenance.delete_oldest(5) == 9
    assert (bases(log), offsets(log)) == ([9], [])
    with pytest.raises(ValueError, match="the last segment is empty"):
        log.maintenance.delete_oldest(1)
    assert setup.append() == 9
    assert offsets(log) == [9]


@pytest.mark.parametrize("count", [-1, 6])
def test_there_must_be_so_many(setup: Setup, count: int) -> None:
    with pytest.raises(ValueError, match="of 5 segments cannot be deleted"):
        setup.log.maintenance.delete_oldest(count)
    assert setup.log.is_usable


def test_a_log_start_inside_the_first_kept_segment_stays(setup: Setup) -> None:
    setup.log.delete_records(5)
    assert setup.log.maintenance.delete_oldest(2) == 5
    assert offsets(setup.log) == [5, 6, 7, 8]


def test_a_start_above_the_high_watermark_is_refused_and_does_no_harm(setup: Setup) -> None:
    log = setup.log
    log._offsets.high_watermark = 3
    with pytest.raises(OffsetOutOfRangeError):
        log.maintenance.delete_oldest(2)
    with pytest.raises(OffsetOutOfRangeError):
        log.maintenance.delete_oldest(5)
    assert bases(log) == [0, 2, 4, 6, 8]
    assert log.is_usable
    assert log.maintenance.delete_oldest(1) == 2


def test_files_are_renamed_and_removed_after_the_delay(setup: Setup) -> None:
    log = setup.log
    log.maintenance.delete_oldest(1)
    setup.now_ms += 600
    log.maintenance.delete_oldest(1)
    first = {log_name(0, kind) + ".deleted" for kind in (".log", ".index", ".timeindex")}
    second = {
        log_name(2, kind) + ".deleted" for kind in (".log", ".index", ".timeindex", ".snapshot")
    }
    assert setup.names(".deleted") == first | second
    assert {path.name for path in log.maintenance.discarded} == first | second
    assert log.maintenance.remove_discarded(5999) == 0
    assert log.maintenance.remove_discarded(6000) == 3
    assert setup.names(".deleted") == second
    assert log.maintenance.remove_discarded(6599) == 0
    assert log.maintenance.remove_discarded(6600) == 4
    assert not setup.names(".deleted")
    log.maintenance.delete_oldest(1)
    assert log.maintenance.remove_discarded(0, at_once=True) == 4
    assert not setup.names(".deleted")
    assert not log.maintenance.discarded


def test_what_is_left_at_the_end_the_next_opening_removes(setup: Setup) -> None:
    log = setup.log
    log.maintenance.delete_oldest(2)
    log.close()
    assert setup.names(".deleted")
    assert log.maintenance.remove_discarded(1 << 60) == 0, "they are not this log's any more"
    assert setup.names(".deleted")
    setup.open(LoadPoint(recovery_point=log.recovery_point, was_clean=True))
    assert not setup.names(".deleted")
    assert (setup.log.log_start_offset, offsets(setup.log)) == (4, [4, 5, 6, 7, 8])


def test_a_file_that_cannot_be_removed_is_told_and_tried_again(setup: Setup) -> None:
    log = setup.log
    log.maintenance.delete_oldest(2)
    setup.disk.fail_next(errno.EACCES, skip=1)
    with pytest.raises(StorageError, match=r"\.index\.deleted"):
        log.maintenance.remove_discarded(0, at_once=True)
    assert len(setup.names(".deleted")) == 1
    assert len(log.maintenance.discarded) == 1
    assert log.is_usable
    assert log.maintenance.remove_discarded(6000) == 1
    assert not setup.names(".deleted")


def test_a_name_that_is_used_again_waits_from_then_on(setup: Setup) -> None:
    """As when a segment is compacted twice within the delay."""
    log = setup.log
    log.maintenance.delete_oldest(1)
    setup.now_ms += 600
    (setup.path / log_name(0)).write_bytes(b"another")
    log.maintenance._rename_away(setup.path / log_name(0), setup.now_ms + DELAY_MS)
    assert log.maintenance.remove_discarded(6000) == 2
    assert setup.names(".deleted") == {log_name(0) + ".deleted"}
    assert log.maintenance.remove_discarded(6600) == 1


def test_a_reader_goes_on_for_as_long_as_the_files_are_kept(setup: Setup) -> None:
    reading = setup.log.read()
    assert next(reading).offset == 0
    setup.log.maintenance.delete_oldest(3)
    assert [record.offset for record in reading] == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("is_view", [False, True], ids=["log", "view"])
def test_a_reader_has_what_is_open_and_is_told_of_what_it_has_missed(
    setup: Setup, is_view: bool
) -> None:
    reader = PartitionView(setup.path) if is_view else setup.log
    reading = reader.read()
    assert next(reading).offset == 0
    setup.log.maintenance.delete_oldest(2)
    setup.log.maintenance.remove_discarded(0, at_once=True)
    assert next(reading).offset == 1
    with pytest.raises(OffsetOutOfRangeError):  # never a silent gap
        next(reading)
    assert reader.log_start_offset == 4
    assert offsets(reader) == [4, 5, 6, 7, 8]


def test_epochs_begin_with_the_log(setup: Setup) -> None:
    log = setup.log
    log.become_leader(4)
    setup.append()
    log.maintenance.delete_oldest(2)
    assert [tuple(entry) for entry in log.epochs.entries] == [(0, 4), (4, 9)]
    log.maintenance.delete_oldest(3)
    assert [tuple(entry) for entry in log.epochs.entries] == [(4, 10)]
    text = (setup.path / "leader-epoch-checkpoint").read_text()
    assert text == "0\n1\n4 10\n"


def test_maintenance_keeps_others_out(setup: Setup) -> None:
    with setup.log.maintenance.lock:
        assert len(setup.log.maintenance.segments) == 5
        setup.log.maintenance.delete_oldest(1)
    setup.log.close()
    with pytest.raises(LogOfflineError), setup.log.maintenance.lock:
        pass


def test_producers_go_by_the_new_log_start(setup: Setup) -> None:
    """As in Kafka: where nothing is left below the log end, closing leaves no snapshot, and a
    snapshot that is left is the one that the next is compared with."""
    log = setup.log
    assert log.producers.last_snapshot_offset == 8  # of the last roll
    log.delete_records(9)
    log.maintenance.delete_oldest(4)
    assert log.producers.last_snapshot_offset == 8
    for offset in log._segments.snapshots.offsets:
        log._segments.snapshots.delete([offset])
    setup.append()
    log.delete_records(10)
    assert log.producers.last_snapshot_offset == 10
    assert not log.producers.needs_snapshot
    log.close()
    assert not setup.names(".snapshot")
