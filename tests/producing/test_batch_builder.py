"""Records into batches by size and time, as Kafka's producer gathers them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import MessageTooLargeError
from stratalog.format.batch import BatchHeader, Codec
from stratalog.format.names import TopicPartition
from stratalog.format.record import BatchFields, Header, Record, decode_records, encode_batch
from stratalog.log.log_state import AppendInfo
from stratalog.log.offset_assignment import AppendRules, Assignment
from stratalog.log.validation import LeaderValidator
from stratalog.producing import batches as module
from stratalog.producing.batches import BatchBuilder, BuilderOptions, Outcome
from tests import strategies

NOW_MS = 1_700_000_000_000
DONE = Outcome(TopicPartition("orders", 0), AppendInfo(0, 0), None)


def add(builder: BatchBuilder, size: int = 10, now_ms: int = NOW_MS) -> None:
    builder.add(None, bytes(size), now_ms, (), now_ms)


def is_ready(builder: BatchBuilder, now_ms: int) -> bool:
    return now_ms >= builder.ready_ms


def drain(
    builder: BatchBuilder, now_ms: int | None = None, fields: BatchFields | None = None
) -> list[bytes]:
    """Every batch that is ready, or all."""
    if now_ms is None:
        builder.close_open_batch()
    else:
        builder.close_ready(now_ms)
    found = []
    while builder.has_closed:
        codec = builder.options.codec
        built = builder.build(fields or BatchFields(codec=codec))
        assert built.failure is None
        assert BatchHeader.unpack(built.data).record_count == built.record_count
        found.append(bytes(built.data))
        builder.complete(built, DONE)
    return found


def records_of(batches: list[bytes]) -> list[Record]:
    return [
        record for data in batches for record in decode_records(data, 0, BatchHeader.unpack(data))
    ]


def counts(batches: list[bytes]) -> list[int]:
    return [BatchHeader.unpack(data).record_count for data in batches]


def test_nothing() -> None:
    builder = BatchBuilder()
    assert not is_ready(builder, 1 << 62)
    assert not builder.has_records
    assert drain(builder, NOW_MS) == drain(builder) == []


def test_linger() -> None:
    builder = BatchBuilder(BuilderOptions(linger_ms=5))
    add(builder)
    add(builder, now_ms=NOW_MS + 4)
    assert builder.ready_ms == NOW_MS + 5
    assert drain(builder, NOW_MS + 4) == []
    assert is_ready(builder, NOW_MS + 5)
    assert counts(drain(builder, NOW_MS + 5)) == [2]
    assert builder.record_count == 0
    add(builder, now_ms=NOW_MS + 6)  # a new batch waits anew
    assert builder.ready_ms == NOW_MS + 11


def test_no_linger() -> None:
    builder = BatchBuilder(BuilderOptions(linger_ms=0))
    add(builder)
    assert is_ready(builder, NOW_MS)


def test_a_full_batch_does_not_wait() -> None:
    two = len(encode_batch([Record(i, NOW_MS, None, bytes(10)) for i in range(2)]))
    builder = BatchBuilder(BuilderOptions(batch_bytes=two))
    add(builder)
    assert not is_ready(builder, NOW_MS)
    add(builder)
    assert is_ready(builder, NOW_MS)  # exactly full
    add(builder)
    assert counts(drain(builder, NOW_MS)) == [2]
    assert builder.record_count == 1
    assert counts(drain(builder)) == [1]


def test_a_record_without_room_closes_the_batch_before_it() -> None:
    builder = BatchBuilder(BuilderOptions(batch_bytes=200, linger_ms=1000))
    for size in (50, 40, 500, 10):
        add(builder, size)
    assert builder.record_count == 4
    assert counts(drain(builder, NOW_MS)) == [2, 1]
    assert counts(drain(builder, NOW_MS + 1000)) == [1]


def test_records_keep_their_fields() -> None:
    builder = BatchBuilder()
    builder.add(b"k", b"v", 5, (Header("h", None),), NOW_MS)
    builder.add(b"k", None, (1 << 63) - 1, (), NOW_MS + 1)
    builder.add(None, b"", 0, (), NOW_MS + 1)
    assert records_of(drain(builder)) == [
        Record(0, 5, b"k", b"v", (Header("h", None),)),
        Record(1, (1 << 63) - 1, b"k", None),
        Record(2, 0, None, b""),
    ]


def test_too_large_alone() -> None:
    alone = len(encode_batch([Record(0, NOW_MS, None, bytes(300))]))
    builder = BatchBuilder(BuilderOptions(max_message_bytes=alone - 1))
    add(builder, 1)
    with pytest.raises(MessageTooLargeError) as caught:
        add(builder, 300)
    assert caught.value.code == 10
    assert builder.record_count == 1  # what was there before still is
    builder = BatchBuilder(BuilderOptions(max_message_bytes=alone))
    add(builder, 300)
    assert counts(drain(builder)) == [1]


def test_a_batch_waits_until_it_is_completed() -> None:
    builder = BatchBuilder()
    add(builder)
    builder.close_open_batch()
    first = builder.build(BatchFields(producer_id=1, producer_epoch=0, base_sequence=7))
    assert builder.record_count == 1
    again = builder.build(BatchFields(producer_id=2, producer_epoch=0, base_sequence=0))
    assert BatchHeader.unpack(first.data).base_sequence == 7
    assert BatchHeader.unpack(again.data)[9:12] == (2, 0, 0)
    builder.complete(again, DONE)
    assert not builder.has_records


class TestCompression:
    def builder(self, codec: Codec, **options: int) -> BatchBuilder:
        return BatchBuilder(BuilderOptions(codec=codec, **options))

    def test_batches_grow_as_they_prove_to_compress_well(self) -> None:
        builder = self.builder(Codec.GZIP, batch_bytes=2000)
        sizes = []
        for _ in range(150):
            while not is_ready(builder, NOW_MS):
                add(builder, 100)
            sizes += counts(drain(builder, NOW_MS))
        assert sizes[0] < 20
        assert sizes[-1] > 2 * sizes[0]
        assert 0.02 < builder.compression_ratio < 0.4

    def test_the_ratio_moves_by_kafkas_steps(self) -> None:
        builder = self.builder(Codec.GZIP)
        add(builder, 10_000)
        drain(builder)
        assert builder.compression_ratio == pytest.approx(0.995)
        builder.add(None, random.Random(1).randbytes(10_000), NOW_MS, (), NOW_MS)
        drain(builder)
        assert builder.compression_ratio == pytest.approx(1.045)

    def test_what_compresses_badly_is_split(self) -> None:
        builder = self.builder(Codec.SNAPPY, batch_bytes=1_000_000, max_message_bytes=3000)
        noise = random.Random(1)
        for _ in range(30):
            builder.add(None, noise.randbytes(90), NOW_MS, (), NOW_MS)
        builder.add(None, noise.randbytes(2925), NOW_MS, (), NOW_MS)  # grows when compressed
        batches = drain(builder)
        assert all(len(data) <= 3000 for data in batches)
        assert sum(counts(batches)) == 31
        assert BatchHeader.unpack(batches[-1]).codec_id == Codec.NONE
        assert builder.compression_ratio == 1.0

    def test_the_estimate_never_exceeds_the_limit(self) -> None:
        """However well the last batches compressed."""
        builder = self.builder(Codec.GZIP, max_message_bytes=5000)
        builder.compression_ratio = 0.001
        for _ in range(500):
            add(builder, 100)
        found = drain(builder)
        assert max(counts(found)) * 100 < 5000

    @given(st.floats(0.001, 3), st.integers(62, 100_000))
    def test_what_fits_is_what_the_estimate_says(self, ratio: float, batch_bytes: int) -> None:
        """Kafka's estimate: the size before compression, times the ratio, times 1.05."""
        builder = self.builder(Codec.ZSTD, batch_bytes=batch_bytes)
        builder.compression_ratio = ratio
        for limit, payload in (
            (batch_bytes, builder._payload_max),
            (batch_bytes - 1, builder._full_bytes - 1),
        ):
            assert 61 + int(payload * ratio * 1.05) <= limit or payload == 1_048_588 - 61
            if payload < 1_048_588 - 61:
                assert 61 + int((payload + 1) * ratio * 1.05) > limit


