"""Damage in `.log` files: cuts, flipped bits, junk, holes. Every answer is defined.

A log that ends badly simply ends earlier. Damage with good batches behind it is a typed error that
says where, or, for whoever asks for it, a report and the rest of the records.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from stratalog.errors import CorruptBatchError, CorruptError, CorruptRecordError
from stratalog.format.batch import BatchHeader
from stratalog.format.index_rules import IndexBuilder
from stratalog.format.record import encode_batch, seal_batch
from stratalog.log.isolation import IsolationLevel
from stratalog.log.partition_view import PartitionView
from tests.golden.cases import GoldenCase
from tests.golden.expected import directory_to_read, visible
from tests.log.building import (
    Batch,
    batches_of,
    copy_partition,
    drop_indexes,
    log_name,
    plain_records,
    plain_segment,
    records_in,
    segment_paths,
    write_partition,
)
from tests.log.readers import columns, over_readers, scalar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from stratalog.format.record import Record
    from stratalog.log.damage import Skipped
    from tests.log.readers import Reader

BOTH_READERS = (scalar, columns)
SMALL_LOGS = ["txn-simple", "v1-lz4", "v0-none", "compact-snappy"]
CUT_BYTES_MAX = 1000
STEP_OF_READS = 7  # both readers read at each 7th damage, one of them at the others


class Outcome(NamedTuple):
    """What a reader gave before it ended, and how it ended."""

    records: list[Record]
    error: CorruptError | None
    skipped: list[Skipped]


def outcome_of(reader: Reader, path: Path, *, can_skip: bool = False) -> Outcome:
    records: list[Record] = []
    skipped: list[Skipped] = []
    with PartitionView(path) as view:
        try:
            for record in reader(view, on_skip=skipped.append if can_skip else None):
                records.append(record)
        except CorruptError as error:
            return Outcome(records, error, skipped)
    return Outcome(records, None, skipped)


def readers_at(turn: int) -> Iterable[Reader]:
    """Both at times; else one after the other."""
    return BOTH_READERS if turn % STEP_OF_READS == 0 else (BOTH_READERS[turn % 2],)


# -- cuts


@pytest.mark.parametrize("with_indexes", [True, False], ids=["with indexes", "without"])
@pytest.mark.parametrize("name", SMALL_LOGS)
def test_log_cut_at_any_byte_ends_with_the_last_whole_batch(
    name: str, with_indexes: bool, tmp_path: Path
) -> None:
    """Its indexes know of batches that are gone, or are gone themselves."""
    path = copy_partition(directory_to_read(GoldenCase(name)), tmp_path)
    if not with_indexes:
        drop_indexes(path)
    *earlier, last = segment_paths(path)
    for file in earlier:
        file.unlink()
    batches = [b for b in batches_of(last.read_bytes()) if b.end <= CUT_BYTES_MAX]
    assert len(batches) > 1
    for turn, cut in enumerate(range(batches[-1].end, -1, -1 if with_indexes else -3)):
        os.truncate(last, cut)
        whole = [batch for batch in batches if batch.end <= cut]
        for reader in readers_at(turn):
            assert outcome_of(reader, path) == (records_in(whole), None, []), cut
        with PartitionView(path) as view:
            end = whole[-1].next_offset if whole else int(last.stem)
            assert view.log_end_offset == end, cut


@over_readers
def test_cut_of_a_sealed_segment_is_damage(reader: Reader, tmp_path: Path) -> None:
    """A later segment proves that there was more."""
    path = copy_partition(directory_to_read(GoldenCase("v1-none")), tmp_path)
    first, second, *_ = segment_paths(path)
    raw = first.read_bytes()
    batches = batches_of(raw)
    after = [r for r in visible(GoldenCase("v1-none")) if r.offset >= int(second.stem)]
    for cut in range(len(raw) - 1, 0, -97):
        first.write_bytes(raw[:cut])
        whole = [batch for batch in batches if batch.end <= cut]
        outcome = outcome_of(reader, path)
        assert outcome.records == records_in(whole)
        if whole and whole[-1].end == cut:
            continue
        assert isinstance(outcome.error, CorruptBatchError)
        assert outcome.error.path == first
        assert outcome.error.position == (whole[-1].end if whole else 0)
        skipping = outcome_of(reader, path, can_skip=True)
        assert skipping.records == records_in(whole) + after
        (skipped,) = skipping.skipped
        assert skipped.first_offset == (whole[-1].next_offset if whole else 0)
        assert skipped.next_offset is None


@over_readers
def test_segment_that_ends_early_between_batches(reader: Reader, tmp_path: Path) -> None:
    """Nothing on disk tells a lost tail from one that compaction removed: no error."""
    raw = plain_segment(0, 5)
    path = write_partition(tmp_path / "t-0", {0: batches_of(raw)[0].raw, 10: plain_segment(10, 2)})
    outcome = outcome_of(reader, path)
    assert [record.offset for record in outcome.records] == [0, 1, 10, 11, 12, 13]
    assert outcome.error is None


# -- flipped bits

BASE_OFFSET_FIELD = range(8)
FAR_OFF = range(7)  # of the base offset: a bit here moves a batch beyond the end of a small log
LEADER_EPOCH_FIELD = range(12, 16)


def flip(path: Path, position: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))


@pytest.mark.parametrize(
    ("seed", "with_indexes"), [(1, True), (2, False)], ids=["with indexes", "without"]
)
def test_flipped_bit_at_any_byte(seed: int, with_indexes: bool, tmp_path: Path) -> None:
    """Every byte of a log with transactions, two segments, one bit each."""
    path = copy_partition(directory_to_read(GoldenCase("txn-simple")), tmp_path)
    if not with_indexes:
        drop_indexes(path)
    rng = random.Random(seed)
    first, last = segment_paths(path)
    files = [(file, batches_of(file.read_bytes())) for file in (first, last)]
    for file, batches in files:
        for turn, position in enumerate(range(batches[-1].end)):
            bit = rng.randrange(8)
            flip(file, position, bit)
            (damaged,) = [b for b in batches if b.position <= position < b.end]
            is_tail = file == last and damaged is batches[-1]
            check = Flip(path, file, damaged, position - damaged.position, is_tail)
            others = records_in(b for _, of_file in files for b in of_file if b is not damaged)
            for reader in readers_at(turn):
                check.run(reader, others, f"seed {seed}, {file.name}, byte {position}, bit {bit}")
            flip(file, position, bit)


class Flip(NamedTuple):
    """One damaged batch, and what readers must make of it."""

    path: Path
    file: Path
    batch: Batch
    field: int
    is_tail: bool
    """Nothing good follows, so the log ends before it."""

    def run(self, reader: Reader, others: list[Record], what: str) -> None:
        strict = outcome_of(reader, self.path)
        lenient = outcome_of(reader, self.path, can_skip=True)
        assert lenient.error is None, what
        if self.field in LEADER_EPOCH_FIELD:
            assert strict == lenient, what
            assert strict.error is None
            assert sorted(others + list(self.batch.records)) == strict.records, what
        elif self.field in BASE_OFFSET_FIELD:
            self._check_moved_batch(strict, lenient, others, what)
        else:
            assert lenient.records == others, what
            self._check_report(strict, lenient, others, what)

    def _check_report(
        self, strict: Outcome, lenient: Outcome, others: list[Record], what: str
    ) -> None:
        if self.is_tail:
            assert strict.error is None, what
            assert strict.records == others, what
            assert lenient.skipped == [], what
            return
        assert isinstance(strict.error, CorruptBatchError), what
        assert (strict.error.path, strict.error.position) == (self.file, self.batch.position), what
        assert strict.records == [r for r in others if r.offset < self.batch.first_offset], what
        (skipped,) = lenient.skipped
        assert (skipped.path, skipped.position) == (self.file, self.batch.position), what
        assert skipped.size_bytes == len(self.batch.raw), what
        assert skipped.first_offset == self.batch.first_offset, what
        assert skipped.next_offset in (self.batch.next_offset, None), what

    def _check_moved_batch(
        self, strict: Outcome, lenient: Outcome, others: list[Record], what: str
    ) -> None:
        """No checksum covers the base offset: the batch may turn up elsewhere, in order still."""
        values = {record.value for record in others} | {r.value for r in self.batch.records}
        for outcome in (strict, lenient):
            offsets = [record.offset for record in outcome.records]
            assert offsets == sorted(set(offsets)), what
            assert {record.value for record in outcome.records} <= values, what
        before = [r for r in others if r.offset < self.batch.first_offset]
        assert lenient.records[: len(before)] == before, what
        if self.field in FAR_OFF and not self.is_tail:
            assert lenient.records == others, what
            assert isinstance(strict.error, CorruptBatchError), what


@over_readers
@pytest.mark.parametrize("name", ["v0-gzip", "v1-lz4", "v1-none", "java-lz4"])
def test_report_names_the_first_offset_of_the_next_batch(
    reader: Reader, name: str, tmp_path: Path
) -> None:
    """Of compressed old messages too, whose header knows only the last."""
    path = copy_partition(directory_to_read(GoldenCase(name)), tmp_path)
    file = segment_paths(path)[0]
    batches = batches_of(file.read_bytes())
    damaged, following = batches[1], batches[2]
    flip(file, damaged.end - 1, 3)
    (skipped,) = outcome_of(reader, path, can_skip=True).skipped
    assert (skipped.first_offset, skipped.next_offset) == (
        damaged.first_offset,
        following.first_offset,
    )
    assert skipped.size_bytes == len(damaged.raw)
    assert f"offsets {damaged.first_offset} up to {following.first_offset}" in str(skipped)


@over_readers
def test_readers_of_either_level_skip_the_same(reader: Reader, tmp_path: Path) -> None:
    path = copy_partition(directory_to_read(GoldenCase("txn")), tmp_path)
    file = segment_paths(path)[3]
    batches = batches_of(file.read_bytes())
    for batch in batches:
        flip(file, batch.end - 1, 0)
        with PartitionView(path) as view:
            level = IsolationLevel.READ_COMMITTED
            committed = list(reader(view, isolation=level, on_skip=lambda _: None))
            flip(file, batch.end - 1, 0)
            intact = list(reader(view, isolation=level))
        lost = range(batch.first_offset, batch.next_offset)
        assert committed == [record for record in intact if record.offset not in lost]


# -- junk, holes and zeros


def logs_with(insert: bytes) -> dict[int, bytes]:
    """Junk between the second and the third batch of the first of two segments."""
    batches = batches_of(plain_segment(0, 5))
    raw = b"".join(b.raw for b in batches[:2]) + insert + b"".join(b.raw for b in batches[2:])
    return {0: raw, 10: plain_segment(10, 3)}


JUNK: list[Callable[[random.Random], bytes]] = [
    lambda rng: rng.randbytes(1),
    lambda rng: rng.randbytes(16),
    lambda rng: rng.randbytes(17),
    lambda rng: rng.randbytes(5000),
    lambda _: bytes(1),
    lambda _: bytes(61),
    lambda _: bytes(70_000),
    lambda _: b"\xff" * 1000,
    lambda rng: plain_segment(4, 1)[: rng.randrange(1, 60)],
    lambda rng: plain_segment(4, 1)[rng.randrange(1, 60) :],
]


@over_readers
@pytest.mark.parametrize("junk", range(len(JUNK)))
@pytest.mark.parametrize("seed", [3, 4])
def test_junk_between_batches(reader: Reader, junk: int, seed: int, tmp_path: Path) -> None:
    insert = JUNK[junk](random.Random(seed))
    path = write_partition(tmp_path / "t-0", logs_with(insert))
    strict = outcome_of(reader, path)
    assert isinstance(strict.error, CorruptError)
    assert [record.offset for record in strict.records] == [0, 1, 2, 3]
    at = len(plain_segment(0, 2))
    assert (strict.error.path, strict.error.position) == (path / log_name(0), at)
    lenient = outcome_of(reader, path, can_skip=True)
    assert [record.offset for record in lenient.records] == list(range(16))
    (skipped,) = lenient.skipped
    assert (skipped.position, skipped.size_bytes) == (at, len(insert))
    assert (skipped.first_offset, skipped.next_offset) == (4, 4)


@over_readers
@pytest.mark.parametrize("junk", range(len(JUNK)))
def test_junk_after_a_sealed_segment_that_lacks_nothing(
    reader: Reader, junk: int, tmp_path: Path
) -> None:
    """The next segment begins with the offset that is due: nothing to say."""
    insert = JUNK[junk](random.Random(5))
    segments = {0: plain_segment(0, 2) + insert, 4: plain_segment(4, 2)}
    outcome = outcome_of(reader, write_partition(tmp_path / "t-0", segments), can_skip=True)
    assert outcome == (records_in(batches_of(plain_segment(0, 4))), None, [])


@over_readers
@pytest.mark.parametrize("junk", range(len(JUNK)))
def test_junk_after_the_log_is_a_torn_tail(reader: Reader, junk: int, tmp_path: Path) -> None:
    insert = JUNK[junk](random.Random(6))
    path = write_partition(tmp_path / "t-0", {0: plain_segment(0, 2) + insert})
    outcome = outcome_of(reader, path, can_skip=True)
    assert outcome == (records_in(batches_of(plain_segment(0, 2))), None, [])


@over_readers
@pytest.mark.parametrize("preallocated", [70_000, 3 << 20])
def test_preallocated_zeros_after_the_log(
    reader: Reader, preallocated: int, tmp_path: Path
) -> None:
    path = write_partition(tmp_path / "t-0", {0: plain_segment(0, 3), 6: plain_segment(6, 4)})
    for file in segment_paths(path):
        with file.open("r+b") as log:
            log.truncate(preallocated)
    outcome = outcome_of(reader, path)
    assert [record.offset for record in outcome.records] == list(range(14))
    assert outcome.error is None


@over_readers
def test_zeroed_blocks_in_the_middle(reader: Reader, tmp_path: Path) -> None:
    """As a power cut leaves them: whole blocks of zeros, good batches before and behind."""
    raw = plain_segment(0, 400)
    batches = batches_of(raw)
    holed = raw[:4096] + bytes(8192) + raw[12_288:]
    path = write_partition(tmp_path / "t-0", {0: holed})
    good = [b for b in batches if b.end <= 4096 or b.position >= 12_288]
    strict = outcome_of(reader, path)
    assert isinstance(strict.error, CorruptBatchError)
    assert strict.records == records_in(b for b in good if b.end <= 4096)
    lenient = outcome_of(reader, path, can_skip=True)
    assert lenient.records == records_in(good)
    assert len(lenient.skipped) == 1


@over_readers
def test_damaged_tail_of_many_batches(reader: Reader, tmp_path: Path) -> None:
    """However many bad batches end a log, the last good one ends it."""
    batches = batches_of(plain_segment(0, 300))
    bad = [batch.raw[:-1] + b"\x55" for batch in batches[5:]]
    raw = b"".join([*(batch.raw for batch in batches[:5]), *bad])
    path = write_partition(tmp_path / "t-0", {0: raw})
    with PartitionView(path) as view:
        assert view.log_end_offset == 10
        assert list(reader(view)) == records_in(batches[:5])


@over_readers
def test_whole_segment_of_junk(reader: Reader, tmp_path: Path) -> None:
    junk = random.Random(7).randbytes(30_000)
    segments = {0: plain_segment(0, 2), 4: junk, 9: plain_segment(9, 2)}
    path = write_partition(tmp_path / "t-0", segments)
    strict = outcome_of(reader, path)
    assert isinstance(strict.error, CorruptError)
    assert [record.offset for record in strict.records] == [0, 1, 2, 3]
    lenient = outcome_of(reader, path, can_skip=True)
    assert [record.offset for record in lenient.records] == [0, 1, 2, 3, 9, 10, 11, 12]
    (skipped,) = lenient.skipped
    assert (skipped.first_offset, skipped.next_offset) == (4, None)
    assert skipped.size_bytes == len(junk)


@over_readers
def test_log_of_nothing_but_junk(reader: Reader, tmp_path: Path) -> None:
    path = write_partition(tmp_path / "t-0", {7: random.Random(8).randbytes(5000)})
    with PartitionView(path) as view:
        assert (view.log_start_offset, view.log_end_offset) == (7, 7)
        assert view.last_stable_offset == 7
        assert list(reader(view)) == []
        assert view.find_time(0) is None
        assert view.find_max_timestamp() is None
        assert view.locate(7) is None


# -- right checksums, wrong content


def with_payload(first_offset: int, payload: bytes) -> bytes:
    """A batch that claims two records and holds `payload`; its CRC is right."""
    raw = encode_batch(plain_records(first_offset, 2))
    return seal_batch(BatchHeader.unpack(raw), payload)


@over_readers
@pytest.mark.parametrize("payload", [b"", b"\x00" * 14, b"\xff" * 40, bytes(range(60))])
def test_nonsense_under_a_right_checksum(reader: Reader, payload: bytes, tmp_path: Path) -> None:
    first, nonsense, last = plain_segment(0, 2), with_payload(4, payload), plain_segment(6, 2)
    path = write_partition(tmp_path / "t-0", {0: first + nonsense + last})
    strict = outcome_of(reader, path)
    assert isinstance(strict.error, CorruptRecordError)
    assert (strict.error.path, strict.error.position) == (path / log_name(0), len(first))
    assert strict.error.offsets == (4, 5)
    assert [record.offset for record in strict.records] == [0, 1, 2, 3]
    lenient = outcome_of(reader, path, can_skip=True)
    assert [record.offset for record in lenient.records] == [0, 1, 2, 3, 6, 7, 8, 9]
    (skipped,) = lenient.skipped
    assert (skipped.path, skipped.position) == (path / log_name(0), len(first))
    assert skipped.size_bytes == len(nonsense)
    assert (skipped.first_offset, skipped.next_offset) == (4, 6)


@over_readers
def test_batch_inside_a_value_is_not_taken_for_one(reader: Reader, tmp_path: Path) -> None:
    """Kafka in Kafka: the damaged batch carries a whole good batch in a record's value."""
    inner = encode_batch(plain_records(5, 2))
    record = plain_records(4, 1)[0]._replace(value=inner)
    outer = bytearray(encode_batch([record]))
    outer[-1] ^= 1
    raw = plain_segment(0, 2) + bytes(outer) + plain_segment(7, 2)
    path = write_partition(tmp_path / "t-0", {0: raw})
    lenient = outcome_of(reader, path, can_skip=True)
    assert [r.offset for r in lenient.records] == [0, 1, 2, 3, 7, 8, 9, 10]


