"""The contents of `.index` and `.timeindex` files as values, each checked against the log.

Entries are read as they are stored, up to the zero tail of a preallocated file: the first slot
after slot 0 whose offset is the base offset. What the log does not bear out goes into the report;
an entry that leads nowhere at all is an error, and ends the file.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stratalog.errors import CorruptError, CorruptIndexError
from stratalog.format import offset_index, time_index
from stratalog.format.batch import NO_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.format.offset_index import OffsetEntry
    from stratalog.format.time_index import TimeEntry
    from stratalog.maintenance.dump.log_headers import LogHeaders
    from stratalog.maintenance.dump.report import DumpReport


@contextmanager
def _at_slot(slot: int, entry_bytes: int) -> Iterator[None]:
    """Errors are told for the entry that led to them."""
    try:
        yield
    except CorruptError as error:
        raise CorruptIndexError(error.reason, position=slot * entry_bytes) from None


@dataclass(frozen=True)
class SegmentIndexes:
    """The bytes of a segment's indexes and the log they speak of.

    Without a log nothing can be checked, and entries are only listed.
    """

    base_offset: int
    log: LogHeaders | None
    offset_index: bytes = b""
    time_index: bytes = b""

    def offset_entries(
        self, path: str, bytes_max: int, report: DumpReport
    ) -> Iterator[OffsetEntry]:
        """Entries of `.index`. A batch must end within `bytes_max` bytes of where it starts."""
        name = report.absolute(path)
        slots = len(self.offset_index) // offset_index.ENTRY_BYTES
        entries = offset_index.read_entries(self.offset_index, slots, self.base_offset)
        for slot, entry in enumerate(entries):
            if slot and entry.offset == self.base_offset:
                return
            if self.log is not None:
                with _at_slot(slot, offset_index.ENTRY_BYTES):
                    found = self.log.at(entry.position, bytes_max).last_offset
                if found != entry.offset:
                    report.index_mismatches[name].add(entry.offset, found)
            yield entry

    def time_entries(self, path: str, report: DumpReport) -> Iterator[TimeEntry]:
        """Entries of `.timeindex`."""
        slots = len(self.time_index) // time_index.ENTRY_BYTES
        before = NO_TIMESTAMP
        entries = time_index.read_entries(self.time_index, slots, self.base_offset)
        for slot, entry in enumerate(entries):
            if slot and entry.offset == self.base_offset:
                return
            if self.log is not None:
                with _at_slot(slot, time_index.ENTRY_BYTES):
                    self._check_time(entry, before, report.absolute(path), report)
            yield entry
            before = entry.timestamp

    def _check_time(self, entry: TimeEntry, before: int, name: str, report: DumpReport) -> None:
        assert self.log is not None
        slots = len(self.offset_index) // offset_index.ENTRY_BYTES
        # A trace makes the search Kafka's own, which matters where entries are not in order.
        hit = offset_index.lookup(
            self.offset_index, slots, self.base_offset, entry.offset, trace=[]
        )
        batch = self.log.first_ending_at_or_after(entry.offset, hit.position)
        if batch is None:
            report.offsets_not_found[name].add(entry.offset, -1)
            return
        if batch.last_offset != entry.offset:
            report.offsets_not_found[name].add(entry.offset, batch.last_offset)
            return
        newest = self.log.max_timestamp(batch)
        if newest != entry.timestamp:
            report.time_mismatches[name].add(entry.timestamp, newest)
        if before >= entry.timestamp:
            report.time_disorders[name].add(entry.timestamp, before)
