from __future__ import annotations

import gc
import gzip
import random
from typing import TYPE_CHECKING, Any

import cramjam
import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.errors import (
    CorruptBatchError,
    CorruptError,
    CorruptRecordError,
    LimitExceededError,
    StratalogError,
    UnsupportedError,
)
from stratalog.format import columns
from stratalog.format.batch import BatchHeader, Codec, TimestampType, attributes_of
from stratalog.format.compression import compress
from stratalog.format.legacy import encode_legacy
from stratalog.format.record import (
    BatchFields,
    Header,
    Record,
    encode_batch,
    encode_empty_batch,
    seal_batch,
)
from tests.format.decoding import Decoded, decode_columns, decode_readably, guarded, records_in
from tests.golden.cases import GoldenCase, all_cases, log_dir_case
from tests.strategies import GeneratedLog, logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DATA = bytes.fromhex(
    "0000000000000000000000460000000002989462810000000000010000000000"
    "0003e800000000000003edffffffffffffffffffffffffffff00000002"
    "18000000026b027602026802780e000a02026b0100"
)
DATA_RECORDS = [
    Record(0, 1000, b"k", b"v", (Header("h", b"x"),)),
    Record(1, 1005, b"k", None),
]
MARKER = bytes.fromhex(
    "00000000000000070000004200000003021f3ca98a003000000000000000000000"
    "07d000000000000007d000000000000003e90000ffffffff00000001"
    "2000000008000000000c00000000000500"
)
ONE = BatchHeader.unpack(encode_batch([Record(50, 1000, None, None)]))


def one_record(body: str, **fields: int) -> bytes:
    """A batch at offset 50, time 1000, whose payload is these bytes."""
    return seal_batch(ONE._replace(**fields), bytes.fromhex(body))


def test_known_bytes() -> None:
    assert records_in(columns.decode(DATA)) == DATA_RECORDS
    assert columns.decode(DATA).schema.names == list(columns.RECORD_COLUMNS)


def test_control_batches_only_when_asked_for() -> None:
    assert records_in(columns.decode(DATA + MARKER)) == DATA_RECORDS
    marker = Record(7, 2000, bytes(4), bytes.fromhex("000000000005"))
    both = columns.decode(DATA + MARKER, include_control=True)
    assert records_in(both) == [*DATA_RECORDS, marker]


def test_schema() -> None:
    schema = columns.schema_of(columns.ALL_COLUMNS)
    assert {field.name: str(field.type) for field in schema} == {
        "offset": "int64",
        "timestamp": "timestamp[ms, tz=UTC]",
        "timestampType": "int32",
        "key": "binary",
        "value": "binary",
        "headers": "list<element: struct<key: string not null, value: binary> not null>",
        "producerId": "int64",
        "producerEpoch": "int16",
        "sequence": "int32",
        "partitionLeaderEpoch": "int32",
        "codec": "string",
        "isTransactional": "bool",
        "isControl": "bool",
        "baseOffset": "int64",
        "lastOffset": "int64",
        "batchPosition": "int64",
        "batchSize": "int32",
        "magic": "int8",
    }
    assert columns.decode(b"").schema == columns.schema_of()
    with pytest.raises(ValueError, match="no column is called keys"):
        columns.schema_of(["keys"])


@pytest.mark.parametrize("case", [*all_cases(), log_dir_case()], ids=str)
def test_golden_logs(case: GoldenCase) -> None:
    for directory in case.partition_dirs():
        for path in sorted(directory.glob("*.log")):
            raw = path.read_bytes()
            assert_same(decode_columns(raw), decode_readably(raw))


def assert_same(fast: Decoded, readable: Decoded) -> None:
    assert fast.records == readable.records
    assert fast.failure == readable.failure
    if isinstance(fast.error, CorruptRecordError):
        assert str(fast.error) == str(readable.error)


@given(log=logs(legacy=True), part_bytes=st.sampled_from([1, 200, 1 << 20]))
@settings(max_examples=150, deadline=None)
def test_gives_what_was_put_in(log: GeneratedLog, part_bytes: int) -> None:
    decoded = decode_columns(guarded(log.raw), part_bytes=part_bytes)
    assert decoded.error is None
    assert decoded.records == list(log.records)


