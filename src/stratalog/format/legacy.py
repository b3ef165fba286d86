"""Messages of magic 0 and 1, which brokers before 0.11 wrote and every broker still reads.

An entry is the shared 12-byte prefix and one message. A compressed set is a message too, the
wrapper, whose value is a compressed run of entries.

Invariants:

* the CRC is CRC-32 (IEEE) and covers everything from the magic byte on;
* a wrapper carries the offset of its LAST inner message, so its first one needs decompression;
* inner offsets are absolute in a magic-0 wrapper and relative in a magic-1 wrapper, where the last
  inner message has the wrapper's offset: a broker could assign offsets without recompressing;
* the timestamp of a LogAppendTime wrapper is that of every inner message.

As in Kafka, each message is read by its own magic: a wrapper may have inner messages of the other
one (only appending brokers reject that), and bytes after the value are ignored. A truncated inner
entry ends its set.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from stratalog.errors import (
    CorruptBatchError,
    CorruptError,
    CorruptRecordError,
    LimitExceededError,
    UnsupportedError,
)
from stratalog.format import lz4_frame
from stratalog.format.batch import (
    CODEC_MASK,
    LEGACY_MESSAGE_BYTES_MIN,
    LOG_APPEND_TIME_BIT,
    MAGIC_AT,
    MESSAGE_1_BYTES_MIN,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    PREFIX_BYTES,
    Codec,
    TimestampType,
    attributes_of,
)
from stratalog.format.buffers import crc32
from stratalog.format.compression import DECOMPRESSED_BYTES_MAX, compress, decompress
from stratalog.format.record import Record, located_in_batch
from stratalog.format.varint import wrapped_long

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stratalog.format.buffers import Buffer

_HEADER_0 = struct.Struct(
    ">q"  # offset: of the last inner message
    "i"  # length: bytes after this field
    "I"  # crc: CRC-32 from magic to the end
    "b"  # magic: 0
    "B"  # attributes: codec
)
_HEADER_1 = struct.Struct(
    ">q"  # offset: of the last inner message
    "i"  # length: bytes after this field
    "I"  # crc: CRC-32 from magic to the end
    "b"  # magic: 1
    "B"  # attributes: codec, timestamp type
    "q"  # timestamp: of a wrapper, the largest inner one
)
_PREFIX = struct.Struct(
    ">q"  # offset
    "i"  # length: bytes after this field
)
_FIELD_LENGTH = struct.Struct(">i")  # of the key, then of the value; negative is null

HEADER_0_BYTES: Final = 18
HEADER_1_BYTES: Final = 26
MESSAGE_0_BYTES_MIN: Final = LEGACY_MESSAGE_BYTES_MIN

assert _HEADER_0.size == HEADER_0_BYTES
assert _HEADER_1.size == HEADER_1_BYTES
assert _PREFIX.size == PREFIX_BYTES

_OLD_LZ4_HEADER = lz4_frame.WRITTEN_HEADER[:-1] + b"\x1a"  # checksum over the frame magic as well


class _HeaderFields(NamedTuple):
    last_offset: int
    message_length: int
    crc: int
    magic: int
    attributes: int
    max_timestamp: int


class LegacyHeader(_HeaderFields):
    """The fixed bytes of a message, with the property names of `BatchHeader`.

    What the old formats do not have is the value that Kafka reports for it.
    """

    __slots__ = ()

    partition_leader_epoch: Final = NO_LEADER_EPOCH
    producer_id: Final = NO_PRODUCER_ID
    producer_epoch: Final = NO_PRODUCER_EPOCH
    base_sequence: Final = NO_SEQUENCE
    last_sequence: Final = NO_SEQUENCE
    has_producer: Final = False
    is_transactional: Final = False
    is_control: Final = False
    delete_horizon_ms: Final = None

    @classmethod
    def unpack(cls, buf: Buffer, at: int = 0) -> Self:
        """Read a header by its magic byte: a magic-0 message has no timestamp field."""
        if buf[at + MAGIC_AT] == 0:
            return cls._make((*_HEADER_0.unpack_from(buf, at), NO_TIMESTAMP))
        return cls._make(_HEADER_1.unpack_from(buf, at))

    def pack(self) -> bytes:
        return _HEADER_0.pack(*self[:-1]) if self.magic == 0 else _HEADER_1.pack(*self)

    @property
    def size_bytes(self) -> int:
        """Size of the entry, offset and length included."""
        return self.message_length + PREFIX_BYTES

    @property
    def header_bytes(self) -> int:
        """The position of the key's length in the entry."""
        return HEADER_0_BYTES if self.magic == 0 else HEADER_1_BYTES

    @property
    def base_offset(self) -> int | None:
        """None for a compressed set: only its messages have it."""
        return self.last_offset if self.codec_id == Codec.NONE else None

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def record_count(self) -> int | None:
        """None for a compressed set: only its messages have it."""
        return 1 if self.codec_id == Codec.NONE else None

    @property
    def codec_id(self) -> int:
        """The codec bits as they are; 4 (zstd) is illegal here, 5 to 7 name no codec."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        if self.magic == 0:
            return TimestampType.NO_TIMESTAMP
        return TimestampType(bool(self.attributes & LOG_APPEND_TIME_BIT))

    def sequence_of(self, _offset: int) -> int:
        return NO_SEQUENCE


def read_legacy_header(buf: Buffer, at: int, end: int | None = None) -> LegacyHeader:
    """The header of the magic-0 or magic-1 entry at `at`, with all checks except the CRC."""
    stop = len(buf) if end is None else min(end, len(buf))
    if stop - at < PREFIX_BYTES + MESSAGE_0_BYTES_MIN:
        raise CorruptBatchError(f"{stop - at} bytes are too few for a message", position=at)
    magic = buf[at + MAGIC_AT]
    if magic > 1:
        raise CorruptBatchError(f"magic is {magic}, not 0 or 1", position=at)
    if magic == 1 and stop - at < PREFIX_BYTES + MESSAGE_1_BYTES_MIN:
        raise CorruptBatchError(f"{stop - at} bytes are too few for a message", position=at)
    header = LegacyHeader.unpack(buf, at)
    if header.message_length < (MESSAGE_1_BYTES_MIN if magic else MESSAGE_0_BYTES_MIN):
        raise CorruptBatchError(f"invalid message length {header.message_length}", position=at)
    if header.last_offset < 0:
        raise CorruptBatchError(f"offset is {header.last_offset}", position=at)
    return header


def is_legacy_crc_valid(buf: Buffer, at: int, header: LegacyHeader) -> bool:
    """Whether the stored CRC matches the bytes. `buf` must hold the whole entry."""
    return _computed_crc(buf, at, header) == header.crc


def check_legacy_crc(buf: Buffer, at: int, header: LegacyHeader) -> None:
    """Raise unless the stored CRC matches the bytes. `buf` must hold the whole entry."""
    computed = _computed_crc(buf, at, header)
    if computed != header.crc:
        reason = f"CRC mismatch: stored {header.crc:08x}, computed {computed:08x}"
        raise CorruptBatchError(reason, position=at, offsets=_offsets(header))


def _computed_crc(buf: Buffer, at: int, header: LegacyHeader) -> int:
    return crc32(memoryview(buf)[at + MAGIC_AT : at + header.size_bytes])


def _offsets(header: LegacyHeader) -> tuple[int, int]:
    return header.last_offset, header.last_offset


def decode_legacy_records(
    buf: Buffer,
    at: int,
    header: LegacyHeader,
    *,
    check_crc: bool = True,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Iterator[Record]:
    """The record of the message at `at`, or the records of the set it wraps.

    The caller checks the outer CRC; `check_crc` is for inner messages, each of which has its own.
    """
    entry = bytes(memoryview(buf)[at : at + header.size_bytes])
    try:
        if header.codec_id == Codec.NONE:
            yield _decode_message(entry, 0, header, header.last_offset)
        else:
            inner = _inner_set(entry, header, decompressed_bytes_max)
            yield from _decode_set(inner, header, check_crc=check_crc)
    except (CorruptError, UnsupportedError, LimitExceededError) as error:
        raise located_in_batch(error, at, _offsets(header)) from None


def inner_magics(buf: Buffer, at: int, header: LegacyHeader) -> set[int]:
    """The magics of the messages in the set at `at`; none for a plain message."""
    if header.codec_id == Codec.NONE:
        return set()
    entry = bytes(memoryview(buf)[at : at + header.size_bytes])
    try:
        inner = _inner_set(entry, header, DECOMPRESSED_BYTES_MAX)
        return {inner[start + MAGIC_AT] for start, _ in _inner_entries(inner)}
    except (CorruptError, UnsupportedError, LimitExceededError) as error:
        raise located_in_batch(error, at, _offsets(header)) from None


def _decode_message(
    buf: bytes, at: int, header: LegacyHeader, offset: int, wrapper: LegacyHeader | None = None
) -> Record:
    end = at + header.size_bytes
    key, value_at = _read_field(buf, at + header.header_bytes, end)
    value, _ = _read_field(buf, value_at, end)
    timestamp, timestamp_type = header.max_timestamp, header.timestamp_type
    if wrapper is not None and header.magic != 0:
        timestamp_type = wrapper.timestamp_type
        if timestamp_type is TimestampType.LOG_APPEND_TIME:
            timestamp = wrapper.max_timestamp
    return Record(offset, timestamp, key, value, timestamp_type=timestamp_type)


def _read_field(buf: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    if end - at < _FIELD_LENGTH.size:
        raise CorruptRecordError("message ends before its key or value", position=at)
    (length,) = _FIELD_LENGTH.unpack_from(buf, at)
    at += _FIELD_LENGTH.size
    if length < 0:
        return None, at
    if length > end - at:
        raise CorruptRecordError(f"field of {length} bytes exceeds its message", position=at)
    return buf[at : at + length], at + length


def _inner_set(entry: bytes, wrapper: LegacyHeader, bytes_max: int) -> bytes:
    if wrapper.codec_id == Codec.ZSTD:
        raise CorruptRecordError("zstd is not legal below magic 2")
    compressed = _decode_message(entry, 0, wrapper, wrapper.last_offset).value
    if compressed is None:
        raise CorruptRecordError("compressed set is null")
    return decompress(
        wrapper.codec_id, compressed, bytes_max=bytes_max, legacy_lz4=wrapper.magic == 0
    )


def _decode_set(inner: bytes, wrapper: LegacyHeader, *, check_crc: bool) -> Iterator[Record]:
    base_offset = _base_of_relative_offsets(inner, wrapper)
    for at, end in _inner_entries(inner):
        header = read_legacy_header(inner, at, end)
        if check_crc:
            check_legacy_crc(inner, at, header)
        if header.codec_id != Codec.NONE:
            raise CorruptRecordError("compressed message inside a compressed set", position=at)
        offset = wrapped_long(base_offset + header.last_offset)
        yield _decode_message(inner, at, header, offset, wrapper)


def _base_of_relative_offsets(inner: bytes, wrapper: LegacyHeader) -> int:
    """What to add to inner offsets. Reads all of the set: the last inner offset decides."""
    last_inner_offset = None
    for at, _ in _inner_entries(inner):
        (last_inner_offset, _) = _PREFIX.unpack_from(inner, at)
    if last_inner_offset is None:
        raise CorruptRecordError("compressed set holds no messages")
    if wrapper.magic == 0 or wrapper.last_offset == 0:  # 0: some old clients wrote no last offset
        return 0
    if wrapper.last_offset < last_inner_offset:
        raise CorruptRecordError(
            f"wrapper offset {wrapper.last_offset} is below the last inner offset "
            f"{last_inner_offset}"
        )
    return wrapper.last_offset - int(last_inner_offset)


def _inner_entries(inner: bytes) -> Iterator[tuple[int, int]]:
    """Start and end of each whole entry of a decompressed set."""
    at = 0
    while len(inner) - at >= PREFIX_BYTES:
        _, length = _PREFIX.unpack_from(inner, at)
        if length < MESSAGE_0_BYTES_MIN:
            raise CorruptRecordError(f"invalid inner message length {length}", position=at)
        end = at + PREFIX_BYTES + length
        if end > len(inner):
            return
        yield at, end
        at = end


def encode_message(record: Record, magic: int, *, codec: Codec = Codec.NONE) -> bytes:
    """One entry. With a codec, the value is an already compressed set."""
    attributes = (
        attributes_of(codec=codec, timestamp_type=record.timestamp_type) if magic else codec
    )
    fields = _encode_field(record.key) + _encode_field(record.value)
    timestamp = record.timestamp if magic else NO_TIMESTAMP
    unsealed = LegacyHeader(record.offset, 0, 0, magic, attributes, timestamp)
    length = unsealed.header_bytes - PREFIX_BYTES + len(fields)
    crc = crc32(fields, crc32(unsealed.pack()[MAGIC_AT:]))
    return unsealed._replace(message_length=length, crc=crc).pack() + fields


def encode_legacy(
    records: Sequence[Record], magic: int, *, codec: Codec = Codec.NONE, level: int | None = None
) -> bytes:
    """`records` (at least one) as entries of this magic; with a codec, as one wrapper around them.

    The wrapper takes the first record's timestamp type. Headers are dropped: these formats have
    none.
    """
    if codec is Codec.NONE:
        return b"".join(encode_message(record, magic) for record in records)
    if codec is Codec.ZSTD:
        raise UnsupportedError("zstd is not legal below magic 2")
    base_offset = records[0].offset if magic else 0
    inner = b"".join(
        encode_message(record._replace(offset=record.offset - base_offset), magic)
        for record in records
    )
    wrapper = Record(
        offset=records[-1].offset,
        timestamp=max(record.timestamp for record in records),
        key=None,
        value=_compress_set(inner, magic, codec, level),
        timestamp_type=records[0].timestamp_type,
    )
    return encode_message(wrapper, magic, codec=codec)


def _compress_set(inner: bytes, magic: int, codec: Codec, level: int | None) -> bytes:
    compressed = compress(codec, inner, level=level)
    if magic == 0 and codec is Codec.LZ4:
        return _OLD_LZ4_HEADER + compressed[len(_OLD_LZ4_HEADER) :]
    return compressed


def _encode_field(value: bytes | None) -> bytes:
    if value is None:
        return _FIELD_LENGTH.pack(-1)
    return _FIELD_LENGTH.pack(len(value)) + value
