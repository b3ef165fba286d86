from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.config import LogConfig
from stratalog.format import offset_index, time_index
from stratalog.format.index_entries import IndexBuilder
from stratalog.storage.roll import RollReason
from tests.disks import FaultyDisk
from tests.storage.segments import (
    BATCH_BYTES,
    TIMESTAMP,
    append,
    files_of,
    make_batch,
    new_segment,
    opened,
    spans_of,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_entries_by_the_interval(tmp_path: Path) -> None:
    """More than 200 bytes must precede: of batches of 91 bytes, every third has an entry."""
    batches = [make_batch(number) for number in range(8)]
    assert {len(batch) for batch in batches} == {91}
    segment = new_segment(tmp_path)
    for batch in batches:
        append(segment, batch)
    entries = segment.writer.offset_index.entries
    raw = files_of(tmp_path, ".index")["00000000000000000000.index"]
    assert list(offset_index.read_entries(raw, entries, 0)) == [(3, 273), (6, 546)]
    assert segment.writer.time_index.entries == 2
    segment.become_inactive()
    raw = files_of(tmp_path, ".timeindex")["00000000000000000000.timeindex"]
    expected = [(TIMESTAMP + number, number) for number in (3, 6, 7)]
    assert list(time_index.read_entries(raw, 3, 0)) == expected
    assert len(raw) == 36


@pytest.mark.slow
@settings(max_examples=60)
@given(data=st.data())
def test_entries_are_those_of_the_rule_however_batches_come(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Appended one by one or many at once, here and there reopened without more to write."""
    directory = tmp_path_factory.mktemp("rule")
    interval = data.draw(st.sampled_from([0, 100, 200, 1000]), label="interval")
    config = LogConfig(index_interval_bytes=interval, segment_index_bytes=1 << 16)
    base = data.draw(st.sampled_from([0, 1, 1 << 40]), label="base")
    segment, builder = new_segment(directory, base, config), IndexBuilder(base, interval)
    offset, position = base, 0
    for _ in range(data.draw(st.integers(0, 8), label="appends")):
        batches = []
        for _ in range(data.draw(st.integers(1, 5), label="batches")):
            timestamp = data.draw(st.integers(-2, 6), label="timestamp")
            batch = make_batch(
                offset,
                count=data.draw(st.integers(1, 3)),
                timestamp=timestamp,
                value_bytes=data.draw(st.integers(0, 300), label="value"),
            )
            (span,) = spans_of(batch)
            builder.add(position, len(batch), span.last_offset, timestamp)
            position += len(batch)
            offset = span.last_offset + 1 + data.draw(st.integers(0, 3), label="gap")
            batches.append(batch)
        append(segment, *batches)
    segment.close()
    builder.finish()
    found = [bytes(raw) for raw in files_of(directory, ".index", ".timeindex").values()]
    assert found == [bytes(builder.offset_index), bytes(builder.time_index)]
    assert opened(directory, base, config).next_offset == (segment.next_offset)


def test_eight_slots_hold_seven_batches_and_the_last_word(tmp_path: Path) -> None:
    """96 bytes: the time index is full with seven entries, one slot is for closing."""
    config = LogConfig.parse({"segment.index.bytes": "96", "index.interval.bytes": "0"})
    segment, number = new_segment(tmp_path, 0, config), 0
    while (batch := make_batch(number)) and not segment.roll_reason(
        len(batch), number, TIMESTAMP + number, TIMESTAMP
    ):
        append(segment, batch)
        number += 1
    assert number == 8  # the first has no entry
    assert segment.roll_reason(1, number, TIMESTAMP, 0) is RollReason.TIME_INDEX_FULL
    segment.become_inactive()
    sizes = [len(raw) for raw in files_of(tmp_path, ".index", ".timeindex").values()]
    assert sizes == [7 * 8, 7 * 12]


def test_an_append_that_fills_an_index_goes_on_without_entries(tmp_path: Path) -> None:
    config = LogConfig.parse({"segment.index.bytes": "96", "index.interval.bytes": "0"})
    segment = new_segment(tmp_path, 0, config)
    append(segment, *(make_batch(number) for number in range(40)))
    assert segment.roll_reason(1, 40, TIMESTAMP, 0) is RollReason.OFFSET_INDEX_FULL
    assert segment.view().seek(33).position == 33 * BATCH_BYTES
    segment.become_inactive()
    sizes = [len(raw) for raw in files_of(tmp_path, ".index", ".timeindex").values()]
    assert sizes == [12 * 8, 8 * 12]
    assert segment.largest_timestamp == (TIMESTAMP + 39, 39)
    assert segment.seek(39).position == 39 * BATCH_BYTES


def test_space_for_the_closing_entry_is_taken_when_the_segment_is_made(tmp_path: Path) -> None:
    faulty = FaultyDisk()
    segment = new_segment(tmp_path, disk=faulty.disk)
    append(segment, make_batch(0))
    reserved = faulty.history.count("posix_fallocate")
    segment.close()
    assert faulty.history.count("posix_fallocate") == reserved == 1