@pytest.mark.parametrize("codec", list(Codec))
def test_plain_batch_larger_than_a_part_after_a_small_one(codec: Codec) -> None:
    small, large = Record(0, 1000, b"k", b"v"), Record(1, 1000, b"k", bytes(1000))
    raw = encode_batch([small], BatchFields(codec=codec)) + encode_batch([large])
    assert decode_columns(guarded(raw), part_bytes=500) == Decoded([small, large], None)


@given(log=logs(legacy=True), data=st.data())
@settings(max_examples=100, deadline=None)
def test_fewer_columns_are_the_same_columns(log: GeneratedLog, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(columns.ALL_COLUMNS), unique=True, min_size=1))
    full = columns.decode(log.raw, columns=columns.ALL_COLUMNS, include_control=True)
    pruned = columns.decode(log.raw, columns=names, include_control=True)
    assert pruned.equals(full.select(names))


@given(log=logs())
@settings(max_examples=100, deadline=None)
def test_batch_facts(log: GeneratedLog) -> None:
    decoded = columns.decode(log.raw, columns=columns.ALL_COLUMNS, include_control=True)
    expected = []
    position = 0
    for batch in log.batches:
        header = batch.header
        expected += [
            {
                "producerId": header.producer_id,
                "producerEpoch": header.producer_epoch,
                "sequence": header.sequence_of(record.offset),
                "partitionLeaderEpoch": header.partition_leader_epoch,
                "codec": Codec(header.codec_id).name.lower(),
                "isTransactional": header.is_transactional,
                "isControl": header.is_control,
                "baseOffset": header.base_offset,
                "lastOffset": header.last_offset,
                "batchPosition": position,
                "batchSize": len(batch.raw),
                "magic": 2,
            }
            for record in batch.records
        ]
        position += len(batch.raw)
    assert decoded.select(columns.ALL_COLUMNS[6:]).to_pylist() == expected


@given(log=logs(codecs=(Codec.NONE, Codec.LZ4), count_max=3), data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_cut_log_gives_its_whole_batches(log: GeneratedLog, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(log.raw)))
    raw = log.raw[:cut]
    assert_same(decode_columns(guarded(raw)), decode_readably(raw))


def test_legacy_and_new_batches_keep_their_order() -> None:
    old = [Record(0, 5, b"a", None), Record(1, 6, None, b"b")]
    raw = encode_legacy(old, 1) + encode_batch([Record(2, 7, b"c", b"d")])
    raw += encode_legacy([Record(3, 8, b"e", b"f"), Record(4, 9, b"g", b"h")], 1, codec=Codec.GZIP)
    decoded = columns.decode(raw, columns=["offset", "magic", "codec", "baseOffset", "key"])
    assert decoded.to_pydict() == {
        "offset": [0, 1, 2, 3, 4],
        "magic": [1, 1, 2, 1, 1],
        "codec": ["none", "none", "none", "gzip", "gzip"],
        "baseOffset": [0, 1, 2, -1, -1],
        "key": [b"a", None, b"c", b"e", b"g"],
    }


def test_timestamps_of_the_log() -> None:
    records = [Record(0, 10, None, b"a"), Record(1, 20, None, b"b")]
    append_time = BatchFields(
        timestamp_type=TimestampType.LOG_APPEND_TIME, max_timestamp=1_700_000_000_000
    )
    horizon = BatchFields(delete_horizon_ms=1_800_000_000_000)
    raw = encode_batch(records, append_time) + encode_batch(records, horizon)
    decoded = columns.decode(raw, columns=["timestamp", "timestampType"])
    assert decoded.column("timestamp").cast(pa.int64()).to_pylist() == [
        1_700_000_000_000,
        1_700_000_000_000,
        10,
        20,
    ]
    assert decoded.column("timestampType").to_pylist() == [1, 1, 0, 0]


