"""Times and choices that callers pass: what is accepted, and what is refused with which words."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stratalog.errors import InvalidArgumentError, StratalogError
from stratalog.format.arguments import choice_of, milliseconds_of, offset_of, word_of
from stratalog.format.batch import Codec
from stratalog.log.reader import IsolationLevel

MS = 1_714_566_600_250
EXACT = datetime(2024, 5, 1, 12, 30, 0, 250_000, tzinfo=UTC)


@pytest.mark.parametrize(
    "time",
    [
        MS,
        np.int64(MS),
        EXACT,
        EXACT.astimezone(timezone(timedelta(hours=2))),
        pd.Timestamp(EXACT),
        pd.Timestamp("2024-05-01T14:30:00.250+02:00"),
        np.datetime64("2024-05-01T12:30:00.250"),
        np.datetime64("2024-05-01T12:30:00.250000000"),
    ],
    ids=repr,
)
def test_the_same_time(time: Any) -> None:
    for rounds_up in (False, True):
        found = milliseconds_of(time, rounds_up=rounds_up)
        assert (found, type(found)) == (MS, int)


@pytest.mark.parametrize(
    "time",
    [
        EXACT + timedelta(microseconds=1),
        pd.Timestamp(EXACT) + pd.Timedelta(1, "ns"),
        np.datetime64("2024-05-01T12:30:00.250000001"),
    ],
    ids=repr,
)
def test_less_than_a_millisecond(time: Any) -> None:
    assert milliseconds_of(time) == MS
    assert milliseconds_of(time, rounds_up=True) == MS + 1


def test_before_1970() -> None:
    before = datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC)
    assert milliseconds_of(before) == -1
    assert milliseconds_of(before, rounds_up=True) == 0
    assert milliseconds_of(np.datetime64("1969-12-31T23:59:59.999500")) == -1
    assert milliseconds_of(np.datetime64("1969-12-31T23:59:59.999500"), rounds_up=True) == 0
    assert milliseconds_of(np.datetime64("1969-12-31")) == -86_400_000


@pytest.mark.parametrize(
    ("time", "words"),
    [
        (datetime(2024, 5, 1), "no time zone"),
        (pd.Timestamp("2024-05-01"), "no time zone"),
        (pd.NaT, "NaT"),
        (np.datetime64("NaT"), "NaT"),
        (1714566600.25, "a float; use milliseconds since 1970 as an int"),
        (np.float64(1.5), "milliseconds since 1970"),
        (Decimal(5), "a Decimal"),
        ("2024-05-01", "a str"),
        (b"1", "a bytes"),
        (date(2024, 5, 1), "a date"),
        (True, "a bool"),
        (None, "a NoneType"),
        (1 << 63, "does not fit in 64 bits"),
    ],
    ids=repr,
)
def test_no_time(time: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words) as caught:
        milliseconds_of(time, "since")
    assert str(caught.value).startswith("since is ")
    assert isinstance(caught.value, StratalogError)
    assert isinstance(caught.value, ValueError)


def test_choices() -> None:
    for level in IsolationLevel:
        for given in (level, level.value, level.value.upper()):
            assert choice_of(IsolationLevel, given, "isolation") is level
    for codec in Codec:
        for choice in (codec, codec.name, codec.name.lower()):
            assert choice_of(Codec, choice, "compression") is codec


@pytest.mark.parametrize("wrong", ["rubbish", "", "committed", None, True, 1, Codec.GZIP], ids=repr)
def test_no_choice(wrong: Any) -> None:
    names = "read_uncommitted, read_committed"
    with pytest.raises(InvalidArgumentError, match=f"^isolation is .*, not one of {names}$"):
        choice_of(IsolationLevel, wrong, "isolation")


def test_words_and_offsets() -> None:
    assert word_of("Earliest", ("earliest", "latest"), "start") == "earliest"
    with pytest.raises(InvalidArgumentError, match="start is 'first', not one of earliest, latest"):
        word_of("first", ("earliest", "latest"), "start")
    assert offset_of(np.int32(7), "end") == 7
    with pytest.raises(InvalidArgumentError, match=r"end is 7\.0, a float; use an offset"):
        offset_of(7.0, "end")
