from __future__ import annotations

import contextlib
import gzip
import random
import struct
import subprocess
import sys
import zlib

import cramjam
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptRecordError, LimitExceededError, UnsupportedError
from stratalog.format.batch import Codec
from stratalog.format.buffers import Scratch
from stratalog.format.compression import (
    SNAPPY_BLOCK_BYTES,
    XERIAL_MAGIC,
    compress,
    decompress,
    decompress_into,
)
from stratalog.format.lz4_frame import WRITTEN_HEADER, xxh32

RECORD = "380000000a6b303030361876303030362d2a2b2c2d2e2f020468310278"
CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]

# Payloads of batches that Apache Kafka 4.0 and its clients wrote.
WRITTEN_BY_KAFKA = [
    pytest.param(
        Codec.GZIP,
        "1f8b08000000000000ffb3606060e0ca3630303093280391ba5ada3aba7afa4c2c19864c1500239b144e1d000000",
        RECORD,
        id="gzip of the Java client",
    ),
    pytest.param(
        Codec.GZIP,
        "1f8b08000000000000ff13626060624a6649366400008061bac70a000000",
        "12000002026304633100",
        id="gzip of the cleaner",
    ),
    pytest.param(
        Codec.SNAPPY,
        "82534e415050590000000001000000010000001e"
        "1d2c380000000a6b3030303618760106302d2a2b2c2d2e2f020468310278",
        RECORD,
        id="xerial snappy of the Java client",
    ),
    pytest.param(
        Codec.SNAPPY,
        "1d2c380000000a6b3030303618760106302d2a2b2c2d2e2f020468310278",
        RECORD,
        id="the same as one raw block, which librdkafka writes",
    ),
    pytest.param(
        Codec.LZ4,
        "04224d186040821d000080380000000a6b303030361876303030362d2a2b2c2d2e2f02046831027800000000",
        RECORD,
        id="lz4 with a stored block",
    ),
    pytest.param(
        Codec.LZ4,
        "04224d186040821b000000d084010000000a6b303030346e3006001f7901001a50797979790000000000",
        "84010000000a6b303030346e3030303034" + "79" * 50 + "00",
        id="lz4 with a compressed block",
    ),
    pytest.param(
        Codec.ZSTD,
        "28b52ffd0058e80000380000000a6b303030361876303030362d2a2b2c2d2e2f020468310278010000",
        RECORD,
        id="zstd without content size, of the broker",
    ),
]


def lz4_frame(
    blocks: bytes,
    *,
    flg: int = 0x60,
    bd: int = 0x40,
    extra: bytes = b"",
    checksum: int | None = None,
) -> bytes:
    descriptor = bytes([flg, bd]) + extra
    if checksum is None:
        checksum = xxh32(descriptor) >> 8 & 0xFF
    return b"\x04\x22\x4d\x18" + descriptor + bytes([checksum]) + blocks


def lz4_stored(data: bytes) -> bytes:
    return struct.pack("<I", len(data) | 0x8000_0000) + data


@pytest.mark.parametrize(("codec", "raw", "plain"), WRITTEN_BY_KAFKA)
def test_reads_what_kafka_wrote(codec: Codec, raw: str, plain: str) -> None:
    assert decompress(codec, bytes.fromhex(raw)).hex() == plain


@pytest.mark.parametrize(("codec", "raw", "plain"), WRITTEN_BY_KAFKA)
def test_cut_anywhere_is_corrupt(codec: Codec, raw: str, plain: str) -> None:
    data = bytes.fromhex(raw)
    for length in range(len(data)):
        if codec is Codec.SNAPPY and length == 16 and data.startswith(XERIAL_MAGIC):
            assert decompress(codec, data[:length]) == b""  # a stream of no blocks
            continue
        with pytest.raises(CorruptRecordError):
            decompress(codec, data[:length])


@pytest.mark.parametrize(("codec", "raw", "plain"), WRITTEN_BY_KAFKA)
def test_limit_is_exact(codec: Codec, raw: str, plain: str) -> None:
    size = len(plain) // 2
    assert len(decompress(codec, bytes.fromhex(raw), bytes_max=size)) == size
    with pytest.raises(LimitExceededError):
        decompress(codec, bytes.fromhex(raw), bytes_max=size - 1)


