"""Records, and rows of any columns, as lines of JSON, built column by column.

    {"topic":"orders","partition":0,"offset":7,"timestamp":1700000000000,
     "timestampType":"CreateTime","key":"k","value":"v","headers":[{"key":"h","value":"x"}]}

on one line, without the line break. `stratalog read --json` prints the same. Keys and values are
text; one that is not UTF-8 is an object with its base64, null is null. Every batch becomes one
Arrow array of lines, whose bytes are the file's. Only a column that holds bytes that are not text
is encoded value by value.

The way back is `record_columns`: lines of exactly this shape into columns, by a kernel.
"""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.format.batch import TimestampType
from stratalog.format.column_types import numpy_column, repeated_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from numpy.typing import NDArray

TEXT_BYTES_MAX: Final = 128 << 20
"""Bytes of a batch at a time: escaped six times as long, it still is an Arrow array."""
FIRST_PRINTABLE: Final = 0x20
_MILLISECONDS: Final = pa.timestamp("ms", "UTC")
_TIME: Final = pa.timestamp("us")
_PLAIN_TYPES: Final = (
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_binary_view, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
    (pa.types.is_duration, pa.int64()),
    (pa.types.is_float16, pa.float32()),
)
_TIME_TYPES: Final = sorted(map(int, TimestampType))
_PREFIX: Final = re.compile(rb'\{"topic":"([^"\\\x00-\x1f]{1,249})"')
_HEADER: Final = [pa.field("key", pa.string()), pa.field("value", pa.binary())]


def json_lines(topic: str, batch: pa.RecordBatch) -> Iterator[pa.Buffer]:
    """The lines of a batch with the columns of an export."""
    if batch.num_rows > 1 and batch.nbytes > TEXT_BYTES_MAX:
        half = batch.num_rows // 2
        yield from json_lines(topic, batch[:half])
        yield from json_lines(topic, batch[half:])
    elif batch.num_rows:
        yield _content(_lines(topic, batch))


def _lines(topic: str, batch: pa.RecordBatch) -> pa.Array:
    times = batch.column("timestamp").cast(_MILLISECONDS, safe=False).view(pa.int64())
    numbers = {
        "partition": batch.column("partition"),
        "offset": batch.column("offset"),
        "timestamp": times,
    }
    parts: list[pa.Array | str] = [f'{{"topic":{json.dumps(topic, ensure_ascii=False)}']
    for name, column in numbers.items():
        parts += [f',"{name}":', column.cast(pa.string())]
    parts += [',"timestampType":"', _time_types(batch.column("timestampType")), '"']
    for name in ("key", "value"):
        parts += [f',"{name}":', json_texts(batch.column(name))]
    if "headers" in batch.schema.names:
        parts.append(_headers(batch.column("headers")))
    return _joined(*parts, "}\n")


def json_texts(column: pa.Array) -> pa.Array:
    """Each value of a column of bytes or text as JSON."""
    try:
        texts = column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_json_of(raw) for raw in column.to_pylist()], pa.string())
    return _joined('"', _escaped(texts), '"').fill_null("null")


def json_values(column: pa.Array) -> pa.Array:
    """Each value of a column of any type as JSON, the values of lists, structs and maps too."""
    types = pa.types
    column = plain_column(column)
    kind = column.type
    if types.is_struct(kind):
        return _or_null(column, _struct_objects(column))
    if types.is_map(kind):
        return _or_null(column, _map_objects(column))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _or_null(column, _joined("[", _list_texts(column, json_values), "]"))
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_decimal(kind):
        return column.cast(pa.string()).fill_null("null")
    if types.is_floating(kind):
        texts = column.cast(pa.string())  # JSON has no infinity, and no NaN
        quoted = _joined('"', texts, '"')
        return pc.if_else(pc.is_finite(column), texts, quoted).fill_null("null")
    if not types.is_binary(kind):
        column = plain_texts(column)
    return json_texts(column)


