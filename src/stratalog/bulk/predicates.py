"""Predicates on topic, partition, offset and time, by which planning prunes a read.

Conditions on topic and partition are decided for each partition directory; conditions on offset and
timestamp are intervals. Spark's filters become a predicate in `stratalog.spark.filters`; a text
such as `partition = 3 and timestamp >= '-2h'` does in `parse_where`.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from stratalog.errors import ConfigError
from stratalog.format.times import InvalidTimeError, format_time, parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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

    def __str__(self) -> str:
        text = f"{self.column} {self.operator} {self.value!r}"
        return f"not {text}" if self.is_negated else text


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

    @classmethod
    def of(cls, comparison: Operator, number: int) -> Interval | None:
        """The integers for which the comparison with `number` holds; None if they have gaps."""
        bounds = {
            "==": cls(number, number),
            ">": cls(low=number + 1),
            ">=": cls(low=number),
            "<": cls(high=number - 1),
            "<=": cls(high=number),
        }
        return bounds.get(comparison)

    def describe(self, name: str, show: Callable[[int], str]) -> str:
        """As a comparison of `name`."""
        if self.low == self.high:
            return f"{name} == {show(self.low)}"
        low = f"{name} >= {show(self.low)}" if self.low > ALL.low else ""
        high = f"{name} <= {show(self.high)}" if self.high < ALL.high else ""
        return " and ".join(filter(None, (low, high)))


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

    def __str__(self) -> str:
        """Its conditions; empty if it has none."""
        parts = [
            *map(str, self.conditions),
            self.offsets.describe("offset", str),
            self.times_us.describe("timestamp", lambda us: format_time(us // 1000)),
        ]
        return " and ".join(filter(None, parts))


EVERYTHING: Final = Predicate()


# -- from text

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?[0-9]+)|(?P<word>[A-Za-z_]+)"
    r"|(?P<symbol><=|>=|==|=|<|>|\(|\)|,))"
)
_SYMBOLS: Final[dict[str, Operator]] = {
    "=": "==",
    "==": "==",
    ">": ">",
    ">=": ">=",
    "<": "<",
    "<=": "<=",
}
_KINDS: Final = {"topic": str, "partition": int, "offset": int, "timestamp": str}


def parse_where(text: str, *, now_ms: int) -> Predicate:
    """Comparisons of topic, partition, offset and timestamp with literals, joined by `and`.

    A literal is a number or a text in single quotes; `in (...)` compares with several, and
    `between ... and ...` with two. A timestamp is compared with a text that `parse_time` takes.
    Raises ConfigError for anything else.
    """
    return _WhereParser(text, now_ms).parse()


class _WhereParser:
    """Reads the tokens of one text, from left to right."""

    def __init__(self, text: str, now_ms: int) -> None:
        self._text = text
        self._now_ms = now_ms
        self._tokens = list(self._tokenize())
        self._predicate = EVERYTHING

    def parse(self) -> Predicate:
        while True:
            self._comparison()
            if not self._tokens:
                return self._predicate
            self._expect("and")

    def _tokenize(self) -> Iterator[str]:
        at, text = 0, self._text.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._error(text[at:])
            yield found[found.lastgroup or 0]
            at = found.end()

    def _comparison(self) -> None:
        column = self._next().lower()
        if column not in _KINDS:
            raise self._error(column)
        word = self._next().lower()
        if word == "between":
            low = self._literal(column)
            self._expect("and")
            self._add(column, ">=", low)
            self._add(column, "<=", self._literal(column))
        elif word == "in":
            self._add(column, "in", self._list(column))
        elif word in _SYMBOLS:
            self._add(column, _SYMBOLS[word], self._literal(column))
        else:
            raise self._error(word)

    def _list(self, column: str) -> tuple[Any, ...]:
        self._expect("(")
        values = [self._literal(column)]
        while (token := self._next()) == ",":
            values.append(self._literal(column))
        if token != ")":
            raise self._error(token)
        return tuple(values)

    def _literal(self, column: str) -> int | str:
        """A number or a text, and microseconds for a timestamp."""
        token = self._next()
        is_text = token.startswith("'")
        if is_text is not (_KINDS[column] is str) or not (is_text or token.lstrip("-").isdecimal()):
            raise self._error(token)
        if not is_text:
            return int(token)
        text = token[1:-1].replace("''", "'")
        if column != "timestamp":
            return text
        try:
            return parse_time(text, now_ms=self._now_ms) * 1000
        except InvalidTimeError as error:
            raise ConfigError("where", str(error)) from None

    def _add(self, column: str, comparison: Operator, value: Any) -> None:
        if column in ("topic", "partition"):
            condition = Condition(column, comparison, value)
            conditions = (*self._predicate.conditions, condition)
            self._predicate = replace(self._predicate, conditions=conditions)
            return
        interval = (
            Interval(min(value), max(value))
            if comparison == "in"
            else Interval.of(comparison, value) or ALL
        )
        held = self._predicate
        if column == "offset":
            self._predicate = replace(held, offsets=held.offsets.intersect(interval))
        else:
            self._predicate = replace(held, times_us=held.times_us.intersect(interval))

    def _next(self) -> str:
        if not self._tokens:
            raise self._error("")
        return self._tokens.pop(0)

    def _expect(self, word: str) -> None:
        token = self._next()
        if token.lower() != word:
            raise self._error(token)

    def _error(self, token: str) -> ConfigError:
        where = f"at {token!r}" if token else "at its end"
        return ConfigError(
            "where",
            f"cannot prune by {self._text!r} ({where}); use comparisons of topic, partition, "
            "offset and timestamp with numbers or texts in single quotes, joined by and",
            value=self._text,
        )
