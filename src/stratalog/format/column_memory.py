"""Memory for one run of decoded records: taken from Arrow, filled by the kernel, handed over.

Fixed-size columns are sized by the number of records. How many bytes of keys and values there are,
and how many headers, is known only after decoding: they get what the last run of this decoder
needed, a little more, and where that is too little the run is repeated with what it turned out to
need. The very first run gets room for every payload byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from stratalog.format.column_types import HEADER
from stratalog.format.java_text import decode_utf8
from stratalog.format.kernels import records
from stratalog.format.kernels.memory import COPY_SLACK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from numpy.typing import NDArray

_BINARY: Final = pa.binary()
_STRING: Final = pa.string()
_NO_HEADERS: Final = pa.nulls(0, HEADER)
_TRIES_MAX = 3


class ColumnSizes(NamedTuple):
    """How much data columns hold, or have to hold. In the order of the kernel's slots."""

    key_bytes: int
    value_bytes: int
    headers: int
    header_key_bytes: int
    header_value_bytes: int

    def holds(self, needed: ColumnSizes) -> bool:
        return all(room >= need for room, need in zip(self, needed, strict=True))

    def scaled(self, by: float) -> ColumnSizes:
        """For a run `by` times as long, an eighth more, and a little for short ones."""
        key_bytes, value_bytes, *headers = (int(number * by * 1.125) for number in self)
        return ColumnSizes(key_bytes + 256, value_bytes + 256, *headers)


class ColumnMemory:
    """The columns of one run of `count` records."""

    def __init__(self, wanted: Collection[str], count: int, room: ColumnSizes) -> None:
        self.count = count
        self._slots = np.zeros(records.SLOTS, np.int64)
        self._buffers: dict[int, pa.Buffer] = {}
        if "offset" in wanted:
            self._allocate(records.OFFSET, 8 * count)
        if "timestamp" in wanted:
            self._allocate(records.TIMESTAMP, 8 * count)
        for name, slot in (("key", records.KEY), ("value", records.VALUE)):
            if name in wanted:
                self._allocate(slot, 4 * (count + 1))
                self._allocate_valid(slot + 2, count)
        if "headers" in wanted:
            self._allocate(records.HEADERS, 4 * (count + 1))
        self._make_room(room)

    def _make_room(self, room: ColumnSizes) -> None:
        self._slots[records.ROOM : records.ROOM + len(room)] = room
        for slot, size in ((records.KEY, room.key_bytes), (records.VALUE, room.value_bytes)):
            if slot in self._buffers:
                self._allocate(slot + 1, size + COPY_SLACK_BYTES, resizable=True)
        if records.HEADERS in self._buffers and room.headers:
            self._allocate(records.HEADER_KEY, 4 * (room.headers + 1))
            self._allocate(records.HEADER_KEY + 1, room.header_key_bytes)
            self._allocate(records.HEADER_VALUE, 4 * (room.headers + 1))
            self._allocate(records.HEADER_VALUE + 1, room.header_value_bytes)
            self._allocate_valid(records.HEADER_VALUE_VALID, room.headers)
        else:
            self._slots[records.HEADERS_ROOM] = 0

    def fill(self, decode: Callable[[int, bool], int], *, checks_crc: bool = False) -> int | None:
        """Let a kernel decode batches into the columns; the index of the first bad one, None if all
        are good. The kernel is given the address of the slots and whether to check CRCs."""
        for _ in range(_TRIES_MAX):
            if decode(self._slots.ctypes.data, checks_crc) < 0:
                return int(self._slots[records.BATCH_INDEX])
            room, needed = self._room_at(records.ROOM), self.needed
            if records.HEADERS not in self._buffers:
                needed = ColumnSizes(needed.key_bytes, needed.value_bytes, 0, 0, 0)
            if room.holds(needed):
                return None
            self._slots[records.NEEDED :] = 0
            self._make_room(needed)
        return 0  # the bytes change as we read them

    @property
    def needed(self) -> ColumnSizes:
        """What the run turned out to need."""
        return self._room_at(records.NEEDED)

    def _room_at(self, slot: int) -> ColumnSizes:
        return ColumnSizes(*self._slots[slot : slot + len(ColumnSizes._fields)].tolist())

    def numbers(self, slot: int) -> NDArray[np.int64]:
        """The offset or timestamp column as numpy sees it."""
        return np.frombuffer(self._buffers[slot], np.int64, self.count)

    def number_column(self, slot: int, kind: pa.DataType) -> pa.Array:
        return pa.Array.from_buffers(kind, self.count, [None, self._buffers[slot]], 0)

    def binary_column(self, slot: int) -> pa.Array:
        """The key or value column. Its data gives back what it did not need."""
        is_key = slot == records.KEY
        nulls = int(self._slots[records.KEY_NULLS if is_key else records.VALUE_NULLS])
        used = int(self._slots[records.KEY_BYTES if is_key else records.VALUE_BYTES])
        data = self._buffers[slot + 1]
        data.resize(used, shrink_to_fit=used < data.size // 2)
        valid = self._buffers[slot + 2] if nulls else None
        return pa.Array.from_buffers(_BINARY, self.count, [valid, self._buffers[slot], data], nulls)

    def header_column(self, kind: pa.DataType) -> pa.Array:
        needed = self.needed
        entries = _NO_HEADERS
        if needed.headers:
            entries = pa.StructArray.from_arrays(
                [self._header_keys(needed), self._header_values(needed)], fields=list(HEADER)
            )
        lists = self._buffers[records.HEADERS]
        return pa.Array.from_buffers(kind, self.count, [None, lists], 0, children=[entries])

    def _header_keys(self, found: ColumnSizes) -> pa.Array:
        offsets, data = (self._buffers[records.HEADER_KEY + part] for part in (0, 1))
        keys = pa.Array.from_buffers(_STRING, found.headers, [None, offsets, data], 0)
        raw = np.frombuffer(data, np.uint8, found.header_key_bytes)
        if raw.max(initial=0) < 0x80 or _is_utf8(keys):
            return keys
        stored = pa.Array.from_buffers(_BINARY, found.headers, [None, offsets, data], 0)
        return pa.array([decode_utf8(key) for key in stored.to_pylist()], _STRING)

    def _header_values(self, found: ColumnSizes) -> pa.Array:
        offsets, data = (self._buffers[records.HEADER_VALUE + part] for part in (0, 1))
        nulls = int(self._slots[records.HEADER_VALUE_NULLS])
        valid = self._buffers[records.HEADER_VALUE_VALID] if nulls else None
        return pa.Array.from_buffers(_BINARY, found.headers, [valid, offsets, data], nulls)

    def _allocate(self, slot: int, size: int, *, resizable: bool = False) -> None:
        buffer = pa.allocate_buffer(size, resizable=resizable)
        self._buffers[slot] = buffer
        self._slots[slot] = buffer.address

    def _allocate_valid(self, slot: int, count: int) -> None:
        self._allocate(slot, (count + 7) // 8)
        np.frombuffer(self._buffers[slot], np.uint8).fill(0xFF)


def _is_utf8(keys: pa.Array) -> bool:
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
