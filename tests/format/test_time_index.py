from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptIndexError
from stratalog.format import time_index
from stratalog.format.time_index import TimeEntry, TimeIndexHit

CASES = [
    pytest.param(
        TimeEntry(1700000000000, 155), 100, "0000018bcfe56800 00000037", id="kafka's test vector"
    ),
    pytest.param(
        TimeEntry(1794769238162, 12), 11, "000001a1e0953892 00000001", id="golden txn, first entry"
    ),
    pytest.param(TimeEntry(0, 0), 0, "0000000000000000 00000000", id="zero"),
    pytest.param(
        TimeEntry((1 << 63) - 1, (1 << 40) + (1 << 31) - 1),
        1 << 40,
        "7fffffffffffffff 7fffffff",
        id="both at their limit",
    ),
]

# The .timeindex of golden case txn, segment 11, and what Kafka's tool printed of it.
GOLDEN_BASE = 11
GOLDEN = bytes.fromhex(
    "000001a1e095389200000001 000001a1e09538b50000000d 000001a1e09538b90000000e"
    "000001a1e09538c40000001a 000001a1e09538c70000001b"
)
GOLDEN_ENTRIES = [
    TimeEntry(1794769238162, 12),
    TimeEntry(1794769238197, 24),
    TimeEntry(1794769238201, 25),
    TimeEntry(1794769238212, 37),
    TimeEntry(1794769238215, 38),
]


@pytest.mark.parametrize(("entry", "base_offset", "raw"), CASES)
def test_entry_bytes(entry: TimeEntry, base_offset: int, raw: str) -> None:
    assert entry.pack(base_offset=base_offset) == bytes.fromhex(raw)
    assert TimeEntry.unpack(bytes.fromhex(raw), base_offset=base_offset) == entry
    padded = b"\xff" + bytes.fromhex(raw)
    assert TimeEntry.unpack(memoryview(padded), 1, base_offset=base_offset) == entry


@pytest.mark.parametrize(
    "entry",
    [TimeEntry(0, 9), TimeEntry(0, 10 + (1 << 31)), TimeEntry(-1, 10), TimeEntry(1 << 63, 10)],
)
def test_entries_that_do_not_fit(entry: TimeEntry) -> None:
    with pytest.raises(CorruptIndexError):
        entry.pack(base_offset=10)


def test_entry_cut_short() -> None:
    for cut in range(12):
        with pytest.raises(CorruptIndexError, match="truncated"):
            TimeEntry.unpack(bytes(cut), base_offset=0)


def test_read_entries_of_kafka() -> None:
    assert list(time_index.read_entries(GOLDEN, 5, GOLDEN_BASE)) == GOLDEN_ENTRIES
    assert list(time_index.read_entries(GOLDEN[:-1], 5, GOLDEN_BASE)) == GOLDEN_ENTRIES[:4]


@pytest.mark.parametrize(
    ("target", "hit"),
    [
        (-1, TimeIndexHit(-1, -1, 11)),
        (1794769238161, TimeIndexHit(-1, -1, 11)),
        (1794769238162, TimeIndexHit(0, 1794769238162, 12)),
        (1794769238200, TimeIndexHit(1, 1794769238197, 24)),
        (1794769238215, TimeIndexHit(4, 1794769238215, 38)),
        (1 << 63, TimeIndexHit(4, 1794769238215, 38)),
    ],
)
def test_lookup(target: int, hit: TimeIndexHit) -> None:
    assert time_index.lookup(GOLDEN, 5, GOLDEN_BASE, target) == hit
    trace: list[int] = []
    assert time_index.lookup(GOLDEN, 5, GOLDEN_BASE, target, trace) == hit
    assert trace


def test_an_empty_index_knows_no_timestamp() -> None:
    assert time_index.lookup(b"", 0, 42, 50) == TimeIndexHit(-1, -1, 42)
    assert time_index.last_entry(b"", 0, 42) == TimeEntry(-1, 42)


