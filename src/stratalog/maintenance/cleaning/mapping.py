"""The first pass of a round: the last offset of each key in the dirty part of a log.

Records without a key, markers and what was aborted have no say.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from stratalog.format.batch import CONTROL_BIT, TRANSACTIONAL_BIT
from stratalog.format.entry import records_of
from stratalog.maintenance.cleaning.cleaned_transactions import CleanedTransactions
from stratalog.maintenance.cleaning.markers import marker_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from stratalog.format.control import ControlType
    from stratalog.maintenance.cleaning.batch_runs import BatchReader, BatchRun
    from stratalog.maintenance.cleaning.offset_map import HashedKeys, OffsetMap
    from stratalog.maintenance.cleaning.sources import Source


def map_keys(
    offset_map: OffsetMap,
    sources: Sequence[Source],
    first_dirty_offset: int,
    reader: BatchReader,
    on_progress: Callable[[int], None],
) -> None:
    """Fill the map from the sources, which begin with the one that holds the first dirty offset.

    Ends early when the map is full; `latest_offset` tells how far it came, else it is the end of
    the last source.
    """
    offset_map.clear(first_dirty_offset)
    transactions = CleanedTransactions()
    with _Putting(offset_map) as putting:
        for source in sources:
            transactions.add_aborted(source.aborted)
            for run in source.runs(reader):
                putting.put(run, transactions, first_dirty_offset)
                on_progress(int(run.rows["size_bytes"].sum(dtype=np.int64)))
                if offset_map.is_full:
                    return
            putting.wait()
            if offset_map.is_full:
                return
            offset_map.skip_to(source.end_offset)


class _Putting:
    """Puts runs into a map: the keys of one while those of the next are hashed."""

    def __init__(self, offset_map: OffsetMap) -> None:
        self._map = offset_map
        self._thread = ThreadPoolExecutor(1, "put-keys")
        self._going_on: Future[None] | None = None

    def __enter__(self) -> _Putting:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def put(self, run: BatchRun, transactions: CleanedTransactions, first_dirty: int) -> None:
        """The map may not have them before `wait`, or the next call, returns."""
        keys = hashed_run(self._map, run, transactions, first_dirty)
        self.wait()
        if self._map.is_full:
            return
        if keys is None:
            put_legacy(self._map, run, first_dirty)
        else:
            self._going_on = self._thread.submit(self._map.put_hashed, keys)

    def wait(self) -> None:
        going_on, self._going_on = self._going_on, None
        if going_on is not None:
            going_on.result()


def put_run(
    offset_map: OffsetMap, run: BatchRun, transactions: CleanedTransactions, first_dirty: int
) -> None:
    """Put in the records of a run that count, until the map is full."""
    keys = hashed_run(offset_map, run, transactions, first_dirty)
    if keys is None:
        put_legacy(offset_map, run, first_dirty)
    else:
        offset_map.put_hashed(keys)


def hashed_run(
    offset_map: OffsetMap, run: BatchRun, transactions: CleanedTransactions, first_dirty: int
) -> HashedKeys | None:
    """The keys of a run that count; None for a run of the old formats."""
    if run.payloads is None:
        return None
    rows = run.rows
    is_wanted = (rows["attributes"] & CONTROL_BIT == 0) & (rows["last_offset"] >= first_dirty)
    for event in events_of(run):
        if event.apply(transactions):
            is_wanted[event.row] = False
    keys = offset_map.hashed(rows, run.payloads, is_wanted)
    if isinstance(keys, int):
        run.raise_for(keys)
    return keys


class TxnEvent(NamedTuple):
    """A batch that takes part in a transaction."""

    row: int
    producer_id: int
    last_offset: int
    is_control: bool
    marker: ControlType | None

    def apply(self, transactions: CleanedTransactions) -> bool:
        """Tell them of it: whether they have no more use for the batch."""
        if self.is_control:
            return transactions.on_control(self.producer_id, self.last_offset, self.marker)
        return transactions.on_data(self.producer_id, self.last_offset, is_transactional=True)


def events_of(run: BatchRun) -> Iterator[TxnEvent]:
    """The batches of a run that take part in transactions, in order."""
    if run.payloads is None:  # of the old formats: they know no transactions
        return
    rows = run.rows
    takes_part: NDArray[np.bool_] = rows["attributes"] & (TRANSACTIONAL_BIT | CONTROL_BIT) != 0
    for row in np.flatnonzero(takes_part).tolist():
        is_control = bool(rows["attributes"][row] & CONTROL_BIT)
        marker = marker_of(run, row) if is_control else None
        producer_id, last_offset = int(rows["producer_id"][row]), int(rows["last_offset"][row])
        yield TxnEvent(row, producer_id, last_offset, is_control, marker)


def put_legacy(offset_map: OffsetMap, run: BatchRun, first_dirty: int) -> None:
    """Messages of the old formats one by one: they are few by now."""
    for row in range(len(run.rows)):
        for record in records_of(run.buf, run.entry(row)):
            if record.key is None or record.offset < first_dirty:
                continue
            if not offset_map.put(record.key, record.offset):
                return
        last_offset = int(run.rows["last_offset"][row])
        if last_offset >= first_dirty:
            offset_map.skip_to(last_offset + 1)
