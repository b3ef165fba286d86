from __future__ import annotations

import gzip
import struct
import zlib

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatch
from hypothesis import given, settings

from stratalog.errors import (
    CorruptBatchError,
    CorruptRecordError,
    LimitExceededError,
    UnsupportedError,
)
from stratalog.format.batch import Codec, TimestampType, next_entry
from stratalog.format.legacy import (
    LegacyHeader,
    check_legacy_crc,
    encode_legacy,
    encode_message,
    is_legacy_crc_valid,
    read_legacy_header,
)
from stratalog.format.log_entry import records_of
from stratalog.format.record import Record
from tests.strategies import GeneratedBatch, legacy_sets

NO_TIME = TimestampType.NO_TIMESTAMP
CREATE = TimestampType.CREATE_TIME
APPEND = TimestampType.LOG_APPEND_TIME

# Written by a Kafka 0.9.0.1 broker (magic 0) and by Kafka 4.0's storage classes (magic 1).
MESSAGES = [
    pytest.param(
        "0000000000000002" + "0000000e" + "a7ec6803" + "00" + "00" + "ffffffff" + "ffffffff",
        Record(2, -1, None, None, timestamp_type=NO_TIME),
        id="magic 0, all null",
    ),
    pytest.param(
        "0000000000000006" + "0000001f" + "f6c557e2" + "00" + "00"
        "00000005" + "6b30303036" + "0000000c" + "76303030362d2a2b2c2d2e2f",
        Record(6, -1, b"k0006", b"v0006-*+,-./", timestamp_type=NO_TIME),
        id="magic 0",
    ),
    pytest.param(
        "0000000000000011" + "00000016" + "ce645f8e" + "01" + "00" + "0000015d3ef798a7"
        "ffffffff" + "00000000",
        Record(17, 1500000000167, None, b"", timestamp_type=CREATE),
        id="magic 1, null key, empty value",
    ),
    pytest.param(
        "000000000000001b" + "00000018" + "cf0c8edd" + "01" + "08" + "0000015d3f03732e"
        "00000002" + "6b31" + "ffffffff",
        Record(27, 1500000777006, b"k1", None, timestamp_type=APPEND),
        id="magic 1, LogAppendTime, tombstone",
    ),
]

COMPRESSED = [
    pytest.param(
        "00000000000000060000004aa771f49f0002ffffffff0000003c82534e4150505900000000010000000100000028"
        "2b0000090120060000001ff6c557e2050f54056b303030360000000c76303030362d2a2b2c2d2e2f",
        Record(6, -1, b"k0006", b"v0006-*+,-./", timestamp_type=NO_TIME),
        id="magic 0, snappy, by a 0.9.0.1 broker",
    ),
    pytest.param(
        "0000000000000000000000463d1666090003ffffffff0000003804224d1860401a29000000160001005124a565"
        "170a0f00f00c026b30000000147b226964223a302c2275736572223a227530222c00000000",
        Record(0, -1, b"k0", b'{"id":0,"user":"u0",', timestamp_type=NO_TIME),
        id="magic 0, lz4 with the old header checksum",
    ),
    pytest.param(
        "000000000000000000000057e77c31ad01030000015d3ef79800ffffffff0000004104224d1860408232000000"
        "16000100e02c8f74110901000000015d3ef7981800f00c026b30000000147b226964223a302c22757365"
        "72223a227530222c00000000",
        Record(0, 1500000000000, b"k0", b'{"id":0,"user":"u0",'),
        id="magic 1, lz4",
    ),
    pytest.param(
        "0000000000000000000000563487ace801010000015d3ef79800ffffffff000000401f8b08000000000000ff63"
        "6080039dfe12414e46208331d6eefb0c900853b6019014a956ca4c51b232d0512a2d4e2d52b2522a3550d201"
        "009b77cffb38000000",
        Record(0, 1500000000000, b"k0", b'{"id":0,"user":"u0",'),
        id="magic 1, gzip",
    ),
]


def field(value: bytes | None) -> bytes:
    return b"\xff\xff\xff\xff" if value is None else struct.pack(">i", len(value)) + value


def message(
    offset: int,
    value: bytes | None,
    *,
    magic: int = 1,
    attributes: int = 0,
    timestamp: int = 0,
) -> bytes:
    """One entry without a key, put together here and not by the code under test."""
    time = struct.pack(">q", timestamp) if magic == 1 else b""
    body = bytes([magic, attributes]) + time + field(None) + field(value)
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


