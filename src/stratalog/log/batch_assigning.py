"""Offsets, epoch and timestamps for batches that were checked, in place where the bytes allow it.

In place only the header changes: base offset and leader epoch, which the CRC does not cover, and
timestamp type, max timestamp and CRC if those two changed. Compressed records stay byte for byte
what the producer sent. Everything else becomes one new batch: records of another codec than the
topic's, of magic 0 or 1 (Kafka 4.0 stores magic 2 only), or with offsets that do not count 0, 1, 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.errors import InvalidTimestampError, RecordError
from stratalog.format.batch import (
    ATTRIBUTES_AT,
    NO_TIMESTAMP,
    BatchHeader,
    Codec,
    TimestampType,
    attributes_of,
)
from stratalog.format.checksum import crc32c
from stratalog.format.record import BatchFields, encode_batch
from stratalog.log.appends import one_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stratalog.format.buffers import Buffer
    from stratalog.format.entry import EntryHeader
    from stratalog.format.record import Record
    from stratalog.log.appends import AppendRules, Assignment, ValidatedAppend


def keeps_codec(codec_id: int, is_control: bool, rules: AppendRules) -> bool:
    """Whether the topic stores records of this codec as they are. Markers are never compressed."""
    return rules.codec is None or codec_id == rules.codec or (is_control and codec_id == 0)


def can_stay(header: EntryHeader, records: Sequence[Record], rules: AppendRules) -> bool:
    """Whether the batch can be stored with nothing but its header changed."""
    if not isinstance(header, BatchHeader):
        return False
    if not keeps_codec(header.codec_id, header.is_control, rules):
        return False
    expected = range(header.base_offset, header.base_offset + len(records))
    return all(record.offset == offset for record, offset in zip(records, expected, strict=True))


def assign_in_place(
    batch: Buffer,
    header: BatchHeader,
    max_timestamp: int,
    rules: AppendRules,
    assign: Assignment,
) -> ValidatedAppend:
    """A copy of `batch` with its place in the log. `max_timestamp` is the records' own."""
    if rules.is_log_append_time:
        max_timestamp = assign.now_ms
    stamped = header._replace(
        base_offset=assign.next_offset, partition_leader_epoch=assign.leader_epoch
    )
    if (header.timestamp_type, header.max_timestamp) != (rules.timestamp_type, max_timestamp):
        stamped = stamped._replace(
            attributes=_attributes(header, rules.timestamp_type), max_timestamp=max_timestamp
        )
        covered = stamped.pack()[ATTRIBUTES_AT:]
        records = memoryview(batch)[ATTRIBUTES_AT + len(covered) :]
        stamped = stamped._replace(crc=crc32c(records, crc32c(covered)))
    out = bytearray(batch)
    fixed = stamped.pack()
    out[: len(fixed)] = fixed
    return one_batch(out, stamped, _log_append_time(rules, assign))


def _attributes(header: BatchHeader, timestamp_type: TimestampType) -> int:
    """With this timestamp type. Bits without a meaning are lost, as in Kafka."""
    return attributes_of(
        codec=Codec(header.codec_id),
        timestamp_type=timestamp_type,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
        has_delete_horizon=header.delete_horizon_ms is not None,
    )


def rewrite(
    records: Sequence[Record],
    sent: Sequence[EntryHeader],
    rules: AppendRules,
    assign: Assignment,
) -> ValidatedAppend:
    """The records of the batches that were sent, in one batch as the topic wants it."""
    _check_timestamps(records)
    placed = [
        record._replace(offset=offset) for offset, record in enumerate(records, assign.next_offset)
    ]
    raw = encode_batch(placed, rewritten_fields(sent, rules, assign, max_timestamp_of(records)))
    append = one_batch(raw, BatchHeader.unpack(raw), _log_append_time(rules, assign))
    return append._replace(was_rewritten=True)


def rewritten_fields(
    sent: Sequence[EntryHeader], rules: AppendRules, assign: Assignment, max_timestamp: int
) -> BatchFields:
    """What the new batch carries beside its records. `max_timestamp` is the records' own."""
    first = sent[0]
    codec, level = rules.codec, rules.level
    if codec is None:
        codec, level = Codec(max(header.codec_id for header in sent)), None
    return BatchFields(
        codec=codec,
        level=level,
        timestamp_type=rules.timestamp_type,
        is_transactional=first.is_transactional,
        is_control=first.is_control,
        partition_leader_epoch=assign.leader_epoch,
        producer_id=first.producer_id,
        producer_epoch=first.producer_epoch,
        base_sequence=first.base_sequence,
        max_timestamp=assign.now_ms if rules.is_log_append_time else max_timestamp,
    )


def max_timestamp_of(records: Sequence[Record]) -> int:
    """The largest timestamp, -1 at least: smaller ones do not count, as in Kafka."""
    return max(NO_TIMESTAMP, *(record.timestamp for record in records))


def _check_timestamps(records: Sequence[Record]) -> None:
    """Kafka leaves negative timestamps alone in place, and does not write them anew."""
    errors = tuple(
        RecordError(index, f"timestamp {record.timestamp} is negative")
        for index, record in enumerate(records)
        if record.timestamp < NO_TIMESTAMP
    )
    if errors:
        raise InvalidTimestampError(
            f"record {errors[0].batch_index} of the batch: {errors[0].message}",
            record_errors=errors,
        )


def _log_append_time(rules: AppendRules, assign: Assignment) -> int:
    return assign.now_ms if rules.is_log_append_time else NO_TIMESTAMP
