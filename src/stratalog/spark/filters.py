"""Spark's pushed filters as a predicate that planning prunes by.

A filter that is not understood here is left to Spark, so a predicate never leaves out a record that
the query wants.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from stratalog.bulk.predicates import EVERYTHING, Condition, Interval, Predicate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql.datasource import Filter

    from stratalog.bulk.predicates import Operator

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_NEVER_NULL: Final = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})
_PARTITION_COLUMNS: Final = {"topic": str, "partition": int}
_OPERATORS: Final[dict[str, Operator]] = {
    "EqualTo": "==",
    "EqualNullSafe": "==",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "In": "in",
    "StringStartsWith": "starts with",
    "StringEndsWith": "ends with",
    "StringContains": "contains",
}


def predicate_of(filters: Iterable[Filter]) -> tuple[Predicate, list[Filter]]:
    """The filters as a predicate, and those that Spark still has to check."""
    predicate = EVERYTHING
    left = []
    for each in filters:
        if _kind(each) == "IsNotNull" and _column(each) in _NEVER_NULL:
            continue
        condition = _condition(each)
        if condition is not None:
            predicate = replace(predicate, conditions=(*predicate.conditions, condition))
            continue
        predicate, is_exact = _prune_by(predicate, each)
        if not is_exact:
            left.append(each)
    return predicate, left


def _kind(of: Filter) -> str:
    """`EqualTo`, `In`, `Not`, ..."""
    return type(of).__name__


def _column(of: Any) -> str | None:
    path: tuple[str, ...] = getattr(of, "attribute", ())
    return path[0] if len(path) == 1 else None


def _condition(of: Any) -> Condition | None:
    """A filter on topic or partition; None for any other."""
    is_negated = _kind(of) == "Not"
    inner = of.child if is_negated else of
    column, operator = _column(inner), _OPERATORS.get(_kind(inner))
    kind = _PARTITION_COLUMNS.get(column or "")
    if operator is None or kind is None:
        return None
    value = getattr(inner, "value", None)
    values = value if operator == "in" else (value,)
    if not isinstance(values, tuple | list) or any(type(each) is not kind for each in values):
        return None
    return Condition(column or "", operator, value, is_negated)


def _prune_by(predicate: Predicate, by: Filter) -> tuple[Predicate, bool]:
    """The predicate narrowed by a filter on offset or timestamp, and whether it fully replaces the
    filter."""
    column = _column(by)
    as_number = {"offset": _offset, "timestamp": _microseconds}.get(column or "")
    if as_number is None:
        return predicate, False
    found = _interval(by, as_number)
    if found is None:
        return predicate, False
    interval, is_exact = found
    if column == "offset":
        return replace(predicate, offsets=predicate.offsets.intersect(interval)), is_exact
    return replace(predicate, times_us=predicate.times_us.intersect(interval)), is_exact


def _interval(of: Any, as_number: Callable[[Any], int | None]) -> tuple[Interval, bool] | None:
    operator = _OPERATORS.get(_kind(of))
    if operator == "in":
        numbers = [as_number(value) for value in of.value]
        known = [number for number in numbers if number is not None]
        if not known or len(known) < len(numbers):
            return None
        return Interval(min(known), max(known)), len(set(known)) == 1
    number = as_number(getattr(of, "value", None))
    if number is None or operator is None:
        return None
    interval = Interval.of(operator, number)
    return None if interval is None else (interval, True)


def _offset(value: object) -> int | None:
    return value if type(value) is int else None


def _microseconds(value: object) -> int | None:
    """None for a time without a zone: the session decides what it means."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // _MICROSECOND
