"""Records inside a magic-2 batch: the readable reference for `columns.py`, and the batch builder.

Decoding is strict, as Kafka's is: a record must fill exactly its declared length, the records
exactly the payload. Every length is checked against the available bytes before anything is sliced.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import (
    CorruptError,
    CorruptRecordError,
    LimitExceededError,
    RecordsTooLargeError,
    UnsupportedError,
    UnsupportedRecordsError,
)
from stratalog.format import varint
from stratalog.format.batch import (
    HEADER_BYTES,
    MAGIC_2,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    Codec,
    TimestampType,
    attributes_of,
    with_payload,
)
from stratalog.format.compression import DECOMPRESSED_BYTES_MAX, compress, decompress
from stratalog.format.java_text import decode_utf8

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from stratalog.format.buffers import Buffer
    from stratalog.format.log_entry import EntryHeader

LAST_OFFSET_DELTA_MAX: Final = (1 << 31) - 1
RECORD_BYTES_MIN: Final = 7  # length, attributes, two deltas, key and value length, header count


class Header(NamedTuple):
    """One record header. Keys may repeat; values may be null."""

    key: str
    value: bytes | None


class Record(NamedTuple):
    """One record with its absolute offset and timestamp. A null value is a tombstone."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    timestamp_type: TimestampType = TimestampType.CREATE_TIME


def decode_records(
    buf: Buffer,
    at: int,
    header: BatchHeader,
    *,
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
) -> Iterator[Record]:
    """The records of the batch whose header was read at `at`. The caller checks the CRC.

    As in Kafka, a batch that declares no records has none, whatever follows its header.
    """
    if header.record_count == 0:
        return
    try:
        payload = _payload_of(buf, at, header, decompressed_bytes_max)
        yield from _decode_payload(payload, header)
    except (CorruptRecordError, UnsupportedError, LimitExceededError) as error:
        raise located_in_batch(error, at, (header.base_offset, header.last_offset)) from None


def located_in_batch(
    error: CorruptError | UnsupportedError | LimitExceededError, at: int, offsets: tuple[int, int]
) -> CorruptRecordError:
    """`error`, which was raised for the payload of the batch at `at`, as an error of that batch."""
    if isinstance(error, CorruptError):
        reason = f"in the records (payload byte {error.position}): {error.reason}"
        return CorruptRecordError(reason, position=at, offsets=offsets)
    kind = UnsupportedRecordsError if isinstance(error, UnsupportedError) else RecordsTooLargeError
    return kind(str(error), position=at, offsets=offsets)


def _payload_of(buf: Buffer, at: int, header: BatchHeader, bytes_max: int) -> bytes:
    """The records' bytes, decompressed. Copied first: an error's traceback must not keep a view of
    `buf` alive, which may be a mapped file about to be closed."""
    stored = bytes(memoryview(buf)[at + HEADER_BYTES : at + header.size_bytes])
    if header.codec_id == Codec.NONE:
        return stored
    return decompress(header.codec_id, stored, bytes_max=bytes_max)


def _decode_payload(payload: bytes, header: BatchHeader) -> Iterator[Record]:
    if header.record_count * RECORD_BYTES_MIN > len(payload):
        raise CorruptRecordError(f"{header.record_count} records cannot fit {len(payload)} bytes")
    at = 0
    timestamp_type = header.timestamp_type
    for _ in range(header.record_count):
        record, at = _decode_record(payload, at, header, timestamp_type)
        yield record
    if at != len(payload):
        raise CorruptRecordError(
            f"{len(payload) - at} bytes left after the last record", position=at
        )


def _decode_record(
    buf: bytes, at: int, header: BatchHeader, timestamp_type: TimestampType
) -> tuple[Record, int]:
    length, start = varint.read_int(buf, at, len(buf))
    end = start + length
    if length < RECORD_BYTES_MIN - 1 or end > len(buf):
        raise CorruptRecordError(f"invalid record length {length}", position=at)
    timestamp_delta, at = varint.read_long(buf, start + 1, end)  # start holds the unused attributes
    offset_delta, at = varint.read_int(buf, at, end)
    key, at = _read_bytes(buf, at, end)
    value, at = _read_bytes(buf, at, end)
    headers, at = read_headers(buf, at, end)
    if at != end:
        raise CorruptRecordError(f"record ends {end - at} bytes early", position=at)
    timestamp = header.max_timestamp
    if timestamp_type is TimestampType.CREATE_TIME:
        timestamp = varint.wrapped_long(header.base_timestamp + timestamp_delta)
    offset = varint.wrapped_long(header.base_offset + offset_delta)
    return Record(offset, timestamp, key, value, headers, timestamp_type), end


