from __future__ import annotations

import pytest

from stratalog.errors import CorruptBatchError
from stratalog.format import batch
from stratalog.format.batch import (
    HEADER_BYTES,
    BatchHeader,
    Codec,
    Entry,
    TimestampType,
    advance_sequence,
    attributes_of,
    check_crc,
    is_crc_valid,
    next_entry,
    read_header,
)

# Two records: one with a header, one tombstone.
DATA = bytes.fromhex(
    "0000000000000000"  # base offset
    "00000046"  # length 70
    "00000000"  # leader epoch
    "02"  # magic
    "98946281"  # CRC
    "0000"  # attributes
    "00000001"  # last offset delta
    "00000000000003e8"  # base timestamp 1000
    "00000000000003ed"  # max timestamp 1005
    "ffffffffffffffff"  # producer id
    "ffff"  # producer epoch
    "ffffffff"  # base sequence
    "00000002"  # record count
    "18000000026b02760202680278"
    "0e000a02026b0100"
)
HEADER = BatchHeader(
    base_offset=0,
    batch_length=70,
    partition_leader_epoch=0,
    magic=2,
    crc=0x98946281,
    attributes=0,
    last_offset_delta=1,
    base_timestamp=1000,
    max_timestamp=1005,
    producer_id=-1,
    producer_epoch=-1,
    base_sequence=-1,
    record_count=2,
)
PLAIN_MESSAGE = bytes.fromhex(
    "0000000000000003"  # offset
    "0000000e"  # length 14: the smallest message there is
    "00000000" + "00" + "00" + "ffffffff" + "ffffffff"
)


def with_bytes(raw: bytes, at: int, patch: str) -> bytes:
    patched = bytes.fromhex(patch)
    return raw[:at] + patched + raw[at + len(patched) :]


def test_header_bytes() -> None:
    assert BatchHeader.unpack(DATA) == HEADER
    assert HEADER.pack() == DATA[:HEADER_BYTES]
    assert BatchHeader.unpack(b"???" + DATA, 3) == HEADER


@pytest.mark.parametrize(
    ("at", "field"),
    [
        (batch.BATCH_LENGTH_AT, "batch_length"),
        (batch.LEADER_EPOCH_AT, "partition_leader_epoch"),
        (batch.MAGIC_AT, "magic"),
        (batch.CRC_AT, "crc"),
        (batch.ATTRIBUTES_AT, "attributes"),
        (batch.LAST_OFFSET_DELTA_AT, "last_offset_delta"),
        (batch.BASE_TIMESTAMP_AT, "base_timestamp"),
        (batch.MAX_TIMESTAMP_AT, "max_timestamp"),
        (batch.PRODUCER_ID_AT, "producer_id"),
        (batch.PRODUCER_EPOCH_AT, "producer_epoch"),
        (batch.BASE_SEQUENCE_AT, "base_sequence"),
        (batch.RECORD_COUNT_AT, "record_count"),
    ],
)
def test_positions_are_those_of_the_header(at: int, field: str) -> None:
    zeros = BatchHeader(*[0] * len(BatchHeader._fields))
    ones = 0xFFFF_FFFF if field == "crc" else -1
    assert zeros._replace(**{field: ones}).pack().index(b"\xff") == at


def test_what_a_header_tells() -> None:
    header = HEADER._replace(base_offset=100, last_offset_delta=9)
    assert (header.size_bytes, header.last_offset, header.next_offset) == (82, 109, 110)
    assert header.codec_id == Codec.NONE
    assert header.timestamp_type is TimestampType.CREATE_TIME
    assert not header.is_transactional
    assert not header.is_control
    assert not header.has_producer
    assert header.delete_horizon_ms is None


@pytest.mark.parametrize(
    ("attributes", "told"),
    [
        (0x0001, {"codec_id": 1}),
        (0x0004, {"codec_id": 4}),
        (0x0007, {"codec_id": 7}),
        (0x0008, {"timestamp_type": TimestampType.LOG_APPEND_TIME}),
        (0x0010, {"is_transactional": True, "is_control": False}),
        (0x0020, {"is_transactional": False, "is_control": True}),
        (0x0030, {"is_transactional": True, "is_control": True}),
        (0x0040, {"delete_horizon_ms": 1000}),
    ],
)
def test_attribute_bits(attributes: int, told: dict[str, object]) -> None:
    header = HEADER._replace(attributes=attributes)
    assert {name: getattr(header, name) for name in told} == told


@pytest.mark.parametrize(
    ("attributes", "bits"),
    [
        (attributes_of(), 0),
        (attributes_of(codec=Codec.LZ4), 0x03),
        (attributes_of(timestamp_type=TimestampType.LOG_APPEND_TIME), 0x08),
        (attributes_of(is_transactional=True, is_control=True), 0x30),
        (attributes_of(codec=Codec.ZSTD, has_delete_horizon=True), 0x44),
    ],
)
def test_attributes_of(attributes: int, bits: int) -> None:
    assert attributes == bits


