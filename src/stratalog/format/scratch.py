"""Memory that is used over and over: one growing buffer that decompression writes into."""

from __future__ import annotations

_BYTES_MIN = 64 << 10


class Scratch:
    """A byte buffer that grows and keeps what was written to it. Owned by one thread at a time.

    Growing moves the bytes, so a view taken before `reserve` must not be used after it.
    """

    __slots__ = ("view",)

    def __init__(self) -> None:
        self.view = memoryview(bytearray())

    def reserve(self, at: int, size: int) -> memoryview:
        """The view, with at least `size` bytes after `at`. Bytes before `at` are kept."""
        needed = at + size
        if needed > len(self.view):
            grown = memoryview(
                bytearray(max(needed, min(2 * len(self.view), needed * 2), _BYTES_MIN))
            )
            grown[:at] = self.view[:at]
            self.view = grown
        return self.view
