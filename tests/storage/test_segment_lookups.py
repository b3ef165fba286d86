"""Lookups by offset and time in one segment, against a look at every record."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from stratalog.format.index_entries import IndexBuilder
from stratalog.format.record import Record, encode_batch
from stratalog.storage import segment_view as segment_times
from stratalog.storage.segment_view import SegmentEnd, SegmentView
from stratalog.storage.trace import IndexStep, RecordStep, ScanStep, Trace
from tests.log.building import log_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

BASE = 1000


class Built(NamedTuple):
    """A segment on disk, and what is in it."""

    path: Path
    batches: list[list[Record]]

    def view(self) -> SegmentView:
        return SegmentView(self.path, BASE, self.path.stat().st_size)

    @property
    def records(self) -> list[Record]:
        return [record for batch in self.batches for record in batch]

    def first_at(self, timestamp: int, start_offset: int) -> tuple[int, int] | None:
        for record in self.records:
            if record.timestamp >= timestamp and record.offset >= start_offset:
                return record.offset, record.timestamp
        return None


def build(
    directory: Path, timestamps: Sequence[Sequence[int]], *, interval_bytes: int = 200
) -> Built:
    """One batch for each sequence of timestamps, with gaps in the offsets, and both indexes."""
    path = directory / log_name(BASE)
    builder = IndexBuilder(BASE, interval_bytes)
    raw, batches, offset = b"", [], BASE
    for of_batch in timestamps:
        batch = [
            Record(offset + at, timestamp, b"k", b"v" * 20) for at, timestamp in enumerate(of_batch)
        ]
        encoded = encode_batch(batch)
        builder.add(len(raw), len(encoded), batch[-1].offset, max(of_batch))
        raw += encoded
        batches.append(batch)
        offset = batch[-1].offset + 3
    builder.finish()
    path.write_bytes(raw)
    path.with_suffix(".index").write_bytes(builder.offset_index)
    path.with_suffix(".timeindex").write_bytes(builder.time_index)
    return Built(path, batches)


def rising(rng: random.Random, count: int) -> list[list[int]]:
    return [[10 * at + k for k in range(rng.randrange(1, 5))] for at in range(count)]


def jumbled(rng: random.Random, count: int) -> list[list[int]]:
    return [[rng.randrange(500) for _ in range(rng.randrange(1, 5))] for _ in range(count)]


def constant(rng: random.Random, count: int) -> list[list[int]]:
    return [[77] * rng.randrange(1, 5) for _ in range(count)]


def early_peak(rng: random.Random, count: int) -> list[list[int]]:
    return [[5000], *jumbled(rng, count - 1)]


def partly_without(rng: random.Random, count: int) -> list[list[int]]:
    return [[rng.choice([-1, rng.randrange(300)])] for _ in range(count)]


SHAPES = [rising, jumbled, constant, early_peak, partly_without]


@pytest.fixture(params=SHAPES, ids=lambda shape: shape.__name__)
def built(request: pytest.FixtureRequest, tmp_path: Path) -> Built:
    shape: Callable[[random.Random, int], list[list[int]]] = request.param
    return build(tmp_path, shape(random.Random(shape.__name__), 60))


def test_seek(built: Built) -> None:
    """The first batch that ends at or above the target, from every start of the walk."""
    view = built.view()
    for target in range(BASE - 1, built.records[-1].offset + 3):
        expected = next((b for b in built.batches if b[-1].offset >= target), None)
        found = view.seek(target)
        if expected is None:
            assert found == (view.size_bytes, None)
        else:
            assert found.batch is not None
            assert found.batch.base_offset == expected[0].offset
            loaded = view.load_batch(found.position)
            assert loaded.header.base_offset == expected[0].offset


def test_seek_thousands_of_times(built: Built) -> None:
    """An index that is asked often is kept in another form; its answers stay the same."""
    view = built.view()
    targets = [random.Random(at).choice(built.records).offset for at in range(40)]
    before = [view.seek(target) for target in targets]
    for _ in range(60):
        assert [view.seek(target) for target in targets] == before


def test_find_by_time(built: Built) -> None:
    asked = sorted({r.timestamp + near for r in built.records for near in (-1, 0, 1)} | {0, 9999})
    starts = [BASE, built.records[7].offset, built.records[-1].offset + 1]
    view = built.view()
    for timestamp in asked[::2]:
        for start_offset in starts:
            hit = view.times.find(timestamp, start_offset)
            found = None if hit is None else (hit.offset, hit.timestamp)
            if timestamp >= 0:
                assert found == built.first_at(timestamp, start_offset), (timestamp, start_offset)


def test_largest_timestamp(built: Built) -> None:
    largest = built.view().times.largest
    expected = max(record.timestamp for record in built.records)
    assert largest.timestamp == expected
    holder = next(b for b in built.batches if any(r.timestamp == expected for r in b))
    assert largest.offset == holder[-1].offset


@pytest.mark.parametrize("index", ["as written", "none"])
def test_time_zero_at_the_base_offset(tmp_path: Path, index: str) -> None:
    """Its time index is twelve zero bytes, the same as a preallocated tail."""
    built = build(tmp_path, [[0]])
    time_index = built.path.with_suffix(".timeindex")
    assert time_index.read_bytes() == bytes(12)
    if index == "none":
        time_index.unlink()
    times = built.view().times
    assert times.largest == (0, BASE)
    assert times.find(0, BASE) == (0, 0, BASE, 0)
    assert times.find(1, BASE) is None


def test_newest_record_from_every_offset_on(built: Built) -> None:
    view = built.view()
    for start in range(BASE, built.records[-1].offset + 2, 3):
        left = [r for r in built.records if r.offset >= start and r.timestamp >= 0]
        newest = max(left, key=lambda r: (r.timestamp, -r.offset), default=None)
        found = view.times.find_newest(start)
        assert (None if found is None else found.offset) == (newest and newest.offset)


@pytest.mark.parametrize("tail_bytes", [0, 1 << 30], ids=["long tail", "short tail"])
@pytest.mark.parametrize("entries", [1, 2, 5])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_stale_indexes(
    shape: Callable[[random.Random, int], list[list[int]]],
    entries: int,
    tail_bytes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both indexes were copied long before the log was: much of it they do not know of."""
    monkeypatch.setattr(segment_times, "TAIL_WALK_BYTES_MAX", tail_bytes)
    built = build(tmp_path, shape(random.Random(shape.__name__), 200))
    for suffix, size in ((".index", 8), (".timeindex", 12)):
        index = built.path.with_suffix(suffix)
        index.write_bytes(index.read_bytes()[: entries * size])
    view = built.view()
    assert view.times.largest.timestamp == max(record.timestamp for record in built.records)
    for record in built.records[::17]:
        if record.timestamp >= 0:
            hit = view.times.find(record.timestamp, BASE)
            assert hit is not None
            assert (hit.offset, hit.timestamp) == built.first_at(record.timestamp, BASE)


