"""Fields of JSON lines, and records as export writes them; and lines that cannot be rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from stratalog.bulk.input_files import MissingFields, RecordColumns
from stratalog.bulk.line_rows import (
    FieldLines,
    LineError,
    RecordLines,
    Rows,
    is_exported,
    time_ms_of,
)


def rows_of(use: FieldLines | RecordLines, *lines: str | bytes) -> Rows:
    raw = [line if isinstance(line, bytes) else line.encode() for line in lines]
    return use.rows(pa.array(raw, pa.binary()))


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('{"k": "a"}', b"a"),
        ('{"k": ""}', b""),
        ('{"k": null}', None),
        ('{"k": 12345678901234567890}', b"12345678901234567890"),
        ('{"k": 1.10}', b"1.10"),
        ('{"k": true}', b"true"),
        ('{"k": {"b": [1.5, "ä"]}}', '{"b":[1.5,"ä"]}'.encode()),
        ('{"k": "\\u00e4\\n"}', "ä\n".encode()),
        ('{"k": "a", "k": "b"}', b"b"),
    ],
)
def test_what_a_field_becomes(line: str, key: bytes | None) -> None:
    found = rows_of(FieldLines(RecordColumns(key="k")), line)
    assert found.batch.to_pylist() == [{"value": line.encode(), "key": key}]
    assert found.missing == MissingFields()


def test_fields_of_objects_in_objects() -> None:
    use = FieldLines(RecordColumns(key="a.b", value="v"))
    found = rows_of(use, '{"a": {"b": 7}, "v": 1}', '{"a.b": 8, "a": {"b": 7}, "v": null}')
    assert found.batch.to_pylist() == [
        {"key": b"7", "value": b"1"},
        {"key": b"8", "value": None},
    ]


@pytest.mark.parametrize(
    ("field", "time_ms"),
    [
        (1_700_000_000_123, 1_700_000_000_123),
        ("1700000000124", 1_700_000_000_124),
        ("2023-11-14T22:13:20.123456Z", 1_700_000_000_123),
        ("2023-11-14 22:13:20", 1_700_000_000_000),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000_000),
        ("2023-11-14", 1_699_920_000_000),
        (0, 0),
        (-1, None),
        ("1969-12-31", None),
        ("soon", None),
        ("", None),
        (True, None),
        (None, None),
        (1 << 62, None),
        ([], None),
    ],
)
def test_times(field: Any, time_ms: int | None) -> None:
    assert time_ms_of(field) == time_ms


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"t": 1}', "there is no field 'k'"),
        ('{"k": "a"}', "there is no field 't'"),
        (
            '{"k": "a", "t": "soon"}',
            "field 't' is not a timestamp, in ms since 1970 or as a",
        ),
        (
            '{"k": "a", "t": 1.5}',
            "field 't' is not a timestamp, in ms since 1970 or as a date: 1.5",
        ),
        (
            '{"k": "\\ud800", "t": 1}',
            "field 'k' has an unpaired surrogate, which is not valid text",
        ),
        ("", "not JSON: Expecting value at character 1"),
        ("[1]", "not a JSON object"),
        ('{"k": NaN, "t": 1}', "not JSON: NaN is not JSON"),
        ("[" * 100_000, "not JSON: nested too deeply"),
        (b'{"k": "\xff"}', "not JSON: not UTF-8"),
    ],
)
def test_lines_that_lack_something(line: str | bytes, reason: str) -> None:
    use = FieldLines(RecordColumns(key="k", timestamp="t"))
    with pytest.raises(LineError) as told:
        rows_of(use, '{"k": "a", "t": 1}', line)
    assert told.value.index == 1
    assert told.value.reason.startswith(reason)


def test_what_is_allowed_is_counted() -> None:
    use = FieldLines(RecordColumns("k", "v", "t"), allows_missing=True)
    found = rows_of(use, '{"k": 1, "v": 2, "t": 3}', '{"v": 2, "t": "soon"}', "{}")
    assert found.missing == MissingFields(keys=2, values=1, times=2)
    assert found.batch.column("key").to_pylist() == [b"1", None, None]
    assert found.batch.column("value").to_pylist() == [b"2", b"2", None]
    assert found.batch.column("timestamp").cast(pa.int64()).to_pylist() == [3000, None, None]
    with pytest.raises(LineError, match="not JSON"):
        rows_of(use, "junk")


RECORD = (
    '{"topic":"t","partition":2,"offset":7,"timestamp":5,"timestampType":0,"key":%s,"value":%s}'
)


def test_records() -> None:
    lines = [
        RECORD % ("null", '{"base64":"/w=="}'),
        (RECORD % ('"k"', "null"))[:-1] + ',"headers":[{"key":"h","value":null}]}',
    ]
    assert all(is_exported(line.encode()) for line in lines)
    found = rows_of(RecordLines(), *lines).batch
    assert found.column("timestamp").cast(pa.int64()).to_pylist() == [5000, 5000]
    assert found.drop_columns(["timestamp"]).to_pylist() == [
        {"value": b"\xff", "key": None, "headers": [], "topic": "t", "partition": 2},
        {
            "value": None,
            "key": b"k",
            "headers": [{"key": "h", "value": None}],
            "topic": "t",
            "partition": 2,
        },
    ]
    assert (
        "partition" not in rows_of(RecordLines(keeps_partitions=False), *lines).batch.schema.names
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"topic":"t","timestamp":1,"key":null}', "there is no field 'value'"),
        (RECORD % ("1.5", "null"), "key is neither text nor null nor .*: 1.5"),
        (RECORD % ("null", '{"base64":"?"}'), "value is neither"),
        (RECORD % ("null", '{"base64":"", "x": 1}'), "value is neither"),
        (RECORD.replace('"timestamp":5', '"timestamp":"x"') % ("null", "null"), "timestamp is not"),
        (
            RECORD.replace('"timestamp":5', '"timestamp":-1') % ("null", "null"),
            "the record has none",
        ),
        (RECORD.replace('"partition":2', '"partition":-2') % ("null", "null"), "partition is not"),
        ('{"topic":1,"timestamp":1,"key":null,"value":null}', "topic is not text"),
        ('{"topic":1.5,"timestamp":1,"key":null,"value":null}', "topic is not text"),
        (RECORD.replace('"t"', '"\\ud800"') % ("null", "null"), "topic is not text"),
        ((RECORD % ("null", "null"))[:-1] + ',"headers":[{"key":"\\ud800"}]}', "header has no key"),
    ],
)
def test_lines_that_are_no_records(line: str, reason: str) -> None:
    with pytest.raises(LineError, match=reason):
        rows_of(RecordLines(), line)


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b'{"topic": "t"}', b'{"topic":"t","partition":0,"offset":1}', b"\xff" * 600],
)
def test_other_lines_are_not_taken_for_records(line: bytes) -> None:
    assert not is_exported(line)
