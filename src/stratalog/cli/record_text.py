"""How `read` prints a record: as bytes, made by a function that is put together once per run.

Keys and values go out as the bytes they are unless a format is asked for, so that a pipe loses
nothing. On a terminal control characters are escaped: a value must not steer it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeAlias

from stratalog.cli.output import json_line
from stratalog.cli.when import format_time
from stratalog.dump.decoders import FORMATS, UTF_8

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stratalog.format.names import TopicPartition
    from stratalog.format.record import Header, Record

    Printer: TypeAlias = Callable[[TopicPartition, Record], bytes]
    Shown: TypeAlias = Callable[[bytes | None], bytes]

RAW: Final = "raw"
FORMAT_NAMES: Final = (RAW, *FORMATS)
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
    "%s value, %k key, %o offset, %p partition, %t topic, %T timestamp, %h headers, %S and %K "
    "sizes of value and key (-1: null), %R value size as 4 bytes, %%; \\n, \\t, \\xHH"
)
_NULL: Final = b"null"
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "\\": b"\\", "0": b"\0"}
_TOKEN = re.compile(r"%(.)|\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_DIM, _CYAN, _RESET = "\x1b[2m", "\x1b[36m", "\x1b[0m"


class BadTemplateError(ValueError):
    """A template or a list of fields that names what is not there."""


def shown_as(format_name: str, null: bytes = _NULL) -> Shown:
    """How one key or value goes out."""
    if format_name == RAW:
        return lambda data: null if data is None else data
    to_text = FORMATS[format_name].to_text
    return lambda data: null if data is None else _encoded(to_text(data))


def line_of_fields(fields: Sequence[str], separator: bytes, key: Shown, value: Shown) -> Printer:
    """These fields in this order, a line each record."""
    known = _fields(key, value)
    unknown = [name for name in fields if name not in known]
    if unknown or not fields:
        what = ", ".join(unknown) or "none"
        raise BadTemplateError(f"no such field: {what}; fields are {', '.join(FIELD_NAMES)}")
    if list(fields) == ["value"]:
        return lambda _, record: value(record.value) + b"\n"
    parts = [known[name] for name in fields]
    return lambda where, record: separator.join([part(where, record) for part in parts]) + b"\n"


def template(text: str, key_format: str, value_format: str) -> Printer:
    """kcat's `-f`: nothing is added, not even an end of line. Null is empty, its size -1."""
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
                raise BadTemplateError(f"no such token: %{match[1]}; there are {TOKENS_HELP}")
            parts.append(tokens[match[1]])
        else:
            parts.append(_literal(_unescaped(match[2])))
    parts.append(_literal(_encoded(text[at:])))
    return lambda where, record: b"".join([part(where, record) for part in parts])


def separator_of(text: str) -> bytes:
    """A separator with its escapes undone."""
    return _TOKEN.sub(
        lambda match: match[0] if match[1] else _unescaped(match[2]).decode("latin-1"), text
    ).encode("utf-8", "surrogateescape")


def json_printer(key_format: str, value_format: str) -> Printer:
    """One JSON object a line; bytes that are no UTF-8 want another format than `raw` or `utf-8`."""
    key = FORMATS[UTF_8 if key_format == RAW else key_format].to_json
    value = FORMATS[UTF_8 if value_format == RAW else value_format].to_json

    def show(where: TopicPartition, record: Record) -> bytes:
        found = {
            "topic": where.topic,
            "partition": where.partition,
            "offset": record.offset,
            "timestampType": record.timestamp_type.kafka_name,
            "timestamp": record.timestamp,
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
    """Offset, time, key and value for a person; the partition too where there are several."""
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
    """How one key or value is shown to a person: bytes that are no text as `\\x00`."""
    if format_name in {RAW, UTF_8}:
        return lambda data: (
            "null" if data is None else escaped(data.decode("utf-8", "backslashreplace"))
        )
    to_text = FORMATS[format_name].to_text
    return lambda data: "null" if data is None else escaped(to_text(data))


def escaped(text: str) -> str:
    """Without control characters."""
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
    """What follows a backslash. An escape that is none stands for itself."""
    if text.startswith("x") and len(text) > 1:
        return bytes.fromhex(text[1:])
    return _ESCAPES.get(text, _encoded("\\" + text))


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _encoded(text: str) -> bytes:
    """As UTF-8; bytes of the command line and of file names that were none come out again."""
    return text.encode("utf-8", "surrogateescape")