def test_last_entry() -> None:
    assert time_index.last_entry(GOLDEN, 5, GOLDEN_BASE) == GOLDEN_ENTRIES[-1]
    with pytest.raises(CorruptIndexError):
        time_index.last_entry(GOLDEN, 6, GOLDEN_BASE)


@pytest.mark.parametrize(("offset", "kept"), [(0, 0), (12, 0), (13, 1), (25, 2), (26, 3), (99, 5)])
def test_truncation_goes_by_offset(offset: int, kept: int) -> None:
    assert time_index.entries_below(GOLDEN, 5, GOLDEN_BASE, offset) == kept


def test_count_leaves_the_zero_tail_out() -> None:
    assert time_index.count_valid_entries(GOLDEN) == 5
    assert time_index.count_valid_entries(GOLDEN + bytes(10_485_756 - 60)) == 5
    assert time_index.count_valid_entries(GOLDEN[:-1]) == 4
    assert time_index.count_valid_entries(bytes(10_485_756)) == 0


def test_count_keeps_a_first_entry_at_the_base_offset() -> None:
    first = TimeEntry(1700000000000, 11).pack(base_offset=11)
    assert time_index.count_valid_entries(first + bytes(120)) == 1


def test_check_accepts_what_kafka_wrote() -> None:
    time_index.check_entries(GOLDEN, 5)
    time_index.check_entries(b"", 0)


@pytest.mark.parametrize(
    ("entries", "position"),
    [
        pytest.param([(5, 1), (5, 2)], 12, id="timestamp repeats"),
        pytest.param([(5, 1), (4, 2)], 12, id="timestamp decreases"),
        pytest.param([(5, 3), (6, 2)], 12, id="offset decreases"),
        pytest.param([(-1, 3)], 0, id="negative timestamp"),
        pytest.param([(5, -3)], 0, id="negative offset"),
        pytest.param([(5, 3), (6, 4), (0, 0)], 24, id="zero tail counted as an entry"),
    ],
)
def test_check_refuses(entries: list[tuple[int, int]], position: int) -> None:
    buf = b"".join(struct.pack(">qi", *entry) for entry in entries)
    with pytest.raises(CorruptIndexError) as caught:
        time_index.check_entries(buf, len(entries))
    assert caught.value.position == position


def test_sanity_is_kafkas() -> None:
    time_index.check_sanity(GOLDEN, GOLDEN_BASE)
    time_index.check_sanity(b"", GOLDEN_BASE)
    with pytest.raises(CorruptIndexError, match="not a multiple of 12"):
        time_index.check_sanity(GOLDEN[:-1], GOLDEN_BASE)
    with pytest.raises(CorruptIndexError, match="not a multiple of 12"):
        time_index.check_sanity(b"short", GOLDEN_BASE)
    with pytest.raises(CorruptIndexError, match="below the first one"):
        time_index.check_sanity(GOLDEN + bytes(12), GOLDEN_BASE)
    with pytest.raises(CorruptIndexError, match="below base offset 11"):
        time_index.check_sanity(b"\xff" * 24, GOLDEN_BASE)


@given(st.binary(max_size=200), st.integers(-(1 << 64), 1 << 64), st.integers(0, 1 << 62))
def test_any_bytes_give_a_value_or_a_typed_error(buf: bytes, target: int, base: int) -> None:
    entries = time_index.count_valid_entries(buf)
    hit = time_index.lookup(buf, entries, base, target)
    assert -1 <= hit.slot < max(1, entries)
    assert 0 <= time_index.entries_below(buf, entries, base, target) <= entries
    assert len(list(time_index.read_entries(buf, 1 << 40, base))) == len(buf) // 12
    with contextlib.suppress(CorruptIndexError):
        time_index.check_entries(buf, entries)
    with contextlib.suppress(CorruptIndexError):
        time_index.check_sanity(buf, base)
