"""Codecs of a batch's records: gzip, snappy, lz4 and zstd, framed as Kafka frames them.

Invariants:

* the output never exceeds `bytes_max`; a larger declared size is rejected before memory is
  allocated, and a smaller one is trusted only as far as the input can produce it;
* memory is allocated once: if more than `MEASURED_FROM_BYTES` come out of a stream of unknown size,
  the rest is first decompressed to be counted. So a decompression bomb is rejected early;
* every input yields bytes or a typed error: `UnsupportedError` for an unknown codec id,
  `LimitExceededError` for too much output, `CorruptRecordError` for everything else;
* frames must be complete: a truncated gzip member, lz4 frame or zstd frame is an error.

The native codecs are imported with the first compressed batch; most commands read headers only.
"""

from __future__ import annotations

import struct
import threading
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import CorruptRecordError, LimitExceededError, UnsupportedError
from stratalog.format import lz4_frame
from stratalog.format.batch import Codec
from stratalog.format.buffers import Scratch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from stratalog.format.buffers import Buffer

DECOMPRESSED_BYTES_MAX: Final = 256 << 20
"""Default limit for the decompressed records of one batch. Kafka's batches are far smaller: a
broker accepts 1 MiB compressed by default."""

MEASURED_FROM_BYTES: Final = lz4_frame.MEASURED_FROM_BYTES

SNAPPY_BLOCK_BYTES: Final = 32 << 10
XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER = XERIAL_MAGIC + struct.pack(
    ">i"  # version
    "i",  # lowest version that can read this
    1,
    1,
)
_XERIAL_MAGIC_HEAD = int.from_bytes(XERIAL_MAGIC[:4], "big")
_BLOCK_LENGTH = struct.Struct(">i")
_SNAPPY_RATIO_MAX = 22  # a three-byte copy yields at most 64 bytes
_SNAPPY_LENGTH_BYTES_MAX = 5

_GZIP_MEMBER = 31  # zlib's window bits for "gzip wrapper, largest window"
_GZIP_MAGIC = b"\x1f\x8b"
_STEP_BYTES = 64 << 10
_STEP_BYTES_MAX = 1 << 20

_ZSTD_LEVEL_DEFAULT = 3
_ZSTD_MARGIN = 128
_ZSTD_ONE_GO_BYTES = 100_000  # larger results are taken from the system and given back each time
_GZIP_LEVEL_DEFAULT = -1

_thread = threading.local()


def decompress(
    codec_id: int,
    data: Buffer,
    *,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
    legacy_lz4: bool = False,
) -> bytes:
    """The bytes that were compressed into `data`.

    `legacy_lz4` is for message sets of magic 0, whose lz4 frames carry a wrong header checksum.
    """
    scratch = Scratch()
    end = decompress_into(codec_id, data, scratch, bytes_max=bytes_max, legacy_lz4=legacy_lz4)
    return bytes(scratch.view[:end])


def decompress_into(
    codec_id: int,
    data: Buffer,
    out: Scratch,
    at: int = 0,
    *,
    bytes_max: int = DECOMPRESSED_BYTES_MAX,
    legacy_lz4: bool = False,
) -> int:
    """Decompress `data` into `out` from `at` on; the position after the last byte written.

    `out` grows as needed. After an error its content from `at` on is undefined; bytes before `at`
    are kept.
    """
    if codec_id == Codec.LZ4:
        return lz4_frame.decompress_into(data, out, at, bytes_max, trust_header=legacy_lz4)
    codec = _DECOMPRESSORS.get(codec_id)
    if codec is None:
        raise UnsupportedError(f"unknown codec id {codec_id}")
    return codec(data, out, at, bytes_max)


def compress(codec: Codec, data: bytes, *, level: int | None = None) -> bytes:
    """`data` framed as Kafka's own writers frame it. `level` None is Kafka's default level."""
    if codec is Codec.NONE:
        return data
    try:
        return _COMPRESSORS[codec](data, level)
    except (ValueError, zlib.error):
        raise UnsupportedError(f"{codec.name.lower()} has no level {level}") from None


