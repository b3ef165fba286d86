from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given, settings

from stratalog.errors import CorruptRecordError, LimitExceededError, UnsupportedError
from stratalog.format.batch import BatchHeader, Codec, TimestampType, is_crc_valid, read_header
from stratalog.format.record import (
    BatchFields,
    Header,
    Record,
    decode_records,
    encode_batch,
    encode_empty_batch,
    seal_batch,
)
from tests.effort import scaled
from tests.strategies import GeneratedBatch, batches

TEMPLATE = BatchHeader(
    base_offset=50,
    batch_length=0,
    partition_leader_epoch=0,
    magic=2,
    crc=0,
    attributes=0,
    last_offset_delta=0,
    base_timestamp=1000,
    max_timestamp=2000,
    producer_id=-1,
    producer_epoch=-1,
    base_sequence=-1,
    record_count=1,
)
DATA = bytes.fromhex(
    "0000000000000000000000460000000002989462810000000000010000000000"
    "0003e800000000000003edffffffffffffffffffffffffffff00000002"
    "18000000026b02760202680278"
    "0e000a02026b0100"
)
DATA_RECORDS = [
    Record(0, 1000, b"k", b"v", (Header("h", b"x"),)),
    Record(1, 1005, b"k", None),
]


def batch_of(payload: str, **fields: int) -> bytes:
    return seal_batch(TEMPLATE._replace(**fields), bytes.fromhex(payload))


def decode(raw: bytes, **options: int) -> list[Record]:
    header = read_header(raw, 0)
    assert is_crc_valid(raw, 0, header)
    return list(decode_records(raw, 0, header, **options))


def test_batch_bytes() -> None:
    assert encode_batch(DATA_RECORDS, BatchFields(partition_leader_epoch=0)) == DATA
    assert decode(DATA) == DATA_RECORDS


def test_a_batch_in_the_middle_of_a_buffer() -> None:
    header = read_header(DATA, 0)
    assert list(decode_records(memoryview(b"???" + DATA + b"???"), 3, header)) == DATA_RECORDS


RECORDS = [
    pytest.param("0c00000001" + "0100", Record(50, 1000, None, None), id="all null"),
    pytest.param("0c00000000" + "0000", Record(50, 1000, b"", b""), id="empty is not null"),
    pytest.param("0c000100" + "010100", Record(50, 999, None, None), id="timestamp before base"),
    pytest.param("0c000006" + "010100", Record(53, 1000, None, None), id="offset delta 3"),
    pytest.param(
        "10" + "00" + "f0a204" + "00" + "010100", Record(50, 36_000, None, None), id="3-byte delta"
    ),
    pytest.param(
        "1c" + "00000001" + "01" + "04" + "0261" + "0278" + "0261" + "01",
        Record(50, 1000, None, None, (Header("a", b"x"), Header("a", None))),
        id="headers repeat, one null",
    ),
    pytest.param(
        "12" + "00000001" + "01" + "02" + "00" + "00",
        Record(50, 1000, None, None, (Header("", b""),)),
        id="header of nothing",
    ),
    pytest.param(
        "1a" + "00000001" + "01" + "02" + "08" + "f09f9982" + "01",
        Record(50, 1000, None, None, (Header("🙂", None),)),
        id="header key in four bytes of utf-8",
    ),
]


def fix_length(payload: str) -> str:
    """The payload with its first byte, the body length, made right."""
    body = payload[2:]
    return f"{len(body):02x}" + body  # zig-zag doubles the byte count, which is the digit count


@pytest.mark.parametrize(("payload", "record"), RECORDS)
def test_record_bytes(payload: str, record: Record) -> None:
    first = Record(50, 1000, None, None)  # whose timestamp is the batch's base
    raw = batch_of("0c000000010100" + fix_length(payload), last_offset_delta=5, record_count=2)
    fields = BatchFields(partition_leader_epoch=0, last_offset=55, max_timestamp=2000)
    assert encode_batch([first, record], fields) == raw
    assert decode(raw) == [first, record]


def test_negative_lengths_other_than_minus_one_are_null_as_in_java() -> None:
    assert decode(batch_of(fix_length("000000" + "00" + "03" + "05" + "00"))) == [
        Record(50, 1000, None, None)
    ]


