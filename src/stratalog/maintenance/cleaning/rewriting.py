"""The second step of a cleaning pass: rewriting segments without superseded records.

`Rewriter` is the fast twin of `filtering`. Python decides what depends on batch headers
(transactions, producers, the end of the pass), batch by batch only for transactions; compiled code
decides about each record and writes. Batches of the old formats go through the readable code.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from stratalog.errors import OffsetOverflowError, StorageError, UnsupportedError
from stratalog.format.batch import (
    ATTRIBUTES_AT,
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_BYTES,
    Codec,
    with_payload,
)
from stratalog.format.batch_table import add_batches
from stratalog.format.compression import compress
from stratalog.format.counts import added
from stratalog.format.index_entries import IndexBuilder
from stratalog.format.index_search import RELATIVE_OFFSET_MAX
from stratalog.format.kernels import cleaning as kernel
from stratalog.format.kernels import offset_map as map_kernel
from stratalog.format.kernels.memory import BATCH, COPY_SLACK_BYTES
from stratalog.format.names import FileKind, FileState, segment_file_name
from stratalog.format.offset_index import ENTRY_BYTES
from stratalog.maintenance.cleaning.filtering import (
    BatchAction,
    CleanedTransactions,
    CleaningRules,
    RecordReason,
    filter_batch,
    last_records,
)
from stratalog.maintenance.cleaning.offset_map import events_of
from stratalog.maintenance.cleaning.plan import (
    CleaningResult,
    RecordCounts,
    group_segments,
    legacy_delete_horizon_ms,
)
from stratalog.storage.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

    from numpy.typing import NDArray

    from stratalog.config import LogConfig
    from stratalog.format.buffers import Buffer
    from stratalog.format.txn_index import AbortedTxn
    from stratalog.log.partition_log import PartitionLog
    from stratalog.maintenance.cleaning.filtering import LastRecord
    from stratalog.maintenance.cleaning.offset_map import OffsetMap, TxnEvent
    from stratalog.maintenance.cleaning.plan import CleanerSegment, CleaningPlan
    from stratalog.maintenance.cleaning.sources import BatchReader, BatchRun, SourceSegment
    from stratalog.storage.disk import Disk


@dataclass(frozen=True, slots=True)
class RewritePlan:
    """Which segments are merged, and the rules for their records. Can be sent to other
    processes."""

    end_offset: int
    groups: tuple[tuple[CleanerSegment, ...], ...]
    config: LogConfig
    bound: int
    now_ms: int
    legacy_horizon_ms: int
    producers: dict[int, LastRecord]

    @classmethod
    def of_log(cls, log: PartitionLog, plan: CleaningPlan, end_offset: int) -> RewritePlan:
        """The plan of a pass whose first step has mapped keys up to `end_offset`."""
        with log.maintenance.lock:
            producers = last_records(log.producers.producers.values())
        return cls.of(log.config, producers, plan, end_offset)

    @classmethod
    def of(
        cls,
        config: LogConfig,
        producers: dict[int, LastRecord],
        plan: CleaningPlan,
        end_offset: int,
    ) -> RewritePlan:
        """The plan for a log with these settings and producers."""
        bound = plan.first_uncleanable_offset
        return cls(
            end_offset=end_offset,
            groups=tuple(group_segments(plan.segments, end_offset, bound, config)),
            config=config,
            bound=bound,
            now_ms=plan.now_ms,
            legacy_horizon_ms=legacy_delete_horizon_ms(
                plan.segments, plan.first_dirty_offset, config.delete_retention_ms
            ),
            producers=producers,
        )

    def rules(self, newest_offset_of: Callable[[bytes], int]) -> CleaningRules:
        """The rules for the readable code."""
        return CleaningRules(
            newest_offset_of=newest_offset_of,
            map_latest_offset=self.end_offset - 1,
            bound=self.bound,
            now_ms=self.now_ms,
            delete_retention_ms=self.config.delete_retention_ms,
            legacy_horizon_ms=self.legacy_horizon_ms,
            producers=self.producers,
        )

    def grouped(self, sources: Iterable[SourceSegment]) -> list[tuple[SourceSegment, ...]]:
        """The sources of each group."""
        by_base = {source.base_offset: source for source in sources}
        return [tuple(by_base[facts.base_offset] for facts in group) for group in self.groups]

    def result(
        self,
        plan: CleaningPlan,
        offset_map: OffsetMap,
        counts: RecordCounts,
        bytes_written: int,
        seconds: float,
    ) -> CleaningResult:
        """What the pass did, once all groups are rewritten."""
        return CleaningResult(
            first_dirty_offset=plan.first_dirty_offset,
            end_offset=self.end_offset,
            first_uncleanable_offset=self.bound,
            groups=tuple(tuple(facts.base_offset for facts in group) for group in self.groups),
            map_entries=offset_map.entries,
            is_map_full=offset_map.is_full,
            bytes_read=sum(facts.size_bytes for group in self.groups for facts in group),
            bytes_written=bytes_written,
            records_read=counts.read,
            records_kept=counts.kept,
            records_without_key=counts.without_key,
            seconds=seconds,
        )


OUT_BYTES: Final = 8 << 20


class RewrittenBatches(NamedTuple):
    """Batches to append; `rows` has the position of each in `data`."""

    data: Buffer
    rows: NDArray[Any]
    is_uncompressed: NDArray[np.bool_] | None = None
    """Batches whose records must still be compressed."""

    def compressed(self) -> RewrittenBatches:
        """The same batches, with records compressed if they were compressed in the log."""
        if self.is_uncompressed is None or not self.is_uncompressed.any():
            return self
        rows, data = self.rows.copy(), memoryview(self.data)
        pieces: list[Buffer] = []
        ends = rows["position"] + rows["size_bytes"]
        spans = zip(
            rows["position"].tolist(), ends.tolist(), self.is_uncompressed.tolist(), strict=True
        )
        for start, end, is_uncompressed in spans:
            batch = data[start:end]
            pieces.append(_compressed(batch) if is_uncompressed else batch)
        rows["size_bytes"] = [len(piece) for piece in pieces]
        rows["position"] = np.cumsum(rows["size_bytes"]) - rows["size_bytes"]
        return RewrittenBatches(b"".join(pieces), rows)


class Rewriter:
    """Rewrites one log: pass it every run once, in order."""

    def __init__(
        self,
        offset_map: OffsetMap,
        rules: CleaningRules,
        transactions: CleanedTransactions | None = None,
    ) -> None:
        """`transactions` is the state after earlier segments, if this is not the first one."""
        self._map = offset_map
        self._rules = rules
        self._transactions = transactions or CleanedTransactions()
        self._producers = _LastBatches(rules)
        marks = offset_map.marks(rules.map_latest_offset + 1)
        self._marks = np.zeros(1, np.uint8) if marks is None else marks
        size_bytes = OUT_BYTES + COPY_SLACK_BYTES
        self._out, self._other_out = np.empty(size_bytes, np.uint8), np.empty(size_bytes, np.uint8)
        self._decisions = np.empty(1, np.uint8)
        self.state = np.zeros(kernel.STATE_WORDS, np.int64)
        start_offset = int(offset_map.state[map_kernel.START_OFFSET])
        self._fill(
            {
                kernel.NOW_MS: rules.now_ms,
                kernel.HORIZON_MS: rules.now_ms + rules.delete_retention_ms,
                kernel.MARKS: self._marks.ctypes.data,
                kernel.MARKS_START: start_offset,
                kernel.MARKS_COUNT: (
                    0 if marks is None else max(0, rules.map_latest_offset + 1 - start_offset)
                ),
            }
        )
        self._legacy = RecordCounts()  # messages of the old formats

    @property
    def counts(self) -> RecordCounts:
        """Of all runs so far."""
        words = [kernel.RECORDS_READ, kernel.RECORDS_KEPT, kernel.INVALID_RECORDS]
        return added(self._legacy, RecordCounts(*self.state[words].tolist()))

    def rewrite_segment(
        self,
        source: SourceSegment,
        cleaned: CleanedSegment,
        reader: BatchReader,
        on_progress: Callable[[int], None],
    ) -> None:
        """Append what is kept of a segment."""
        self.begin(source)
        for run in source.runs(reader):
            for written in self.rewrite(run, source.facts.mtime_ms):
                cleaned.append(written)
            cleaned.append_aborted(self._transactions.take_kept())
            on_progress(int(run.rows["size_bytes"].sum(dtype=np.int64)))
        cleaned.wait()

    def begin(self, source: SourceSegment) -> None:
        """Begin a segment, whose runs are passed next."""
        self._transactions.add_aborted(source.aborted)

    def rewrite(self, run: BatchRun, source_mtime_ms: int) -> Iterator[RewrittenBatches]:
        """Yield the batches that are kept of a run, in parts. A part stays valid while the next one
        is created, so that it can be written meanwhile."""
        if run.payloads is None:
            yield from self._rewrite_legacy(run, source_mtime_ms)
            return
        orders = self._orders(run)
        if not (orders & kernel.DISCARD).all() or (orders & kernel.RETAIN_EMPTY).any():
            yield from self._rewrite_batches(run, run.payloads, orders)
        else:
            self.state[kernel.RECORDS_READ] += run.rows["record_count"].sum()

    # -- decided by batch headers

    def _orders(self, run: BatchRun) -> NDArray[np.uint8]:
        rows = run.rows
        orders = np.zeros(len(rows), np.uint8)
        orders[rows["last_offset"] + 1 == self._rules.bound] |= kernel.RETAIN_EMPTY
        orders[self._producers.find(rows)] |= kernel.RETAIN_EMPTY
        for event in events_of(run):
            is_obsolete = event.apply(self._transactions)
            orders[event.row] |= self._order_of(event, rows[event.row], is_obsolete=is_obsolete)
        return orders

    def _order_of(self, event: TxnEvent, batch: Any, *, is_obsolete: bool) -> int:
        """The order for a batch of a transaction. It `is_obsolete` if the batch is aborted, or a
        marker that is not needed."""
        if not event.is_control:
            return kernel.DISCARD if is_obsolete else kernel.PROBE
        if not is_obsolete:
            return kernel.KEEP
        if (
            batch["attributes"] & DELETE_HORIZON_BIT
            and batch["base_timestamp"] <= self._rules.now_ms
        ):
            return kernel.DISCARD
        return kernel.KEEP | kernel.IS_EMPTY_TXN_MARKER

    # -- decided by records

    def _rewrite_batches(
        self, run: BatchRun, payloads: NDArray[Any], orders: NDArray[np.uint8]
    ) -> Iterator[RewrittenBatches]:
        rows, state = run.rows, self.state
        self._decisions = _at_least(self._decisions, int(rows["record_count"].max()))
        source = pa.py_buffer(run.buf)
        self._fill({kernel.BUF: source.address, kernel.DECISIONS: self._decisions.ctypes.data})
        kept = np.empty(len(rows), BATCH)
        done = 0
        while done < len(rows):
            room = len(self._out) - COPY_SLACK_BYTES
            start = self._out.ctypes.data
            self._fill({kernel.OUT: start, kernel.OUT_END: start + room})
            count = kernel.filter_batches(
                rows[done:], payloads[done:], orders[done:], self._map.state, state, kept
            )
            if count == kernel.CORRUPT:
                run.raise_for(done + int(state[kernel.BATCH_INDEX]))
            if not count:
                self._out = _at_least(self._out, int(state[kernel.NEEDED]) + COPY_SLACK_BYTES)
                continue
            written = kept[: int(state[kernel.KEPT_BATCHES])].copy()
            if len(written):
                data = self._out.data[: int(state[kernel.USED])]
                actions = orders[done : done + count]
                self._out, self._other_out = self._other_out, self._out
                actions = actions[actions != kernel.DROPPED]
                yield RewrittenBatches(data, written, actions == kernel.UNPACKED)
            done += count

    def _rewrite_legacy(self, run: BatchRun, source_mtime_ms: int) -> Iterator[RewrittenBatches]:
        for row in range(len(run.rows)):
            try:
                filtered = filter_batch(
                    run.buf, run.entry(row), self._rules, self._transactions, source_mtime_ms
                )
            except UnsupportedError as error:
                raise UnsupportedError(f"{run.path}: {error}") from None
            without_key = sum(v.reason is RecordReason.NO_KEY for v in filtered.decisions)
            counts = RecordCounts(len(filtered.decisions), len(filtered.kept), without_key)
            self._legacy = added(self._legacy, counts)
            if filtered.action is BatchAction.DROPPED:
                continue
            written = run.rows[row : row + 1].copy()
            written["position"] = 0
            written["size_bytes"] = len(filtered.data)
            written["last_offset"] = filtered.max_offset
            written["max_timestamp"] = filtered.max_timestamp
            yield RewrittenBatches(filtered.data, written)

    def _fill(self, values: dict[int, int]) -> None:
        for slot, value in values.items():
            self.state[slot] = value


class _LastBatches:
    """Finds the batches with the last sequence number of a live producer."""

    def __init__(self, rules: CleaningRules) -> None:
        with_data = {
            last.last_data_offset: producer_id
            for producer_id, last in rules.producers.items()
            if last.last_data_offset >= 0
        }
        self._offsets = np.array(sorted(with_data), np.int64)
        self._ids = np.array([with_data[offset] for offset in sorted(with_data)], np.int64)
        self._epochs = {
            producer_id: last.producer_epoch
            for producer_id, last in rules.producers.items()
            if last.last_data_offset < 0
        }

    def find(self, rows: NDArray[Any]) -> NDArray[np.bool_]:
        found = np.zeros(len(rows), np.bool_)
        if len(self._offsets):
            slots = np.searchsorted(self._offsets, rows["last_offset"])
            slots[slots == len(self._offsets)] = 0
            found |= self._offsets[slots] == rows["last_offset"]
            found &= self._ids[slots] == rows["producer_id"]
        if self._epochs:
            is_control = rows["attributes"] & CONTROL_BIT != 0
            for row in np.flatnonzero(is_control).tolist():
                epoch = self._epochs.get(int(rows["producer_id"][row]))
                found[row] |= epoch == int(rows["producer_epoch"][row])
        return found


def _compressed(batch: memoryview) -> bytearray:
    codec = Codec(batch[ATTRIBUTES_AT + 1] & CODEC_MASK)
    return with_payload(batch, compress(codec, bytes(batch[HEADER_BYTES:])))


def _at_least(memory: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    return memory if len(memory) >= size else np.empty(size, np.uint8)


_KINDS = (FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX)


class CleanedSegment:
    """A segment that cleaning writes: `.cleaned` files. Append to it, then `finish` or `discard`
    it.

    Its indexes follow the rule for appends: an entry once more than `index.interval.bytes` precede
    the batch. Kafka writes an entry per read buffer, at most one for 256 KiB, so its lookups read
    more of the log.
    """

    def __init__(self, disk: Disk, directory: Path, base_offset: int, config: LogConfig) -> None:
        self._disk = disk
        self._directory = directory
        self._base_offset = base_offset
        self._config = config
        self._aborted: list[AbortedTxn] = []
        self._indexes = IndexBuilder(base_offset, config.index_interval_bytes)
        self._remove()
        self._log = disk.open_append(self._path(FileKind.LOG), is_new=True)
        self._thread = ThreadPoolExecutor(1, "write-behind")
        self._writing: Future[None] | None = None

    def append(self, written: RewrittenBatches) -> None:
        """Write batches. They must not change until `wait` or the next call returns: another thread
        compresses and writes them."""
        self.wait()
        last_offset = int(written.rows["last_offset"][-1])
        if last_offset - self._base_offset > RELATIVE_OFFSET_MAX:
            raise OffsetOverflowError(last_offset, base_offset=self._base_offset)
        self._writing = self._thread.submit(self._write_batches, written)

    def wait(self) -> None:
        """Return when everything appended is in the file. Raises StorageError if a write failed."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _write_batches(self, written: RewrittenBatches) -> None:
        compressed = written.compressed()
        add_batches(self._indexes, compressed.rows, self._log.size_bytes)
        self._log.write(compressed.data)

    def append_aborted(self, txns: Iterable[AbortedTxn]) -> None:
        """Add transactions whose abort marker was just written."""
        self._aborted += txns

    def finish(self, mtime_ms: int) -> Segment:
        """The segment, durable except for its names, with the mtime of the last one it replaces."""
        self.wait()
        self._thread.shutdown()
        indexes, config = self._indexes, self._config
        indexes.finish()
        self._log.fsync()
        self._log.close()
        # Entries beyond segment.index.bytes are left out: an index is sparse anyway.
        bytes_max = config.segment_index_bytes // ENTRY_BYTES * ENTRY_BYTES
        self._write(FileKind.OFFSET_INDEX, indexes.offset_index[:bytes_max], mtime_ms)
        self._write(FileKind.TIME_INDEX, indexes.time_index, mtime_ms)
        if self._aborted:
            entries = b"".join(txn.pack() for txn in self._aborted)
            self._write(FileKind.TXN_INDEX, entries, mtime_ms)
        path = self._path(FileKind.LOG)
        self._disk.set_mtime_ms(path, mtime_ms)
        return Segment(self._disk, path, self._base_offset, self._log.size_bytes, config)

    def discard(self) -> None:
        """Remove the files. Never raises: the next opening of the log removes leftovers."""
        self._thread.shutdown()
        with suppress(StorageError):
            self._log.close()
            self._remove()

    def _write(self, kind: FileKind, data: Buffer, mtime_ms: int) -> None:
        path = self._path(kind)
        self._disk.write_file(path, data)
        self._disk.set_mtime_ms(path, mtime_ms)

    def _remove(self) -> None:
        for kind in _KINDS:
            self._disk.unlink(self._path(kind), missing_ok=True)

    def _path(self, kind: FileKind) -> Path:
        return self._directory / segment_file_name(self._base_offset, kind, FileState.CLEANED)
