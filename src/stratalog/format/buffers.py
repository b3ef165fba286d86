"""Buffers, structures and checksums, for all formats of this package.

CRC-32C (Castagnoli) protects magic-2 batches and producer snapshots; CRC-32 (IEEE) protects the
older message formats."""

from __future__ import annotations

import struct
import zlib
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from stratalog.errors import CorruptError

Buffer: TypeAlias = bytes | bytearray | memoryview


_BYTES_MIN = 64 << 10
_DOUBLED_BYTES_MAX = 16 << 20  # larger ones grow by a quarter: old and new are held at once


class Scratch:
    """A reusable buffer that grows, for decompression. Used by one thread at a time.

    Growing moves the bytes, so a view taken before `reserve` must not be used after it.
    """

    __slots__ = ("view",)

    def __init__(self) -> None:
        self.view = memoryview(bytearray())

    def reserve(self, at: int, size: int) -> memoryview:
        """The view, with at least `size` bytes after `at`. Bytes before `at` are kept."""
        needed, held = at + size, len(self.view)
        if needed > held:
            more = held if held <= _DOUBLED_BYTES_MAX else held // 4
            grown = memoryview(bytearray(max(needed, held + more, _BYTES_MIN)))
            grown[:at] = self.view[:at]
            self.view = grown
        return self.view


def unpack_at(
    layout: struct.Struct, buf: Buffer, at: int, name: str, error: type[CorruptError]
) -> tuple[Any, ...]:
    """The fields of a structure. Raises this error if the buffer ends too early."""
    try:
        return layout.unpack_from(buf, at)
    except struct.error:
        raise error(f"{name} is truncated", position=at) from None


def pack_entry(layout: struct.Struct, entry: tuple[Any, ...], error: type[CorruptError]) -> bytes:
    """The bytes of an entry. Raises this error if a field does not fit."""
    try:
        return layout.pack(*entry)
    except struct.error as cause:
        raise error(f"{entry} does not fit an entry: {cause}") from None


_KEEPS_GIL: Final = 0
"""A batch takes microseconds, less than it takes to get the interpreter's lock back: threads that
check batches side by side are a third faster if they keep it."""


def crc32c(buf: Buffer, so_far: int = 0) -> int:
    """CRC-32C of `buf`, continuing from the checksum of the bytes before it."""
    return _hardware_crc32c()(buf, so_far, _KEEPS_GIL)


@cache
def _hardware_crc32c() -> Callable[[Buffer, int, int], int]:
    from crc32c import crc32c as hardware_crc32c  # noqa: PLC0415  # takes 35 ms to import

    return hardware_crc32c


def crc32(buf: Buffer, so_far: int = 0) -> int:
    """CRC-32 (IEEE) of `buf`, continuing from the checksum of the bytes before it."""
    return zlib.crc32(buf, so_far)