@pytest.mark.slow
@given(
    strategies.record_runs(count_max=15),
    st.integers(62, 400),
    st.sampled_from([Codec.NONE, Codec.LZ4]),
)
def test_nothing_is_lost_and_a_leader_accepts_it(
    drawn: list[Record], batch_bytes: int, codec: Codec
) -> None:
    builder = BatchBuilder(BuilderOptions(batch_bytes=batch_bytes, linger_ms=10, codec=codec))
    expected = []
    batches = []
    for index, one in enumerate(drawn):
        timestamp = NOW_MS + abs(one.timestamp) % 1000
        expected.append(one._replace(offset=index, timestamp=timestamp))
        builder.add(one.key, one.value, timestamp, one.headers, NOW_MS + index)
        batches += drain(builder, NOW_MS + index)
    batches += drain(builder)
    group = LeaderValidator(compiled=False).validate_group(
        batches, AppendRules(), Assignment(0, 0, NOW_MS)
    )
    assert len(group.accepted) == len(batches)
    assert records_of([bytes(append.data) for append in group.accepted]) == expected
    if codec is Codec.NONE:
        sizes = zip(batches, counts(batches), strict=True)
        assert all(len(data) <= batch_bytes for data, count in sizes if count > 1)


@pytest.mark.slow
@given(
    drawn=strategies.record_runs(count_max=40),
    codec=st.sampled_from(Codec),
    producer=strategies.producers(),
    compiled=st.booleans(),
)
def test_batches_are_what_the_readable_encoder_makes(
    drawn: list[Record], codec: Codec, producer: tuple[int, int, int], *, compiled: bool
) -> None:
    """Byte for byte, with and without the kernel."""
    records = [
        record._replace(offset=index, timestamp=record.timestamp & (1 << 63) - 1)
        for index, record in enumerate(drawn)
    ]
    producer_id, producer_epoch, base_sequence = producer
    fields = BatchFields(
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=producer_id >= 0,
    )
    options = BuilderOptions(batch_bytes=1 << 30, max_message_bytes=1 << 30, codec=codec)
    builder = BatchBuilder(options)
    for record in records:
        builder.add(record.key, record.value, record.timestamp, record.headers, NOW_MS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "KERNEL_RECORDS_MIN", 0 if compiled else 1 << 30)
        patch.setattr(module, "LOAD_KERNEL_AFTER_RECORDS", 0)
        patch.setattr(module.LoadedEncoder, "records_left", -1)
        (data,) = drain(builder, fields=fields)
    assert data == encode_batch(records, fields)
    if codec is Codec.NONE:
        assert len(data) == 61 + sum_of_sizes(records)


def sum_of_sizes(records: list[Record]) -> int:
    """As the builder counts them before they are encoded."""
    builder = BatchBuilder(BuilderOptions(batch_bytes=1 << 30, max_message_bytes=1 << 30))
    for record in records:
        batch = builder.add(record.key, record.value, record.timestamp, record.headers, NOW_MS)
    return batch.payload_bytes
