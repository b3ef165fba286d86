"""Text as Java reads it: lines, integers, UTF-8 and `.properties` files.

Python is more permissive: `str.splitlines` also splits at form feeds and U+2028, and `int` accepts
underscores and spaces.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        """An error for this line."""
        return CorruptCheckpointError(f"line {self.number}: {reason}", position=self.position)


def read_lines(buf: Buffer) -> list[Line]:
    """The lines of UTF-8 text, each ended by LF, CR or CR LF; the last may have none."""
    data = bytes(buf)
    lines = []
    for number, match in enumerate(_LINE.finditer(data), 1):
        raw = match[2] if match[1] is None else match[1]
        lines.append(Line(number, match.start(), _decode(raw, match.start())))
    return lines


def read_text(buf: Buffer) -> str:
    """The whole buffer as UTF-8 text."""
    return _decode(bytes(buf), 0)


def parse_int(text: str, *, bits: int) -> int | None:
    """A decimal integer of `bits` bits in two's complement, or None if `text` is not one.

    Like Java's parseInt and parseLong: a sign and leading zeros, no spaces. Java also accepts other
    Unicode digits; nothing writes those.
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


# UTF-8 as Java decodes it. Java and Python replace malformed sequences by U+FFFD alike, except
# encoded surrogates (ED A0 80): Java writes one U+FFFD, Python three.

_LEAD: Final = b"\xed"
_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_MALFORMED: Final = b"\xff"  # one byte that is never part of anything


def decode_utf8(data: bytes) -> str:
    """The result of `new String(data, UTF_8)` in Java."""
    if _LEAD in data:
        data = _SURROGATE.sub(_MALFORMED, data)
    return data.decode("utf-8", "replace")


# Java's .properties format, complete: `meta.properties` and `server.properties` are written in it.
#
# A file is Latin-1, so one byte is one character. It is read in three steps: natural lines,
# logical lines (a backslash at the end joins the next line, whose indent is dropped), then key and
# value.
#
# * A line whose first character other than white space is `#` or `!` is a comment; it joins
#   nothing.
# * The key ends at the first `=`, `:` or white space that no backslash precedes. One `=` or `:`,
#   with white space around it, separates it from the value, which keeps white space at its end.
# * `\t \n \r \f` and `\uXXXX` are as in Java; before anything else a backslash is dropped.
# * If a key appears twice, the last value counts.

_WHITE = " \t\f"
_NATURAL_LINE = re.compile(r"([^\r\n]*)(?:\r\n|\r|\n|\Z)")
_KEY = re.compile(r"(?:[^\\=: \t\f]|\\.)*")
_SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class _LogicalLine(NamedTuple):
    position: int
    text: str


def decode_properties(buf: Buffer) -> dict[str, str]:
    """Keys and values in file order. Only a malformed `\\uXXXX` is an error, as in Java."""
    properties = {}
    for line in _logical_lines(bytes(buf).decode("latin-1")):
        key_end = _end(_KEY, line.text, 0)
        key = _unescape(line.text[:key_end], line.position)
        value = line.text[_end(_SEPARATOR, line.text, key_end) :]
        properties[key] = _unescape(value, line.position)
    return properties


def _logical_lines(text: str) -> Iterator[_LogicalLine]:
    position = 0
    joined = ""
    for match in _NATURAL_LINE.finditer(text):
        line = match[1].lstrip(_WHITE)
        if not joined:
            position = match.start()
            if not line or line[0] in "#!":
                continue
        is_open = _ends_open(line)
        joined += line[:-1] if is_open else line
        if not is_open:
            yield _LogicalLine(position, joined)
            joined = ""


def _ends_open(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return start if match is None else match.end()


def _unescape(text: str, position: int) -> str:
    if "\\" not in text:
        return text

    def character(match: re.Match[str]) -> str:
        if match[1] is not None:
            return chr(int(match[1], 16))
        if match[2] == "u":
            raise CorruptCheckpointError("malformed \\uXXXX escape", position=position)
        return _ESCAPED.get(match[2], match[2])

    # Java's characters are UTF-16: two escapes may make one. A half without its other half is lost.
    units = _ESCAPE.sub(character, text).encode("utf-16-le", "surrogatepass")
    return units.decode("utf-16-le", "replace")
