"""How keys and values of records are shown: as text, hex, base64, JSON or integers.

A decoder gives (key, payload); None means there is nothing to show. What an internal topic's
records mean is told by `internal.py`.
"""

from __future__ import annotations

import json
from base64 import b64encode
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from stratalog.errors import UnsupportedError
from stratalog.format.utf8 import decode_utf8

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stratalog.format.messages.schema import Value
    from stratalog.format.record import Record

Text: TypeAlias = "tuple[str | None, str | None]"


class RecordDecoder(Protocol):
    """What a record's key and value are shown as."""

    def show(self, record: Record) -> Text:
        """Key and payload as they go into a line of text."""
        ...

    def show_json(self, record: Record) -> tuple[Value, Value]:
        """Key and payload as they go into JSON."""
        ...

    @property
    def is_plain(self) -> bool:
        """Keys and values are shown as the UTF-8 they are."""
        ...


class Format(NamedTuple):
    """One way to show bytes."""

    to_text: Callable[[bytes], str]
    to_json: Callable[[bytes], Value]


def _parse_json(data: bytes) -> Value:
    """`data` parsed as JSON, or its text where it is none."""
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError):
        return decode_utf8(data)


def _json_line(data: bytes) -> str:
    """`data` as JSON in one line, or its text where it is none."""
    try:
        parsed = json.loads(data.decode())
        line = json.dumps(parsed, ensure_ascii=False, separators=(",", ":"))
        line.encode()  # a lone surrogate may have been escaped
    except UnicodeEncodeError:
        return json.dumps(parsed, separators=(",", ":"))
    except (ValueError, RecursionError):
        return decode_utf8(data)
    return line


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _integer(size_bytes: int) -> Format:
    """As Kafka's decoders: the first bytes count. Too few of them are told as they are, in hex."""

    def to_json(data: bytes) -> Value:
        if len(data) < size_bytes:
            return f"0x{data.hex()}"
        return int.from_bytes(data[:size_bytes], signed=True)

    return Format(lambda data: str(to_json(data)), to_json)


UTF_8: Final = "utf-8"
FORMATS: Final[Mapping[str, Format]] = {
    UTF_8: Format(decode_utf8, decode_utf8),
    "hex": Format(bytes.hex, bytes.hex),
    "base64": Format(_base64, _base64),
    "json": Format(_json_line, _parse_json),
    "int32": _integer(4),
    "int64": _integer(8),
}


class PlainDecoder:
    """Keys and values each in a format of `FORMATS`."""

    def __init__(self, key_format: str = UTF_8, value_format: str = UTF_8) -> None:
        self._key, self._value = FORMATS[key_format], FORMATS[value_format]
        self.is_plain = key_format == value_format == UTF_8

    def show(self, record: Record) -> Text:
        key, value = record.key, record.value
        return (
            None if key is None else self._key.to_text(key),
            None if value is None else self._value.to_text(value),
        )

    def show_json(self, record: Record) -> tuple[Value, Value]:
        key, value = record.key, record.value
        return (
            None if key is None else self._key.to_json(key),
            None if value is None else self._value.to_json(value),
        )


_KAFKA_CLASSES: Final = {
    "StringDecoder": UTF_8,
    "IntegerDecoder": "int32",
    "LongDecoder": "int64",
    "DefaultDecoder": "hex",  # Kafka prints the array's identity, such as [B@1b2c3d
}
_PACKAGE: Final = "org.apache.kafka.tools.api."
_DEPRECATED_PACKAGE: Final = "kafka.serializer."


def format_of_class(name: str) -> str:
    """The format that one of Kafka's own decoder classes stands for."""
    for package in (_PACKAGE, _DEPRECATED_PACKAGE):
        short = name.removeprefix(package)
        if short != name and short in _KAFKA_CLASSES:
            return _KAFKA_CLASSES[short]
    known = ", ".join(_PACKAGE + short for short in _KAFKA_CLASSES)
    raise UnsupportedError(f"{name} is a Java class that cannot be run here; known are {known}")


def deprecation_notice(name: str) -> str | None:
    """What Kafka's tool says first when a decoder is named by its old class."""
    short = name.removeprefix(_DEPRECATED_PACKAGE)
    if short == name or short not in _KAFKA_CLASSES:
        return None
    return f"{name} is deprecated. Please use {_PACKAGE}{short} instead"