def plain_column(column: pa.Array) -> pa.Array:
    """The same values in one of the basic types.

    Dictionaries and run ends are decoded. Text and bytes of all kinds are `string` and `binary`, an
    UUID is text, an elapsed time is a number in its unit, other extension types are what they are
    stored as.
    """
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        is_uuid = kind.extension_name == "arrow.uuid"
        return _uuid_texts(column.storage) if is_uuid else plain_column(column.storage)
    if pa.types.is_dictionary(kind):
        return plain_column(column.cast(kind.value_type))
    if pa.types.is_run_end_encoded(kind):
        return plain_column(pc.run_end_decode(column))
    for is_kind, plain in _PLAIN_TYPES:
        if is_kind(kind):
            return column.cast(plain)
    return column


def plain_texts(column: pa.Array) -> pa.Array:
    """Values of a type without parts as text; null stays null."""
    return iso_times(column) if pa.types.is_timestamp(column.type) else column.cast(pa.string())


def _uuid_texts(column: pa.Array) -> pa.Array:
    raw = column.cast(pa.binary()).fill_null(bytes(16))
    digits = np.frombuffer(bytes(_content(raw)).hex().encode(), np.uint8).reshape(-1, 32)
    texts = np.insert(digits, (8, 12, 16, 20), ord("-"), axis=1)
    ends = np.arange(0, texts.size + 1, texts.shape[1], dtype=np.int32)
    found = pa.StringArray.from_buffers(len(column), pa.py_buffer(ends), pa.py_buffer(texts))
    return pc.if_else(column.is_valid(), found, pa.scalar(None, pa.string()))


def _or_null(column: pa.Array, texts: pa.Array) -> pa.Array:
    return pc.if_else(column.is_valid(), texts, "null")


def _struct_objects(column: pa.StructArray) -> pa.Array:
    names = [field.name for field in column.type]
    if not names:
        return repeated_text("{}", len(column))
    return json_objects(dict(zip(names, column.flatten(), strict=True)))


def _map_objects(column: pa.MapArray) -> pa.Array:
    """Keys are text, as JSON wants it."""
    entries = column.cast(pa.list_(column.type.field(0).type))

    def texts(pairs: pa.StructArray) -> pa.Array:
        keys, values = pairs.flatten()
        keys = plain_column(keys)
        if pa.types.is_nested(keys.type):
            keys = json_values(keys)
        elif not pa.types.is_binary(keys.type):
            keys = plain_texts(keys)
        return _joined(json_texts(keys), ":", json_values(values))

    return _joined("{", _list_texts(entries, texts), "}")


def _list_texts(lists: pa.Array, texts_of: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """The texts of the entries of each list, with commas between them; none for a null."""
    counts = pc.list_value_length(lists).fill_null(0)
    ends = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(counts).cast(pa.int32())])
    entries = texts_of(lists.flatten())
    return pc.binary_join(pa.ListArray.from_arrays(ends, entries), ",")


def json_objects(
    columns: Mapping[str, pa.Array], literals: Collection[str] = frozenset()
) -> pa.Array:
    """A JSON object for each row. Columns in `literals` are text that is JSON already."""
    parts: list[pa.Array | str] = []
    for name, column in columns.items():
        key = json.dumps(name, ensure_ascii=False)
        parts.append(f"{',' if parts else '{'}{key}:")
        parts.append(column.fill_null("null") if name in literals else json_values(column))
    return _joined(*parts, "}")


def iso_times(column: pa.Array) -> pa.Array:
    """`2026-11-16T10:00:00.123Z`, without the Z if the type has no time zone."""
    texts = column.cast(pa.timestamp(column.type.unit, column.type.tz and "UTC")).cast(pa.string())
    return pc.replace_substring(texts, " ", "T")


def _headers(lists: pa.Array) -> pa.Array:
    """`,"headers":[…]` for each record."""
    return _joined(',"headers":[', _list_texts(lists, _struct_objects), "]")


def _time_types(column: pa.Array) -> pa.Array:
    """Kafka's names."""
    names = pa.array([TimestampType(value).kafka_name for value in _TIME_TYPES], pa.string())
    return names.take(pc.add(column, -_TIME_TYPES[0]))


