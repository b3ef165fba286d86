from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptCheckpointError
from stratalog.format.java_text import parse_int, read_lines, read_text


@pytest.mark.parametrize(
    ("raw", "lines"),
    [
        (b"", []),
        (b"a", [(1, 0, "a")]),
        (b"a\n", [(1, 0, "a")]),
        (b"a\n\n", [(1, 0, "a"), (2, 2, "")]),
        (b"\n", [(1, 0, "")]),
        (b"a\r\nb\rc\nd", [(1, 0, "a"), (2, 3, "b"), (3, 5, "c"), (4, 7, "d")]),
        (b"\n\r", [(1, 0, ""), (2, 1, "")]),
        ("é\nx".encode(), [(1, 0, "é"), (2, 3, "x")]),
        ("a\u2028b\x0bc\x1cd".encode(), [(1, 0, "a\u2028b\x0bc\x1cd")]),
    ],
)
def test_lines(raw: bytes, lines: list[tuple[int, int, str]]) -> None:
    assert read_lines(raw) == lines
    assert read_lines(memoryview(raw)) == lines


def test_bytes_that_are_not_utf8() -> None:
    with pytest.raises(CorruptCheckpointError, match="not UTF-8") as caught:
        read_lines(b"abc\nd\xffe")
    assert caught.value.position == 5
    with pytest.raises(CorruptCheckpointError, match="not UTF-8"):
        read_text(b"\xc3")


@pytest.mark.parametrize(
    ("text", "bits", "value"),
    [
        ("0", 32, 0),
        ("-0", 32, 0),
        ("+7", 32, 7),
        ("007", 32, 7),
        ("0" * 5000 + "7", 32, 7),
        ("2147483647", 32, 2147483647),
        ("2147483648", 32, None),
        ("-2147483648", 32, -2147483648),
        ("-2147483649", 32, None),
        ("9223372036854775807", 64, (1 << 63) - 1),
        ("9223372036854775808", 64, None),
        ("9" * 5000, 64, None),
        ("", 32, None),
        ("-", 32, None),
        (" 1", 32, None),
        ("1 ", 32, None),
        ("1\n", 32, None),
        ("1_0", 32, None),
        ("0x1", 32, None),
        ("1.0", 32, None),
        ("\u0661", 32, None),
    ],
)
def test_integers(text: str, bits: int, value: int | None) -> None:
    assert parse_int(text, bits=bits) == value


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_every_int64_is_read(value: int) -> None:
    assert parse_int(str(value), bits=64) == value


@given(st.binary())
def test_lines_cover_the_text(raw: bytes) -> None:
    try:
        lines = read_lines(raw)
    except CorruptCheckpointError:
        return
    for line in lines:
        assert raw[line.position :].startswith(line.text.encode())
    assert sum(len(line.text.encode()) for line in lines) == len(
        raw.replace(b"\r", b"").replace(b"\n", b"")
    )
