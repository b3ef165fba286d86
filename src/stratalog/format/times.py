"""Times as users write and read them: ISO 8601, `14:05`, milliseconds, and `2h` for two hours ago.

Times are milliseconds since 1970 in UTC, as in Kafka's files. A time without a zone is UTC, as in
Kafka's tools and in everything that Stratalog prints.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Final

INT64_MAX: Final = (1 << 63) - 1
NS_PER_MS: Final = 1_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_DURATION: Final = re.compile(r"(?:[0-9]{1,18}(?:ms|[smhdw]))+")
_CLOCK: Final = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?")
_AMOUNT: Final = re.compile(r"([0-9]+)(ms|[smhdw])")
_UNIT_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}

TIME_HELP: Final = (
    "2024-05-01, 2024-05-01T12:30:00.250 (UTC, unless it has an offset such as +02:00), 14:05 "
    "(the most recent, UTC), now, 90s, 1h30m or 7d (ago), or milliseconds since 1970"
)


def current_time_ms() -> int:
    """Now, according to this machine's clock."""
    return time.time_ns() // NS_PER_MS


class InvalidTimeError(ValueError):
    """The text is neither an offset nor a time."""


def parse_integer(text: str) -> int | None:
    """A number of 64 bits; None if the text is not a number."""
    if not _INTEGER.fullmatch(text):
        return None
    value = int(text)
    if not -INT64_MAX <= value <= INT64_MAX:
        raise InvalidTimeError(f"{text} does not fit into 64 bits")
    return value


def parse_duration(text: str) -> int | None:
    """Milliseconds of `90s`, `1h30m`, `7d`; None if the text is not a duration."""
    word = text.strip().lower()
    if not _DURATION.fullmatch(word):
        return None
    return sum(int(amount) * _UNIT_MS[unit] for amount, unit in _AMOUNT.findall(word))


def parse_time(text: str, *, now_ms: int) -> int:
    """Milliseconds since 1970. A duration, with or without a minus, is that long ago."""
    word = text.strip()
    if word.lower() == "now":
        return now_ms
    if (ago_ms := parse_duration(word.removeprefix("-"))) is not None:
        return max(0, now_ms - ago_ms)
    if clock := _CLOCK.fullmatch(word):
        return _last_time_of_day(clock, now_ms)
    if (number := parse_integer(word)) is not None:
        return number
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        raise InvalidTimeError(f"{text!r} is not a time; use {TIME_HELP}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _last_time_of_day(clock: re.Match[str], now_ms: int) -> int:
    """Today in UTC, or yesterday if it is still to come: logs are about the past."""
    hours, minutes, seconds = (int(part or 0) for part in clock.groups())
    of_day_ms = ((hours * 60 + minutes) * 60 + seconds) * 1000
    today_ms = now_ms - now_ms % _UNIT_MS["d"] + of_day_ms
    return today_ms if today_ms <= now_ms else today_ms - _UNIT_MS["d"]


def format_time(timestamp: int) -> str:
    """ISO 8601 in UTC; `-` for no timestamp, the number if it is out of range for a date."""
    if timestamp == -1:
        return "-"
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp)
    except OverflowError:
        return str(timestamp)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
