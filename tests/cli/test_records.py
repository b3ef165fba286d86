from __future__ import annotations

import json

import pytest

from stratalog.cli.records import (
    BadTemplateError,
    json_printer,
    line_of_fields,
    separator_of,
    shown_as,
    template,
    terminal_printer,
)
from stratalog.format.names import TopicPartition
from stratalog.format.record import Header, Record

WHERE = TopicPartition("orders", 3)
RECORD = Record(
    offset=42,
    timestamp=1_700_000_000_005,
    key=b"k\xff",
    value=b'{"a": 1}',
    headers=(Header("h", b"x"), Header("h", None), Header("\u00fc", b"\x00")),
)
TOMBSTONE = Record(offset=43, timestamp=-1, key=None, value=None)

TEMPLATES = [
    ("%s", b'{"a": 1}', b""),
    ("%k", b"k\xff", b""),
    ("%o %p %t %T", b"42 3 orders 1700000000005", b"43 3 orders -1"),
    ("%S/%K", b"8/2", b"-1/-1"),
    ("%R", b"\x00\x00\x00\x08", b"\xff\xff\xff\xff"),
    ("%h", b"h=x,h=,\xc3\xbc=\x00", b""),
    ("100%%", b"100%", b"100%"),
    (r"a\tb\n\x41\\", b"a\tb\nA\\", b"a\tb\nA\\"),
    (r"\q", b"\\q", b"\\q"),
    ("\u00fc", b"\xc3\xbc", b"\xc3\xbc"),
    ("%o\\", b"42\\", b"43\\"),
    ("", b"", b""),
]


@pytest.mark.parametrize(("text", "full", "empty"), TEMPLATES)
def test_templates(text: str, full: bytes, empty: bytes) -> None:
    show = template(text, "raw", "raw")
    assert (show(WHERE, RECORD), show(WHERE, TOMBSTONE)) == (full, empty)


@pytest.mark.parametrize("text", ["%x", "%o %", "%-5s"])
def test_unknown_tokens(text: str) -> None:
    if text.endswith("%"):
        assert template(text, "raw", "raw")(WHERE, RECORD) == b"42 %"
        return
    with pytest.raises(BadTemplateError, match="unknown token"):
        template(text, "raw", "raw")


FORMATS = [
    ("raw", b"\x00\x00\x00\x07\xff", b"\x00\x00\x00\x07\xff"),
    ("utf-8", b"\x41\xff", b"A\xef\xbf\xbd"),
    ("hex", b"\x00\xff", b"00ff"),
    ("base64", b"\x00\xff", b"AP8="),
    ("json", b'{"a" : [1, "\xc3\xbc"]}', b'{"a":[1,"\xc3\xbc"]}'),
    ("json", b"no json", b"no json"),
    ("int32", b"\xff\xff\xff\xfe", b"-2"),
    ("int64", b"\x00\x00\x00\x00\x00\x00\x00\x09", b"9"),
]


@pytest.mark.parametrize(("name", "data", "expected"), FORMATS)
def test_formats(name: str, data: bytes, expected: bytes) -> None:
    assert shown_as(name)(data) == expected
    assert shown_as(name)(None) == b"null"


def test_a_lone_surrogate_in_json_is_no_error() -> None:
    assert shown_as("json")(b'"\\ud800"') == b'"\\ud800"'
    shown = json_printer("json", "json")(WHERE, RECORD._replace(value=b'"\\ud800\xc3\xbc"'))
    assert json.loads(shown)["value"] == "\ud800\u00fc"


def test_fields() -> None:
    raw = shown_as("raw")
    fields = [
        "topic",
        "partition",
        "offset",
        "timestamp",
        "time",
        "timestampType",
        "key",
        "headers",
    ]
    show = line_of_fields(fields, b"|", raw, raw)
    assert show(WHERE, RECORD) == (
        b"orders|3|42|1700000000005|2023-11-14T22:13:20.005Z|CreateTime|k\xff|"
        b"h=x,h=null,\xc3\xbc=\x00\n"
    )
    assert line_of_fields(["value"], b"", raw, raw)(WHERE, TOMBSTONE) == b"null\n"
    with pytest.raises(BadTemplateError, match="unknown field size"):
        line_of_fields(["value", "size"], b"", raw, raw)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("\\t", b"\t"), (" | ", b" | "), ("\\x00", b"\0"), ("%s", b"%s"), ("\u00fc", b"\xc3\xbc")],
)
def test_separators(text: str, expected: bytes) -> None:
    assert separator_of(text) == expected


def test_json() -> None:
    assert json.loads(json_printer("base64", "json")(WHERE, RECORD)) == {
        "topic": "orders",
        "partition": 3,
        "offset": 42,
        "timestampType": "CreateTime",
        "timestamp": 1_700_000_000_005,
        "key": "a/8=",
        "value": {"a": 1},
        "headers": [
            {"key": "h", "value": "x"},
            {"key": "h", "value": None},
            {"key": "\u00fc", "value": "\x00"},
        ],
    }


def test_a_terminal_is_not_steered_by_records() -> None:
    show = terminal_printer("raw", "raw", with_place=True, with_headers=True, colour=False)
    hostile = RECORD._replace(value=b"\x1b[2J\n\x9b1m\xc2\x9b", headers=(Header("\x1b", b"\x07"),))
    assert show(WHERE, hostile) == (
        b"orders:3 42 2023-11-14T22:13:20.005Z k\\xff \\x1b[2J\\n\\x9b1m\\x9b [\\x1b=\\x07]\n"
    )
    coloured = terminal_printer("hex", "hex", with_place=False, with_headers=False, colour=True)
    assert coloured(WHERE, TOMBSTONE) == b"\x1b[2m43 -\x1b[0m \x1b[36mnull\x1b[0m null\n"
