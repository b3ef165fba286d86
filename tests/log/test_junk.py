"""Bytes in `.log` files that no broker wrote there: junk, holes, zeros, nonsense with a CRC."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from stratalog.errors import CorruptBatchError, CorruptError, CorruptRecordError
from stratalog.format.batch import BatchHeader
from stratalog.format.record import encode_batch, seal_batch
from stratalog.log.partition_view import PartitionView
from tests.log.building import (
    batches_of,
    log_name,
    plain_records,
    plain_segment,
    records_in,
    segment_paths,
    write_partition,
)
from tests.log.damaging import outcome_of
from tests.log.readers import over_readers

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.log.readers import Reader


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


def with_payload(first_offset: int, payload: bytes) -> bytes:
    """A batch that claims two records and holds `payload`; its CRC is valid."""
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
