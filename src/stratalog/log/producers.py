"""Producer state by replay: what each producer wrote last, and which transactions are open.

State is a function of the batches, so it is rebuilt by feeding them in log order to a replay that
starts from a snapshot. The transitions are those of a replica: they record what the log holds and
refuse nothing, because whoever wrote the log already decided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.format.batch import NO_SEQUENCE
from stratalog.format.control import ControlType
from stratalog.format.snapshot import NO_OFFSET, ProducerEntry
from stratalog.format.txn_index import VERSION, AbortedTxn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stratalog.format.batch import BatchHeader
    from stratalog.format.control import EndMarker

_NO_EPOCH = -1


class ProducerReplay:
    """Feed it every magic-2 batch that has a producer id, in log order."""

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self.producers = {entry.producer_id: entry for entry in entries}
        self.aborted: list[AbortedTxn] = []
        """Transactions whose ABORT marker was among the batches: the lines of a `.txnindex`."""

    @property
    def first_open_offset(self) -> int | None:
        """First offset of the oldest open transaction."""
        return min(self.open_transactions.values(), default=None)

    @property
    def open_transactions(self) -> dict[int, int]:
        """Producer id to the first offset of its open transaction."""
        return {
            entry.producer_id: entry.current_txn_first_offset
            for entry in self.producers.values()
            if entry.current_txn_first_offset >= 0
        }

    def add_data(self, header: BatchHeader) -> None:
        """A data batch of a producer."""
        entry = self._known(header)
        first_offset = entry.current_txn_first_offset
        if header.is_transactional and first_offset == NO_OFFSET:
            first_offset = header.base_offset
        self.producers[header.producer_id] = entry._replace(
            last_sequence=header.last_sequence,
            last_offset=header.last_offset,
            offset_delta=header.last_offset_delta,
            timestamp=header.max_timestamp,
            current_txn_first_offset=first_offset,
        )

    def add_marker(self, header: BatchHeader, marker: EndMarker) -> None:
        """The end of the producer's transaction."""
        entry = self._known(header)
        first_offset = entry.current_txn_first_offset
        self.producers[header.producer_id] = entry._replace(
            timestamp=header.max_timestamp,
            coordinator_epoch=marker.coordinator_epoch,
            current_txn_first_offset=NO_OFFSET,
        )
        if first_offset != NO_OFFSET and marker.type is ControlType.ABORT:
            self._note_abort(header, first_offset)

    def _note_abort(self, header: BatchHeader, first_offset: int) -> None:
        still_open = self.first_open_offset
        stable = header.last_offset + 1 if still_open is None else still_open
        self.aborted.append(
            AbortedTxn(VERSION, header.producer_id, first_offset, header.last_offset, stable)
        )

    def _known(self, header: BatchHeader) -> ProducerEntry:
        """The producer as known, without its batches if `header` brings another epoch."""
        entry = self.producers.get(header.producer_id)
        if entry is None:
            return _new_producer(header)
        if entry.producer_epoch == header.producer_epoch:
            return entry
        return _new_producer(header)._replace(
            timestamp=entry.timestamp,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_first_offset=entry.current_txn_first_offset,
        )


def _new_producer(header: BatchHeader) -> ProducerEntry:
    return ProducerEntry(
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        last_sequence=NO_SEQUENCE,
        last_offset=NO_OFFSET,
        offset_delta=0,
        timestamp=header.max_timestamp,
        coordinator_epoch=_NO_EPOCH,
        current_txn_first_offset=NO_OFFSET,
    )
