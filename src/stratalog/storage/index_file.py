"""The two sparse indexes of the active segment, as their only writer sees them.

Mechanics that both share: the file has its full size while the segment is active, mapped, zeros
behind the entries; `trim` cuts it to its entries for good. An entry is stored with one `pack_into`.
Space on disk is taken some entries ahead, because a mapped write without it would be a SIGBUS.

Invariants:

* `entries` grows only after the entry is in memory, so other threads may look up at any time. An
  entry may be ahead of the log and be taken back; nobody looks for offsets that are not published;
* the file is never cut below `entries` while somebody may look up: `truncate_to` zeroes instead;
* a full index takes no more entries. The next append to the log rolls, and until then a search ends
  at the last entry and scans on: correct, only slower.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Final

from stratalog.errors import CorruptIndexError
from stratalog.format import offset_index, time_index

if TYPE_CHECKING:
    from pathlib import Path

    from stratalog.format.offset_index import OffsetHit
    from stratalog.format.time_index import TimeHit
    from stratalog.storage.disk import Disk

FIRST_RESERVE_BYTES: Final = 4096
RESERVE_BYTES: Final = 16 * 1024

# The layout is the format's (`OffsetEntry.pack`, `TimeEntry.pack`); these store it in place.
_pack_offset_entry = struct.Struct(">ii").pack_into
_pack_time_entry = struct.Struct(">qi").pack_into


class IndexFile(ABC):
    """An index file, mapped at its full size. Created if it is not there."""

    entry_bytes: ClassVar[int]

    def __init__(self, disk: Disk, path: Path, base_offset: int, bytes_max: int) -> None:
        """`bytes_max` is rounded down to whole entries; a file that has more entries keeps them."""
        self.path = path
        self.base_offset = base_offset
        self._disk = disk
        slots, partial_bytes = divmod(disk.size_of(path) or 0, self.entry_bytes)
        slots_max = bytes_max // self.entry_bytes
        if partial_bytes:
            disk.truncate(path, slots * self.entry_bytes)
        self.buffer = disk.map_file(path, max(slots, slots_max) * self.entry_bytes)
        self.entries = self._count_entries()
        if not self.entries and slots == 1 < slots_max:
            self.entries = 1  # trimmed to one entry whose bytes are all zero
        self.entries_max = max(slots_max, self.entries)
        self._tail_bytes = (slots - self.entries) * self.entry_bytes
        self.entries_reserved = self.entries
        self._reserved_bytes = self.used_bytes
        self._load_last()

    @abstractmethod
    def _count_entries(self) -> int: ...

    @abstractmethod
    def entries_below(self, offset: int) -> int:
        """How many entries have smaller offsets."""

    @abstractmethod
    def _load_last(self) -> None:
        """Remember the last entry."""

    @property
    @abstractmethod
    def is_full(self) -> bool:
        """Whether the segment must roll before the next append."""

    @property
    def used_bytes(self) -> int:
        return self.entries * self.entry_bytes

    def reserve(self) -> None:
        """Make sure that the next entries find space on disk. Raises StorageError."""
        start = self._reserved_bytes
        step = RESERVE_BYTES if start else FIRST_RESERVE_BYTES
        end = min(start // step * step + step, len(self.buffer))
        if end > start:
            self._disk.reserve(self.path, start, end)
            self._reserved_bytes = end
            self.entries_reserved = end // self.entry_bytes

    def truncate_to(self, offset: int) -> None:
        """Keep the entries below `offset`."""
        keep = self.entries_below(offset)
        if keep < self.entries:
            start, end = keep * self.entry_bytes, self.used_bytes
            self.entries = keep
            self.buffer[start:end] = bytes(end - start)
        self._load_last()

    def trim(self) -> None:
        """Cut the file to its entries. Nothing may be appended afterwards; look-ups go on."""
        self._disk.truncate(self.path, self.used_bytes)
        self.entries_max = self.entries_reserved = self.entries

    def _check_tail(self) -> None:
        """Raise CorruptIndexError unless zeros followed the entries when the file was opened."""
        start = self.used_bytes
        tail = bytes(self.buffer[start : start + self._tail_bytes])
        if tail.count(0) != len(tail):
            reason = f"bytes other than zero follow {self.entries} entries"
            raise CorruptIndexError(reason, position=start, path=self.path)

    def flush(self) -> None:
        self._disk.fsync(self.path)


class OffsetIndexFile(IndexFile):
    """`.index`: last offset of a batch, and where the batch starts."""

    entry_bytes = offset_index.ENTRY_BYTES

    last_offset: int
    """Of the last entry; the base offset while there is none."""

    def _count_entries(self) -> int:
        return offset_index.count_valid_entries(self.buffer)

    def entries_below(self, offset: int) -> int:
        return offset_index.entries_below(self.buffer, self.entries, self.base_offset, offset)

    def _load_last(self) -> None:
        last = self.lookup(offset_index.RELATIVE_OFFSET_MAX + self.base_offset)
        self.last_offset = last.offset

    @property
    def is_full(self) -> bool:
        return self.entries >= self.entries_max

    def append(self, offset: int, position: int) -> None:
        """Raises StorageError when there is no space. A full index takes nothing."""
        entries = self.entries
        if entries >= self.entries_reserved:
            if entries >= self.entries_max:
                return
            self.reserve()
        if offset <= self.last_offset and entries:
            raise ValueError(f"offset {offset} is not above {self.last_offset}")
        _pack_offset_entry(self.buffer, entries * 8, offset - self.base_offset, position)
        self.last_offset = offset
        self.entries = entries + 1

    def lookup(self, target: int) -> OffsetHit:
        """The greatest entry at or below the offset `target`; with none, (base offset, 0)."""
        entries = self.entries
        return offset_index.lookup(self.buffer, entries, self.base_offset, target)

    def check(self, *, log_bytes: int, next_offset: int) -> None:
        """Raise CorruptIndexError unless a log that ends there can have these entries.

        To be called before anything is appended.
        """
        self._check_tail()
        offset_index.check_entries(self.buffer, self.entries, log_bytes=log_bytes)
        if self.entries and self.last_offset >= next_offset:
            raise CorruptIndexError(f"offset {self.last_offset} lies past the log", path=self.path)


class TimeIndexFile(IndexFile):
    """`.timeindex`: the largest timestamp so far, and the last offset of the batch that has it."""

    entry_bytes = time_index.ENTRY_BYTES

    last_timestamp: int
    """Of the last entry; -1 while there is none."""
    last_offset: int

    def _count_entries(self) -> int:
        return time_index.count_valid_entries(self.buffer)

    def entries_below(self, offset: int) -> int:
        return time_index.entries_below(self.buffer, self.entries, self.base_offset, offset)

    def _load_last(self) -> None:
        last = time_index.last_entry(self.buffer, self.entries, self.base_offset)
        self.last_timestamp, self.last_offset = last

    @property
    def is_full(self) -> bool:
        """One slot is kept for the entry that closes the segment."""
        return self.entries >= self.entries_max - 1

    def append(self, timestamp: int, offset: int, *, is_closing: bool = False) -> None:
        """Takes the entry if it is newer than the last. Raises StorageError when there is no space.

        A full index takes nothing, but has one slot left for the entry that closes the segment.
        Space for that slot is taken in advance, so closing does not fail on a full disk.
        """
        entries = self.entries
        if timestamp <= self.last_timestamp:
            return
        if entries + 1 >= self.entries_reserved:
            if entries >= self.entries_max - (not is_closing):
                return
            if not is_closing or entries >= self.entries_reserved:
                self.reserve()
        if offset < self.last_offset and entries:
            raise ValueError(f"offset {offset} is below {self.last_offset}")
        _pack_time_entry(self.buffer, entries * 12, timestamp, offset - self.base_offset)
        self.last_timestamp, self.last_offset = timestamp, offset
        self.entries = entries + 1

    def lookup(self, target: int) -> TimeHit:
        """The greatest entry at or below the timestamp `target`; with none, (-1, base offset)."""
        entries = self.entries
        return time_index.lookup(self.buffer, entries, self.base_offset, target)

    def check(self, *, next_offset: int) -> None:
        """Raise CorruptIndexError unless a log that ends there can have these entries.

        To be called before anything is appended.
        """
        self._check_tail()
        time_index.check_entries(self.buffer, self.entries)
        if self.entries and self.last_offset >= next_offset:
            raise CorruptIndexError(f"offset {self.last_offset} lies past the log", path=self.path)
