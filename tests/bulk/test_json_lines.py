"""Lines of JSON built from columns are those that `json.dumps` would write row by row."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.bulk import json_lines as module
from stratalog.bulk.json_lines import json_lines, json_texts

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).map(str.encode)
PAYLOADS = (
    st.none() | TEXTS | st.binary(max_size=20) | st.sampled_from([b'"\\', b"\x00\x1f\n\t\x7f"])
)
HEADERS = st.none() | st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=5), "value": PAYLOADS}), max_size=3
)
ROWS = st.lists(
    st.tuples(
        PAYLOADS,
        PAYLOADS,
        st.integers(0, 2**62),
        st.integers(-1, 2**50),
        st.sampled_from([-1, 0, 1]),
        HEADERS,
    ),
    max_size=8,
)


def batch_of(rows: list[tuple[Any, ...]], *, has_headers: bool = True) -> pa.RecordBatch:
    keys, values, offsets, times, kinds, headers = zip(*rows, strict=True) if rows else ((),) * 6
    columns = {
        "key": pa.array(keys, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "partition": pa.array([3] * len(rows), pa.int32()),
        "offset": pa.array(offsets, pa.int64()),
        "timestamp": pa.array([time * 1000 for time in times], pa.timestamp("us", "UTC")),
        "timestampType": pa.array(kinds, pa.int32()),
    }
    if has_headers:
        columns["headers"] = pa.array(headers, pa.list_(HEADER))
    return pa.RecordBatch.from_pydict(columns)


def plain(raw: bytes | None) -> object:
    try:
        return None if raw is None else raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}  # type: ignore[arg-type]


def expected(rows: list[tuple[Any, ...]]) -> bytes:
    lines = []
    for key, value, offset, time, kind, headers in rows:
        row = {"topic": "ö", "partition": 3, "offset": offset, "timestamp": time}
        name = {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}[kind]
        row |= {"timestampType": name, "key": plain(key), "value": plain(value)}
        row["headers"] = [
            {"key": header["key"], "value": plain(header["value"])} for header in headers or ()
        ]
        lines.append(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
    return "".join(lines).encode()


def written(batch: pa.RecordBatch) -> bytes:
    return b"".join(map(bytes, json_lines("ö", batch)))


@pytest.mark.slow
@given(ROWS)
def test_lines_are_those_of_json_dumps(rows: list[tuple[Any, ...]]) -> None:
    assert written(batch_of(rows)) == expected(rows)
    without = [(*row[:5], None) for row in rows]
    lines = expected(without).replace(b',"headers":[]}\n', b"}\n")
    assert written(batch_of(rows, has_headers=False)) == lines


@given(ROWS, st.integers(0, 8), st.integers(0, 8))
def test_a_part_of_a_batch(rows: list[tuple[Any, ...]], start: int, count: int) -> None:
    part = batch_of(rows)[start : start + count]
    assert written(part) == expected(rows[start : start + count])


def test_a_large_batch_is_taken_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(b"k", b"v" * 1000, n, 0, 0, None) for n in range(50)]
    monkeypatch.setattr(module, "TEXT_BYTES_MAX", 5000)
    buffers = list(json_lines("ö", batch_of(rows)))
    assert len(buffers) > 8
    assert b"".join(map(bytes, buffers)) == expected(rows)


@pytest.mark.parametrize("code", range(0x20))
def test_every_control_character(code: int) -> None:
    raw = b"a%cb" % code
    assert json_texts(pa.array([raw])).to_pylist() == [json.dumps(raw.decode())]
