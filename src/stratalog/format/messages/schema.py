"""Kafka's message serialization, driven by tables of fields, and the JSON Kafka shows for it.

A message is read straight into a dict in the order of its fields, with only what the version has:
ints, floats, bools, strings, bytes, None, lists and dicts. A uuid is its base64 text. As in Kafka's
JSON, a tagged field that has its default is left out.

Flexible versions write lengths as varint(length + 1) and end every struct with tagged fields; the
others write int16 lengths for strings, int32 for bytes and arrays. Unknown tags are skipped.
"""

from __future__ import annotations

import math
import struct
from base64 import b64encode, urlsafe_b64decode, urlsafe_b64encode
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from stratalog.errors import CorruptRecordError, LimitExceededError, UnsupportedError
from stratalog.format import varint
from stratalog.format.java_text import decode_utf8

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION_MAX: Final = 0x7FFF
STRING_BYTES_MAX: Final = 0x7FFF

Value: TypeAlias = Any  # JSON's values and bytes

FIXED: Final[Mapping[str, struct.Struct]] = {
    "bool": struct.Struct(">?"),
    "int8": struct.Struct(">b"),
    "int16": struct.Struct(">h"),
    "uint16": struct.Struct(">H"),
    "int32": struct.Struct(">i"),
    "int64": struct.Struct(">q"),
    "float64": struct.Struct(">d"),
    "uuid": struct.Struct(">16s"),
}


class Array(NamedTuple):
    """A list of `element`s."""

    element: Kind


class Field(NamedTuple):
    """One field of a struct. `kind` is a primitive's name, an Array, or a tuple: a struct."""

    name: str
    kind: Kind
    since: int = 0
    until: int = VERSION_MAX
    nullable_since: int = VERSION_MAX + 1
    tag: int | None = None
    default: Value = None
    """Value of a tagged field that is not written."""


Struct: TypeAlias = tuple[Field, ...]
Kind: TypeAlias = "str | Array | Struct"


class Message(NamedTuple):
    """A message with all the versions that are read here."""

    name: str
    fields: Struct
    version_max: int = 0
    flexible_since: int = VERSION_MAX + 1
    version_min: int = 0


def read_message(
    message: Message, data: bytes, at: int, version: int
) -> tuple[dict[str, Value], int]:
    """The message at `at`, and the position after it."""
    if not message.version_min <= version <= message.version_max:
        raise UnsupportedError(f"Can't read version {version} of {message.name}")
    reader = _MessageReader(data, at, version, is_flexible=version >= message.flexible_since)
    return reader.read_struct(message.fields), reader.at


class _MessageReader:
    def __init__(self, data: bytes, at: int, version: int, *, is_flexible: bool) -> None:
        self.data = data
        self.at = at
        self.version = version
        self.is_flexible = is_flexible

    @property
    def left_bytes(self) -> int:
        return len(self.data) - self.at

    def read_struct(self, fields: Struct) -> dict[str, Value]:
        present = [field for field in fields if field.since <= self.version <= field.until]
        plain = {field.name: self._read(field) for field in present if field.tag is None}
        tagged = self._read_tagged(present) if self.is_flexible else {}
        values = {**plain, **tagged}
        return {field.name: values[field.name] for field in present if field.name in values}

    def _read_tagged(self, present: list[Field]) -> dict[str, Value]:
        by_tag = {field.tag: field for field in present if field.tag is not None}
        values = {}
        for _ in range(self._read_unsigned()):
            tag, size = self._read_unsigned(), self._read_unsigned()
            field = by_tag.get(tag)
            if field is None:
                self._take(size)
                continue
            value = self._read(field)
            if value != field.default:
                values[field.name] = value
        return values

    def _read(self, field: Field) -> Value:
        kind = field.kind
        if isinstance(kind, str) and kind in FIXED:
            return self._read_fixed(kind)
        if isinstance(kind, tuple) and not isinstance(kind, Array):
            is_nullable = self.version >= field.nullable_since
            return None if is_nullable and self._read_fixed("int8") < 0 else self.read_struct(kind)
        length = self._read_length(kind)
        if length < 0:
            if self.version < field.nullable_since:
                raise self._wrong(f"non-nullable field {field.name} was serialized as null")
            return None
        if isinstance(kind, Array):
            return self._read_array(kind, field, length)
        if kind == "bytes":
            return self._take(length)
        if length > STRING_BYTES_MAX:
            raise self._wrong(f"string field {field.name} had invalid length {length}")
        return decode_utf8(self._take(length))

    def _read_array(self, kind: Array, field: Field, length: int) -> list[Value]:
        if length > self.left_bytes:
            raise self._wrong(
                f"Tried to allocate a collection of size {length}, but there are only "
                f"{self.left_bytes} bytes remaining."
            )
        element = Field(f"{field.name} element", kind.element)
        return [self._read(element) for _ in range(length)]

    def _read_length(self, kind: Kind) -> int:
        """Length of a string, bytes or an array; negative means null."""
        if self.is_flexible:
            return self._read_unsigned() - 1
        return int(self._read_fixed("int16" if kind == "string" else "int32"))

    def _read_fixed(self, kind: str) -> Value:
        layout = FIXED[kind]
        if self.left_bytes < layout.size:
            raise self._wrong(f"{self.left_bytes} bytes are too few for an {kind}")
        (value,) = layout.unpack_from(self.data, self.at)
        self.at += layout.size
        return uuid_text(value) if kind == "uuid" else value

    def _read_unsigned(self) -> int:
        value, self.at = varint.read_unsigned(self.data, self.at, len(self.data))
        return value & 0xFFFF_FFFF

    def _take(self, size: int) -> bytes:
        if size > self.left_bytes:
            raise self._wrong(
                f"Error reading byte array of {size} byte(s): "
                f"only {self.left_bytes} byte(s) available"
            )
        self.at += size
        return self.data[self.at - size : self.at]

    def _wrong(self, reason: str) -> CorruptRecordError:
        return CorruptRecordError(reason, position=self.at)


