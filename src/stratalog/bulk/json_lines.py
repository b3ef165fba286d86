"""Records, and rows of any columns, as lines of JSON, built column by column.

    {"topic":"orders","partition":0,"offset":7,"timestamp":1700000000000,"timestampType":0,
     "key":"k","value":"v"}

on one line. Keys and values are text; one that is not UTF-8 is an object with its base64, null is
null. Every batch becomes one Arrow array of lines, whose bytes are the file's. Only a column that
holds bytes that are not text is encoded value by value.

The way back is `record_columns`: lines of exactly this shape into columns, by a kernel.
"""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stratalog.format.column_types import numpy_column, repeated_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from numpy.typing import NDArray

TEXT_BYTES_MAX: Final = 128 << 20
"""Bytes of a batch at a time: escaped six times as long, it still is an Arrow array."""
FIRST_PRINTABLE: Final = 0x20
_MILLISECONDS: Final = pa.timestamp("ms", "UTC")
_TIME: Final = pa.timestamp("us")
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
        "timestampType": batch.column("timestampType"),
    }
    parts: list[pa.Array | str] = [f'{{"topic":{json.dumps(topic, ensure_ascii=False)}']
    for name, column in numbers.items():
        parts += [f',"{name}":', column.cast(pa.string())]
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
    """Each value of a column of any type as JSON."""
    types = pa.types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_decimal(kind):
        return column.cast(pa.string()).fill_null("null")
    if types.is_floating(kind):
        texts = column.cast(pa.string())  # JSON has no infinity, and no NaN
        quoted = _joined('"', texts, '"')
        return pc.if_else(pc.is_finite(column), texts, quoted).fill_null("null")
    if types.is_nested(kind):
        return pa.array([_json_of_any(value) for value in column.to_pylist()], pa.string())
    if types.is_timestamp(kind):
        column = iso_times(column)
    elif not types.is_binary(kind):
        column = column.cast(pa.binary() if types.is_large_binary(kind) else pa.string())
    return json_texts(column)


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


def _json_of_any(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_json_default)


def _json_default(value: object) -> Any:
    """JSON value of what `json` cannot encode, inside lists and structs."""
    return json.loads(_json_of(bytes(value))) if isinstance(value, bytes) else str(value)


def _headers(lists: pa.Array) -> pa.Array:
    """`,"headers":[…]` for each record that has a list of them."""
    entries = lists.flatten()
    objects = _joined(
        '{"key":',
        json_texts(entries.field("key")),
        ',"value":',
        json_texts(entries.field("value")),
        "}",
    )
    counts = pc.list_value_length(lists).fill_null(0)
    ends = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(counts).cast(pa.int32())])
    joined = pc.binary_join(pa.ListArray.from_arrays(ends, objects), ",")
    return pc.if_else(lists.is_valid(), _joined(',"headers":[', joined, "]"), "")


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


def record_columns(lines: pa.Array) -> dict[str, pa.Array] | None:
    """The columns of a record for the sink, a row for each line; the time is null where it is -1.

    None if a line differs from what export writes, and in how far is for others to find out.
    """
    from stratalog.format.kernels import exported as kernels  # noqa: PLC0415 - compiles

    count = len(lines)
    try:
        data = _content(lines.cast(pa.string()))  # which checks that it is UTF-8
    except pa.ArrowInvalid:
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
