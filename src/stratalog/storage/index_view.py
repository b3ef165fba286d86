"""A sparse index as a reader sees it: a hint, whose entries are checked before they are used.

An index file may be missing, empty, stale, truncated, preallocated with a zero tail, or full of
junk, and it may change while it is read. So it is copied, never mapped (see `log_file`), and an
entry counts only after the segment has checked it against the log. Long files are copied in two
steps: the last 8 KiB serve most lookups (the newest offsets, the largest timestamp), the rest
follows on demand. An index that is searched often is unpacked into two columns, which Python
bisects in C.

Several threads may search at a time: what has to be consistent is held in one tuple.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from itertools import islice
from operator import lt
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self, TypeAlias

from stratalog.errors import CorruptIndexError
from stratalog.format import offset_index, time_index
from stratalog.format.index_entries import IndexBuilder
from stratalog.format.index_search import RELATIVE_OFFSET_MAX, WARM_BYTES
from stratalog.format.names import FileKind
from stratalog.format.offset_index import POSITION_MAX
from stratalog.storage.log_file import open_file
from stratalog.storage.trace import IndexKind, IndexStep, Probe

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from stratalog.format.buffers import Buffer
    from stratalog.storage.log_file import LogFile
    from stratalog.storage.segment_view import SegmentView
    from stratalog.storage.trace import Trace

FROM_FILE: Final = "file"
BUILT_FROM_LOG: Final = "built from the log: "
"""Origins of an index. The second is followed by the reason why it is not from the file."""
LOAD_WHOLE_BYTES: Final = 64 * 1024  # up to here one read costs less than two
UNPACK_AFTER_LOOKUPS: Final = 1000  # unpacking costs as much as some hundred lookups save


class _Lookup(Protocol):
    def __call__(
        self,
        buf: Buffer,
        entries: int,
        base_offset: int,
        target: int,
        trace: list[int] | None = ...,
    ) -> tuple[int, int, int]: ...


class _Count(Protocol):
    def __call__(self, buf: Buffer) -> int: ...


class IndexFormat(NamedTuple):
    """One of the two sparse index formats, as far as a reader needs it."""

    kind: IndexKind
    file_kind: FileKind
    entry_bytes: int
    entry_codes: str
    lookup: _Lookup
    count_valid_entries: _Count


OFFSET_INDEX: Final = IndexFormat(
    "offset",
    FileKind.OFFSET_INDEX,
    offset_index.ENTRY_BYTES,
    "ii",
    offset_index.lookup,
    offset_index.count_valid_entries,
)
TIME_INDEX: Final = IndexFormat(
    "time",
    FileKind.TIME_INDEX,
    time_index.ENTRY_BYTES,
    "qi",
    time_index.lookup,
    time_index.count_valid_entries,
)
_BEYOND_ANY: Final = (1 << 63) - 1


Anchor: TypeAlias = tuple[int, int, int]
"""An index entry: slot, then offset and position (offset index) or timestamp and offset (time
index). Slot -1 means the start of the segment: every entry is above the target."""


class IndexView:
    """Entries of one index file, or of an index that was built from the log."""

    def __init__(
        self, of: IndexFormat, path: Path, base_offset: int, data: bytes, origin: str = FROM_FILE
    ) -> None:
        self.format = of
        self.path = path
        self.base_offset = base_offset
        self.origin = origin
        """`file`, or why the file was not used."""
        # Only a file has a zero tail. In entries built from the log, twelve zeros mean time 0.
        is_file = origin == FROM_FILE
        self.entries = of.count_valid_entries(data) if is_file else len(data) // of.entry_bytes
        self._held = (0, data)  # the slot of the first entry in the data, and the data
        self._lookups = 0
        self._columns: tuple[array[int], array[int]] | None = None
        self._before_all = of.lookup(b"", 0, base_offset, 0)

    @classmethod
    def load(cls, of: IndexFormat, path: Path, base_offset: int) -> Self:
        """What the file contains now, unchecked. Raises FileNotFoundError."""
        with open_file(path) as file:
            size_bytes = file.size_bytes // of.entry_bytes * of.entry_bytes
            if size_bytes > LOAD_WHOLE_BYTES:
                tail_bytes = WARM_BYTES // of.entry_bytes * of.entry_bytes
                tail = file.read(size_bytes - tail_bytes, tail_bytes)
                if len(tail) == tail_bytes and any(tail[-of.entry_bytes :]):
                    return cls.of_tail(of, path, base_offset, tail, size_bytes // of.entry_bytes)
            return cls(of, path, base_offset, _read_used(of, file, size_bytes))

    @classmethod
    def of_tail(
        cls, of: IndexFormat, path: Path, base_offset: int, tail: bytes, entries: int
    ) -> Self:
        view = cls(of, path, base_offset, b"")
        view.entries = entries
        view._held = (entries - len(tail) // of.entry_bytes, tail)
        return view

    def lookup(self, target: int, trace: Trace | None = None) -> Anchor:
        """The greatest entry at or below `target`, an offset or a timestamp."""
        if self._columns is not None and trace is None:
            keys, values = self._columns
            slot = bisect_right(keys, target) - 1
            return (slot, keys[slot], values[slot]) if slot >= 0 else self._before_all
        self._lookups += 1
        if self._lookups == UNPACK_AFTER_LOOKUPS:
            self._unpack()
        first = self._held[0]
        if first and (trace is not None or self.entry(first)[1] > target):
            self._load_rest()
        if trace is not None:
            return self._traced_lookup(target, trace)
        first, data = self._held
        found = self.format.lookup(data, self.entries - first, self.base_offset, target)
        if first and found[0] >= 0:
            return found[0] + first, found[1], found[2]
        return found

    def after(self, anchor: Anchor) -> Anchor | None:
        """The next entry, if there is one."""
        slot = anchor[0] + 1
        if slot >= self.entries:
            return None
        if self._columns is None:
            return self.entry(slot)
        return slot, self._columns[0][slot], self._columns[1][slot]

    def last(self) -> Anchor | None:
        """The last entry."""
        return self.entry(self.entries - 1) if self.entries else None

    def entry(self, slot: int) -> Anchor:
        """The entry in this slot."""
        if slot < self._held[0]:
            self._load_rest()
        first, data = self._held
        size = self.format.entry_bytes
        at = (slot - first) * size
        one = data[at : at + size]
        if len(one) < size:
            raise CorruptIndexError(f"no slot {slot}", position=slot * size, path=self.path)
        _, key, value = self.format.lookup(one, 1, self.base_offset, _BEYOND_ANY)
        return slot, key, value

    def extended(self, newer: bytes) -> IndexView:
        """The same entries followed by `newer` ones from the log."""
        data = self._whole() + newer
        origin = f"{self.origin}, and newer entries from the log"
        return IndexView(self.format, self.path, self.base_offset, data, origin)

    def _traced_lookup(self, target: int, trace: Trace) -> Anchor:
        slots: list[int] = []
        found = self.format.lookup(self._whole(), self.entries, self.base_offset, target, slots)
        probes = tuple(Probe(*self.entry(slot)) for slot in slots)
        hit = Probe(*found) if found[0] >= 0 else None
        trace.add(
            IndexStep(self.path, self.format.kind, self.origin, self.entries, target, probes, hit)
        )
        return found

    def _unpack(self) -> None:
        """Unsorted entries stay packed: bisection would contradict the other search."""
        of, data = self.format, self._whole()
        fields = struct.unpack(">" + of.entry_codes * (len(data) // of.entry_bytes), data)
        keys, values = array("q", fields[0::2]), array("q", fields[1::2])
        base = self.base_offset
        if of is OFFSET_INDEX:
            keys = array("q", [base + relative for relative in keys])
        else:
            values = array("q", [base + relative for relative in values])
        if all(map(lt, keys, islice(keys, 1, None))):
            self._columns = keys, values

    def _whole(self) -> bytes:
        """All entries."""
        if self._held[0]:
            self._load_rest()
        return self._held[1][: self.entries * self.format.entry_bytes]

    def _load_rest(self) -> None:
        """Read the whole file. If it has shrunk there are fewer entries: still a hint."""
        try:
            with open_file(self.path) as file:
                data = file.read(0, self.entries * self.format.entry_bytes)
        except FileNotFoundError:
            data = b""
        self._held = (0, data)
        self.entries = self.format.count_valid_entries(data)


def _read_used(of: IndexFormat, file: LogFile, size_bytes: int) -> bytes:
    """The entries of a file of `size_bytes`, without most of the zeros that may follow them."""
    data = file.read(0, min(size_bytes, LOAD_WHOLE_BYTES // of.entry_bytes * of.entry_bytes))
    while len(data) < size_bytes and of.count_valid_entries(data) * of.entry_bytes == len(data):
        more = file.read(len(data), min(len(data), size_bytes - len(data)))
        if not more:
            break  # the file shrank
        data += more
    return data


WINDOW_BYTES: Final = 8 * 1024 * 1024
SAMPLE_BATCHES: Final = 4096
BULK_BATCHES_MIN: Final = 200_000
"""Loading the kernels takes about as long as reading this many headers in Python."""


def is_bulk_worth_it(batches: int, position: int, size_bytes: int) -> bool:
    """Whether this many batches up to `position` mean very many more up to `size_bytes`."""
    return (
        batches >= SAMPLE_BATCHES
        and (size_bytes - position) * batches > BULK_BATCHES_MIN * position
    )


def rebuild_indexes(view: SegmentView) -> IndexBuilder:
    """Both indexes from the plausible batches of the segment, across corruption.

    The walk starts in Python, which needs no warm-up. If the first few thousand batches are so
    small that hundreds of thousands must follow, compiled kernels take over, window by window, and
    Python continues only where a batch is corrupt or larger than a window.
    """
    builder = IndexBuilder(view.base_offset)
    batches, start, indexed_at = 0, 0, -1
    is_done = False
    while not is_done:
        is_done = True
        for position, batch in view.walk(start):
            if position == indexed_at:
                continue
            if (
                batch.last_offset - view.base_offset > RELATIVE_OFFSET_MAX
                or position > POSITION_MAX
            ):
                continue  # no entry can hold it; a corrupt offset must not hide what follows
            builder.add(position, batch.size_bytes, batch.last_offset, batch.max_timestamp)
            batches += 1
            if is_bulk_worth_it(batches, position, view.size_bytes):
                start = indexed_at = _index_in_bulk(view, builder, position, batch.size_bytes)
                is_done = False
                break
    builder.finish()
    return builder


def _index_in_bulk(view: SegmentView, builder: IndexBuilder, last_at: int, size_bytes: int) -> int:
    """Index what follows the batch at `last_at`, as far as it is certainly valid.

    Returns the position of the last batch that was indexed. The walk continues from there, not from
    its end: if corruption follows, that batch is suspect too.
    """
    from stratalog.format.batch_table import (  # noqa: PLC0415
        add_batches,
        fits_segment,
        scan_batches,
    )

    position, end = last_at + size_bytes, min(view.size_bytes, POSITION_MAX)
    while position < end:
        window = view.file.read(position, min(WINDOW_BYTES, end - position))
        rows = scan_batches(window).rows
        good = count_true(fits_segment(rows, view.base_offset))
        if not good:
            break
        add_batches(builder, rows[:good], position)
        last_at = position + int(rows["position"][good - 1])
        position = last_at + int(rows["size_bytes"][good - 1])
        if good < len(rows):
            break
    return last_at


def count_true(flags: NDArray[Any]) -> int:
    """How many flags are set before the first one that is not."""
    return len(flags) if flags.all() else int(flags.argmin())