def test_stored_as_is_without_a_codec() -> None:
    assert decompress(Codec.NONE, b"abc") == b"abc"
    assert compress(Codec.NONE, b"abc") == b"abc"
    with pytest.raises(LimitExceededError):
        decompress(Codec.NONE, b"abc", bytes_max=2)


@pytest.mark.parametrize("codec_id", [5, 6, 7])
def test_unknown_codec_ids_are_unsupported(codec_id: int) -> None:
    with pytest.raises(UnsupportedError, match=str(codec_id)):
        decompress(codec_id, b"")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 1, 32 << 10, (32 << 10) + 1, 200_000])
def test_round_trip(codec: Codec, size: int) -> None:
    data = random.Random(size).randbytes(size // 2).ljust(size, b"k")
    assert decompress(codec, compress(codec, data)) == data


def test_other_libraries_read_what_is_written() -> None:
    data = b"stratalog " * 20_000
    assert gzip.decompress(compress(Codec.GZIP, data)) == data
    assert bytes(cramjam.lz4.decompress(compress(Codec.LZ4, data))) == data
    assert bytes(cramjam.zstd.decompress(compress(Codec.ZSTD, data))) == data


def test_snappy_is_written_in_xerial_blocks() -> None:
    data = random.Random(1).randbytes(SNAPPY_BLOCK_BYTES + 5)
    framed = compress(Codec.SNAPPY, data)
    assert framed[:16].hex() == "82534e41505059000000000100000001"
    (first,) = struct.unpack_from(">i", framed, 16)
    assert (
        bytes(cramjam.snappy.decompress_raw(framed[20 : 20 + first])) == data[:SNAPPY_BLOCK_BYTES]
    )
    (second,) = struct.unpack_from(">i", framed, 20 + first)
    assert len(framed) == 24 + first + second


def test_lz4_is_written_as_kafka_writes_it() -> None:
    noise = random.Random(1).randbytes(64 << 10)
    framed = compress(Codec.LZ4, noise + b"a" * 100)
    assert framed[:7].hex() == "04224d18604082"
    assert framed[7:11].hex() == "00000180"  # 64 KiB, stored because it does not shrink
    assert framed[11 : 11 + len(noise)] == noise
    (second,) = struct.unpack_from("<I", framed, 11 + len(noise))
    assert second < 20
    assert framed[-4:] == bytes(4)


@pytest.mark.parametrize(
    ("codec", "levels"),
    [(Codec.GZIP, [1, 9]), (Codec.LZ4, [1, 9, 17]), (Codec.ZSTD, [-131072, 1, 22])],
)
def test_levels(codec: Codec, levels: list[int]) -> None:
    data = bytes(random.Random(2).choices(b"abcdef", k=5000))
    for level in levels:
        assert decompress(codec, compress(codec, data, level=level)) == data


@pytest.mark.parametrize(
    ("codec", "level"), [(Codec.GZIP, 10), (Codec.SNAPPY, 1), (Codec.LZ4, 18), (Codec.ZSTD, 23)]
)
def test_levels_a_codec_lacks(codec: Codec, level: int) -> None:
    with pytest.raises(UnsupportedError, match=f"no level {level}"):
        compress(codec, b"", level=level)


def test_gzip_members_follow_each_other_and_garbage_after_them_is_ignored() -> None:
    members = gzip.compress(b"one ") + gzip.compress(b"two")
    assert decompress(Codec.GZIP, members) == b"one two"
    assert decompress(Codec.GZIP, members + b"garbage") == b"one two"
    with pytest.raises(CorruptRecordError):
        decompress(Codec.GZIP, members + members[:9])


def test_gzip_with_wrong_checksum() -> None:
    data = bytearray(gzip.compress(b"some bytes"))
    data[-6] ^= 1
    with pytest.raises(CorruptRecordError, match="gzip"):
        decompress(Codec.GZIP, data)


def test_xerial_streams_follow_each_other() -> None:
    one, two = compress(Codec.SNAPPY, b"one "), compress(Codec.SNAPPY, b"two")
    assert decompress(Codec.SNAPPY, one + two) == b"one two"


@pytest.mark.parametrize("length", [-1, 0, 100, 2**31 - 1])
def test_xerial_block_length_that_cannot_be(length: int) -> None:
    with pytest.raises(CorruptRecordError, match=f"invalid block length {length}"):
        decompress(
            Codec.SNAPPY, compress(Codec.SNAPPY, b"") + struct.pack(">i", length) + b"\x01\x00a"
        )


def test_snappy_declares_more_than_it_can_hold() -> None:
    with pytest.raises(CorruptRecordError, match="cannot hold"):
        decompress(Codec.SNAPPY, b"\xff\xff\xff\x7f" + b"\x00a")


LZ4_BODY = lz4_stored(b"abc") + bytes(4)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(lz4_frame(LZ4_BODY, bd=bd), id=f"block size code {bd >> 4}")
        for bd in (0x40, 0x50, 0x60, 0x70)
    ]
    + [
        pytest.param(lz4_frame(LZ4_BODY, flg=0x68, extra=bytes(8)), id="content size is skipped"),
        pytest.param(lz4_frame(LZ4_BODY + b"????", flg=0x64), id="content checksum is ignored"),
        pytest.param(
            lz4_frame(lz4_stored(b"abc") + struct.pack("<I", 0x32D153FF) + bytes(4), flg=0x70),
            id="block checksum",
        ),
        pytest.param(lz4_frame(LZ4_BODY + b"junk"), id="bytes after the end mark"),
    ],
)
def test_lz4_frames_that_are_read(frame: bytes) -> None:
    assert decompress(Codec.LZ4, frame) == b"abc"


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        pytest.param(lz4_frame(LZ4_BODY, flg=0x40), "linked", id="linked blocks"),
        pytest.param(lz4_frame(LZ4_BODY, flg=0xA0), "version", id="version 2"),
        pytest.param(lz4_frame(LZ4_BODY, flg=0x61), "descriptor", id="dictionary"),
        pytest.param(lz4_frame(LZ4_BODY, bd=0x30), "descriptor", id="block size code 3"),
        pytest.param(lz4_frame(LZ4_BODY, bd=0xC0), "descriptor", id="reserved bit"),
        pytest.param(lz4_frame(LZ4_BODY, checksum=0), "header checksum", id="header checksum"),
        pytest.param(
            lz4_frame(lz4_stored(b"abc") + bytes(8), flg=0x70),
            "block checksum",
            id="block checksum",
        ),
        pytest.param(
            lz4_frame(lz4_stored(bytes((64 << 10) + 1)) + bytes(4)),
            "block of 65537",
            id="large block",
        ),
        pytest.param(lz4_frame(lz4_stored(b"abc")), "truncated", id="no end mark"),
        pytest.param(b"\x04\x22\x4d\x19" + lz4_frame(LZ4_BODY)[4:], "not a frame", id="magic"),
    ],
)
def test_lz4_frames_that_are_refused(frame: bytes, reason: str) -> None:
    with pytest.raises(CorruptRecordError, match=reason):
        decompress(Codec.LZ4, frame)


