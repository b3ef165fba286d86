"""Damage in `.log` files: cuts and flipped bits. Every answer is defined.

A log that ends badly simply ends earlier. Damage with good batches behind it is a typed error that
says where, or, for whoever asks for it, a report and the rest of the records.
"""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from stratalog.errors import CorruptBatchError
from stratalog.log.partition_view import PartitionView
from stratalog.log.reader import IsolationLevel
from tests.effort import IS_LONG
from tests.golden.cases import GoldenCase
from tests.golden.expected import directory_to_read, visible
from tests.log.building import (
    Batch,
    batches_of,
    copy_partition,
    drop_indexes,
    plain_segment,
    records_in,
    segment_paths,
    write_partition,
)
from tests.log.damaging import Outcome, flip, outcome_of
from tests.log.readers import columns, over_readers, scalar

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from stratalog.format.record import Record
    from tests.log.readers import Reader


BOTH_READERS = (scalar, columns)
SMALL_LOGS = ["txn-simple", "v1-lz4", "v0-none", "compact-snappy"]
CUT_BYTES_MAX = 1000
FIRST_FIELDS = range(-2, 24)
STEP_OF_READS = 7  # both readers read at each 7th damage, one of them at the others


def readers_at(turn: int) -> Iterable[Reader]:
    """Both at times; else one after the other."""
    return BOTH_READERS if turn % STEP_OF_READS == 0 else (BOTH_READERS[turn % 2],)


def steps(batches: list[Batch], step: int) -> list[int]:
    """Bytes of batches, the last first: by default those of the fields that say where batches begin
    and end, and of the others every so many, which are all covered by one checksum."""
    step = 1 if IS_LONG else step
    starts = {batch.position + at for batch in batches for at in FIRST_FIELDS}
    end = batches[-1].end
    return [at for at in range(end, -1, -1) if at in starts or (end - at) % step == 0]


# -- cuts


@pytest.mark.slow
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
    for turn, cut in enumerate(steps(batches, 3 if with_indexes else 9)):
        os.truncate(last, cut)
        whole = [batch for batch in batches if batch.end <= cut]
        for reader in readers_at(turn):
            assert outcome_of(reader, path) == (records_in(whole), None, []), cut
        with PartitionView(path) as view:
            end = whole[-1].next_offset if whole else int(last.stem)
            assert view.log_end_offset == end, cut


@pytest.mark.slow
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


BASE_OFFSET_FIELD = range(8)
FAR_OFF = range(7)  # of the base offset: a bit here moves a batch beyond the end of a small log
LEADER_EPOCH_FIELD = range(12, 16)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "with_indexes"), [(1, True), (2, False)], ids=["with indexes", "without"]
)
def test_flipped_bit_at_any_byte(seed: int, with_indexes: bool, tmp_path: Path) -> None:
    """Every byte of a log with transactions, two segments, one bit each. Indexes do not matter to
    most of them, so without any it is every fifth byte, unless there is much time."""
    path = copy_partition(directory_to_read(GoldenCase("txn-simple")), tmp_path)
    if not with_indexes:
        drop_indexes(path)
    rng = random.Random(seed)
    first, last = segment_paths(path)
    files = [(file, batches_of(file.read_bytes())) for file in (first, last)]
    for file, batches in files:
        step = 1 if with_indexes or IS_LONG else 5
        for turn, position in enumerate(range(0, batches[-1].end, step)):
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