@pytest.mark.parametrize(
    ("sequence", "by", "then"),
    [
        (0, 0, 0),
        (5, 3, 8),
        (2147483647, 0, 2147483647),
        (2147483647, 1, 0),
        (2147483646, 3, 1),
        (2147483647, 2147483647, 2147483646),
    ],
)
def test_sequences_wrap_to_zero(sequence: int, by: int, then: int) -> None:
    assert advance_sequence(sequence, by) == then


def test_last_sequence() -> None:
    header = HEADER._replace(base_sequence=2147483646, last_offset_delta=4)
    assert header.last_sequence == 2
    assert header.sequence_of(header.base_offset + 1) == 2147483647
    assert HEADER.last_sequence == -1
    assert HEADER.sequence_of(1) == -1


@pytest.mark.parametrize(
    ("timestamp_type", "name"),
    [
        (TimestampType.NO_TIMESTAMP, "NoTimestampType"),
        (TimestampType.CREATE_TIME, "CreateTime"),
        (TimestampType.LOG_APPEND_TIME, "LogAppendTime"),
    ],
)
def test_kafka_names_of_timestamp_types(timestamp_type: TimestampType, name: str) -> None:
    assert timestamp_type.kafka_name == name


def test_walk() -> None:
    raw = DATA + PLAIN_MESSAGE + DATA
    first = next_entry(raw, 0)
    assert first == Entry(position=0, offset=0, size_bytes=82, magic=2)
    second = next_entry(raw, first.end)
    assert second == Entry(position=82, offset=3, size_bytes=26, magic=0)
    third = next_entry(raw, second.end)
    assert third == Entry(position=108, offset=0, size_bytes=82, magic=2)
    assert next_entry(raw, third.end) is None


@pytest.mark.parametrize("kept", range(82))
def test_a_batch_cut_anywhere_is_no_entry_yet(kept: int) -> None:
    assert next_entry(DATA[:kept], 0) is None
    assert next_entry(DATA, 0, kept) is None
    assert next_entry(DATA[:kept], 0, 82) is None


@pytest.mark.parametrize("length", ["00000000", "0000000d", "ffffffff", "80000000"])
def test_a_length_no_message_can_have(length: str) -> None:
    raw = with_bytes(DATA, 8, length)
    with pytest.raises(CorruptBatchError, match="invalid batch length") as caught:
        next_entry(b"??" + raw, 2)
    assert caught.value.position == 2


def test_seventeen_bytes_or_fewer_are_a_torn_tail_whatever_they_say() -> None:
    assert next_entry(bytes(17), 0) is None
    with pytest.raises(CorruptBatchError):
        next_entry(bytes(18), 0)


def test_a_huge_length_is_a_torn_tail() -> None:
    assert next_entry(with_bytes(DATA, 8, "7fffffff"), 0) is None


def test_the_walk_does_not_judge_the_magic() -> None:
    entry = next_entry(with_bytes(DATA, 16, "ff"), 0)
    assert entry is not None
    assert entry.magic == 255


def test_read_header() -> None:
    assert read_header(DATA, 0) == HEADER
    assert read_header(memoryview(b"?" + DATA), 1) == HEADER


@pytest.mark.parametrize(
    ("at", "patch", "reason"),
    [
        pytest.param(16, "01", "magic is 1", id="older magic"),
        pytest.param(16, "03", "magic is 3", id="newer magic"),
        pytest.param(8, "00000030", "smaller than its header", id="length 48 of 49"),
        pytest.param(57, "ffffffff", "invalid record count -1", id="negative count"),
        pytest.param(0, "ff", "invalid offsets", id="negative base offset"),
        pytest.param(23, "ff", "invalid offsets", id="negative last offset delta"),
        pytest.param(0, "7fffffffffffffff", "invalid offsets", id="last offset beyond 63 bits"),
    ],
)
def test_a_header_that_cannot_be(at: int, patch: str, reason: str) -> None:
    with pytest.raises(CorruptBatchError, match=reason) as caught:
        read_header(b"???" + with_bytes(DATA, at, patch), 3)
    assert caught.value.position == 3


@pytest.mark.parametrize("kept", [0, 16, 17, 60])
def test_a_header_cut_short(kept: int) -> None:
    with pytest.raises(CorruptBatchError, match="too few"):
        read_header(DATA[:kept], 0)
    with pytest.raises(CorruptBatchError, match="too few"):
        read_header(DATA, 0, kept)


def test_crc_covers_attributes_to_end_and_nothing_before() -> None:
    for at in range(len(DATA)):
        raw = with_bytes(DATA, at, f"{DATA[at] ^ 0x10:02x}")
        assert is_crc_valid(raw, 0, HEADER) is (at < 21), at


def test_check_crc_tells_both_sums_and_where() -> None:
    check_crc(DATA, 0, HEADER)
    raw = b"??" + with_bytes(DATA, 81, "01")
    with pytest.raises(CorruptBatchError, match="98946281") as caught:
        check_crc(raw, 2, HEADER)
    assert caught.value.position == 2
    assert caught.value.offsets == (0, 1)