def gzipped(*inner: bytes) -> bytes:
    return gzip.compress(b"".join(inner), mtime=0)


def decode(raw: bytes, *, check_crc: bool = True) -> list[Record]:
    records: list[Record] = []
    at = 0
    while (entry := next_entry(raw, at)) is not None:
        records.extend(records_of(raw, entry, check_crc=check_crc))
        at = entry.end
    assert at == len(raw)
    return records


@pytest.mark.parametrize(("raw", "record"), MESSAGES)
def test_message_bytes(raw: str, record: Record) -> None:
    magic = int(raw[32:34])
    assert encode_message(record, magic) == bytes.fromhex(raw)
    assert decode(bytes.fromhex(raw)) == [record]


@pytest.mark.parametrize(("raw", "record"), COMPRESSED)
def test_compressed_sets_of_real_writers(raw: str, record: Record) -> None:
    assert decode(bytes.fromhex(raw)) == [record]


def test_old_lz4_sets_are_written_with_the_old_checksum() -> None:
    old, new = (
        encode_legacy([Record(0, -1, None, b"v", timestamp_type=kind)], magic, codec=Codec.LZ4)
        for magic, kind in ((0, NO_TIME), (1, CREATE))
    )
    assert bytes.fromhex("04224d1860401a") in old
    assert bytes.fromhex("04224d18604082") in new


def test_header_of_a_plain_message() -> None:
    raw = message(9, b"v", timestamp=1234)
    header = read_legacy_header(raw, 0)
    assert header == LegacyHeader(9, 23, zlib.crc32(raw[16:]), 1, 0, 1234)
    assert header.pack() == raw[:26]
    assert (header.base_offset, header.last_offset, header.next_offset) == (9, 9, 10)
    assert (header.size_bytes, header.record_count, header.max_timestamp) == (35, 1, 1234)
    assert header.timestamp_type is CREATE
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert (header.last_sequence, header.sequence_of(9)) == (-1, -1)
    assert header.partition_leader_epoch == -1
    assert (header.is_control, header.is_transactional, header.has_producer) == (False,) * 3
    assert header.delete_horizon_ms is None


def test_header_of_a_magic_0_message() -> None:
    raw = message(9, b"v", magic=0, attributes=8)
    header = read_legacy_header(b"??" + raw, 2)
    assert header.pack() == raw[:18]
    assert header.max_timestamp == -1
    assert header.timestamp_type is NO_TIME  # the bit means nothing before magic 1


def test_header_of_a_set_does_not_know_where_it_begins() -> None:
    header = read_legacy_header(message(9, gzipped(message(0, b"v")), attributes=9), 0)
    assert header.base_offset is None
    assert header.record_count is None
    assert header.codec_id == Codec.GZIP
    assert header.timestamp_type is APPEND


def test_magic_1_inner_offsets_are_relative_to_the_last() -> None:
    inner = [message(at, b"%d" % at) for at in (0, 1, 4)]
    read = decode(message(104, gzipped(*inner), attributes=1))
    assert [(record.offset, record.value) for record in read] == [
        (100, b"0"),
        (101, b"1"),
        (104, b"4"),
    ]


def test_magic_1_wrapper_offset_0_leaves_inner_offsets_alone() -> None:
    inner = [message(at, b"") for at in (0, 1, 2)]
    read = decode(message(0, gzipped(*inner), attributes=1))
    assert [record.offset for record in read] == [0, 1, 2]


def test_magic_1_wrapper_offset_below_the_last_inner_one() -> None:
    inner = [message(at, b"") for at in (0, 1, 2)]
    with pytest.raises(CorruptRecordError, match="wrapper offset 1 is below") as caught:
        decode(message(1, gzipped(*inner), attributes=1))
    assert caught.value.offsets == (1, 1)


def test_magic_0_inner_offsets_are_absolute() -> None:
    inner = [message(at, b"", magic=0) for at in (40, 42, 47)]
    read = decode(message(47, gzipped(*inner), magic=0, attributes=1))
    assert [record.offset for record in read] == [40, 42, 47]


