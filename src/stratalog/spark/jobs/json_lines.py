"""Records as lines of JSON, built column by column.

    {"topic":"orders","partition":0,"offset":7,"timestamp":1700000000000,"timestampType":0,
     "key":"k","value":"v"}

on one line. Keys and values are text; one that is no UTF-8 is an object with its base64, null is
null. Every batch becomes one Arrow array of lines, whose bytes are the file's. Only a column that
holds bytes that are no text is gone through value by value.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT_BYTES_MAX: Final = 128 << 20
"""Of a batch at a time: escaped six times as long, it still is an Arrow array."""
FIRST_PRINTABLE: Final = 0x20
_MILLISECONDS: Final = pa.timestamp("ms", "UTC")


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
