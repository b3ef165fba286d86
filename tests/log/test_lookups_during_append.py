"""What readers find while a batch is in the segment, but not yet part of the log."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from stratalog.log.log_state import LogOffsets, LogSegments
from stratalog.log.offset_assignment import FileBatches, checked_header
from stratalog.log.reader import OffsetAndTimestamp
from stratalog.storage.segment import SegmentWriter
from stratalog.storage.staged_names import StagedName
from tests.log.written_log import NOW_MS, batch, offsets

if TYPE_CHECKING:
    from collections.abc import Callable

    from stratalog.log.partition_log import PartitionLog
    from stratalog.log.segment_list import SegmentList
    from stratalog.storage.segment_view import PublishedState


def install_file(log: PartitionLog, time: int) -> None:
    data = batch(2, timestamp=time)
    path = log.path / str(StagedName("a" * 32, 0, 0, secrets.token_hex(8)))
    path.write_bytes(data)
    batches = FileBatches()
    batches.add(checked_header(data, 0))
    assert log.install_file(path, batches)


WAYS = {
    "a batch": lambda log, time: log.append(batch(3, timestamp=time)),
    "a batch of a client": lambda log, time: log.append_by_header(batch(3, timestamp=time)),
    "two requests": lambda log, time: log.append_many(
        [batch(2, timestamp=time - 1), batch(2, timestamp=time)]
    ),
    "a file": install_file,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))
@pytest.mark.parametrize("step_ms", [10, 0, -10], ids=["later", "equal", "earlier"])
def test_readers_find_what_the_log_has(
    log: PartitionLog,
    way: Callable[[PartitionLog, int], object],
    step_ms: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish, ends = LogOffsets.publish, []

    def look_and_publish(self: LogOffsets, end: int) -> None:
        if end > log.log_end_offset > 0:
            ends.append(log.log_end_offset)
            check(log)
        publish(self, end)

    monkeypatch.setattr(LogOffsets, "publish", look_and_publish)
    for number in range(12):  # several segments
        way(log, NOW_MS + number * step_ms)
    assert len(ends) >= 11
    log.truncate_to(ends[5])
    check(log)
    way(log, NOW_MS)
    assert len(log.segments) > 1


def test_a_reader_that_is_overtaken_by_a_truncation(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read where the log ends, and looks at the segments when that is no longer so. Others
    must not be given what it finds, once the log ends there again."""
    published = LogSegments.published
    for number in range(3):
        log.append(batch(timestamp=NOW_MS + number))

    def overtaken(self: LogSegments, end: int) -> SegmentList:
        monkeypatch.undo()
        log.truncate_to(2)
        return published(self, end)

    monkeypatch.setattr(LogSegments, "published", overtaken)
    assert log.segments.end.next_offset == 2
    log.append(batch(timestamp=NOW_MS + 9))
    check(log)


def test_a_view_that_is_older_than_a_truncation(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has as many bytes as the segment has again, but not its timestamps."""
    state_at = SegmentWriter.state_at
    for number in range(3):
        log.append(batch(timestamp=NOW_MS + number))

    def overtaken(self: SegmentWriter, log_end_offset: int | None) -> PublishedState:
        monkeypatch.undo()
        state = state_at(self, log_end_offset)
        log.truncate_to(2)
        log.append(batch(timestamp=NOW_MS + 9))
        return state

    monkeypatch.setattr(SegmentWriter, "state_at", overtaken)
    assert log.segments.end.next_offset == 3
    check(log)


def check(log: PartitionLog) -> None:
    """Every answer is that of the records which the log has by now."""
    end = log.log_end_offset
    assert log.segments.end.next_offset == end
    records = list(log.read())
    assert offsets(log) == list(range(end))
    assert log.locate(end) is None
    largest = max(record.timestamp for record in records)
    newest = next(record for record in records if record.timestamp == largest)
    assert log.find_max_timestamp() == OffsetAndTimestamp(newest.offset, largest)
    for time in {record.timestamp for record in records} | {largest + 1, largest + 10}:
        late = [record for record in records if record.timestamp >= time]
        found = OffsetAndTimestamp(late[0].offset, late[0].timestamp) if late else None
        assert log.find_time(time) == found
        assert [record.offset for record in log.read(since=time)] == [r.offset for r in late]