def _read_bytes(buf: bytes, at: int, end: int) -> tuple[bytes | None, int]:
    """Any negative length is null: Kafka writes -1 and reads others the same way."""
    length, at = varint.read_int(buf, at, end)
    if length < 0:
        return None, at
    if length > end - at:
        raise CorruptRecordError(f"field of {length} bytes exceeds its record", position=at)
    return buf[at : at + length], at + length


def read_headers(buf: bytes, at: int, end: int) -> tuple[tuple[Header, ...], int]:
    """The headers of a record whose number of headers is at `at`, and the position after them."""
    count, at = varint.read_int(buf, at, end)
    if count == 0:
        return (), at
    if count < 0 or count > end - at:
        raise CorruptRecordError(f"invalid header count {count}", position=at)
    headers = []
    for _ in range(count):
        key, at = _read_bytes(buf, at, end)
        if key is None:
            raise CorruptRecordError("header key is null", position=at)
        value, at = _read_bytes(buf, at, end)
        headers.append(Header(decode_utf8(key), value))
    return tuple(headers), at


class BatchFields(NamedTuple):
    """The fields of a batch besides its records. The defaults are those of a plain producer.

    `base_offset` and `last_offset` are for compaction, which keeps them when it drops the first or
    last record; `max_timestamp` is for LogAppendTime, where records keep their producer's times.
    """

    codec: Codec = Codec.NONE
    level: int | None = None
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    is_transactional: bool = False
    is_control: bool = False
    delete_horizon_ms: int | None = None
    partition_leader_epoch: int = NO_LEADER_EPOCH
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    base_offset: int | None = None
    """None: the first record's."""
    last_offset: int | None = None
    """None: the last record's."""
    max_timestamp: int | None = None
    """None: the largest of the records."""

    @classmethod
    def kept_of(cls, header: EntryHeader) -> BatchFields:
        """What a batch keeps, however it is written anew: who wrote it, and how."""
        return cls(
            is_transactional=header.is_transactional,
            is_control=header.is_control,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
        )

    @property
    def attributes(self) -> int:
        """As the header stores them."""
        return attributes_of(
            codec=self.codec,
            timestamp_type=self.timestamp_type,
            is_transactional=self.is_transactional,
            is_control=self.is_control,
            has_delete_horizon=self.delete_horizon_ms is not None,
        )


_PLAIN = BatchFields()


def encode_batch(records: Sequence[Record], fields: BatchFields = _PLAIN) -> bytes:
    """One batch of `records` (at least one), their offsets and timestamps as they are."""
    base_offset = _or_else(fields.base_offset, records[0].offset)
    last_offset = _or_else(fields.last_offset, records[-1].offset)
    if not base_offset <= records[0].offset <= records[-1].offset <= last_offset:
        raise ValueError("record offsets decrease, or are outside the batch")
    if last_offset - base_offset > LAST_OFFSET_DELTA_MAX:
        raise LimitExceededError(f"offsets {base_offset} to {last_offset} do not fit one batch")
    base_timestamp = _or_else(fields.delete_horizon_ms, records[0].timestamp)
    payload = bytearray()
    for record in records:
        _encode_record(payload, record, base_offset, base_timestamp)
    template = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        partition_leader_epoch=fields.partition_leader_epoch,
        magic=MAGIC_2,
        crc=0,
        attributes=fields.attributes,
        last_offset_delta=last_offset - base_offset,
        base_timestamp=base_timestamp,
        max_timestamp=_or_else(fields.max_timestamp, max(record.timestamp for record in records)),
        producer_id=fields.producer_id,
        producer_epoch=fields.producer_epoch,
        base_sequence=fields.base_sequence,
        record_count=len(records),
    )
    return seal_batch(template, compress(fields.codec, bytes(payload), level=fields.level))


