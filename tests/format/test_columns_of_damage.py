"""Columns of bytes that break the format: the error, and its place, of the readable decoder."""

from __future__ import annotations

import gc
import random

import pytest
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
from stratalog.format.batch import Codec
from stratalog.format.legacy import encode_legacy
from stratalog.format.record import (
    BatchFields,
    Header,
    Record,
    encode_batch,
    seal_batch,
)
from tests.effort import scaled
from tests.format.decoding import (
    assert_same,
    decode_columns,
    decode_readably,
    guarded,
    records_in,
)
from tests.format.known_batches import DATA, DATA_RECORDS, MARKER, ONE, mutations, one_record


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param("", "cannot fit 0 bytes", id="no payload"),
        pytest.param("0c0000000101", "cannot fit 6 bytes", id="payload below any record"),
        pytest.param("0a000000010100", "invalid record length 5", id="length too small"),
        pytest.param("0e000000010100", "invalid record length 7", id="length too large"),
        pytest.param("01000000010100", "invalid record length -1", id="negative length"),
        pytest.param("ffffffff0f0100", "invalid record length", id="length at the end of ints"),
        pytest.param("ffffffffff0100", "varint is longer", id="length of six bytes"),
        pytest.param("0c000000" + "ff" * 3, "varint runs past", id="open varint"),
        pytest.param("0c000000060100", "field of 3 bytes", id="key longer than its record"),
        pytest.param("0c0000000104ff", "field of 2 bytes", id="value longer than its record"),
        pytest.param("0c000000010101", "invalid header count -1", id="negative header count"),
        pytest.param("0c000000010102", "invalid header count 1", id="header count without bytes"),
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
    with pytest.raises(CorruptBatchError, match="CRC mismatch: stored 98946281") as caught:
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


@pytest.mark.slow
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
@settings(max_examples=scaled(100), deadline=None)
def test_junk_after_a_plausible_header(junk: bytes) -> None:
    raw = seal_batch(ONE._replace(record_count=len(junk) // 20 + 1), junk)
    assert_same(decode_columns(guarded(raw)), decode_readably(raw))


@given(junk=st.binary(max_size=300))
@settings(max_examples=scaled(100), deadline=None)
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


@pytest.mark.slow
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
