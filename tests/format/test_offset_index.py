from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptIndexError
from stratalog.format import offset_index
from stratalog.format.offset_index import OffsetEntry, OffsetIndexHit

BASE = 100

CASES = [
    pytest.param(OffsetEntry(155, 4200), 100, "00000037 00001068", id="kafka's test vector"),
    pytest.param(OffsetEntry(55, 4096), 50, "00000005 00001000", id="relative to base 50"),
    pytest.param(OffsetEntry(4, 169), 0, "00000004 000000a9", id="golden txn, first entry"),
    pytest.param(OffsetEntry(0, 0), 0, "00000000 00000000", id="zero"),
    pytest.param(
        OffsetEntry((1 << 40) + (1 << 31) - 1, (1 << 31) - 1),
        1 << 40,
        "7fffffff 7fffffff",
        id="both at their limit",
    ),
]

# The .index of golden case txn, segment 11, and what Kafka's tool printed of its first entries.
GOLDEN_BASE = 11
GOLDEN = bytes.fromhex("000000040000009c 0000000600000148 00000008000001cf 0000000a0000025e")
GOLDEN_ENTRIES = [
    OffsetEntry(15, 156),
    OffsetEntry(17, 328),
    OffsetEntry(19, 463),
    OffsetEntry(21, 606),
]


@pytest.mark.parametrize(("entry", "base_offset", "raw"), CASES)
def test_entry_bytes(entry: OffsetEntry, base_offset: int, raw: str) -> None:
    assert entry.pack(base_offset=base_offset) == bytes.fromhex(raw)
    assert OffsetEntry.unpack(bytes.fromhex(raw), base_offset=base_offset) == entry
    padded = b"\xff\xff" + bytes.fromhex(raw)
    assert OffsetEntry.unpack(memoryview(padded), 2, base_offset=base_offset) == entry


@pytest.mark.parametrize(
    "entry",
    [
        OffsetEntry(BASE - 1, 0),
        OffsetEntry(BASE + (1 << 31), 0),
        OffsetEntry(BASE, -1),
        OffsetEntry(BASE, 1 << 31),
    ],
)
def test_entries_that_do_not_fit(entry: OffsetEntry) -> None:
    with pytest.raises(CorruptIndexError):
        entry.pack(base_offset=BASE)


def test_entry_cut_short() -> None:
    for cut in range(8):
        with pytest.raises(CorruptIndexError, match="truncated"):
            OffsetEntry.unpack(bytes(cut), base_offset=0)


def test_read_entries_of_kafka() -> None:
    assert list(offset_index.read_entries(GOLDEN, 4, GOLDEN_BASE)) == GOLDEN_ENTRIES
    assert list(offset_index.read_entries(GOLDEN[:-1], 4, GOLDEN_BASE)) == GOLDEN_ENTRIES[:3]
    assert list(offset_index.read_entries(GOLDEN, 1, GOLDEN_BASE)) == GOLDEN_ENTRIES[:1]


@pytest.mark.parametrize(
    ("target", "hit"),
    [
        (0, OffsetIndexHit(-1, 11, 0)),
        (14, OffsetIndexHit(-1, 11, 0)),
        (15, OffsetIndexHit(0, 15, 156)),
        (16, OffsetIndexHit(0, 15, 156)),
        (17, OffsetIndexHit(1, 17, 328)),
        (21, OffsetIndexHit(3, 21, 606)),
        (1 << 50, OffsetIndexHit(3, 21, 606)),
    ],
)
def test_lookup(target: int, hit: OffsetIndexHit) -> None:
    assert offset_index.lookup(GOLDEN, 4, GOLDEN_BASE, target) == hit
    trace: list[int] = []
    assert offset_index.lookup(GOLDEN, 4, GOLDEN_BASE, target, trace) == hit
    assert trace


def test_lookup_in_an_empty_index_starts_at_the_base() -> None:
    assert offset_index.lookup(b"", 0, 42, 50) == OffsetIndexHit(-1, 42, 0)


@pytest.mark.parametrize(
    ("offset", "kept"), [(0, 0), (15, 0), (16, 1), (17, 1), (18, 2), (21, 3), (22, 4), (99, 4)]
)
def test_truncation_drops_an_exact_match_too(offset: int, kept: int) -> None:
    assert offset_index.entries_below(GOLDEN, 4, GOLDEN_BASE, offset) == kept


def test_count_leaves_the_zero_tail_out() -> None:
    assert offset_index.count_valid_entries(GOLDEN) == 4
    assert offset_index.count_valid_entries(GOLDEN + bytes(4096 - 32)) == 4
    assert offset_index.count_valid_entries(GOLDEN[:30]) == 3
    assert offset_index.count_valid_entries(bytes(4096)) == 0
    assert offset_index.count_valid_entries(b"") == 0


def test_check_accepts_what_kafka_wrote() -> None:
    offset_index.check_entries(GOLDEN, 4, log_bytes=607)
    offset_index.check_entries(b"", 0, log_bytes=0)


@pytest.mark.parametrize(
    ("entries", "position"),
    [
        pytest.param([(4, 156), (4, 328)], 8, id="offset repeats"),
        pytest.param([(4, 156), (6, 328), (5, 463)], 16, id="offset decreases"),
        pytest.param([(4, 156), (6, 156)], 8, id="position repeats"),
        pytest.param([(-1, -1)], 0, id="filled with 0xff"),
        pytest.param([(4, -5), (6, 3)], 0, id="negative position"),
        pytest.param([(4, 156), (6, 1000)], 8, id="past the end of the log"),
        pytest.param([(4, 156), (0, 0)], 8, id="zero tail counted as an entry"),
    ],
)
def test_check_refuses(entries: list[tuple[int, int]], position: int) -> None:
    buf = b"".join(struct.pack(">ii", *entry) for entry in entries)
    with pytest.raises(CorruptIndexError) as caught:
        offset_index.check_entries(buf, len(entries), log_bytes=1000)
    assert caught.value.position == position


def test_sanity_is_kafkas() -> None:
    offset_index.check_sanity(GOLDEN, GOLDEN_BASE)
    offset_index.check_sanity(GOLDEN + bytes(64), GOLDEN_BASE)
    offset_index.check_sanity(b"", GOLDEN_BASE)
    with pytest.raises(CorruptIndexError, match="not a multiple of 8"):
        offset_index.check_sanity(GOLDEN[:-1], GOLDEN_BASE)
    with pytest.raises(CorruptIndexError, match="below base offset 11"):
        offset_index.check_sanity(b"\xff" * 16, GOLDEN_BASE)


@given(st.binary(max_size=200), st.integers(-(1 << 64), 1 << 64), st.integers(0, 1 << 62))
def test_any_bytes_give_a_value_or_a_typed_error(buf: bytes, target: int, base: int) -> None:
    entries = offset_index.count_valid_entries(buf)
    hit = offset_index.lookup(buf, entries, base, target)
    assert -1 <= hit.slot < max(1, entries)
    assert 0 <= offset_index.entries_below(buf, entries, base, target) <= entries
    assert len(list(offset_index.read_entries(buf, 1 << 40, base))) == len(buf) // 8
    with contextlib.suppress(CorruptIndexError):
        offset_index.check_entries(buf, entries, log_bytes=1 << 31)
    with contextlib.suppress(CorruptIndexError):
        offset_index.check_sanity(buf, base)