def _copy_into(data: Buffer, out: Scratch, at: int, bytes_max: int) -> int:
    _check_limit(len(data), bytes_max)
    end = at + len(data)
    out.reserve(at, len(data))[at:end] = data
    return end


def _gunzip_into(data: Buffer, out: Scratch, at: int, bytes_max: int) -> int:
    """Decompress all members. Like Java's reader, ignore other bytes after a member."""
    start, is_measured = at, False
    for chunk in _gunzipped(data):
        if at + len(chunk) - start > MEASURED_FROM_BYTES and not is_measured:
            out.reserve(start, _measured(map(len, _gunzipped(data)), bytes_max))
            is_measured = True
        at = _append(chunk, out, at, start, bytes_max)
    return at


def _gunzipped(data: Buffer) -> Iterator[bytes]:
    left: Buffer = data
    step = _STEP_BYTES
    while True:
        member = zlib.decompressobj(_GZIP_MEMBER)
        while not member.eof:
            try:
                chunk = member.decompress(left, step)
            except zlib.error as error:
                raise CorruptRecordError(f"gzip: {error}") from None
            yield chunk
            left = member.unconsumed_tail
            if not chunk and not left and not member.eof:
                raise CorruptRecordError("gzip: the stream is truncated")
            step = min(step * 2, _STEP_BYTES_MAX)
        if not member.unused_data.startswith(_GZIP_MAGIC):
            return
        left = member.unused_data


def _measured(sizes: Iterable[int], bytes_max: int) -> int:
    """The sum of the sizes; raises as soon as it exceeds the limit."""
    total = 0
    for size in sizes:
        total += size
        _check_limit(total, bytes_max)
    return total


def _append(chunk: bytes, out: Scratch, at: int, start: int, bytes_max: int) -> int:
    end = at + len(chunk)
    _check_limit(end - start, bytes_max)
    out.reserve(at, len(chunk))[at:end] = chunk
    return end


def _unsnappy_into(data: Buffer, out: Scratch, at: int, bytes_max: int) -> int:
    """Xerial frames as Java writes them, or one raw block as librdkafka does."""
    view = memoryview(data)
    blocks = [view]
    if bytes(view[: len(XERIAL_MAGIC)]) == XERIAL_MAGIC:
        blocks = list(_xerial_blocks(view))
    sizes = [_snappy_size(block) for block in blocks]
    out.reserve(at, _measured(sizes, bytes_max))
    for block, size in zip(blocks, sizes, strict=True):
        at = _snappy_block_into(block, out, at, size)
    return at


def _xerial_blocks(view: memoryview) -> Iterator[memoryview]:
    position = len(_XERIAL_HEADER)
    if len(view) < position:
        raise CorruptRecordError("snappy: the stream header is truncated")
    while position < len(view):
        if len(view) - position < _BLOCK_LENGTH.size:
            raise CorruptRecordError("snappy: a block length is truncated", position=position)
        (length,) = _BLOCK_LENGTH.unpack_from(view, position)
        if length & 0xFFFF_FFFF == _XERIAL_MAGIC_HEAD:  # another stream begins
            position += len(_XERIAL_HEADER)
            continue
        position += _BLOCK_LENGTH.size
        if not 0 < length <= len(view) - position:
            raise CorruptRecordError(f"snappy: invalid block length {length}", position=position)
        yield view[position : position + length]
        position += length


def _snappy_size(block: memoryview) -> int:
    size = _snappy_declared_size(block)
    if size > len(block) * _SNAPPY_RATIO_MAX:
        raise CorruptRecordError(f"snappy: {len(block)} bytes cannot hold {size}")
    return size


def _snappy_block_into(block: memoryview, out: Scratch, at: int, size: int) -> int:
    import cramjam  # noqa: PLC0415 - only compressed batches need it

    end = at + size
    try:
        cramjam.snappy.decompress_raw_into(block, out.reserve(at, size)[at:end])
    except cramjam.DecompressionError as error:
        raise CorruptRecordError(f"snappy: {error}") from None
    return end


