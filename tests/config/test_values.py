"""Kinds of values read text as Kafka's ConfigDef does, and refuse what it refuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.config.values import (
    Boolean,
    Choice,
    Choices,
    Decimal,
    Kind,
    Lifetime,
    TextList,
    integer,
    long_integer,
    short_integer,
)

POLICY = Choices(Choice((("compact", "C"), ("delete", "D"))))
REPLICAS = TextList(r"[0-9]+:[0-9]+", wildcard="*")

READ: list[tuple[Kind[Any], object, object]] = [
    (integer(), "17", 17),
    (integer(), " \t+17\n", 17),
    (integer(), "-17", -17),
    (integer(), "000000000000000000000000000017", 17),
    (integer(), "-0", 0),
    (integer(), 17, 17),
    (integer(), "2147483647", 2147483647),
    (integer(), "-2147483648", -2147483648),
    (long_integer(), "9223372036854775807", 9223372036854775807),
    (long_integer(), "-9223372036854775808", -9223372036854775808),
    (short_integer(), "32767", 32767),
    (integer(1, 9, also=-1), "-1", -1),
    (integer(1, 9, also=-1), "9", 9),
    (Lifetime(64), "-5", -1),
    (Lifetime(64), "1", 1),
    (Decimal(), "0.5", 0.5),
    (Decimal(), " .5 ", 0.5),
    (Decimal(), "5.", 5.0),
    (Decimal(), "5e-1d", 0.5),
    (Decimal(), 1, 1.0),
    (Decimal(0, 1), "1", 1.0),
    (Boolean(), "true", True),
    (Boolean(), " FALSE ", False),
    (Boolean(), True, True),
    (POLICY, "compact", frozenset("C")),
    (POLICY, "delete , compact,delete", frozenset("CD")),
    (POLICY, "", frozenset()),
    (POLICY, "  ", frozenset()),
    (POLICY, ["compact"], frozenset("C")),
    (POLICY, {"C"}, frozenset("C")),
    (REPLICAS, "0:1, 12:3", ("0:1", "12:3")),
    (REPLICAS, "*", ("*",)),
    (REPLICAS, "", ()),
    (TextList(drops_empty=True), "/a,, /b,", ("/a", "/b")),
    (TextList(), Path("/a/b"), ("/a/b",)),
    (TextList(), [Path("/a"), "/b"], ("/a", "/b")),
]

REFUSED: list[tuple[Kind[Any], object, str]] = [
    (integer(), "", "is not an integer"),
    (integer(), "1k", "is not an integer"),
    (integer(), "1_000", "is not an integer"),
    (integer(), "1 000", "is not an integer"),
    (integer(), "0x10", "is not an integer"),
    (integer(), "1.0", "is not an integer"),
    (integer(), "--1", "is not an integer"),
    (integer(), "\N{ARABIC-INDIC DIGIT ONE}", "is not an integer"),
    (integer(), "\N{NO-BREAK SPACE}1", "is not an integer"),
    (integer(), 1.0, "is not an integer"),
    (integer(), True, "is not an integer"),
    (integer(), None, "is not an integer"),
    (integer(), "2147483648", "does not fit in 32 bits"),
    (integer(), "-2147483649", "does not fit in 32 bits"),
    (long_integer(), "9223372036854775808", "does not fit in 64 bits"),
    (long_integer(), "9" * 1_000_000, "does not fit in 64 bits"),
    (long_integer(), 1 << 5000, "does not fit in 64 bits"),
    (short_integer(), "32768", "does not fit in 16 bits"),
    (integer(14), "13", "is out of range"),
    (integer(1, 9, also=-1), "0", "is out of range"),
    (integer(1, 9, also=-1), "10", "is out of range"),
    (Lifetime(32), "0", "is out of range"),
    (Decimal(), "", "is not a number"),
    (Decimal(), "NaN", "is not a number"),
    (Decimal(), "Infinity", "is not a number"),
    (Decimal(), "1e999", "is not a finite number"),
    (Decimal(), 10**400, "is not a finite number"),
    (Decimal(), float("nan"), "is not a finite number"),
    (Decimal(), ".", "is not a number"),
    (Decimal(), True, "is not a number"),
    (Decimal(0, 1), "1.01", "is out of range"),
    (Decimal(0, 1), "-0.01", "is out of range"),
    (Boolean(), "yes", "is not a boolean"),
    (Boolean(), "", "is not a boolean"),
    (Boolean(), 1, "is not a boolean"),
    (POLICY, "Compact", "is not one of the allowed values"),
    (POLICY, "compact,", "is not one of the allowed values"),
    (POLICY, "delete;compact", "is not one of the allowed values"),
    (POLICY, b"delete", "is not a list"),
    (POLICY, {"delete": 1}, "is not a list"),
    (POLICY, None, "is not a list"),
    (REPLICAS, "0:1,*", "has an item that is not allowed, '*'"),
    (REPLICAS, "0", "has an item that is not allowed, '0'"),
    (REPLICAS, "0:1,", "has an item that is not allowed, ''"),
    (TextList(), [1], "has an item that is not text, 1"),
]


@pytest.mark.parametrize(("kind", "raw", "value"), READ, ids=range(len(READ)))
def test_reads(kind: Kind[Any], raw: object, value: object) -> None:
    read = kind.parse(raw)
    assert (type(read), read) == (type(value), value)


@pytest.mark.parametrize(("kind", "raw", "reason"), REFUSED, ids=range(len(REFUSED)))
def test_refuses(kind: Kind[Any], raw: object, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)) as caught:
        kind.parse(raw)
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (long_integer(), -1, "-1"),
        (Boolean(), True, "true"),
        (Boolean(), False, "false"),
        (POLICY, frozenset("DC"), "compact,delete"),
        (POLICY, frozenset(), ""),
        (REPLICAS, ("0:1", "12:3"), "0:1,12:3"),
        (Decimal(), 0.5, "0.5"),
        (Decimal(), 0.0, "0.0"),
        (Decimal(), 0.001, "0.001"),
        (Decimal(), 0.00012, "1.2E-4"),
        (Decimal(), 9999999.0, "9999999.0"),
        (Decimal(), 1e7, "1.0E7"),
        (Decimal(), -12345678.5, "-1.23456785E7"),
        (Decimal(), 1.7976931348623157e308, "1.7976931348623157E308"),
    ],
)
def test_writes_as_java_does(kind: Kind[Any], value: object, text: str) -> None:
    assert kind.text(value) == text
    assert kind.parse(text) == value


@pytest.mark.parametrize(
    ("kind", "type_name", "allowed"),
    [
        (integer(), "int", ""),
        (long_integer(1), "long", "at least 1"),
        (short_integer(1), "short", "at least 1"),
        (integer(1, 17), "int", "1 to 17"),
        (integer(1, 9, also=-1), "int", "1 to 9, or -1"),
        (Lifetime(64), "long", "at least 1, or -1 for no limit"),
        (Decimal(), "double", ""),
        (Decimal(0, 1), "double", "0 to 1"),
        (Boolean(), "boolean", "true, false"),
        (POLICY, "list", "compact, delete"),
        (POLICY.one, "string", "compact, delete"),
    ],
)
def test_says_what_is_allowed(kind: Kind[Any], type_name: str, allowed: str) -> None:
    assert (kind.type_name, kind.allowed) == (type_name, allowed)


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.text("0123456789+-.eEfd, \t*:"),
    st.binary(),
    st.lists(st.text()),
)
KINDS: list[Kind[Any]] = [
    integer(1),
    long_integer(),
    Lifetime(32),
    Decimal(0, 1),
    Boolean(),
    POLICY,
    REPLICAS,
]


@pytest.mark.parametrize("kind", KINDS, ids=range(len(KINDS)))
@given(raw=ANYTHING)
def test_anything_gives_a_value_that_reads_back_or_a_value_error(
    kind: Kind[Any], raw: object
) -> None:
    try:
        value = kind.parse(raw)
    except ValueError:
        return
    assert kind.parse(value) == value
    assert kind.parse(kind.text(value)) == value
