"""Lines of an export by the kernel: the columns that parsing each line as JSON gives, or the same
error."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.bulk.json_lines import json_lines, record_columns
from stratalog.bulk.line_rows import LineError, RecordLines, Rows

START = b'{"topic":"t","partition":3,"offset":7,"timestamp":1700000000000,"timestampType":0'
contents = st.none() | st.binary(max_size=20) | st.text(max_size=12).map(str.encode)
headers = st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=5), "value": contents}), max_size=3
)
records = st.fixed_dictionaries(
    {
        "partition": st.integers(0, (1 << 31) - 1),
        "offset": st.integers(0, 10**18 - 1),
        "timestamp": st.integers(-1, 4_000_000_000_000).map(lambda ms: ms * 1000),
        "timestampType": st.integers(-1, 1),
        "key": contents,
        "value": contents,
        "headers": headers,
    }
)
SCHEMA = pa.schema(
    {
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestampType": pa.int32(),
        "key": pa.binary(),
        "value": pa.binary(),
        "headers": pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
    }
)


def lines_of(rows: list[dict[str, Any]], *, has_headers: bool = True) -> pa.Array:
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA)
    if not has_headers:
        batch = batch.drop_columns(["headers"])
    written = b"".join(bytes(part) for part in json_lines("topic.x", batch))
    return pa.array(written.split(b"\n")[:-1], pa.binary())


@pytest.mark.slow
@given(st.lists(records, min_size=1, max_size=8), st.booleans())
def test_what_export_writes_is_read_by_the_kernel(
    rows: list[dict[str, Any]], has_headers: bool
) -> None:
    lines = lines_of(rows, has_headers=has_headers)
    found = record_columns(lines)
    assert found is not None
    use = RecordLines(allows_missing=True)
    taken = use.rows(lines)
    taken.batch.validate(full=True)
    assert taken.batch.equals(use._parsed(lines).batch)
    assert taken.missing == use._parsed(lines).missing
    assert use.rows(lines[1:]).batch.equals(taken.batch[1:])  # a part of a longer array


def outcome(read: Any, lines: pa.Array) -> Any:
    try:
        rows: Rows = read(lines)
    except LineError as error:
        return error.index, error.reason
    return rows.batch.to_pylist(), rows.missing


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_changed_line_is_read_as_json_or_the_same_error(seed: int) -> None:
    chance = random.Random(seed)
    rows: list[dict[str, Any]] = [
        {"partition": 1, "offset": 10, "timestamp": 5000, "timestampType": 0, "key": b"k\\\n",
         "value": b"\xff\x00\x01", "headers": [{"key": "h", "value": b"\xfe"}]},
        {"partition": 0, "offset": 0, "timestamp": 0, "timestampType": 1, "key": None,
         "value": "\u00e4\U0001f600".encode(), "headers": []},
    ]  # fmt: skip
    whole = lines_of(rows).to_pylist()
    use = RecordLines()
    alphabet = b'"\\{}[]:,= -0123456789abcdefnul/+u\x00\xff\xc3\n'
    for _ in range(1500):
        line = bytearray(whole[chance.randrange(2)])
        at = chance.randrange(len(line))
        how = chance.randrange(3)
        if how == 0:
            line[at] = chance.choice(alphabet)
        elif how == 1:
            del line[at]
        else:
            line.insert(at, chance.choice(alphabet))
        lines = pa.array([whole[0], bytes(line), whole[1]], pa.binary())
        assert outcome(use.rows, lines) == outcome(use._parsed, lines), bytes(line)


@pytest.mark.parametrize(
    "line",
    [
        START + b',"key":null,"value":null }',
        START + b',"key":null,"value":"\\u00e4"}',
        START + b',"key":null,"value":{"base64":"_w=="}}',
        START + b',"key":null,"value":{"base64":"/w="}}',
        START + b',"key":null,"value":{"base64":"/w==x"}}',
        START + b',"key":null,"value":"\xff"}',
        START + b',"key":null,"value":null,"headers":null}',
        START.replace(b":3,", b":03,") + b',"key":null,"value":null}',
        START.replace(b":3,", b":2147483648,") + b',"key":null,"value":null}',
        START.replace(b":17", b":-17") + b',"key":null,"value":null}',
        START.replace(b":17", b":99999999917") + b',"key":null,"value":null}',
        START.replace(b'"t"', b'"u"') + b',"key":null,"value":null}',
        START,
        b"",
    ],
)
def test_other_shapes_are_for_the_parser(line: bytes) -> None:
    lines = pa.array([START + b',"key":null,"value":"v"}', line], pa.binary())
    assert record_columns(lines[:1]) is not None
    assert record_columns(lines) is None
    use = RecordLines()
    assert outcome(use.rows, lines) == outcome(use._parsed, lines)


def test_no_line_and_no_time() -> None:
    assert record_columns(pa.array([], pa.binary())) is None
    assert RecordLines().rows(pa.array([], pa.binary())).batch.num_rows == 0
    lines = pa.array([START.replace(b"1700000000000", b"-1") + b',"key":null,"value":""}'])
    with pytest.raises(LineError, match="timestamp is -1"):
        RecordLines().rows(lines)
    assert RecordLines(allows_missing=True).rows(lines).missing.times == 1
