"""Kafka's message serialization, driven by tables of fields, and the JSON Kafka shows for it.

A message is read straight into a dict in the order of its fields, with only what the version has:
ints, floats, bools, strings, bytes, None, lists and dicts. A uuid is its base64 text. As in Kafka's
JSON, a tagged field that has its default is left out. The other way round, a field that the dict
lacks is written with its default.

Flexible versions write lengths as varint(length + 1) and end every struct with tagged fields; the
others write int16 lengths for strings, int32 for bytes and arrays. Unknown tags are skipped.

Each version of a message is compiled once, when it is first needed: what depends on the version is
decided then, and neighbours of fixed size share one `struct`.
"""

from __future__ import annotations

import math
import struct
from base64 import b64encode, urlsafe_b64decode
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from stratalog.errors import CorruptRecordError, LimitExceededError, UnsupportedError
from stratalog.format import varint
from stratalog.format.java_text import decode_utf8
from stratalog.format.uuids import id_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sized

    from stratalog.format.buffers import Buffer

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
_SIZED: Final = frozenset({"string", "bytes", "records"})


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
    """Value of a field that is not given. A tagged one that has it is not written."""


Struct: TypeAlias = tuple[Field, ...]
Kind: TypeAlias = "str | Array | Struct"


@dataclass(frozen=True, eq=False)
class Message:
    """A message with all the versions that are read here."""

    name: str
    fields: Struct
    version_max: int = 0
    flexible_since: int = VERSION_MAX + 1
    version_min: int = 0
    _compiled: dict[int, _Codec] = field(default_factory=dict, init=False, repr=False)

    def is_flexible(self, version: int) -> bool:
        return version >= self.flexible_since

    def codec(self, version: int, verb: str) -> _Codec:
        """What reads and writes this version; `verb` says in an error what was tried."""
        codec = self._compiled.get(version)
        if codec is None:
            if not self.version_min <= version <= self.version_max:
                raise UnsupportedError(f"Can't {verb} version {version} of {self.name}")
            compiler = _Compiler(version, is_flexible=self.is_flexible(version))
            codec = self._compiled[version] = compiler.codec_of_struct(self.fields)
        return codec


class FramedRecord(NamedTuple):
    """A record whose value begins with a frame version, its type and its version, all varints."""

    type_id: int
    version: int
    fields: dict[str, Value]


