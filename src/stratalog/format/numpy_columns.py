"""Arrow columns over numpy's memory, and the other way round.

`pa.array`, `pa.scalar` and `to_numpy` do the same, but import pandas if that is installed: a third
of a second, which a command or a task of Spark's has no use for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray


def numpy_column(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """A column without nulls, of whole numbers, timestamps or truth values. Copies if it must."""
    if pa.types.is_boolean(kind):
        memory = np.packbits(values, bitorder="little")
    else:
        memory = np.ascontiguousarray(values, np.dtype(f"i{kind.bit_width // 8}"))
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(memory)])


def repeated_text(text: str, count: int) -> pa.Array:
    """A column that says the same `count` times."""
    raw = text.encode()
    ends = np.arange(count + 1, dtype=np.int32) * np.int32(len(raw))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(raw * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def int64_numbers(column: pa.Array) -> NDArray[np.int64]:
    """A column of 64-bit numbers or timestamps without nulls, as it lies in memory."""
    memory = column.buffers()[1]
    if memory is None:
        return np.empty(0, np.int64)
    return np.frombuffer(memory, np.int64)[column.offset : column.offset + len(column)]
