"""Values that callers pass to the public API: times, offsets and choices.

Every layer converts them here, so that a parameter accepts the same values wherever it occurs.
Anything else raises InvalidArgumentError: a value that is ignored or guessed at would go unnoticed.
"""

from __future__ import annotations

import operator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from stratalog.errors import InvalidArgumentError

if TYPE_CHECKING:
    import enum
    from collections.abc import Collection

    import numpy as np

_E = TypeVar("_E", bound="enum.Enum")

TimeLike: TypeAlias = "int | datetime | np.datetime64"
"""A point in time: milliseconds since 1970 in UTC, as in Kafka's files; a `datetime` with a time
zone (also a `pandas.Timestamp`, which is one); or a `numpy.datetime64`, which has no time zone and
counts in UTC."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
INT64_MAX: Final = (1 << 63) - 1


def milliseconds_of(time: TimeLike, name: str = "timestamp", *, rounds_up: bool = False) -> int:
    """Milliseconds since 1970 in UTC. `name` is the parameter, for the message.

    What is finer than a millisecond is dropped; with `rounds_up` the result is the first
    millisecond at or after `time`. That is right for both bounds of a range of records, whose
    timestamps are whole milliseconds.
    """
    if type(time) is int:
        number: int = time
    elif isinstance(time, datetime):
        number = _from_datetime(time, name, rounds_up=rounds_up)
    elif _is_datetime64(time):
        number = _from_datetime64(time, name, rounds_up=rounds_up)
    else:
        number = _integer(time, name, _TIME_HELP)
    if abs(number) > INT64_MAX:
        raise InvalidArgumentError(f"{name} is {number}, which does not fit in 64 bits")
    return number


_TIME_HELP: Final = (
    "use milliseconds since 1970 as an int, or a datetime with a time zone such as "
    "datetime(2026, 5, 1, tzinfo=UTC)"
)


def _from_datetime(time: datetime, name: str, *, rounds_up: bool) -> int:
    if time != time:  # noqa: PLR0124  # pandas.NaT
        raise InvalidArgumentError(f"{name} is {time}; {_TIME_HELP}")
    if time.utcoffset() is None:
        raise InvalidArgumentError(
            f"{name} is {time!r}, which has no time zone; say which one, for example with "
            ".replace(tzinfo=UTC), .astimezone() (local time), or tz_localize in pandas"
        )
    if rounds_up:
        return -int((_EPOCH - time) // _MILLISECOND)
    return int((time - _EPOCH) // _MILLISECOND)


def _is_datetime64(value: object) -> bool:
    """Whether the value is a `numpy.datetime64`. Does not import numpy, which would take longer
    than many commands."""
    kind = type(value)
    return kind.__name__ == "datetime64" and kind.__module__ == "numpy"


def _from_datetime64(time: Any, name: str, *, rounds_up: bool) -> int:
    if time != time:  # noqa: PLR0124  # NaT
        raise InvalidArgumentError(f"{name} is {time}; {_TIME_HELP}")
    whole = time.astype("datetime64[ms]")
    number = int(whole.astype("int64"))
    return number + 1 if rounds_up and whole < time else number


def offset_of(value: object, name: str) -> int:
    """An offset: an integer, also one of numpy."""
    return _integer(value, name, "use an offset (an int)")


def count_of(value: object, name: str) -> int:
    """A limit or a duration: an integer, 0 or more."""
    number = _integer(value, name, "use an int")
    if number < 0:
        raise InvalidArgumentError(f"{name} is {number}; it cannot be negative")
    return number


def _integer(value: Any, name: str, help_text: str) -> int:
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    kind = type(value).__name__
    raise InvalidArgumentError(f"{name} is {value!r}, a {kind}; {help_text}") from None


def choice_of(kind: type[_E], value: object, name: str) -> _E:
    """A member of an enum: as such, or by the name that Kafka has for it, in any case."""
    if isinstance(value, kind):
        return value
    names = {_kafka_name(member): member for member in kind}
    return names[word_of(value, names, name)]


def word_of(value: object, words: Collection[str], name: str) -> str:
    """One of some words, in any case."""
    word = value.lower() if isinstance(value, str) else None
    if word is None or word not in words:
        raise InvalidArgumentError(f"{name} is {value!r}, not one of {', '.join(words)}")
    return word


def _kafka_name(member: enum.Enum) -> str:
    return member.value if isinstance(member.value, str) else member.name.lower()
