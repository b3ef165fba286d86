"""Reading a range of a log as Arrow columns: the fast twin of `reading`.

The log is read in chunks of bounded size, each decoded by compiled kernels. No Python object is
made per record, and per batch only when something is wrong with it. Importing this module loads
the kernels, so it is imported when columns are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from stratalog.errors import CorruptBatchError, CorruptError, CorruptRecordError
from stratalog.format.columns import RECORD_COLUMNS, Decoder, Stop, scan_batches

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from stratalog.format.columns import BatchTable
    from stratalog.log.reading import ReadPlan
    from stratalog.log.segments import SegmentList, SegmentPart

CHUNK_BYTES: Final = 1024 * 1024

_TRANSACTIONAL_BIT = 0x10
_CONTROL_BIT = 0x20


class ColumnReader:
    """One pass over a range of a log. Use it once."""

    def __init__(
        self,
        segments: SegmentList,
        plan: ReadPlan,
        columns: Collection[str] | None = None,
        *,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._segments = segments
        self._plan = plan
        self._columns = list(RECORD_COLUMNS if columns is None else columns)
        self._chunk_bytes = chunk_bytes
        # The offset column is needed to cut the first and the last batch to the range.
        self._decoder = Decoder(dict.fromkeys([*self._columns, "offset"]))
        self._bytes_left = plan.bytes_max
        self._records_left = plan.records_max
        self._is_first = True
        self._is_done = plan.records_max <= 0
        self._due_offset = plan.start_offset

    def read(self) -> Iterator[pa.RecordBatch]:
        """Every visible record of the range, in order."""
        for part in self._segments.parts_from(self._plan.start_offset):
            self._due_offset = max(self._due_offset, part.segment.base_offset)
            position = part.segment.seek(self._plan.start_offset).position
            while position < part.end_position and not self._is_done:
                try:
                    chunk, table = self._load(part, position)
                    yield from self._decode(part, position, chunk, table)
                    position += table.end
                except CorruptBatchError as error:
                    position = self._plan.damage.resume_after(
                        part, error, due_offset=self._due_offset
                    )
                except CorruptRecordError as error:
                    position = self._resume_after_records(part, error)
            if self._is_done:
                return

    def _load(self, part: SegmentPart, position: int) -> tuple[bytes, BatchTable]:
        """A chunk that begins with at least one whole batch."""
        file = part.segment.file
        left = part.end_position - position
        chunk = file.read(position, min(self._chunk_bytes, left))
        table = scan_batches(chunk)
        if not len(table) and table.stop is Stop.PARTIAL:
            batch = file.peek(position)
            size_bytes = 0 if batch is None else batch.size_bytes
            if not len(chunk) < size_bytes <= left:
                raise CorruptBatchError(
                    f"the log ends inside a batch ({left} bytes are left)",
                    position=position,
                    path=part.segment.path,
                )
            chunk = file.read(position, size_bytes)
            table = scan_batches(chunk)
        if not len(table):
            raise CorruptBatchError(
                table.reason or table.stop.value,
                position=position + table.end,
                path=part.segment.path,
            )
        return chunk, table

    def _decode(
        self, part: SegmentPart, position: int, chunk: bytes, table: BatchTable
    ) -> Iterator[pa.RecordBatch]:
        visible = table.select(self._within_limits(table.rows, self._visible(table.rows)))
        try:
            for batch in self._decoder.decode(chunk, visible):
                cut = self._cut(batch)
                if cut.num_rows:
                    yield cut.select(self._columns)
                if self._records_left <= 0:
                    self._is_done = True
                    return
        except CorruptError as error:
            before = table["last_offset"][table["position"] < error.position]
            self._due_offset = max(self._due_offset, int(before.max(initial=-1)) + 1)
            raise error.located(part.segment.path, buffer_start=position) from None
        self._due_offset = int(table["last_offset"][-1]) + 1

    def _visible(self, rows: NDArray[Any]) -> NDArray[np.bool_]:
        """Batches in the range that are neither markers nor aborted."""
        attributes = rows["attributes"]
        visible = (rows["base_offset"] < self._plan.end_offset) & (
            rows["last_offset"] >= self._plan.start_offset
        )
        if not visible[-1] and rows["base_offset"][-1] >= self._plan.end_offset:
            self._is_done = True
        visible &= attributes & _CONTROL_BIT == 0
        if self._plan.aborted:
            covers = self._plan.aborted.covers
            for row in np.flatnonzero(visible & (attributes & _TRANSACTIONAL_BIT != 0)).tolist():
                producer_id, base_offset = rows["producer_id"][row], rows["base_offset"][row]
                visible[row] = not covers(int(producer_id), int(base_offset))
        return visible

    def _within_limits(self, rows: NDArray[Any], visible: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Leave out what exceeds the limit on bytes, but never the first batch."""
        sizes = np.where(visible, rows["size_bytes"], 0)
        spent = np.cumsum(sizes, dtype=np.int64)
        within = visible & (spent <= self._bytes_left)
        if self._is_first and visible.any():
            within[np.argmax(visible)] = True
            self._is_first = False
        if (visible & ~within).any():
            within &= np.cumsum(visible & ~within) == 0
            self._is_done = True
        self._bytes_left -= int(spent[-1])
        return within

    def _cut(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Only the records in the range, within the limit on records."""
        offsets = batch.column("offset").to_numpy()
        start, end = np.searchsorted(offsets, (self._plan.start_offset, self._plan.end_offset))
        length = min(int(end - start), self._records_left)
        self._records_left -= length
        return batch.slice(int(start), length)

    def _resume_after_records(self, part: SegmentPart, error: CorruptRecordError) -> int:
        batch = part.segment.file.peek(error.position)
        size_bytes = 0 if batch is None else batch.size_bytes
        return self._plan.damage.resume_after_records(error, size_bytes)
