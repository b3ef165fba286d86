"""What the records of a query have in common: a predicate that planning prunes by.

Conditions on topic and partition are decided for each partition directory; conditions on offset and
timestamp are intervals. Spark's filters become a predicate in `stratalog.spark.filters`.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

LONG_MAX: Final = (1 << 63) - 1
Operator = Literal["==", ">", ">=", "<", "<=", "in", "starts with", "ends with", "contains"]
_COMPARE: Final[dict[Operator, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "in": lambda value, choices: value in choices,
    "starts with": lambda text, part: text.startswith(part),
    "ends with": lambda text, part: text.endswith(part),
    "contains": lambda text, part: part in text,
}


class Condition(NamedTuple):
    """A comparison that holds, or not, for all records of a partition."""

    column: str
    """`topic` or `partition`."""
    operator: Operator
    value: Any
    is_negated: bool = False

    def holds(self, topic: str, partition: int) -> bool:
        value = topic if self.column == "topic" else partition
        return _COMPARE[self.operator](value, self.value) is not self.is_negated


@dataclass(frozen=True)
class Interval:
    """Integers from `low` to `high`, both included."""

    low: int = -LONG_MAX
    high: int = LONG_MAX

    def intersect(self, other: Interval) -> Interval:
        return Interval(max(self.low, other.low), min(self.high, other.high))

    @property
    def is_all(self) -> bool:
        return self == ALL


ALL: Final = Interval()


@dataclass(frozen=True)
class Predicate:
    """All of its conditions hold for the records of a query."""

    conditions: tuple[Condition, ...] = ()
    offsets: Interval = ALL
    times_us: Interval = ALL
    """Microseconds since 1970, which is what Spark compares."""

    def admits(self, topic: str, partition: int) -> bool:
        """Whether records of this partition may qualify."""
        return all(condition.holds(topic, partition) for condition in self.conditions)

    @property
    def time_min_ms(self) -> int:
        """No record with a lower timestamp qualifies."""
        return -(-self.times_us.low // 1000)

    @property
    def time_max_ms(self) -> int:
        """No record with a higher timestamp qualifies."""
        return self.times_us.high // 1000


EVERYTHING: Final = Predicate()
