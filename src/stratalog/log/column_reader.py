"""Reading a range of a log as Arrow columns: the fast twin of `reader.read_records`.

The log is read in chunks of bounded size, each decoded by compiled kernels. No Python object is
created per record, and per batch only if something is wrong with it, or if it belongs to a
transaction in a log with aborted ones. Importing this module loads the kernels, so it is imported
when columns are first requested.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from stratalog.errors import CorruptBatchError, CorruptError, CorruptRecordError
from stratalog.format.batch import CONTROL_BIT, MAGIC_2, TRANSACTIONAL_BIT
from stratalog.format.column_types import int64_numbers, numpy_column
from stratalog.format.columns import RECORD_COLUMNS, Decoder, Stop, check_crcs, scan_batches
from stratalog.log.reader import fetched_ahead, raise_for_batch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from numpy.typing import NDArray

    from stratalog.format.buffers import Buffer
    from stratalog.format.columns import BatchTable
    from stratalog.log.reader import ReadPlan, TimeRange
    from stratalog.log.segment_list import SegmentPart
    from stratalog.storage.log_file import LogFile

CHUNK_BYTES: Final = 4 * 1024 * 1024


class ColumnReader:
    """One pass over a range of a log. Use it once."""

    def __init__(
        self,
        plan: ReadPlan,
        columns: Collection[str] | None = None,
        *,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._plan = plan
        self._columns = list(RECORD_COLUMNS if columns is None else columns)
        self._chunk_bytes = chunk_bytes
        # The offset column is needed to limit the first and the last batch to the range.
        needed = ["offset"] if plan.times.is_all else ["offset", "timestamp"]
        self._decoder = Decoder(dict.fromkeys([*self._columns, *needed]))
        self._bytes_left = plan.bytes_max
        self._records_left = plan.records_max
        self._is_first = True
        self._is_limited = False
        self._is_done = plan.records_max <= 0
        self._expected_offset = 0
        self._memory = np.empty(0, np.uint8)

    def read(self, parts: Iterable[SegmentPart]) -> Iterator[pa.RecordBatch]:
        """Every visible record of the range, in order. `parts` begin with the range's start."""
        for part in fetched_ahead(parts, self._plan):
            if self._is_done or part.start_offset >= self._plan.end_offset:
                return
            yield from self._read_part(part)

    def _read_part(self, part: SegmentPart) -> Iterator[pa.RecordBatch]:
        self._expected_offset = part.segment.base_offset
        position = part.first_position
        end = part.segment.position_after(self._plan.end_offset, part.end_position)
        part.segment.file.expect(position, end)
        while position < part.end_position and not self._is_done:
            try:
                chunk, table = self._load(part, position)
                table = self._before_first_bad(part, position, chunk, table)
                yield from self._decode(part, position, chunk, table)
                position += table.end
            except CorruptBatchError as error:
                expected_offset = max(part.start_offset, self._expected_offset)
                position = self._plan.corruption.resume_after(
                    part, error, expected_offset=expected_offset
                )
            except CorruptRecordError as error:
                position = self._resume_after_records(part, error)
        part.segment.check_unchanged()

    def _load(self, part: SegmentPart, position: int) -> tuple[memoryview, BatchTable]:
        """Read a chunk that begins with at least one complete batch. The chunk is valid until the
        next call."""
        file = part.segment.file
        left = part.end_position - position
        chunk = self._read(file, position, min(self._chunk_bytes, left))
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
            chunk = self._read(file, position, size_bytes)
            table = scan_batches(chunk)
        if not len(table):
            raise CorruptBatchError(
                table.reason or table.stop.value,
                position=position + table.end,
                path=part.segment.path,
            )
        return chunk, table

    def _read(self, file: LogFile, position: int, size_bytes: int) -> memoryview:
        """Read into reused memory: new pages cost as much as reading."""
        if not size_bytes <= len(self._memory) <= max(size_bytes, self._chunk_bytes):
            self._memory = np.empty(size_bytes, np.uint8)
        memory = memoryview(self._memory)[:size_bytes]  # type: ignore[arg-type]
        return memory[: file.read_into(memory, position)]

    def _before_first_bad(
        self, part: SegmentPart, position: int, chunk: Buffer, table: BatchTable
    ) -> BatchTable:
        """The batches before the first bad one, which is out of order, or is skipped and has a
        wrong CRC. The decoder checks the CRCs of visible batches."""
        table = self._up_to_range_end(table)
        rows = table.rows
        base, last = rows["base_offset"], rows["last_offset"]
        expected = np.concatenate(([self._expected_offset], last[:-1] + 1))
        is_bad = (np.where(base < 0, last, base) < expected) | (last >= part.limit_offset)
        passed_over = ~self._visible(part, rows)
        if passed_over.any():  # skipped because of what the header says, so check its CRC
            is_bad[passed_over] |= ~check_crcs(chunk, table.select(passed_over))
        if not is_bad.any():
            return table
        first_bad = int(np.argmax(is_bad))
        end = int(rows["position"][first_bad])
        if not first_bad:
            raise_for_batch(part, position + end, self._expected_offset)
        return replace(table, rows=rows[:first_bad], end=end)

    def _up_to_range_end(self, table: BatchTable) -> BatchTable:
        """Drop the batches after the one that reaches the end of the range."""
        rows = table.rows
        reaches_end = rows["last_offset"] >= self._plan.end_offset - 1
        kept = int(np.argmax(reaches_end)) + 1 if reaches_end.any() else len(rows)
        if kept == len(rows):
            return table
        return replace(table, rows=rows[:kept], end=int(rows["position"][kept]))

    def _decode(
        self, part: SegmentPart, position: int, chunk: Buffer, table: BatchTable
    ) -> Iterator[pa.RecordBatch]:
        rows = table.rows
        wanted = self._within_byte_limit(rows, self._visible(part, rows))
        try:
            for batch in self._decoder.decode(chunk, table.select(wanted)):
                within = self._records_in_range(part, batch)
                if within.num_rows:
                    yield within.select(self._columns)
                if self._records_left <= 0:
                    self._is_done = True
                    return
        except CorruptError as error:
            is_before = rows["position"] < error.position
            self._note(rows[is_before], wanted[is_before])
            raise error.located(part.segment.path, buffer_start=position) from None
        self._note(rows, wanted)
        is_past = int(rows["last_offset"][-1]) >= self._plan.end_offset - 1
        is_spent = self._bytes_left <= 0 and not self._is_first
        self._is_done = is_past or is_spent or self._is_limited

    def _note(self, rows: NDArray[Any], wanted: NDArray[np.bool_]) -> None:
        """Count processed batches; the `wanted` ones were returned."""
        if len(rows):
            self._expected_offset = int(rows["last_offset"][-1]) + 1
        self._bytes_left -= int(rows["size_bytes"][wanted].sum())
        self._is_first = self._is_first and not wanted.any()

    def _visible(self, part: SegmentPart, rows: NDArray[Any]) -> NDArray[np.bool_]:
        """Batches in the range that are neither markers nor aborted."""
        # Only magic 2 has these bits: in a legacy message they mean nothing.
        attributes = np.where(rows["magic"] == MAGIC_2, rows["attributes"], 0)
        visible: NDArray[np.bool_] = (
            (rows["base_offset"] < self._plan.end_offset)
            & (rows["last_offset"] >= part.start_offset)
            & (attributes & CONTROL_BIT == 0)
        )
        if self._plan.aborted:
            covers = self._plan.aborted.covers
            for row in np.flatnonzero(visible & (attributes & TRANSACTIONAL_BIT != 0)).tolist():
                producer_id, base_offset = rows["producer_id"][row], rows["base_offset"][row]
                visible[row] = not covers(int(producer_id), int(base_offset))
        return visible

    def _within_byte_limit(
        self, rows: NDArray[Any], visible: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Leave out what exceeds the limit on bytes, but never the first batch."""
        spent = np.cumsum(np.where(visible, rows["size_bytes"], 0), dtype=np.int64)
        exceeds = visible & (spent > self._bytes_left)
        if self._is_first and visible.any():
            exceeds[np.argmax(visible)] = False
        self._is_limited = bool(exceeds.any())
        within: NDArray[np.bool_] = visible & (np.cumsum(exceeds) == 0)
        return within

    def _records_in_range(self, part: SegmentPart, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Only the records in the range, within the limit on records."""
        offsets = int64_numbers(batch.column("offset"))
        start, end = np.searchsorted(offsets, (part.start_offset, self._plan.end_offset))
        within = batch.slice(int(start), int(end - start))
        if not self._plan.times.is_all:
            within = _at_times(within, self._plan.times)
        length = min(within.num_rows, self._records_left)
        self._records_left -= length
        return within.slice(0, length)

    def _resume_after_records(self, part: SegmentPart, error: CorruptRecordError) -> int:
        batch = part.segment.file.peek(error.position)
        size_bytes = 0 if batch is None else batch.size_bytes
        return self._plan.corruption.resume_after_records(error, size_bytes)


def _at_times(batch: pa.RecordBatch, times: TimeRange) -> pa.RecordBatch:
    """Only the records with these timestamps."""
    found = int64_numbers(batch.column("timestamp"))
    keep = np.ones(len(found), np.bool_)
    if times.since_ms is not None:
        keep &= found >= times.since_ms
    if times.until_ms is not None:
        keep &= found < times.until_ms
    return batch if keep.all() else batch.filter(numpy_column(keep, pa.bool_()))
