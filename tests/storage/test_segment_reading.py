from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from stratalog.config import LogConfig
from stratalog.errors import CorruptBatchError
from tests.storage.segments import (
    BATCH_BYTES,
    SMALL,
    TIMESTAMP,
    append,
    filled,
    make_batch,
    new_segment,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_a_view_ends_where_the_log_ended_when_it_was_taken(tmp_path: Path) -> None:
    segment, size = filled(tmp_path, 10)
    view = segment.view()
    assert segment.view() is view
    for number in range(10, 20):
        append(segment, make_batch(2 * number, count=2))
    assert view.end == (10 * size, 20)
    assert view.seek(19).position == 9 * size
    assert view.seek(20) == (10 * size, None)
    assert view.times.largest == (TIMESTAMP + 19, 19)
    assert segment.view().times.largest == (TIMESTAMP + 39, 39)
    assert segment.view().end == (20 * size, 40)
    assert [batch.last_offset for _, batch in view.walk(8 * size)] == [17, 19]


@pytest.mark.parametrize("is_active", [True, False])
def test_seeking_finds_the_first_batch_that_reaches_the_offset(
    tmp_path: Path, is_active: bool
) -> None:
    segment, size = filled(tmp_path, 20, SMALL)
    if not is_active:
        segment.become_inactive()
    for target in range(40):
        found = segment.seek(target)
        assert (found.position, found.batch is not None) == (target // 2 * size, True)
    assert segment.seek(40) == (20 * size, None)


def test_views_of_a_long_active_segment_find_old_offsets_too(tmp_path: Path) -> None:
    """More entries than a view copies: the older ones come from the file."""
    config = LogConfig.parse({"index.interval.bytes": "0", "segment.index.bytes": "65536"})
    segment = new_segment(tmp_path, 0, config)
    append(segment, *(make_batch(number) for number in range(3000)))
    view = segment.view()
    assert view.offset_index.entries == 2999
    for target in (2999, 2500, 1500, 3, 0):
        assert view.seek(target).position == target * BATCH_BYTES
        hit = view.times.find(TIMESTAMP + target, 0)
        assert hit is not None
        assert hit.offset == target
    assert view.offset_index.origin == "file"


def test_a_view_of_an_inactive_segment_does_not_grow(tmp_path: Path) -> None:
    """Not even if its end is asked for only when the segment is active again."""
    segment, size = filled(tmp_path, 1)
    segment.become_inactive()
    view = segment.view()
    segment.become_active(now_ms=0)
    append(segment, make_batch(2, count=2))
    assert view.end == (size, 2)
    assert segment.view().end == (2 * size, 4)


def test_readers_see_whole_batches_below_a_growing_end(tmp_path: Path) -> None:
    """Several threads look while one appends, cuts, seals and opens again."""
    segment, size = filled(tmp_path, 1)
    failures: list[str] = []
    is_over = threading.Event()

    def look() -> None:
        last = 0
        while not is_over.is_set():
            view = segment.view()
            end = view.end
            try:
                count = sum(1 for _ in view.batches(0, end.position))
                newest = view.seek(end.next_offset - 1)
            except CorruptBatchError as error:
                failures.append(str(error))
                return
            if (count * size, count * 2) != end or newest.position != end.position - size:
                failures.append(f"{count} batches in {end}, newest {newest}")
            if end.position < last:
                failures.append(f"{end} after {last}")
            last = end.position

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, 300):
        append(segment, make_batch(2 * number, count=2))
        if number % 100 == 0:
            segment.become_inactive()
            segment.become_active(now_ms=0)
    is_over.set()
    for thread in threads:
        thread.join(30)
    assert failures == []
