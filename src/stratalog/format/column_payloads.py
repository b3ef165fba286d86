"""Where the plain records of batches lie: in the caller's buffer, or decompressed beside it.

The kernels of codecs are loaded when the first compressed batch is met: they take seconds to
compile on a first start, which readers of plain logs need not wait for.

Batches are cut into parts of about `part_bytes` of plain records, so that what is held at once
stays bounded however well the records were compressed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from stratalog.errors import StratalogError
from stratalog.format.batch import CODEC_MASK, HEADER_BYTES, Codec
from stratalog.format.compression import decompress_into, unzstd_frame_into
from stratalog.format.kernels.layout import PAYLOAD
from stratalog.format.kernels.memory import COPY_SLACK_BYTES
from stratalog.format.record import RECORD_BYTES_MIN
from stratalog.format.scratch import Scratch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stratalog.format.buffers import Buffer

_COMPILED: Final = frozenset({Codec.NONE, Codec.SNAPPY, Codec.LZ4})
_INT32_MAX: Final = (1 << 31) - 1
_PART_BYTES_MAX: Final = 1 << 30


class Part(NamedTuple):
    """Batches that are decoded together, and their plain records. Valid until the next part."""

    rows: NDArray[Any]
    payloads: NDArray[Any]
    record_count: int
    payload_bytes: int
    is_next_bad: bool = False
    """The batch after these cannot be decompressed, or cannot hold the records it declares."""
    is_unchecked: bool = False
    """Their CRCs are still to be checked."""


class PayloadReader:
    """Finds or makes the plain records of runs of magic-2 batches whose headers are good."""

    def __init__(self, *, part_bytes: int, decompressed_bytes_max: int) -> None:
        # A part and one batch more stay below what Arrow's offsets can count.
        self.part_bytes = min(part_bytes, _PART_BYTES_MAX)
        self.decompressed_bytes_max = min(decompressed_bytes_max, _INT32_MAX - self.part_bytes)
        self._scratch = Scratch()

    def parts(self, buf: Buffer, rows: NDArray[Any]) -> Iterator[Part]:
        """The batches in order. The last part tells if the batch after it is bad."""
        while len(rows):
            is_compressed = (rows["attributes"] & CODEC_MASK).any()
            part = self._decompressed(buf, rows) if is_compressed else self._plain(buf, rows)
            yield part
            if part.is_next_bad:
                return
            rows = rows[len(part.rows) :]

    def _plain(self, buf: Buffer, rows: NDArray[Any]) -> Part:
        rows = rows[: self.count_in_part(rows)]
        payloads = np.empty(len(rows), PAYLOAD)
        address = pa.py_buffer(buf).address
        payloads["address"] = rows["position"] + (address + HEADER_BYTES)
        payloads["size_bytes"] = rows["size_bytes"] - HEADER_BYTES
        return Part(rows, payloads, *totals(rows, payloads))

    def count_in_part(self, rows: NDArray[Any]) -> int:
        """How many of these batches, as they are stored, make a part: one at least."""
        ends = np.cumsum(rows["size_bytes"], dtype=np.int64)
        return max(1, int(np.searchsorted(ends, self.part_bytes, "right")))

    def _decompressed(self, buf: Buffer, rows: NDArray[Any]) -> Part:
        """Side by side in the scratch memory, until that holds a part."""
        ends = np.zeros(len(rows) + 1, np.int64)
        stored_bytes = int(rows["size_bytes"].sum(dtype=np.int64))
        if len(self._scratch.view) > 2 * (self.part_bytes + COPY_SLACK_BYTES):
            self._scratch = Scratch()  # one huge batch must not cost memory for ever
        self._scratch.reserve(0, min(4 * stored_bytes, self.part_bytes) + COPY_SLACK_BYTES)
        done, before = 0, -1
        is_next_bad = False
        while done < len(rows) and ends[done] < self.part_bytes and not is_next_bad:
            if done == before:
                break  # the next is plain, and large enough for a part of its own
            before = done
            done += self._expand(buf, rows[done:], ends[done:])
            more, is_next_bad = self._decompress(buf, rows[done:], ends[done:])
            done += more
        payloads = np.empty(done, PAYLOAD)
        payloads["address"] = ends[:done] + pa.py_buffer(self._scratch.view).address
        payloads["size_bytes"] = np.diff(ends[: done + 1])
        return Part(rows[:done], payloads, *totals(rows[:done], payloads), is_next_bad)

    def _expand(self, buf: Buffer, rows: NDArray[Any], ends: NDArray[np.int64]) -> int:
        """As many batches as compiled codecs can do; ends[0] is where they start."""
        from stratalog.format.kernels import expand  # noqa: PLC0415 - see above

        room = min(len(self._scratch.view) - COPY_SLACK_BYTES, self.part_bytes)
        source, target = pa.py_buffer(buf), pa.py_buffer(self._scratch.view)
        start, limit = int(ends[0]), self.decompressed_bytes_max
        done = int(expand.expand(source.address, rows, target.address, start, room, ends[1:]))
        if limit < room:
            is_over = np.diff(ends[: done + 1]) > limit
            is_over &= rows["attributes"][:done] & CODEC_MASK != Codec.NONE
            done = int(np.argmax(is_over)) if is_over.any() else done
        return done

    def _decompress(
        self, buf: Buffer, rows: NDArray[Any], ends: NDArray[np.int64]
    ) -> tuple[int, bool]:
        """Batches one by one, up to one that a compiled codec can do, but at least one if the part
        has room; and whether the batch after those is bad."""
        from stratalog.format.kernels import zstd  # noqa: PLC0415 - see above

        declared = np.empty((len(rows), 2), np.int64)
        zstd.declare(pa.py_buffer(buf).address, rows, declared)
        columns = [rows[name].tolist() for name in ("position", "size_bytes", "record_count")]
        codecs = (rows["attributes"] & CODEC_MASK).tolist()
        view = memoryview(buf)
        done, at = 0, int(ends[0])
        for codec_id, frame, position, size, count in zip(
            codecs, declared.tolist(), *columns, strict=True
        ):
            if at >= self.part_bytes or (done and codec_id in _COMPILED):
                break
            if at and codec_id == Codec.NONE and size > self.part_bytes:
                break
            stored = view[position + HEADER_BYTES : position + size]
            end = self._decompress_one(codec_id, stored, at, frame) if count else at
            if end is None or end - at < count * RECORD_BYTES_MIN:
                return done, True
            done += 1
            ends[done] = at = end
        return done, False

    def _decompress_one(
        self, codec_id: int, stored: memoryview, at: int, declared: list[int]
    ) -> int | None:
        limit = self.decompressed_bytes_max
        try:
            if declared[0] >= 0:
                frame = (declared[0], declared[1])
                return unzstd_frame_into(stored, self._scratch, at, frame, limit)
            if codec_id == Codec.NONE:
                limit = len(stored)
            return decompress_into(codec_id, stored, self._scratch, at, bytes_max=limit)
        except StratalogError:
            return None


def totals(rows: NDArray[Any], payloads: NDArray[Any]) -> tuple[int, int]:
    """How many records these batches declare, and the bytes they lie in."""
    return int(rows["record_count"].sum(dtype=np.int64)), int(payloads["size_bytes"].sum())