# -- lookups in damaged logs


@pytest.mark.parametrize("with_indexes", [True, False], ids=["with indexes", "without"])
def test_lookups_behind_damage(with_indexes: bool, tmp_path: Path) -> None:
    """Damage in a log costs the records in it, never those behind it."""
    path = copy_partition(directory_to_read(GoldenCase("v1-none")), tmp_path)
    if not with_indexes:
        drop_indexes(path)
    file = segment_paths(path)[1]
    batches = batches_of(file.read_bytes())
    damaged = batches[1]
    with file.open("r+b") as log:
        log.seek(damaged.position)
        log.write(b"\xff" * 20)
    for batch in batches[2:]:
        for record in batch.records:
            with PartitionView(path) as view:
                found = view.locate(record.offset)
                assert found is not None
                assert found.record == record
                assert next(view.read(record.offset)) == record
                assert view.find_time(record.timestamp) == (record.offset, record.timestamp)
    with PartitionView(path) as view, pytest.raises(CorruptBatchError) as caught:
        view.locate(damaged.first_offset)
    assert (caught.value.path, caught.value.position) == (file, damaged.position)


@pytest.mark.parametrize("with_indexes", [True, False], ids=["with indexes", "without"])
def test_lookups_with_any_bit_of_a_header_flipped(with_indexes: bool, tmp_path: Path) -> None:
    """The right record or a typed error, never another record, never None for one that is there.

    No checksum covers the base offset. Where its last bits are flipped the batch takes the place of
    its neighbours, and a lookup that meets it alone cannot know.
    """
    records = plain_records(0, 12)
    raw = b"".join(encode_batch(records[at : at + 2]) for at in range(0, 12, 2))
    path = write_partition(tmp_path / "t-0", {0: raw})
    if with_indexes:
        _write_indexes(path / log_name(0))
    damaged = batches_of(raw)[2]
    others = [record for record in records if record not in damaged.records]
    wrong = []
    for position in range(damaged.position, damaged.position + 61):
        for bit in range(2 if position == damaged.position + 7 else 0, 8):
            flip(path / log_name(0), position, bit)
            for record in others[1::2]:
                if not _is_found(path, record):
                    wrong.append((position - damaged.position, bit, record.offset))
            flip(path / log_name(0), position, bit)
    assert wrong == []