def test_end(built: Built) -> None:
    view = built.view()
    assert view.end == SegmentEnd(view.size_bytes, built.records[-1].offset + 1)


def test_empty_segment(tmp_path: Path) -> None:
    path = tmp_path / log_name(BASE)
    path.touch()
    view = SegmentView(path, BASE, 0)
    assert view.end == SegmentEnd(0, BASE)
    assert view.seek(BASE) == (0, None)
    assert view.times.largest == (-1, BASE)
    assert view.times.find(0, BASE) is None
    assert list(view.walk()) == []
    assert list(view.batches(0, 0)) == []


def test_trace_of_an_offset_lookup(tmp_path: Path) -> None:
    """Kafka's steps: binary search in the index, then a scan from its anchor."""
    built = build(tmp_path, rising(random.Random(1), 60))
    view, trace = built.view(), Trace()
    target = built.batches[40][0].offset
    found = view.seek(target, trace)
    index_step, scan_step = trace.steps
    assert isinstance(index_step, IndexStep)
    assert (index_step.kind, index_step.origin, index_step.target) == ("offset", "file", target)
    assert index_step.entries == view.offset_index.entries
    assert index_step.found is not None
    assert index_step.found.key <= target
    assert index_step.found in index_step.probes
    assert isinstance(scan_step, ScanStep)
    assert scan_step.start_position == index_step.found.value
    last_at, last = scan_step.batches[-1]
    assert (last_at, last) == (found.position, found.batch)
    assert scan_step.bytes_scanned == last_at + last.size_bytes - scan_step.start_position
    assert found == view.seek(target)


def test_trace_of_a_time_lookup(tmp_path: Path) -> None:
    built = build(tmp_path, rising(random.Random(2), 60))
    view, trace = built.view(), Trace()
    target = built.batches[40][0].timestamp
    hit = view.times.find(target, BASE, trace)
    assert hit is not None
    first, *_, last = trace.steps
    assert isinstance(first, IndexStep)
    assert (first.kind, first.target) == ("time", target)
    assert isinstance(last, RecordStep)
    assert last == RecordStep(hit.position, hit.records_passed, hit.offset, hit.timestamp)


def test_trace_says_why_a_file_was_not_used(tmp_path: Path) -> None:
    built = build(tmp_path, rising(random.Random(3), 60))
    target = built.batches[40][0].offset
    for spoil, reason in ((None, "no file"), (b"\x7f" * 80, "contradicts the log")):
        index = built.path.with_suffix(".index")
        index.unlink() if spoil is None else index.write_bytes(spoil)
        view, trace = built.view(), Trace()
        view.seek(BASE + (1 << 31) - 1, trace)
        view.seek(target, trace)
        origins = [step.origin for step in trace.steps if isinstance(step, IndexStep)]
        assert any(reason in origin for origin in origins), origins
