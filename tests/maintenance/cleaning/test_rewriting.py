"""The compiled cleaner against the readable one, on generated segments, byte for byte."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from stratalog.config import LogConfig
from stratalog.errors import UnsupportedError
from stratalog.format.batch import next_entry
from stratalog.format.log_entry import header_of, records_of
from stratalog.format.names import FileKind
from stratalog.format.record import BatchFields, Record, encode_batch
from stratalog.format.txn_index import AbortedTxn, read_entries
from stratalog.maintenance.cleaning import offset_map, rewriting
from stratalog.maintenance.cleaning import sources as batch_runs
from stratalog.maintenance.cleaning.filtering import (
    BatchAction,
    CleanedTransactions,
    CleaningRules,
    RecordReason,
    filter_batch,
)
from stratalog.maintenance.cleaning.offset_map import OffsetMap, map_keys
from stratalog.maintenance.cleaning.plan import CleanerSegment
from stratalog.maintenance.cleaning.rewriting import CleanedSegment, Rewriter
from stratalog.maintenance.cleaning.sources import BatchReader, SourceSegment
from stratalog.storage.disk import Disk, SystemCalls
from tests.effort import scaled
from tests.maintenance.cleaning.batch_contents import contents
from tests.maintenance.cleaning.cleaning_cases import indexes_of
from tests.maintenance.cleaning.dirty_logs import NOW_MS, DirtySegment, dirty_segments
from tests.maintenance.cleaning.reference_pass import KeyMap, keys_of_entry
from tests.strategies import LONG_MIN

if TYPE_CHECKING:
    from stratalog.storage.segment import Segment

EXAMPLES = scaled(60)
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
CONFIG = LogConfig(index_interval_bytes=100)
UNSYNCED = Disk(SystemCalls(fsync=lambda _fd: None))


class Sizes(NamedTuple):
    """Of buffers: small ones so that each of their ends is met."""

    chunk_bytes: int
    part_bytes: int
    out_bytes: int


class Done(NamedTuple):
    """What is left of a segment."""

    data: bytes
    aborted: list[AbortedTxn]
    counts: tuple[int, int, int]
    """Records read, kept, and dropped for want of a key."""


sizes = st.sampled_from(
    [Sizes(4 << 20, 8 << 20, 8 << 20), Sizes(1, 1, 1), Sizes(200, 300, 400), Sizes(700, 64, 1000)]
)


def reference_map(segment: DirtySegment, first_dirty: int, keys_max: int) -> KeyMap:
    """As Kafka fills its map: stops at the first record that finds it full."""
    transactions = CleanedTransactions()
    transactions.add_aborted(segment.aborted)
    offsets: dict[bytes, int] = {}
    latest = -1
    for raw in segment.batches:
        entry = next_entry(raw, 0)
        assert entry is not None
        for key, offset in keys_of_entry(raw, entry, transactions):
            if offset < first_dirty:
                continue
            if len(offsets) >= keys_max:
                return KeyMap(offsets, latest)
            offsets[key] = latest = offset
        last_offset = header_of(raw, entry).next_offset - 1
        if last_offset >= first_dirty:
            latest = max(latest, last_offset)
    return KeyMap(offsets, max(latest, segment.end_offset - 1))


def reference(segment: DirtySegment, rules: CleaningRules, mtime_ms: int) -> Done:
    transactions = CleanedTransactions()
    transactions.add_aborted(segment.aborted)
    data, read, kept, without_key = [], 0, 0, 0
    for raw in segment.batches:
        entry = next_entry(raw, 0)
        assert entry is not None
        done = filter_batch(raw, entry, rules, transactions, mtime_ms)
        read += _record_count(raw)
        kept += len(done.kept)
        without_key += sum(v.reason is RecordReason.NO_KEY for v in done.decisions)
        if done.action is not BatchAction.DROPPED:
            data.append(done.data)
    return Done(b"".join(data), transactions.take_kept(), (read, kept, without_key))


def _record_count(raw: bytes) -> int:
    entry = next_entry(raw, 0)
    assert entry is not None
    return sum(1 for _ in records_of(raw, entry, check_crc=False))


def source_of(segment: DirtySegment, path: Path, mtime_ms: int) -> SourceSegment:
    path.write_bytes(segment.raw)
    facts = CleanerSegment(segment.base_offset, len(segment.raw), 0, 0, mtime_ms, is_active=False)
    return SourceSegment(path, facts, segment.end_offset, segment.aborted)


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None, phases=PHASES)
@given(segment=dirty_segments(), how=sizes, with_marks=st.booleans(), choice=st.data())
def test_compiled_and_readable_agree(
    segment: DirtySegment, how: Sizes, with_marks: bool, choice: st.DataObject
) -> None:
    first_dirty = choice.draw(
        st.sampled_from([segment.base_offset, *segment.ends, segment.ends[0] - 1]), "first dirty"
    )
    keys_max = choice.draw(st.sampled_from([1, 2, 4, 900]), "keys")
    bound = choice.draw(st.sampled_from([segment.end_offset, *segment.ends]), "bound")
    retention_ms = choice.draw(st.sampled_from([0, 86_400_000]), "retention")
    mtime_ms = choice.draw(st.sampled_from([0, 1]), "mtime")
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as directory:
        patch.setattr(batch_runs, "PART_BYTES", how.part_bytes)
        patch.setattr(rewriting, "OUT_BYTES", how.out_bytes)
        if not with_marks:
            patch.setattr(offset_map, "MARKS_BYTES_MAX", -1)
        found = OffsetMap(24 * (keys_max + 1), load_factor=(keys_max + 0.5) / (keys_max + 1))
        assert found.entries_max == keys_max
        source = source_of(segment, Path(directory) / "a.log", mtime_ms)
        with BatchReader(chunk_bytes=how.chunk_bytes) as reader:
            told: list[int] = []
            map_keys(found, [source], first_dirty, reader, told.append)
            expected = reference_map(segment, first_dirty, keys_max)
            check_map(found, expected)
            if not found.is_full:
                assert sum(told) == len(segment.raw)
            rules = CleaningRules(
                newest_offset_of=lambda key: expected.offsets.get(key, -1),
                map_latest_offset=expected.latest_offset,
                bound=bound,
                now_ms=NOW_MS,
                delete_retention_ms=retention_ms,
                legacy_horizon_ms=0,
                producers=segment.producers,
            )
            compare(segment, source, found, rules, reader)


def check_map(found: OffsetMap, expected: KeyMap) -> None:
    assert found.latest_offset == expected.latest_offset
    assert found.entries == len(expected.offsets)
    for key, offset in expected.offsets.items():
        assert found.get(key) == offset


def compare(
    segment: DirtySegment,
    source: SourceSegment,
    found: OffsetMap,
    rules: CleaningRules,
    reader: BatchReader,
) -> None:
    directory = source.path.parent
    cleaned = CleanedSegment(UNSYNCED, directory, segment.base_offset, CONFIG)
    rewriter = Rewriter(found, rules)
    try:
        expected = reference(segment, rules, source.facts.mtime_ms)
    except UnsupportedError:
        with pytest.raises(UnsupportedError, match="has no empty batch"):
            rewriter.rewrite_segment(source, cleaned, reader, lambda _: None)
        cleaned.discard()
        assert list(directory.iterdir()) == [source.path]
        return
    told: list[int] = []
    rewriter.rewrite_segment(source, cleaned, reader, told.append)
    assert sum(told) == len(segment.raw)
    new = cleaned.finish(5000)
    data = new.path.read_bytes()
    assert list(contents(data)) == list(contents(expected.data))
    assert rewriter.counts == expected.counts
    check_siblings(new, data, expected.aborted)


def check_siblings(new: Segment, data: bytes, aborted: list[AbortedTxn]) -> None:
    indexes = indexes_of(data, new.base_offset, CONFIG.index_interval_bytes)
    assert new.sibling(FileKind.OFFSET_INDEX).read_bytes() == indexes.offset_index
    assert new.sibling(FileKind.TIME_INDEX).read_bytes() == indexes.time_index
    txn_index = new.sibling(FileKind.TXN_INDEX)
    assert txn_index.exists() == bool(aborted)
    if aborted:
        assert list(read_entries(txn_index.read_bytes())) == aborted
    assert new.path.stat().st_mtime_ns == 5_000_000_000


@pytest.mark.parametrize("key_bytes", [1, 54, 55, 56, 8180])
def test_records_that_grow_by_all_they_can(
    key_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tombstones get a delete horizon that is as far from their times as can be: the timestamp of
    each takes nine bytes more, its length perhaps another one. Room is made for that."""
    monkeypatch.setattr(rewriting, "OUT_BYTES", 1)
    count = 300
    records = [
        Record(n, LONG_MIN + NOW_MS, (b"%d" % n).ljust(key_bytes, b"."), None) for n in range(count)
    ]
    raw = encode_batch(records, BatchFields())
    segment = DirtySegment((raw,), 0, count, (count,), (), {})
    found = OffsetMap(24 * 1000)
    source = source_of(segment, tmp_path / "a.log", 0)
    with BatchReader() as reader:
        map_keys(found, [source], 0, reader, lambda _: None)
        rules = CleaningRules(found.get, count - 1, count, NOW_MS, 0, 0, {})
        compare(segment, source, found, rules, reader)
    (cleaned,) = tmp_path.glob("*.log.cleaned")
    growth = cleaned.stat().st_size - len(raw)
    assert growth in {9 * count, 10 * count}
