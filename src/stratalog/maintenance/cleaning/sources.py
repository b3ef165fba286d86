"""Reading the segments of a cleaning pass: checked batches in runs, with their records located.

A run is a chunk of the file or a part of one: batches of one kind, magic 2 or older. A thread reads
and checks the next chunk while the caller works on this one. Memory is bounded by a few chunks and
one decompressed part, however large the segment is.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from stratalog.errors import (
    CleaningAbortedError,
    CorruptBatchError,
    CorruptError,
    CorruptRecordError,
)
from stratalog.format.batch import CODEC_MASK, MAGIC_2, Entry
from stratalog.format.batch_table import PayloadReader, Stop, scan_batches
from stratalog.format.compression import DECOMPRESSED_BYTES_MAX
from stratalog.format.control import read_control_key
from stratalog.format.kernels import scan as survey
from stratalog.format.kernels.memory import PAYLOAD
from stratalog.format.log_entry import records_of
from stratalog.storage.log_file import LocalFile, LogFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from stratalog.format.batch_table import BatchTable
    from stratalog.format.control import ControlType
    from stratalog.format.txn_index import AbortedTxn
    from stratalog.log.partition_log import PartitionLog
    from stratalog.log.partition_view import PartitionView
    from stratalog.maintenance.cleaning.plan import CleanerSegment, CleaningPlan


class BatchRun(NamedTuple):
    """Batches in file order. Valid until the next run is requested."""

    path: Path
    buf: bytes
    start: int
    """The position of `buf` in the file; positions in `rows` are relative to it."""
    rows: NDArray[Any]
    payloads: NDArray[Any] | None
    """Where the uncompressed records of each batch are; None for a run of the old formats."""

    def entry(self, row: int) -> Entry:
        """One batch, for the readable code."""
        names = ("position", "base_offset", "size_bytes", "magic")
        return Entry(*(int(self.rows[name][row]) for name in names))

    def check(self, row: int) -> None:
        """Raise if the readable decoder finds this batch corrupt."""
        try:
            for _ in records_of(self.buf, self.entry(row)):
                pass
        except (CorruptBatchError, CorruptRecordError) as error:
            raise error.located(self.path, buffer_start=self.start) from None

    def raise_for(self, row: int) -> NoReturn:
        """Raise what the readable decoder finds wrong with this batch."""
        self.check(row)
        offsets = (int(self.rows["base_offset"][row]), int(self.rows["last_offset"][row]))
        position = self.start + int(self.rows["position"][row])
        raise CorruptBatchError(
            f"offsets do not increase: the batch has {offsets[0]} to {offsets[1]}",
            position=position,
            path=self.path,
            offsets=offsets,
        )


CHUNK_BYTES: Final = 4 << 20
PART_BYTES: Final = 8 << 20


class BatchReader:
    """Reads segments one after the other. A context manager, because it has a thread."""

    def __init__(self, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._chunk_bytes = chunk_bytes
        self._payloads = PayloadReader(
            part_bytes=PART_BYTES, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX
        )
        self._thread = ThreadPoolExecutor(1, "read-ahead")

    def __enter__(self) -> BatchReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def read(self, file: LogFile, path: Path, base_offset: int, start: int) -> Iterator[BatchRun]:
        """The batches of a sealed segment from position `start` on.

        Raises CorruptError for the first corrupt batch, after yielding what precedes it.
        """
        chunks = _ChunkReader(file, path, base_offset, self._chunk_bytes)
        coming = self._thread.submit(chunks.next_after, start)
        try:
            while (chunk := coming.result()) is not None:
                coming = self._thread.submit(chunks.next_after, chunk.end)
                yield from self._runs(chunk)
                if chunk.failure is not None:
                    raise chunk.failure
        finally:  # the caller must not close the file during a read
            if not coming.cancel():
                coming.exception()

    def _runs(self, chunk: _Chunk) -> Iterator[BatchRun]:
        rows, payloads, run = chunk.rows, chunk.payloads, chunk.run
        is_plain = rows["attributes"] & CODEC_MASK == 0
        is_legacy = rows["magic"] != MAGIC_2
        if is_plain.all() and not is_legacy.any():
            yield run._replace(rows=rows, payloads=payloads)
            return
        kinds = np.where(is_legacy, 0, 1)
        starts = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(rows)]
        for first, end in pairwise(starts):
            if is_legacy[first]:
                legacy = run._replace(rows=rows[first:end])
                for row in range(end - first):  # kernels have not checked them
                    legacy.check(row)
                yield legacy
            else:
                yield from self._unpacked(run, rows[first:end])

    def _unpacked(self, run: BatchRun, rows: NDArray[Any]) -> Iterator[BatchRun]:
        done = 0
        for part in self._payloads.parts(run.buf, rows):
            if len(part.rows):
                yield run._replace(rows=part.rows, payloads=part.payloads)
            done += len(part.rows)
        if done < len(rows):
            run._replace(rows=rows).raise_for(done)


class _Chunk(NamedTuple):
    """One read: complete batches, and what is wrong after them."""

    run: BatchRun
    rows: NDArray[Any]
    payloads: NDArray[Any]
    end: int
    failure: Exception | None


class _ChunkReader:
    """Reads and checks chunks; only called in the reading thread."""

    def __init__(self, file: LogFile, path: Path, base_offset: int, chunk_bytes: int) -> None:
        self._file = file
        self._path = path
        self._size_bytes = file.size_bytes
        self._next_offset = base_offset
        self._chunk_bytes = chunk_bytes

    def next_after(self, position: int) -> _Chunk | None:
        if position >= self._size_bytes:
            return None
        buf, table = self._load(position)
        rows = table.rows
        payloads = np.empty(len(rows), PAYLOAD)
        found = np.zeros(survey.SLOTS, np.int64)
        memory = pa.py_buffer(buf)
        good = int(survey.survey(memory.address, memory.size, rows, payloads, found, True))
        good = min(good, self._count_in_order(rows))
        run = BatchRun(self._path, buf, position, rows[:good], None)
        failure = None
        if good < len(rows):
            failure = self._failure(run._replace(rows=rows), good)
        if good:
            self._next_offset = int(rows["last_offset"][good - 1]) + 1
        return _Chunk(run, rows[:good], payloads[:good], position + table.end, failure)

    def _load(self, position: int) -> tuple[bytes, BatchTable]:
        """A chunk with at least one complete batch."""
        left = self._size_bytes - position
        buf = self._file.read(position, min(self._chunk_bytes, left))
        table = scan_batches(buf)
        if not len(table) and table.stop is Stop.PARTIAL and len(buf) < left:
            batch = self._file.peek(position)
            size_bytes = 0 if batch is None else batch.size_bytes
            if len(buf) < size_bytes <= left:
                buf = self._file.read(position, size_bytes)
                table = scan_batches(buf)
        if not len(table):
            reason = table.reason or f"the log ends inside a batch ({left} bytes are left)"
            raise CorruptBatchError(reason, position=position + table.end, path=self._path)
        return buf, table

    def _count_in_order(self, rows: NDArray[Any]) -> int:
        """Offsets must increase; otherwise it is not known which of two records is newer."""
        base, last = rows["base_offset"], rows["last_offset"]
        expected = np.concatenate(([self._next_offset], last[:-1] + 1))
        is_bad = np.where(base < 0, last, base) < expected
        return int(np.argmax(is_bad)) if is_bad.any() else len(rows)

    def _failure(self, run: BatchRun, row: int) -> Exception:
        try:
            run.raise_for(row)
        except (CorruptBatchError, CorruptRecordError) as error:
            return error
        raise AssertionError("not reached")


def marker_of(run: BatchRun, row: int) -> ControlType | None:
    """The type of the control batch in this row; None for one that was emptied."""
    entry = run.entry(row)
    try:
        record = next(records_of(run.buf, entry, check_crc=False), None)
        return None if record is None else read_control_key(record, position=entry.position).type
    except CorruptError as error:
        raise error.located(run.path, buffer_start=run.start) from None


@dataclass(frozen=True, slots=True)
class SourceSegment:
    """One sealed segment of a cleaning pass, as a value that can be sent to other processes."""

    path: Path
    """Path of the log file."""
    facts: CleanerSegment
    end_offset: int
    """Where the next segment begins, or the pass ends."""
    aborted: tuple[AbortedTxn, ...]
    """The aborted transactions with records in it."""

    @property
    def base_offset(self) -> int:
        return self.facts.base_offset

    def runs(self, reader: BatchReader, start: int = 0) -> Iterator[BatchRun]:
        """Its batches from position `start` on."""
        try:
            file = LocalFile(self.path)
        except FileNotFoundError:
            raise CleaningAbortedError(self.path, "the segment was deleted meanwhile") from None
        with file:
            if file.size_bytes != self.facts.size_bytes:
                raise CleaningAbortedError(self.path, "the segment was truncated meanwhile")
            yield from reader.read(file, self.path, self.base_offset, start)


def source_segments(
    log: PartitionLog | PartitionView, plan: CleaningPlan
) -> tuple[SourceSegment, ...]:
    """The segments that a pass may rewrite, in order."""
    paths = {view.base_offset: view.path for view in log.segments}
    bases = [facts.base_offset for facts in plan.segments]
    ends = [*bases[1:], plan.first_uncleanable_offset]
    sources = []
    for facts, end_offset in zip(plan.segments, ends, strict=True):
        path = paths.get(facts.base_offset)
        if path is None:
            raise CleaningAbortedError(log.path, "segments were deleted meanwhile")
        aborted = log.aborted_transactions(facts.base_offset, end_offset)
        sources.append(SourceSegment(path, facts, end_offset, tuple(aborted)))
    return tuple(sources)


def sources_of_log(log: PartitionLog, plan: CleaningPlan) -> tuple[SourceSegment, ...]:
    """The same, of a log that may have been truncated since the pass was planned."""
    if plan.first_uncleanable_offset > log.last_stable_offset:
        raise CleaningAbortedError(log.path, "the log was truncated after it was selected")
    return source_segments(log, plan)
