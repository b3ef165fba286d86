"""The map of keys: what goes in, what comes out, and where it ends when it is full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from stratalog.format.batch import BatchHeader
from stratalog.format.batch_table import scan_batches
from stratalog.format.kernels import offset_map as kernel
from stratalog.format.kernels import scan as survey
from stratalog.format.kernels.memory import PAYLOAD
from stratalog.format.record import BatchFields, Record, encode_batch, encode_empty_batch
from stratalog.maintenance.cleaning import offset_map
from stratalog.maintenance.cleaning.offset_map import OffsetMap
from tests.maintenance.cleaning.mapping_batches import put_batches

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def map_for(entries_max: int, start_offset: int = 0) -> OffsetMap:
    slots = entries_max + 1
    found = OffsetMap(24 * slots, load_factor=(entries_max + 0.5) / slots)
    assert found.entries_max == entries_max
    found.clear(start_offset)
    return found


def batch(first_offset: int, keys: list[bytes | None], last_offset: int | None = None) -> bytes:
    records = [Record(first_offset + n, 5, key, b"v") for n, key in enumerate(keys)]
    return encode_batch(records, BatchFields(last_offset=last_offset))


class Batches:
    """Laid out for the map. Keeps what the addresses refer to."""

    def __init__(self, *raw: bytes) -> None:
        self.buf = b"".join(raw)
        self.rows: NDArray[Any] = scan_batches(self.buf).rows
        self.payloads = np.empty(len(self.rows), PAYLOAD)
        memory, found = pa.py_buffer(self.buf), np.zeros(survey.SLOTS, np.int64)
        survey.survey(memory.address, memory.size, self.rows, self.payloads, found, True)

    def put_into(self, found: OffsetMap, *, without: int | None = None) -> None:
        is_wanted = np.ones(len(self.rows), np.bool_)
        if without is not None:
            is_wanted[without] = False
        assert put_batches(found, self.rows, self.payloads, is_wanted) is None


def offsets_in(found: OffsetMap, keys: str) -> list[int]:
    return [found.get(key.encode()) for key in keys]


def test_the_last_offset_counts() -> None:
    found = map_for(10)
    assert found.latest_offset == -1
    assert found.get(b"a") == -1
    assert found.put(b"a", 3)
    assert found.put(b"", 4)
    assert found.put(b"a", 7)
    assert (found.get(b"a"), found.get(b""), found.entries) == (7, 4, 2)
    assert found.latest_offset == 7
    assert not found.is_full


def test_offset_zero_is_an_offset() -> None:
    found = map_for(3)
    Batches(batch(0, [b"a"])).put_into(found)
    assert (found.get(b"a"), found.latest_offset, found.entries) == (0, 0, 1)


@pytest.mark.parametrize(
    ("memory_bytes", "slots", "entries_max"),
    [(24 * 10, 10, 9), (24 * 11 + 23, 11, 9), (134_217_728, 5_592_405, 5_033_164)],
)
def test_nine_tenths_of_the_memory_are_used(
    memory_bytes: int, slots: int, entries_max: int
) -> None:
    """The last is Kafka's default, with its numbers."""
    found = OffsetMap(memory_bytes)
    assert (found.slots, found.entries_max) == (slots, entries_max)


def test_a_slot_stays_free() -> None:
    """Else looking for a key that is not there would never end."""
    for memory_bytes, load_factor in [(0, 0.9), (24, 0.9), (47, 0.9), (24 * 10, 1.0), (240, 0.0)]:
        with pytest.raises(ValueError, match="for an offset map"):
            OffsetMap(memory_bytes, load_factor=load_factor)


def test_more_slots_than_hashes_can_tell_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="for an offset map"):
        OffsetMap(24 << 31)


def test_a_map_in_a_file_answers_alike(tmp_path: Path) -> None:
    found = map_for(50, start_offset=3)
    Batches(batch(0, [b"x", b"x", b"x", b"a", b"b", b"a"], 9)).put_into(found)
    loaded = OffsetMap.load(found.save(tmp_path / "map"))
    assert offsets_in(loaded, "abx") == offsets_in(found, "abx") == [5, 4, -1]
    assert (loaded.latest_offset, loaded.entries) == (9, 2)
    marks, others = loaded.marks(10), found.marks(10)
    assert marks is not None
    assert others is not None
    assert marks.tolist() == others.tolist()


def test_a_full_map_takes_no_record_even_of_a_key_it_has() -> None:
    found = map_for(2)
    assert found.put(b"a", 1)
    assert found.put(b"b", 2)
    assert (found.is_full, found.put(b"a", 3)) == (False, False)
    assert (found.is_full, found.get(b"a"), found.latest_offset) == (True, 1, 2)


def test_full_inside_a_batch() -> None:
    found = map_for(3)
    Batches(batch(10, [b"a", b"b"], 15), batch(20, [b"a", b"c", b"a", b"d"], 30)).put_into(found)
    assert found.is_full
    assert offsets_in(found, "abcd") == [20, 11, 21, -1]
    assert found.latest_offset == 21


def test_full_at_the_first_record_of_a_batch() -> None:
    """What precedes it is done with, up to the end of its last batch, markers and all."""
    found = map_for(2)
    batches = Batches(
        batch(10, [b"a", b"b"], 15), batch(16, [b"marker"], 19), batch(20, [b"a", b"c"])
    )
    batches.put_into(found, without=1)
    assert found.is_full
    assert offsets_in(found, "abc") == [10, 11, -1]
    assert found.latest_offset == 19