def test_create_time_wrapper_leaves_inner_timestamps_alone() -> None:
    inner = [message(0, b"", timestamp=5), message(1, b"", timestamp=3)]
    read = decode(message(1, gzipped(*inner), attributes=1, timestamp=5))
    assert [(record.timestamp, record.timestamp_type) for record in read] == [
        (5, CREATE),
        (3, CREATE),
    ]


def test_log_append_time_wrapper_gives_its_timestamp_to_all() -> None:
    inner = [message(0, b"", timestamp=5), message(1, b"", timestamp=3)]
    read = decode(message(1, gzipped(*inner), attributes=9, timestamp=99))
    assert [(record.timestamp, record.timestamp_type) for record in read] == [
        (99, APPEND),
        (99, APPEND),
    ]


def test_inner_timestamp_type_is_the_wrappers() -> None:
    inner = message(0, b"", timestamp=5, attributes=8)
    (record,) = decode(message(0, gzipped(inner), attributes=1, timestamp=5))
    assert (record.timestamp, record.timestamp_type) == (5, CREATE)


def test_inner_messages_of_the_other_magic_are_read_by_their_own() -> None:
    """Brokers refuse such sets when appending; Kafka's readers take them."""
    older = decode(message(31, gzipped(message(0, b"a", magic=0), message(1, b"b")), attributes=9))
    assert [(r.offset, r.timestamp, r.timestamp_type) for r in older] == [
        (30, -1, NO_TIME),
        (31, 0, APPEND),
    ]
    newer = decode(message(31, gzipped(message(31, b"a", timestamp=7)), magic=0, attributes=1))
    assert [(r.offset, r.timestamp, r.timestamp_type) for r in newer] == [(31, 7, NO_TIME)]


def test_an_inner_message_cut_short_ends_the_set() -> None:
    inner = message(0, b"a") + message(1, b"b")[:-1]
    read = decode(message(7, gzip.compress(inner, mtime=0), attributes=1))
    assert [(record.offset, record.value) for record in read] == [(7, b"a")]


WRONG_SETS = [
    pytest.param(message(1, None, attributes=1), "set is null", id="null"),
    pytest.param(message(1, gzipped(b""), attributes=1), "no messages", id="empty"),
    pytest.param(
        message(1, gzipped(message(0, b"")[:11]), attributes=1), "no messages", id="only a stump"
    ),
    pytest.param(message(1, b"junk", attributes=1), "gzip", id="not compressed"),
    pytest.param(message(1, b"junk", attributes=4), "zstd is not legal", id="zstd"),
    pytest.param(
        message(1, gzipped(message(0, gzipped(message(0, b"")), attributes=1)), attributes=1),
        "inside a compressed set",
        id="nested",
    ),
    pytest.param(
        message(1, gzipped(struct.pack(">qi", 0, 13) + bytes(13)), attributes=1),
        "invalid inner message length 13",
        id="inner length too small",
    ),
    pytest.param(
        message(1, gzipped(struct.pack(">qi", 0, -1) + bytes(14)), attributes=1),
        "invalid inner message length -1",
        id="inner length negative",
    ),
    pytest.param(
        message(1, gzipped(message(0, b"", magic=2)), attributes=1),
        "magic is 2",
        id="inner magic 2",
    ),
    pytest.param(
        message(1, gzipped(message(0, b"v")[:-1] + b"w"), attributes=1),
        "CRC mismatch",
        id="inner CRC",
    ),
]


@pytest.mark.parametrize(("raw", "reason"), WRONG_SETS)
def test_sets_that_break_a_rule(raw: bytes, reason: str) -> None:
    entry = next_entry(b"??" + raw, 2)
    assert entry is not None
    with pytest.raises(CorruptRecordError, match=reason) as caught:
        list(records_of(b"??" + raw, entry))
    assert caught.value.position == 2


def test_inner_crc_is_only_checked_on_request() -> None:
    raw = message(0, gzipped(message(0, b"v")[:-1] + b"w"), attributes=1)
    assert [record.value for record in decode(raw, check_crc=False)] == [b"w"]


@pytest.mark.parametrize("codec_id", [5, 6, 7])
def test_a_codec_that_does_not_exist(codec_id: int) -> None:
    with pytest.raises(UnsupportedError, match=r"at byte 0 \(offset 0\): unknown codec id"):
        decode(message(0, b"junk", attributes=codec_id))