class Output(bytearray):
    """The bytes of a message. Records that are not in memory are not copied into it;
    `separate_records` has them, with their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.separate_records: list[tuple[int, Sized]] = []


_Read: TypeAlias = "Callable[[Buffer, int], tuple[Value, int]]"
_Write: TypeAlias = "Callable[[Output, Value], None]"


class _Codec(NamedTuple):
    read: _Read
    write: _Write


def read_message(
    message: Message, data: Buffer, at: int, version: int
) -> tuple[dict[str, Value], int]:
    """The message at `at`, and the position after it. Fields of kind "records" are views."""
    return message.codec(version, "read").read(data, at)


def write_message(message: Message, values: Mapping[str, Value], version: int) -> bytes:
    """The message in the given version."""
    out = Output()
    write_into(out, message, values, version)
    return bytes(out)


def write_into(out: Output, message: Message, values: Mapping[str, Value], version: int) -> None:
    """Append the message in the given version."""
    message.codec(version, "write").write(out, values)


# -- compiling a version


_Step: TypeAlias = "Callable[[Buffer, int, dict[str, Value]], int]"
_WriteStep: TypeAlias = "Callable[[Output, Mapping[str, Value]], None]"


class _Compiler:
    """Functions for the fields of one version."""

    def __init__(self, version: int, *, is_flexible: bool) -> None:
        self._version = version
        self._is_flexible = is_flexible

    def codec_of_struct(self, fields: Struct) -> _Codec:
        present = [each for each in fields if each.since <= self._version <= each.until]
        plain = [each for each in present if each.tag is None]
        tagged = [(each, self._codec(each)) for each in present if each.tag is not None]
        reads: list[_Step] = []
        writes: list[_WriteStep] = []
        for is_run, group in groupby(plain, key=_is_in_run):
            if is_run:
                run = tuple(group)
                reads.append(_run_reader(run))
                writes.append(_run_writer(run))
                continue
            for each in group:
                codec = self._codec(each)
                reads.append(_field_reader(each.name, codec.read))
                writes.append(_field_writer(each, codec.write))
        if self._is_flexible:
            reads.append(_tags_reader(tagged))
            writes.append(_tags_writer(tagged))
        is_sorted = present[len(plain) :] == [each for each, _ in tagged]
        names = () if is_sorted else tuple(each.name for each in present)
        return _Codec(_struct_reader(tuple(reads), names), _struct_writer(tuple(writes)))

    def _codec(self, of: Field) -> _Codec:
        kind, is_nullable = of.kind, self._version >= of.nullable_since
        if isinstance(kind, Array):
            return self._codec_of_array(of.name, self._codec(_element(of, kind)), is_nullable)
        if not isinstance(kind, str):
            codec = self.codec_of_struct(kind)
            return _nullable_struct(codec) if is_nullable else codec
        if kind in _SIZED:
            return self._codec_of_sized(of.name, kind, is_nullable)
        return _UUID if kind == "uuid" else _codec_of_fixed(kind)

    def _codec_of_array(self, name: str, element: _Codec, is_nullable: bool) -> _Codec:
        lengths = _COMPACT if self._is_flexible else _INT32_LENGTH

        def read(data: Buffer, at: int) -> tuple[Value, int]:
            length, at = lengths.read(data, at)
            if length < 0:
                _check_null(name, is_nullable, at)
                return None, at
            if length > len(data) - at:
                raise _beyond_end(_ARRAY_BEYOND_END, length, data, at)
            items = []
            for _ in range(length):
                item, at = element.read(data, at)
                items.append(item)
            return items, at

        def write(out: Output, value: Value) -> None:
            if value is None:
                self._check_nullable(name, is_nullable)
                lengths.write(out, -1)
                return
            lengths.write(out, len(value))
            for item in value:
                element.write(out, item)

        return _Codec(read, write)

    def _codec_of_sized(self, name: str, kind: str, is_nullable: bool) -> _Codec:
        lengths = _INT16_LENGTH if kind == "string" else _INT32_LENGTH
        lengths = _COMPACT if self._is_flexible else lengths
        take, put = _SIZED_VALUES[kind]

        def read(data: Buffer, at: int) -> tuple[Value, int]:
            length, at = lengths.read(data, at)
            if length < 0:
                _check_null(name, is_nullable, at)
                return None, at
            if length > STRING_BYTES_MAX and kind == "string":
                raise CorruptRecordError(
                    f"string field {name} had invalid length {length}", position=at
                )
            end = _checked_end(data, at, length)
            return take(data, at, end), end

        def write(out: Output, value: Value) -> None:
            if value is None:
                self._check_nullable(name, is_nullable)
                lengths.write(out, -1)
                return
            raw = value.encode() if kind == "string" else value
            if len(raw) > STRING_BYTES_MAX and kind == "string":
                raise LimitExceededError(f"{name} is {len(raw)} bytes, too long for a string")
            lengths.write(out, len(raw))
            put(out, raw)

        return _Codec(read, write)

    def _check_nullable(self, name: str, is_nullable: bool) -> None:
        if not is_nullable:
            raise UnsupportedError(f"{name} cannot be null in version {self._version}")


def _is_in_run(of: Field) -> bool:
    """Whether the field is a number, which its neighbours are read together with."""
    return isinstance(of.kind, str) and of.kind in FIXED and of.kind != "uuid"


def _element(of: Field, kind: Array) -> Field:
    return Field(f"{of.name} element", kind.element)


def _struct_reader(steps: tuple[_Step, ...], names: tuple[str, ...]) -> _Read:
    """`names` is the order of the fields, if tagged ones are not the last."""

    def read(data: Buffer, at: int) -> tuple[Value, int]:
        values: dict[str, Value] = {}
        for step in steps:
            at = step(data, at, values)
        if names:
            values = {name: values[name] for name in names if name in values}
        return values, at

    return read


def _struct_writer(steps: tuple[_WriteStep, ...]) -> _Write:
    def write(out: Output, values: Value) -> None:
        for step in steps:
            step(out, values)

    return write


def _field_reader(name: str, read: _Read) -> _Step:
    def step(data: Buffer, at: int, values: dict[str, Value]) -> int:
        values[name], at = read(data, at)
        return at

    return step


def _field_writer(of: Field, write: _Write) -> _WriteStep:
    name, default = of.name, of.default

    def step(out: Output, values: Mapping[str, Value]) -> None:
        write(out, values.get(name, default))

    return step


def _run_layout(run: tuple[Field, ...]) -> struct.Struct:
    return struct.Struct(">" + "".join(FIXED[str(each.kind)].format[1:] for each in run))


def _run_reader(run: tuple[Field, ...]) -> _Step:
    """Reads neighbours of fixed size."""
    names, layout = tuple(each.name for each in run), _run_layout(run)
    unpack, size_bytes = layout.unpack_from, layout.size

    def step(data: Buffer, at: int, values: dict[str, Value]) -> int:
        try:
            values.update(zip(names, unpack(data, at), strict=True))
        except struct.error:
            raise _too_short(run, data, at) from None
        return at + size_bytes

    return step


def _too_short(run: Iterable[Field], data: Buffer, at: int) -> CorruptRecordError:
    """The error for the first field that the data has no bytes for."""
    for each in run:
        kind = str(each.kind)
        if len(data) - at < FIXED[kind].size:
            break
        at += FIXED[kind].size
    return CorruptRecordError(f"{len(data) - at} bytes are too few for an {kind}", position=at)


def _run_writer(run: tuple[Field, ...]) -> _WriteStep:
    fields, pack = tuple((each.name, each.default) for each in run), _run_layout(run).pack

    def step(out: Output, values: Mapping[str, Value]) -> None:
        out += pack(*[values.get(name, default) for name, default in fields])

    return step


def _codec_of_fixed(kind: str) -> _Codec:
    layout = FIXED[kind]
    alone = (Field("", kind),)

    def read(data: Buffer, at: int) -> tuple[Value, int]:
        try:
            return layout.unpack_from(data, at)[0], at + layout.size
        except struct.error:
            raise _too_short(alone, data, at) from None

    def write(out: Output, value: Value) -> None:
        out += layout.pack(value)

    return _Codec(read, write)


def _uuid_codec() -> _Codec:
    raw = _codec_of_fixed("uuid")

    def read(data: Buffer, at: int) -> tuple[Value, int]:
        value, at = raw.read(data, at)
        return id_text(value), at

    def write(out: Output, value: Value) -> None:
        out += uuid_bytes(value)

    return _Codec(read, write)


def _nullable_struct(codec: _Codec) -> _Codec:
    def read(data: Buffer, at: int) -> tuple[Value, int]:
        mark, at = _INT8.read(data, at)
        return (None, at) if mark < 0 else codec.read(data, at)

    def write(out: Output, value: Value) -> None:
        _INT8.write(out, -1 if value is None else 1)
        if value is not None:
            codec.write(out, value)

    return _Codec(read, write)


def _tags_reader(tagged: list[tuple[Field, _Codec]]) -> _Step:
    by_tag = {each.tag: (each.name, each.default, codec.read) for each, codec in tagged}

    def step(data: Buffer, at: int, values: dict[str, Value]) -> int:
        count, at = _read_unsigned(data, at)
        for _ in range(count):
            tag, at = _read_unsigned(data, at)
            size_bytes, at = _read_unsigned(data, at)
            known = by_tag.get(tag)
            if known is None:
                at = _checked_end(data, at, size_bytes)
                continue
            name, default, read = known
            value, at = read(data, at)
            if value != default:
                values[name] = value
        return at

    return step


def _tags_writer(tagged: list[tuple[Field, _Codec]]) -> _WriteStep:
    by_tag = sorted((each.tag or 0, each.name, each.default, codec) for each, codec in tagged)

    def step(out: Output, values: Mapping[str, Value]) -> None:
        given = []
        for tag, name, default, codec in by_tag:
            value = values.get(name, default)
            if value != default:
                raw = Output()
                codec.write(raw, value)
                given.append((tag, raw))
        varint.write_unsigned(out, len(given))
        for tag, raw in given:
            varint.write_unsigned(out, tag)
            varint.write_unsigned(out, len(raw))
            out += raw

    return step if by_tag else _write_no_tags


def _write_no_tags(out: Output, _: Mapping[str, Value]) -> None:
    out.append(0)


def _read_unsigned(data: Buffer, at: int) -> tuple[int, int]:
    value, at = varint.read_unsigned(data, at, len(data))
    return value & 0xFFFF_FFFF, at


def _compact_length() -> _Codec:
    """Length + 1 as a varint; zero means null."""

    def read(data: Buffer, at: int) -> tuple[Value, int]:
        value, at = _read_unsigned(data, at)
        return value - 1, at

    def write(out: Output, value: Value) -> None:
        varint.write_unsigned(out, value + 1)

    return _Codec(read, write)


def _check_null(name: str, is_nullable: bool, at: int) -> None:
    if not is_nullable:
        raise CorruptRecordError(f"non-nullable field {name} was serialized as null", position=at)


def _checked_end(data: Buffer, at: int, size_bytes: int) -> int:
    if size_bytes > len(data) - at:
        raise _beyond_end(_BYTES_BEYOND_END, size_bytes, data, at)
    return at + size_bytes


# Kafka's messages.
_ARRAY_BEYOND_END: Final = (
    "Tried to allocate a collection of size {}, but there are only {} bytes remaining."
)
_BYTES_BEYOND_END: Final = "Error reading byte array of {} byte(s): only {} byte(s) available"


def _beyond_end(reason: str, size: int, data: Buffer, at: int) -> CorruptRecordError:
    return CorruptRecordError(reason.format(size, len(data) - at), position=at)


def _take_text(data: Buffer, at: int, end: int) -> str:
    return decode_utf8(bytes(data[at:end]))


def _take_bytes(data: Buffer, at: int, end: int) -> bytes:
    return bytes(data[at:end])


def _take_view(data: Buffer, at: int, end: int) -> memoryview:
    return memoryview(data)[at:end]


def _put(out: Output, raw: Buffer) -> None:
    out += raw


def _put_records(out: Output, records: Value) -> None:
    if isinstance(records, bytes | bytearray | memoryview):
        out += records
    else:
        out.separate_records.append((len(out), records))


_SIZED_VALUES: Final[Mapping[str, tuple[Callable[..., Value], Callable[..., None]]]] = {
    "string": (_take_text, _put),
    "bytes": (_take_bytes, _put),
    "records": (_take_view, _put_records),
}
_INT8: Final = _codec_of_fixed("int8")
_INT16_LENGTH: Final = _codec_of_fixed("int16")
_INT32_LENGTH: Final = _codec_of_fixed("int32")
_COMPACT: Final = _compact_length()


# -- text


def uuid_bytes(text: str) -> bytes:
    """The 16 bytes of an id."""
    return urlsafe_b64decode(text + "==")


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


def json_value(value: Value) -> Value:
    """`value` as JSON can have it: bytes in base64, and doubles that are not numbers by name."""
    if isinstance(value, dict):
        return {name: json_value(item) for name, item in value.items()}
    if isinstance(value, list):
        return [json_value(item) for item in value]
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return double_text(value).strip('"')
    return value


_UUID: Final = _uuid_codec()
