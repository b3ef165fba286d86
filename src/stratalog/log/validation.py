"""Kafka's checks of an append, and the offsets that the leader assigns.

`LeaderValidator` is for data that producers and coordinators send, `validate_follower` for data to
which a leader has assigned offsets. Both are functions of bytes and values: no file, no clock.

The order of checks is Kafka's, because it decides which error a client gets: each batch by its
header and CRC, then the batches together, then record by record. Nothing is changed before
everything was checked. Where Kafka fails with an unexpected error, there is a typed one: records
that cannot be decompressed, a batch smaller than its header or of an unknown codec.

The leader validates in one of two ways, with the same result. The checks here are readable; a
compiled kernel (`compiled_validation`) does the common case, batches that are stored as they came,
at a hundred times the speed, but takes half a second to load. Which one pays off is not known
beforehand, so the readable code is used until it has cost about as much as loading the kernel, or
until something else has loaded the kernel. What the kernel does not accept is validated by the
readable code, which usually refuses it with a reason or rewrites it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import (
    AppendError,
    CorruptBatchError,
    CorruptError,
    CorruptMessageError,
    InvalidRecordError,
    InvalidTimestampError,
    LimitExceededError,
    MessageTooLargeError,
    RecordError,
    RecordListTooLargeError,
    StratalogError,
    UnexpectedAppendOffsetError,
    UnsupportedCompressionTypeError,
)
from stratalog.format.batch import (
    ATTRIBUTES_AT,
    BATCH_FACTS,
    CLASSIFY_BYTES,
    CODEC_MASK,
    CONTROL_BIT,
    HEADER_BYTES,
    LEGACY_MESSAGE_BYTES_MIN,
    LOG_APPEND_TIME_BIT,
    MAGIC_2,
    MAGIC_AT,
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    OFFSET_MAX,
    PREFIX_BYTES,
    BatchHeader,
    BatchSpan,
    Codec,
    Entry,
    TimestampType,
)
from stratalog.format.buffers import crc32c
from stratalog.format.legacy import decode_legacy_records, inner_magics, read_legacy_header
from stratalog.format.log_entry import is_entry_crc_valid, records_of
from stratalog.format.record import decode_records
from stratalog.format.varint import wrapped_long
from stratalog.log.compiled_validation import CompiledValidation
from stratalog.log.offset_assignment import (
    EMPTY_APPEND,
    NO_OFFSET,
    OFFSET_AND_EPOCH,
    OFFSETS_PER_REQUEST_MAX,
    AppendOrigin,
    Assignment,
    BatchFacts,
    GroupAppend,
    ValidatedAppend,
    assign_offsets,
    can_stay,
    keeps_codec,
    max_timestamp_of,
    next_assignment,
    rewrite,
    with_assigned_header,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stratalog.format.buffers import Buffer
    from stratalog.format.legacy import LegacyHeader
    from stratalog.format.log_entry import EntryHeader
    from stratalog.format.record import Record
    from stratalog.log.offset_assignment import AppendResult, AppendRules

_CODECS = frozenset(Codec)


class SentBatch(NamedTuple):
    """A complete batch of the data that was sent; its CRC is valid."""

    entry: Entry
    header: EntryHeader


def sent_batches(
    data: Buffer, assign: Assignment, *, max_message_bytes: int | None
) -> list[SentBatch]:
    """The batches of `data`, each checked by its header and CRC, without a partial one at the end.

    `max_message_bytes` None: no limit, for data that a leader has already accepted.
    """
    batches = []
    for entry in _entries(data):
        header = _header_of(data, entry)
        _check_header(header, assign)
        if max_message_bytes is not None and header.size_bytes > max_message_bytes:
            raise too_large(header.size_bytes, max_message_bytes)
        if not is_entry_crc_valid(data, entry, header):
            raise CorruptMessageError(
                f"batch at byte {entry.position}: CRC mismatch; the stored CRC is {header.crc:08x}"
            )
        if header.codec_id not in _CODECS:
            raise UnsupportedCompressionTypeError(f"unknown codec id {header.codec_id}")
        batches.append(SentBatch(entry, header))
    return batches


def too_large(size_bytes: int, bytes_max: int) -> MessageTooLargeError:
    """The error for a batch of this size."""
    return MessageTooLargeError(
        f"batch of {size_bytes} bytes is larger than max.message.bytes, which is {bytes_max}"
    )


def _entries(data: Buffer) -> Iterator[Entry]:
    """The complete batches of `data`. As when Kafka walks data in memory, and unlike in a file, the
    magic is checked."""
    at, end = 0, len(data)
    while end - at >= PREFIX_BYTES:
        length = int.from_bytes(data[at + 8 : at + PREFIX_BYTES], "big", signed=True)
        if length < LEGACY_MESSAGE_BYTES_MIN:
            raise CorruptMessageError(f"batch at byte {at}: invalid length {length}")
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
        raise InvalidRecordError(f"base offset is {header.base_offset}; clients must send 0")


def check_together(batches: Sequence[SentBatch], origin: AppendOrigin) -> None:
    """Raise if the batches of one request, apart from their records, break a rule."""
    first = batches[0].entry.magic
    is_compressed = any(batch.header.codec_id != Codec.NONE for batch in batches)
    if len(batches) > 1 and (first == MAGIC_2 or is_compressed):
        raise InvalidRecordError(f"{len(batches)} batches in a request, expected one")
    for entry, header in batches:
        if entry.magic != first:
            raise InvalidRecordError(f"one request has batches of magic {first} and {entry.magic}")
        if isinstance(header, BatchHeader):
            _check_batch(header, origin)


def _check_batch(header: BatchHeader, origin: AppendOrigin) -> None:
    """Raise if the header of a batch breaks a rule. Kafka checks coordinators less, but none of
    their batches fails these checks."""
    count, delta = header.record_count, header.last_offset_delta
    if count <= 0 or delta + 1 != count:
        raise InvalidRecordError(f"last offset delta {delta} does not match record count {count}")
    if origin is not AppendOrigin.CLIENT:
        return
    if header.is_control:
        raise InvalidRecordError("clients may not write control batches")
    if header.has_producer and header.base_sequence < 0:
        raise InvalidRecordError(
            f"base sequence {header.base_sequence} is invalid for producer id {header.producer_id}"
        )


def sent_records(data: Buffer, batch: SentBatch) -> list[Record]:
    """The records of a batch, all decoded: what cannot be read must not be stored."""
    at, header = batch.entry.position, batch.header
    try:
        if isinstance(header, BatchHeader):
            return list(decode_records(data, at, header))
        return _legacy_records(data, at, header)
    except CorruptError as error:
        raise InvalidRecordError(error.reason) from None


def _legacy_records(data: Buffer, at: int, header: LegacyHeader) -> list[Record]:
    """The messages of a set; raises if one has another magic than the set, or a wrong CRC."""
    if not inner_magics(data, at, header) <= {header.magic}:
        raise InvalidRecordError(
            f"a message set of magic {header.magic} contains messages of another magic"
        )
    list(decode_legacy_records(data, at, header, check_crc=False))  # structure first, as Kafka
    try:
        return list(decode_legacy_records(data, at, header, check_crc=True))
    except CorruptError as error:
        raise CorruptMessageError(error.reason) from None


def check_records(
    records: Sequence[Record], header: EntryHeader, rules: AppendRules, now_ms: int
) -> None:
    """Raise if a record breaks the topic's rules. The error names all that do."""
    key_errors, time_errors = [], []
    for index, record in enumerate(records):
        if rules.is_compacted and record.key is None:
            key_errors.append(
                RecordError(index, "a compacted topic accepts no record without a key")
            )
        elif (reason := _time_error(record.timestamp, header, rules, now_ms)) is not None:
            time_errors.append(RecordError(index, reason))
    if key_errors or time_errors:
        raise rejection(key_errors, time_errors)


