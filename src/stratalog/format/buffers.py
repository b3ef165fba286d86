"""What the format layer reads from: any contiguous run of bytes."""

from __future__ import annotations

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


# Memory that is used over and over: one growing buffer that decompression writes into.

_BYTES_MIN = 64 << 10
_DOUBLED_BYTES_MAX = 16 << 20  # larger ones grow by a quarter: old and new are held at once


class Scratch:
    """A byte buffer that grows and keeps what was written to it. Owned by one thread at a time.

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
