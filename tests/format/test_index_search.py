from __future__ import annotations

import random
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptIndexError
from stratalog.format import index_search
from stratalog.format.index_search import (
    count_used,
    first_out_of_order,
    greatest_at_most,
)

KEY = struct.Struct(">i4x")
VALUE = struct.Struct(">4xi")
LONG_KEY = struct.Struct(">q4x")
LONG_VALUE = struct.Struct(">8xi")

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)


def entries_of(values: list[int]) -> bytes:
    return b"".join(struct.pack(">ii", value, index) for index, value in enumerate(values))


@given(st.lists(st.integers(0, 200), unique=True).map(sorted), st.integers(-5, 205))
def test_both_searches_agree_with_a_scan(values: list[int], target: int) -> None:
    buf = entries_of(values)
    expected = sum(value <= target for value in values) - 1
    assert greatest_at_most(KEY, buf, len(values), target) == expected
    assert greatest_at_most(KEY, memoryview(buf), len(values), target) == expected
    assert greatest_at_most(KEY, buf, len(values), target, []) == expected


def uneven(count: int) -> list[int]:
    """Half of it grows by 1, half by large random steps: proportion guesses badly."""
    source = random.Random(7)
    values, value = [], 0
    for index in range(count):
        value += 1 if index < count // 2 else source.randint(1, 5000)
        values.append(value)
    return values


@pytest.mark.parametrize("count", [1, 2, 9, 1024, 1025, 1026, 5000])
def test_every_slot_of_an_uneven_index_is_found(count: int) -> None:
    values = uneven(count)
    buf = entries_of(values)
    for slot, value in enumerate(values):
        assert greatest_at_most(KEY, buf, count, value) == slot
        assert greatest_at_most(KEY, buf, count, value, []) == slot
        assert greatest_at_most(KEY, buf, count, value - 1) == slot - 1
    assert greatest_at_most(KEY, buf, count, 1 << 40) == count - 1


def test_trace_holds_the_slots_that_kafka_compares() -> None:
    values = [10 * (slot + 1) for slot in range(3000)]
    buf = entries_of(values)
    # The warm section begins at 3000 - 1 - 1024 = 1975, whose value is 19760.
    trace: list[int] = []
    assert greatest_at_most(KEY, buf, 3000, 29995, trace) == 2998
    assert trace == [1975, 2487, 2743, 2871, 2935, 2967, 2983, 2991, 2995, 2997, 2998, 2999]
    trace = []
    assert greatest_at_most(KEY, buf, 3000, 5, trace) == -1
    assert trace == [1975, 0]
    trace = []
    assert greatest_at_most(KEY, buf, 3000, 9890, trace) == 988
    assert trace == [1975, 0, 988]  # found equal, so it stops
    trace = []
    assert greatest_at_most(KEY, buf, 3, 25, trace) == 1
    assert trace == [0, 1, 2]  # all of a short index is warm


def test_time_entries_have_a_shorter_warm_section() -> None:
    buf = b"".join(struct.pack(">qi", 10 * slot, slot) for slot in range(2000))
    trace: list[int] = []
    greatest_at_most(LONG_KEY, buf, 2000, 15, trace)
    assert trace[0] == 2000 - 1 - 682


def test_no_entries() -> None:
    assert greatest_at_most(KEY, b"", 0, 5) == -1
    assert greatest_at_most(KEY, b"", 0, 5, []) == -1
    assert first_out_of_order(KEY, b"", 0) is None


def test_fewer_bytes_than_entries_is_an_error() -> None:
    buf = entries_of([1, 2, 3])
    for cut in range(24):
        with pytest.raises(CorruptIndexError, match="too few for 3 entries"):
            greatest_at_most(KEY, buf[:cut], 3, 5)
        with pytest.raises(CorruptIndexError, match="too few for 3 entries"):
            first_out_of_order(KEY, buf[:cut], 3)


@given(st.binary(max_size=400), INT32)
def test_garbage_ends_with_some_slot(buf: bytes, target: int) -> None:
    entries = len(buf) // 8
    assert -1 <= greatest_at_most(KEY, buf, entries, target) < max(entries, 1)
    assert -1 <= greatest_at_most(KEY, buf, entries, target, []) < max(entries, 1)
    assert 0 <= count_used(KEY, buf) <= entries
    broken = first_out_of_order(KEY, buf, entries)
    assert broken is None or 1 <= broken < entries


@given(st.lists(st.integers(1, (1 << 31) - 1), max_size=40), st.integers(0, 100))
def test_zero_tail_is_not_counted(values: list[int], tail: int) -> None:
    buf = entries_of(values)
    assert count_used(KEY, buf) == len(values)
    assert count_used(KEY, buf + bytes(8 * tail)) == len(values)
    assert count_used(KEY, memoryview(buf + bytes(8 * tail + 5))) == len(values)


def test_first_slot_may_be_at_the_base_offset() -> None:
    assert count_used(KEY, struct.pack(">iiii", 0, 7, 5, 9) + bytes(80)) == 2
    assert count_used(KEY, struct.pack(">ii", 0, 7) + bytes(80)) == 1
    assert count_used(KEY, struct.pack(">ii", 0, 7)) == 1
    assert count_used(KEY, bytes(8)) == 0
    assert count_used(KEY, bytes(10_485_760)) == 0


def test_count_of_a_preallocated_index_of_the_default_size() -> None:
    for used in (1, 2, 1000, 1_310_719, 1_310_720):
        buf = struct.pack(">ii", 3, 9) * used
        assert count_used(KEY, buf + bytes(10_485_760 - len(buf))) == used


@pytest.mark.parametrize("count", [3, 1000, index_search.ENTRIES_FOR_NUMPY + 1])
@pytest.mark.parametrize(("column", "layout"), [(KEY, ">ii"), (LONG_KEY, ">qi")])
def test_first_slot_out_of_order(column: struct.Struct, layout: str, count: int) -> None:
    values = [2 * slot for slot in range(count)]

    def broken_at(slot: int, value: int) -> bytes:
        changed = [*values[:slot], value, *values[slot + 1 :]]
        return b"".join(struct.pack(layout, value, 0) for value in changed)

    good = broken_at(0, 0)
    assert first_out_of_order(column, good, count) is None
    assert first_out_of_order(column, good + b"tail", count) is None
    assert first_out_of_order(column, broken_at(count - 1, -1), count) == count - 1
    repeated = broken_at(2, 2)
    assert first_out_of_order(column, repeated, count) == 2
    assert first_out_of_order(column, repeated, count, may_repeat=True) is None
    assert first_out_of_order(column, broken_at(1, 5), count, may_repeat=True) == 2


@pytest.mark.parametrize(("column", "layout"), [(VALUE, ">ii"), (LONG_VALUE, ">qi")])
def test_second_column_with_and_without_numpy(
    column: struct.Struct, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rising = b"".join(struct.pack(layout, -slot, slot) for slot in range(50))
    falling = b"".join(struct.pack(layout, slot, -slot) for slot in range(50))
    for threshold in (index_search.ENTRIES_FOR_NUMPY, 1):
        monkeypatch.setattr(index_search, "ENTRIES_FOR_NUMPY", threshold)
        assert first_out_of_order(column, rising, 50) is None
        assert first_out_of_order(column, memoryview(rising), 50) is None
        assert first_out_of_order(column, falling, 50) == 1


def test_numpy_is_not_imported_for_a_short_index() -> None:
    code = (
        "import sys; from stratalog.format import offset_index, time_index;"
        "offset_index.check_entries(bytes.fromhex('0000000100000002'), 1, log_bytes=9);"
        "sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
