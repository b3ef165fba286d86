"""Parses the JSON lines that export writes into columns, without a Python object per record.

Only the exact shape is taken: the fields in export's order, without blanks. Whatever else JSON
allows (blanks, other fields, escapes beyond ASCII) is left to a parser that takes it all, and that
can say what is wrong. UTF-8 is not checked here.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import types

from stratalog.format.kernels.jit import inlined, kernel, not_inlined

KEY, VALUE, HEADER_KEY, HEADER_VALUE = 0, 1, 2, 3
COLUMNS: Final = 4
"""Rows of `contents`, and of `slots`: there the ends, and then whether each value is there."""
PARTITION, TIMESTAMP, HEADER_ENDS = 0, 1, 2
NUMBERS: Final = 3

_QUOTE, _BACKSLASH, _EQUALS, _MINUS, _ZERO = 34, 92, 61, 45, 48
_BRACE, _BRACKET, _COMMA = 125, 93, 44
_UPPER_A, _UPPER_Z, _LOWER_A, _LOWER_Z = 65, 90, 97, 122
_DIGITS_MAX = 18
_TIME_MS_MAX = (1 << 63) // 1000 - 1
_PARTITION_MAX = (1 << 31) - 1
_NOT_BASE64 = 255


def _bytes(text: str) -> Any:
    return np.frombuffer(text.encode(), np.uint8).copy()


def _table(pairs: dict[str, int], otherwise: int) -> Any:
    table = np.full(256, otherwise, np.uint8)
    for text, value in pairs.items():
        table[ord(text)] = value
    return table


_AT_PARTITION: Final = _bytes(',"partition":')
_AT_OFFSET: Final = _bytes(',"offset":')
_AT_TIMESTAMP: Final = _bytes(',"timestamp":')
_AT_TIMESTAMP_TYPE: Final = _bytes(',"timestampType":')
_AT_KEY: Final = _bytes(',"key":')
_AT_VALUE: Final = _bytes(',"value":')
_AT_HEADERS: Final = _bytes(',"headers":[')
_AT_HEADER: Final = _bytes('{"key":"')
_NULL: Final = _bytes("null")
_BASE64: Final = _bytes('{"base64":"')
_SEXTETS: Final = _table(
    {
        text: value
        for value, text in enumerate(
            "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
        )
    },
    _NOT_BASE64,
)
_ESCAPES: Final = _table({'"': 34, "\\": 92, "/": 47, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9}, 0)
_HEX: Final = _table({text: int(text, 16) for text in "0123456789abcdefABCDEF"}, _NOT_BASE64)


@inlined
def _literal(data: Any, at: int, end: int, text: Any) -> int:
    """The position behind this text; -1 if it is not here, or if `at` is -1."""
    size = len(text)
    if at < 0 or end - at < size:
        return -1
    for i in range(size):
        if data[at + i] != text[i]:
            return -1
    return at + size


@inlined
def _number(data: Any, at: int, end: int) -> tuple[int, int]:
    """The position behind a whole number, and the number."""
    if at < 0 or at >= end:
        return -1, 0
    is_negative = data[at] == _MINUS
    at += is_negative
    start, value = at, 0
    while at < end and _ZERO <= data[at] <= _ZERO + 9:
        value = value * 10 + (data[at] - _ZERO)
        at += 1
        if at - start > _DIGITS_MAX:
            return -1, 0
    if at == start or (data[start] == _ZERO and at - start + is_negative > 1):
        return -1, 0
    return at, -value if is_negative else value


@not_inlined
def _escape(data: Any, at: int, end: int, out: Any, to: int) -> int:
    """Write what the escape at `at` stands for, one byte; the position behind it."""
    if end - at < 2:
        return -1
    plain = _ESCAPES[data[at + 1]]
    if plain:
        out[to] = plain
        return at + 2
    if data[at + 1] != 117 or end - at < 6:  # u
        return -1
    code = 0
    for i in range(2, 6):
        digit = _HEX[data[at + i]]
        if digit == _NOT_BASE64:
            return -1
        code = code * 16 + digit
    if code >= 128:
        return -1
    out[to] = code
    return at + 6


@inlined
def _text(data: Any, at: int, end: int, out: Any, to: int) -> tuple[int, int]:
    """Text up to its closing quote, and where its copy ends."""
    if at < 0:
        return -1, to
    while at < end:
        code = data[at]
        if code == _QUOTE:
            return at + 1, to
        if code == _BACKSLASH:
            at = _escape(data, at, end, out, to)
            if at < 0:
                return -1, to
        elif code < 32:
            return -1, to
        else:
            out[to] = code
            at += 1
        to += 1
    return -1, to


@not_inlined
def _base64(data: Any, at: int, end: int, out: Any, to: int) -> tuple[int, int]:
    """Bytes up to the end of `{"base64":"…"}`, and where they end."""
    while end - at >= 6 and data[at] != _QUOTE:
        first, second = _SEXTETS[data[at]], _SEXTETS[data[at + 1]]
        third, fourth = _SEXTETS[data[at + 2]], _SEXTETS[data[at + 3]]
        if max(first, second) == _NOT_BASE64:
            return -1, to
        out[to] = (first << 2 | second >> 4) & 255
        if fourth == _NOT_BASE64:
            return _base64_end(data, at, end, out, to)
        if third == _NOT_BASE64:
            return -1, to
        out[to + 1] = (second << 4 | third >> 2) & 255
        out[to + 2] = (third << 6 | fourth) & 255
        at += 4
        to += 3
    if end - at < 2 or data[at] != _QUOTE or data[at + 1] != _BRACE:
        return -1, to
    return at + 2, to


@not_inlined
def _base64_end(data: Any, at: int, end: int, out: Any, to: int) -> tuple[int, int]:
    """The last four characters, one or two of which are `=`."""
    if data[at + 3] != _EQUALS or data[at + 4] != _QUOTE or data[at + 5] != _BRACE:
        return -1, to
    if data[at + 2] == _EQUALS:
        return at + 6, to + 1
    second, third = _SEXTETS[data[at + 1]], _SEXTETS[data[at + 2]]
    if third == _NOT_BASE64:
        return -1, to
    out[to + 1] = (second << 4 | third >> 2) & 255
    return at + 6, to + 2


@inlined
def _content(data: Any, at: int, end: int, out: Any, slots: Any, place: tuple[int, int]) -> int:
    """A key or value: text, null or `{"base64":"…"}`; the position behind it."""
    column, row = place
    to = slots[column, row]
    slots[column, row + 1] = to
    slots[COLUMNS + column, row] = 1
    if at < 0 or at >= end:
        return -1
    if data[at] == _QUOTE:
        at, to = _text(data, at + 1, end, out, to)
    elif data[at] == _NULL[0]:
        slots[COLUMNS + column, row] = 0
        return _literal(data, at, end, _NULL)
    else:
        at = _literal(data, at, end, _BASE64)
        if at < 0:
            return -1
        at, to = _base64(data, at, end, out, to)
    slots[column, row + 1] = to
    return at


@not_inlined
def _headers(data: Any, at: int, end: int, contents: Any, slots: Any, row: int) -> tuple[int, int]:
    """The headers of a record, from number `row` on: the position behind them, and the next."""
    at = _literal(data, at, end, _AT_HEADERS)
    if at < 0 or at >= end:
        return -1, row
    if data[at] == _BRACKET:
        return at + 1, row
    while at >= 0:
        at = _literal(data, at, end, _AT_HEADER)
        if at < 0:
            break
        at = _content(data, at - 1, end, contents[HEADER_KEY], slots, (HEADER_KEY, row))
        at = _literal(data, at, end, _AT_VALUE)
        at = _content(data, at, end, contents[HEADER_VALUE], slots, (HEADER_VALUE, row))
        if at < 0 or end - at < 2 or data[at] != _BRACE:
            break
        row += 1
        if data[at + 1] == _BRACKET:
            return at + 2, row
        if data[at + 1] != _COMMA:
            break
        at += 2
    return -1, row


@inlined
def _timestamp_type(data: Any, at: int, end: int) -> int:
    """The position behind a name, or a number as older exports have it."""
    if at < 0 or at >= end:
        return -1
    if data[at] != _QUOTE:
        return _number(data, at, end)[0]
    at += 1
    while at < end and (_UPPER_A <= data[at] <= _UPPER_Z or _LOWER_A <= data[at] <= _LOWER_Z):
        at += 1
    return at + 1 if at < end and data[at] == _QUOTE else -1


@inlined
def _numbers(data: Any, at: int, end: int, numbers: Any, line: int) -> int:
    """The numbers of a record and its timestamp type; the position behind them."""
    at, partition = _number(data, _literal(data, at, end, _AT_PARTITION), end)
    at, _ = _number(data, _literal(data, at, end, _AT_OFFSET), end)
    at, time_ms = _number(data, _literal(data, at, end, _AT_TIMESTAMP), end)
    at = _timestamp_type(data, _literal(data, at, end, _AT_TIMESTAMP_TYPE), end)
    if not (0 <= partition <= _PARTITION_MAX and -1 <= time_ms <= _TIME_MS_MAX):
        return -1
    numbers[PARTITION, line] = partition
    numbers[TIMESTAMP, line] = time_ms
    return at


_BYTES = types.Array(types.uint8, 1, "C", readonly=True)


@kernel(
    types.int64(
        _BYTES,
        types.Array(types.int32, 1, "C", readonly=True),
        types.int64,
        types.uint8[:, ::1],
        types.int32[:, ::1],
        types.int64[:, ::1],
    )
)
def scan_exported(
    data: Any, lines: Any, prefix_bytes: int, contents: Any, slots: Any, numbers: Any
) -> int:
    """How many lines from the first on have export's shape, and the prefix of the first.

    Line i is `data[lines[i]:lines[i + 1]]`. Of each column, `contents` has its values end to end, a
    row as long as `data`; `slots` has where they end, with a 0 before the first, and whether each
    is there. There is room for as many headers as the data has of `{"key":`.
    """
    headers = 0
    first = lines[0]
    for line in range(len(lines) - 1):
        at, end = lines[line], lines[line + 1]
        at = _literal(data, at, end, data[first : first + prefix_bytes])
        at = _numbers(data, at, end, numbers, line)
        at = _literal(data, at, end, _AT_KEY)
        at = _content(data, at, end, contents[KEY], slots, (KEY, line))
        at = _literal(data, at, end, _AT_VALUE)
        at = _content(data, at, end, contents[VALUE], slots, (VALUE, line))
        if at >= 0 and end - at > 1:
            at, headers = _headers(data, at, end, contents, slots, headers)
        numbers[HEADER_ENDS, line] = headers
        if at < 0 or at != end - 1 or data[at] != _BRACE:
            return line
    return len(lines) - 1