def rejection(key_errors: list[RecordError], time_errors: list[RecordError]) -> AppendError:
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
    age = wrapped_long(now_ms - timestamp)  # Java's arithmetic, for extreme timestamps
    if age > rules.timestamp_before_max_ms:
        return (
            f"timestamp {timestamp} is more than {rules.timestamp_before_max_ms} ms before {now_ms}"
        )
    if wrapped_long(-age) > rules.timestamp_after_max_ms:
        return (
            f"timestamp {timestamp} is more than {rules.timestamp_after_max_ms} ms after {now_ms}"
        )
    return None


LOAD_KERNEL_AFTER_RECORDS: Final = 100_000
_KERNEL: Final = "stratalog.format.kernels.validate"


def validate_follower(data: Buffer, *, log_end_offset: int) -> ValidatedAppend:
    """Batches to which a leader has assigned offsets, of every magic, to be written as they are.

    They may be larger than the topic now allows: the leader has accepted them. Raises
    CorruptMessageError for corrupt data, UnexpectedAppendOffsetError for data that does not
    continue the log.
    """
    assign = Assignment(log_end_offset, NO_LEADER_EPOCH, NO_TIMESTAMP, AppendOrigin.REPLICATION)
    return _placed(data, sent_batches(data, assign, max_message_bytes=None), log_end_offset)