def _write_indexes(log: Path) -> None:
    """With an entry for every batch but the first, as `index.interval.bytes=0` gives."""
    builder = IndexBuilder(0, interval_bytes=0)
    for batch in batches_of(log.read_bytes()):
        newest = max(record.timestamp for record in batch.records)
        builder.add(batch.position, len(batch.raw), batch.next_offset - 1, newest)
    builder.finish()
    log.with_suffix(".index").write_bytes(builder.offset_index)
    log.with_suffix(".timeindex").write_bytes(builder.time_index)


def _is_found(path: Path, record: Record) -> bool:
    with PartitionView(path) as view:
        try:
            by_offset = view.locate(record.offset)
            if by_offset is None or by_offset.record != record:
                return False
        except CorruptError:
            pass
        try:
            by_time = view.find_time(record.timestamp)
        except CorruptError:
            return True
        return by_time == (record.offset, record.timestamp)


def test_transaction_opened_behind_damage_is_still_open(tmp_path: Path) -> None:
    """Or a reader of committed records would see what nobody committed."""
    path = copy_partition(directory_to_read(GoldenCase("txn")), tmp_path)
    for snapshot in path.glob("*.snapshot"):
        snapshot.unlink()
    last = segment_paths(path)[-1]
    batches = batches_of(last.read_bytes())
    opening = next(at for at, batch in enumerate(batches) if batch.next_offset > 130)
    with last.open("r+b") as log:
        log.seek(batches[opening - 2].position)
        log.write(b"\xff" * 20)
    with PartitionView(path) as view:
        assert view.last_stable_offset == 130
