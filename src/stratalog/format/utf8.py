"""UTF-8 as Java decodes it, which is what Kafka shows and what its strings hold.

Both languages accept exactly the well-formed sequences and put U+FFFD for the rest, but they do not
agree on how many bytes one U+FFFD stands for: Java takes an encoded surrogate (ED A0 80) or a
sequence cut off by the end of the input as one, Python as two or three.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stratalog.format.buffers import Buffer

REPLACEMENT: Final = "\ufffd"
_ERRORS: Final = "stratalog.java"


def decode_utf8(data: bytes) -> str:
    """What `new String(data, UTF_8)` gives in Java."""
    return data.decode("utf-8", _ERRORS)


def malformed_bytes(data: Buffer, at: int) -> int:
    """How many bytes Java replaces by one U+FFFD at `at`, where no well-formed sequence starts."""
    lead, left = data[at], len(data) - at
    if not 0xE0 <= lead <= 0xF4:  # a stray continuation, an overlong or impossible lead, a cut pair
        return 1
    if left > 1 and not _may_be_second(lead, data[at + 1]):
        return 1
    if left < 3:
        return left
    if not _is_continuation(data[at + 2]):
        return 2
    return 3  # a surrogate, or four bytes with a wrong or missing last one


def _may_be_second(lead: int, second: int) -> bool:
    if lead == 0xE0 and second < 0xA0:  # would be overlong
        return False
    if lead == 0xF0 and second < 0x90:
        return False
    if lead == 0xF4 and second > 0x8F:  # would be above U+10FFFF
        return False
    return _is_continuation(second)


def _is_continuation(byte: int) -> bool:
    return byte & 0xC0 == 0x80


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return REPLACEMENT, error.start + malformed_bytes(error.object, error.start)


codecs.register_error(_ERRORS, _replace)