def test_empty_batches_and_holes() -> None:
    raw = encode_batch([Record(4, 1, None, b"x"), Record(900, 2, None, b"y")])
    empty = encode_empty_batch(BatchHeader.unpack(raw))
    assert records_in(columns.decode(empty)) == []
    assert columns.decode(empty + raw + empty).column("offset").to_pylist() == [4, 900]


def test_what_follows_the_header_of_a_batch_without_records_is_ignored() -> None:
    raw = one_record("ffffff", record_count=0)
    assert_same(decode_columns(raw + DATA), decode_readably(raw + DATA))
    assert records_in(columns.decode(raw + DATA)) == DATA_RECORDS
    broken = one_record("ffffff", record_count=0, attributes=int(Codec.ZSTD))
    assert records_in(columns.decode(broken + DATA)) == DATA_RECORDS


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param("", "cannot fit 0 bytes", id="no payload"),
        pytest.param("0c0000000101", "cannot fit 6 bytes", id="payload below any record"),
        pytest.param("0a000000010100", "record length is 5", id="length too small"),
        pytest.param("0e000000010100", "record length is 7", id="length too large"),
        pytest.param("01000000010100", "record length is -1", id="negative length"),
        pytest.param("ffffffff0f0100", "record length is", id="length at the end of ints"),
        pytest.param("ffffffffff0100", "varint is longer", id="length of six bytes"),
        pytest.param("0c000000" + "ff" * 3, "varint runs past", id="open varint"),
        pytest.param("0c000000060100", "field of 3 bytes", id="key longer than its record"),
        pytest.param("0c0000000104ff", "field of 2 bytes", id="value longer than its record"),
        pytest.param("0c000000010101", "header count is -1", id="negative header count"),
        pytest.param("0c000000010102", "header count is 1", id="header count without bytes"),
        pytest.param("0e00000001010000", "ends 1 bytes early", id="byte left in record"),
        pytest.param("0c00000001010000", "1 bytes left", id="byte left in payload"),
        pytest.param("100000000101020101", "header key is null", id="null header key"),
        pytest.param("100000000101020600", "field of 3 bytes", id="header key too long"),
        pytest.param("100000000101020006", "field of 3 bytes", id="header value too long"),
        pytest.param("0e000000010102ff", "varint runs past", id="open varint in header"),
        pytest.param(
            "1e00" + "ff" * 10 + "01" + "00" + "01010000", "varint is longer", id="long of 11 bytes"
        ),
    ],
)
def test_records_that_break_the_format(body: str, reason: str) -> None:
    raw = one_record(body)
    decoded = decode_columns(guarded(DATA + raw))
    assert decoded.records == DATA_RECORDS
    assert isinstance(decoded.error, CorruptRecordError)
    assert reason in str(decoded.error)
    assert decoded.error.position == len(DATA)
    assert decoded.error.offsets == (50, 50)
    assert_same(decoded, decode_readably(DATA + raw))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("0c000000030100", id="null by another negative length"),
        pytest.param(
            "1400" + "8000" + "8000" + "8100" + "8100" + "8000"[:2], id="overlong varints"
        ),
        pytest.param("1e00" + "ff" * 9 + "01" + "00" + "010100", id="smallest long"),
        pytest.param("1600" + "00" + "ffffffff0f" + "010100" + "", id="smallest int"),
    ],
)
def test_odd_records_that_kafka_reads(body: str) -> None:
    raw = one_record(body)
    assert_same(decode_columns(guarded(raw)), decode_readably(raw))


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"record_count": -1}, id="negative record count"),
        pytest.param({"record_count": 2**31 - 1}, id="huge record count"),
        pytest.param({"base_offset": -1}, id="negative base offset"),
        pytest.param({"last_offset_delta": -1}, id="negative delta"),
        pytest.param({"base_offset": 2**63 - 1, "last_offset_delta": 5}, id="offset overflow"),
        pytest.param({"attributes": 5}, id="codec 5"),
        pytest.param({"attributes": 4}, id="not zstd after all"),
    ],
)
def test_headers_that_break_the_format(fields: dict[str, int]) -> None:
    raw = one_record("0c000000010100", **fields)
    decoded = decode_columns(DATA + raw + DATA)
    assert decoded.records == DATA_RECORDS
    assert_same(decoded, decode_readably(DATA + raw + DATA))
    assert decoded.error is not None


