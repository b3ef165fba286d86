"""Slices of log files: what a fetch sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.config import LogConfig
from stratalog.errors import OffsetOutOfRangeError
from stratalog.format.batch import BatchHeader
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.log.partition_view import PartitionView
from stratalog.log.slices import find_slice
from stratalog.maintenance.recovery import open_log
from stratalog.storage.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from stratalog.log.partition_log import PartitionLog
    from stratalog.log.slices import LogSlice

RECORDS = 3
BATCHES = 40


@pytest.fixture
def log(tmp_path: Path) -> Iterator[PartitionLog]:
    """Forty batches of three records in segments of ten."""
    path = tmp_path / "t-0"
    path.mkdir()
    config = LogConfig.parse({"index.interval.bytes": 200})
    with open_log(path, config, disk=Disk(), now_ms=lambda: 1_000_000) as log:
        for number in range(BATCHES):
            if number and number % 10 == 0:
                log.roll()
            log.append(_batch(number))
        yield log


def _batch(number: int) -> bytes:
    value = b"%03d" % number * 10
    records = [Record(delta, 1000 + number, None, value, ()) for delta in range(RECORDS)]
    return encode_batch(records, BatchFields())


SIZE = len(_batch(0))


def _offsets(found: LogSlice | None) -> list[int]:
    """Base offsets of the whole batches."""
    assert found is not None
    data = found.file.read(found.position, found.size_bytes)
    assert len(data) == found.size_bytes
    return [BatchHeader.unpack(data, at).base_offset for at in range(0, len(data) - SIZE + 1, SIZE)]


def test_every_offset_is_in_the_first_batch_of_its_slice(log: PartitionLog) -> None:
    for offset in range(BATCHES * RECORDS):
        found = find_slice(log, offset, log.log_end_offset, 2 * SIZE, is_first_whole=True)
        first = offset // RECORDS * RECORDS
        is_last_of_segment = first // RECORDS % 10 == 9
        assert _offsets(found) == ([first] if is_last_of_segment else [first, first + RECORDS])


def test_a_slice_ends_where_its_reader_may_not_go_on(log: PartitionLog) -> None:
    found = find_slice(log, 0, 4 * RECORDS, 1 << 20, is_first_whole=True)
    assert _offsets(found) == [0, 3, 6, 9]
    assert found is not None
    assert (found.end_offset, found.is_cut) == (4 * RECORDS, False)
    assert find_slice(log, 12, 12, 1 << 20, is_first_whole=True) is None


def test_no_whole_batch_of_a_slice_reaches_its_end_offset(log: PartitionLog) -> None:
    for size_bytes in range(SIZE, 10 * SIZE, 97):
        found = find_slice(log, 0, log.log_end_offset, size_bytes, is_first_whole=True)
        assert found is not None
        last = _offsets(found)[-1] + RECORDS - 1
        assert last < found.end_offset <= 10 * RECORDS


def test_the_first_batch_is_whole_or_there_is_none(log: PartitionLog) -> None:
    whole = find_slice(log, 4, log.log_end_offset, 10, is_first_whole=True)
    assert whole is not None
    assert (whole.size_bytes, _offsets(whole)) == (SIZE, [3])
    assert find_slice(log, 4, log.log_end_offset, 10, is_first_whole=False) is None


def test_the_end_and_beyond(log: PartitionLog) -> None:
    end = log.log_end_offset
    assert find_slice(log, end, end, 1 << 20, is_first_whole=True) is None
    with pytest.raises(OffsetOutOfRangeError):
        find_slice(log, end + 1, end + 2, 1 << 20, is_first_whole=True)


def test_a_slice_stays_readable_when_its_segment_is_deleted(log: PartitionLog) -> None:
    found = find_slice(log, 0, log.log_end_offset, 1 << 20, is_first_whole=True)
    assert found is not None
    file = found.file
    log.truncate_fully_and_start_at(500)
    assert len(file.read(found.position, found.size_bytes)) == found.size_bytes


def test_a_slice_stays_readable_while_the_log_grows_and_rolls(log: PartitionLog) -> None:
    with PartitionView(log.path) as view:
        found = find_slice(view, 90, BATCHES * RECORDS, SIZE * 2, is_first_whole=True)
        log.append(_batch(BATCHES))
        log.roll()
        log.append(_batch(BATCHES + 1))
        view.refresh()
        assert _offsets(found) == [90, 93]
