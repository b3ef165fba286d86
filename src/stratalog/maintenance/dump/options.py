"""What to dump of a file and how: the options of Kafka's tool, and filters it does not have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from stratalog.format.offset_index import OffsetEntry
from stratalog.format.snapshot import ProducerEntry
from stratalog.format.time_index import TimeEntry
from stratalog.maintenance.dump.decoders import (
    FORMATS,
    UTF_8,
    Format,
    PlainDecoder,
    RecordDecoder,
)

if TYPE_CHECKING:
    from stratalog.format.entry import EntryHeader
    from stratalog.format.record import Record
    from stratalog.format.txn_index import AbortedTxn

MAX_BYTES_DEFAULT: Final = (1 << 31) - 1
MESSAGE_BYTES_MAX_DEFAULT: Final = 5 << 20


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


@dataclass(frozen=True)
class DumpOptions:
    """Names follow Kafka's flags."""

    print_data: bool = False
    deep_iteration: bool = False
    verify_index_only: bool = False
    index_sanity_check: bool = False
    skip_record_metadata: bool = False
    max_bytes: int = MAX_BYTES_DEFAULT
    max_message_bytes: int = MESSAGE_BYTES_MAX_DEFAULT
    decoder: RecordDecoder = field(default_factory=PlainDecoder)
    header_format: Format = FORMATS[UTF_8]
    """Of header values, which only JSON shows."""
    notices: tuple[str, ...] = ()
    """Printed ahead of each log: the tool's remarks on decoders named by their old class."""
    filters: Filters = field(default_factory=Filters)
    is_bulk: bool | None = None
    """Whether compiled kernels render logs; None: where that is faster. The text is the same."""
    limit: int | None = None
    """Of records, or of batches when records are not looked at, or of entries; over a whole run."""

    @property
    def is_deep(self) -> bool:
        """Whether records are decoded: printing data needs it, and so does looking for a key."""
        return self.deep_iteration or self.print_data or self.filters.key is not None

    @property
    def is_whole(self) -> bool:
        """Whether logs are read to their end, so that trailing bytes are worth a word."""
        return self.max_bytes == MAX_BYTES_DEFAULT
