"""What a query's `where` says about topic, partition, offset and timestamp.

Pushed filters come as values of Spark's. Those on topic and partition are decided per partition
directory; those on offset and timestamp become ranges. Whatever is not understood stays with Spark,
so a filter can only ever leave out what the query does not want.

Filters are recognised by the names of their classes: planning needs predicates, and must work where
PySpark is not installed.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql.datasource import Filter

LONG_MAX: Final = (1 << 63) - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_NEVER_NULL: Final = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})
_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "EqualTo": operator.eq,
    "EqualNullSafe": operator.eq,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "In": lambda value, choices: value in choices,
    "StringStartsWith": lambda text, part: text.startswith(part),
    "StringEndsWith": lambda text, part: text.endswith(part),
    "StringContains": lambda text, part: part in text,
}


@dataclass(frozen=True)
class Span:
    """Whole numbers from `low` to `high`, both included."""

    low: int = -LONG_MAX
    high: int = LONG_MAX

    def and_also(self, other: Span) -> Span:
        return Span(max(self.low, other.low), min(self.high, other.high))

    @property
    def is_all(self) -> bool:
        return self == ALL


ALL: Final = Span()
_BOUNDS: Final[dict[str, Callable[[int], Span]]] = {
    "EqualTo": lambda number: Span(number, number),
    "EqualNullSafe": lambda number: Span(number, number),
    "GreaterThan": lambda number: Span(low=number + 1),
    "GreaterThanOrEqual": lambda number: Span(low=number),
    "LessThan": lambda number: Span(high=number - 1),
    "LessThanOrEqual": lambda number: Span(high=number),
}


@dataclass(frozen=True)
class Predicate:
    """What the records of a query have in common."""

    names: tuple[Filter, ...] = ()
    """Filters on topic and partition; all of them hold."""
    offsets: Span = ALL
    times_us: Span = ALL
    """Microseconds since 1970, which is what Spark compares."""

    def admits(self, topic: str, partition: int) -> bool:
        """Whether records of this partition may qualify."""
        values = {"topic": topic, "partition": partition}
        return all(_holds(each, values) for each in self.names)

    @property
    def time_min_ms(self) -> int:
        """No record below it qualifies."""
        return -(-self.times_us.low // 1000)

    @property
    def time_max_ms(self) -> int:
        """No record above it qualifies."""
        return self.times_us.high // 1000


def take_filters(filters: Iterable[Filter]) -> tuple[Predicate, list[Filter]]:
    """What can be said of the filters as a predicate, and those that Spark has to check still."""
    predicate = Predicate()
    left = []
    for each in filters:
        if _kind(each) == "IsNotNull" and _column(each) in _NEVER_NULL:
            continue
        if _is_about_names(each):
            predicate = replace(predicate, names=(*predicate.names, each))
            continue
        narrowed, is_exact = _narrow(predicate, each)
        predicate = narrowed
        if not is_exact:
            left.append(each)
    return predicate, left


def _kind(of: Filter) -> str:
    """`EqualTo`, `In`, `Not`, ..."""
    return type(of).__name__


def _column(of: Any) -> str | None:
    path: tuple[str, ...] = getattr(of, "attribute", ())
    return path[0] if len(path) == 1 else None


def _is_about_names(of: Any) -> bool:
    """Whether it can be decided for a partition as a whole."""
    inner = of.child if _kind(of) == "Not" else of
    kind = {"topic": str, "partition": int}.get(_column(inner) or "")
    if kind is None or _kind(inner) not in _COMPARE:
        return False
    value = getattr(inner, "value", None)
    values = value if _kind(inner) == "In" else (value,)
    return isinstance(values, tuple | list) and all(type(each) is kind for each in values)


def _holds(of: Any, values: dict[str, Any]) -> bool:
    if _kind(of) == "Not":
        return not _holds(of.child, values)
    return _COMPARE[_kind(of)](values[of.attribute[0]], of.value)


def _narrow(predicate: Predicate, by: Filter) -> tuple[Predicate, bool]:
    """The predicate with a filter on offset or timestamp in it, and whether it says all of it."""
    column = _column(by)
    as_number = {"offset": _offset, "timestamp": _microseconds}.get(column or "")
    if as_number is None:
        return predicate, False
    found = _span(by, as_number)
    if found is None:
        return predicate, False
    span, is_exact = found
    if column == "offset":
        return replace(predicate, offsets=predicate.offsets.and_also(span)), is_exact
    return replace(predicate, times_us=predicate.times_us.and_also(span)), is_exact


def _span(of: Any, as_number: Callable[[Any], int | None]) -> tuple[Span, bool] | None:
    if _kind(of) == "In":
        numbers = [as_number(value) for value in of.value]
        known = [number for number in numbers if number is not None]
        if not known or len(known) < len(numbers):
            return None
        return Span(min(known), max(known)), len(set(known)) == 1
    number = as_number(getattr(of, "value", None))
    bounds = _BOUNDS.get(_kind(of))
    return None if number is None or bounds is None else (bounds(number), True)


def _offset(value: object) -> int | None:
    return value if type(value) is int else None


def _microseconds(value: object) -> int | None:
    """None for a time without a zone: what it means is for the session to say."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // _MICROSECOND
