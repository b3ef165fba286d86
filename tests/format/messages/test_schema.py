from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptRecordError, StratalogError, UnsupportedError
from stratalog.format.messages.schema import (
    Array,
    Field,
    Message,
    double_text,
    json_value,
    read_message,
    to_json,
)

EVERYTHING = Message(
    "Everything",
    (
        Field("flag", "bool"),
        Field("tiny", "int8"),
        Field("short", "int16"),
        Field("port", "uint16", since=1),
        Field("number", "int32"),
        Field("long", "int64", until=0),
        Field("ratio", "float64"),
        Field("id", "uuid"),
        Field("name", "string", nullable_since=1),
        Field("raw", "bytes", nullable_since=0),
        Field("numbers", Array("int32")),
        Field("inner", (Field("word", "string"),)),
        Field("maybe", (Field("word", "string"),), since=1, nullable_since=1),
        Field("extra", "int8", since=1, tag=3, default=7),
        Field("more", Array("string"), since=1, nullable_since=1, tag=4),
    ),
    version_max=1,
    flexible_since=1,
)
FIXED = "01 ff fffe"
REST = "3ff8000000000000 000102030405060708090a0b0c0d0e0f"


def _read(version: int, text: str) -> dict[str, object]:
    data = bytes.fromhex(text)
    fields, after = read_message(EVERYTHING, b"??" + data, 2, version)
    assert after == 2 + len(data)
    return fields


def test_a_version_before_flexible_ones() -> None:
    text = f"{FIXED} 00000005 0000000000000006 {REST} 0001 61 ffffffff 00000002 00000001 ffffffff"
    assert _read(0, f"{text} 0002 6869") == {
        "flag": True,
        "tiny": -1,
        "short": -2,
        "number": 5,
        "long": 6,
        "ratio": 1.5,
        "id": "AAECAwQFBgcICQoLDA0ODw",
        "name": "a",
        "raw": None,
        "numbers": [1, -1],
        "inner": {"word": "hi"},
    }


FLEXIBLE = f"{FIXED} ffff 00000005 {REST} 00 03 beef 03 00000001 ffffffff 03 6869 00 ff"


def test_a_flexible_version() -> None:
    fields = _read(1, f"{FLEXIBLE} 02 03 01 08 04 03 02 02 61")
    assert list(fields) == [
        "flag", "tiny", "short", "port", "number", "ratio", "id", "name", "raw", "numbers",
        "inner", "maybe", "extra", "more",
    ]  # fmt: skip
    assert fields["port"] == 65535
    assert fields["name"] is None
    assert fields["raw"] == b"\xbe\xef"
    assert fields["numbers"] == [1, -1]
    assert fields["inner"] == {"word": "hi"}
    assert fields["maybe"] is None
    assert fields["extra"] == 8
    assert fields["more"] == ["a"]


def test_tagged_fields_with_their_defaults_are_left_out_and_unknown_ones_skipped() -> None:
    fields = _read(1, f"{FLEXIBLE} 03 03 01 07 04 01 00 63 02 aabb")
    assert not {"extra", "more"} & fields.keys()


@pytest.mark.parametrize(
    ("version", "text", "reason"),
    [
        (0, FIXED, "0 bytes are too few for an int32"),
        (0, f"{FIXED} 00000005 0000000000000006 {REST} ffff", "non-nullable field name was"),
        (0, f"{FIXED} 00000005 0000000000000006 {REST} 0005 61", "array of 5 byte(s): only 1 byte"),
        (
            0,
            f"{FIXED} 00000005 0000000000000006 {REST} 0000 ffffffff 7fffffff 0000",
            "collection of size 2147483647, but there are only 2 bytes remaining",
        ),
        (1, f"{FIXED} ffff 00000005 {REST} 818004", "string field name had invalid length 65536"),
        (1, f"{FIXED} ffff 00000005 {REST} ffffffffff", "varint is longer"),
        (1, f"{FLEXIBLE} 01 63 ff01", "array of 255 byte(s): only 0 byte"),
    ],
)
def test_what_does_not_fit_its_bytes(version: int, text: str, reason: str) -> None:
    with pytest.raises(CorruptRecordError) as caught:
        _read(version, text)
    assert reason in caught.value.reason


def test_a_version_that_is_not_known() -> None:
    with pytest.raises(UnsupportedError, match=r"^Can't read version 2 of Everything$"):
        read_message(EVERYTHING, b"", 0, 2)


@given(st.binary(max_size=120), st.integers(0, 1))
def test_any_bytes_give_a_value_or_an_error(data: bytes, version: int) -> None:
    try:
        fields, after = read_message(EVERYTHING, data, 0, version)
    except StratalogError:
        return
    assert after <= len(data)
    assert to_json(fields).startswith('{"flag":')


def test_json_is_as_jackson_writes_it() -> None:
    value = {
        "a": [1, -1, True, None, 0, False],
        "b": 'q" \\ /\b\f\n\r\t\x1f\x7f é🙂',
        "c": b"\x00\xff",
    }
    assert to_json(value) == (
        '{"a":[1,-1,true,null,0,false],"b":"q\\" \\\\ /\\b\\f\\n\\r\\t\\u001F\x7f é🙂","c":"AP8="}'
    )
    assert to_json({}) == "{}"
    assert to_json([]) == "[]"


@pytest.mark.parametrize(
    ("value", "java"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (0.001, "0.001"),
        (0.00099, "9.9E-4"),
        (123.456, "123.456"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (1.5e10, "1.5E10"),
        (-2.5e-10, "-2.5E-10"),
        (1e100, "1.0E100"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (1e6 / 3, "333333.3333333333"),
        (float("nan"), '"NaN"'),
        (float("inf"), '"Infinity"'),
        (float("-inf"), '"-Infinity"'),
    ],
)
def test_doubles_are_as_java_writes_them(value: float, java: str) -> None:
    assert double_text(value) == java


def test_values_for_json() -> None:
    value = {"a": [b"hello", {"b": float("nan")}], "c": float("-inf"), "d": [1.5, 2, None, "x"]}
    expected = {"a": ["aGVsbG8=", {"b": "NaN"}], "c": "-Infinity", "d": [1.5, 2, None, "x"]}
    assert json_value(value) == expected
