"""Which batches, records and entries somebody wants to see, by what is in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratalog.format.offset_index import OffsetEntry
from stratalog.format.snapshot import ProducerEntry
from stratalog.format.time_index import TimeEntry

if TYPE_CHECKING:
    from stratalog.format.entry import EntryHeader
    from stratalog.format.record import Record
    from stratalog.format.txn_index import AbortedTxn


@dataclass(frozen=True)
class Filters:
    """What to show. A bound that is None does not bind; upper bounds are exclusive."""

    offset_min: int | None = None
    offset_end: int | None = None
    timestamp_min: int | None = None
    timestamp_end: int | None = None
    key: bytes | None = None
    producer_id: int | None = None

    @property
    def binds_batches(self) -> bool:
        """Whether there may be batches that do not pass."""
        return self.binds_records or self.producer_id is not None

    @property
    def binds_records(self) -> bool:
        """Whether a batch that passes may still hold records that do not."""
        bounds = (self.offset_min, self.offset_end, self.timestamp_min, self.timestamp_end)
        return self.key is not None or any(bound is not None for bound in bounds)

    def may_hold(self, header: EntryHeader) -> bool:
        """Whether a batch with this header may hold records that pass.

        A header bounds timestamps from above only (the base timestamp may be a delete horizon), and
        that of an old compressed set does not tell its first offset.
        """
        if self.producer_id is not None and header.producer_id != self.producer_id:
            return False
        if self.offset_min is not None and header.last_offset < self.offset_min:
            return False
        base_offset = -1 if header.base_offset is None else header.base_offset
        if self.offset_end is not None and base_offset >= self.offset_end:
            return False
        return self.timestamp_min is None or header.max_timestamp >= self.timestamp_min

    def accepts(self, record: Record) -> bool:
        """Whether a record of a batch that `may_hold` such passes."""
        return (
            (self.key is None or record.key == self.key)
            and self._accepts_offset(record.offset)
            and self._accepts_timestamp(record.timestamp)
        )

    def accepts_entry(self, entry: OffsetEntry | TimeEntry | ProducerEntry | AbortedTxn) -> bool:
        """Whether an entry of an index or a snapshot passes the bounds it can be held against."""
        if isinstance(entry, OffsetEntry):
            return self._accepts_offset(entry.offset)
        if isinstance(entry, TimeEntry):
            return self._accepts_offset(entry.offset) and self._accepts_timestamp(entry.timestamp)
        if self.producer_id is not None and entry.producer_id != self.producer_id:
            return False
        if isinstance(entry, ProducerEntry):
            return self._accepts_timestamp(entry.timestamp)
        return (self.offset_min is None or entry.last_offset >= self.offset_min) and (
            self.offset_end is None or entry.first_offset < self.offset_end
        )

    def _accepts_offset(self, offset: int) -> bool:
        return (self.offset_min is None or offset >= self.offset_min) and (
            self.offset_end is None or offset < self.offset_end
        )

    def _accepts_timestamp(self, timestamp: int) -> bool:
        return (self.timestamp_min is None or timestamp >= self.timestamp_min) and (
            self.timestamp_end is None or timestamp < self.timestamp_end
        )
