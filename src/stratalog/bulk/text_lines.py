"""The lines of a text file as Arrow values: no Python object a line.

A line ends with a line feed, a carriage return or both, the last one also with the file; the end is
no part of it. An empty line is a line. A UTF-8 byte order mark at the start of a file is left out.
So do Hadoop's readers, and Spark's with them.

A file may be read in ranges, by several tasks: a line belongs to the range in which it begins, so
every line is read once, wherever the ranges are cut. Memory is a few times `CHUNK_BYTES`, or the
longest line.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from stratalog.errors import InputFileError, MessageTooLargeError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import RawIOBase

    from numpy.typing import NDArray

CHUNK_BYTES: Final = 8 << 20
_BEYOND_BYTES: Final = 64 << 10
"""Read at a time for the rest of the last line, which is the next range's otherwise."""
_LINE_BYTES_MAX: Final = 1 << 30
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_LF, _CR = 10, 13


class TextRange(NamedTuple):
    """The lines that begin at or after `start`, and before `end`."""

    path: str
    start: int
    end: int
    """At most the size of the file when it was planned."""

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


def read_lines(source: TextRange, chunk_bytes: int = CHUNK_BYTES) -> Iterator[pa.Array]:
    """The lines of the range in order, as binary arrays."""
    if source.start >= source.end:
        return
    with Path(source.path).open("rb", buffering=0) as file:
        position = _first_line(file, source, chunk_bytes)
        if position >= source.end and source.start:
            return
        file.seek(position)
        lines = _Lines(source.path, position, source.end)
        while not lines.is_over:
            left = source.end - lines.read_to
            chunk = file.read(min(chunk_bytes, max(left, _BEYOND_BYTES)))
            if not chunk and lines.read_to < source.end:
                raise InputFileError(
                    f"{source.path}: ends at {lines.read_to}, but had {source.end} bytes at the "
                    "start of the job"
                )
            found = lines.add(chunk) if chunk else lines.finish()
            if found is not None:
                yield found


def _first_line(file: RawIOBase, source: TextRange, chunk_bytes: int) -> int:
    """Where the first line of the range begins; `end` or later if none does."""
    if source.start == 0:
        return len(_BYTE_ORDER_MARK) if file.read(3) == _BYTE_ORDER_MARK else 0
    position = source.start - 1  # a line begins at `start` if one ends right before it
    file.seek(position)
    while position < source.end:
        chunk = file.read(min(chunk_bytes, _BEYOND_BYTES))
        if not chunk:
            break
        ends = [at for at in (chunk.find(b"\n"), chunk.find(b"\r")) if at >= 0]
        if ends:
            at = min(ends)
            if chunk[at] == _LF:
                return position + at + 1
            file.seek(position + at + 1)
            return position + at + (2 if file.read(1) == b"\n" else 1)
        position += len(chunk)
    return max(position, source.end)


class _Lines:
    """Finds lines in chunks as they are read; holds the part of a line whose end is not read."""

    def __init__(self, path: str, position: int, end: int) -> None:
        self.read_to = position
        """Where in the file the next chunk begins."""
        self.is_over = False
        self._path = path
        self._end = end
        self._line_start = position
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._ends_with_cr = False

    def add(self, chunk: bytes) -> pa.Array | None:
        """The lines that end in the chunk, if any do."""
        self.read_to += len(chunk)
        if self._ends_with_cr:
            chunk = b"\r" + chunk
        self._ends_with_cr = chunk.endswith(b"\r")  # a line feed may follow: wait for it
        if self._ends_with_cr:
            chunk = chunk[:-1]
        ends, nexts = _line_ends(chunk)
        if not len(ends):
            self._hold(chunk)
            return None
        data = b"".join((*self._held, chunk))  # the same object if there is one only
        ends, nexts = ends + self._held_bytes, nexts + self._held_bytes
        count = 1 + int(np.searchsorted(nexts[:-1], self._end - self._line_start))
        found = _values(data, ends[:count], nexts[:count])
        self._line_start += int(nexts[-1])
        self.is_over = self._line_start >= self._end
        self._held, self._held_bytes = [], 0
        self._hold(data[int(nexts[-1]) :])
        return found

    def finish(self) -> pa.Array | None:
        """The line that ends with the file, if there is one."""
        self.is_over = True
        if not self._held and not self._ends_with_cr:
            return None
        return pa.array([b"".join(self._held)], pa.binary())

    def _hold(self, part: bytes) -> None:
        if part:
            self._held.append(part)
            self._held_bytes += len(part)
        if self._held_bytes > _LINE_BYTES_MAX:
            raise MessageTooLargeError(
                f"{self._path}: the line at position {self._line_start} is longer than "
                f"{_LINE_BYTES_MAX} bytes, no record can hold it"
            )


def _line_ends(chunk: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each line ends, and where what comes after it begins."""
    codes = np.frombuffer(chunk, np.uint8)
    if b"\r" not in chunk:
        ends = np.flatnonzero(codes == _LF)
        return ends, ends + 1
    marks = np.flatnonzero((codes == _LF) | (codes == _CR))
    is_cr = codes[marks] == _CR
    is_second = np.zeros(len(marks), bool)  # the line feed of a pair
    is_second[1:] = is_cr[:-1] & ~is_cr[1:] & (np.diff(marks) == 1)
    is_first = ~is_second
    is_pair = np.append(is_second[1:], False)
    ends = marks[is_first]
    return ends, ends + 1 + is_pair[is_first]


def _values(data: bytes, ends: NDArray[np.int64], nexts: NDArray[np.int64]) -> pa.Array:
    """Lines without their ends: all pieces, of which every other one is taken."""
    bounds = np.zeros(2 * len(ends) + 1, np.int32)
    bounds[1::2], bounds[2::2] = ends, nexts
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    pieces = pa.Array.from_buffers(pa.binary(), 2 * len(ends), buffers)
    return pieces.take(pa.array(np.arange(0, 2 * len(ends), 2)))
