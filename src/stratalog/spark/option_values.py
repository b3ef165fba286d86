"""Values of options as Spark writes them: numbers, sizes, durations, choices."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from stratalog.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SIZES: Final = {"": 0, "b": 0, "k": 10, "m": 20, "g": 30, "t": 40}
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_LONG_MAX: Final = (1 << 63) - 1


def parse_positive(given: Mapping[str, str], name: str) -> int | None:
    """A count of one or more; None when the option is not given."""
    if name not in given:
        return None
    text = given[name].strip()
    if not re.fullmatch(r"\d{1,19}", text) or not 0 < int(text) <= _LONG_MAX:
        raise ConfigError(name, f"not a whole number of 1 or more: {text!r}", value=text)
    return int(text)


def parse_bool(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise ConfigError(name, f"not true or false: {text!r}", value=text)
    return text == "true"


def parse_choice(given: Mapping[str, str], name: str, choices: Sequence[str]) -> str | None:
    """One of these words, in any case; None when the option is not given."""
    if name not in given:
        return None
    text = given[name].strip().lower()
    if text not in choices:
        raise ConfigError(name, f"not one of {', '.join(choices)}: {text!r}", value=text)
    return text


def parse_bytes(given: Mapping[str, str], name: str) -> int | None:
    """A size such as `1048576`, `64m` or `1GB`; None when the option is not given."""
    if name not in given:
        return None
    text = given[name].strip().lower()
    found = re.fullmatch(r"(\d{1,15})\s*([kmgt]?)(i?b)?", text)
    if found is None or not int(found[1]):
        raise ConfigError(name, f"not a size such as 64m or 1048576: {text!r}", value=text)
    return int(found[1]) << _SIZES[found[2]]


def parse_duration_ms(given: Mapping[str, str], name: str) -> int | None:
    """A time such as `500ms`, `15m` or `2h`, bare numbers in milliseconds; None when not given."""
    if name not in given:
        return None
    text = given[name].strip().lower()
    found = re.fullmatch(r"(\d{1,15})\s*(ms|s|min|m|h|d)?", text)
    if found is None:
        raise ConfigError(name, f"not a time such as 500ms, 15m or 2h: {text!r}", value=text)
    return int(found[1]) * _UNITS_MS[found[2] or "ms"]
