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


def lz4_block(plain: bytes, run_at: int, run_bytes: int) -> bytes:
    """`plain` as one block: literals up to and with `run_at`, a match that repeats that byte for
    `run_bytes`, and literals to the end, however few they are."""
    head, tail = plain[: run_at + 1], plain[run_at + 1 + run_bytes :]
    assert plain == head + head[-1:] * run_bytes + tail
    match = min(15, run_bytes - 4)
    out = bytes([min(15, len(head)) << 4 | match]) + _length(len(head)) + head + b"\x01\x00"
    out += _length(run_bytes - 4)
    return out + bytes([min(15, len(tail)) << 4]) + _length(len(tail)) + tail


def _length(count: int) -> bytes:
    """What follows a token for a length of 15 and more."""
    if count < 15:
        return b""
    return b"\xff" * ((count - 15) // 255) + bytes([(count - 15) % 255])


@pytest.mark.parametrize("full_bytes", [None, 65536])
def test_the_end_of_an_lz4_block(full_bytes: int | None) -> None:
    """The last bytes of a block must be literals, by rules that depend on how many bytes are left:
    what the reference implementation rejects, the kernel does not accept."""
    seen = set()
    for run_bytes in (4, 6, 18, 19, 20, 300):
        for tail_bytes in range(16):
            value = b"r" * (run_bytes + 1) + b"x" * tail_bytes
            for missing in range(14) if full_bytes else [0]:
                front = b""
                if full_bytes:
                    rest = len(encode_batch([Record(0, 0, None, bytes(65000))])) - 61 - 65000
                    front = b"f" * (full_bytes - missing - rest - len(value))
                plain = encode_batch([Record(0, 0, None, front + value)])
                run_at = plain.index(b"r" * (run_bytes + 1)) - 61
                block = lz4_block(plain[61:], run_at, run_bytes)
                frame = bytes.fromhex("04224d18604082") + len(block).to_bytes(4, "little")
                header = BatchHeader.unpack(plain)._replace(attributes=int(Codec.LZ4))
                raw = seal_batch(header, frame + block + bytes(4))
                readable = decode_readably(raw)
                assert_same(decode_columns(guarded(raw)), readable)
                seen.add(readable.error is None)
    assert seen == {True, False}