def test_decompressed_size_is_bounded() -> None:
    raw = encode_legacy([Record(0, 0, None, bytes(1 << 20))], 1, codec=Codec.GZIP)
    entry = next_entry(raw, 0)
    assert entry is not None
    with pytest.raises(LimitExceededError, match=r"at byte 0 \(offset 0\)"):
        list(records_of(raw, entry, decompressed_bytes_max=1 << 16))


def resealed(raw: bytes) -> bytes:
    return raw[:12] + struct.pack(">I", zlib.crc32(raw[16:])) + raw[16:]


@pytest.mark.parametrize(
    ("at", "patch", "reason"),
    [
        pytest.param(26, "00000003", "ends before", id="key eats the value length"),
        pytest.param(26, "00000006", "field of 6 bytes", id="key beyond the message"),
        pytest.param(26, "7fffffff", "field of 2147483647 bytes", id="key of 2 GiB"),
        pytest.param(30, "00000002", "field of 2 bytes", id="value beyond the message"),
    ],
)
def test_messages_that_break_a_rule(at: int, patch: str, reason: str) -> None:
    raw = bytearray(message(3, b"v"))
    raw[at : at + 4] = bytes.fromhex(patch)
    with pytest.raises(CorruptRecordError, match=reason):
        decode(resealed(bytes(raw)))


def test_negative_lengths_are_null_and_bytes_after_the_value_ignored_as_in_java() -> None:
    raw = bytearray(message(3, b"v"))
    raw[26:34] = bytes.fromhex("80000000" + "fffffffe")
    assert decode(resealed(bytes(raw))) == [Record(3, 0, None, None)]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        pytest.param(message(1, b"")[:25], "too few", id="cut in the smallest header"),
        pytest.param(message(1, b"")[:33], "too few", id="cut in a magic-1 header"),
        pytest.param(message(1, b"", magic=2), "magic is 2", id="magic 2"),
        pytest.param(message(1, b"", magic=255), "magic is 255", id="magic -1"),
        pytest.param(
            struct.pack(">qi", 1, 21) + message(1, b"")[12:],
            "invalid message length 21",
            id="length below 22",
        ),
        pytest.param(message(-1, b""), "offset is -1", id="negative offset"),
    ],
)
def test_headers_that_cannot_be(raw: bytes, reason: str) -> None:
    with pytest.raises(CorruptBatchError, match=reason) as caught:
        read_legacy_header(b"??" + raw, 2)
    assert caught.value.position == 2


def test_crc_covers_everything_from_the_magic_on() -> None:
    raw = message(3, b"value", timestamp=77)
    header = read_legacy_header(raw, 0)
    check_legacy_crc(raw, 0, header)
    for at in range(len(raw)):
        flipped = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
        assert is_legacy_crc_valid(flipped, 0, header) is (at < 16), at
    with pytest.raises(CorruptBatchError, match=f"{header.crc:08x}"):
        check_legacy_crc(raw[:-1] + b"?", 0, header)


def test_zstd_is_never_written() -> None:
    with pytest.raises(UnsupportedError, match="zstd"):
        encode_legacy([Record(0, 0, None, None)], 1, codec=Codec.ZSTD)


@pytest.mark.parametrize(
    ("magic", "codec"),
    [
        *((0, codec) for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY)),  # it refuses lz4 here
        *((1, codec) for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)),
    ],
)
def test_another_implementation_reads_what_is_written(magic: int, codec: Codec) -> None:
    kind = CREATE if magic else NO_TIME
    written = [
        Record(100, 50 if magic else -1, b"k", b"v" * 100, timestamp_type=kind),
        Record(103, 40 if magic else -1, None, None, timestamp_type=kind),
    ]
    raw = encode_legacy(written, magic, codec=codec)
    read: list[Record] = []
    at = 0
    while (entry := next_entry(raw, at)) is not None:
        batch = LegacyRecordBatch(bytearray(raw[at : entry.end]), magic)
        assert batch.validate_crc()
        read.extend(
            Record(r.offset, -1 if r.timestamp is None else r.timestamp, r.key, r.value, (), kind)
            for r in batch
        )
        at = entry.end
    assert read == written


@settings(max_examples=100)
@given(legacy_sets())
def test_every_set_comes_back(messages: GeneratedBatch) -> None:
    assert decode(messages.raw) == list(messages.records)
