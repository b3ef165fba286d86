"""Record batch headers: magic 2 in full, and the prefix that every magic shares.

A `.log` file is batches end to end, nothing between them. All magics begin with offset (8 bytes)
and size (4), and keep the magic byte at 16, so 17 bytes are enough to classify an entry.

Invariants of a magic-2 batch:

* the CRC covers `attributes` to the end, so base offset and leader epoch may be rewritten freely;
* `last_offset` = base offset + last offset delta, even when compaction removed that record;
* a set delete-horizon bit turns `base_timestamp` into the horizon; record deltas count from it.
"""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from stratalog.errors import CorruptBatchError
from stratalog.format.buffers import crc32c

if TYPE_CHECKING:
    from stratalog.format.buffers import Buffer

_PREFIX = struct.Struct(
    ">q"  # offset: base offset (magic 2) or last offset (magic 0 and 1)
    "i"  # length: bytes after this field
)
_HEADER = struct.Struct(
    ">q"  # base_offset
    "i"  # batch_length: bytes after this field
    "i"  # partition_leader_epoch
    "b"  # magic: 2
    "I"  # crc: CRC-32C from attributes to the end
    "h"  # attributes
    "i"  # last_offset_delta
    "q"  # base_timestamp
    "q"  # max_timestamp
    "q"  # producer_id
    "h"  # producer_epoch
    "i"  # base_sequence
    "i"  # record_count
)

BATCH_FACTS: Final = struct.Struct(
    ">h"  # attributes
    "i"  # last_offset_delta
    "q"  # base_timestamp
    "q"  # max_timestamp
    "q"  # producer_id
)
"""A part of the header, from `ATTRIBUTES_AT` on: what an append has to know of a batch."""

PREFIX_BYTES: Final = 12  # base offset and length: what `batch_length` does not count
CLASSIFY_BYTES: Final = 17
HEADER_BYTES: Final = 61
LEGACY_MESSAGE_BYTES_MIN: Final = 14  # the smallest magic-0 message; a smaller length is corruption
MESSAGE_1_BYTES_MIN: Final = 22  # the smallest magic-1 message
MAGIC_2: Final = 2
OFFSET_MAX: Final = (1 << 63) - 1
TIMESTAMP_MAX: Final = (1 << 63) - 1
NO_TIMESTAMP: Final = -1
NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_LEADER_EPOCH: Final = -1


# Where the fields of the header begin, for code that has no use for all of them.
BATCH_LENGTH_AT: Final = 8
LEADER_EPOCH_AT: Final = 12
MAGIC_AT: Final = 16
CRC_AT: Final = 17
ATTRIBUTES_AT: Final = 21
LAST_OFFSET_DELTA_AT: Final = 23
BASE_TIMESTAMP_AT: Final = 27
MAX_TIMESTAMP_AT: Final = 35
PRODUCER_ID_AT: Final = 43
PRODUCER_EPOCH_AT: Final = 51
BASE_SEQUENCE_AT: Final = 53
RECORD_COUNT_AT: Final = 57

# The attributes.
CODEC_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

_SEQUENCES = 1 << 31

assert _HEADER.size == HEADER_BYTES
assert _PREFIX.size == PREFIX_BYTES


class Codec(enum.IntEnum):
    """Compression of a batch's records, as stored in the low three attribute bits."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class TimestampType(enum.IntEnum):
    """Who set a record's timestamp. Magic-0 messages carry none."""

    NO_TIMESTAMP = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1

    @property
    def kafka_name(self) -> str:
        return {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}[self.value]


class BatchHeader(NamedTuple):
    """The 61 fixed bytes of a magic-2 batch, in their order on disk."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @classmethod
    def unpack(cls, buf: Buffer, at: int = 0) -> Self:
        return cls._make(_HEADER.unpack_from(buf, at))

    def pack(self) -> bytes:
        return _HEADER.pack(*self)

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, header included."""
        return self.batch_length + PREFIX_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec_id(self) -> int:
        """The codec bits as they are; 5 to 7 name no codec."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> TimestampType:
        if self.attributes & LOG_APPEND_TIME_BIT:
            return TimestampType.LOG_APPEND_TIME
        return TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_producer(self) -> bool:
        return self.producer_id > NO_PRODUCER_ID

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None

    @property
    def last_sequence(self) -> int:
        return self.sequence_of(self.last_offset)

    def sequence_of(self, offset: int) -> int:
        """The producer's sequence number of the record at `offset` in this batch."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return advance_sequence(self.base_sequence, offset - self.base_offset)