class LeaderValidator:
    """Validates requests for the leader, in compiled code once that pays off."""

    def __init__(self, *, compiled: bool | None = None) -> None:
        """`compiled`: None loads the kernel when it pays off, True with the first use."""
        self._may_load = compiled is not False
        self._records_seen = LOAD_KERNEL_AFTER_RECORDS + 1 if compiled else 0
        self.compiled: CompiledValidation | None = None
        """For the rules and origin that it was last used with."""

    def validate(self, data: Buffer, rules: AppendRules, assign: Assignment) -> ValidatedAppend:
        """The batches of one request, ready to be written; raises an AppendError if they are
        refused.

        `data` is not changed. Bytes after the last complete batch are dropped; without any complete
        batch the result is empty.
        """
        _check_offsets_left(assign, 1)
        compiled = self._compiled_for(rules, assign.origin)
        if compiled is not None:
            append = compiled.validate(data, assign)
            if append is not None:
                return append
        result = self._readably(data, rules, assign)
        if isinstance(result, AppendError):
            raise result
        return result

    def validate_group(
        self, requests: Sequence[Buffer], rules: AppendRules, assign: Assignment
    ) -> GroupAppend:
        """Several requests, each with the result as if it came alone after those before it.

        A refused request takes no offsets, and its error is its result.
        """
        _check_offsets_left(assign, len(requests))
        compiled = self._compiled_for(rules, assign.origin)
        if compiled is not None:
            return compiled.validate_group(requests, assign, self._readably)
        results: list[AppendResult] = []
        for data in requests:
            results.append(self._readably(data, rules, assign))
            assign = next_assignment(assign, results[-1])
        log_append_time_ms = assign.now_ms if rules.is_log_append_time else NO_TIMESTAMP
        return GroupAppend.of(results, assign.next_offset, log_append_time_ms)

    def _readably(self, data: Buffer, rules: AppendRules, assign: Assignment) -> AppendResult:
        try:
            result = validate_readably(data, rules, assign)
        except AppendError as error:
            return error
        self._records_seen += result.record_count
        return result

    def _compiled_for(self, rules: AppendRules, origin: AppendOrigin) -> CompiledValidation | None:
        compiled = self.compiled
        if compiled is not None and compiled.rules is rules and compiled.origin is origin:
            return compiled
        if not self._may_load or origin is AppendOrigin.RAFT_LEADER:
            return None
        if self._records_seen <= LOAD_KERNEL_AFTER_RECORDS and _KERNEL not in sys.modules:
            return None
        self.compiled = CompiledValidation(import_module(_KERNEL), rules, origin)
        return self.compiled