def uuid_bytes(text: str) -> bytes:
    """The 16 bytes of `uuid_text`."""
    return urlsafe_b64decode(text + "==")


def uuid_text(raw: bytes) -> str:
    """Kafka's text of a uuid: 22 characters of URL-safe base64."""
    return urlsafe_b64encode(raw).decode().rstrip("=")


_ESCAPES: Final = {code: f"\\u{code:04X}" for code in range(0x20)} | {
    ord("\b"): r"\b",
    ord("\t"): r"\t",
    ord("\n"): r"\n",
    ord("\f"): r"\f",
    ord("\r"): r"\r",
    ord('"'): r"\"",
    ord("\\"): r"\\",
}


_WORDS: Final = {None: "null", False: "false", True: "true"}


def to_json(value: Value) -> str:
    """`value` as Kafka's tools print it: no spaces, no escapes but the needed, bytes in base64."""
    if isinstance(value, str):
        return f'"{value.translate(_ESCAPES)}"'
    if isinstance(value, dict):
        members = (f"{to_json(name)}:{to_json(item)}" for name, item in value.items())
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(to_json, value)) + "]"
    if isinstance(value, bytes):
        return f'"{b64encode(value).decode()}"'
    if isinstance(value, float):
        return double_text(value)
    is_word = value is None or isinstance(value, bool)
    return _WORDS[value] if is_word else str(value)


def double_text(value: float) -> str:
    """A double as Java writes it in JSON: 1.0, 0.001, 1.0E10, "NaN"."""
    if math.isnan(value) or math.isinf(value):
        return {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}[str(value)]
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)  # finite
    first, *rest = map(str, digits)
    fraction = "".join(rest) or "0"
    return f"{'-' * sign}{first}.{fraction}E{exponent + len(digits) - 1}"


# The other way round of `schema.read_message`: a dict of values into Kafka's message bytes.


def write_message(message: Message, values: Mapping[str, Value], version: int) -> bytes:
    """The message in the given version. Every field of that version must have a value, except a
    tagged one, which then has its default."""
    if not message.version_min <= version <= message.version_max:
        raise UnsupportedError(f"Can't write version {version} of {message.name}")
    writer = _MessageWriter(version, is_flexible=version >= message.flexible_since)
    writer.write_struct(message.fields, values)
    return bytes(writer.out)


class _MessageWriter:
    def __init__(self, version: int, *, is_flexible: bool) -> None:
        self.out = bytearray()
        self.version = version
        self.is_flexible = is_flexible

    def write_struct(self, fields: Struct, values: Mapping[str, Value]) -> None:
        tagged = []
        for field in fields:
            if not field.since <= self.version <= field.until:
                continue
            if field.tag is None:
                self._write(field, values[field.name])
            elif values.get(field.name, field.default) != field.default:
                tagged.append((field, values[field.name]))
        if self.is_flexible:
            self._write_tagged(tagged)

    def _write_tagged(self, fields: list[tuple[Field, Value]]) -> None:
        self._write_unsigned(len(fields))
        for field, value in sorted(fields, key=lambda item: item[0].tag or 0):
            inner = _MessageWriter(self.version, is_flexible=True)
            inner._write(field, value)
            self._write_unsigned(field.tag or 0)
            self._write_unsigned(len(inner.out))
            self.out += inner.out

    def _write(self, field: Field, value: Value) -> None:
        kind = field.kind
        if isinstance(kind, str) and kind in FIXED:
            raw = uuid_bytes(value) if kind == "uuid" else value
            self.out += FIXED[kind].pack(raw)
        elif isinstance(kind, tuple) and not isinstance(kind, Array):
            self._write_nested(field, kind, value)
        elif value is None:
            self._check_nullable(field)
            self._write_length(kind, -1)
        elif isinstance(kind, Array):
            self._write_length(kind, len(value))
            element = Field(f"{field.name} element", kind.element)
            for item in value:
                self._write(element, item)
        else:
            self._write_sized(field, kind, value)

    def _write_nested(self, field: Field, fields: Struct, value: Value) -> None:
        if self.version >= field.nullable_since:
            self.out += FIXED["int8"].pack(-1 if value is None else 1)
            if value is None:
                return
        self.write_struct(fields, value)

    def _write_sized(self, field: Field, kind: Kind, value: Value) -> None:
        raw = value.encode() if kind == "string" else value
        if kind == "string" and len(raw) > STRING_BYTES_MAX:
            raise LimitExceededError(f"{field.name} is {len(raw)} bytes, too long for a string")
        self._write_length(kind, len(raw))
        self.out += raw

    def _write_length(self, kind: Kind, length: int) -> None:
        """Write the length of a string, bytes or an array; -1 means null."""
        if self.is_flexible:
            self._write_unsigned(length + 1)
        else:
            self.out += FIXED["int16" if kind == "string" else "int32"].pack(length)

    def _write_unsigned(self, value: int) -> None:
        varint.write_unsigned(self.out, value)

    def _check_nullable(self, field: Field) -> None:
        if self.version < field.nullable_since:
            raise UnsupportedError(f"{field.name} cannot be null in version {self.version}")
