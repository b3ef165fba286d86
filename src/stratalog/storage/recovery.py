"""Which part of a segment is valid after an unclean shutdown: the batches up to the first bad one.

A valid batch is complete, has a right CRC, and its offsets are above those before it and not too
far above the segment's base offset. As in `index_view.rebuild_indexes`, compiled kernels take over
when very many batches have to be checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from stratalog.errors import (
    CorruptBatchError,
    CorruptError,
    LimitExceededError,
    OffsetOverflowError,
    UnsupportedError,
)
from stratalog.format.batch import MAGIC_2, NO_LEADER_EPOCH, BatchHeader, Entry
from stratalog.format.index_entries import IndexBuilder
from stratalog.format.index_search import RELATIVE_OFFSET_MAX
from stratalog.format.offset_index import POSITION_MAX
from stratalog.storage.index_view import WINDOW_BYTES, count_true, is_bulk_worth_it
from stratalog.storage.segment_view import LoadedBatch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stratalog.storage.segment_view import SegmentView

OnBatch: TypeAlias = Callable[[LoadedBatch], None]
"""Called with each batch that changes more than the records of a log: one with a producer id, or of
another leader epoch than the batch before."""


class ValidPart(NamedTuple):
    """The valid part of a segment."""

    indexes: IndexBuilder
    """Complete, the closing time entry included."""
    valid_bytes: int
    next_offset: int
    corruption: CorruptError | None
    """Why the rest is not valid; None if the batches end where the file does."""


class SegmentSpan(NamedTuple):
    """A part of a segment's file that is, or could be, a segment of its own."""

    base_offset: int
    start: int
    end: int
    """Positions in the file."""


def check_segment(
    view: SegmentView, interval_bytes: int, on_batch: OnBatch, span: SegmentSpan | None = None
) -> ValidPart:
    """Read the segment from its start and find how far it is valid.

    With `span`, only that part of it; positions in the result stay those in the file.
    Raises OffsetOverflowError for a valid batch that is out of reach of the base offset: Kafka then
    splits the segment, since truncating it would lose valid batches.
    """
    if span is None:
        span = SegmentSpan(view.base_offset, 0, view.size_bytes)
    return _Check(view, interval_bytes, on_batch, span).run()


class _Check:
    def __init__(
        self, view: SegmentView, interval_bytes: int, on_batch: OnBatch, span: SegmentSpan
    ) -> None:
        self._view = view
        self._on_batch = on_batch
        self._base_offset = span.base_offset
        self._index = IndexBuilder(span.base_offset, interval_bytes)
        self._position = span.start
        self._end = min(span.end, span.start + POSITION_MAX)
        self._next_offset = span.base_offset
        self._leader_epoch = NO_LEADER_EPOCH
        self._batches = 0

    def run(self) -> ValidPart:
        view, corruption, end = self._view, None, self._end
        try:
            while self._position < end:
                for loaded in view.batches(self._position, end, expected_offset=self._next_offset):
                    self._take(loaded)
                    if is_bulk_worth_it(self._batches, self._position, end):
                        self._take_in_bulk(end)
                        break
        except (UnsupportedError, LimitExceededError):
            raise  # the bytes are valid: other versions can read them
        except CorruptError as error:
            corruption = error
        self._index.finish()
        return ValidPart(self._index, self._position, self._next_offset, corruption)

    def _take(self, loaded: LoadedBatch) -> None:
        header, size_bytes = loaded.header, loaded.entry.size_bytes
        last_offset = header.last_offset
        if last_offset - self._base_offset > RELATIVE_OFFSET_MAX:
            self._check_next(loaded)
            raise OffsetOverflowError(last_offset, base_offset=self._base_offset)
        self._index.add(loaded.position, size_bytes, last_offset, header.max_timestamp)
        self._position += size_bytes
        self._next_offset = last_offset + 1
        self._batches += 1
        if isinstance(header, BatchHeader):
            epoch, self._leader_epoch = self._leader_epoch, header.partition_leader_epoch
            if header.has_producer or epoch != self._leader_epoch:
                self._on_batch(loaded)

    def _check_next(self, loaded: LoadedBatch) -> None:
        """Check a batch with a high base offset against the next batch. No CRC covers a base
        offset: if the next batch has lower offsets, this one is corrupt, and the segment is not
        split."""
        position = loaded.position + loaded.entry.size_bytes
        following = self._view.file.peek(position) if position < self._end else None
        if following is None or not self._view.is_valid(position):
            return
        if self._next_offset <= following.base_offset <= loaded.header.last_offset:
            raise CorruptBatchError(
                f"the batch has offset {loaded.entry.offset}, but the one after it has offset "
                f"{following.base_offset}",
                position=loaded.position,
                path=self._view.path,
                offsets=(loaded.entry.offset, loaded.header.last_offset),
            )

    def _take_in_bulk(self, end: int) -> None:
        """Check whole windows of batches, up to one with an invalid batch."""
        from stratalog.format.batch_table import (  # noqa: PLC0415 - loads kernels
            add_batches,
            check_crcs,
            scan_batches,
        )

        while self._position < end:
            start = self._position
            window = self._view.file.read(start, min(WINDOW_BYTES, end - start))
            table = scan_batches(window)
            rows = table.rows
            good = count_true(self._are_in_order(rows) & check_crcs(window, table))
            if not good:
                return
            rows = rows[:good]
            self._report(window, rows)
            add_batches(self._index, rows, start)
            self._position = start + int(rows["position"][-1]) + int(rows["size_bytes"][-1])
            self._next_offset = int(rows["last_offset"][-1]) + 1
            self._batches += good
            if good < len(table):
                return

    def _are_in_order(self, rows: NDArray[Any]) -> NDArray[np.bool_]:
        from stratalog.format.batch_table import first_offsets, fits_segment  # noqa: PLC0415

        in_order = fits_segment(rows, self._base_offset)
        in_order &= (rows["magic"] != MAGIC_2) | (rows["record_count"] >= 0)
        first = first_offsets(rows)
        in_order[:1] &= first[:1] >= self._next_offset
        in_order[1:] &= first[1:] > rows["last_offset"][:-1]
        return in_order

    def _report(self, window: bytes, rows: NDArray[Any]) -> None:
        import numpy as np  # noqa: PLC0415 - loaded with the kernels

        rows = rows[rows["magic"] == MAGIC_2]
        epochs = rows["partition_leader_epoch"]
        is_news = rows["producer_id"] >= 0
        is_news[:1] |= epochs[:1] != self._leader_epoch
        is_news[1:] |= epochs[1:] != epochs[:-1]
        for row in rows[np.flatnonzero(is_news)]:
            at, size_bytes = int(row["position"]), int(row["size_bytes"])
            entry = Entry(at, int(row["base_offset"]), size_bytes, MAGIC_2)
            header = BatchHeader.unpack(window, at)
            self._on_batch(LoadedBatch(self._position + at, window, entry, header))
        if len(epochs):
            self._leader_epoch = int(epochs[-1])
