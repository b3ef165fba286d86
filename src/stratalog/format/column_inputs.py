"""Columns of records that are to be encoded, in the shape the kernel reads.

Strings and the other kinds of binary, timestamps of any unit, and lists of headers are brought into
one form each; what is in that form already is not copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from stratalog.format.kernels import encode

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BINARY: Final = (pa.binary(), pa.string())
_HEADERS: Final = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
_PER_MS: Final = {"us": 1_000, "ns": 1_000_000}


class InputColumns:
    """The columns of one Arrow batch. Keeps their memory alive while the kernel reads it."""

    def __init__(self, batch: pa.RecordBatch, timestamp_ms: int | None) -> None:
        names = batch.schema.names
        if "value" not in names:
            raise ValueError(f"no column is called value; there are {', '.join(names)}")
        self._timestamps = _timestamps(batch, timestamp_ms)
        self._value = _binary(batch.column("value"))
        self._key = _binary(batch.column("key")) if "key" in names else None
        self._headers = _headers(batch.column("headers")) if "headers" in names else None

    def fill(self, slots: NDArray[np.int64]) -> None:
        """Tell the kernel where the columns lie."""
        slots[encode.TIMESTAMPS] = self._timestamps.ctypes.data
        _fill_binary(slots, encode.VALUE, self._value)
        _fill_binary(slots, encode.KEY, self._key)
        headers = self._headers
        slots[encode.HEADERS] = 0
        if headers is not None:
            valid, offsets = headers.buffers()[:2]
            slots[encode.HEADERS] = offsets.address + 4 * headers.offset
            slots[encode.HEADERS_VALID] = valid.address if valid is not None else 0
            slots[encode.HEADERS_VALID_BIT] = headers.offset
            _fill_binary(slots, encode.HEADER_KEY, headers.values.field("key"))
            _fill_binary(slots, encode.HEADER_VALUE, headers.values.field("value"))


def _fill_binary(slots: NDArray[np.int64], first: int, column: pa.Array | None) -> None:
    numbers = (0, 0, 0, 0, 0)
    if column is not None and len(column):
        valid, offsets, data = column.buffers()
        numbers = (
            offsets.address + 4 * column.offset,
            data.address if data is not None else 0,
            data.address + data.size if data is not None else 0,
            valid.address if valid is not None else 0,
            column.offset,
        )
    slots[first : first + encode.COLUMN_SLOTS] = numbers


def _binary(column: pa.Array) -> pa.Array:
    return column if column.type in _BINARY else column.cast(pa.binary())


def _headers(column: pa.Array) -> pa.Array | None:
    """None if no row has any."""
    if pa.types.is_null(column.type):
        return None
    if not _is_as_read(column.type):
        column = column.cast(_HEADERS)
    entries = column.flatten()
    if not len(entries):
        return None
    if entries.null_count or entries.field("key").null_count:
        raise ValueError("a header is null or has no key")
    return column


def _is_as_read(kind: pa.DataType) -> bool:
    if not pa.types.is_list(kind) or not pa.types.is_struct(kind.value_type):
        return False
    names = [field.name for field in kind.value_type]
    return names == ["key", "value"] and all(field.type in _BINARY for field in kind.value_type)


def _timestamps(batch: pa.RecordBatch, timestamp_ms: int | None) -> NDArray[np.int64]:
    """In milliseconds; a finer one is cut down to the millisecond it lies in."""
    if "timestamp" not in batch.schema.names:
        if timestamp_ms is None:
            raise ValueError("no column is called timestamp, and no timestamp_ms stands in for it")
        return np.full(batch.num_rows, timestamp_ms, np.int64)
    column = batch.column("timestamp")
    unit = column.type.unit if pa.types.is_timestamp(column.type) else "ms"
    plain = column.cast(pa.int64())
    if not plain.null_count:
        return _milliseconds(plain, unit)
    if timestamp_ms is None:
        raise ValueError("a timestamp is null, and no timestamp_ms stands in for it")
    is_absent = plain.is_null().to_numpy(zero_copy_only=False)
    return np.where(is_absent, np.int64(timestamp_ms), _milliseconds(plain.fill_null(0), unit))


def _milliseconds(column: pa.Array, unit: str) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = column.to_numpy(zero_copy_only=False)
    if unit == "ms":
        return numbers
    return numbers * 1000 if unit == "s" else numbers // _PER_MS[unit]