def attributes_of(
    *,
    codec: Codec = Codec.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    is_transactional: bool = False,
    is_control: bool = False,
    has_delete_horizon: bool = False,
) -> int:
    """The attributes field with these flags set."""
    return (
        codec
        | (LOG_APPEND_TIME_BIT if timestamp_type is TimestampType.LOG_APPEND_TIME else 0)
        | (TRANSACTIONAL_BIT if is_transactional else 0)
        | (CONTROL_BIT if is_control else 0)
        | (DELETE_HORIZON_BIT if has_delete_horizon else 0)
    )


def advance_sequence(sequence: int, by: int) -> int:
    """Sequences count 0 to 2147483647 and then start over at 0."""
    return (sequence + by) % _SEQUENCES


class Entry(NamedTuple):
    """The position, size and magic of one batch or legacy message."""

    position: int
    offset: int
    """Base offset for magic 2; last offset for magic 0 and 1."""
    size_bytes: int
    magic: int

    @property
    def end(self) -> int:
        return self.position + self.size_bytes


def next_entry(buf: Buffer, at: int, end: int | None = None) -> Entry | None:
    """The entry that starts at `at`, or None when the bytes end before it does.

    Like Kafka's file walk it stops quietly at a partial tail and refuses a length no message can
    have. It checks neither the magic nor the CRC.
    """
    stop = len(buf) if end is None else min(end, len(buf))
    # Smaller than the smallest message; Kafka does not check the length here.
    if stop - at <= CLASSIFY_BYTES:
        return None
    offset, length = _PREFIX.unpack_from(buf, at)
    if length < LEGACY_MESSAGE_BYTES_MIN:
        raise CorruptBatchError(f"invalid batch length {length}", position=at)
    if stop - at < length + PREFIX_BYTES:
        return None
    return Entry(at, offset, length + PREFIX_BYTES, buf[at + MAGIC_AT])


def read_header(buf: Buffer, at: int, end: int | None = None) -> BatchHeader:
    """The magic-2 header at `at`, with all checks except the CRC."""
    stop = len(buf) if end is None else min(end, len(buf))
    if stop - at < HEADER_BYTES:
        raise CorruptBatchError(f"{stop - at} bytes are too few for a batch header", position=at)
    header = BatchHeader.unpack(buf, at)
    if header.magic != MAGIC_2:
        raise CorruptBatchError(f"magic is {header.magic}, not 2", position=at)
    if header.size_bytes < HEADER_BYTES:
        raise CorruptBatchError(
            f"batch of {header.size_bytes} bytes is smaller than its header", position=at
        )
    if header.record_count < 0:
        raise _wrong(header, at, f"invalid record count {header.record_count}")
    if header.base_offset < 0 or header.last_offset_delta < 0 or header.last_offset > OFFSET_MAX:
        raise _wrong(header, at, f"invalid offsets {header.base_offset} to {header.last_offset}")
    return header


def is_crc_valid(buf: Buffer, at: int, header: BatchHeader) -> bool:
    """Whether the stored CRC matches the bytes. `buf` must hold the whole batch."""
    body = memoryview(buf)[at + ATTRIBUTES_AT : at + header.size_bytes]
    return crc32c(body) == header.crc


def check_crc(buf: Buffer, at: int, header: BatchHeader) -> None:
    """Raise unless the stored CRC matches the bytes. `buf` must hold the whole batch."""
    computed = crc32c(memoryview(buf)[at + ATTRIBUTES_AT : at + header.size_bytes])
    if computed != header.crc:
        raise _wrong(header, at, f"CRC mismatch: stored {header.crc:08x}, computed {computed:08x}")


