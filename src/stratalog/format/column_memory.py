"""Memory for one run of decoded records: taken from Arrow, filled by the kernel, handed over.

Sizes are fixed before decoding: one entry a record, and for keys and values room for every payload
byte, because neither can be longer than what it is cut from. Headers are the exception. Most logs
have none, so they get what the last run needed, and when that is too little the run is repeated
with what it turned out to need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from stratalog.format.column_types import HEADER
from stratalog.format.kernels import records
from stratalog.format.kernels.memory import COPY_SLACK_BYTES
from stratalog.format.utf8 import decode_utf8

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

_BINARY: Final = pa.binary()
_STRING: Final = pa.string()
_NO_HEADERS: Final = pa.array([], HEADER)


class HeaderRoom(NamedTuple):
    """How many headers there is room for, and how many bytes of their keys and values."""

    headers: int = 0
    key_bytes: int = 0
    value_bytes: int = 0

    def holds(self, found: HeaderRoom) -> bool:
        return all(room >= need for room, need in zip(self, found, strict=True))

    def scaled(self, by: float) -> HeaderRoom:
        """The same shape for a run `by` times as long, and a quarter more."""
        return HeaderRoom(*(int(number * by * 1.25) for number in self))


class ColumnMemory:
    """The columns of one run of `count` records cut from `payload_bytes` bytes."""

    def __init__(self, wanted: Collection[str], count: int, payload_bytes: int) -> None:
        self.count = count
        self._slots = np.zeros(records.SLOTS, np.int64)
        self._buffers: dict[int, pa.Buffer] = {}
        self._header_room = HeaderRoom()
        if "offset" in wanted:
            self._allocate(records.OFFSET, 8 * count)
        if "timestamp" in wanted:
            self._allocate(records.TIMESTAMP, 8 * count)
        for name, slot in (("key", records.KEY), ("value", records.VALUE)):
            if name in wanted:
                self._allocate(slot, 4 * (count + 1))
                self._allocate(slot + 1, payload_bytes + COPY_SLACK_BYTES, resizable=True)
                self._allocate_valid(slot + 2, count)
        if "headers" in wanted:
            self._allocate(records.HEADERS, 4 * (count + 1))

    def make_header_room(self, room: HeaderRoom) -> None:
        """Room for these headers, instead of what there was."""
        self._header_room = room
        self._slots[records.HEADERS_MAX : records.HEADERS_MAX + 3] = room
        self._allocate(records.HEADER_KEY, 4 * (room.headers + 1))
        self._allocate(records.HEADER_KEY + 1, room.key_bytes)
        self._allocate(records.HEADER_VALUE, 4 * (room.headers + 1))
        self._allocate(records.HEADER_VALUE + 1, room.value_bytes)
        self._allocate_valid(records.HEADER_VALUE_VALID, room.headers)

    def fill(self, batches: NDArray[Any], payloads: NDArray[Any]) -> int | None:
        """Decode the batches into the columns; the index of the first bad one, None if all are
        good."""
        decoded = records.decode(batches, payloads, self._slots.ctypes.data)
        if decoded < 0:
            return int(self._slots[records.BATCH_INDEX])
        found = self.headers_found
        if records.HEADERS in self._buffers and not self._header_room.holds(found):
            self._slots[records.KEY_NULLS :] = 0
            self.make_header_room(found)
            return self.fill(batches, payloads)
        return None

    @property
    def headers_found(self) -> HeaderRoom:
        first = records.HEADERS_FOUND
        return HeaderRoom(*self._slots[first : first + 3].tolist())

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
        found = self.headers_found
        entries = _NO_HEADERS
        if found.headers:
            entries = pa.StructArray.from_arrays(
                [self._header_keys(found), self._header_values(found)], fields=list(HEADER)
            )
        lists = self._buffers[records.HEADERS]
        return pa.Array.from_buffers(kind, self.count, [None, lists], 0, children=[entries])

    def _header_keys(self, found: HeaderRoom) -> pa.Array:
        offsets, data = (self._buffers[records.HEADER_KEY + part] for part in (0, 1))
        keys = pa.Array.from_buffers(_STRING, found.headers, [None, offsets, data], 0)
        raw = np.frombuffer(data, np.uint8, found.key_bytes)
        if raw.max(initial=0) < 0x80 or _is_utf8(keys):
            return keys
        stored = pa.Array.from_buffers(_BINARY, found.headers, [None, offsets, data], 0)
        return pa.array([decode_utf8(key) for key in stored.to_pylist()], _STRING)

    def _header_values(self, found: HeaderRoom) -> pa.Array:
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
