"""One batch and one record in words and as JSON: what `find` and `explain` end with.

JSON uses the names of Kafka's dump, as `stratalog dump --json` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stratalog.cli.inventory import codec_name
from stratalog.cli.record_text import escaped, visible
from stratalog.cli.tables import counted
from stratalog.cli.when import format_time
from stratalog.dump.decoders import FORMATS
from stratalog.errors import StratalogError
from stratalog.format.batch import NO_TIMESTAMP, BatchHeader
from stratalog.format.control import read_control_key, read_end_marker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.format.entry import EntryHeader
    from stratalog.format.record import Record
    from stratalog.log.reader import Location

VALUE_CHARS_MAX: Final = 500
_LABEL_CHARS: Final = 9


class Look:
    """How keys, and values of records and headers, are shown."""

    def __init__(self, key_format: str, value_format: str) -> None:
        self._key, self._value = FORMATS[key_format], FORMATS[value_format]
        self._key_text, self._value_text = visible(key_format), visible(value_format)

    def lines(self, found: Location) -> Iterator[str]:
        """A place in a log and what is there, each line with its label."""
        yield _line("file", str(found.path))
        for label, text in (
            *_batch_lines(found.header, found.position),
            *self._record_lines(found.record, found.header),
        ):
            yield _line(label, text)

    def row(self, found: Location) -> dict[str, Any]:
        """The same for JSON."""
        return {
            "file": str(found.path),
            "batch": batch_row(found.header, found.position),
            "record": self._record_row(found.record, found.header),
        }

    def _record_lines(self, record: Record, header: EntryHeader) -> Iterator[tuple[str, str]]:
        yield "record", f"offset {record.offset}, {time_text(record.timestamp)}"
        if header.is_control:
            yield "control", _control_text(record)
            return
        yield "key", _cut(self._key_text(record.key))
        yield "value", _cut(self._value_text(record.value))
        for name, data in record.headers:
            yield "header", f"{escaped(name)} = {_cut(self._value_text(data))}"

    def _record_row(self, record: Record, header: EntryHeader) -> dict[str, Any]:
        row: dict[str, Any] = {
            "offset": record.offset,
            "timestampType": record.timestamp_type.kafka_name,
            "timestamp": record.timestamp,
        }
        if header.is_control:
            return row | {"control": _control_text(record)}
        to_json = self._value.to_json
        return row | {
            "key": None if record.key is None else self._key.to_json(record.key),
            "value": None if record.value is None else to_json(record.value),
            "headers": [
                {"key": name, "value": None if data is None else to_json(data)}
                for name, data in record.headers
            ],
        }


def batch_row(header: EntryHeader, position: int) -> dict[str, Any]:
    """The facts of a batch's header; what an old format lacks is null."""
    is_current = isinstance(header, BatchHeader)
    return {
        "position": position,
        "size": header.size_bytes,
        "baseOffset": header.base_offset,
        "lastOffset": header.last_offset,
        "count": header.record_count if isinstance(header, BatchHeader) else None,
        "maxTimestamp": header.max_timestamp,
        "timestampType": header.timestamp_type.kafka_name,
        "magic": header.magic,
        "compresscodec": codec_name(header.codec_id),
        "crc": header.crc,
        "partitionLeaderEpoch": header.partition_leader_epoch if is_current else None,
        "producerId": header.producer_id if is_current else None,
        "producerEpoch": header.producer_epoch if is_current else None,
        "baseSequence": header.base_sequence if is_current else None,
        "lastSequence": header.last_sequence if is_current else None,
        "isTransactional": header.is_transactional,
        "isControl": header.is_control,
        "deleteHorizonMs": header.delete_horizon_ms,
    }


def time_text(timestamp: int) -> str:
    """A time with its milliseconds, which are what commands and other tools take."""
    if timestamp < 0:
        return "no timestamp" if timestamp == -1 else str(timestamp)
    return f"{format_time(timestamp)} ({timestamp})"


def offsets_text(header: EntryHeader) -> str:
    if header.base_offset is None:
        return f"offsets up to {header.last_offset}"
    return span_text(header.base_offset, header.last_offset)


def span_text(first: int, last: int) -> str:
    return f"offset {first}" if first == last else f"offsets {first} to {last}"


def _batch_lines(header: EntryHeader, position: int) -> Iterator[tuple[str, str]]:
    count = f", {counted(header.record_count, 'record')}" if isinstance(header, BatchHeader) else ""
    size = counted(header.size_bytes, "byte")
    yield "batch", f"at byte {position}, {size}, {offsets_text(header)}{count}"
    if header.max_timestamp != NO_TIMESTAMP:
        yield "", f"{header.timestamp_type.kafka_name} up to {time_text(header.max_timestamp)}"
    facts = [
        f"magic {header.magic}",
        f"codec {codec_name(header.codec_id)}",
        f"CRC {header.crc:08x}",
    ]
    if header.partition_leader_epoch >= 0:
        facts.append(f"leader epoch {header.partition_leader_epoch}")
    yield "", ", ".join(facts)
    if header.has_producer:
        yield "producer", _producer_text(header)
    if header.delete_horizon_ms is not None:
        yield "horizon", f"tombstones may go after {time_text(header.delete_horizon_ms)}"


def _producer_text(header: EntryHeader) -> str:
    text = f"{header.producer_id}, epoch {header.producer_epoch}"
    if header.base_sequence >= 0:
        text += f", sequences {header.base_sequence} to {header.last_sequence}"
    return text + (", transactional" if header.is_transactional else "")


def _control_text(record: Record) -> str:
    try:
        marker = read_end_marker(record)
        if marker is None:
            return read_control_key(record).type.name
        return f"{marker.type.name} marker, coordinator epoch {marker.coordinator_epoch}"
    except StratalogError as error:
        return str(error)


def _cut(text: str) -> str:
    """`read` prints values whole."""
    if len(text) <= VALUE_CHARS_MAX:
        return text
    return f"{text[:VALUE_CHARS_MAX]}... ({len(text)} characters)"


def _line(label: str, text: str) -> str:
    return f"  {label:<{_LABEL_CHARS}} {text}"