def _snappy_declared_size(block: memoryview) -> int:
    size = 0
    for index, byte in enumerate(block[:_SNAPPY_LENGTH_BYTES_MAX]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return size
    raise CorruptRecordError("snappy: no uncompressed length")


def _unzstd_into(data: Buffer, out: Scratch, at: int, bytes_max: int) -> int:
    """Decompress all frames. Their structure is checked first, because the decoder does not report
    a truncated frame."""
    return unzstd_into(data, out, at, check_zstd_frames(data), bytes_max)


def unzstd_into(
    data: Buffer, out: Scratch, at: int, declared: tuple[int, int], bytes_max: int
) -> int:
    """Decompress complete zstd frames whose minimum and maximum content sizes are known."""
    least, most = declared
    if least > bytes_max:
        raise _too_large(bytes_max)
    # Larger than the output: only a short read has checked the checksum, and near the end of its
    # buffer the decoder copies slowly.
    room = min(most, bytes_max, max(_STEP_BYTES, 4 * len(data), least)) + _ZSTD_MARGIN
    zstd = _zstd_of_thread()
    reader = zstd.read(data, read_across_frames=True)
    end = at
    try:
        while (got := reader.readinto(out.reserve(end, room)[end : end + room])) == room:
            end += got
            if end - at > bytes_max:
                raise _too_large(bytes_max)
            if end - at > MEASURED_FROM_BYTES:
                room = _measured(_zstd_sizes(data), bytes_max) - (end - at) + _ZSTD_MARGIN
            else:
                room = min(end - at, bytes_max - (end - at)) + _ZSTD_MARGIN  # doubles what is there
    except zstd.error as error:
        raise CorruptRecordError(f"zstd: {error}") from None
    if end + got - at > bytes_max:
        raise _too_large(bytes_max)
    return end + got


def _zstd_sizes(data: Buffer) -> Iterator[int]:
    """The sizes of the output, which is discarded. The thread's own decoder is busy."""
    reader = _Zstd().read(data, read_across_frames=True)
    buffer = bytearray(_STEP_BYTES_MAX)
    while got := reader.readinto(buffer):
        yield got


def unzstd_frame_into(
    data: Buffer, out: Scratch, at: int, declared: tuple[int, int], bytes_max: int
) -> int:
    """The same for a single frame. One that declares its size is decompressed at once."""
    least, most = declared
    if least != most or not 0 < least <= min(bytes_max, _ZSTD_ONE_GO_BYTES):
        return unzstd_into(data, out, at, declared, bytes_max)
    zstd = _zstd_of_thread()
    try:
        plain = zstd.decompress(data)
    except zstd.error as error:
        raise CorruptRecordError(f"zstd: {error}") from None
    end = at + len(plain)
    out.reserve(at, len(plain))[at:end] = plain
    return end


class _Zstd:
    """A reused decoder: creating one costs as much as a small batch."""

    def __init__(self) -> None:
        import zstandard  # noqa: PLC0415 - only compressed batches need it

        decompressor = zstandard.ZstdDecompressor()
        self.error = zstandard.ZstdError
        self.read = decompressor.stream_reader
        self.decompress = decompressor.decompress


def _zstd_of_thread() -> _Zstd:
    try:
        return _thread.zstd  # type: ignore[no-any-return]
    except AttributeError:
        _thread.zstd = _Zstd()
        return _thread.zstd  # type: ignore[no-any-return]


def _check_limit(size: int, bytes_max: int) -> None:
    if size > bytes_max:
        raise _too_large(bytes_max)


def _too_large(bytes_max: int) -> LimitExceededError:
    return LimitExceededError(f"decompressed records exceed {bytes_max} bytes")


def _gzip(data: bytes, level: int | None) -> bytes:
    return zlib.compress(data, _GZIP_LEVEL_DEFAULT if level is None else level, wbits=_GZIP_MEMBER)


def _snappy(data: bytes, level: int | None) -> bytes:
    import cramjam  # noqa: PLC0415 - only compressed batches need it

    if level is not None:
        raise ValueError(level)
    out = bytearray(_XERIAL_HEADER)
    for at in range(0, len(data), SNAPPY_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[at : at + SNAPPY_BLOCK_BYTES]))
        out += _BLOCK_LENGTH.pack(len(block))
        out += block
    return bytes(out)


