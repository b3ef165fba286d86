"""Records into batches by size and time, as Kafka's producer gathers them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import InvalidTimestampError, MessageTooLargeError
from stratalog.format.batch import BatchHeader, Codec
from stratalog.format.record import BatchFields, Header, Record, decode_records, encode_batch
from stratalog.log.appends import AppendRules, Assignment
from stratalog.log.validation import LeaderValidator
from stratalog.producing.batches import BatchBuilder, BuilderOptions, BuiltBatch, NewRecord
from tests import strategies

NOW_MS = 1_700_000_000_000


def records_of(batches: list[BuiltBatch]) -> list[Record]:
    return [
        record
        for batch in batches
        for record in decode_records(batch.data, 0, BatchHeader.unpack(batch.data))
    ]


def counts(batches: list[BuiltBatch]) -> list[int]:
    assert [BatchHeader.unpack(batch.data).record_count for batch in batches] == [
        batch.record_count for batch in batches
    ]
    return [batch.record_count for batch in batches]


def record(size: int = 10) -> NewRecord:
    return NewRecord(None, bytes(size))


def test_nothing() -> None:
    builder = BatchBuilder()
    assert builder.ready_in_ms(NOW_MS) is None
    assert builder.drain(NOW_MS) == builder.flush() == []


def test_linger() -> None:
    builder = BatchBuilder(BuilderOptions(linger_ms=5))
    builder.add(record(), NOW_MS)
    builder.add(record(), NOW_MS + 4)
    assert builder.ready_in_ms(NOW_MS + 4) == 1
    assert builder.drain(NOW_MS + 4) == []
    assert builder.ready_in_ms(NOW_MS + 5) == 0
    assert counts(builder.drain(NOW_MS + 5)) == [2]
    assert builder.record_count == 0
    builder.add(record(), NOW_MS + 6)  # a new batch waits again
    assert builder.ready_in_ms(NOW_MS + 6) == 5


def test_no_linger() -> None:
    builder = BatchBuilder(BuilderOptions(linger_ms=0))
    builder.add(record(), NOW_MS)
    assert builder.ready_in_ms(NOW_MS) == 0


def test_a_full_batch_does_not_wait() -> None:
    two = len(encode_batch([Record(i, NOW_MS, None, bytes(10)) for i in range(2)]))
    builder = BatchBuilder(BuilderOptions(batch_bytes=two))
    builder.add(record(), NOW_MS)
    assert builder.ready_in_ms(NOW_MS) != 0
    builder.add(record(), NOW_MS)
    assert builder.ready_in_ms(NOW_MS) == 0  # exactly full
    builder.add(record(), NOW_MS)
    assert counts(builder.drain(NOW_MS)) == [2]
    assert builder.record_count == 1
    assert counts(builder.flush()) == [1]


def test_a_record_without_room_closes_the_batch_before_it() -> None:
    builder = BatchBuilder(BuilderOptions(batch_bytes=200, linger_ms=1000))
    for size in (50, 40, 500, 10):
        builder.add(record(size), NOW_MS)
    assert builder.record_count == 4
    assert counts(builder.drain(NOW_MS)) == [2, 1]
    assert counts(builder.drain(NOW_MS + 1000)) == [1]


def test_records_keep_their_times_and_the_clock_fills_in() -> None:
    builder = BatchBuilder()
    builder.add(NewRecord(b"k", b"v", 5, (Header("h", None),)), NOW_MS)
    builder.add(NewRecord(b"k", None), NOW_MS + 1)
    found = records_of(builder.flush())
    assert found == [
        Record(0, 5, b"k", b"v", (Header("h", None),)),
        Record(1, NOW_MS + 1, b"k", None),
    ]


@pytest.mark.parametrize("timestamp", [-1, -(1 << 63), 1 << 63, 1 << 64])
def test_timestamps_that_a_batch_cannot_hold(timestamp: int) -> None:
    builder = BatchBuilder()
    builder.add(NewRecord(b"k", b"v", (1 << 63) - 1), NOW_MS)
    with pytest.raises(InvalidTimestampError, match=f"timestamp {timestamp} is not in 0 to"):
        builder.add(NewRecord(b"k", b"v", timestamp), NOW_MS)
    builder.add(NewRecord(b"k", b"v", 0), NOW_MS)
    assert [found.timestamp for found in records_of(builder.flush())] == [(1 << 63) - 1, 0]


def test_too_large_alone() -> None:
    alone = len(encode_batch([Record(0, NOW_MS, None, bytes(300))]))
    builder = BatchBuilder(BuilderOptions(max_message_bytes=alone - 1))
    builder.add(record(1), NOW_MS)
    with pytest.raises(MessageTooLargeError) as caught:
        builder.add(record(300), NOW_MS)
    assert caught.value.code == 10
    assert builder.record_count == 1  # what was there before still is
    builder = BatchBuilder(BuilderOptions(max_message_bytes=alone))
    builder.add(record(300), NOW_MS)
    assert counts(builder.flush()) == [1]


def test_sequences_run_on() -> None:
    fields = BatchFields(producer_id=7, producer_epoch=1, base_sequence=(1 << 31) - 2)
    builder = BatchBuilder(BuilderOptions(batch_bytes=80, fields=fields))
    for _ in range(4):
        builder.add(record(5), NOW_MS)
    headers = [BatchHeader.unpack(batch.data) for batch in builder.flush()]
    assert [header.base_sequence for header in headers] == [2147483646, 2147483647, 0, 1]
    assert {(header.producer_id, header.producer_epoch) for header in headers} == {(7, 1)}


class TestCompression:
    def builder(self, codec: Codec, **options: int) -> BatchBuilder:
        return BatchBuilder(BuilderOptions(fields=BatchFields(codec=codec), **options))

    def test_batches_grow_as_they_prove_to_compress_well(self) -> None:
        builder = self.builder(Codec.GZIP, batch_bytes=2000)
        sizes = []
        for _ in range(150):
            while builder.ready_in_ms(NOW_MS) != 0:
                builder.add(record(100), NOW_MS)
            sizes += counts(builder.drain(NOW_MS))
        assert sizes[0] < 20
        assert sizes[-1] > 2 * sizes[0]
        assert 0.02 < builder.compression_ratio < 0.4

    def test_the_ratio_moves_by_kafkas_steps(self) -> None:
        builder = self.builder(Codec.GZIP)
        builder.add(record(10_000), NOW_MS)
        builder.flush()
        assert builder.compression_ratio == pytest.approx(0.995)
        builder.add(NewRecord(None, random.Random(1).randbytes(10_000)), NOW_MS)
        builder.flush()
        assert builder.compression_ratio == pytest.approx(1.045)

    def test_what_compresses_badly_is_split(self) -> None:
        builder = self.builder(Codec.SNAPPY, batch_bytes=1_000_000, max_message_bytes=3000)
        noise = random.Random(1)
        for _ in range(30):
            builder.add(NewRecord(None, noise.randbytes(90)), NOW_MS)
        builder.add(NewRecord(None, noise.randbytes(2925)), NOW_MS)  # grows when compressed
        batches = builder.flush()
        assert all(len(batch.data) <= 3000 for batch in batches)
        assert sum(counts(batches)) == 31
        assert BatchHeader.unpack(batches[-1].data).codec_id == Codec.NONE
        assert builder.compression_ratio == 1.0

    def test_the_estimate_never_exceeds_the_limit(self) -> None:
        """However well the last batches compressed."""
        builder = self.builder(Codec.GZIP, max_message_bytes=5000)
        builder.compression_ratio = 0.001
        for _ in range(500):
            builder.add(record(100), NOW_MS)
        found = builder.flush()
        assert max(counts(found)) * 100 < 5000


@pytest.mark.slow
@given(
    strategies.record_runs(count_max=15),
    st.integers(62, 400),
    st.sampled_from([Codec.NONE, Codec.LZ4]),
)
def test_nothing_is_lost_and_a_leader_accepts_it(
    drawn: list[Record], batch_bytes: int, codec: Codec
) -> None:
    fields = BatchFields(codec=codec)
    builder = BatchBuilder(BuilderOptions(batch_bytes=batch_bytes, linger_ms=10, fields=fields))
    expected = []
    batches = []
    for index, one in enumerate(drawn):
        timestamp = NOW_MS + abs(one.timestamp) % 1000
        expected.append(one._replace(offset=index, timestamp=timestamp))
        builder.add(NewRecord(one.key, one.value, timestamp, one.headers), NOW_MS + index)
        batches += builder.drain(NOW_MS + index)
    batches += builder.flush()
    group = LeaderValidator(compiled=False).validate_group(
        [batch.data for batch in batches], AppendRules(), Assignment(0, 0, NOW_MS)
    )
    assert len(group.accepted) == len(batches)
    stored = [BuiltBatch(bytes(append.data), append.record_count) for append in group.accepted]
    assert records_of(stored) == expected
    if codec is Codec.NONE:
        assert all(len(batch.data) <= batch_bytes for batch in batches if batch.record_count > 1)
