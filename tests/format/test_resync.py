from __future__ import annotations

import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.errors import LimitExceededError
from stratalog.format import resync
from stratalog.format.batch import BatchHeader, Codec, Entry, TimestampType
from stratalog.format.legacy import encode_legacy
from stratalog.format.record import BatchFields, Record, encode_batch, encode_empty_batch
from stratalog.format.resync import FoundBatch, IncompleteBatch, NoBatch, find_next_batch
from tests.strategies import GeneratedLog, logs

OFFSET = 1_000
DATA = encode_batch([Record(OFFSET, 5, b"key", b"value"), Record(OFFSET + 1, 6, None, None)])
MARKER_LIKE = encode_batch(
    [Record(OFFSET, 5, b"k", b"v")], BatchFields(is_control=True, is_transactional=True)
)
KINDS = [
    pytest.param(DATA, 2, id="batch"),
    pytest.param(MARKER_LIKE, 2, id="control batch"),
    pytest.param(encode_empty_batch(BatchHeader.unpack(DATA)), 2, id="empty batch"),
    *(
        pytest.param(
            encode_batch([Record(OFFSET, 5, b"k", b"v" * 99)], BatchFields(codec=codec)), 2
        )
        for codec in Codec
    ),
    pytest.param(encode_legacy([Record(OFFSET, -1, None, None)], 0), 0, id="smallest magic 0"),
    pytest.param(encode_legacy([Record(OFFSET, 5, None, None)], 1), 1, id="smallest magic 1"),
    pytest.param(
        encode_legacy([Record(OFFSET, 5, b"k" * 300, b"v")], 1), 1, id="magic 1, long key"
    ),
    pytest.param(
        encode_legacy(
            [Record(OFFSET, 5, b"k", b"v", timestamp_type=TimestampType.LOG_APPEND_TIME)],
            1,
            codec=Codec.GZIP,
        ),
        1,
        id="magic 1 set",
    ),
    *(
        pytest.param(encode_legacy([Record(OFFSET, -1, b"k", b"v" * 9)], 0, codec=codec), 0)
        for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
    ),
]