class RecordLists:
    """The fields of records that become one batch, with offsets from 0."""

    __slots__ = ("headers", "keys", "timestamps", "values")

    def __init__(self) -> None:
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.timestamps: list[int] = []
        self.headers: dict[int, tuple[Header, ...]] = {}
        """The headers of records that have any, by the index of the record."""

    def __len__(self) -> int:
        return len(self.timestamps)

    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: tuple[Header, ...] = (),
    ) -> None:
        """Add a record at the end."""
        if headers:
            self.headers[len(self)] = headers
        self.keys.append(key)
        self.values.append(value)
        self.timestamps.append(timestamp)

    def records(self) -> Iterator[tuple[bytes | None, bytes | None, int, tuple[Header, ...]]]:
        """Key, value, timestamp and headers of each record."""
        for index, (key, value, timestamp) in enumerate(
            zip(self.keys, self.values, self.timestamps, strict=True)
        ):
            yield key, value, timestamp, self.headers.get(index, ())


_SMALL: Final = 8192


@cache
def _small_varints() -> tuple[bytes, ...]:
    """The zig-zag varints of 0 to 8191: of nearly all lengths and deltas."""
    one = [bytes((number << 1,)) for number in range(64)]
    two = [bytes((number << 1 & 0x7F | 0x80, number >> 6)) for number in range(64, _SMALL)]
    return (*one, *two)


def _varint(value: int) -> bytes:
    out = bytearray()
    varint.write_long(out, value)
    return bytes(out)


def encode_lists(lists: RecordLists, fields: BatchFields = _PLAIN) -> bytearray:
    """What `encode_batch` returns for these records, several times as fast."""
    small = _small_varints()
    parts: list[bytes] = []
    timestamps, headers = lists.timestamps, lists.headers
    base = timestamps[0]
    none, no_headers = b"\x01", b"\0"
    for index, (key, value, timestamp) in enumerate(
        zip(lists.keys, lists.values, timestamps, strict=True)
    ):
        delta = timestamp - base
        if key is None:
            key_size = none
        else:
            key_size = small[len(key)] if len(key) < _SMALL else _varint(len(key))
        if value is None:
            value_size = none
        else:
            value_size = small[len(value)] if len(value) < _SMALL else _varint(len(value))
        body = b"".join(
            (
                b"\0",  # attributes, unused
                small[delta] if 0 <= delta < _SMALL else _varint(delta),
                small[index] if index < _SMALL else _varint(index),
                key_size,
                key or b"",
                value_size,
                value or b"",
                _encoded_headers(headers[index]) if index in headers else no_headers,
            )
        )
        parts += (small[len(body)] if len(body) < _SMALL else _varint(len(body)), body)
    count = len(timestamps)
    largest = max(timestamps) if fields.max_timestamp is None else fields.max_timestamp
    template = BatchHeader(
        0,
        0,
        fields.partition_leader_epoch,
        MAGIC_2,
        0,
        fields.attributes,
        count - 1,
        base,
        largest,
        fields.producer_id,
        fields.producer_epoch,
        fields.base_sequence,
        count,
    )
    payload = b"".join(parts)
    if fields.codec is not Codec.NONE:
        payload = compress(fields.codec, payload, level=fields.level)
    return with_payload(template.pack(), payload)


def _encoded_headers(headers: Sequence[Header]) -> bytes:
    out = bytearray()
    varint.write_int(out, len(headers))
    _write_headers(out, headers)
    return bytes(out)


def _or_else(value: int | None, default: int) -> int:
    return default if value is None else value


def encode_empty_batch(header: BatchHeader) -> bytes:
    """What compaction keeps of a batch that its producer still needs: the header, no records."""
    keep = attributes_of(
        timestamp_type=header.timestamp_type,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
    )
    template = header._replace(attributes=keep, base_timestamp=NO_TIMESTAMP, record_count=0)
    return seal_batch(template, b"")


def seal_batch(template: BatchHeader, payload: Buffer) -> bytes:
    """`template` with its length and CRC filled in, followed by `payload`."""
    return bytes(with_payload(template.pack(), payload))


def _encode_record(out: bytearray, record: Record, base_offset: int, base_timestamp: int) -> None:
    body = bytearray(1)  # attributes, unused
    varint.write_long(body, record.timestamp - base_timestamp)
    varint.write_int(body, record.offset - base_offset)
    _write_bytes(body, record.key)
    _write_bytes(body, record.value)
    varint.write_int(body, len(record.headers))
    _write_headers(body, record.headers)
    varint.write_int(out, len(body))
    out += body


def _write_headers(out: bytearray, headers: Iterable[Header]) -> None:
    for key, value in headers:
        _write_bytes(out, key.encode())
        _write_bytes(out, value)


def _write_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        varint.write_int(out, -1)
        return
    varint.write_int(out, len(value))
    out += value
