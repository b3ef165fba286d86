"""The indexes of a segment as their only writer sees them: both sparse ones, and `.txnindex`.

Both sparse indexes share these mechanics: while the segment is active the file is mapped at its
full size, with zeros after the entries; `trim` truncates it to its entries. One `pack_into` stores
one or many entries in place. Space on disk is reserved some entries ahead, because a mapped write
without it would be a SIGBUS.

Invariants:

* `entries` grows only after the entry is in memory, so other threads may search at any time. An
  entry may be ahead of the log and be removed again; nobody searches for unpublished offsets;
* the file is never truncated below `entries` while it may be searched: `truncate_to` zeroes it;
* a full index accepts no more entries. The next append to the log rolls, and until then a search
  ends at the last entry and scans on: correct, only slower.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from stratalog.errors import CorruptIndexError
from stratalog.format import offset_index, time_index, txn_index
from stratalog.format.txn_index import ENTRY_BYTES, AbortedTxn
from stratalog.storage.log_file import read_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stratalog.format.index_entries import IndexBuilder
    from stratalog.format.offset_index import OffsetIndexHit
    from stratalog.format.time_index import TimeEntry, TimeIndexHit
    from stratalog.format.txn_index import AbortedTxns
    from stratalog.storage.disk import Disk
    from stratalog.storage.segment_view import SegmentEnd

FIRST_RESERVE_BYTES: Final = 4096
RESERVE_BYTES: Final = 16 * 1024
PACKERS_MAX: Final = 256
_LAST: Final = 1 << 63

# The layouts of `OffsetEntry.pack` and `TimeEntry.pack`.
_OFFSET_ENTRY_BYTES: Final = offset_index.ENTRY_BYTES
_TIME_ENTRY_BYTES: Final = time_index.ENTRY_BYTES
_OFFSET_ENTRY: Final = "ii"
_TIME_ENTRY: Final = "qi"
_pack_offset_entry = struct.Struct(">" + _OFFSET_ENTRY).pack_into
_pack_time_entry = struct.Struct(">" + _TIME_ENTRY).pack_into


class IndexFile(ABC):
    """An index file, mapped at its full size. Created if it does not exist."""

    entry_bytes: ClassVar[int]
    layout: ClassVar[str]
    slots_kept: ClassVar[int] = 0
    """Slots that are reserved for the last entry of a segment."""

    def __init__(self, disk: Disk, path: Path, base_offset: int, bytes_max: int) -> None:
        """`bytes_max` is rounded down to complete entries; a file with more entries keeps them."""
        self.path = path
        self.base_offset = base_offset
        self._disk = disk
        slots, partial_bytes = divmod(disk.size_of(path) or 0, self.entry_bytes)
        slots_max = bytes_max // self.entry_bytes
        if partial_bytes:
            disk.truncate(path, slots * self.entry_bytes)
        # Read, not mapped: a file that was not trimmed has holes, and reading a hole through the
        # mapping allocates a page. On a full tmpfs that is a SIGBUS.
        content = read_file(path) if slots else b""
        self.buffer = disk.map_file(path, max(slots, slots_max) * self.entry_bytes)
        self.entries = self._count_entries(memoryview(content))
        if not self.entries and slots == 1 < slots_max:
            self.entries = 1  # trimmed to one entry whose bytes are all zero
        self.entries_max = max(slots_max, self.entries)
        self.entries_ready = 0
        """Up to this number of entries, no check for a free slot or for space is needed."""
        self.is_trimmed = False
        """Do not read `buffer` then: the next opening may truncate the file further."""
        self._reserved_bytes = self.used_bytes
        self._has_clean_tail = content.count(0, self.used_bytes) == len(content) - self.used_bytes
        self._packers: dict[int, Callable[..., None]] = {}

    @abstractmethod
    def _count_entries(self, content: memoryview) -> int: ...

    @abstractmethod
    def entries_below(self, offset: int) -> int:
        """How many entries have smaller offsets."""

    @property
    def is_full(self) -> bool:
        """Whether the segment must roll before the next append."""
        return self.entries >= self.entries_max - self.slots_kept

    @property
    def used_bytes(self) -> int:
        return self.entries * self.entry_bytes

    def extend(self, fields: list[int]) -> int:
        """Store entries, the two fields of one after those of another, as they are on disk.

        They must continue the order of the last entry. Returns how many there were slots for.
        Raises StorageError, and stores none, if there is no space on disk.
        """
        entries, count = self.entries, len(fields) >> 1
        if entries + count > self.entries_ready:
            count = self.make_ready(count)
            fields = fields[: 2 * count]
        if count:
            pack_into = self._packers.get(count) or self._packer(count)
            pack_into(self.buffer, entries * self.entry_bytes, *fields)
            self.entries = entries + count
        return count

    def _packer(self, count: int) -> Callable[..., None]:
        pack_into = struct.Struct(">" + self.layout * count).pack_into
        if len(self._packers) < PACKERS_MAX:
            self._packers[count] = pack_into
        return pack_into

    def make_ready(self, count: int) -> int:
        """Reserve space for `count` more entries, or as many as there are slots for."""
        slots = self.entries_max - self.slots_kept - self.entries
        count = max(0, min(count, slots))
        wanted = self.entries + count + self.slots_kept
        while wanted * self.entry_bytes > self._reserved_bytes and count:
            self.reserve()
        reserved = self._reserved_bytes // self.entry_bytes
        self.entries_ready = min(reserved, self.entries_max) - self.slots_kept
        return count

    def reserve(self) -> None:
        """Reserve some more space on disk. Raises StorageError."""
        start = self._reserved_bytes
        step = RESERVE_BYTES if start else FIRST_RESERVE_BYTES
        end = min(start // step * step + step, len(self.buffer))
        if end > start:
            self._disk.reserve(self.path, start, end)
            self._reserved_bytes = end

    def truncate_to(self, offset: int) -> None:
        """Keep the entries below `offset`."""
        keep = self.entries_below(offset)
        if keep < self.entries:
            start, end = keep * self.entry_bytes, self.used_bytes
            self.entries = keep
            self.buffer[start:end] = bytes(end - start)

    def trim(self) -> None:
        """Truncate the file to its entries. No appends afterwards; readers open the file instead of
        using `buffer`."""
        self._disk.truncate(self.path, self.used_bytes)
        self.entries_max = self.entries_ready = self.entries
        self.is_trimmed = True

    def _check_tail(self) -> None:
        """Raise CorruptIndexError unless zeros followed the entries when the file was opened."""
        if not self._has_clean_tail:
            reason = f"bytes other than zero follow {self.entries} entries"
            raise CorruptIndexError(reason, position=self.used_bytes, path=self.path)


class OffsetIndexFile(IndexFile):
    """`.index`: last offset of a batch, and where the batch starts."""

    entry_bytes = _OFFSET_ENTRY_BYTES
    layout = _OFFSET_ENTRY

    def _count_entries(self, content: memoryview) -> int:
        return offset_index.count_valid_entries(content)

    def entries_below(self, offset: int) -> int:
        return offset_index.entries_below(self.buffer, self.entries, self.base_offset, offset)

    @property
    def last_offset(self) -> int:
        """Last offset of the last entry; the base offset of an empty index."""
        return self.lookup(_LAST).offset

    def append(self, relative_offset: int, position: int) -> None:
        """`extend` for one entry."""
        entries = self.entries
        if entries >= self.entries_ready and not self.make_ready(1):
            return
        _pack_offset_entry(self.buffer, entries * _OFFSET_ENTRY_BYTES, relative_offset, position)
        self.entries = entries + 1

    def lookup(self, target: int) -> OffsetIndexHit:
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
            raise CorruptIndexError(
                f"offset {self.last_offset} is past the end of the log", path=self.path
            )


class TimeIndexFile(IndexFile):
    """`.timeindex`: the largest timestamp so far, and the last offset of the batch that has it.

    It is full when one slot is left, which is for the last entry of the segment.
    """

    entry_bytes = _TIME_ENTRY_BYTES
    layout = _TIME_ENTRY
    slots_kept = 1

    def __init__(self, disk: Disk, path: Path, base_offset: int, bytes_max: int) -> None:
        super().__init__(disk, path, base_offset, bytes_max)
        self.last_timestamp = self.last.timestamp
        """The timestamp of the last entry; -1 for an empty index. The next entry must have a larger
        one."""

    @property
    def last(self) -> TimeEntry:
        """The last entry; (-1, base offset) for an empty index."""
        return time_index.last_entry(self.buffer, self.entries, self.base_offset)

    def _count_entries(self, content: memoryview) -> int:
        return time_index.count_valid_entries(content)

    def entries_below(self, offset: int) -> int:
        return time_index.entries_below(self.buffer, self.entries, self.base_offset, offset)

    def extend(self, fields: list[int]) -> int:
        count = super().extend(fields)
        if count:
            self.last_timestamp = fields[2 * count - 2]
        return count

    def append(self, timestamp: int, relative_offset: int) -> None:
        """`extend` for one entry."""
        entries = self.entries
        if entries >= self.entries_ready and not self.make_ready(1):
            return
        _pack_time_entry(self.buffer, entries * _TIME_ENTRY_BYTES, timestamp, relative_offset)
        self.last_timestamp = timestamp
        self.entries = entries + 1

    def close_with(self, timestamp: int, offset: int) -> None:
        """The last entry of the segment, unless the index already ends with that timestamp.

        Its slot and, as a rule, its space are reserved: it hardly ever fails on a full disk.
        """
        if timestamp <= self.last_timestamp or self.entries >= self.entries_max:
            return
        if self.used_bytes + self.entry_bytes > self._reserved_bytes:
            self.reserve()
        _pack_time_entry(self.buffer, self.used_bytes, timestamp, offset - self.base_offset)
        self.last_timestamp = timestamp
        self.entries += 1

    def truncate_to(self, offset: int) -> None:
        super().truncate_to(offset)
        self.last_timestamp = self.last.timestamp

    def lookup(self, target: int) -> TimeIndexHit:
        """The greatest entry at or below the timestamp `target`; with none, (-1, base offset)."""
        entries = self.entries
        return time_index.lookup(self.buffer, entries, self.base_offset, target)

    def check(self, *, next_offset: int) -> None:
        """Raise CorruptIndexError unless a log that ends there can have these entries.

        To be called before anything is appended.
        """
        self._check_tail()
        time_index.check_entries(self.buffer, self.entries)
        if self.entries and self.last.offset >= next_offset:
            raise CorruptIndexError(
                f"offset {self.last.offset} is past the end of the log", path=self.path
            )


class TxnIndexFile:
    """`.txnindex`: the aborted transactions whose marker is in the segment.

    Aborts are rare and the file is small: it is opened for each entry and read as a whole. It
    exists only while it has entries.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path
        self._disk = disk

    def read(self) -> bytes:
        """The complete entries; empty if there is no file."""
        with suppress(FileNotFoundError):
            data = read_file(self.path)
            return data[: len(data) // ENTRY_BYTES * ENTRY_BYTES]
        return b""

    def collect(self, from_offset: int, to_offset: int) -> AbortedTxns:
        """The aborted transactions that touch [`from_offset`, `to_offset`)."""
        return txn_index.collect_aborted(self.read(), from_offset, to_offset)

    def append(self, txn: AbortedTxn) -> None:
        """Markers come in log order, so a last offset that does not grow is refused."""
        data = self.read()
        if data:
            last = AbortedTxn.unpack(data, len(data) - ENTRY_BYTES)
            if txn.last_offset <= last.last_offset:
                raise ValueError(f"offset {txn.last_offset} is not above {last.last_offset}")
        with self._disk.open_append(self.path, size_bytes=len(data)) as file:
            file.write(txn.pack())

    def truncate_to(self, offset: int) -> None:
        """Keep the transactions whose marker is below `offset`."""
        data = self.read()
        keep_bytes = txn_index.entries_below(data, offset) * ENTRY_BYTES
        if keep_bytes == 0:
            self.delete()
        elif keep_bytes < len(data):
            self._disk.truncate(self.path, keep_bytes)

    def flush(self) -> None:
        if self._disk.exists(self.path):
            self._disk.fsync(self.path)

    def delete(self) -> None:
        self._disk.unlink(self.path, missing_ok=True)


class IndexPair(NamedTuple):
    """The files of the offset index and the time index of a segment, which may not exist yet.

    An index is never repaired. One that is missing, or contradicts the log, is rebuilt.
    """

    disk: Disk
    offset_index: Path
    time_index: Path
    base_offset: int

    def open(
        self, end: SegmentEnd, bytes_max: int, rebuild: Callable[[], IndexBuilder]
    ) -> tuple[OffsetIndexFile, TimeIndexFile]:
        """Map both at `bytes_max`, for a log that ends at `end`. `rebuild` reads the log, so it is
        called only if necessary. For an empty log, mapping creates the files."""
        if end.position and not self._files_exist():
            self.write(rebuild())
        try:
            return self._map(end, bytes_max)
        except CorruptIndexError:
            self.write(rebuild())
            return self._map(end, bytes_max)

    def write(self, entries: IndexBuilder) -> None:
        """Replace both files. They are derived, so nothing is synced."""
        self.disk.write_file(self.offset_index, entries.offset_index, is_synced=False)
        self.disk.write_file(self.time_index, entries.time_index, is_synced=False)

    def _files_exist(self) -> bool:
        return self.disk.exists(self.offset_index) and self.disk.exists(self.time_index)

    def _map(self, end: SegmentEnd, bytes_max: int) -> tuple[OffsetIndexFile, TimeIndexFile]:
        base_offset = self.base_offset
        offset_index = OffsetIndexFile(self.disk, self.offset_index, base_offset, bytes_max)
        offset_index.check(log_bytes=end.position, next_offset=end.next_offset)
        time_index = TimeIndexFile(self.disk, self.time_index, base_offset, bytes_max)
        time_index.check(next_offset=end.next_offset)
        return offset_index, time_index
