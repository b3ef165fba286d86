"""Points in a log as users write them: offsets, times, and words such as `earliest`.

Parsing needs no log: it returns a value, and `Point.resolve` finds its offset in a partition. Times
are those of `stratalog.format.times`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from stratalog.format.times import INT64_MAX, InvalidTimeError, parse_integer, parse_time

if TYPE_CHECKING:
    from stratalog.log.partition_view import PartitionView

_EARLIEST: Final = {"earliest", "beginning", "start"}
_LATEST: Final = {"latest", "end"}

POINT_HELP: Final = (
    "an offset, earliest, latest, -N for N offsets before the end, or a time: "
    "2024-05-01T12:30:00, 14:05, now, -1h30m, @1714566600000"
)

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
    if (value := parse_integer(word)) is not None:
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