def junk(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def search(buf: bytes, start: int = 0, **options: int) -> FoundBatch | IncompleteBatch | NoBatch:
    return find_next_batch(buf, start, len(buf), **{"offset_min": OFFSET, **options})


@pytest.mark.parametrize(("raw", "magic"), KINDS)
@pytest.mark.parametrize("before", [0, 1, 7, 16, 61, 4_095, 4_096, 70_000])
def test_found_after_junk(raw: bytes, magic: int, before: int) -> None:
    found = FoundBatch(Entry(before, OFFSET, len(raw), magic))
    assert search(junk(before) + raw + junk(50)) == found
    assert search(bytes(before) + raw) == found
    assert search(b"\x02" * before + raw) == found


@pytest.mark.parametrize(("raw", "magic"), KINDS)
def test_found_in_any_kind_of_buffer_and_at_its_very_end(raw: bytes, magic: int) -> None:
    buf = junk(300) + raw
    found = FoundBatch(Entry(300, OFFSET, len(raw), magic))
    for kind in (bytes, bytearray, memoryview):
        assert find_next_batch(kind(buf), 0, len(buf), offset_min=OFFSET) == found


@pytest.mark.parametrize("start", range(0, 301, 50))
def test_the_search_begins_at_start(start: int) -> None:
    buf = DATA + junk(300 - len(DATA)) + DATA
    position = 0 if start == 0 else 300
    assert search(buf, start) == FoundBatch(Entry(position, OFFSET, len(DATA), 2))


def test_the_first_good_one_wins() -> None:
    damaged = DATA[:-1] + b"?"
    later = encode_batch([Record(OFFSET + 9, 5, None, None)])
    assert search(damaged + later + DATA) == FoundBatch(Entry(len(DATA), OFFSET + 9, len(later), 2))


def test_every_damaged_byte_under_the_crc_makes_it_no_batch() -> None:
    for at in range(16, len(DATA)):
        damaged = DATA[:at] + bytes([DATA[at] ^ 0x40]) + DATA[at + 1 :]
        assert not isinstance(search(junk(20) + damaged, log_end=20 + len(DATA)), FoundBatch), at


@pytest.mark.parametrize(
    ("offset_min", "is_found"), [(0, True), (OFFSET, True), (OFFSET + 1, False)]
)
def test_offsets_never_go_back(offset_min: int, is_found: bool) -> None:
    assert isinstance(search(junk(9) + DATA, offset_min=offset_min), FoundBatch) is is_found


@pytest.mark.parametrize("offset_min", [0, 1, OFFSET, (1 << 32) - 5, 1 << 40])
def test_offsets_stay_in_the_range_of_a_segment(offset_min: int) -> None:
    last = offset_min + resync.SEGMENT_OFFSETS_MAX
    near = encode_batch([Record(last, 5, None, None)])
    far = encode_batch([Record(last + 1, 5, None, None)])
    assert isinstance(search(near, offset_min=offset_min), FoundBatch)
    assert isinstance(search(far, offset_min=offset_min), NoBatch)
    assert isinstance(search(far, offset_min=offset_min, offset_max=last + 1), FoundBatch)


@pytest.mark.parametrize("offset", [(1 << 32) - 2, 1 << 32, 1 << 40, (1 << 63) - 2])
def test_large_offsets(offset: int) -> None:
    raw = encode_batch([Record(offset, 5, None, None)])
    found = FoundBatch(Entry(40, offset, len(raw), 2))
    buf = junk(40) + raw
    assert search(buf, offset_min=offset - 1) == found
    anything = {"offset_min": 0, "offset_max": (1 << 63) - 1}
    assert search(buf, **anything, log_end=len(buf)) == found


@pytest.mark.parametrize(("raw", "magic"), KINDS)
def test_cut_by_the_window(raw: bytes, magic: int) -> None:
    buf = junk(100) + raw + junk(100)
    needed = 61 if magic == 2 else 34
    for end in range(100 + needed, 100 + len(raw)):
        cut = find_next_batch(buf, 0, end, offset_min=OFFSET)
        assert cut == IncompleteBatch(100, 100 + len(raw)), end
        again = find_next_batch(buf, cut.position, cut.end, offset_min=OFFSET)
        assert again == FoundBatch(Entry(100, OFFSET, len(raw), magic))


@pytest.mark.parametrize(("raw", "magic"), KINDS)
def test_header_cut_by_the_window_is_found_on_resuming(raw: bytes, magic: int) -> None:
    buf = junk(100) + raw + junk(100)
    for end in range(60, 100 + len(raw)):
        first = find_next_batch(buf, 0, end, offset_min=OFFSET)
        if isinstance(first, NoBatch):
            assert 0 <= first.resume_at <= 100
            first = find_next_batch(buf, first.resume_at, len(buf), offset_min=OFFSET)
            assert first == FoundBatch(Entry(100, OFFSET, len(raw), magic))


def test_a_candidate_past_the_end_of_the_log_is_none() -> None:
    """A torn last batch, or junk with a large length: no more bytes will come."""
    later = encode_batch([Record(OFFSET + 5, 5, None, None)])
    liar = BatchHeader.unpack(DATA)._replace(batch_length=1 << 30).pack()
    buf = liar + later
    assert search(buf) == IncompleteBatch(0, (1 << 30) + 12)
    assert search(buf, log_end=len(buf)) == FoundBatch(Entry(61, OFFSET + 5, len(later), 2))
    assert isinstance(search(junk(10) + DATA[:-1], log_end=9 + len(DATA)), NoBatch)


@pytest.mark.parametrize("size", [0, 1, 16, 17, 25, 26, 60, 61, 1_000])
def test_nothing_in_junk_or_zeros(size: int) -> None:
    resume_at = max(0, size - 60)
    assert search(junk(size, seed=2)) == NoBatch(resume_at)
    assert search(bytes(size)) == NoBatch(resume_at)
    assert find_next_batch(DATA, 5, 5, offset_min=0) == NoBatch(5)


def test_many_look_alikes_end_in_an_error_and_not_in_hours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resync, "CHECKED_BYTES_MIN", 1 << 20)
    look_alike = BatchHeader.unpack(DATA)._replace(batch_length=1 << 20).pack()
    with pytest.raises(LimitExceededError, match="too many candidates"):
        search(look_alike * (1 << 16))


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(bytes(4 << 20), id="zeros"),
        pytest.param(junk(4 << 20), id="random"),
        pytest.param(b"\x02" * (4 << 20), id="nothing but magic bytes"),
        pytest.param(b'{"id":1,"name":"x"}' * (4 << 20 >> 4), id="text"),
    ],
)
def test_megabytes_take_a_moment_only(before: bytes) -> None:
    started = time.process_time()  # what other processes take does not count
    assert search(before + DATA) == FoundBatch(Entry(len(before), OFFSET, len(DATA), 2))
    assert time.process_time() - started < 5  # about 0.1 s on one slow core


@pytest.mark.slow
@settings(max_examples=60)
@given(logs(legacy=True), st.data())
def test_every_batch_boundary_is_found_again(log: GeneratedLog, data: st.DataObject) -> None:
    """From any position inside a log the search ends at the next entry, if one is left."""
    raw = log.raw
    starts = [0]
    for batch in log.batches:
        starts.append(starts[-1] + len(batch.raw))
    start = data.draw(st.integers(0, len(raw)))
    found = find_next_batch(raw, start, len(raw), offset_min=0, log_end=len(raw))
    following = [at for at in starts[:-1] if at >= start]
    if isinstance(found, FoundBatch):
        assert found.entry.position >= start
        assert not following or found.entry.position <= following[0]
    else:
        assert not following