def with_payload(batch: Buffer, payload: Buffer) -> bytearray:
    """The header of a batch, with its length and CRC filled in, followed by `payload`."""
    out = bytearray(memoryview(batch)[:HEADER_BYTES])
    out += payload
    out[BATCH_LENGTH_AT:PREFIX_BYTES] = (len(out) - PREFIX_BYTES).to_bytes(4, "big")
    crc = crc32c(memoryview(out)[ATTRIBUTES_AT:])
    out[CRC_AT:ATTRIBUTES_AT] = crc.to_bytes(4, "big")
    return out


def _wrong(header: BatchHeader, at: int, reason: str) -> CorruptBatchError:
    offsets = (header.base_offset, header.last_offset)
    return CorruptBatchError(reason, position=at, offsets=offsets)


class BatchSpan(NamedTuple):
    """What indexes need of one batch or legacy entry. `position` is relative to its buffer."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    max_timestamp: int


# The few header fields that lookups and scans need, for every magic, in one unpack: a scan reads
# millions of headers. A peek does not check the CRC, so it is only plausible. A random position
# passes `is_plausible` about once in 2**40 tries, because offset, length and magic must all be in
# range.

_PEEK = struct.Struct(
    ">q"  # offset
    "i"  # length
    "4x"
    "b"  # magic
    "6x"
    "i"  # last_offset_delta, magic 2 only
    "8x"
    "q"  # max_timestamp, magic 2 only
)
_LEGACY = struct.Struct(
    ">q"  # offset
    "i"  # length
    "4x"
    "b"  # magic
)
_LEGACY_TIMESTAMP = struct.Struct(">q")
_LEGACY_TIMESTAMP_AT = 18
_LEGACY_TIMESTAMP_END = _LEGACY_TIMESTAMP_AT + _LEGACY_TIMESTAMP.size

PEEK_BYTES: Final = _PEEK.size

assert PEEK_BYTES == 43
assert _LEGACY.size == CLASSIFY_BYTES


class Peek(NamedTuple):
    """The first bytes of one batch or legacy message."""

    base_offset: int
    """For a compressed legacy set the LAST offset: the first needs decompression."""
    last_offset: int
    max_timestamp: int
    size_bytes: int
    magic: int

    def is_plausible(self, offset_min: int, bytes_left: int) -> bool:
        """Whether this can be a batch within `bytes_left` bytes, at `offset_min` or above."""
        if not 0 <= self.magic <= MAGIC_2 or self.size_bytes > bytes_left:
            return False
        return self.size_bytes >= size_bytes_min(self.magic) and (
            offset_min <= self.base_offset <= self.last_offset
        )


def size_bytes_min(magic: int) -> int:
    """The smallest entry of this magic, its 12-byte prefix included."""
    if magic >= MAGIC_2:
        return HEADER_BYTES
    return PREFIX_BYTES + (MESSAGE_1_BYTES_MIN if magic == 1 else LEGACY_MESSAGE_BYTES_MIN)


def peek(buf: Buffer, at: int = 0) -> Peek | None:
    """The first fields of the entry at `at`, or None if there are too few bytes."""
    if len(buf) - at >= PEEK_BYTES:
        offset, length, magic, delta, max_timestamp = _PEEK.unpack_from(buf, at)
        if magic >= MAGIC_2:
            return Peek(offset, offset + delta, max_timestamp, length + PREFIX_BYTES, magic)
    elif len(buf) - at >= CLASSIFY_BYTES:
        offset, length, magic = _LEGACY.unpack_from(buf, at)
        if magic >= MAGIC_2 or (magic == 1 and len(buf) - at < _LEGACY_TIMESTAMP_END):
            return None
    else:
        return None
    return Peek(offset, offset, _legacy_timestamp(buf, at, magic), length + PREFIX_BYTES, magic)


def _legacy_timestamp(buf: Buffer, at: int, magic: int) -> int:
    if magic != 1:
        return NO_TIMESTAMP
    return int(_LEGACY_TIMESTAMP.unpack_from(buf, at + _LEGACY_TIMESTAMP_AT)[0])