def test_full_at_the_first_record_of_a_run() -> None:
    found = map_for(1)
    Batches(batch(5, [b"a"], 9)).put_into(found)
    assert (found.is_full, found.latest_offset) == (False, 9)
    Batches(batch(10, [b"a"])).put_into(found)
    assert (found.is_full, found.latest_offset, found.get(b"a")) == (True, 9, 5)


def test_records_that_need_no_room_do_not_end_it() -> None:
    """Without a key, or below the start; nor empty batches, nor those that are not wanted."""
    found = map_for(1, start_offset=12)
    empty = encode_empty_batch(BatchHeader.unpack(batch(30, [b"x"], 39)))
    Batches(batch(10, [b"x", b"y", b"a", None], 19), batch(20, [None, None], 29), empty).put_into(
        found
    )
    assert not found.is_full
    assert offsets_in(found, "axy") == [12, -1, -1]
    assert found.latest_offset == 39
    Batches(batch(40, [b"b"], 44)).put_into(found, without=0)
    assert (found.is_full, found.latest_offset) == (False, 44)


def test_batches_below_the_start_tell_nothing() -> None:
    found = map_for(3, start_offset=100)
    Batches(batch(10, [b"a", b"b"], 15)).put_into(found)
    assert (found.entries, found.latest_offset) == (0, -1)


def test_skipping_goes_forward_only() -> None:
    found = map_for(3)
    found.skip_to(50)
    assert found.latest_offset == 49
    found.skip_to(20)
    assert found.latest_offset == 49


@pytest.mark.parametrize("count", [511, 512, 513, 1024, 5000])
def test_many_keys_in_a_tight_map(count: int) -> None:
    """Every slot but one is taken: whatever collides finds its place, and is found. Keys wait in
    a ring of 512 on their way."""
    found = map_for(count)
    keys: list[bytes | None] = [b"key-%d" % (n % count) for n in range(2 * count)]
    Batches(batch(0, keys[:count]), batch(count, keys[count:])).put_into(found)
    assert (found.entries, found.is_full) == (count, True)
    for n in range(count):
        assert found.get(b"key-%d" % n) == n
    assert found.latest_offset == count - 1
    assert found.get(b"other") == -1


@pytest.mark.parametrize("limit", [510, 511, 512, 513, 700])
def test_full_near_the_end_of_the_ring(limit: int) -> None:
    found = map_for(limit)
    keys: list[bytes | None] = [b"key-%d" % n for n in range(700)]
    Batches(batch(0, keys[:300], 309), batch(310, keys[300:], 720)).put_into(found)
    assert found.entries == limit
    assert found.is_full == (limit < 700)
    assert found.latest_offset == (310 + limit - 300 - 1 if limit < 700 else 720)


def test_clear_forgets_all_and_draws_another_secret() -> None:
    found = map_for(2)
    Batches(batch(0, [b"a", b"b", b"c"])).put_into(found)
    assert found.is_full
    (before,) = {tuple(found.state[[kernel.SECRET_0, kernel.SECRET_1]].tolist())}
    found.clear(7)
    assert offsets_in(found, "abc") == [-1, -1, -1]
    assert (found.entries, found.is_full, found.latest_offset) == (0, False, -1)
    assert tuple(found.state[[kernel.SECRET_0, kernel.SECRET_1]].tolist()) != before
    Batches(batch(6, [b"a", b"b"])).put_into(found)
    assert offsets_in(found, "ab") == [-1, 7]


def test_marks_tell_where_a_key_is_last() -> None:
    found = map_for(20, start_offset=10)
    Batches(batch(8, [b"a", b"b", b"a", b"c", b"b", b"d", None, b"c"], 40)).put_into(found)
    marks = found.marks(16)
    assert marks is not None
    bits = np.unpackbits(marks, bitorder="little")[:6].tolist()
    assert bits == [1, 0, 1, 1, 0, 1]
    assert found.marks(10) is not None
    assert found.marks(0) is not None


def test_marks_are_not_made_for_a_part_with_huge_holes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_map, "MARKS_BYTES_MAX", 2)
    found = map_for(20, start_offset=10)
    assert found.marks(26) is not None
    assert found.marks(27) is None


def test_maps_with_one_secret_become_one() -> None:
    secret = (-5, 77)
    maps = [OffsetMap(24 * 400, secret=secret) for _ in range(2)]
    for n in range(200):
        maps[n % 2].put(b"%d" % n, n)
        maps[0].put(b"both", n)
    maps[1].put(b"both", 500)
    maps[1].put(b"old", 3)
    merged = OffsetMap(24 * 400, secret=secret)
    for one in maps:
        merged.put_entries(one.entries_in())
    merged.put_entries(maps[0].entries_in())
    assert merged.entries == 202
    assert [merged.get(b"%d" % n) for n in range(200)] == list(range(200))
    assert (merged.get(b"both"), merged.get(b"old")) == (500, 3)


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_parts_are_the_whole_without_overlap(parts: int) -> None:
    found = OffsetMap(24 * 400)
    for n in range(300):
        found.put(b"%d" % n, n)
    pieces = [found.entries_in(part, parts) for part in range(parts)]
    offsets = sorted(np.concatenate(pieces)[:, 2].tolist())
    assert offsets == list(range(300))
    assert all(len(piece) > 300 / parts / 3 for piece in pieces)


def test_entries_must_fit() -> None:
    source, target = OffsetMap(24 * 400, secret=(1, 2)), OffsetMap(24 * 10, secret=(1, 2))
    for n in range(10):
        source.put(b"%d" % n, n)
    with pytest.raises(ValueError, match="10 more keys do not fit"):
        target.put_entries(source.entries_in())
    target.put_entries(source.entries_in()[:9])
    assert target.entries == 9