def test_error_kinds() -> None:
    unknown = one_record("0c000000010100", attributes=7)
    with pytest.raises(UnsupportedError):
        columns.decode(unknown)
    big = encode_batch([Record(0, 0, None, bytes(5000))], BatchFields(codec=Codec.ZSTD))
    with pytest.raises(LimitExceededError):
        columns.decode(big, decompressed_bytes_max=4999)
    broken = bytearray(DATA)
    broken[-1] ^= 1
    with pytest.raises(CorruptBatchError, match="CRC is 98946281") as caught:
        columns.decode(DATA + broken)
    assert (caught.value.position, caught.value.offsets) == (82, (0, 1))
    assert len(columns.scan_batches(broken)) == 1


def test_without_crc_check() -> None:
    raw = bytearray(DATA)
    raw[17] ^= 0xFF
    assert records_in(columns.decode(raw, check_crc=False)) == DATA_RECORDS


def test_first_bad_batch_wins() -> None:
    bad_record = one_record("0a000000010100")
    bad_crc = bytearray(DATA)
    bad_crc[20] ^= 1
    decoded = decode_columns(DATA + bad_record + bytes(bad_crc))
    assert isinstance(decoded.error, CorruptRecordError)
    decoded = decode_columns(DATA + bytes(bad_crc) + bad_record)
    assert isinstance(decoded.error, CorruptBatchError)


def test_selected_batches() -> None:
    raw = b"".join(encode_batch([Record(offset, 0, None, b"")]) for offset in range(10))
    table = columns.scan_batches(raw)
    chosen = table.select(np.isin(table["base_offset"], [2, 3, 7]))
    assert columns.decode(raw, chosen).column("offset").to_pylist() == [2, 3, 7]
    with pytest.raises(ValueError, match="not made from this buffer"):
        columns.decode(raw[:100], table)


@pytest.mark.parametrize("codec", list(Codec))
def test_parts_are_bounded_and_complete(codec: Codec) -> None:
    fields = BatchFields(codec=codec)
    raw = b"".join(
        encode_batch([Record(offset, 0, b"k", bytes(1000))], fields) for offset in range(50)
    )
    decoder = columns.Decoder(["offset", "value"], part_bytes=4000)
    parts = list(decoder.decode(raw, columns.scan_batches(raw)))
    assert max(part.column("value").nbytes for part in parts) < 6000
    assert pa.concat_batches(parts).column("offset").to_pylist() == list(range(50))


def test_a_decoder_is_reusable_and_headers_fit_again() -> None:
    decoder = columns.Decoder()
    rng = random.Random(5)
    for count in (0, 1, 7, 0, 300, 2):
        records = [
            Record(
                offset,
                offset,
                None,
                b"v",
                tuple(
                    Header(f"key {rng.random()}", rng.choice([None, b"", rng.randbytes(90)]))
                    for _ in range(count)
                ),
            )
            for offset in range(rng.randint(1, 20))
        ]
        raw = encode_batch(records)
        (batch,) = decoder.decode(raw, columns.scan_batches(raw))
        assert records_in(batch) == records


def test_header_keys_that_are_not_utf8() -> None:
    # key "\xff\xfe", value null; then key "ключ".
    raw = one_record("280000000101" + "04" + "04fffe" + "01" + "10d0bad0bbd18ed187" + "00")
    decoded = decode_columns(raw)
    assert decoded.records[0].headers == (Header("\ufffd\ufffd", None), Header("ключ", b""))
    assert_same(decoded, decode_readably(raw))


def test_long_and_short_fields_at_the_end_of_memory() -> None:
    for size in [*range(140), 200, 255, 256, 257, 5000]:
        value = bytes(index % 251 for index in range(size))
        records = [Record(0, 0, value, None), Record(1, 0, None, value)]
        decoded = decode_columns(guarded(encode_batch(records)))
        assert decoded.records == records


TEXT = b"".join(b"%d: the quick brown fox; " % (number % 97) for number in range(9000))


