"""What a leader checks before it appends, said plainly: the readable twin of the compiled kernel.

Kafka's order of checks is kept, because it decides which error a client sees: first each batch by
its header and CRC, then what the batches are together, then record by record. Nothing is changed
before everything was checked.

Where Kafka itself stumbles, a typed refusal stands instead: records that cannot be decompressed, a
batch smaller than its header or of an unknown codec.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stratalog.errors import (
    AppendError,
    CorruptBatchError,
    CorruptError,
    CorruptMessageError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    RecordError,
    UnsupportedCompressionTypeError,
)
from stratalog.format.batch import (
    CLASSIFY_BYTES,
    HEADER_BYTES,
    LEGACY_MESSAGE_BYTES_MIN,
    MAGIC_2,
    MAGIC_AT,
    NO_TIMESTAMP,
    PREFIX_BYTES,
    BatchHeader,
    Codec,
    Entry,
    TimestampType,
)
from stratalog.format.entry import is_entry_crc_right
from stratalog.format.legacy import decode_legacy_records, inner_magics, read_legacy_header
from stratalog.format.record import decode_records
from stratalog.format.varint import wrapped_long
from stratalog.log.origin import AppendOrigin

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stratalog.format.buffers import Buffer
    from stratalog.format.entry import EntryHeader
    from stratalog.format.legacy import LegacyHeader
    from stratalog.format.record import Record
    from stratalog.log.appends import AppendRules, Assignment

_CODECS = frozenset(Codec)


class SentBatch(NamedTuple):
    """A whole batch of the data that was sent; its CRC is right."""

    entry: Entry
    header: EntryHeader


def sent_batches(
    data: Buffer, assign: Assignment, *, max_message_bytes: int | None
) -> list[SentBatch]:
    """The batches of `data`, each checked by its header and CRC. A partial one at the end is cut.

    `max_message_bytes` None sets no limit, as for data that a leader has accepted before.
    """
    batches = []
    for entry in _entries(data):
        header = _header_of(data, entry)
        _check_header(header, assign)
        if max_message_bytes is not None and header.size_bytes > max_message_bytes:
            raise too_large(header.size_bytes, max_message_bytes)
        if not is_entry_crc_right(data, entry, header):
            raise CorruptMessageError(
                f"batch at byte {entry.position}: its bytes do not give its CRC {header.crc:08x}"
            )
        if header.codec_id not in _CODECS:
            raise UnsupportedCompressionTypeError(f"codec id {header.codec_id} names no codec")
        batches.append(SentBatch(entry, header))
    return batches


def too_large(size_bytes: int, bytes_max: int) -> MessageTooLargeError:
    """The refusal of a batch of this size."""
    return MessageTooLargeError(
        f"batch of {size_bytes} bytes is larger than max.message.bytes, which is {bytes_max}"
    )


def _entries(data: Buffer) -> Iterator[Entry]:
    """As Kafka walks data in memory: unlike in a file, the magic is checked."""
    at, end = 0, len(data)
    while end - at >= PREFIX_BYTES:
        length = int.from_bytes(data[at + 8 : at + PREFIX_BYTES], "big", signed=True)
        if length < LEGACY_MESSAGE_BYTES_MIN:
            raise CorruptMessageError(f"batch at byte {at}: its length is {length}")
        if end - at < CLASSIFY_BYTES:
            return
        magic = data[at + MAGIC_AT]
        if magic > MAGIC_2:
            raise CorruptMessageError(f"batch at byte {at}: its magic is {magic}, not 0 to 2")
        if end - at < length + PREFIX_BYTES:
            return
        offset = int.from_bytes(data[at : at + 8], "big", signed=True)
        yield Entry(at, offset, length + PREFIX_BYTES, magic)
        at += length + PREFIX_BYTES


def _header_of(data: Buffer, entry: Entry) -> EntryHeader:
    if entry.magic < MAGIC_2:
        try:
            return read_legacy_header(data, entry.position, entry.end)
        except CorruptBatchError as error:
            raise CorruptMessageError(str(error)) from None
    if entry.size_bytes < HEADER_BYTES:
        raise CorruptMessageError(
            f"batch at byte {entry.position} of {entry.size_bytes} bytes is smaller than its header"
        )
    return BatchHeader.unpack(data, entry.position)


def _check_header(header: EntryHeader, assign: Assignment) -> None:
    if (
        assign.origin is AppendOrigin.RAFT_LEADER
        and header.partition_leader_epoch != assign.leader_epoch
    ):
        raise InvalidRecordError(
            f"batch has leader epoch {header.partition_leader_epoch}, "
            f"the leader's is {assign.leader_epoch}"
        )
    if (
        isinstance(header, BatchHeader)
        and assign.origin is AppendOrigin.CLIENT
        and header.base_offset != 0
    ):
        raise InvalidRecordError(f"base offset is {header.base_offset}, clients send 0")


def check_together(batches: Sequence[SentBatch], origin: AppendOrigin) -> None:
    """What holds for the batches of one request, apart from their records."""
    first = batches[0].entry.magic
    is_compressed = any(batch.header.codec_id != Codec.NONE for batch in batches)
    if len(batches) > 1 and (first == MAGIC_2 or is_compressed):
        raise InvalidRecordError(f"{len(batches)} batches, where there may be one")
    for entry, header in batches:
        if entry.magic != first:
            raise InvalidRecordError(f"batches of magic {first} and {entry.magic} together")
        if isinstance(header, BatchHeader):
            _check_batch(header, origin)


def _check_batch(header: BatchHeader, origin: AppendOrigin) -> None:
    """Kafka asks coordinators less; no coordinator's batch fails what is asked here."""
    count, delta = header.record_count, header.last_offset_delta
    if count <= 0 or delta + 1 != count:
        raise InvalidRecordError(f"last offset delta is {delta} and record count {count}")
    if origin is not AppendOrigin.CLIENT:
        return
    if header.is_control:
        raise InvalidRecordError("clients may not write control batches")
    if header.has_producer and header.base_sequence < 0:
        raise InvalidRecordError(
            f"base sequence is {header.base_sequence} with producer id {header.producer_id}"
        )