def assign_by_header(data: Buffer, rules: AppendRules, assign: Assignment) -> Buffer | None:
    """A copy of one batch that a client sent, with its offsets, checked by its header and CRC.

    The records are not decoded. None if the topic's rules require them to be, or if anything is
    wrong; `LeaderValidator.validate` then says what.
    """
    if len(data) < HEADER_BYTES or rules.is_compacted:
        return None
    _check_offsets_left(assign, 1)
    header = BatchHeader.unpack(data)
    if (
        header.magic != MAGIC_2
        or header.size_bytes != len(data)
        or not _accepts_header(header, rules, assign.now_ms)
        or header.crc != crc32c(memoryview(data)[ATTRIBUTES_AT:])
    ):
        return None
    return with_assigned_header(data, header, header.max_timestamp, rules, assign).data


def _accepts_header(header: BatchHeader, rules: AppendRules, now_ms: int) -> bool:
    """Whether the header of a client's batch is in order, and its records may be stored without
    being decoded."""
    attributes = header.attributes
    if attributes & (CONTROL_BIT | LOG_APPEND_TIME_BIT) or header.codec_id not in _CODECS:
        return False
    if header.base_offset or not 0 < header.record_count == header.last_offset_delta + 1:
        return False
    if header.has_producer and header.base_sequence < 0:
        return False
    if not NO_TIMESTAMP <= header.base_timestamp <= header.max_timestamp:
        return False
    # The header does not have the oldest timestamp. It is taken to be the oldest possible, so that
    # any limit on age leads to the check of all records.
    facts = BatchFacts(oldest_timestamp=NO_TIMESTAMP, has_all_keys=True)
    size_bytes, newest = header.size_bytes, header.max_timestamp
    return _stores_as_is(size_bytes, attributes, newest, facts, rules, now_ms)


def assign_own(
    data: Buffer, facts: BatchFacts, rules: AppendRules, assign: Assignment
) -> Buffer | None:
    """A copy of one batch that this process has encoded, with its offsets.

    It is trusted: it is not decoded, and its CRC is not checked. None if the topic rejects such a
    batch or rewrites it; then call `LeaderValidator.validate`.
    """
    _check_offsets_left(assign, 1)
    attributes, _, _, max_timestamp, _ = BATCH_FACTS.unpack_from(data, ATTRIBUTES_AT)
    size_bytes = len(data)
    if not _stores_as_is(size_bytes, attributes, max_timestamp, facts, rules, assign.now_ms):
        return None
    if attributes & LOG_APPEND_TIME_BIT or rules.is_log_append_time:
        return with_assigned_header(
            data, BatchHeader.unpack(data), max_timestamp, rules, assign
        ).data
    out = bytearray(data)
    OFFSET_AND_EPOCH.pack_into(
        out, 0, assign.next_offset, size_bytes - PREFIX_BYTES, assign.leader_epoch
    )
    return out


def assign_own_group(
    data: Buffer, facts: BatchFacts, rules: AppendRules, assign: Assignment
) -> GroupAppend | None:
    """Several batches that this process has encoded, with their offsets patched into `data`.

    `facts` are those of all records. None, and `data` is unchanged, if the topic rejects, rewrites
    or stamps one of the batches; then call `assign_own` for each batch.
    """
    if rules.is_log_append_time:
        return None
    _check_offsets_left(assign, 1)
    at = 0
    while at < len(data):
        header = BatchHeader.unpack(data, at)
        size_bytes, attributes = header.size_bytes, header.attributes
        if not _stores_as_is(
            size_bytes, attributes, header.max_timestamp, facts, rules, assign.now_ms
        ):
            return None
        at += size_bytes
    return assign_offsets(data, assign.next_offset, assign.leader_epoch, is_trusted=True)


def _stores_as_is(
    size_bytes: int,
    attributes: int,
    max_timestamp: int,
    facts: BatchFacts,
    rules: AppendRules,
    now_ms: int,
) -> bool:
    """Whether the topic accepts a batch, and stores its records as they are."""
    if size_bytes > rules.max_message_bytes or size_bytes > rules.segment_bytes:
        return False
    if not keeps_codec(attributes & CODEC_MASK, attributes & CONTROL_BIT != 0, rules):
        return False
    if rules.is_compacted and not facts.has_all_keys:
        return False
    return rules.is_log_append_time or (
        now_ms - facts.oldest_timestamp <= rules.timestamp_before_max_ms
        and max_timestamp - now_ms <= rules.timestamp_after_max_ms
    )


