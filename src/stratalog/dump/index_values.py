"""Batches of a `.log` file by position, headers only: what index entries are checked against."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from stratalog.errors import CorruptError, CorruptIndexError
from stratalog.format import offset_index, time_index
from stratalog.format.batch import (
    CLASSIFY_BYTES,
    HEADER_BYTES,
    LEGACY_MESSAGE_BYTES_MIN,
    MAGIC_2,
    MAGIC_AT,
    NO_TIMESTAMP,
    PREFIX_BYTES,
    BatchHeader,
    Entry,
)
from stratalog.format.entry import records_of
from stratalog.format.varint import wrapped_long

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stratalog.dump.report import DumpReport
    from stratalog.format.offset_index import OffsetEntry
    from stratalog.format.time_index import TimeEntry
    from stratalog.storage.log_file import LogFile

BATCH_BYTES_MAX: Final = 128 << 20


class BatchPosition(NamedTuple):
    """Where a batch lies and where it ends."""

    position: int
    size_bytes: int
    last_offset: int


class LogHeaders:
    """A `.log` file as an index refers to it: by position."""

    def __init__(self, file: LogFile) -> None:
        self._file = file
        self._size_bytes = file.size_bytes
        self._found_from = -1
        self._found: BatchPosition | None = None
        self._past_from = self._size_bytes
        self._past_offset = -1

    def at(self, position: int, bytes_max: int) -> BatchPosition:
        """The batch that starts at `position` and ends within `bytes_max` bytes."""
        if position < 0:
            raise CorruptIndexError(f"index points to position {position}")
        if position > self._size_bytes:
            raise CorruptIndexError(
                f"index points to position {position}, past the {self._size_bytes} bytes of the log"
            )
        seen = self._read(position, min(self._size_bytes, position + bytes_max))
        if seen is None:
            raise CorruptIndexError(
                f"index points to position {position}, where no whole batch of at most "
                f"{bytes_max} bytes lies"
            )
        return seen

    def first_ending_at_or_after(self, offset: int, position: int) -> BatchPosition | None:
        """The first batch from `position` on whose last offset is at least `offset`.

        Entries come in order and mostly far apart, but a missing or damaged `.index` sends every
        search to the start of the log: then it goes on from where the last one ended.
        """
        if position < 0 or position > self._size_bytes:
            raise CorruptIndexError(f"offset index points to position {position}")
        if position >= self._past_from and offset > self._past_offset:
            return None
        start, found = position, self._found
        if found and self._found_from == position and offset >= found.last_offset:
            start = found.position
        highest = self._past_offset
        for seen in self._walk(start):
            if seen.last_offset >= offset:
                self._found_from, self._found = position, seen
                return seen
            highest = max(highest, seen.last_offset)
        if position <= self._past_from:
            self._past_from, self._past_offset = position, highest
        return None

    def max_timestamp(self, seen: BatchPosition) -> int:
        """Of the batch's records; -1 when it has none."""
        if seen.size_bytes > BATCH_BYTES_MAX:
            raise CorruptIndexError(f"batch of {seen.size_bytes} bytes at {seen.position}")
        data = self._file.read(seen.position, seen.size_bytes)
        entry = Entry(0, seen.last_offset, len(data), data[MAGIC_AT] if len(data) > MAGIC_AT else 0)
        records = records_of(data, entry, check_crc=False)
        return max((record.timestamp for record in records), default=NO_TIMESTAMP)

    def _walk(self, position: int) -> Iterator[BatchPosition]:
        while (seen := self._read(position, self._size_bytes)) is not None:
            yield seen
            position += seen.size_bytes

    def _read(self, position: int, end: int) -> BatchPosition | None:
        """As Kafka reads a batch of a file: None when it does not end by `end`."""
        if end - position <= CLASSIFY_BYTES:
            return None
        data = self._file.read(position, HEADER_BYTES)
        if len(data) <= CLASSIFY_BYTES:
            return None
        offset = int.from_bytes(data[:8], signed=True)
        length = int.from_bytes(data[8:PREFIX_BYTES], signed=True)
        if length < LEGACY_MESSAGE_BYTES_MIN:
            raise CorruptIndexError(f"batch length at position {position} is {length}")
        size = PREFIX_BYTES + length
        if size > end - position:
            return None
        if not MAGIC_2 <= data[MAGIC_AT] < 0x80:
            return BatchPosition(position, size, offset)
        if len(data) < HEADER_BYTES:
            raise CorruptIndexError(f"log ends inside the batch header at position {position}")
        return BatchPosition(position, size, wrapped_long(BatchHeader.unpack(data).last_offset))


# The contents of `.index` and `.timeindex` files as values, each checked against the log.
#
# Entries are read as they are stored, up to the zero tail of a preallocated file: the first slot
# after slot 0 whose offset is the base offset. What the log does not bear out goes into the
# report; an entry that leads nowhere at all is an error, and ends the file.


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
