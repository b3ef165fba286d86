"""Columns of batches that other libraries compressed."""

from __future__ import annotations

import gzip
import random
from typing import TYPE_CHECKING

import cramjam
import pytest
import zstandard

from stratalog.errors import (
    LimitExceededError,
)
from stratalog.format.batch import BatchHeader, Codec
from stratalog.format.compression import compress
from stratalog.format.record import (
    BatchFields,
    Record,
    encode_batch,
    seal_batch,
)
from tests.format.decoding import (
    assert_same,
    decode_columns,
    decode_readably,
    guarded,
)
from tests.format.known_batches import DATA, DATA_RECORDS, mutations

if TYPE_CHECKING:
    from collections.abc import Callable


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