def framed(codec: Codec, framing: Callable[[bytes], bytes]) -> bytes:
    """A batch whose records another library compressed."""
    records = [
        Record(offset, 0, b"k%d" % offset, TEXT[offset * 7 : offset * 900]) for offset in range(20)
    ]
    plain = encode_batch(records)
    header = BatchHeader.unpack(plain)._replace(attributes=int(codec))
    return seal_batch(header, framing(plain[61:]))


def lz4_by(**options: bool) -> Callable[[bytes], bytes]:
    def framing(data: bytes) -> bytes:
        compressor = cramjam.lz4.Compressor(level=4, **options)
        compressor.compress(data)
        return bytes(compressor.finish())

    return framing


def xerial(data: bytes) -> bytes:
    out = bytes.fromhex("82534e41505059000000000100000001")
    for at in range(0, len(data), 5000):
        block = bytes(cramjam.snappy.compress_raw(data[at : at + 5000]))
        out += len(block).to_bytes(4, "big") + block
    return out


def zstd_by(*, size: bool = True, checksum: bool = False) -> Callable[[bytes], bytes]:
    compressor = zstandard.ZstdCompressor(write_content_size=size, write_checksum=checksum)
    return compressor.compress


FRAMINGS = [
    pytest.param(Codec.LZ4, lz4_by(block_linked=False, content_checksum=False), id="lz4, aiokafka"),
    pytest.param(Codec.LZ4, lz4_by(block_linked=False, content_checksum=True), id="lz4, checksums"),
    pytest.param(Codec.LZ4, lz4_by(block_linked=True), id="lz4, linked blocks"),
    pytest.param(Codec.LZ4, lambda data: compress(Codec.LZ4, data), id="lz4, Kafka"),
    pytest.param(Codec.SNAPPY, xerial, id="snappy, xerial"),
    pytest.param(
        Codec.SNAPPY, lambda data: bytes(cramjam.snappy.compress_raw(data)), id="snappy, raw"
    ),
    pytest.param(Codec.ZSTD, zstd_by(), id="zstd, sized"),
    pytest.param(Codec.ZSTD, zstd_by(size=False), id="zstd, unsized"),
    pytest.param(Codec.ZSTD, zstd_by(checksum=True), id="zstd, checksum"),
    pytest.param(
        Codec.ZSTD,
        lambda data: zstd_by()(data[:999]) + zstd_by()(data[999:]),
        id="zstd, two frames",
    ),
    pytest.param(Codec.GZIP, lambda data: gzip.compress(data, mtime=0), id="gzip"),
]


@pytest.mark.parametrize(("codec", "framing"), FRAMINGS)
def test_frames_of_other_libraries(codec: Codec, framing: Callable[[bytes], bytes]) -> None:
    raw = framed(codec, framing)
    for part_bytes in (1, 30_000, 1 << 25):
        decoded = decode_columns(guarded(raw * 3 + DATA), part_bytes=part_bytes)
        assert_same(decoded, decode_readably(raw * 3 + DATA))
    assert decoded.records or "linked" in str(decoded.error)


@pytest.mark.parametrize(("codec", "framing"), FRAMINGS)
def test_mutated_frames(codec: Codec, framing: Callable[[bytes], bytes]) -> None:
    rng = random.Random(3)
    source = mutations(rng, framed(codec, framing))
    for _ in range(100):
        raw = next(source)
        readable = decode_readably(raw + DATA, bytes_max=1 << 20)
        assert_same(decode_columns(guarded(raw + DATA), bytes_max=1 << 20), readable)


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.SNAPPY, Codec.ZSTD, Codec.GZIP])
def test_limit_on_decompressed_bytes(codec: Codec) -> None:
    raw = encode_batch([Record(0, 0, None, bytes(5000))], BatchFields(codec=codec))
    size = len(encode_batch([Record(0, 0, None, bytes(5000))])) - 61
    assert decode_columns(raw, bytes_max=size).error is None
    decoded = decode_columns(DATA + raw, bytes_max=size - 1)
    assert decoded.records == DATA_RECORDS
    assert isinstance(decoded.error, LimitExceededError)


