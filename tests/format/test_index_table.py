from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.format.batch import BatchHeader, next_entry
from stratalog.format.batch_table import add_batches, first_offsets, fits_segment, scan_batches
from stratalog.format.index_entries import IndexBuilder
from stratalog.format.log_entry import header_of
from tests.strategies import LONG_MAX, GeneratedLog, logs


def add_one_by_one(builder: IndexBuilder, raw: bytes, buffer_start: int) -> None:
    at = 0
    while (entry := next_entry(raw, at)) is not None:
        header = header_of(raw, entry)
        builder.add(buffer_start + at, entry.size_bytes, header.last_offset, header.max_timestamp)
        at = entry.end


def facts(builder: IndexBuilder) -> tuple[object, ...]:
    return (
        bytes(builder.offset_index),
        bytes(builder.time_index),
        builder.state,
        builder.last_indexed_timestamp,
    )


@pytest.mark.slow
@given(
    parts=st.lists(st.tuples(logs(legacy=True), st.booleans()), max_size=3),
    interval=st.sampled_from([0, 80, 200, 4096]),
)
def test_tables_give_the_entries_that_single_batches_give(
    parts: list[tuple[GeneratedLog, bool]], interval: int
) -> None:
    """In any mixture of the two. Offsets start over with each part here, which the rule permits."""
    expected, found = IndexBuilder(0, interval), IndexBuilder(0, interval)
    position = 0
    for log, is_table in parts:
        add_one_by_one(expected, log.raw, position)
        if is_table:
            add_batches(found, scan_batches(log.raw).rows, position)
        else:
            add_one_by_one(found, log.raw, position)
        position += len(log.raw)
        assert facts(found) == facts(expected)
    expected.finish()
    found.finish()
    assert facts(found) == facts(expected)


def test_entries_by_hand() -> None:
    """Three batches of 70 bytes: with an interval of 100 the third has an entry."""
    batch = BatchHeader(100, 58, 0, 2, 0, 0, 4, 0, 7000, -1, -1, -1, 1).pack() + bytes(9)
    second = BatchHeader(105, 58, 0, 2, 0, 0, 4, 0, 9000, -1, -1, -1, 1).pack() + bytes(9)
    third = BatchHeader(110, 58, 0, 2, 0, 0, 4, 0, 8000, -1, -1, -1, 1).pack() + bytes(9)
    builder = IndexBuilder(100, 100)
    add_batches(builder, scan_batches(batch + second + third).rows)
    assert bytes(builder.offset_index) == bytes.fromhex("0000000e 0000008c")
    assert bytes(builder.time_index) == bytes.fromhex("0000000000002328 00000009")


@pytest.mark.parametrize(
    ("base_offset", "delta", "segment_base", "fits"),
    [
        pytest.param(10, 5, 10, True, id="at the base"),
        pytest.param(9, 5, 10, False, id="below the base"),
        pytest.param(10, (1 << 31) - 1, 10, True, id="as far as it goes"),
        pytest.param(11, (1 << 31) - 1, 10, False, id="one further"),
        pytest.param(10, -1, 10, False, id="ends before it begins"),
        pytest.param(LONG_MAX - 1, 5, LONG_MAX - 10, False, id="wraps around"),
        pytest.param(-5, 0, 0, False, id="negative"),
    ],
)
def test_which_offsets_fit(base_offset: int, delta: int, segment_base: int, fits: bool) -> None:
    raw = BatchHeader(base_offset, 49, 0, 2, 0, 0, delta, 0, 0, -1, -1, -1, 1).pack()
    rows = scan_batches(raw).rows
    assert fits_segment(rows, segment_base).tolist() == [fits]
    assert first_offsets(rows).tolist() == [base_offset]
