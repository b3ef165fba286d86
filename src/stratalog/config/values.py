"""The types of settings, parsed and formatted as Kafka does.

A `Kind` converts what a user wrote (text of a properties file, or a Python value) into the value
that the code uses, checks it, and formats it as Kafka's text. It raises ValueError with the reason;
`definitions` adds the name of the setting.

* Text is trimmed first. Numbers are plain decimal digits with an optional sign: no `1k`, no `7d`.
* `int` is 32 bits wide and `long` 64, whatever range comes on top.
* A list is comma separated, without the white space around a comma; empty text is an empty list.
"""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Generic, TypeVar

T = TypeVar("T")

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1

MINUTE_MS = 60 * 1000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

_WHOLE = re.compile(r"([+-]?)0*([0-9]+)")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?")
_LONG_DIGITS = 19
_JAVA_TRIMMED = "".join(map(chr, range(0x21)))
_JAVA_WHITE = " \t\n\x0b\f\r"


def trim(text: str) -> str:
    """`text` without what Java's `trim` takes off: everything up to the space, at both ends."""
    return text.strip(_JAVA_TRIMMED)


class Kind(Generic[T]):
    """One type with its allowed values."""

    @property
    def type_name(self) -> str:
        """Kafka's name of the type."""
        raise NotImplementedError

    @property
    def allowed(self) -> str:
        """The allowed values in words, for error messages and the documentation; may be empty."""
        return ""

    def parse(self, raw: object) -> T:
        """The value of `raw`, which is text or already a value. ValueError says what is wrong."""
        raise NotImplementedError

    def text(self, value: T) -> str:
        """`value` as Kafka writes it; `parse` reads it back."""
        raise NotImplementedError


@dataclass(frozen=True)
class Integer(Kind[int]):
    """A `short`, `int` or `long`, from `low` to `high`, both included, or one of `also`."""

    bits: int
    low: int | None = None
    high: int | None = None
    also: int | None = None

    @property
    def type_name(self) -> str:
        return {16: "short", 32: "int", 64: "long"}[self.bits]

    @property
    def allowed(self) -> str:
        if self.high is not None:
            words = f"{self.low} to {self.high}"
        else:
            words = "" if self.low is None else f"at least {self.low}"
        return words if self.also is None else f"{words}, or {self.also}"

    def parse(self, raw: object) -> int:
        value = _whole(raw)
        if not -(1 << self.bits - 1) <= value < 1 << self.bits - 1:
            raise ValueError(f"does not fit in {self.bits} bits")
        if value != self.also and (
            (self.low is not None and value < self.low)
            or (self.high is not None and value > self.high)
        ):
            raise ValueError("is out of range")
        return value

    def text(self, value: int) -> str:
        return str(value)


def _whole(raw: object) -> int:
    if isinstance(raw, str):
        if match := _WHOLE.fullmatch(trim(raw)):
            # Decided by length: converting a million digits takes Python a while.
            if len(match[2]) > _LONG_DIGITS:
                raise ValueError("does not fit in 64 bits")
            return int(match[1] + match[2])
    elif isinstance(raw, int) and not isinstance(raw, bool):
        return int(raw)
    raise ValueError("is not an integer")


@dataclass(frozen=True)
class Lifetime(Integer):
    """A broker's retention time: at least 1, and whatever is negative means no limit (-1)."""

    @property
    def allowed(self) -> str:
        return "at least 1, or -1 for no limit"

    def parse(self, raw: object) -> int:
        value = super().parse(raw)
        if value == 0:
            raise ValueError("is out of range")
        return max(value, -1)


@dataclass(frozen=True)
class Decimal(Kind[float]):
    """A `double`. NaN and Infinity are rejected: no setting has a use for them."""

    low: float | None = None
    high: float | None = None

    @property
    def type_name(self) -> str:
        return "double"

    @property
    def allowed(self) -> str:
        if self.low is None:
            return ""
        return f"at least {self.low:g}" if self.high is None else f"{self.low:g} to {self.high:g}"

    def parse(self, raw: object) -> float:
        value = _decimal(raw)
        if (self.low is not None and value < self.low) or (
            self.high is not None and value > self.high
        ):
            raise ValueError("is out of range")
        return value

    def text(self, value: float) -> str:
        """As Java's `Double.toString`, which leaves plain notation earlier than Python."""
        if value == 0 or 1e-3 <= abs(value) < 1e7:
            return repr(value)
        sign, digits, exponent = decimal.Decimal(repr(value)).normalize().as_tuple()
        first, *rest = map(str, digits)
        power = int(exponent) + len(rest)
        return f"{'-' * sign}{first}.{''.join(rest) or '0'}E{power}"