def mutations(rng: random.Random, raw: bytes) -> Iterator[bytes]:
    """`raw` with bits flipped, bytes changed, spans dropped or doubled. Most get a right CRC again,
    so that the damage is met by the record decoder."""
    while True:
        broken = bytearray(raw)
        for _ in range(rng.choice([1, 1, 2, 5])):
            at = rng.randrange(61 if rng.random() < 0.7 else 0, len(broken))
            match rng.randrange(5):
                case 0:
                    broken[at] ^= 1 << rng.randrange(8)
                case 1:
                    broken[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
                case 2:
                    del broken[at : at + rng.randint(1, 4)]
                case 3:
                    broken[at:at] = rng.randbytes(rng.randint(1, 4))
                case 4:
                    broken[at:at] = broken[at : at + rng.randint(1, 20)]
        if len(broken) >= 61 and rng.random() < 0.7:
            header = BatchHeader.unpack(broken)
            if header.magic == 2:
                broken = bytearray(seal_batch(header, bytes(broken[61:])))
        yield bytes(broken)


def seeds() -> list[bytes]:
    """Batches to damage: every codec, headers, nulls, long fields, markers, old sets."""
    headers = (Header("h", b"x"), Header("", None), Header("ключ", b""))
    records = [
        Record(
            offset, 1000 + offset * 37, b"key" if offset % 3 else None, bytes(offset * 11), headers
        )
        for offset in range(12)
    ]
    raw = [encode_batch(records, BatchFields(codec=codec)) for codec in Codec]
    raw += [DATA, MARKER, encode_legacy(records, 0), encode_legacy(records, 1, codec=Codec.SNAPPY)]
    return raw


@pytest.mark.parametrize("seed", range(9))
def test_mutated_batches(seed: int) -> None:
    rng = random.Random(seed)
    source = mutations(rng, seeds()[seed])
    good = failed = 0
    for _ in range(1200):
        raw = next(source)
        check_crc = rng.random() < 0.8
        readable = decode_readably(raw + DATA, check_crc=check_crc, bytes_max=1 << 20)
        fast = decode_columns(guarded(raw + DATA), check_crc=check_crc, bytes_max=1 << 20)
        assert_same(fast, readable)
        good += fast.error is None
        failed += fast.error is not None
    assert good > 20
    assert failed > 300


@given(junk=st.binary(max_size=400))
@settings(max_examples=300, deadline=None)
def test_junk_after_a_plausible_header(junk: bytes) -> None:
    raw = seal_batch(ONE._replace(record_count=len(junk) // 20 + 1), junk)
    assert_same(decode_columns(guarded(raw)), decode_readably(raw))


@given(junk=st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_junk_alone(junk: bytes) -> None:
    assert_same(decode_columns(guarded(junk)), decode_readably(junk))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
def test_cut_at_every_byte(codec: Codec) -> None:
    raw = (
        DATA
        + encode_batch(DATA_RECORDS, BatchFields(codec=codec))
        + encode_legacy([Record(9, 9, b"k", b"v")], 1)
    )
    for end in range(len(raw) + 1):
        assert_same(decode_columns(guarded(raw[:end])), decode_readably(raw[:end]))


def test_an_error_lets_go_of_the_buffer() -> None:
    raw = bytearray(DATA + one_record("0a000000010100"))
    caught: StratalogError | None = None
    try:
        columns.decode(raw)
    except CorruptError as error:
        caught = error
    gc.collect()
    raw.append(0)  # a BufferError if anything still looked at the bytes
    assert caught is not None


def test_all_flags_reach_their_columns() -> None:
    attributes = attributes_of(is_transactional=True, timestamp_type=TimestampType.LOG_APPEND_TIME)
    raw = one_record("0c000000010100", attributes=attributes, producer_id=77, producer_epoch=3)
    names = ["isTransactional", "isControl", "producerId", "producerEpoch", "timestampType"]
    expected: dict[str, list[Any]] = dict(
        zip(names, ([True], [False], [77], [3], [1]), strict=True)
    )
    assert columns.decode(raw, columns=names).to_pydict() == expected