def _check_offsets_left(assign: Assignment, requests: int) -> None:
    if assign.next_offset > OFFSET_MAX - requests * OFFSETS_PER_REQUEST_MAX:
        raise LimitExceededError(f"no offsets are left after {assign.next_offset}")


def validate_readably(data: Buffer, rules: AppendRules, assign: Assignment) -> ValidatedAppend:
    """What `LeaderValidator.validate` does, in Kafka's order and without compiled code."""
    batches = sent_batches(data, assign, max_message_bytes=rules.max_message_bytes)
    if not batches:
        return EMPTY_APPEND
    if assign.origin is AppendOrigin.RAFT_LEADER:
        append = _placed(data, batches, assign.next_offset)
    else:
        append = _assigned(data, batches, rules, assign)
    if len(append.data) > rules.segment_bytes:
        raise RecordListTooLargeError(
            f"{len(append.data)} bytes do not fit into a segment of {rules.segment_bytes} bytes"
        )
    return append


def _assigned(
    data: Buffer, batches: Sequence[SentBatch], rules: AppendRules, assign: Assignment
) -> ValidatedAppend:
    check_together(batches, assign.origin)
    records = []
    for batch in batches:
        found = sent_records(data, batch)
        check_records(found, batch.header, rules, assign.now_ms)
        records += found
    entry, header = batches[0]
    if can_stay(header, records, rules):
        assert isinstance(header, BatchHeader)
        whole = memoryview(data)[: entry.size_bytes]
        return with_assigned_header(whole, header, max_timestamp_of(records), rules, assign)
    append = rewrite(records, [batch.header for batch in batches], rules, assign)
    if len(append.data) > rules.max_message_bytes:
        raise too_large(len(append.data), rules.max_message_bytes)
    return append


def _placed(data: Buffer, batches: Sequence[SentBatch], log_end_offset: int) -> ValidatedAppend:
    """Batches that have their offsets. As in Kafka, the last offsets must grow."""
    if not batches:
        return EMPTY_APPEND
    spans = []
    last_offset, max_timestamp, offset_of_max_timestamp = NO_OFFSET, NO_TIMESTAMP, NO_OFFSET
    for batch in batches:
        span = _span(data, batch)
        if span.last_offset <= last_offset:
            raise UnexpectedAppendOffsetError(
                f"offset {span.last_offset} follows offset {last_offset}"
            )
        last_offset = span.last_offset
        if span.max_timestamp > max_timestamp:
            max_timestamp, offset_of_max_timestamp = span.max_timestamp, last_offset
        spans.append(span)
    header = batches[0].header
    first_known = header.last_offset if header.base_offset is None else header.base_offset
    if first_known < log_end_offset:
        raise UnexpectedAppendOffsetError(
            f"offset {first_known} is below the log end offset {log_end_offset}"
        )
    return ValidatedAppend(
        data=memoryview(data)[: batches[-1].entry.end],
        spans=tuple(spans),
        headers=tuple(batch.header for batch in batches),
        first_offset=spans[0].base_offset,
        last_offset=last_offset,
        max_timestamp=max_timestamp,
        offset_of_max_timestamp=offset_of_max_timestamp,
    )


def _span(data: Buffer, batch: SentBatch) -> BatchSpan:
    entry, header = batch
    base_offset = header.base_offset
    if base_offset is None:
        base_offset = _first_offset(data, batch)
    elif not 0 <= base_offset <= header.last_offset <= OFFSET_MAX:
        raise CorruptMessageError(f"batch has offsets {base_offset} to {header.last_offset}")
    return BatchSpan(
        entry.position, entry.size_bytes, base_offset, header.last_offset, header.max_timestamp
    )


def _first_offset(data: Buffer, batch: SentBatch) -> int:
    """First offset of a compressed legacy set; its last one if it cannot be read: the leader
    accepted it."""
    try:
        return next(records_of(data, batch.entry, check_crc=False)).offset
    except (CorruptError, StratalogError, StopIteration):
        return batch.header.last_offset