def _decimal(raw: object) -> float:
    if isinstance(raw, str):
        if not _DECIMAL.fullmatch(trimmed := trim(raw)):
            raise ValueError("is not a number")
        raw = float(trimmed.rstrip("fFdD"))
    if not isinstance(raw, (int, float)) or isinstance(raw, bool):
        raise ValueError("is not a number")
    try:
        value = float(raw)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise ValueError("is not a finite number")
    return value


@dataclass(frozen=True)
class Boolean(Kind[bool]):
    """`true` or `false`, in any case."""

    @property
    def type_name(self) -> str:
        return "boolean"

    @property
    def allowed(self) -> str:
        return "true, false"

    def parse(self, raw: object) -> bool:
        if isinstance(raw, bool):
            return raw
        if isinstance(raw, str) and (lowered := trim(raw).lower()) in ("true", "false"):
            return lowered == "true"
        raise ValueError("is not a boolean")

    def text(self, value: bool) -> str:
        return "true" if value else "false"


@dataclass(frozen=True)
class Choice(Kind[T]):
    """One of some words, case-sensitive as in Kafka; each stands for a Python value."""

    words: tuple[tuple[str, T], ...]

    @property
    def type_name(self) -> str:
        return "string"

    @property
    def allowed(self) -> str:
        return ", ".join(word for word, _ in self.words)

    def parse(self, raw: object) -> T:
        by_word = dict(self.words)
        if isinstance(raw, str) and (trimmed := trim(raw)) in by_word:
            return by_word[trimmed]
        for value in by_word.values():
            if type(raw) is type(value) and raw == value:
                return value
        raise ValueError("is not one of the allowed values")

    def text(self, value: T) -> str:
        return next(word for word, meant in self.words if meant == value)


@dataclass(frozen=True)
class Choices(Kind[frozenset[T]]):
    """A list of such words; order and repetition do not matter."""

    one: Choice[T]

    @property
    def type_name(self) -> str:
        return "list"

    @property
    def allowed(self) -> str:
        return self.one.allowed

    def parse(self, raw: object) -> frozenset[T]:
        return frozenset(self.one.parse(item) for item in _items(raw))

    def text(self, value: frozenset[T]) -> str:
        return ",".join(word for word, meant in self.one.words if meant in value)


@dataclass(frozen=True)
class TextList(Kind[tuple[str, ...]]):
    """A list of texts or paths, each of which matches `pattern`, or the text `wildcard` alone."""

    pattern: str = r".+"
    wildcard: str | None = None
    described: str = ""
    drops_empty: bool = False

    @property
    def type_name(self) -> str:
        return "list"

    @property
    def allowed(self) -> str:
        return self.described

    def parse(self, raw: object) -> tuple[str, ...]:
        items = tuple(_text(item) for item in _items(raw))
        if self.drops_empty:
            items = tuple(filter(None, items))
        if items != (self.wildcard,):
            for item in items:
                if not re.fullmatch(self.pattern, item, re.ASCII | re.DOTALL):
                    raise ValueError(f"has an item that is not allowed, {item!r}")
        return items

    def text(self, value: tuple[str, ...]) -> str:
        return ",".join(value)


def _text(item: object) -> str:
    if isinstance(item, str | PurePath):
        return trim(str(item))
    raise ValueError(f"has an item that is not text, {item!r}")


def _items(raw: object) -> list[object]:
    if isinstance(raw, str):
        trimmed = trim(raw)
        return [item.strip(_JAVA_WHITE) for item in trimmed.split(",")] if trimmed else []
    if isinstance(raw, PurePath):
        return [raw]
    if isinstance(raw, Iterable) and not isinstance(raw, (bytes, Mapping)):
        return list(raw)
    raise ValueError("is not a list")


def short_integer(low: int | None = None) -> Integer:
    """Kafka's `short`."""
    return Integer(16, low)


def integer(low: int | None = None, high: int | None = None, also: int | None = None) -> Integer:
    """Kafka's `int`."""
    return Integer(32, low, high, also)


def long_integer(low: int | None = None, high: int | None = None) -> Integer:
    """Kafka's `long`."""
    return Integer(64, low, high)
