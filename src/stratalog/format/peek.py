"""The few header fields that look-ups and walks need, for every magic, in one unpack.

A walk over a log touches millions of headers and wants five numbers of each, so it reads these
instead of a whole `BatchHeader`. A peek is only *plausible*, never proven: it does not check the
CRC. A random position passes `plausible` about once in 2**40 tries, because offset, length and
magic must all fit their ranges.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.format.batch import (
    CLASSIFY_BYTES,
    HEADER_BYTES,
    LEGACY_MESSAGE_BYTES_MIN,
    MAGIC_2,
    NO_TIMESTAMP,
    PREFIX_BYTES,
)

if TYPE_CHECKING:
    from stratalog.format.buffers import Buffer

_PEEK = struct.Struct(
    ">q"  # offset
    "i"  # length
    "4x"
    "b"  # magic
    "6x"
    "i"  # last_offset_delta, magic 2 only
    "8x"
    "q"  # max_timestamp, magic 2 only
)
_LEGACY = struct.Struct(
    ">q"  # offset
    "i"  # length
    "4x"
    "b"  # magic
)
_LEGACY_TIMESTAMP = struct.Struct(">q")
_LEGACY_TIMESTAMP_AT = 18
_MAGIC_1_BYTES_MIN = 22

PEEK_BYTES: Final = _PEEK.size

assert PEEK_BYTES == 43
assert _LEGACY.size == CLASSIFY_BYTES


class Peek(NamedTuple):
    """One batch or legacy message, seen from its first bytes."""

    base_offset: int
    """Of a compressed legacy set it is the LAST offset: the first needs decompression."""
    last_offset: int
    max_timestamp: int
    size_bytes: int
    magic: int

    def is_plausible(self, offset_min: int, bytes_left: int) -> bool:
        """Whether this can be a whole batch of `bytes_left` bytes, at `offset_min` or above."""
        if not 0 <= self.magic <= MAGIC_2 or self.size_bytes > bytes_left:
            return False
        return self.size_bytes >= size_bytes_min(self.magic) and (
            offset_min <= self.base_offset <= self.last_offset
        )


def size_bytes_min(magic: int) -> int:
    """The smallest entry of this magic, its 12-byte prefix included."""
    if magic >= MAGIC_2:
        return HEADER_BYTES
    return PREFIX_BYTES + (_MAGIC_1_BYTES_MIN if magic == 1 else LEGACY_MESSAGE_BYTES_MIN)


def peek(buf: Buffer, at: int = 0) -> Peek | None:
    """What the first bytes of the entry at `at` say, or None when there are too few of them."""
    if len(buf) - at >= PEEK_BYTES:
        offset, length, magic, delta, max_timestamp = _PEEK.unpack_from(buf, at)
        if magic >= MAGIC_2:
            return Peek(offset, offset + delta, max_timestamp, length + PREFIX_BYTES, magic)
    elif len(buf) - at >= CLASSIFY_BYTES:
        offset, length, magic = _LEGACY.unpack_from(buf, at)
        if magic >= MAGIC_2:
            return None
    else:
        return None
    return Peek(offset, offset, _legacy_timestamp(buf, at, magic), length + PREFIX_BYTES, magic)


def _legacy_timestamp(buf: Buffer, at: int, magic: int) -> int:
    if magic != 1 or len(buf) - at < _LEGACY_TIMESTAMP_AT + _LEGACY_TIMESTAMP.size:
        return NO_TIMESTAMP
    return int(_LEGACY_TIMESTAMP.unpack_from(buf, at + _LEGACY_TIMESTAMP_AT)[0])
