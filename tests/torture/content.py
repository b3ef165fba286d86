"""Records that can be checked wherever they are found, without asking who wrote them.

A header says which record of which stream it is; key, value and the other headers follow from that.
A stream is written in order, so within a partition its numbers grow with the offsets.
"""

from __future__ import annotations

import random
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from stratalog.format.record import Record

ID_HEADER: Final = "id"
KEYS: Final = 50
_BLOB: Final = random.Random(1).randbytes(16_384) + bytes(16_384)
_SIZES: Final = (0, 1, 20, 80, 80, 150, 150, 300, 1200, 9000)

PLAIN, COMMITTED, ABORTED, STAGED = "p", "c", "a", "s"
"""What a record's fate is to be. One that is to be aborted is never seen by read_committed."""


class Identity(NamedTuple):
    """Which record this is."""

    stream: str
    number: int
    timestamp: int
    fate: str
    is_keyed: bool
    """It goes to a compacted topic: it has one of a few keys, and perhaps no value."""

    @property
    def _hash(self) -> int:
        return zlib.crc32(f"{self.stream}/{self.number}".encode())

    @property
    def key(self) -> bytes | None:
        if self.is_keyed:
            return b"key-%d" % (self._hash % KEYS)
        return None if self._hash % 3 else b"any-%d" % self.number

    @property
    def value(self) -> bytes | None:
        number = self._hash
        if self.is_keyed and number % 11 == 0:
            return None
        start = number % len(_BLOB)
        return _BLOB[start : start + _SIZES[number % len(_SIZES)]]

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        text = f"{self.stream} {self.number} {self.timestamp} {self.fate} {int(self.is_keyed)}"
        extra: list[tuple[str, bytes | None]] = [("é", b"\0\xff"), ("empty", None)]
        return [(ID_HEADER, text.encode()), *extra[: self._hash % 3]]


def identity_of(record: Record) -> Identity:
    """Which record it is; fails unless it is so in every byte."""
    headers = [(header.key, header.value) for header in record.headers]
    where = f"offset {record.offset}"
    assert headers, f"{where}: no headers"
    assert headers[0][0] == ID_HEADER, f"{where}: {headers}"
    stream, number, timestamp, fate, is_keyed = (headers[0][1] or b"").decode().split(" ")
    found = Identity(stream, int(number), int(timestamp), fate, is_keyed == "1")
    assert headers == found.headers, f"{where}: headers {headers} of {found}"
    assert record.timestamp == found.timestamp, f"{where}: time {record.timestamp} of {found}"
    assert record.key == found.key, f"{where}: key {record.key!r} of {found}"
    assert record.value == found.value, f"{where}: value {record.value!r} of {found}"
    return found


class OrderCheck:
    """Follows one partition in the order of its offsets."""

    def __init__(self) -> None:
        self._offset = -1
        self._numbers: dict[str, int] = {}

    def take(self, record: Record) -> Identity:
        assert record.offset > self._offset, f"offset {record.offset} after {self._offset}"
        self._offset = record.offset
        found = identity_of(record)
        before = self._numbers.get(found.stream, -1)
        assert found.number > before, f"offset {record.offset}: {found} after number {before}"
        self._numbers[found.stream] = found.number
        return found