def test_lz4_header_checksum_of_magic_0() -> None:
    frame = lz4_frame(LZ4_BODY, checksum=0x1A)
    assert decompress(Codec.LZ4, frame, legacy_lz4=True) == b"abc"
    assert decompress(Codec.LZ4, lz4_frame(LZ4_BODY), legacy_lz4=True) == b"abc"
    with pytest.raises(CorruptRecordError):
        decompress(Codec.LZ4, frame)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0x02CC5D05),
        (b"a", 0x550D7456),
        (b"abc", 0x32D153FF),
        (b"Nobody inspects the spammish repetition", 0xE2293B2F),
    ],
)
def test_xxh32_vectors(data: bytes, expected: int) -> None:
    assert xxh32(data) == expected


@pytest.mark.parametrize("has_content_size", [True, False])
@pytest.mark.parametrize("has_checksum", [True, False])
@pytest.mark.parametrize("size", [0, 1, 300, 70_000, 1_000_000])
def test_zstd_frames(has_content_size: bool, has_checksum: bool, size: int) -> None:
    data = random.Random(size).randbytes(size // 4) * 4
    frame = zstandard.ZstdCompressor(
        write_content_size=has_content_size, write_checksum=has_checksum
    ).compress(data)
    assert decompress(Codec.ZSTD, frame) == data
    skippable = struct.pack("<II", 0x184D2A53, 3) + b"xyz"
    assert decompress(Codec.ZSTD, frame + skippable + frame) == data + data
    for end in {1, 4, 5, 6, len(frame) // 2, len(frame) - 1}:
        with pytest.raises(CorruptRecordError):
            decompress(Codec.ZSTD, frame[:end])
    with pytest.raises(CorruptRecordError, match="magic"):
        decompress(Codec.ZSTD, frame + b"junk")


def test_zstd_wrong_checksum() -> None:
    frame = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(b"some bytes"))
    frame[-1] ^= 1
    with pytest.raises(CorruptRecordError, match="zstd"):
        decompress(Codec.ZSTD, frame)


def test_zstd_declares_more_than_the_limit_or_the_blocks() -> None:
    frame = bytearray(zstandard.ZstdCompressor().compress(bytes(200_000)))
    size_at = frame.index((200_000).to_bytes(4, "little"))
    with pytest.raises(LimitExceededError):
        decompress(Codec.ZSTD, frame, bytes_max=199_999)
    frame[size_at : size_at + 4] = (1 << 30).to_bytes(4, "little")
    with pytest.raises(CorruptRecordError, match="more than the blocks can hold"):
        decompress(Codec.ZSTD, frame)


def test_bombs_stop_at_the_limit() -> None:
    zeros = bytes(64 << 20)
    zstd = zstandard.ZstdCompressor(write_content_size=False).compress(zeros)
    for codec, bomb in ((Codec.ZSTD, zstd), (Codec.GZIP, gzip.compress(zeros, 1))):
        assert len(bomb) < 300_000
        scratch = Scratch()
        with pytest.raises(LimitExceededError):
            decompress_into(codec, bomb, scratch, bytes_max=1 << 20)
        assert len(scratch.view) <= 4 << 20


def test_into_keeps_what_is_before() -> None:
    scratch = Scratch()
    end = 0
    parts = [bytes([65 + index]) * (30_000 * (index + 1)) for index in range(6)]
    for codec, part in zip([*CODECS, Codec.NONE, Codec.LZ4], parts, strict=True):
        end = decompress_into(codec, compress(codec, part), scratch, end)
    assert bytes(scratch.view[:end]) == b"".join(parts)


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=80), prefix=st.booleans())
def test_junk_is_a_value_or_a_typed_error(codec: Codec, data: bytes, prefix: bool) -> None:
    start = {
        Codec.GZIP: b"\x1f\x8b\x08\x00",
        Codec.SNAPPY: XERIAL_MAGIC + bytes(8),
        Codec.LZ4: WRITTEN_HEADER,
        Codec.ZSTD: b"\x28\xb5\x2f\xfd",
    }[codec]
    with contextlib.suppress(CorruptRecordError, LimitExceededError):
        decompress(codec, start + data if prefix else data, bytes_max=1 << 20)


@pytest.mark.parametrize("codec", CODECS)
def test_flipped_bits_are_a_value_or_a_typed_error(codec: Codec) -> None:
    rng = random.Random(7)
    frame = compress(codec, bytes(rng.choices(b"abcdefgh", k=3000)))
    for _ in range(2000):
        broken = bytearray(frame)
        for _ in range(rng.randint(1, 3)):
            broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        with contextlib.suppress(CorruptRecordError, LimitExceededError):
            decompress(codec, broken, bytes_max=1 << 20)


def test_native_codecs_are_imported_late() -> None:
    code = (
        "import sys, stratalog.format.compression as c\n"
        "assert not {'cramjam', 'zstandard'} & set(sys.modules), 'too early'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_gzip_reads_any_window() -> None:
    compressor = zlib.compressobj(9, zlib.DEFLATED, 25)
    data = b"window " * 1000
    assert decompress(Codec.GZIP, compressor.compress(data) + compressor.flush()) == data
