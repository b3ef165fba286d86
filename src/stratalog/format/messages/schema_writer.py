"""The other way round of `schema.read_message`: a dict of values into Kafka's message bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.errors import LimitExceededError, UnsupportedError
from stratalog.format import varint
from stratalog.format.messages.schema import (
    FIXED,
    STRING_BYTES_MAX,
    Array,
    Field,
    Kind,
    Message,
    Struct,
    Value,
    uuid_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


def write_message(message: Message, values: Mapping[str, Value], version: int) -> bytes:
    """The message in the given version. Every field of that version must have a value, except a
    tagged one, which then has its default."""
    if not message.version_min <= version <= message.version_max:
        raise UnsupportedError(f"Can't write version {version} of {message.name}")
    writer = _Writer(version, is_flexible=version >= message.flexible_since)
    writer.write_struct(message.fields, values)
    return bytes(writer.out)


class _Writer:
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
            inner = _Writer(self.version, is_flexible=True)
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
        """Of a string, bytes or an array; -1 means null."""
        if self.is_flexible:
            self._write_unsigned(length + 1)
        else:
            self.out += FIXED["int16" if kind == "string" else "int32"].pack(length)

    def _write_unsigned(self, value: int) -> None:
        varint.write_unsigned(self.out, value)

    def _check_nullable(self, field: Field) -> None:
        if self.version < field.nullable_since:
            raise UnsupportedError(f"{field.name} cannot be null in version {self.version}")
