"""Sizes as users read and write them, counts and durations as they read them.

A unit of size is a power of 1024, however it is spelled, as in Kafka's documentation.
"""

from __future__ import annotations

import re
from typing import Final

from stratalog.format.times import INT64_MAX

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEPS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))
_YEAR_DAYS: Final = 365
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(?:([kmgtp])i?b?|b)?", re.IGNORECASE)

SIZE_HELP: Final = "bytes, or with a unit: 64KiB, 1GiB"


class InvalidQuantityError(ValueError):
    """The text is not a size."""


def parse_size(text: str) -> int:
    """Bytes: `4096`, `64KiB`, `1.5 GB`."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise InvalidQuantityError(f"{text!r} is not a size; use {SIZE_HELP}")
    unit: int = 1 << 10 * (" kmgtp".index(found[2].lower()) if found[2] else 0)
    value = float(found[1]) * unit if "." in found[1] else int(found[1]) * unit
    if value > INT64_MAX:
        raise InvalidQuantityError(f"{text} does not fit into 64 bits")
    return round(value)


def human_size(size_bytes: int) -> str:
    """`1.4 MiB`, at most four digits; below 1000 bytes it is exact."""
    size, unit = float(size_bytes), 0
    while round(size, 1) >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size_bytes} B" if not unit else f"{size:.1f} {_UNITS[unit]}"


def counted(number: int, noun: str) -> str:
    """`1 record`, `1,500 records`, `2 batches`, `2 entries`, `2 passes`."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y"):
        return f"{number:,} {noun[:-1]}ies"
    return f"{number:,} {noun}es" if noun.endswith(("ch", "ss")) else f"{number:,} {noun}s"


def duration_text(ms: int) -> str:
    """The two largest units: `2 d 3 h`, `5 min 30 s`, `12 ms`."""
    parts = []
    for size_ms, unit in _STEPS:
        amount, ms = divmod(ms, size_ms)
        if amount:
            parts.append(f"{amount} {unit}")
        if parts and (len(parts) == 2 or (unit == "d" and amount >= _YEAR_DAYS)):
            break
    return " ".join(parts) or "0 ms"
