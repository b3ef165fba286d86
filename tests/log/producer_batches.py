"""Headers of producers' batches, and an appender that does with them what a log does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stratalog.errors import AppendError
from stratalog.format.batch import NO_SEQUENCE, BatchHeader, attributes_of
from stratalog.format.control import ControlType, EndMarker
from stratalog.log.offset_assignment import AppendOrigin

if TYPE_CHECKING:
    from stratalog.log.producer_state_manager import CheckedAppend, ProducerStateManager
    from stratalog.log.producer_transitions import CompletedTxn

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
PRODUCER_ID = 1001


def data(
    offset: int,
    sequence: int,
    count: int = 1,
    *,
    producer_id: int = PRODUCER_ID,
    epoch: int = 0,
    is_transactional: bool = False,
    timestamp: int = NOW_MS,
) -> BatchHeader:
    """A batch of `count` records. Sizes and CRC are of no concern to producer state."""
    return BatchHeader(
        base_offset=offset,
        batch_length=49,
        partition_leader_epoch=0,
        magic=2,
        crc=0,
        attributes=attributes_of(is_transactional=is_transactional),
        last_offset_delta=count - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=count,
    )


def txn_data(
    offset: int, sequence: int, count: int = 1, *, producer_id: int = PRODUCER_ID, epoch: int = 0
) -> BatchHeader:
    return data(
        offset, sequence, count, producer_id=producer_id, epoch=epoch, is_transactional=True
    )


def plain(offset: int, count: int = 1) -> BatchHeader:
    """A batch without a producer id."""
    return data(offset, NO_SEQUENCE, count, producer_id=-1, epoch=-1)


def control(
    offset: int, *, producer_id: int = PRODUCER_ID, epoch: int = 0, timestamp: int = NOW_MS
) -> BatchHeader:
    """The batch of a marker."""
    header = data(offset, NO_SEQUENCE, producer_id=producer_id, epoch=epoch, timestamp=timestamp)
    return header._replace(attributes=attributes_of(is_transactional=True, is_control=True))


def commit(coordinator_epoch: int = 0) -> EndMarker:
    return EndMarker(ControlType.COMMIT, coordinator_epoch)


def abort(coordinator_epoch: int = 0) -> EndMarker:
    return EndMarker(ControlType.ABORT, coordinator_epoch)


def append(
    manager: ProducerStateManager,
    header: BatchHeader,
    origin: AppendOrigin = AppendOrigin.CLIENT,
    *,
    transaction_version: int = 0,
) -> CheckedAppend:
    """Check, write (in thought), update."""
    checked = manager.check([header], origin, transaction_version=transaction_version)
    if checked.duplicate is None:
        manager.update(checked)
        manager.map_end_offset = header.next_offset
    return checked


def end(
    manager: ProducerStateManager,
    header: BatchHeader,
    marker: EndMarker,
    *,
    origin: AppendOrigin = AppendOrigin.COORDINATOR,
    transaction_version: int = 0,
) -> CompletedTxn | None:
    """Append a marker; the transaction that it ended."""
    checked = manager.check(
        [header],
        origin,
        markers={header.base_offset: marker},
        transaction_version=transaction_version,
    )
    completed = manager.update(checked)
    manager.map_end_offset = header.next_offset
    return completed[0] if completed else None


def refused(
    manager: ProducerStateManager, header: BatchHeader, origin: AppendOrigin = AppendOrigin.CLIENT
) -> AppendError:
    """The error of an append, which must leave everything as it was."""
    before = (dict(manager.producers), manager.snapshot(), manager.first_unstable_offset(0))
    with pytest.raises(AppendError) as caught:
        manager.check([header], origin, markers={header.base_offset: commit()})
    assert (
        dict(manager.producers),
        manager.snapshot(),
        manager.first_unstable_offset(0),
    ) == before
    return caught.value
