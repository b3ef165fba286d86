"""xxHash32 with seed 0, which guards lz4 frame headers and, rarely, blocks."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stratalog.format.buffers import Buffer

_P1, _P2, _P3, _P4, _P5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1
_MASK = 0xFFFF_FFFF
_STRIPE = struct.Struct("<4I")
_WORD = struct.Struct("<I")


def xxh32(data: Buffer) -> int:
    """The 32-bit xxHash of `data`."""
    view = memoryview(data)
    body = len(view) - len(view) % _STRIPE.size
    value = _stripes(view[:body]) if body else _P5
    value = (value + len(view)) & _MASK
    tail = view[body:]
    words = len(tail) - len(tail) % _WORD.size
    for (word,) in _WORD.iter_unpack(tail[:words]):
        value = _rotate((value + word * _P3) & _MASK, 17) * _P4 & _MASK
    for byte in tail[words:]:
        value = _rotate((value + byte * _P5) & _MASK, 11) * _P1 & _MASK
    value = (value ^ value >> 15) * _P2 & _MASK
    value = (value ^ value >> 13) * _P3 & _MASK
    return value ^ value >> 16


def _stripes(view: memoryview) -> int:
    a, b, c, d = (_P1 + _P2) & _MASK, _P2, 0, -_P1 & _MASK
    for w, x, y, z in _STRIPE.iter_unpack(view):
        a = _rotate((a + w * _P2) & _MASK, 13) * _P1 & _MASK
        b = _rotate((b + x * _P2) & _MASK, 13) * _P1 & _MASK
        c = _rotate((c + y * _P2) & _MASK, 13) * _P1 & _MASK
        d = _rotate((d + z * _P2) & _MASK, 13) * _P1 & _MASK
    return (_rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)) & _MASK


def _rotate(value: int, by: int) -> int:
    return (value << by | value >> (32 - by)) & _MASK
