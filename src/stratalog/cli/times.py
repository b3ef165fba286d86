"""Positions in a log as users write them: offsets, times, and words such as `earliest`.

Parsing needs no log: it returns a value, and `Point.resolve` finds its offset in a partition.
Times are milliseconds since 1970 in UTC, as in Kafka's files. A time without a zone is UTC, as in
Kafka's tools and in everything that Stratalog prints.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from stratalog.log.partition_view import PartitionView

INT64_MAX: Final = (1 << 63) - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_AGO = re.compile(r"-((?:[0-9]+(?:ms|[smhdw]))+)")
_AMOUNT = re.compile(r"([0-9]+)(ms|[smhdw])")
_UNIT_MS: Final = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_EARLIEST: Final = {"earliest", "beginning", "start"}
_LATEST: Final = {"latest", "end"}

TIME_HELP: Final = (
    "2024-05-01, 2024-05-01T12:30:00.250 (UTC unless it ends with Z or an offset such as +02:00), "
    "now, -90s, -1h30m, -7d, or milliseconds since 1970"
)
POINT_HELP: Final = (
    "an offset, -N for N offsets before the end, earliest, latest, or a time: 2024-05-01T12:30:00, "
    "now, -1h30m, @1714566600000"
)


class InvalidTimeError(ValueError):
    """The text is neither an offset nor a time."""


Kind: TypeAlias = Literal["offset", "from_end", "time"]


@dataclass(frozen=True)
class Point:
    """A position in a log, not yet looked up in any."""

    kind: Kind
    value: int
    """An offset, a number of offsets before the end, or milliseconds."""

    def resolve(self, view: PartitionView) -> int:
        """The offset in this partition.

        A time is the first record at or after it, or the log end offset if there is none. Counting
        back from the end stops at the log start offset.
        """
        if self.kind == "offset":
            return self.value
        if self.kind == "from_end":
            return max(view.log_start_offset, view.log_end_offset - self.value)
        hit = view.find_time(self.value)
        return view.log_end_offset if hit is None else hit.offset


EARLIEST: Final = Point("from_end", INT64_MAX)
LATEST: Final = Point("from_end", 0)


def parse_point(text: str, *, now_ms: int) -> Point:
    """An offset or a time. A bare number is an offset; with `@` before it, milliseconds."""
    word = text.strip().lower()
    if word in _EARLIEST:
        return EARLIEST
    if word in _LATEST:
        return LATEST
    if _INTEGER.fullmatch(word):
        value = _int64(word)
        return Point("from_end", -value) if word.startswith("-") else Point("offset", value)
    try:
        return Point("time", parse_time(text.strip().removeprefix("@"), now_ms=now_ms))
    except InvalidTimeError:
        raise InvalidTimeError(f"{text!r} is not an offset or a time; use {POINT_HELP}") from None


def parse_offset(text: str) -> Point:
    """An offset only: a number, `-N` from the end, `earliest` or `latest`."""
    point = parse_point(text, now_ms=0)
    if point.kind == "time":
        raise InvalidTimeError(f"{text!r} is a time, not an offset; use --time")
    return point


def parse_time(text: str, *, now_ms: int) -> int:
    """Milliseconds since 1970."""
    word = text.strip()
    if word.lower() == "now":
        return now_ms
    if ago := _AGO.fullmatch(word.lower()):
        parts = _AMOUNT.findall(ago[1])
        return max(0, now_ms - sum(int(amount[:19]) * _UNIT_MS[unit] for amount, unit in parts))
    if _INTEGER.fullmatch(word):
        return _int64(word)
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


def _int64(digits: str) -> int:
    value = int(digits)
    if not -INT64_MAX <= value <= INT64_MAX:
        raise InvalidTimeError(f"{digits} does not fit into 64 bits")
    return value
