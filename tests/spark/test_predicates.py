from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from stratalog.bulk.predicates import ALL, LONG_MAX, Interval, Predicate
from stratalog.spark.filters import predicate_of

TOPIC, PARTITION, OFFSET, TIME, VALUE = (
    (name,) for name in ("topic", "partition", "offset", "timestamp", "value")
)
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
NOON_US = 1_793_534_400_000_000


@pytest.mark.parametrize(
    ("each", "span"),
    [
        (EqualTo(OFFSET, 5), Interval(5, 5)),
        (EqualNullSafe(OFFSET, 5), Interval(5, 5)),
        (GreaterThan(OFFSET, 5), Interval(6, LONG_MAX)),
        (GreaterThanOrEqual(OFFSET, 5), Interval(5, LONG_MAX)),
        (LessThan(OFFSET, 5), Interval(-LONG_MAX, 4)),
        (LessThanOrEqual(OFFSET, 5), Interval(-LONG_MAX, 5)),
        (In(OFFSET, (7,)), Interval(7, 7)),
    ],
)
def test_offsets(each: Filter, span: Interval) -> None:
    assert predicate_of([IsNotNull(OFFSET), each]) == (Predicate(offsets=span), [])


def test_times_are_compared_to_the_microsecond() -> None:
    late = NOON.replace(microsecond=1)
    predicate, left = predicate_of([GreaterThan(TIME, NOON), LessThanOrEqual(TIME, late)])
    assert left == []
    assert predicate.times_us == Interval(NOON_US + 1, NOON_US + 1)
    # No record lies between two milliseconds.
    assert predicate.time_min_ms > predicate.time_max_ms


def test_all_filters_hold_together() -> None:
    filters = [GreaterThan(OFFSET, 5), LessThan(OFFSET, 9), GreaterThanOrEqual(OFFSET, 2)]
    assert predicate_of(filters) == (Predicate(offsets=Interval(6, 8)), [])


def test_a_choice_of_offsets_is_narrowed_to_its_hull_and_left_to_spark() -> None:
    each = In(OFFSET, (9, 2))
    assert predicate_of([each]) == (Predicate(offsets=Interval(2, 9)), [each])


@pytest.mark.parametrize(
    "each",
    [
        EqualTo(VALUE, b"x"),
        IsNotNull(VALUE),
        IsNull(OFFSET),
        Not(EqualTo(OFFSET, 5)),
        EqualTo(OFFSET, None),
        In(OFFSET, (1, None)),
        In(OFFSET, ()),
        EqualTo(OFFSET, 1.5),
        EqualTo(("headers", "key"), "x"),
        GreaterThan(TIME, NOON.replace(tzinfo=None)),
        EqualTo(TOPIC, None),
        EqualTo(PARTITION, "0"),
    ],
    ids=str,
)
def test_what_is_not_understood_is_left_to_spark(each: Filter) -> None:
    assert predicate_of([each]) == (Predicate(), [each])


@pytest.mark.parametrize(
    ("each", "admitted"),
    [
        (EqualTo(TOPIC, "a"), "a0 a1"),
        (Not(EqualTo(TOPIC, "a")), "b0 b1"),
        (In(TOPIC, ("b", "c")), "b0 b1"),
        (StringStartsWith(TOPIC, "b"), "b0 b1"),
        (GreaterThan(PARTITION, 0), "a1 b1"),
        (In(PARTITION, (0, 5)), "a0 b0"),
        (Not(In(PARTITION, (0, 5))), "a1 b1"),
    ],
    ids=str,
)
def test_directories(each: Filter, admitted: str) -> None:
    predicate, left = predicate_of([each])
    assert left == []
    assert (predicate.offsets, predicate.times_us) == (ALL, ALL)
    names = [f"{topic}{number}" for topic in "ab" for number in (0, 1)]
    found = [name for name in names if predicate.admits(name[0], int(name[1]))]
    assert found == admitted.split()