def _escaped(texts: pa.Array) -> pa.Array:
    """As JSON wants it between quotes. A pass over the column only for what is in it."""
    found = np.frombuffer(_content(texts), np.uint8)
    if (found == ord("\\")).any():
        texts = pc.replace_substring(texts, "\\", "\\\\")
    if (found == ord('"')).any():
        texts = pc.replace_substring(texts, '"', '\\"')
    for code in np.unique(found[found < FIRST_PRINTABLE]).tolist():
        texts = pc.replace_substring(texts, chr(code), json.dumps(chr(code))[1:-1])
    return texts


def _joined(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


def _json_of(raw: bytes | None) -> str:
    if raw is None:
        return "null"
    try:
        return json.dumps(raw.decode(), ensure_ascii=False)
    except UnicodeDecodeError:
        return json.dumps({"base64": base64.b64encode(raw).decode()}, separators=(",", ":"))


def _content(texts: pa.Array) -> pa.Buffer:
    """All values of a column end to end."""
    _, ends, data = texts.buffers()
    if data is None:
        return pa.py_buffer(b"")
    numbers = memoryview(ends).cast("i")
    first, last = numbers[texts.offset], numbers[texts.offset + len(texts)]
    return data.slice(first, last - first)


def _utf8_content(lines: pa.Array) -> pa.Buffer | None:
    try:
        return _content(lines.cast(pa.string()))  # which checks that it is UTF-8
    except pa.ArrowInvalid:
        return None


def record_columns(lines: pa.Array) -> dict[str, pa.Array] | None:
    """The columns of a record for the sink, a row for each line; the time is null where it is -1.

    None if a line differs from what export writes, and in how far is for others to find out.
    """
    from stratalog.format.kernels import json_lines as kernels  # noqa: PLC0415 - compiles

    count = len(lines)
    data = _utf8_content(lines)
    if data is None:
        return None
    prefix = _PREFIX.match(memoryview(data)) if count else None
    if prefix is None:
        return None
    ends = np.frombuffer(lines.buffers()[1], np.int32)[lines.offset : lines.offset + count + 1]
    ends = ends - ends[0]
    rows = max(count, data.to_pybytes().count(b'{"key":'))
    contents = np.empty((kernels.COLUMNS, len(data)), np.uint8)
    slots = np.zeros((2 * kernels.COLUMNS, rows + 1), np.int32)
    numbers = np.zeros((kernels.NUMBERS, count), np.int64)
    raw = np.frombuffer(data, np.uint8)
    if kernels.scan_exported(raw, ends, prefix.end(), contents, slots, numbers) < count:
        return None

    def column(number: int, kind: pa.DataType, length: int) -> pa.Array:
        ends, is_there = slots[number, : length + 1], slots[kernels.COLUMNS + number, :length]
        content = pa.py_buffer(contents[number, : ends[-1]])
        return pa.Array.from_buffers(
            kind, length, [_validity(is_there != 0), pa.py_buffer(ends), content]
        )

    header_ends = np.append(np.int32(0), numbers[kernels.HEADER_ENDS].astype(np.int32))
    headers = int(header_ends[-1])
    pairs = [
        column(kernels.HEADER_KEY, pa.string(), headers),
        column(kernels.HEADER_VALUE, pa.binary(), headers),
    ]
    times = numbers[kernels.TIMESTAMP]
    times_us = pa.py_buffer(times * 1000)
    return {
        "value": column(kernels.VALUE, pa.binary(), count),
        "key": column(kernels.KEY, pa.binary(), count),
        "headers": pa.ListArray.from_arrays(
            numpy_column(header_ends, pa.int32()), pa.StructArray.from_arrays(pairs, fields=_HEADER)
        ),
        "timestamp": pa.Array.from_buffers(_TIME, count, [_validity(times >= 0), times_us]),
        "topic": repeated_text(prefix[1].decode(), count),
        "partition": numpy_column(numbers[kernels.PARTITION], pa.int32()),
    }


def _validity(is_there: NDArray[np.bool_]) -> pa.Buffer | None:
    if is_there.all():
        return None
    return pa.py_buffer(np.packbits(is_there, bitorder="little"))
