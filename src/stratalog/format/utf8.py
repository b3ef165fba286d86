"""UTF-8 as Java decodes it, which is what Kafka shows and what its strings hold.

Both languages accept exactly the well-formed sequences and put U+FFFD for the rest. They agree on
how many bytes one U+FFFD stands for, but for encoded surrogates (ED A0 80): one in Java, three in
Python.
"""

from __future__ import annotations

import re
from typing import Final

_LEAD: Final = b"\xed"
_SURROGATE: Final = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")
_MALFORMED: Final = b"\xff"  # one byte that is never part of anything


def decode_utf8(data: bytes) -> str:
    """What `new String(data, UTF_8)` gives in Java."""
    if _LEAD in data:
        data = _SURROGATE.sub(_MALFORMED, data)
    return data.decode("utf-8", "replace")
