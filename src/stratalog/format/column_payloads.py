"""Where the plain records of batches lie: in the caller's buffer, or decompressed beside it.

Batches are cut into parts of about `part_bytes` of plain records, so that what is held at once
stays bounded however well the records were compressed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from stratalog.errors import StratalogError
from stratalog.format.batch import HEADER_BYTES, Codec
from stratalog.format.compression import decompress_into
from stratalog.format.kernels.layout import PAYLOAD
from stratalog.format.record import RECORD_BYTES_MIN
from stratalog.format.scratch import Scratch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stratalog.format.buffers import Buffer

_CODEC_MASK = 0x07
_INT32_MAX: Final = (1 << 31) - 1


class Part(NamedTuple):
    """Batches that are decoded together, and their plain records. Valid until the next part."""

    rows: NDArray[Any]
    payloads: NDArray[Any]
    record_count: int
    payload_bytes: int
    is_next_bad: bool = False
    """The batch after these cannot be decompressed, or cannot hold the records it declares."""


class PayloadReader:
    """Finds or makes the plain records of runs of magic-2 batches whose headers are good."""

    def __init__(self, *, part_bytes: int, decompressed_bytes_max: int) -> None:
        self.part_bytes = part_bytes
        self.decompressed_bytes_max = min(decompressed_bytes_max, _INT32_MAX)  # Arrow's offsets
        self._scratch = Scratch()

    def parts(self, buf: Buffer, rows: NDArray[Any]) -> Iterator[Part]:
        """The batches in order. The last part tells if the batch after it is bad."""
        while len(rows):
            is_compressed = (rows["attributes"] & _CODEC_MASK).any()
            part = self._decompressed(buf, rows) if is_compressed else self._plain(buf, rows)
            yield part
            if part.is_next_bad:
                return
            rows = rows[len(part.rows) :]

    def _plain(self, buf: Buffer, rows: NDArray[Any]) -> Part:
        sizes = rows["size_bytes"].astype(np.int64) - HEADER_BYTES
        count = max(1, int(np.searchsorted(np.cumsum(sizes), self.part_bytes, "right")))
        rows = rows[:count]
        payloads = np.empty(len(rows), PAYLOAD)
        address = pa.py_buffer(buf).address
        payloads["address"] = rows["position"] + (address + HEADER_BYTES)
        payloads["size_bytes"] = sizes[:count]
        return Part(rows, payloads, *totals(rows, payloads))

    def _decompressed(self, buf: Buffer, rows: NDArray[Any]) -> Part:
        """Side by side in the scratch memory, until that holds a part."""
        view = memoryview(buf)
        ends = [0]
        is_next_bad = False
        names = ("position", "size_bytes", "attributes", "record_count")
        columns = [rows[name].tolist() for name in names]
        for position, size, attributes, count in zip(*columns, strict=True):
            at = ends[-1]
            if at >= self.part_bytes:
                break
            stored = view[position + HEADER_BYTES : position + size]
            end = self._decompress(attributes & _CODEC_MASK, stored, at) if count else at
            if end is None or end - at < count * RECORD_BYTES_MIN:
                is_next_bad = True
                break
            ends.append(end)
        payloads = np.empty(len(ends) - 1, PAYLOAD)
        payloads["address"] = np.array(ends[:-1]) + pa.py_buffer(self._scratch.view).address
        payloads["size_bytes"] = np.diff(ends)
        rows = rows[: len(payloads)]
        return Part(rows, payloads, *totals(rows, payloads), is_next_bad)

    def _decompress(self, codec_id: int, stored: memoryview, at: int) -> int | None:
        if codec_id == Codec.NONE:
            end = at + len(stored)
            self._scratch.reserve(at, len(stored))[at:end] = stored
            return end
        limit = self.decompressed_bytes_max
        try:
            return decompress_into(codec_id, stored, self._scratch, at, bytes_max=limit)
        except StratalogError:
            return None


def totals(rows: NDArray[Any], payloads: NDArray[Any]) -> tuple[int, int]:
    """How many records these batches declare, and the bytes they lie in."""
    return int(rows["record_count"].sum(dtype=np.int64)), int(payloads["size_bytes"].sum())
