"""The first pass of a round: the last offset of each key in the dirty part of a log.

Records without a key, markers and what was aborted have no say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stratalog.format.entry import records_of
from stratalog.maintenance.cleaning.cleaned_transactions import CleanedTransactions
from stratalog.maintenance.cleaning.markers import marker_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from stratalog.maintenance.cleaning.batch_runs import BatchReader, BatchRun
    from stratalog.maintenance.cleaning.offset_map import OffsetMap
    from stratalog.maintenance.cleaning.sources import Source

_TRANSACTIONAL_BIT = 0x10
_CONTROL_BIT = 0x20


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
    for source in sources:
        transactions.add_aborted(source.aborted)
        for run in source.runs(reader):
            _put(offset_map, run, transactions, first_dirty_offset)
            on_progress(int(run.rows["size_bytes"].sum(dtype=np.int64)))
            if offset_map.is_full:
                return
        offset_map.skip_to(source.end_offset)


def _put(
    offset_map: OffsetMap, run: BatchRun, transactions: CleanedTransactions, first_dirty: int
) -> None:
    if run.payloads is None:
        _put_legacy(offset_map, run, first_dirty)
        return
    rows = run.rows
    is_wanted = _is_data(run, transactions) & (rows["last_offset"] >= first_dirty)
    bad = offset_map.put_batches(rows, run.payloads, is_wanted)
    if bad is not None:
        run.raise_for(bad)


def _is_data(run: BatchRun, transactions: CleanedTransactions) -> NDArray[np.bool_]:
    """Which batches hold records that count: neither markers nor aborted."""
    rows = run.rows
    attributes = rows["attributes"]
    is_data: NDArray[np.bool_] = attributes & _CONTROL_BIT == 0
    takes_part = attributes & (_TRANSACTIONAL_BIT | _CONTROL_BIT) != 0
    for row in np.flatnonzero(takes_part).tolist():
        producer_id, last_offset = int(rows["producer_id"][row]), int(rows["last_offset"][row])
        if is_data[row]:
            is_aborted = transactions.on_data(producer_id, last_offset, is_transactional=True)
            is_data[row] = not is_aborted
        else:
            transactions.on_control(producer_id, last_offset, marker_of(run, row))
    return is_data


def _put_legacy(offset_map: OffsetMap, run: BatchRun, first_dirty: int) -> None:
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