def _zstd(data: bytes, level: int | None) -> bytes:
    import zstandard  # noqa: PLC0415 - only compressed batches need it

    compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL_DEFAULT if level is None else level)
    return compressor.compress(data)


_DECOMPRESSORS: Mapping[int, Callable[[Buffer, Scratch, int, int], int]] = {
    Codec.NONE: _copy_into,
    Codec.GZIP: _gunzip_into,
    Codec.SNAPPY: _unsnappy_into,
    Codec.ZSTD: _unzstd_into,
}
_COMPRESSORS: Mapping[Codec, Callable[[bytes, int | None], bytes]] = {
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: lz4_frame.compress,
    Codec.ZSTD: _zstd,
}


# The structure of zstd frames: whether they are complete, and how much they may hold. Block
# contents are not read. Layout (RFC 8878, little-endian): magic, frame header (descriptor, window,
# dictionary id, content size: all but the first optional), blocks of a three-byte header and
# content, an optional four-byte checksum.

_ZSTD_MAGIC: Final = 0xFD2FB528
_SKIPPABLE_MAGIC = 0x184D2A50  # the low four bits are free
_U32 = struct.Struct("<I")
_ZSTD_BLOCK_BYTES_MAX = 128 << 10
_RLE_BLOCK, _COMPRESSED_BLOCK, _RESERVED = 1, 2, 3  # 0 is stored as is
_DICTIONARY_ID_BYTES = (0, 1, 2, 4)
_CONTENT_SIZE_BYTES = (0, 2, 4, 8)


class DeclaredSize(NamedTuple):
    """The size of the content of frames, known without decompressing."""

    at_least: int
    """The declared content sizes; 0 for frames that declare none."""
    at_most: int


def check_zstd_frames(data: Buffer) -> DeclaredSize:
    """Walk all frames of `data`; raise unless the last one ends where the bytes do."""
    at = least = most = 0
    end = len(data)
    try:
        while at < end or not end:
            (magic,) = _U32.unpack_from(data, at)
            if magic == _ZSTD_MAGIC:
                at, frame_least, frame_most = _zstd_frame(data, at + _U32.size)
                least += frame_least
                most += frame_most
            elif magic & ~0xF == _SKIPPABLE_MAGIC:
                at += 2 * _U32.size + _U32.unpack_from(data, at + _U32.size)[0]
            else:
                raise CorruptRecordError(f"zstd: invalid frame magic {magic:08x}", position=at)
    except (struct.error, IndexError):
        at = end + 1
    if at > end:
        raise CorruptRecordError("zstd: the frame is truncated", position=end)
    return DeclaredSize(least, most)


def _zstd_frame(data: Buffer, at: int) -> tuple[int, int, int]:
    """Where the frame whose descriptor is at `at` ends, and what it holds at least and at most.

    The end may be after the available bytes.
    """
    descriptor = data[at]
    is_single_segment = descriptor >> 5 & 1
    size_bytes = _CONTENT_SIZE_BYTES[descriptor >> 6] or is_single_segment
    at += 2 - is_single_segment + _DICTIONARY_ID_BYTES[descriptor & 3]
    content = int.from_bytes(data[at : at + size_bytes], "little")
    if size_bytes == 2:  # this form counts from 256
        content += 256
    at += size_bytes
    most = 0
    is_last = 0
    while not is_last:
        header = data[at] | data[at + 1] << 8 | data[at + 2] << 16
        is_last, kind, size = header & 1, header >> 1 & 3, header >> 3
        if kind == _RESERVED or size > _ZSTD_BLOCK_BYTES_MAX:
            raise CorruptRecordError(f"zstd: block header is {header:06x}", position=at)
        at += 3 + (1 if kind == _RLE_BLOCK else size)
        most += _ZSTD_BLOCK_BYTES_MAX if kind == _COMPRESSED_BLOCK else size
    if content > most:
        raise CorruptRecordError(
            f"zstd: {content} bytes declared, more than the blocks can hold", position=at
        )
    at += 4 if descriptor & 4 else 0
    return at, content, content if size_bytes else most
