"""Lines and integers as Kafka's Java readers see them: the base of every text format here.

Python's own notions are wider: `str.splitlines` breaks at form feeds and U+2028, `int` takes
underscores and spaces. Kafka's files know neither.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from stratalog.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from stratalog.format.buffers import Buffer

_LINE = re.compile(rb"([^\r\n]*)(?:\r\n|\r|\n)|([^\r\n]+)\Z")
_INT = re.compile(r"([+-]?)0*([0-9]{1,19})")


class Line(NamedTuple):
    """One line of a file, without its end."""

    number: int
    """The first line is 1."""
    position: int
    text: str

    def wrong(self, reason: str) -> CorruptCheckpointError:
        """An error that names this line."""
        return CorruptCheckpointError(f"line {self.number}: {reason}", position=self.position)


def read_lines(buf: Buffer) -> list[Line]:
    """The lines of UTF-8 text, each ended by LF, CR or CR LF; the last may go without."""
    data = bytes(buf)
    lines = []
    for number, match in enumerate(_LINE.finditer(data), 1):
        raw = match[2] if match[1] is None else match[1]
        lines.append(Line(number, match.start(), _decode(raw, match.start())))
    return lines


def read_text(buf: Buffer) -> str:
    """All of it as UTF-8."""
    return _decode(bytes(buf), 0)


def parse_int(text: str, *, bits: int) -> int | None:
    """A decimal integer of `bits` bits in two's complement, or None when it is none.

    Like Java's parseInt and parseLong: a sign and leading zeros, no spaces. Java also takes foreign
    digits; nothing writes those.
    """
    match = _INT.fullmatch(text)
    if match is None:
        return None
    value = int(match[1] + match[2])
    limit = 1 << (bits - 1)
    return value if -limit <= value < limit else None


def _decode(raw: bytes, position: int) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise CorruptCheckpointError("not UTF-8", position=position + error.start) from None
