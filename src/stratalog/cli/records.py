"""Records as text and JSON: the lines that `read` prints, and the details of `find` and `explain`.

`read` prints keys and values as raw bytes unless a format is given, so that a pipe loses nothing.
On a terminal, control characters are escaped: a value must not control the terminal. JSON uses
the names of Kafka's dump tool, as `stratalog dump --json` does.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from stratalog.cli.output import json_line
from stratalog.cli.tables import counted
from stratalog.dump.decoders import FORMATS, UTF_8
from stratalog.errors import StratalogError
from stratalog.format.batch import NO_TIMESTAMP, BatchHeader
from stratalog.format.control import read_control_key, read_end_marker
from stratalog.format.times import format_time
from stratalog.partitions.inventory import codec_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stratalog.format.names import TopicPartition
    from stratalog.format.record import Header, Record

    Printer: TypeAlias = Callable[[TopicPartition, Record], bytes]
    Shown: TypeAlias = Callable[[bytes | None], bytes]
    from collections.abc import Iterator

    from stratalog.format.log_entry import EntryHeader
    from stratalog.format.record import Record
    from stratalog.log.reader import Location

RAW: Final = "raw"
FIELD_NAMES: Final = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "time",
    "timestampType",
    "key",
    "value",
    "headers",
)
TOKENS_HELP: Final = (
    "%s value, %k key, %o offset, %p partition, %t topic, %T timestamp, %h headers, %S value size, "
    "%K key size (-1 for null), %R value size as 4 binary bytes, %%; escapes \\n, \\t, \\xHH"
)
_NULL: Final = b"null"
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\", "0": b"\0"}
_TOKEN = re.compile(r"%(.)|\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_DIM, _CYAN, _RESET = "\x1b[2m", "\x1b[36m", "\x1b[0m"


class BadTemplateError(ValueError):
    """A template or list of fields with an unknown token or field."""


def shown_as(format_name: str, null: bytes = _NULL) -> Shown:
    """Prints a key or value in this format."""
    if format_name == RAW:
        return lambda data: null if data is None else data
    to_text = FORMATS[format_name].to_text
    return lambda data: null if data is None else _encoded(to_text(data))


def line_of_fields(fields: Sequence[str], separator: bytes, key: Shown, value: Shown) -> Printer:
    """Prints these fields in this order, one line per record."""
    known = _fields(key, value)
    unknown = [name for name in fields if name not in known]
    if unknown or not fields:
        what = f"unknown field {', '.join(unknown)}" if unknown else "no field given"
        raise BadTemplateError(f"{what}; use {', '.join(FIELD_NAMES)}")
    if list(fields) == ["value"]:
        return lambda _, record: value(record.value) + b"\n"
    parts = [known[name] for name in fields]
    return lambda where, record: separator.join([part(where, record) for part in parts]) + b"\n"


def template(text: str, key_format: str, value_format: str) -> Printer:
    """Prints by a template, as kcat's `-f`. Nothing is added, not even a newline. Null is empty
    and has size -1."""
    key, value = shown_as(key_format, null=b""), shown_as(value_format, null=b"")
    tokens = _tokens(key, value)
    parts: list[Printer] = []
    at = 0
    for match in _TOKEN.finditer(text):
        if match.start() > at:
            parts.append(_literal(_encoded(text[at : match.start()])))
        at = match.end()
        if match[1]:
            if match[1] not in tokens:
                raise BadTemplateError(f"unknown token %{match[1]}; use {TOKENS_HELP}")
            parts.append(tokens[match[1]])
        else:
            parts.append(_literal(_unescaped(match[2])))
    parts.append(_literal(_encoded(text[at:])))
    return lambda where, record: b"".join([part(where, record) for part in parts])


def separator_of(text: str) -> bytes:
    """A separator with its escape sequences replaced."""
    return _TOKEN.sub(
        lambda match: match[0] if match[1] else _unescaped(match[2]).decode("latin-1"), text
    ).encode("utf-8", "surrogateescape")


def json_printer(key_format: str, value_format: str) -> Printer:
    """Prints one JSON object per line, as export does: `stratalog ingest` takes them back."""
    key = FORMATS[UTF_8 if key_format == RAW else key_format].to_json
    value = FORMATS[UTF_8 if value_format == RAW else value_format].to_json

    def show(where: TopicPartition, record: Record) -> bytes:
        found = {
            "topic": where.topic,
            "partition": where.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "timestampType": record.timestamp_type.kafka_name,
            "key": None if record.key is None else key(record.key),
            "value": None if record.value is None else value(record.value),
            "headers": [
                {"key": name, "value": None if data is None else value(data)}
                for name, data in record.headers
            ],
        }
        return json_line(found).encode() + b"\n"

    return show


def terminal_printer(
    key_format: str, value_format: str, *, with_place: bool, with_headers: bool, colour: bool
) -> Printer:
    """Prints offset, time, key and value; also the partition if `with_place`."""
    key, value = visible(key_format), visible(value_format)
    dim, cyan, reset = (_DIM, _CYAN, _RESET) if colour else ("", "", "")

    def show(where: TopicPartition, record: Record) -> bytes:
        place = f"{where.topic}:{where.partition} " if with_place else ""
        text = (
            f"{dim}{place}{record.offset} {format_time(record.timestamp)}{reset} "
            f"{cyan}{key(record.key)}{reset} {value(record.value)}"
        )
        if with_headers and record.headers:
            shown = " ".join(f"{escaped(name)}={value(data)}" for name, data in record.headers)
            text += f" {dim}[{shown}]{reset}"
        return _encoded(text) + b"\n"

    return show


def visible(format_name: str) -> Callable[[bytes | None], str]:
    """Shows a key or value on a terminal; bytes that are not text as `\\x00`."""
    if format_name in {RAW, UTF_8}:
        return lambda data: (
            "null" if data is None else escaped(data.decode("utf-8", "backslashreplace"))
        )
    to_text = FORMATS[format_name].to_text
    return lambda data: "null" if data is None else escaped(to_text(data))


def escaped(text: str) -> str:
    """With control characters escaped."""
    return _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)


def _fields(key: Shown, value: Shown) -> Mapping[str, Printer]:
    return {
        "topic": lambda where, _: _encoded(where.topic),
        "partition": lambda where, _: b"%d" % where.partition,
        "offset": lambda _, record: b"%d" % record.offset,
        "timestamp": lambda _, record: b"%d" % record.timestamp,
        "time": lambda _, record: format_time(record.timestamp).encode(),
        "timestampType": lambda _, record: record.timestamp_type.kafka_name.encode(),
        "key": lambda _, record: key(record.key),
        "value": lambda _, record: value(record.value),
        "headers": lambda _, record: _headers(record.headers, value),
    }


def _tokens(key: Shown, value: Shown) -> Mapping[str, Printer]:
    fields = _fields(key, value)
    return {
        "s": fields["value"],
        "k": fields["key"],
        "o": fields["offset"],
        "p": fields["partition"],
        "t": fields["topic"],
        "T": fields["timestamp"],
        "h": fields["headers"],
        "S": lambda _, record: b"%d" % _size(record.value),
        "K": lambda _, record: b"%d" % _size(record.key),
        "R": lambda _, record: _size(record.value).to_bytes(4, signed=True),
        "%": _literal(b"%"),
    }


def _headers(headers: Sequence[Header], value: Shown) -> bytes:
    """`name=value,name=value`, as kcat."""
    return b",".join(_encoded(name) + b"=" + value(data) for name, data in headers)


def _literal(data: bytes) -> Printer:
    return lambda _where, _record: data


def _unescaped(text: str) -> bytes:
    """What a backslash sequence stands for; an unknown one stands for itself."""
    if text.startswith("x") and len(text) > 1:
        return bytes.fromhex(text[1:])
    return _ESCAPES.get(text, _encoded("\\" + text))


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _encoded(text: str) -> bytes:
    """As UTF-8. Bytes of the command line that were not UTF-8 are restored."""
    return text.encode("utf-8", "surrogateescape")


# -- the location of a record, and its batch: `find` and `explain`

VALUE_CHARS_MAX: Final = 500
_LABEL_CHARS: Final = 9


class LocationPrinter:
    """Prints where a record is, its batch and the record, with keys and values in a format."""

    def __init__(self, key_format: str, value_format: str) -> None:
        self._key, self._value = FORMATS[key_format], FORMATS[value_format]
        self._key_text, self._value_text = visible(key_format), visible(value_format)

    def lines(self, found: Location) -> Iterator[str]:
        """As text, each line with a label."""
        yield _line("file", str(found.path))
        for label, text in (
            *_batch_lines(found.header, found.position),
            *self._record_lines(found.record, found.header),
        ):
            yield _line(label, text)

    def row(self, found: Location | None) -> dict[str, Any]:
        """As JSON; null if nothing was found."""
        if found is None:
            return {"file": None, "batch": None, "record": None}
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
        yield "key", _shortened(self._key_text(record.key))
        yield "value", _shortened(self._value_text(record.value))
        for name, data in record.headers:
            yield "header", f"{escaped(name)} = {_shortened(self._value_text(data))}"

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
    """The fields of a batch header. Fields that an old format lacks are null."""
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
    """A time, and its milliseconds in parentheses."""
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
        yield "horizon", f"tombstones are removed after {time_text(header.delete_horizon_ms)}"


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


def _shortened(text: str) -> str:
    """Long values are shortened; `read` prints them completely."""
    if len(text) <= VALUE_CHARS_MAX:
        return text
    return f"{text[:VALUE_CHARS_MAX]}... ({len(text)} characters)"


def _line(label: str, text: str) -> str:
    return f"  {label:<{_LABEL_CHARS}} {text}"
