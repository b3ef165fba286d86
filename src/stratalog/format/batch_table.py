"""Ranges of batches as one numpy table: scan them, check CRCs, find their records, index them.

A row is one batch or one legacy message; -1 stands for what a legacy header does not have (a
compressed set has neither its first offset nor its count). The columns are named as in
`BatchHeader`.

Importing this module loads compiled kernels; import it where many batches are read.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from stratalog.errors import CorruptBatchError, StratalogError
from stratalog.format.batch import CODEC_MASK, HEADER_BYTES, MAGIC_2, MAGIC_AT, Codec
from stratalog.format.buffers import Scratch
from stratalog.format.compression import decompress_into, unzstd_frame_into
from stratalog.format.index_search import RELATIVE_OFFSET_MAX
from stratalog.format.kernels import crc, scan
from stratalog.format.kernels.memory import BATCH, COPY_SLACK_BYTES, PAYLOAD
from stratalog.format.record import RECORD_BYTES_MIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stratalog.format.buffers import Buffer
    from stratalog.format.index_entries import IndexBuilder

ROWS_MAX: Final = 1 << 62
_FIRST_ROWS = 1024


class Stop(enum.Enum):
    """Why a scan of batches ended."""

    END = "end of the bytes"
    PARTIAL = "the last batch is incomplete"
    CORRUPT = "no batch can start here"
    FULL = "as many batches as were asked for"


@dataclass(frozen=True)
class BatchTable:
    """Batches in file order, and why there are no more."""

    rows: NDArray[Any]
    """A structured array; `table["base_offset"]` is a column."""
    end: int
    """The position after the last batch: where the walk stopped."""
    stop: Stop
    reason: str = ""
    """What is wrong at `end`, if the walk stopped at corruption."""

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, column: str) -> NDArray[Any]:
        return self.rows[column]

    def select(self, which: NDArray[np.bool_] | slice) -> BatchTable:
        """The table with only the rows of a mask or slice."""
        return replace(self, rows=np.ascontiguousarray(self.rows[which]))

    def raise_if_corrupt(self) -> None:
        """Raise for the corruption that the walk stopped at, if any."""
        if self.stop is Stop.CORRUPT:
            raise CorruptBatchError(self.reason, position=self.end)


def scan_batches(
    buf: Buffer, start: int = 0, end: int | None = None, *, batches_max: int = ROWS_MAX
) -> BatchTable:
    """Walk the batches of `buf` from `start` on, as far as they are whole and their lengths make
    sense. Offsets, counts and CRCs are not checked here.
    """
    stop_at = len(buf) if end is None else min(end, len(buf))
    memory = pa.py_buffer(buf)
    parts: list[NDArray[Any]] = []
    at, why, count = max(start, 0), scan.FULL, 0
    while why == scan.FULL and count < batches_max:
        rows = np.empty(min(max(_FIRST_ROWS, count), batches_max - count), BATCH)
        found, at, why = scan.scan(memory.address, at, stop_at, rows)
        parts.append(rows[:found])
        count += found
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts or [np.empty(0, BATCH)])
    stop, reason = _STOPS[why]
    if stop is Stop.CORRUPT:
        length = int.from_bytes(buf[at + 8 : at + 12], "big", signed=True)
        reason = reason.format(length=length, magic=buf[at + MAGIC_AT])
    return BatchTable(rows, at, stop, reason)


_STOPS: Final = {
    scan.END: (Stop.END, ""),
    scan.PARTIAL: (Stop.PARTIAL, ""),
    scan.BAD_LENGTH: (Stop.CORRUPT, "invalid batch length {length}"),
    scan.BAD_MAGIC: (Stop.CORRUPT, "magic is {magic}, not 0 to 2"),
    scan.FULL: (Stop.FULL, ""),
}


def check_crcs(buf: Buffer, table: BatchTable) -> NDArray[np.bool_]:
    """Whether the CRC of each batch is valid. `table` must come from `buf`."""
    out = np.zeros(len(table), np.bool_)
    check_inside(buf, table.rows)
    crc.check(pa.py_buffer(buf).address, table.rows, out)
    if (table["magic"] != MAGIC_2).any():
        from stratalog.format.kernels import legacy  # noqa: PLC0415 - most logs have none

        legacy.check(pa.py_buffer(buf).address, table.rows, out)
    return out


def check_inside(buf: Buffer, rows: NDArray[Any]) -> None:
    """Raise if rows reach beyond `buf`: kernels do not check this."""
    if not len(rows):
        return
    ends = rows["position"] + rows["size_bytes"]
    if rows["position"].min() < 0 or ends.max() > len(buf) or rows["size_bytes"].min() < 0:
        raise ValueError("the table does not belong to this buffer")


# The uncompressed records of batches: in the caller's buffer, or decompressed into scratch memory,
# in parts of about `part_bytes`, so that memory stays bounded however well records were compressed.
# The kernels of codecs are loaded with the first compressed batch: they take seconds to compile on
# a first start.

_COMPILED: Final = frozenset({Codec.NONE, Codec.SNAPPY, Codec.LZ4})
_INT32_MAX: Final = (1 << 31) - 1
_PART_BYTES_MAX: Final = 1 << 30


class Part(NamedTuple):
    """Batches that are decoded together, and their records. Valid until the next part."""

    rows: NDArray[Any]
    payloads: NDArray[Any]
    record_count: int
    payload_bytes: int
    is_next_bad: bool = False
    """The batch after these cannot be decompressed, or cannot hold the records it declares."""
    is_unchecked: bool = False
    """Their CRCs have not been checked yet."""


class PayloadReader:
    """Finds or decompresses the records of magic-2 batches whose headers are valid."""

    def __init__(self, *, part_bytes: int, decompressed_bytes_max: int) -> None:
        # A part and one batch more stay below what Arrow's offsets can count.
        self.part_bytes = min(part_bytes, _PART_BYTES_MAX)
        self.decompressed_bytes_max = min(decompressed_bytes_max, _INT32_MAX - self.part_bytes)
        self._scratch = Scratch()

    def parts(self, buf: Buffer, rows: NDArray[Any]) -> Iterator[Part]:
        """The batches in order. The last part says whether the batch after it is bad."""
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
        """How many of these batches form a part, by their stored size: at least one."""
        ends = np.cumsum(rows["size_bytes"], dtype=np.int64)
        return max(1, int(np.searchsorted(ends, self.part_bytes, "right")))

    def _decompressed(self, buf: Buffer, rows: NDArray[Any]) -> Part:
        """Decompress into scratch memory until it holds a part."""
        ends = np.zeros(len(rows) + 1, np.int64)
        stored_bytes = int(rows["size_bytes"].sum(dtype=np.int64))
        if len(self._scratch.view) > 2 * (self.part_bytes + COPY_SLACK_BYTES):
            self._scratch = Scratch()  # release the memory of one huge batch
        self._scratch.reserve(0, min(4 * stored_bytes, self.part_bytes) + COPY_SLACK_BYTES)
        done, before = 0, -1
        is_next_bad = False
        while done < len(rows) and ends[done] < self.part_bytes and not is_next_bad:
            if done == before:
                break  # the next is uncompressed and a part of its own
            before = done
            done += self._expand(buf, rows[done:], ends[done:])
            more, is_next_bad = self._decompress(buf, rows[done:], ends[done:])
            done += more
        payloads = np.empty(done, PAYLOAD)
        payloads["address"] = ends[:done] + pa.py_buffer(self._scratch.view).address
        payloads["size_bytes"] = np.diff(ends[: done + 1])
        return Part(rows[:done], payloads, *totals(rows[:done], payloads), is_next_bad)

    def _expand(self, buf: Buffer, rows: NDArray[Any], ends: NDArray[np.int64]) -> int:
        """Decompress batches with compiled codecs, as many as possible; ends[0] is the start."""
        from stratalog.format.kernels import decompress as expand  # noqa: PLC0415 - see above

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
        from stratalog.format.kernels import decompress as zstd  # noqa: PLC0415 - see above

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
    """The number of records that these batches declare, and their bytes."""
    return int(rows["record_count"].sum(dtype=np.int64)), int(payloads["size_bytes"].sum())


# Index entries of a table of batches: the fast twin of `IndexBuilder.add`.

_OFFSET_ENTRY: Final = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
_TIME_ENTRY: Final = np.dtype([("timestamp", ">i8"), ("relative_offset", ">i4")])


def add_batches(builder: IndexBuilder, rows: NDArray[Any], buffer_start: int = 0) -> None:
    """Add the batches of a `BatchTable` whose buffer began at byte `buffer_start` of the log.

    Their offsets must fit the segment, see `fits_segment`. Calls may alternate with `add`.
    """
    from stratalog.format.kernels import index_entries as kernel  # noqa: PLC0415 - readers need no entries

    rows = np.ascontiguousarray(rows)
    state = np.array([*builder.state, builder.last_indexed_timestamp], np.int64)
    indexed = np.empty(len(rows), np.int64)
    times = np.empty((len(rows), 2), np.int64)
    offsets_found, times_found = kernel.choose(rows, builder.interval_bytes, state, indexed, times)
    chosen, base_offset = rows[indexed[:offsets_found]], builder.base_offset
    offset_entries = np.empty(offsets_found, _OFFSET_ENTRY)
    offset_entries["relative_offset"] = chosen["last_offset"] - base_offset
    offset_entries["position"] = chosen["position"] + buffer_start
    time_entries = np.empty(times_found, _TIME_ENTRY)
    time_entries["timestamp"] = times[:times_found, 0]
    time_entries["relative_offset"] = times[:times_found, 1] - base_offset
    builder.offset_index += offset_entries.tobytes()
    builder.time_index += time_entries.tobytes()
    largest, largest_offset, since_entry, builder.last_indexed_timestamp = state.tolist()
    builder.state = (largest, largest_offset, since_entry)


def first_offsets(rows: NDArray[Any]) -> NDArray[np.int64]:
    """The offset stored in each header: the base offset, or the last offset of a legacy set."""
    first: NDArray[np.int64] = np.where(
        rows["magic"] == MAGIC_2, rows["base_offset"], rows["last_offset"]
    )
    return first


def fits_segment(rows: NDArray[Any], base_offset: int) -> NDArray[np.bool_]:
    """Which batches have offsets that an index of the segment at `base_offset` can hold."""
    first, last = first_offsets(rows), rows["last_offset"]
    # An offset near the largest int64 wraps around when the delta is added: below its first.
    fits: NDArray[np.bool_] = (first >= base_offset) & (last >= first)
    fits &= last - base_offset <= RELATIVE_OFFSET_MAX
    return fits
