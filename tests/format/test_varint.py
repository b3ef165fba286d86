from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.errors import CorruptRecordError
from stratalog.format import varint

INTS = [
    pytest.param(0, "00", id="zero"),
    pytest.param(-1, "01", id="minus one, Kafka's null"),
    pytest.param(1, "02", id="one"),
    pytest.param(63, "7e", id="largest in one byte"),
    pytest.param(-64, "7f", id="smallest in one byte"),
    pytest.param(64, "8001", id="two bytes"),
    pytest.param(-65, "8101", id="two bytes, negative"),
    pytest.param(8191, "fe7f", id="largest in two bytes"),
    pytest.param(8192, "808001", id="three bytes"),
    pytest.param(300, "d804", id="three hundred"),
    pytest.param((1 << 31) - 1, "feffffff0f", id="largest int"),
    pytest.param(-(1 << 31), "ffffffff0f", id="smallest int"),
]
LONGS = [
    *INTS,
    pytest.param(1 << 31, "8080808010", id="one more than an int"),
    pytest.param((1 << 63) - 1, "feffffffffffffffff01", id="largest long"),
    pytest.param(-(1 << 63), "ffffffffffffffffff01", id="smallest long"),
]


@pytest.mark.parametrize(("value", "raw"), INTS)
def test_int_bytes(value: int, raw: str) -> None:
    out = bytearray()
    varint.write_int(out, value)
    assert out.hex() == raw
    assert varint.size_of_int(value) == len(out)
    assert varint.read_int(out, 0, len(out)) == (value, len(out))


@pytest.mark.parametrize(("value", "raw"), LONGS)
def test_long_bytes(value: int, raw: str) -> None:
    out = bytearray()
    varint.write_long(out, value)
    assert out.hex() == raw
    assert varint.size_of_long(value) == len(out)
    assert varint.read_long(out, 0, len(out)) == (value, len(out))


def test_unsigned_is_not_zigzagged() -> None:
    out = bytearray()
    varint.write_unsigned(out, 300)
    assert out.hex() == "ac02"
    assert varint.read_unsigned(out, 0, 2) == (300, 2)


def test_reads_from_the_middle_and_says_where_it_ended() -> None:
    assert varint.read_int(bytes.fromhex("ffd804ff"), 1, 4) == (300, 3)


def test_a_longer_form_than_needed_is_read_as_in_java() -> None:
    assert varint.read_int(bytes.fromhex("8200"), 0, 2) == (1, 2)
    assert varint.read_int(bytes.fromhex("8280808000"), 0, 5) == (1, 5)


def test_bits_beyond_the_type_are_dropped_as_in_java() -> None:
    assert varint.read_int(bytes.fromhex("feffffff7f"), 0, 5) == ((1 << 31) - 1, 5)
    assert varint.read_long(bytes.fromhex("feffffffffffffffff7f"), 0, 10) == ((1 << 63) - 1, 10)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        pytest.param("", "runs past the end", id="no byte at all"),
        pytest.param("80", "runs past the end", id="one byte that promises more"),
        pytest.param("80808080", "runs past the end", id="four bytes that promise more"),
        pytest.param("8080808080", "longer than 5 bytes", id="five bytes that promise more"),
        pytest.param("808080808001", "longer than 5 bytes", id="six bytes"),
    ],
)
def test_an_int_that_does_not_end(raw: str, reason: str) -> None:
    buf = bytes.fromhex(raw)
    with pytest.raises(CorruptRecordError, match=reason):
        varint.read_int(buf, 0, len(buf))


def test_a_long_has_at_most_ten_bytes() -> None:
    with pytest.raises(CorruptRecordError, match="longer than 10 bytes"):
        varint.read_long(b"\x80" * 10 + b"\x01", 0, 11)


def test_the_end_is_respected_though_the_buffer_goes_on() -> None:
    with pytest.raises(CorruptRecordError, match="runs past the end"):
        varint.read_int(bytes.fromhex("d804"), 0, 1)


@pytest.mark.parametrize(
    ("value", "wrapped"),
    [
        (5, 5),
        ((1 << 63) - 1, (1 << 63) - 1),
        (1 << 63, -(1 << 63)),
        (-(1 << 63) - 1, (1 << 63) - 1),
        ((1 << 64) + 7, 7),
    ],
)
def test_wrapped_long(value: int, wrapped: int) -> None:
    assert varint.wrapped_long(value) == wrapped


@given(st.integers(-(1 << 64), 1 << 64))
def test_a_long_that_overflowed_comes_back_wrapped(value: int) -> None:
    out = bytearray()
    varint.write_long(out, value)
    assert len(out) == varint.size_of_long(value) <= varint.LONG_BYTES_MAX
    assert varint.read_long(out, 0, len(out)) == (varint.wrapped_long(value), len(out))


@given(st.integers(-(1 << 31), (1 << 31) - 1), st.binary(max_size=3), st.binary(max_size=3))
def test_every_int_comes_back_wherever_it_lies(value: int, before: bytes, after: bytes) -> None:
    out = bytearray(before)
    varint.write_int(out, value)
    end = len(out)
    assert end - len(before) == varint.size_of_int(value) <= varint.INT_BYTES_MAX
    assert varint.read_int(bytes(out + after), len(before), end) == (value, end)