def test_header_keys_that_are_not_utf8_do_not_fail() -> None:
    payload = fix_length("00" + "000000" + "01" + "01" + "02" + "04" + "c328" + "01")
    assert decode(batch_of(payload))[0].headers == (Header("\ufffd(", None),)


def test_record_attributes_are_ignored() -> None:
    assert decode(batch_of(fix_length("00" + "7f" + "0000" + "010100"))) == [
        Record(50, 1000, None, None)
    ]


def test_log_append_time_goes_to_every_record() -> None:
    raw = batch_of("0c000a00010100" + "0c001402010100", attributes=8, record_count=2)
    assert decode(raw) == [
        Record(50, 2000, None, None, timestamp_type=TimestampType.LOG_APPEND_TIME),
        Record(51, 2000, None, None, timestamp_type=TimestampType.LOG_APPEND_TIME),
    ]


def test_delete_horizon_replaces_the_base_of_timestamps() -> None:
    record = Record(50, 1000, b"k", None)
    raw = encode_batch([record], BatchFields(delete_horizon_ms=1_000_000))
    header = read_header(raw, 0)
    assert header.attributes == 0x40
    assert header.base_timestamp == header.delete_horizon_ms == 1_000_000
    assert header.max_timestamp == 1000
    assert raw[61:].hex() == "12" + "00" + "aff979" + "00" + "026b" + "01" + "00"  # delta -999000
    assert decode(raw) == [record]


def test_timestamps_wrap_around_as_java_longs_do() -> None:
    payload = "0c" + "00" + "02" + "00" + "010100"  # timestamp delta 1
    assert decode(batch_of(payload, base_timestamp=(1 << 63) - 1)) == [
        Record(50, -(1 << 63), None, None)
    ]
    far_apart = [Record(0, -(1 << 63), None, None), Record(1, (1 << 63) - 1, None, None)]
    assert decode(encode_batch(far_apart)) == far_apart


def test_an_offset_past_63_bits_wraps_around_too() -> None:
    raw = batch_of("0c" + "0000" + "02" + "010100", base_offset=(1 << 63) - 1)
    assert decode(raw) == [Record(-(1 << 63), 1000, None, None)]


def test_compacted_batch_keeps_its_range_and_its_holes() -> None:
    fields = BatchFields(base_offset=10, last_offset=29, base_sequence=7, producer_id=1)
    raw = encode_batch([Record(15, 1, b"a", b"1"), Record(22, 2, b"b", b"2")], fields)
    header = read_header(raw, 0)
    assert (header.base_offset, header.last_offset, header.record_count) == (10, 29, 2)
    assert header.sequence_of(15) == 12
    assert [record.offset for record in decode(raw)] == [15, 22]


def test_offsets_outside_the_batch_are_refused() -> None:
    record = Record(15, 1, b"a", b"1")
    with pytest.raises(ValueError, match="outside the batch"):
        encode_batch([record], BatchFields(base_offset=16))
    with pytest.raises(ValueError, match="outside the batch"):
        encode_batch([record], BatchFields(last_offset=14))
    with pytest.raises(LimitExceededError, match="do not fit"):
        encode_batch([record], BatchFields(last_offset=15 + (1 << 31)))


def test_empty_batch_keeps_what_its_producer_needs() -> None:
    fields = BatchFields(
        codec=Codec.LZ4,
        is_transactional=True,
        delete_horizon_ms=77,
        partition_leader_epoch=3,
        producer_id=1001,
        producer_epoch=2,
        base_sequence=40,
    )
    full = encode_batch([Record(7, 500, b"k", b"v"), Record(9, 600, b"k", b"w")], fields)
    raw = encode_empty_batch(read_header(full, 0))
    assert raw.hex() == (
        "0000000000000007" + "00000031" + "00000003" + "02" + raw[17:21].hex() + "0010"
        "00000002" + "ffffffffffffffff" + "0000000000000258"
        "00000000000003e9" + "0002" + "00000028" + "00000000"
    )
    assert decode(raw) == []


def test_no_records_declared_is_no_records_whatever_follows() -> None:
    assert decode(batch_of("deadbeef", record_count=0, attributes=7)) == []