def sent_records(data: Buffer, batch: SentBatch) -> list[Record]:
    """The records of a batch, wholly decoded: what cannot be read must not be stored."""
    at, header = batch.entry.position, batch.header
    try:
        if isinstance(header, BatchHeader):
            return list(decode_records(data, at, header))
        return _legacy_records(data, at, header)
    except CorruptError as error:
        raise InvalidRecordError(error.reason) from None


def _legacy_records(data: Buffer, at: int, header: LegacyHeader) -> list[Record]:
    """A set must hold messages of its own magic, each with a right CRC."""
    if not inner_magics(data, at, header) <= {header.magic}:
        raise InvalidRecordError(f"a set of magic {header.magic} holds messages of another")
    list(decode_legacy_records(data, at, header, check_crc=False))  # structure first, as Kafka
    try:
        return list(decode_legacy_records(data, at, header, check_crc=True))
    except CorruptError as error:
        raise CorruptMessageError(error.reason) from None


def check_records(
    records: Sequence[Record], header: EntryHeader, rules: AppendRules, now_ms: int
) -> None:
    """Raise if one record breaks the topic's rules. All that do are named."""
    key_errors, time_errors = [], []
    for index, record in enumerate(records):
        if rules.is_compacted and record.key is None:
            key_errors.append(RecordError(index, "a compacted topic takes no record without key"))
        elif (reason := _time_error(record.timestamp, header, rules, now_ms)) is not None:
            time_errors.append(RecordError(index, reason))
    if key_errors or time_errors:
        raise refusal(key_errors, time_errors)


def refusal(key_errors: list[RecordError], time_errors: list[RecordError]) -> AppendError:
    """One error for all bad records of a batch. A bad timestamp decides its kind, as in Kafka."""
    errors = tuple(sorted(key_errors + time_errors))
    first = f"record {errors[0].batch_index} of the batch: {errors[0].message}"
    more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
    kind = InvalidTimestampError if time_errors else InvalidRecordError
    return kind(first + more, record_errors=errors)


def _time_error(timestamp: int, header: EntryHeader, rules: AppendRules, now_ms: int) -> str | None:
    if timestamp == NO_TIMESTAMP or rules.is_log_append_time:
        if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
            return "producers must not set the timestamp type to LogAppendTime"
        return None
    age = wrapped_long(now_ms - timestamp)  # Java's arithmetic, for timestamps from beyond the sun
    if age > rules.timestamp_before_max_ms:
        return (
            f"timestamp {timestamp} is more than {rules.timestamp_before_max_ms} ms before {now_ms}"
        )
    if wrapped_long(-age) > rules.timestamp_after_max_ms:
        return (
            f"timestamp {timestamp} is more than {rules.timestamp_after_max_ms} ms after {now_ms}"
        )
    return None
