"""The transaction markers in a run of batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.errors import CorruptError
from stratalog.format.control import read_control_key
from stratalog.format.entry import records_of

if TYPE_CHECKING:
    from stratalog.format.control import ControlType
    from stratalog.maintenance.cleaning.batch_runs import BatchRun


def marker_of(run: BatchRun, row: int) -> ControlType | None:
    """What the control batch in this row says; None for one that was emptied."""
    entry = run.entry(row)
    try:
        record = next(records_of(run.buf, entry, check_crc=False), None)
        return None if record is None else read_control_key(record, position=entry.position).type
    except CorruptError as error:
        raise error.located(run.path, buffer_start=run.start) from None