WRONG_PAYLOADS = [
    pytest.param("", 1, "cannot fit 0 bytes", id="no payload"),
    pytest.param("0c000000010100", 2, "cannot fit 7 bytes", id="count too high"),
    pytest.param("0c000000010100" * 2, 1, "7 bytes left", id="count too low"),
    pytest.param("0a0000000101" + "00", 1, "invalid record length 5", id="body below the minimum"),
    pytest.param("01000000010100", 1, "invalid record length -1", id="negative body length"),
    pytest.param("0e000000010100", 1, "invalid record length 7", id="body beyond the payload"),
    pytest.param("0e00000001010000", 1, "ends 1 bytes early", id="body longer than its fields"),
    pytest.param("0c000000020100", 1, "runs past the end", id="key eats the rest"),
    pytest.param("0c000000100100", 1, "field of 8 bytes exceeds", id="key beyond the record"),
    pytest.param("0c000000010101", 1, "invalid header count -1", id="negative header count"),
    pytest.param("0c000000010102", 1, "invalid header count 1", id="more headers than bytes"),
    pytest.param("10000000010102" + "0101", 1, "header key is null", id="null header key"),
    pytest.param("ffffffff7f000000010100", 1, "invalid record length", id="largest body length"),
    pytest.param("808080808001" + "00", 1, "longer than 5 bytes", id="endless body length"),
]


@pytest.mark.parametrize(("payload", "count", "reason"), WRONG_PAYLOADS)
def test_payloads_that_break_a_rule(payload: str, count: int, reason: str) -> None:
    raw = batch_of(payload, record_count=count, last_offset_delta=4)
    with pytest.raises(CorruptRecordError, match=reason) as caught:
        list(decode_records(b"??" + raw, 2, read_header(raw, 0)))
    assert caught.value.position == 2
    assert caught.value.offsets == (50, 54)


def test_a_count_of_billions_costs_nothing() -> None:
    raw = batch_of("0c000000010100", record_count=(1 << 31) - 1)
    with pytest.raises(CorruptRecordError, match="cannot fit"):
        decode(raw)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_garbage_instead_of_a_compressed_stream(codec: Codec) -> None:
    with pytest.raises(CorruptRecordError, match=r"\(offset 50\)"):
        decode(batch_of("deadbeef" * 8, attributes=codec))


@pytest.mark.parametrize("codec_id", [5, 6, 7])
def test_a_codec_that_does_not_exist(codec_id: int) -> None:
    with pytest.raises(UnsupportedError, match=r"at byte 0 \(offset 50\): unknown codec id"):
        decode(batch_of("deadbeef", attributes=codec_id))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_decompressed_size_is_bounded(codec: Codec) -> None:
    raw = encode_batch([Record(0, 0, None, bytes(1 << 20))], BatchFields(codec=codec))
    assert len(raw) < 100_000
    with pytest.raises(LimitExceededError, match=r"at byte 0 \(offset 0\)"):
        decode(raw, decompressed_bytes_max=1 << 16)
    assert len(decode(raw, decompressed_bytes_max=2 << 20)) == 1


@pytest.mark.parametrize("codec", list(Codec))
def test_another_implementation_reads_what_is_written(codec: Codec) -> None:
    written = [
        Record(100, 1_700_000_000_000, b"a", b"", (Header("h", b"x"), Header("h", None))),
        Record(101, 1_699_999_999_000, None, b"v" * 200),
        Record(103, 1_700_000_000_050, b"", None, (Header("h", b""),)),
    ]
    fields = BatchFields(codec=codec, producer_id=9, producer_epoch=1, base_sequence=3)
    batch = DefaultRecordBatch(bytearray(encode_batch(written, fields)))
    assert batch.validate_crc()
    assert (batch.base_offset, batch.producer_id, batch.base_sequence) == (100, 9, 3)
    read = [
        Record(r.offset, r.timestamp, r.key, r.value, tuple(Header(*pair) for pair in r.headers))
        for r in batch
    ]
    assert read == written


@pytest.mark.slow
@settings(max_examples=scaled(60))
@given(batches())
def test_every_batch_comes_back(batch: GeneratedBatch) -> None:
    assert decode(batch.raw) == list(batch.records)
    assert batch.header.last_offset == batch.last_offset
