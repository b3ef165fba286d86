"""Times as users write and read them: ISO 8601, milliseconds, and `-2h` for two hours ago.

Times are milliseconds since 1970 in UTC, as in Kafka's files. A time without a zone is UTC, as in
Kafka's tools and in everything that Stratalog prints.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

INT64_MAX: Final = (1 << 63) - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_AGO: Final = re.compile(r"-((?:[0-9]+(?:ms|[smhdw]))+)")
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
    "2024-05-01, 2024-05-01T12:30:00.250 (UTC unless it ends with Z or an offset such as +02:00), "
    "now, -90s, -1h30m, -7d, or milliseconds since 1970"
)


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


def parse_time(text: str, *, now_ms: int) -> int:
    """Milliseconds since 1970."""
    word = text.strip()
    if word.lower() == "now":
        return now_ms
    if ago := _AGO.fullmatch(word.lower()):
        parts = _AMOUNT.findall(ago[1])
        return max(0, now_ms - sum(int(amount[:19]) * _UNIT_MS[unit] for amount, unit in parts))
    if (number := parse_integer(word)) is not None:
        return number
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        raise InvalidTimeError(f"{text!r} is not a time; use {TIME_HELP}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def format_time(timestamp: int) -> str:
    """ISO 8601 in UTC; `-` for no timestamp, the number if it is out of range for a date."""
    if timestamp == -1:
        return "-"
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp)
    except OverflowError:
        return str(timestamp)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
